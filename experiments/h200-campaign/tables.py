"""Print the tables of the README from what run.sh wrote.

python experiments/h200-campaign/tables.py OUT/own OUT/shared
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+")
    for folder in parser.parse_args().folders:
        judged = json.loads((folder / "evaluate.json").read_text(encoding="utf-8"))
        table = json.loads((folder / "ring-policy.json").read_text(encoding="utf-8"))
        print(f"*{judged['name']}*\n")
        print(entries(judged, table) + "\n")
        print(regret(judged) + "\n")
        print(rivals(judged) + "\n")
        print(errors(judged) + "\n")
        print(intervals(judged) + "\n")


def entries(judged: dict[str, Any], table: dict[str, Any]) -> str:
    scored = {(one["tier_cells"], one["mode"]): one for one in judged["entries"]}
    lines = [
        "| tier | drafter | ring | verdict | candidate's gain | best in hindsight "
        "| learned over default, bound |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for one in table["entries"]:
        mine = scored.get((one["tier_cells"], one["mode"]))
        gain = "-"
        if one["effect"] is not None:
            gain = f"{one['effect']:+.1%} [{one['lower']:+.1%}, {one['upper']:+.1%}]"
        best = over = "-"
        if mine is not None:
            best = f"{mine['best_ring_cells']:,}"
            over = f"{math.expm1(mine['mean']):+.1%}, {math.expm1(mine['lower']):+.1%}"
        lines.append(
            f"| {one['tier_cells'] // 1024}K | {one['mode']} | {one['ring_cells']:,} | "
            f"{one['verdict']} | {gain} | {best} | {over} |"
        )
    return "\n".join(lines)


def regret(judged: dict[str, Any]) -> str:
    lines = [
        "| policy | regret, mean | worst entry | entries | depth left out, mean | worst |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    beyond = {one["policy"]: one for one in judged["choices"]}
    for one in judged["regret"]:
        other = beyond.get(one["policy"])
        left = "- | -" if other is None or not other["entries"] else _losses(other)
        missing = f" (+{one['not_measured']} not measured)" if one["not_measured"] else ""
        words = f"{one['entries']}{missing}"
        lines.append(f"| {one['policy']} | {_losses(one)} | {words} | {left} |")
    return "\n".join(lines)


def rivals(judged: dict[str, Any]) -> str:
    lines = [
        "| rival | learned over it, 95 % | verdict | documents | entries |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in judged["rivals"]:
        ring = "" if one["ring_cells"] is None else f": {one['ring_cells']:,.0f}"
        low, high = (
            "?" if one[name] is None else f"{math.expm1(one[name]):+.1%}"
            for name in ("lower", "upper")
        )
        missing = f" (+{one['not_measured']} not measured)" if one["not_measured"] else ""
        lines.append(
            f"| {one['rival']}{ring} | {math.expm1(one['mean']):+.1%} [{low}, {high}] | "
            f"{one['verdict']} | {one['documents']} | {one['entries']}{missing} |"
        )
    return "\n".join(lines)


def errors(judged: dict[str, Any]) -> str:
    lines = [
        "| left out | method | configurations | mean error | largest | rank correlation |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for one in judged["errors"]:
        rank = one["rank_correlation"]
        lines.append(
            f"| {one['left_out']} | {one['method']} | {one['configurations']} | "
            f"{one['mean_abs_error']:.1%} | {one['max_abs_error']:.1%} | "
            f"{'-' if rank is None else f'{rank:.3f}'} |"
        )
    return "\n".join(lines)


def intervals(judged: dict[str, Any]) -> str:
    held = [
        f"{one['quantity']}: the {one['confidence']:.0%} interval held {one['hits']} of "
        f"{one['draws']} draws of {one['documents']} documents, {one['lower']:.0%} to "
        f"{one['upper']:.0%} (p {one['p_value']:.2f})"
        for one in judged["coverage"]
    ]
    silence = judged["silence"]
    beyond = (
        f"beyond the measured depths no evidence {silence['silent']} of {silence['asked']} times, "
        f"always at {silence['silent_depths']} of {silence['depths']} depths"
    )
    return "; ".join([*held, beyond]) + "."


def _losses(one: dict[str, Any]) -> str:
    return f"{one['mean_pct']:.2f} % | {one['worst_pct']:.2f} %"


if __name__ == "__main__":
    main()
