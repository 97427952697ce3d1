"""Routing and expert products against their references, wherever the experts lie."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from strata.kernels.experts import (
    MAX_CHUNKS,
    Settled,
    block_width,
    part_count,
    ref,
    slot_product,
)
from strata.kernels.wide import block_count, is_wide
from strata.lm.layers import rms_norm
from tests.kernels.devices import DEVICES, check_norm, rms_ratio

triton_experts = pytest.importorskip("strata.kernels.experts.triton")
wide_experts = pytest.importorskip("strata.kernels.experts.wide")

KERNELS = pytest.mark.parametrize("kernels", [triton_experts, wide_experts], ids=["narrow", "wide"])
DTYPES = [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)]


def pinned(tensor: torch.Tensor, device: str) -> torch.Tensor:
    return tensor.pin_memory() if device == "cuda" else tensor


def route(
    logits: torch.Tensor, count: int, normalise: bool, router: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = len(logits)
    ids = torch.full((rows, count), -7, dtype=torch.int32, device=logits.device)
    weights = torch.full((rows, count), float("nan"), dtype=logits.dtype, device=logits.device)
    triton_experts.route(
        logits, count=count, normalise=normalise, router=router, out=(ids, weights)
    )
    return ids.cpu().long(), weights.cpu()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize(
    ("rows", "experts", "count"),
    [(1, 48, 4), (8, 48, 4), (3, 5, 5), (2, 100, 1), (5, 8, 2), (3, 130, 7), (3, 300, 4)],
)
def test_routing_agrees_with_a_stable_sort(
    device: str,
    normalise: bool,
    dtype: torch.dtype,
    tolerance: float,
    rows: int,
    experts: int,
    count: int,
) -> None:
    torch.manual_seed(experts)
    logits = torch.randn(rows, experts).to(dtype)
    if rows > 2:
        logits[1] = logits[1, 0]  # every weight is equal
        logits[2] = (logits[2] * 2).round()  # many are
    ids, weights = route(logits.to(device), count, normalise)
    share = logits.softmax(-1, dtype=torch.float32)
    order = share.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    assert torch.equal(ids, order)
    _, expected = ref.route(logits, count=count, normalise=normalise)
    assert rms_ratio(weights, expected) < tolerance
    assert weights.dtype == dtype


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("experts", [48, 300])
@pytest.mark.parametrize("broken", [1, 48])
def test_logits_of_nan_name_experts_that_there_are(device: str, experts: int, broken: int) -> None:
    """What is read at a place that nobody wrote would be somebody's memory."""
    logits = torch.randn(2, experts)
    logits[1, :broken] = float("nan")
    ids, weights = route(logits.to(device), 4, True)
    assert [len(set(row)) for row in ids.tolist()] == [4, 4]
    assert ((ids >= 0) & (ids < experts)).all()
    assert weights[1].isnan().all()
    assert not weights[0].isnan().any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_routing_can_take_the_router_along(
    device: str, dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(0)
    # Small integers, so that no order of a sum matters; ties are frequent.
    x, router = (torch.randint(-2, 3, (n, 100)).to(dtype) for n in (4, 12))
    ids, weights = route(x.to(device), 3, True, router.to(device))
    logits = x @ router.T
    share = logits.softmax(-1, dtype=torch.float32)
    assert torch.equal(ids, share.sort(dim=-1, descending=True, stable=True).indices[:, :3])
    _, expected = ref.route(logits, count=3, normalise=True)
    assert rms_ratio(weights, expected) < tolerance


class Layer:
    """Experts of which some have slots, and rows that use them."""

    def __init__(self, *, rows: int, hidden: int, width: int, count: int, dtype: torch.dtype):
        torch.manual_seed(hidden + width)
        self.host = (torch.randn(2 * 6, 3 * width, hidden) / hidden**0.5).to(dtype)
        self.table = torch.full((12,), -1, dtype=torch.int32)
        held = torch.randperm(12)[:5]
        self.table[held] = torch.arange(5, dtype=torch.int32)
        self.pool = torch.full((6, 3 * width, hidden), float("nan"), dtype=dtype)
        self.pool[:5] = self.host[held]
        self.x = torch.randn(rows, hidden).to(dtype)
        self.ids = torch.stack([torch.randperm(6)[:count] for _ in range(rows)])
        self.weights = torch.rand(rows, count).to(dtype)

    def scratch(self, kernels: ModuleType, rows: int, device: str) -> dict[str, torch.Tensor]:
        """Return what programs hand to each other: NaN, and counters at zero."""
        count, (_, triple, hidden) = self.ids.shape[1], self.pool.shape
        part = (hidden + triple // 3,)
        if kernels is triton_experts:
            part = (part_count(triple // 3), hidden)
        counters = rows * (1 + block_count(hidden))
        return {
            "parts": torch.full((rows, count, *part), float("nan"), device=device),
            "counter": torch.zeros(counters, dtype=torch.int32, device=device),
        }

    def product(
        self,
        device: str,
        rows: slice = slice(None),
        resident: bool = False,
        kernels: ModuleType = triton_experts,
    ) -> torch.Tensor:
        """Return the kernel's product; `resident` has a slot for every expert."""
        x, ids, weights = (t[rows].to(device) for t in (self.x, self.ids, self.weights))
        out = torch.full_like(x, float("nan"))
        where = {"base": 6, "out": out, **self.scratch(kernels, len(x), device)}
        if resident:
            kernels.slot_product(x, ids, weights, self.host.to(device), **where)
        else:
            where |= {"table": self.table.to(device), "host": pinned(self.host, device)}
            kernels.slot_product(x, ids, weights, self.pool.to(device), **where)
        assert not where["counter"].any()
        return out.cpu()

    def expected(self) -> torch.Tensor:
        """Return the product in float64."""
        outs = []
        for x, ids, weights in zip(self.x, self.ids, self.weights, strict=True):
            total = torch.zeros(len(x), dtype=torch.float64)
            for n, weight in zip(ids.tolist(), weights.double(), strict=True):
                if n >= 0:
                    gate, up, down = self.host[n + 6].double().chunk(3)
                    inner = torch.nn.functional.silu(gate @ x.double()) * (up @ x.double())
                    total += weight * (inner @ down)
            outs.append(total)
        return torch.stack(outs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize(
    ("rows", "hidden", "width", "count"), [(1, 256, 64, 4), (3, 48, 20, 2), (2, 300, 130, 3)]
)
@KERNELS
def test_products_agree_wherever_the_experts_lie(
    device: str,
    dtype: torch.dtype,
    tolerance: float,
    rows: int,
    hidden: int,
    width: int,
    count: int,
    kernels: ModuleType,
) -> None:
    layer = Layer(rows=rows, hidden=hidden, width=width, count=count, dtype=dtype)
    got = layer.product(device, kernels=kernels)
    assert rms_ratio(got, layer.expected()) < tolerance
    assert torch.equal(got, layer.product(device, resident=True, kernels=kernels))
    plain = ref.slot_product(
        layer.x, layer.ids, layer.weights, layer.pool, table=layer.table, host=layer.host, base=6
    )
    assert rms_ratio(plain, layer.expected()) < tolerance * 2


@pytest.mark.parametrize("device", DEVICES)
@KERNELS
def test_a_row_does_not_depend_on_the_others_and_padding_reads_nothing(
    device: str, kernels: ModuleType
) -> None:
    layer = Layer(rows=8, hidden=100, width=33, count=3, dtype=torch.bfloat16)
    together = layer.product(device, kernels=kernels)
    for r in range(8):
        alone = layer.product(device, slice(r, r + 1), kernels=kernels)
        assert torch.equal(alone[0], together[r])
    used = layer.ids[:5].unique() + 6
    unused = [n for n in range(12) if n not in used.tolist()]
    layer.ids[5:] = -1
    layer.host[unused] = float("nan")
    padded = layer.product(device, kernels=kernels)
    assert torch.equal(padded[:5], together[:5])
    assert torch.equal(padded[5:], torch.zeros_like(padded[5:]))
    plain = ref.slot_product(
        layer.x, layer.ids, layer.weights, layer.host, table=None, host=None, base=6
    )
    assert torch.equal(plain[5:], torch.zeros_like(plain[5:]))


def settle(
    layer: Layer,
    device: str,
    rows: slice = slice(None),
    *,
    repeats: int = 1,
    kernels: ModuleType = triton_experts,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the residual and its norm by each of `repeats` launches; the norm replaces x."""
    hidden = layer.x.shape[1]
    torch.manual_seed(hidden)
    before = torch.randn(8, hidden).to(layer.x.dtype)[rows][: len(layer.x[rows])].to(device)
    gain = (1 + 0.1 * torch.randn(hidden)).to(before)
    ids, weights = layer.ids[rows].int().to(device), layer.weights[rows].to(device)
    pool, table = layer.pool.to(device), layer.table.to(device)
    host = pinned(layer.host, device)
    counter = layer.scratch(kernels, len(before), device)["counter"]
    outs = []
    for _ in range(repeats):
        x, residual = layer.x[rows].clone().to(device), before.clone()
        scratch = layer.scratch(kernels, len(before), device) | {"counter": counter}
        got = kernels.slot_product(
            x,
            ids,
            weights,
            pool,
            table=table,
            host=host,
            base=6,
            out=x,
            **scratch,
            residual=residual,
            gain=gain,
            eps=1e-6,
        )
        assert got is x
        outs.append((residual, got))
    assert not counter.any()
    added = before.cpu().double() + layer.expected()[rows]
    residual, normed = (t.cpu() for t in outs[0])
    tolerance = dict(DTYPES)[before.dtype]
    assert rms_ratio(residual, added) < tolerance
    assert rms_ratio(normed, rms_norm(added, gain.cpu().double(), 1e-6)) < tolerance
    check_norm(normed, residual, gain.cpu())
    return [(residual.cpu(), normed.cpu()) for residual, normed in outs]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "_"), DTYPES)
@pytest.mark.parametrize(
    ("rows", "hidden", "width", "count"),
    [(1, 256, 64, 4), (3, 48, 20, 2), (2, 300, 130, 3), (2, 16, 200, 3)],
)
@KERNELS
def test_a_settled_product_is_added_and_normed(
    device: str,
    dtype: torch.dtype,
    _: float,
    rows: int,
    hidden: int,
    width: int,
    count: int,
    kernels: ModuleType,
) -> None:
    layer = Layer(rows=rows, hidden=hidden, width=width, count=count, dtype=dtype)
    [(residual, normed)] = settle(layer, device, kernels=kernels)
    for r in range(rows if dtype == torch.bfloat16 else 0):
        [alone] = settle(layer, device, slice(r, r + 1), kernels=kernels)
        assert torch.equal(alone[0][0], residual[r])
        assert torch.equal(alone[1][0], normed[r])


def test_the_reference_settles_as_well() -> None:
    layer = Layer(rows=3, hidden=48, width=20, count=2, dtype=torch.float32)
    residual, gain = torch.randn(3, 48), torch.rand(48)
    added = residual.double() + layer.expected()
    settled = Settled(
        residual=residual,
        gain=gain,
        eps=1e-6,
        normed=layer.x,
        parts=torch.empty(0),
        counter=torch.zeros(3, dtype=torch.int32),
    )
    where = {"table": layer.table, "host": layer.host, "base": 6, "settled": settled}
    got = slot_product(layer.x, layer.ids, layer.weights, layer.pool, **where)  # type: ignore[arg-type]
    assert got is layer.x
    assert rms_ratio(residual, added) < 1e-6
    assert rms_ratio(got, rms_norm(added, gain.double(), 1e-6)) < 1e-6


def test_an_expert_has_32_parts_at_most() -> None:
    for width in (1, 16, 20, 64, 130, 512, 768, 1_000, 14_336):
        assert 1 <= part_count(width) <= MAX_CHUNKS
        assert part_count(width) * block_width(width) >= width
    assert (part_count(64), block_width(64)) == (4, 16)


@pytest.mark.gpu
@pytest.mark.parametrize(("hidden", "width"), [(256, 64), (2_048, 768)])
def test_every_launch_gives_the_same_bits(hidden: int, width: int) -> None:
    layer = Layer(rows=8, hidden=hidden, width=width, count=4, dtype=torch.bfloat16)
    kernels = wide_experts if is_wide(hidden) else triton_experts
    first, *others = settle(layer, "cuda", repeats=50, kernels=kernels)
    for other in others:
        assert torch.equal(other[0], first[0])
        assert torch.equal(other[1], first[1])


@pytest.mark.gpu
def test_the_bundled_sizes_on_the_device() -> None:
    for count in (4, 8):
        layer = Layer(rows=8, hidden=2048, width=768, count=min(count, 6), dtype=torch.bfloat16)
        for kernels in (triton_experts, wide_experts):
            assert rms_ratio(layer.product("cuda", kernels=kernels), layer.expected()) < 1e-2
