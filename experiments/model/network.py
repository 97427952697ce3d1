"""The network in the form it is trained in: flat rows, every expert computed, functions compiled.

Rows of all sequences are flattened to [N, H], and everything but attention works on slabs of
`slab` rows, so one compiled graph serves each phase of the training, whatever its sequence length.

Size letters: B sequences, T cells, N = B * T rows, H hidden, Q query heads, G K/V heads,
D head size, E experts, F expert width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Size a model; the fields are those of the `mellum` configuration."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    top_k: int
    expert_width: int
    mtp_width: int
    rope_base: float = 1e6
    eps: float = 1e-6
    positions: int = 135_168


BUNDLED = Shape(
    vocab=8192, hidden=256, layers=6, heads=8, kv_heads=1, head_dim=64,
    experts=48, top_k=4, expert_width=64, mtp_width=512,
)  # fmt: skip
TINY = Shape(
    vocab=1024, hidden=64, layers=2, heads=4, kv_heads=1, head_dim=32,
    experts=8, top_k=2, expert_width=32, mtp_width=128,
)  # fmt: skip


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last axis in float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to [N, heads, D]; `cos` and `sin` are [N, D / 2]."""
    low, high = x.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def rotary_table(shape: Shape, num_positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cos and sin [num_positions, D / 2] in float32."""
    power = torch.arange(0, shape.head_dim, 2, device=device).float() / shape.head_dim
    angle = torch.arange(num_positions, device=device).float()[:, None] / shape.rope_base**power
    return angle.cos(), angle.sin()


class Attention(nn.Module):
    """Hold the attention weights of a layer and the row-wise work on both sides of it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        self.norm = nn.Parameter(torch.ones(shape.hidden))
        self.qkv = nn.Parameter(torch.empty(width, shape.hidden))
        self.q_norm = nn.Parameter(torch.ones(shape.head_dim))
        self.k_norm = nn.Parameter(torch.ones(shape.head_dim))
        self.out = nn.Parameter(torch.empty(shape.hidden, shape.heads * shape.head_dim))

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q [N, Q, D], k [N, G, D] and v [N, G, D] of rows x [N, H]."""
        shape, eps = self.shape, self.shape.eps
        dtype = product_dtype(x)
        rows = F.linear(rms_norm(x, self.norm, eps).to(dtype), self.qkv.to(dtype))
        sizes = (shape.heads, shape.kv_heads, shape.kv_heads)
        q, k, v = rows.view(len(x), -1, shape.head_dim).split(sizes, 1)
        q = rotate(rms_norm(q, self.q_norm, eps), cos, sin).to(rows.dtype)
        k = rotate(rms_norm(k, self.k_norm, eps), cos, sin).to(rows.dtype)
        return q, k, v


class Experts(nn.Module):
    """Mix the top-k of E gated experts; all are computed, those not chosen are multiplied by 0."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        rows = shape.experts * shape.expert_width
        self.norm = nn.Parameter(torch.ones(shape.hidden))
        self.router = nn.Parameter(torch.empty(shape.experts, shape.hidden))
        self.gate = nn.Parameter(torch.empty(rows, shape.hidden))
        self.up = nn.Parameter(torch.empty(rows, shape.hidden))
        self.down = nn.Parameter(torch.empty(shape.hidden, rows))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mixed output [N, H] and the load-balance term (1 when even)."""
        shape, dtype = self.shape, product_dtype(x)
        h = rms_norm(x, self.norm, shape.eps).to(dtype)
        probs = F.linear(h, self.router.to(dtype)).float().softmax(-1)  # [N, E]
        top, index = probs.topk(shape.top_k, -1)
        weight = torch.zeros_like(probs).scatter(-1, index, top / top.sum(-1, keepdim=True))
        share = (weight > 0).float().mean(0) / shape.top_k
        balance = shape.experts * (share.detach() * probs.mean(0)).sum()
        inner = F.silu(F.linear(h, self.gate.to(dtype))) * F.linear(h, self.up.to(dtype))
        inner = inner.view(-1, shape.experts, shape.expert_width) * weight.to(dtype)[..., None]
        return F.linear(inner.flatten(1), self.down.to(dtype)), balance


class Dense(nn.Module):
    """Compute one gated feed-forward block; its load-balance term is 0."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.norm = nn.Parameter(torch.ones(shape.hidden))
        self.gate = nn.Parameter(torch.empty(shape.mtp_width, shape.hidden))
        self.up = nn.Parameter(torch.empty(shape.mtp_width, shape.hidden))
        self.down = nn.Parameter(torch.empty(shape.hidden, shape.mtp_width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output [N, H] and 0."""
        dtype = product_dtype(x)
        h = rms_norm(x, self.norm, self.shape.eps).to(dtype)
        inner = F.silu(F.linear(h, self.gate.to(dtype))) * F.linear(h, self.up.to(dtype))
        return F.linear(inner, self.down.to(dtype)), x.new_zeros(())


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of matrix products: bfloat16 on a GPU, float32 on a CPU."""
    return torch.bfloat16 if x.is_cuda else torch.float32


class Block(nn.Module):
    """Hold one decoder layer; `enter` and `leave` are its two halves around attention."""

    def __init__(self, shape: Shape, mixer: nn.Module) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.mixer = mixer

    def enter(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project rows to q, k and v."""
        return self.attention.project(x, cos, sin)

    def leave(self, x: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor]:
        """Add attention's output [N, Q * D] and the feed-forward block to x."""
        x = x + F.linear(mixed, self.attention.out.to(mixed.dtype))
        y, balance = self.mixer(x)
        return x + y, balance


class Drafter(nn.Module):
    """Hold the MTP layer: `fc` over [normed embedding, normed hidden], one block, one norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding_norm = nn.Parameter(torch.ones(shape.hidden))
        self.hidden_norm = nn.Parameter(torch.ones(shape.hidden))
        self.fc = nn.Parameter(torch.empty(shape.hidden, 2 * shape.hidden))
        self.block = Block(shape, Dense(shape))
        self.norm = nn.Parameter(torch.ones(shape.hidden))

    def join(self, embedding: Tensor, hidden: Tensor) -> Tensor:
        """Combine the embedding of token i and the hidden state of cell i - 1, both [N, H]."""
        eps, dtype = self.shape.eps, product_dtype(embedding)
        both = torch.cat(
            (
                rms_norm(embedding, self.embedding_norm, eps),
                rms_norm(hidden, self.hidden_norm, eps),
            ),
            -1,
        )
        return F.linear(both.to(dtype), self.fc.to(dtype)).float()


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def attend_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend causally; q [B, T, Q, D], k and v [B, T, G, D] -> [B, T, Q * D]."""
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).flatten(2)


class Network(nn.Module):
    """Hold the whole model with its drafter."""

    def __init__(self, shape: Shape, *, slab: int = 1 << 30) -> None:
        super().__init__()
        self.shape, self.slab = shape, slab
        self.embedding = nn.Parameter(torch.empty(shape.vocab, shape.hidden))
        self.blocks = nn.ModuleList(Block(shape, Experts(shape)) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.hidden))
        self.drafter = Drafter(shape)
        self.attend: Attend = attend_causal
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                std = 0.02 if name == "embedding" else 0.5 * weight.shape[1] ** -0.5
                nn.init.normal_(weight, std=std)

    def run_slabs(self, function: Callable[..., tuple[Tensor, ...]], *rows: Tensor) -> list[Tensor]:
        """Apply a row-wise function slab by slab; scalars among its results are averaged."""
        if len(rows[0]) <= self.slab:
            return list(function(*rows))
        parts = zip(*(part.split(self.slab) for part in rows), strict=True)
        columns = zip(*(function(*part) for part in parts), strict=True)
        return [torch.stack(c).mean(0) if c[0].dim() == 0 else torch.cat(c) for c in columns]

    def run_block(
        self, block: Block, x: Tensor, batch: int, table: tuple[Tensor, Tensor],
        keys: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:  # fmt: skip
        """Run a decoder layer over rows [B * T, H].

        `table` holds cos and sin of each row. `keys` may replace the layer's own k and v, both
        [B, T, G, D], before they are read. Returns the rows, the balance term, the own (k, v).
        """
        q, k, v = (
            part.view(batch, -1, *part.shape[1:]) for part in self.run_slabs(block.enter, x, *table)
        )
        own = (k, v)
        if keys is not None:
            k, v = keys(k, v)
        mixed = self.attend(q, k, v).flatten(0, 1)
        x, balance = self.run_slabs(block.leave, x, mixed)
        return x, balance, own

    def positions(self, batch: int, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin of `count` positions from `first`, repeated for each sequence."""
        cos, sin = rotary_table(self.shape, first + count, self.embedding.device)
        return cos[first:].repeat(batch, 1), sin[first:].repeat(batch, 1)

    def trunk(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normed hidden states [B * T, H] of tokens [B, T] and the mean balance term."""
        batch, count = tokens.shape
        x = F.embedding(tokens.flatten(), self.embedding)
        table = self.positions(batch, 0, count)
        terms = []
        for block in self.blocks:
            x, balance, _ = self.run_block(block, x, batch, table)
            terms.append(balance)
        return rms_norm(x, self.norm, self.shape.eps), torch.stack(terms).mean()

    def draft(
        self, tokens: Tensor, hidden: Tensor, first: int,
        keys: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # fmt: skip
        """Run the drafter once over tokens [B, T] that stand at positions first, first + 1, ...

        `hidden` [B * T, H] is what each cell is fed beside its token: the trunk's normed state of
        the cell before it, or in a chain the drafter's own result for the cell before it.
        """
        drafter = self.drafter
        batch, count = tokens.shape
        x = drafter.join(F.embedding(tokens.flatten(), self.embedding), hidden)
        table = self.positions(batch, first, count)
        x, _, own = self.run_block(drafter.block, x, batch, table, keys)
        return rms_norm(x, drafter.norm, self.shape.eps), own
