"""A plan that no session accepts, or that counts a text twice, is refused before any trial."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tuner_samples import FACTS, SMALL_PLAN
from typer.testing import CliRunner

from strata.cli.tune import app
from strata.errors import StrataError, UsageError
from strata.lm import LanguageModel, load_model
from strata.passages import documents
from strata.session import create_session
from strata.tuner.arms import ORDER, PairSpec, lay_grid
from strata.tuner.axis_words import axis_word
from strata.tuner.plan import Plan, load_plan, parse_plan
from strata.tuner.plan_check import plans_to_measure
from strata.tuner.rehearsal import rehearse
from strata.tuner.session_bench import session_config
from strata.units import parse_bytes

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "data" / "tiny"
COUNT = len(documents())
LONG = 'name = "p"\n[grid]\ntiers = [512, "2K"]\n[measure]\nmax_new = 12\n[session]\n'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    """A tiny model with few positions, so that a context can be past them."""
    folder = tmp_path_factory.mktemp("few") / "tiny"
    shutil.copytree(TINY, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return load_model(folder, "cpu")


def ask(model: LanguageModel, plan: Plan) -> None:
    positions = model.config.max_positions
    rehearse(model, plan, replace(FACTS, max_positions=positions, has_mtp=model.has_mtp))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('select = "2K"', "tier 2048, drafter off, ring 1024: a session takes 2080 cells .*minimum "
         "ring.*; it is the device's default, and grid.default_ring names another"),
        ('select = "depth/2"', "tier 2048, .* ring 1024: .* takes 1072 cells"),
        ("page = 7", "tier 512, .* ring 1024: .* takes 1022 cells there .*whole pages of 7 cells"),
        ("page = 2048", "--kv-page: 2048 is outside 1 to 1024"),
        ("context = 6000", "more than the model's 4096 positions"),
        ('context = "shared"', "more than the model's 4096 positions"),
    ],
)  # fmt: skip
def test_what_no_session_accepts_is_refused_by_its_arm(
    line: str, words: str, model: LanguageModel
) -> None:
    plan = parse_plan(LONG + line, origin="p.toml")
    with pytest.raises(UsageError, match=f"^plan p, {words}" if "tier" in words else words):
        ask(model, plan)


def test_a_ring_that_the_budget_does_not_hold_is_no_fault_of_the_plan(model: LanguageModel) -> None:
    ask(model, parse_plan(LONG + 'vram_budget = "64KiB"', origin="p.toml"))


@settings(max_examples=25, deadline=None)
@given(
    select=st.sampled_from(["0", "64", "256", "depth/2", "depth/8"]),
    page=st.sampled_from([1, 7, 16, 32]),
    ring=st.sampled_from([32, 64, 112, 224]),
    context=st.sampled_from(["'own'", "256", "5000"]),
)
def test_it_refuses_exactly_what_sessions_refuse(
    select: str, page: int, ring: int, context: str, model: LanguageModel
) -> None:
    """Every session of the plan is really created, and takes the ring that it was asked for."""
    text = (
        f'name = "p"\n[grid]\ntiers = [32, 100]\ndefault_ring = 112\nrings = [{ring}]\n'
        f'[session]\nselect = "{select}"\npage = {page}\ncontext = {context}\n'
        "[measure]\nmax_new = 12\n"
    )
    try:
        plan = parse_plan(text, origin="p.toml")
    except UsageError:
        return  # what is wrong without any model is not asked here
    grid = lay_grid(plan, device_default_cells=1024, max_positions=None)

    def opens(pair: PairSpec, position: int) -> bool:
        config = session_config(pair.side(position), pair.ring_cells(position))
        try:
            session = create_session(
                model, config, prompt_cells=pair.depth_cells, max_new=pair.max_new, environ={}
            )
        except StrataError:
            return False
        taken = session.decision.ring_cells
        session.close()
        return taken == pair.ring_cells(position)

    pairs = [next(iter(grid.pairs(arm, study="s"))) for arm in grid.arms()]
    fine = all(opens(pair, ORDER.index(side)) for pair in pairs for side in ("default", "arm"))
    if fine:
        ask(model, plan)
    else:
        with pytest.raises(UsageError, match=r"^plan p, tier"):
            ask(model, plan)


def command(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.stderr


def test_at_the_command_it_is_one_sentence_and_nothing_is_measured(tmp_path: Path) -> None:
    plan = tmp_path / "p.toml"
    plan.write_text(LONG + "page = 7\n")
    lines = tmp_path / "t.jsonl"
    code, errors = command("run-trials", plan, "--jsonl", lines, "--model", TINY)
    assert code == 2
    assert errors.startswith("error: plan p, tier 512, drafter off, ring 1024")
    assert errors.count("\n") == 1
    assert not lines.exists(), "what nothing came of is not left behind"
    plan.write_text(LONG.partition("[session]")[0] + "[axes]\ncontext = ['own', '1M']\n")
    code, errors = command("run-trials", plan, "--jsonl", lines, "--model", TINY)
    assert code == 2
    place = "plan p.context-1024K, tier 512, drafter off, ring 1024: --max-context"
    assert place in errors, "the second study is asked for with the first"
    assert not list(tmp_path.glob("*.jsonl"))


@pytest.mark.parametrize(
    ("search", "fresh", "names"),
    [
        ("[0]", "[1, 29, 57]", "32:1, 32:29, 32:57 are one text, which would count 3 times"),
        ("[0]", "[28]", "32:0, 32:28 are one text, which would count 2 times"),
    ],
)
def test_a_text_counts_once(search: str, fresh: str, names: str, tmp_path: Path) -> None:
    text = SMALL_PLAN.replace("search = [0]", f"search = {search}")
    (tmp_path / "p.toml").write_text(text.replace("fresh = [1, 2]", f"fresh = {fresh}"))
    for words in (["sweep"], ["run-trials", "--jsonl", tmp_path / "t.jsonl"]):
        code, errors = command(*words, tmp_path / "p.toml", "--model", TINY)
        assert code == 2
        assert f"plan small: passages {names}" in errors
    assert sorted(one.name for one in tmp_path.iterdir()) == ["p.toml"]


@given(st.lists(st.integers(0, 3 * COUNT), min_size=2, max_size=8, unique=True))
def test_seeds_are_refused_where_they_meet(seeds: list[int]) -> None:
    fresh = ", ".join(map(str, seeds[1:]))
    text = SMALL_PLAN.replace("search = [0]", f"search = [{seeds[0]}]")
    plan = parse_plan(text.replace("fresh = [1, 2]", f"fresh = [{fresh}]"), origin="p.toml")
    if len({seed % COUNT for seed in seeds}) == len(seeds):
        assert plans_to_measure(plan) == (plan,)
    else:
        with pytest.raises(UsageError, match="are one text"):
            plans_to_measure(plan)


def test_the_plans_that_ship_may_be_measured() -> None:
    for path in [*ROOT.glob("data/plans/*.toml"), *ROOT.glob("experiments/**/*.toml")]:
        if "[grid]" in path.read_text(encoding="utf-8"):
            plans_to_measure(load_plan(str(path)))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("rings = [32, 64, 128]", "rings = []", "grid.rings is an empty list"),
        ("rings = [32, 64, 128]", "rings = {32 = [64], 64 = []}", "grid.rings is an empty list"),
        ("search = [0]", "search = []", "passages.search is empty"),
        ("[search]", "[axes]\ndrafts = []\n[search]", "axes.drafts is an empty list"),
    ],
)
def test_an_empty_list_is_refused(old: str, new: str, words: str) -> None:
    plan = parse_plan(SMALL_PLAN.replace(old, new), origin="p.toml")
    with pytest.raises(UsageError, match=words):
        plans_to_measure(plan)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("[" * 5000 + "]" * 5000, "nests deeper"),
        ("9" * 5000, "thousands of digits"),
        ("[" * 300 + "]" * 300, "tiers"),
        ("[" + "9" * 4000 + "]", "less than or equal"),
    ],
)
def test_a_monstrous_plan_is_one_short_sentence(value: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        parse_plan(f'name = "x"\n[grid]\ntiers = {value}', origin="p.toml")
    assert len(str(raised.value)) < 300


@given(st.integers(1, 1 << 50))
def test_the_name_of_a_budget_reads_back(count: int) -> None:
    assert parse_bytes(axis_word("vram_budget", count).removeprefix("budget-"), name="") == count


def test_values_that_print_alike_are_studies_of_their_own_names() -> None:
    text = SMALL_PLAN + "[axes]\nvram_budget = ['1.2MiB', '1.21MiB']\n"
    names = [one.name for one in plans_to_measure(parse_plan(text, origin="p.toml"))]
    assert names == ["small.budget-1.2MiB", "small.budget-1268776B"]


def test_a_model_that_cannot_draft_is_measured_without(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--modes off measures without the drafter"):
        lay_grid(load_plan("quick"), device_default_cells=64, max_positions=None, has_mtp=False)
    plan = load_plan("quick").with_modes("off")
    assert {arm.mode for arm in lay_grid(
        plan, device_default_cells=64, max_positions=None, has_mtp=False
    ).arms()} == {"off"}  # fmt: skip
    for words in ("", "maybe", "off,off"):
        with pytest.raises(UsageError, match="--modes"):
            plan.with_modes(words)
