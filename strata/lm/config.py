"""The shape of a language model, read from a Hugging Face ``config.json``.

Every key is either read, refused where it would change results, or known to change none; what
is in neither list is named in a warning (``strata/lm/config_keys.py``, docs/checkpoints.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata.errors import CheckpointError
from strata.lm.config_keys import refuse_or_note
from strata.lm.json_object import Keys, read_object, say

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
    warnings: tuple[str, ...] = ()
    """What a user should know of the file: one sentence each."""

    @property
    def group(self) -> int:
        """Return the query heads that share one K/V head."""
        return self.heads // self.kv_heads


def load_config(folder: Path) -> LMConfig:
    """Read `folder`/config.json; raise CheckpointError for another layout or a missing key."""
    path = folder / "config.json"
    if not path.exists():
        raise CheckpointError(
            f"{folder} is no checkpoint: it has no config.json; give the folder that has one"
        )
    raw = read_object(path)
    try:
        return _from_keys(Keys(raw), path)
    except KeyError as error:
        raise CheckpointError(f"{path} has no key {error}") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _from_keys(keys: Keys, path: Path) -> LMConfig:
    layout = keys.word("model_type")
    if layout not in SUPPORTED_LAYOUTS:
        raise ValueError(
            f"model_type {layout!r} is not supported; strata reads {', '.join(SUPPORTED_LAYOUTS)}"
        )
    heads, hidden = keys.integer("num_attention_heads"), keys.integer("hidden_size")
    layers = keys.integer("num_hidden_layers")
    _check_kinds(keys, "layer_types", "full_attention", layers)
    _check_kinds(keys, "mlp_layer_types", "sparse", layers)
    mtp_layers = _mtp_layers(keys)
    width = keys.integer("intermediate_size", default=0)
    if mtp_layers and not width:
        raise KeyError("intermediate_size")
    vocab = keys.integer("vocab_size")
    config = LMConfig(
        vocab=vocab,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=keys.integer("num_key_value_heads"),
        head_dim=keys.integer("head_dim", default=0) or hidden // heads,
        experts=keys.integer("num_local_experts", alias="num_experts"),
        experts_per_token=keys.integer("num_experts_per_tok"),
        expert_width=keys.integer("moe_intermediate_size"),
        normalise_router=keys.flag("norm_topk_prob", default=True),
        rope_theta=_rope_theta(keys),
        norm_eps=keys.number("rms_norm_eps", default=1e-6),
        max_positions=keys.integer("max_position_embeddings"),
        tied=keys.flag("tie_word_embeddings", default=False),
        eos_ids=parse_eos(keys.value("eos_token_id"), vocab),
        mtp_layers=mtp_layers,
        mtp_dense_width=width if mtp_layers else 0,
        warnings=refuse_or_note(keys.rest(), path),
    )
    _check_sizes(config)
    return config


def _check_kinds(keys: Keys, name: str, allowed: str, layers: int) -> None:
    """Raise where `name` lists another kind than `allowed`, or not one for each layer."""
    kinds = keys.words(name)
    if kinds is None:
        return
    if other := sorted(set(kinds) - {allowed}):
        raise ValueError(f"{name} has {', '.join(other)}: only {allowed} is supported")
    if len(kinds) != layers:
        raise ValueError(f"{name} has {len(kinds)} entries for {layers} layers")


def _mtp_layers(keys: Keys) -> int:
    """Return how many MTP layers there are: none, or one of full attention that is dense.

    A kind that is not named is none of these: `transformers` takes a sliding, sparse layer.
    """
    layers = keys.integer("num_nextn_predict_layers", alias="num_mtp_layers", default=0)
    kinds = keys.words("mtp_layer_types"), keys.words("mtp_mlp_layer_types")
    if layers and (layers > 1 or kinds != (["full_attention"], ["dense"])):
        raise ValueError(
            'only one MTP layer is supported, with mtp_layer_types ["full_attention"] and '
            f'mtp_mlp_layer_types ["dense"]; there are {layers}, {say(kinds[0])}, {say(kinds[1])}'
        )
    return layers


def _rope_theta(keys: Keys) -> float:
    """Return the base of the rotary embedding; raise ValueError for any other than the plain."""
    rope = keys.mapping("rope_parameters")
    if "full_attention" in rope:
        outer, rope = rope, rope.mapping("full_attention")
        outer.value("sliding_attention")  # no layer slides
        _refuse_any(outer.rest())
    kind = rope.word("rope_type", default="default")
    if kind != "default":
        raise ValueError(f"rope_type {kind!r}: only default is supported")
    theta = rope.number("rope_theta")
    parts = rope.number("partial_rotary_factor", default=1.0)
    if parts != 1:
        raise ValueError(f"partial_rotary_factor is {parts}: only 1 is supported")
    _refuse_any(rope.rest())
    other = keys.number("rope_theta", default=theta)
    if other != theta:
        raise ValueError(f"rope_theta is {other} beside {theta} in rope_parameters")
    return theta


def _refuse_any(rest: dict[str, Any]) -> None:
    for name, value in rest.items():
        raise ValueError(f"{name} is {say(value)}: it is not supported; only plain rotation is")


def parse_eos(value: object, vocab: int) -> tuple[int, ...]:
    """Return the ids of an ``eos_token_id``: none, one, or a list; raise ValueError for others."""
    ids: list[Any] = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in ids):
        raise ValueError(f"eos_token_id is {say(value)}, which is no token id")
    if not all(0 <= one < vocab for one in ids):
        raise ValueError(f"eos_token_id is {say(value)}, and ids are 0 to {vocab - 1}")
    return tuple(ids)


def _check_sizes(c: LMConfig) -> None:
    if c.heads % c.kv_heads:
        raise ValueError(
            f"num_attention_heads {c.heads} do not fit {c.kv_heads} K/V heads (num_key_value_heads)"
        )
    if c.head_dim % 2 or not c.head_dim:
        raise ValueError(f"head_dim is {c.head_dim}, which is not even and above 0")
    if c.experts_per_token > c.experts:
        raise ValueError(
            f"num_experts_per_tok: {c.experts_per_token} experts a token are more than {c.experts}"
        )
