"""Decode with and without launching rounds before the one under way was read, in turn.

    python experiments/gpu-decode/ahead.py > experiments/gpu-decode/ahead.txt

Each arm is one session; its repeats alternate, so a drift of the machine falls on both. Tokens,
accepted drafts and counts must be the same; `ahead` says how many rounds were launched ahead.
"""

from __future__ import annotations

import gc
from statistics import median

from strata.captured import CapturedEngine
from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.generation import Generation
from strata.lm import LanguageModel, bundled_model_path, load_model
from strata.passages import load_passage
from strata.session import Session, create_session

NEW, REPEATS = 256, 9
ARMS = (
    (1_024, 0, 0, 0), (1_024, 1, 0, 0), (1_024, 3, 0, 0), (1_024, "auto", 0, 0),
    (131_072, 0, 0, 0), (131_072, 1, 0, 0), (131_072, 3, 0, 0), (131_072, "auto", 0, 0),
    (131_072, 0, 6_144, 2_048), (131_072, 3, 6_144, 2_048),
)  # fmt: skip
"""Depth, drafts, ring (0 is everything), selection (0 is all)."""


def main() -> None:
    model = load_model(bundled_model_path(), "cuda")
    columns = "depth,drafts,ring,selection,tok/s read first,launched ahead,gain,same,rounds ahead"
    print("|", columns.replace(",", " | "), "|")
    print("|", columns.count(",") * "--- | " + "--- |")
    for depth, drafts, ring, select in ARMS:
        config = SessionConfig(
            kv=KvConfig(resident_cells=ring, selection=Selection(cells=select)),
            spec=SpecConfig(drafts=drafts),
        )
        print(measure(model, depth, config), flush=True)


def measure(model: LanguageModel, depth: int, config: SessionConfig) -> str:
    """Return an arm's row of the table."""
    ids = load_passage(f"{depth}:0", model.tokenizer)
    session = create_session(model, config, prompt_cells=depth, max_new=NEW, environ={})
    session.prefill(ids)
    engine = session.engine
    assert isinstance(engine, CapturedEngine)
    session.generate(SamplingParams(max_new=NEW, ignore_eos=True))
    done: dict[bool, list[Generation]] = {False: [], True: []}
    ahead = 0
    for number in range(2 * REPEATS):
        looks = number % 4 in (1, 2)
        engine.looks_ahead = looks
        one, ahead = run(session)
        done[looks].append(one)
    session.close()
    first = done[False][0]
    same = all(what(one) == what(first) for one in (*done[False], *done[True]))
    rates = [median(one.decode_tok_s or 0 for one in done[looks]) for looks in (False, True)]
    kv = config.kv
    return (
        f"| {depth:,} | {config.spec.drafts} | {kv.resident_cells or 'all'} | {kv.selection} "
        f"| {rates[0]:,.0f} | {rates[1]:,.0f} | {rates[1] / rates[0]:.2f} | {same} "
        f"| {ahead} of {first.rounds} |"
    )


def run(session: Session) -> tuple[Generation, int]:
    """Return one continuation and how many of its rounds were launched ahead."""
    engine = session.engine
    assert isinstance(engine, CapturedEngine)
    session.rewind()
    gc.collect()
    foresees, count = engine.foresees, [0]

    def counted(drafts: int, min_p: float) -> bool:
        answer = foresees(drafts, min_p)
        count[0] += answer
        return answer

    engine.foresees = counted  # type: ignore[method-assign]
    try:
        return session.generate(SamplingParams(max_new=NEW, ignore_eos=True)), count[0]
    finally:
        del engine.foresees


def what(done: Generation) -> tuple[object, ...]:
    """Return all of a generation that must not depend on when rounds are launched."""
    return done.tokens, done.rounds, done.accepted, done.kv.lookups, done.experts.lookups


if __name__ == "__main__":
    main()
