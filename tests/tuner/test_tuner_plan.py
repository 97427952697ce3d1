"""Plans: what they say, what they refuse, and that their hash is of their meaning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tuner_samples import FACTS, SMALL_PLAN, all_pairs

from strata.config import DEFAULT_RING_CELLS
from strata.errors import UsageError
from strata.passages import documents
from strata.tuner.arms import ArmGrid, lay_grid
from strata.tuner.drive import new_study
from strata.tuner.plan import Plan, load_plan, parse_plan, plan_from_json
from strata.tuner.study import StudyRecord

ROOT = Path(__file__).parents[2]


def small(changes: str = "", **replacements: str) -> Plan:
    text = SMALL_PLAN
    for old, new in replacements.items():
        line = next(one for one in text.splitlines() if one.startswith(old + " "))
        text = text.replace(line, f"{old} = {new}")
    return parse_plan(text + changes, origin="small.toml")


def test_quick_is_what_the_issue_asks() -> None:
    plan = load_plan("quick")
    assert plan.grid.tiers == (512, 1024, 2048, 4096)
    assert plan.grid.modes == ("off", "on")
    assert len(plan.passages.search + plan.passages.fresh) == 3
    assert plan.measure.max_new == 128
    grid = ArmGrid(plan, DEFAULT_RING_CELLS["cpu"])
    rings = {tier: grid.rings(tier) for tier in plan.grid.tiers}
    assert rings == {512: (128, 256, 1024), 1024: (256, 1024, 2048), 2048: (256, 1024, 4096),
                     4096: (256, 1024, 8192)}  # fmt: skip
    assert plan.need_cells(2048) > grid.default_ring_cells


def test_quick_chooses_and_confirms_on_passages_of_those_splits() -> None:
    plan, listed = load_plan("quick"), documents()
    assert {listed[seed].split for seed in plan.passages.search} == {"search"}
    assert {listed[seed].split for seed in plan.passages.fresh} == {"fresh"}


def test_the_hash_is_of_the_meaning() -> None:
    plan = small()
    assert small("\n# a remark\n").sha256 == plan.sha256
    assert small(tiers='["32", 64]').sha256 == plan.sha256
    assert small(max_new="13").sha256 != plan.sha256
    assert plan_from_json(plan.canonical()) == plan
    budget = small(mtp_window='64\nvram_budget = "40MiB"')
    assert budget.session.vram_budget == 40 << 20
    assert plan_from_json(budget.canonical()) == budget


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[grid]\ntiers = [32]", "key 'name' is missing"),
        ('name = "x"', "key 'grid' is missing"),
        ('name = "x"\ncolour = 1\n[grid]\ntiers = [32]', r"'colour' at the top level \(line 2\)"),
        ('name = "x"\n[grid]\ntiers = [32]\nringz = 1', r"'ringz' in \[grid\] \(line 4\); known"),
        ('name = "x"\n[grid]\ntiers = ["4Q"]', r"\(line 3\): '4Q' is not a number of cells"),
        ('name = "x"\n[grid]\ntiers = [-1]', "greater than 0"),
        ('name = "x"\n[grid]\ntiers = "32"', r"tiers \(line 3\): input should be a list"),
        ('name = "x"\n[grid]\ntiers = [1e9]', "valid integer"),
        ('name = "x"\n[grid]\ntiers = [999999999999]', "less than or equal"),
        ('name = "x"\n[grid]\ntiers = []', "at least 1 item"),
        ('name = "x"\n[grid]\ntiers = [64, 32]', "must rise"),
        ('name = "x"\n[grid]\ntiers = [32]\nrings = [33]', "ring 33 is not a whole number"),
        ('name = "x"\n[grid]\ntiers = [32]\nrings = [16]', "below the minimum of 32 cells"),
        ('name = "x"\n[grid]\ntiers = [32]\nrings = [-32]', r"rings.0 \(line 4\).*greater than 0"),
        ('name = "x"\n[grid]\ntiers = [32]\nrings = {64 = [32]}', "exactly the plan's tiers"),
        ('name = "x"\n[grid]\ntiers = [32]\nmodes = ["maybe"]', "'off' or 'on'"),
        ('name = "x"\n[grid]\ntiers = [32]\n[passages]\nfresh = [0]\nsearch = [0]', "once"),
        ('name = "x"\n[grid]\ntiers = [32]\n[session]\nselect = "deep"', "not a number of cells"),
        ('name = "x"\n[grid]\ntiers = [32]\n[session]\ncontext = 40', "below the need"),
        ('name = "x"\n[grid]\ntiers = [32]\n[session]\nvram_budget = "much"', "not a size"),
        ('name = "x"\n[grid]\ntiers = [32]\n[session]\ndrafts = 99', "less than or equal to 7"),
        ('name = "../x"\n[grid]\ntiers = [32]', "should match pattern"),
        ("name =", "is not TOML"),
    ],
)
def test_a_wrong_plan_is_one_sentence_with_its_place(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        parse_plan(text, origin="bad.toml")
    assert str(raised.value).startswith("plan bad.toml")
    assert "\n" not in str(raised.value)


def test_a_missing_plan_says_which_there_are() -> None:
    with pytest.raises(UsageError, match=r"give a TOML file or one of: .*quick"):
        load_plan("no-such-plan")


def test_rings_of_one_pool_are_one_ring(grid: ArmGrid) -> None:
    assert grid.rings(32) == (32, 64)  # 128 holds the same 64 cells as the default
    assert grid.rings(64) == (32, 64, 128)
    assert grid.arm(32, "off", 128).ring_cells == 64


def test_each_arm_is_paired_with_the_default(grid: ArmGrid) -> None:
    for arm in grid.arms():
        pairs = list(grid.pairs(arm, study="s"))
        assert len(pairs) == (1 if arm.ring_cells == 64 else 3)
        assert {pair.default_ring_cells for pair in pairs} == {64}
        assert [pair.split for pair in pairs] == ["search", "fresh", "fresh"][: len(pairs)]
        assert {pair.spec for pair in pairs} == {1 if arm.mode == "on" else 0}


def test_ids_are_hashes_of_all_that_can_change_the_number(study: StudyRecord) -> None:
    pairs = all_pairs(study)
    ids = [pair.trial_id(position) for pair in pairs for position in range(4)]
    assert len(set(ids)) == len(ids)
    spec = pairs[0]
    other = replace(spec, victims="lrfu")
    assert other.trial_id(0) != spec.trial_id(0)
    assert type(spec).from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    "change",
    [{"model_hash": "11" * 32}, {"device": "other"}, {"engine_version": "0.1.0+1"},
     {"passages_sha256": "22" * 32}],
)  # fmt: skip
def test_another_condition_is_another_study(
    plan: Plan, study: StudyRecord, change: dict[str, str]
) -> None:
    assert new_study(plan, replace(FACTS, **change)).study != study.study  # type: ignore[arg-type]
    assert new_study(plan, FACTS).study == study.study


def test_a_plan_that_the_model_cannot_run_is_refused(plan: Plan) -> None:
    with pytest.raises(UsageError, match="needs 76 positions and the model has 70"):
        lay_grid(plan, device_default_cells=64, max_positions=70)
    with pytest.raises(UsageError, match="no MTP layer"):
        new_study(plan, replace(FACTS, has_mtp=False))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_quick_has_rings_to_compare_on_every_device(device: str) -> None:
    """At each tier something is smaller than the context, or there is nothing to learn."""
    plan = load_plan("quick")
    grid = ArmGrid(plan, DEFAULT_RING_CELLS[device])
    for tier in plan.grid.tiers:
        assert 2 <= len(grid.rings(tier)) <= 3
        assert min(grid.rings(tier)) < plan.need_cells(tier)


AXES = (
    SMALL_PLAN.replace("mtp_window = 64\n", "")
    + """
[axes]
mtp_window = [64, "1K"]
drafts = [1, 3]
context = ["own", "shared"]
vram_budget = ["40MiB", "none"]
"""
)


def test_axes_are_studies_of_their_own() -> None:
    plan = parse_plan(AXES, origin="a.toml")
    plans = plan.expand()
    assert (
        len(plans) == len({one.sha256 for one in plans}) == len({one.name for one in plans}) == 16
    )
    first = plans[0]
    assert first.name == "small.drafts-1.window-64.budget-40MiB.context-own"
    assert plans[-1].name == "small.drafts-3.window-1K.budget-none.context-shared"
    assert plans[-1].session.context == 132_096
    assert plans[-1].session.vram_budget is None
    assert {one.grid for one in plans} == {plan.grid}
    assert first.expand() == (first,)
    alone = first.model_copy(update={"name": "small"})
    again = SMALL_PLAN.replace("mtp_window = 64\n", 'mtp_window = 64\nvram_budget = "40MiB"\n')
    assert alone.sha256 == parse_plan(again, origin="b.toml").sha256
    assert plan_from_json(first.canonical()) == first


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("drafts = [1, 3]", "drafts = [1, 1]", "axes .*drafts must not repeat"),
        ("drafts = [1, 3]", "drafts = [1, 8]", r"axes\.drafts\.1 \(line 19\)"),
        ("drafts = [1, 3]", "draft = [1]", r"unknown key 'draft' in \[axes\]"),
        ('context = ["own", "shared"]', 'context = ["own", 64]', "context 64 is below the need"),
        ("[session]", "[session]\ndrafts = 1", "drafts stands in session and in axes"),
    ],
)
def test_axes_that_cannot_be_are_refused(old: str, new: str, message: str) -> None:
    assert old in AXES
    with pytest.raises(UsageError, match=message):
        parse_plan(AXES.replace(old, new), origin="a.toml")


def test_the_plans_for_the_gpu_can_be_laid_and_say_what_they_cost() -> None:
    splits = [one.split for one in documents()]
    sizes = (("own", "own", 720), ("shared", 132_096, 970))
    again = (("own-2", "own", 1_020), ("shared-2", 132_096, 980))
    for name, context, most in (*sizes, *again):
        plan = load_plan(str(ROOT / "experiments" / "plans" / f"h200-{name}.toml"))
        assert plan.session.context == context
        assert {splits[seed] for seed in plan.passages.search} == {"search"}
        fresh = [splits[seed] for seed in plan.passages.fresh]
        assert fresh == ["fresh"] * 12 or len(fresh) == 24
        grid = lay_grid(plan, device_default_cells=32_768, max_positions=135_168)
        assert grid.default_ring_cells == 8_192
        pairs = sum(1 for arm in grid.arms() for _ in grid.pairs(arm, study="s"))
        assert 0.9 * most < pairs <= most  # of which some rings do not fit and cost nothing
