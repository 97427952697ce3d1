"""An estimate for a device that nothing was measured on: its profile, its directions, its words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from strata.errors import UsageError
from strata.models.device_profile import DeviceProfile, load_profile
from strata.models.whatif import Geometry, Workload, estimate

GEOMETRY = Geometry(
    layers=6, page_cells=16, cell_bytes=256, bounds_bytes=512, resident_bytes=9_500_000,
    expert_bytes=98_304, experts_per_token=4, num_experts=288, draft_bytes=5_000_000,
)  # fmt: skip
PROFILE = load_profile("h200")
WORKLOAD = Workload.usual(GEOMETRY, max_rows=4)
SESSION = {
    "mode": "on", "spec": 3, "depth_cells": 32_768, "max_new": 128, "context_cells": 32_912,
    "ring_cells": 8_192, "mtp_window_cells": 4_096, "select": "2048", "expert_slots": 200.0,
}  # fmt: skip


def seconds(changes: dict[str, object], profile: DeviceProfile = PROFILE) -> np.ndarray:
    """Return round times where one column (or more) takes several values."""
    return estimate(asked(changes), profile, GEOMETRY, WORKLOAD)["round_s"].to_numpy()


def asked(changes: dict[str, object]) -> pd.DataFrame:
    length = max((len(v) for v in changes.values() if isinstance(v, list)), default=1)
    return pd.DataFrame([SESSION] * length).assign(**changes)


def test_the_shipped_profile_is_of_a_gpu() -> None:
    assert PROFILE.name == "NVIDIA H200"
    assert PROFILE.kv_dtype == "bfloat16"
    assert PROFILE.vram_bytes > PROFILE.bus_bytes_per_s


def test_a_larger_ring_never_takes_longer_beside_the_same_experts() -> None:
    assert (np.diff(seconds({"ring_cells": [2_304, 4_096, 8_192, 16_384, 40_000]})) <= 0).all()


def test_more_expert_slots_never_take_longer() -> None:
    assert (np.diff(seconds({"expert_slots": [4.0, 50.0, 100.0, 200.0, 288.0]})) <= 0).all()


def test_more_depth_and_more_drafts_never_take_less() -> None:
    assert (np.diff(seconds({"depth_cells": [4_096, 8_192, 32_768, 131_072]})) >= 0).all()
    assert (np.diff(seconds({"spec": [0, 1, 2, 3], "mode": ["off", "on", "on", "on"]})) > 0).all()


def test_a_slower_bus_costs_only_who_misses() -> None:
    slow = DeviceProfile(**{**_values(), "bus_bytes_per_s": 10e9})
    held = {"ring_cells": [40_000], "expert_slots": [288.0]}
    assert seconds(held, slow) == pytest.approx(seconds(held))
    assert seconds({"ring_cells": [4_096]}, slow)[0] > 1.2 * seconds({"ring_cells": [4_096]})[0]


def test_the_trade_has_an_optimum_inside_where_ring_and_experts_compete() -> None:
    rings = [2_304, 4_096, 6_144, 8_192, 12_288, 16_384]
    slots = [220.0, 190.0, 158.0, 126.0, 61.0, 4.0]
    times = seconds({"ring_cells": rings, "expert_slots": slots})
    assert 0 < int(np.argmin(times)) < len(rings) - 1


def test_tokens_a_round_follow_the_accepted_share() -> None:
    workload = Workload.usual(GEOMETRY, max_rows=4, accepted=0.5)
    table = asked({"spec": [0, 1, 3], "mode": ["off", "on", "on"]})
    found = estimate(table, PROFILE, GEOMETRY, workload)
    np.testing.assert_allclose(found["tokens_per_round"], [1, 1.5, 1.875], rtol=1e-6)
    np.testing.assert_allclose(found["tok_s"], found["tokens_per_round"] / found["round_s"])


def _values() -> dict[str, object]:
    return {name: getattr(PROFILE, name) for name in PROFILE.__slots__}


def write(path: Path, changes: dict[str, object]) -> str:
    values = {**_values(), **changes}
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
    return str(path)


def test_a_profile_may_be_json(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", {"name": "other"})
    assert load_profile(path) == DeviceProfile(**{**_values(), "name": "other"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speed": 1}, "unknown key 'speed'; known keys: name, kind"),
        ({"launch_us": None}, "key 'launch_us' is missing: microseconds of a launch"),
        ({"bus_bytes_per_s": 0}, "key 'bus_bytes_per_s' is 0"),
        ({"vram_bytes": "much"}, "key 'vram_bytes' is 'much'"),
        ({"vram_bytes": True}, "key 'vram_bytes' is True"),
        ({"device_bytes_per_s": -1}, "key 'device_bytes_per_s' is -1"),
        ({"kind": "tpu"}, "key 'kind' is 'tpu'; it is one of cuda, cpu"),
        ({"name": ""}, "key 'name' is a text"),
    ],
)
def test_a_profile_that_cannot_be_is_said(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    path = write(tmp_path / "a.json", changes)
    with pytest.raises(UsageError, match=r"device profile .*a\.json") as caught:
        load_profile(path)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"), [("a.toml", "name = "), ("a.json", "[1]"), ("b.toml", "\udcff")]
)
def test_what_is_no_profile_is_said(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=f"device profile .*{name}"):
        load_profile(str(path))


def test_a_name_that_is_no_profile_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="give a TOML or JSON file or one of: h200"):
        load_profile("h201")
