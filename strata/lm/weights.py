"""Lay a checkpoint's tensors out the way the engine reads them.

Letters used in shapes: V vocabulary, H hidden, L layers, Q query heads, K K/V heads, D head
dimension, E experts a layer, I expert width, F dense width of the MTP layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch

from strata.arena import ALIGNMENT_BYTES, block_bytes
from strata.lm.checkpoint import Checkpoint
from strata.lm.config import LMConfig
from strata.lm.linear import Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """One attention layer, its projections packed into one product."""

    norm: torch.Tensor  # [H]
    qkv: Linear  # [(Q + 2K) * D, H]
    qk_norm: torch.Tensor  # [Q + K, D]
    out: Linear  # [H, Q * D]
    post_norm: torch.Tensor  # [H]


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpWeights:
    """The drafter: one attention layer with a dense feed-forward."""

    fc: Linear  # [H, 2H]
    norm_embedding: torch.Tensor  # [H]
    norm_hidden: torch.Tensor  # [H]
    attention: AttentionWeights
    mlp: torch.Tensor  # [3F, H], laid out as an expert; what follows shares it unless packed
    gate_up: Linear  # [2F, H]
    down: Linear  # [H, F]
    norm: torch.Tensor  # [H]


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Everything a model computes with; routed experts stay in host memory."""

    embedding: torch.Tensor  # [V, H]
    head: Linear  # [V, H]
    norm: torch.Tensor  # [H]
    layers: tuple[AttentionWeights, ...]
    routers: tuple[Linear, ...]  # [E, H] each
    mtp: MtpWeights | None
    experts: torch.Tensor  # host [L * E, 3I, H]: gate, up, then down transposed

    @cached_property
    def device_bytes(self) -> int:
        """The bytes on the device; routed experts are left out.

        A tied head that is packed for the CPU is a copy of the embedding and counts as one.
        """
        parts = (part for part in _leaves(self) if part is not self.experts)
        return sum({_block(part): _block_bytes(part) for part in parts}.values())


def _leaves(part: object) -> Iterator[torch.Tensor | Linear]:
    """Yield the tensors and products inside `part`."""
    if isinstance(part, torch.Tensor | Linear):
        yield part
    elif isinstance(part, list | tuple):
        for inner in part:
            yield from _leaves(inner)
    elif part is not None:
        for field in fields(part):  # type: ignore[arg-type]
            yield from _leaves(getattr(part, field.name))


def _block(part: torch.Tensor | Linear) -> int:
    """Return what names the memory of `part`; parts that share memory have the same."""
    if isinstance(part, Linear):
        return id(part) if part.packed else _block(part.weight)
    return part.untyped_storage().data_ptr()


def _block_bytes(part: torch.Tensor | Linear) -> int:
    """Return the bytes of that memory."""
    if isinstance(part, Linear):
        return part.nbytes if part.packed else _block_bytes(part.weight)
    return part.untyped_storage().nbytes()


def _in_one_block(weights: Weights, device: torch.device) -> Weights:
    """Return `weights` on `device` in a block of their own; routed experts stay where they are.

    A GPU's allocator takes 20 MiB for a tensor of one to ten MiB, so a block of its own is the one
    way to know what the driver will have given.
    """
    places: dict[int, int] = {}
    end = 0
    for part in _leaves(weights):
        if part is not weights.experts and _block(part) not in places:
            places[_block(part)] = end
            end += -(-_block_bytes(part) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    block = torch.zeros(block_bytes(end, device), dtype=torch.uint8, device=device)

    def move(part: object) -> object:
        if isinstance(part, Linear):
            return Linear(move(part.weight))  # type: ignore[arg-type]
        if isinstance(part, torch.Tensor):
            start, source = places[_block(part)], part.untyped_storage()
            target = block[start : start + source.nbytes()]
            flat = torch.empty(0, dtype=torch.uint8).set_(source)
            target.copy_(flat)
            at = start // part.element_size() + part.storage_offset()
            return block.view(part.dtype).as_strided(part.shape, part.stride(), at)
        if isinstance(part, tuple):
            return tuple(move(inner) for inner in part)
        if part is None:
            return None
        inner = {field.name: getattr(part, field.name) for field in fields(part)}  # type: ignore[arg-type]
        kept = {"experts"} if part is weights else set()
        return replace(  # type: ignore[type-var]
            part, **{name: move(value) for name, value in inner.items() if name not in kept}
        )

    return move(weights)  # type: ignore[return-value]


def load_weights(
    checkpoint: Checkpoint, config: LMConfig, *, device: torch.device, dtype: torch.dtype
) -> Weights:
    """Take every tensor the engine needs from `checkpoint`; experts land in host memory."""
    c = config

    def take(name: str, *shape: int) -> torch.Tensor:
        return checkpoint.take(name, *shape).to(dtype)

    def attention(prefix: str) -> AttentionWeights:
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        attn = f"{prefix}.self_attn"
        packed = [
            take(f"{attn}.q_proj.weight", q, c.hidden),
            take(f"{attn}.k_proj.weight", kv, c.hidden),
            take(f"{attn}.v_proj.weight", kv, c.hidden),
        ]
        q_norm = take(f"{attn}.q_norm.weight", c.head_dim).expand(c.heads, -1)
        k_norm = take(f"{attn}.k_norm.weight", c.head_dim).expand(c.kv_heads, -1)
        return AttentionWeights(
            norm=take(f"{prefix}.input_layernorm.weight", c.hidden),
            qkv=Linear(torch.cat(packed)),
            qk_norm=torch.cat([q_norm, k_norm]),
            out=Linear(take(f"{attn}.o_proj.weight", c.hidden, q)),
            post_norm=take(f"{prefix}.post_attention_layernorm.weight", c.hidden),
        )

    layers, routers = [], []
    _require_experts(checkpoint, c)
    experts = torch.empty(
        (c.layers * c.experts, 3 * c.expert_width, c.hidden),
        dtype=dtype,
        pin_memory=device.type == "cuda",
    )
    for i in range(c.layers):
        prefix = f"model.layers.{i}"
        layers.append(attention(prefix))
        routers.append(Linear(take(f"{prefix}.mlp.gate.weight", c.experts, c.hidden)))
        for e in range(c.experts):
            blob, name = experts[i * c.experts + e], f"{prefix}.mlp.experts.{e}"
            for j, part in enumerate(("gate", "up")):
                rows = checkpoint.take(f"{name}.{part}_proj.weight", c.expert_width, c.hidden)
                blob[j * c.expert_width : (j + 1) * c.expert_width] = rows
            down = checkpoint.take(f"{name}.down_proj.weight", c.hidden, c.expert_width)
            blob[2 * c.expert_width :] = down.T
    embedding = take("model.embed_tokens.weight", c.vocab, c.hidden)
    weights = Weights(
        embedding=embedding,
        head=Linear(embedding if c.tied else take("lm_head.weight", c.vocab, c.hidden)),
        norm=take("model.norm.weight", c.hidden),
        layers=tuple(layers),
        routers=tuple(routers),
        mtp=_load_mtp(take, attention("mtp.layers.0"), c) if c.mtp_layers else None,
        experts=experts,
    )
    checkpoint.refuse_rest(*(() if c.mtp_layers else ("mtp.",)))
    return weights if device.type == "cpu" else _in_one_block(weights, device)


def _require_experts(checkpoint: Checkpoint, c: LMConfig) -> None:
    """Raise where one is missing: a configuration of a billion must be refused, not allocated."""
    for i in range(c.layers):
        for e in range(c.experts):
            name = f"model.layers.{i}.mlp.experts.{e}"
            checkpoint.require(f"{name}.gate_proj.weight", c.expert_width, c.hidden)
            checkpoint.require(f"{name}.up_proj.weight", c.expert_width, c.hidden)
            checkpoint.require(f"{name}.down_proj.weight", c.hidden, c.expert_width)


def settle_head(checkpoint: Checkpoint, config: LMConfig) -> LMConfig:
    """Return `config` as the head in `checkpoint` is: `transformers` ties none that differs.

    A head that equals the embedding it is tied to is forgotten.
    """
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    if not config.tied or head not in checkpoint or embedding not in checkpoint:
        return config
    if checkpoint.same(embedding, head):
        checkpoint.drop(head)
        return config
    note = (
        f"{checkpoint.folder}: tie_word_embeddings is true, but lm_head.weight differs from the "
        "embedding; it is used as it is, as transformers does"
    )
    return replace(config, tied=False, warnings=(*config.warnings, note))


def _load_mtp(
    take: Callable[..., torch.Tensor], attention: AttentionWeights, c: LMConfig
) -> MtpWeights:
    mlp, width = "mtp.layers.0.mlp", c.mtp_dense_width
    parts = [take(f"{mlp}.{part}_proj.weight", width, c.hidden) for part in ("gate", "up")]
    blob = torch.cat([*parts, take(f"{mlp}.down_proj.weight", c.hidden, width).T])
    return MtpWeights(
        fc=Linear(take("mtp.fc.weight", c.hidden, 2 * c.hidden)),
        norm_embedding=take("mtp.pre_fc_norm_embedding.weight", c.hidden),
        norm_hidden=take("mtp.pre_fc_norm_hidden.weight", c.hidden),
        attention=attention,
        mlp=blob,
        gate_up=Linear(blob[: 2 * width]),
        down=Linear(blob[2 * width :].T),
        norm=take("mtp.norm.weight", c.hidden),
    )
