"""The shape of a language model, read from a Hugging Face ``config.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from strata.errors import CheckpointError

SUPPORTED_LAYOUTS = ("mellum",)


@dataclass(frozen=True, slots=True, kw_only=True)
class LMConfig:
    """Sizes of a `mellum` checkpoint: Qwen3-MoE blocks, at most one MTP layer."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    experts_per_token: int
    expert_width: int
    normalise_router: bool
    rope_theta: float
    norm_eps: float
    max_positions: int
    tied: bool
    eos_ids: tuple[int, ...]
    mtp_layers: int
    mtp_dense_width: int
    """Width of the MTP layer's dense feed-forward, 0 where it is sparse or absent."""

    @property
    def group(self) -> int:
        """Return the query heads that share one K/V head."""
        return self.heads // self.kv_heads


def load_config(folder: Path) -> LMConfig:
    """Read `folder`/config.json; raise CheckpointError for another layout or a missing key."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} is no checkpoint: it has no config.json; give the folder that has one"
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    try:
        return _from_dict(raw)
    except KeyError as error:
        raise CheckpointError(f"{path} has no key {error}") from None
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def _from_dict(raw: dict[str, Any]) -> LMConfig:
    layout = raw.get("model_type")
    if layout not in SUPPORTED_LAYOUTS:
        raise ValueError(
            f"model_type {layout!r} is not supported; strata reads {', '.join(SUPPORTED_LAYOUTS)}"
        )
    kinds = {*raw.get("layer_types", []), *raw.get("mtp_layer_types", [])}
    if kinds - {"full_attention"}:
        raise ValueError(f"layer types {sorted(kinds)}: only full_attention is supported")
    if set(raw.get("mlp_layer_types", [])) - {"sparse"}:
        raise ValueError("mlp_layer_types: only sparse layers are supported")
    if raw.get("quantization_config"):
        raise ValueError("quantization_config: quantized checkpoints are not supported")
    if raw.get("attention_bias"):
        raise ValueError("attention_bias is not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act {raw['hidden_act']!r}: only silu is supported")
    rope = _mapping(raw, "rope_parameters")
    rope = _mapping(rope, "full_attention") if "full_attention" in rope else rope
    if rope.get("rope_type", "default") != "default":
        raise ValueError(f"rope_type {rope['rope_type']!r}: only default is supported")
    mtp_layers = int(raw.get("num_nextn_predict_layers") or raw.get("num_mtp_layers") or 0)
    dense = mtp_layers > 0 and raw.get("mtp_mlp_layer_types") == ["dense"]
    if mtp_layers > 1 or (mtp_layers and not dense):
        raise ValueError("only one MTP layer with a dense feed-forward is supported")
    eos = raw.get("eos_token_id")
    heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
    config = LMConfig(
        vocab=int(raw["vocab_size"]),
        hidden=hidden,
        layers=int(raw["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(raw["num_key_value_heads"]),
        head_dim=int(raw.get("head_dim") or hidden // max(heads, 1)),
        experts=int(raw["num_local_experts"] if "num_local_experts" in raw else raw["num_experts"]),
        experts_per_token=int(raw["num_experts_per_tok"]),
        expert_width=int(raw["moe_intermediate_size"]),
        normalise_router=bool(raw.get("norm_topk_prob", True)),
        rope_theta=float(rope["rope_theta"]),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        max_positions=int(raw["max_position_embeddings"]),
        tied=bool(raw.get("tie_word_embeddings", False)),
        eos_ids=parse_eos(eos),
        mtp_layers=mtp_layers,
        mtp_dense_width=int(raw["intermediate_size"]) if dense else 0,
    )
    _check_sizes(config)
    return config


def parse_eos(value: object) -> tuple[int, ...]:
    """Return the ids of an ``eos_token_id``: none, one, or a list; raise ValueError for others."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(one, int) for one in ids):
        raise ValueError(f"eos_token_id {value!r} is no token id")
    return tuple(ids)


def _mapping(raw: dict[str, Any], key: str) -> dict[str, Any]:
    value = raw[key]
    if not isinstance(value, dict):
        raise ValueError(f"{key} is no JSON object")
    return value


def _check_sizes(c: LMConfig) -> None:
    for field in fields(c):
        value = getattr(c, field.name)
        optional = field.name in ("normalise_router", "tied", "mtp_layers", "mtp_dense_width")
        if isinstance(value, int | float) and not optional and not value > 0:
            raise ValueError(f"{field.name} is {value}, which is not above 0")
    if c.heads % c.kv_heads or c.head_dim % 2:
        raise ValueError(f"{c.heads} heads of {c.head_dim} do not fit {c.kv_heads} K/V heads")
    if c.experts_per_token > c.experts:
        raise ValueError(f"{c.experts_per_token} experts a token are more than {c.experts}")
