"""Reduced attention, its projection, sum, norm and the router's choice, against plain torch.

Held: values to a tolerance; the choice is the best of the norm that was written; splits that nobody
wrote, scratch and rows behind a window leave no trace; a NaN in a split shows; a row's bits
whatever its company and however often it is computed; the counter is zero afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from strata.kernels.out_proj import Router, chunk_count, ref
from strata.kernels.paged_attention import Splits, split_shape
from strata.kernels.paged_attention import ref as attention
from strata.kernels.wide import BLOCK_OUT, block_count, split_count
from strata.lm.linear import Linear
from tests.kernels.devices import DEVICES, check_norm, rms_ratio

triton_out = pytest.importorskip("strata.kernels.out_proj.triton")
wide_out = pytest.importorskip("strata.kernels.out_proj.wide")
triton_attention = pytest.importorskip("strata.kernels.paged_attention.triton")

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}
EPS = 1e-6
NAN = float("nan")
BROKEN = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
"""The interpreter's arithmetic warns where it meets a NaN, which is what is tested."""
SPLIT = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What a call left, on the CPU: the residual of 8 rows, the norm, the choice."""

    residual: torch.Tensor
    normed: torch.Tensor
    ids: torch.Tensor | None
    weights: torch.Tensor | None


@dataclass(frozen=True, kw_only=True)
class Case:
    """Splits of a window's rows and what they are projected by."""

    rows: int = 2
    hidden: int = 48
    heads: int = 2
    dim: int = 16
    count: int = 3
    dtype: torch.dtype = torch.float32
    positions: tuple[int, ...] | None = None
    experts: int = 12
    chosen: int = 3
    normalise: bool = True
    row: int | None = None
    masked: tuple[int, ...] = (0,)
    wide: bool = False

    def scratch(self, device: str) -> dict[str, torch.Tensor]:
        """Return what programs hand to each other."""
        if not self.wide:
            shape = (self.rows, self.heads * chunk_count(self.dim), self.hidden)
        else:
            inner = self.heads * self.dim
            outputs = BLOCK_OUT * block_count(self.hidden)
            shape = (self.rows, inner + self.experts + outputs * split_count(inner))
        return {"parts": torch.full(shape, NAN, device=device)}

    def splits(self) -> Splits:
        """Return random splits; `masked` ones saw no cell, those behind a position are NaN."""
        torch.manual_seed(self.count + self.dim)
        shape = (8, self.heads, self.count)
        sums, tops = torch.randn(*shape, self.dim), 3 * torch.randn(shape)
        totals = 1 + 100 * torch.rand(shape)
        masked = [s for s in self.masked if s < self.count - 1 and self.positions is None]
        sums[:, :, masked], tops[:, :, masked], totals[:, :, masked] = NAN, -torch.inf, 0.0
        for r, position in enumerate(self.positions or ()):
            for values in (sums, tops, totals):
                values[r, :, position // SPLIT + 1 :] = NAN
        queries = self.rows * self.heads
        stats = torch.stack([tops[: self.rows], totals[: self.rows]])
        return Splits(
            sums=sums[: self.rows].reshape(queries, self.count, self.dim),
            stats=stats.reshape(2, queries, self.count),
            positions=None if self.positions is None else torch.tensor(self.positions),
            cells=SPLIT,
        )

    @property
    def residual(self) -> torch.Tensor:
        torch.manual_seed(self.hidden)
        return torch.randn(8, self.hidden).to(self.dtype)

    @property
    def weights(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the projection, the gain and the router."""
        torch.manual_seed(self.hidden + self.heads)
        inner = self.heads * self.dim
        out = torch.randn(self.hidden, inner) / inner**0.5
        router = torch.randn(max(1, self.experts), self.hidden) / self.hidden**0.5
        gain = 1 + 0.1 * torch.randn(self.hidden)
        return out.to(self.dtype), gain.to(self.dtype), router.to(self.dtype)

    def run(
        self, device: str, splits: Splits | None = None, residual: torch.Tensor | None = None
    ) -> Settled:
        """Run the kernel, or the reference where `device` is empty."""
        target = device or "cpu"
        splits = splits or self.splits()
        splits = replace(
            splits,
            sums=splits.sums.to(target),
            stats=splits.stats.to(target),
            positions=None if splits.positions is None else splits.positions.to(target),
        )
        out, gain, weight = (t.to(target) for t in self.weights)
        residual = (self.residual if residual is None else residual).clone().to(target)
        rows = self.rows
        normed = torch.full((rows, self.hidden), NAN, dtype=self.dtype, device=target)
        router = None
        if self.experts:
            choice = (rows, self.chosen)
            router = Router(
                weight=Linear(weight),
                normalise=self.normalise,
                ids=torch.full(choice, -7, dtype=torch.int32, device=target),
                weights=torch.full(choice, NAN, dtype=self.dtype, device=target),
            )
        row = None if self.row is None else torch.tensor([self.row], device=target)
        if device:
            places = rows + 1 + block_count(self.hidden)
            counter = torch.zeros(places, dtype=torch.int32, device=target)
            launch = wide_out.project_out if self.wide else triton_out.project_out
            launch(
                splits,
                out,
                gain,
                eps=EPS,
                residual=residual,
                normed=normed,
                counter=counter,
                **self.scratch(target),
                router=router,
                row=row,
            )
            assert not counter.any()
        else:
            ref.project_out(
                splits,
                Linear(out),
                gain,
                eps=EPS,
                residual=residual,
                normed=normed,
                router=router,
                row=row,
            )
        return Settled(
            residual=residual.cpu(),
            normed=normed.cpu(),
            ids=None if router is None else router.ids.cpu().long(),
            weights=None if router is None else router.weights.cpu(),
        )

    def alone(self, r: int) -> Splits:
        """Return the splits of row `r`."""
        splits, mine = self.splits(), slice(r * self.heads, (r + 1) * self.heads)
        at = splits.positions
        return replace(
            splits,
            sums=splits.sums[mine].clone(),
            stats=splits.stats[:, mine].clone(),
            positions=None if at is None else at[r : r + 1].clone(),
        )


def check_choice(case: Case, got: Settled) -> None:
    """Assert that the experts are the best of the norm that was written, with their shares."""
    assert got.ids is not None
    assert got.weights is not None
    logits = got.normed.double() @ case.weights[2].double().T
    rounding = 1e-5 if case.dtype == torch.float32 else 0.02
    mine = logits.gather(1, got.ids)
    assert (mine.diff(dim=1) <= rounding).all()  # best first
    others = logits.scatter(1, got.ids, -torch.inf).amax(1)
    assert (mine[:, -1] >= others - rounding).all()
    shares = logits.softmax(-1).gather(1, got.ids)
    if case.normalise:
        shares = shares / shares.sum(1, keepdim=True)
    assert rms_ratio(got.weights, shares) < 2 * TOLERANCE[case.dtype]


WIDE = pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])

CASES = {
    "one row": Case(rows=1, hidden=100, heads=3, count=1),
    "8 rows, every expert": Case(rows=8, heads=1, experts=5, chosen=5, normalise=False),
    "16 heads of 24": Case(rows=1, heads=16, dim=24, hidden=256, count=2),
    "heads in chunks": Case(heads=2, dim=64, hidden=256, normalise=False),
    "a chunk that is not whole": Case(rows=1, heads=1, dim=100, hidden=100, experts=33),
    "heads of 128, blocks of the output": Case(rows=1, heads=2, dim=128, hidden=640, experts=48),
    "more splits than lanes": Case(heads=1, count=300, masked=(0, 7, 256, 258), hidden=48),
    "splits behind a position": Case(rows=3, count=4, positions=(127, 128, 400)),
    "one row of several": Case(rows=1, row=5, dim=64, experts=0, count=2),
    "more experts than are compared at once": Case(rows=2, experts=200, chosen=5, hidden=64),
    "more parts than are read at once": Case(rows=2, heads=20, dim=64, count=2),
    "no router": Case(rows=2, experts=0, hidden=100),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("name", CASES)
@WIDE
def test_sum_norm_and_choice_agree(device: str, dtype: torch.dtype, name: str, wide: bool) -> None:
    case = replace(CASES[name], dtype=dtype, wide=wide)
    got, expected = case.run(device), case.run("")
    before, rows = case.residual, case.rows
    assert rms_ratio(got.residual[:rows], expected.residual[:rows]) < TOLERANCE[dtype]
    assert rms_ratio(got.normed, expected.normed) < TOLERANCE[dtype]
    assert torch.equal(got.residual[rows:], before[rows:])
    check_norm(got.normed, got.residual[:rows], case.weights[1])
    if case.experts:
        check_choice(case, got)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("positions", [None, (5, 130, 131, 128, 400, 127, 256, 500)])
@WIDE
def test_a_row_does_not_depend_on_the_others(
    device: str, positions: tuple[int, ...] | None, wide: bool
) -> None:
    case = Case(rows=8, count=4, positions=positions, dtype=torch.bfloat16, wide=wide)
    together = case.run(device)
    assert together.ids is not None
    assert together.weights is not None
    for r in (0, 3, 7):
        single = replace(case, rows=1)
        alone = single.run(device, case.alone(r), case.residual[r:].clone())
        assert alone.ids is not None
        assert alone.weights is not None
        assert torch.equal(alone.residual[0], together.residual[r])
        assert torch.equal(alone.normed[0], together.normed[r])
        assert torch.equal(alone.ids[0], together.ids[r])
        assert torch.equal(alone.weights[0], together.weights[r])


@pytest.mark.parametrize("device", DEVICES)
@WIDE
def test_equal_experts_are_taken_from_the_lowest(device: str, wide: bool) -> None:
    class Tied(Case):
        @property
        def weights(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            out, gain, router = super().weights
            return out, gain, router[:1].expand_as(router).contiguous()

    got = Tied(experts=9, chosen=4, wide=wide).run(device)
    assert got.ids is not None
    assert got.ids.tolist() == [[0, 1, 2, 3]] * 2


@BROKEN
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", ["sums", "totals", "every score"])
@WIDE
def test_a_broken_split_shows(device: str, where: str, wide: bool) -> None:
    """A maximum passes over NaN, so a split of broken scores may have none and a broken total."""
    case = Case(experts=0, masked=(), wide=wide)
    splits, whole = case.splits(), case.run(device)
    query = case.heads + 1  # of row 1
    if where == "sums":
        splits.sums[query, 2, 3] = NAN
    else:
        splits.stats[1, query, 2] = NAN
    if where == "every score":
        splits.stats[0, query, 2] = -torch.inf
    got = case.run(device, splits)
    assert got.normed[1].isnan().all()
    assert torch.equal(got.normed[0], whole.normed[0])
    assert case.run("", splits).normed[1].isnan().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page_cells", [1, 16])
def test_it_takes_the_attention_s_splits_as_they_come(device: str, page_cells: int) -> None:
    """Rows on both sides of a split's end, over NaN behind the last of them."""
    torch.manual_seed(3)
    case = Case(rows=3, count=2, positions=(126, 127, 128), experts=0)
    pages = 2 * SPLIT // page_cells
    store = torch.randn(pages * 2, page_cells, case.dim)
    for cell in range(129, 2 * SPLIT):
        page, offset = divmod(cell, page_cells)
        store[2 * page : 2 * page + 2, offset] = NAN
    q = torch.randn(3, 1, case.heads, case.dim)
    table, at = torch.arange(pages, dtype=torch.int32), torch.tensor(case.positions)
    attended = attention.attend_dense(q, store, store, table, at)
    shape = split_shape(case.rows, case.heads, case.dim, pages, page_cells)
    sums, stats = (torch.full(s, NAN, device=device) for s in (shape, (2, *shape[:2])))
    there = store.to(device)
    splits = triton_attention.split_attention(
        q.to(device), there, there, table.to(device), at.to(device), None, (sums, stats)
    )
    assert splits.cells == SPLIT
    got, expected = case.run(device, splits), case.run("", Splits.of(attended, case.dim))
    assert rms_ratio(got.normed, expected.normed) < TOLERANCE[case.dtype]


@pytest.mark.gpu
@pytest.mark.parametrize(("hidden", "heads", "count"), [(256, 8, 300), (2_048, 16, 40)])
def test_every_launch_gives_the_same_bits(hidden: int, heads: int, count: int) -> None:
    case = Case(rows=8, hidden=hidden, heads=heads, dim=64, count=count, experts=48, chosen=4)
    case = replace(case, dtype=torch.bfloat16, wide=hidden > 256)
    first = case.run("cuda")
    check_choice(case, first)
    splits = case.splits()
    for _ in range(50):
        again = case.run("cuda", splits)
        assert torch.equal(again.residual, first.residual)
        assert torch.equal(again.normed, first.normed)
        assert again.ids is not None
        assert first.ids is not None
        assert torch.equal(again.ids, first.ids)
