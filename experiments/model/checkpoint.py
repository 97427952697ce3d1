"""Write a trained network as a Hugging Face checkpoint of the `mellum` layout, and read it back."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from network import Attention, Block, Dense, Experts, Network, Shape
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

SHARD_BYTES = 14_000_000


def config_of(shape: Shape) -> dict[str, object]:
    """Return the content of config.json."""
    return {
        "architectures": ["MellumForCausalLM"],
        "model_type": "mellum",
        "attention_bias": False,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": 0,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mtp_width,
        "layer_types": ["full_attention"] * shape.layers,
        "max_position_embeddings": shape.positions,
        "mlp_layer_types": ["sparse"] * shape.layers,
        "moe_intermediate_size": shape.expert_width,
        "mtp_layer_types": ["full_attention"],
        "mtp_mlp_layer_types": ["dense"],
        "norm_topk_prob": True,
        "num_attention_heads": shape.heads,
        "num_experts_per_tok": shape.top_k,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "num_local_experts": shape.experts,
        "num_mtp_layers": 1,
        "num_nextn_predict_layers": 1,
        "rms_norm_eps": shape.eps,
        "rope_parameters": {
            "full_attention": {"rope_theta": shape.rope_base, "rope_type": "default"}
        },
        "sliding_window": None,
        "tie_word_embeddings": True,
        "vocab_size": shape.vocab,
    }


def shape_of(config: dict) -> Shape:
    """Return the shape that a config.json describes."""
    return Shape(
        vocab=config["vocab_size"],
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        experts=config["num_local_experts"],
        top_k=config["num_experts_per_tok"],
        expert_width=config["moe_intermediate_size"],
        mtp_width=config["intermediate_size"],
        rope_base=config["rope_parameters"]["full_attention"]["rope_theta"],
        eps=config["rms_norm_eps"],
        positions=config["max_position_embeddings"],
    )


def attention_names(part: Attention, prefix: str) -> dict[str, Tensor]:
    """Name views of an attention part's weights."""
    shape = part.shape
    rows = [heads * shape.head_dim for heads in (shape.heads, shape.kv_heads, shape.kv_heads)]
    q, k, v = part.qkv.split(rows)
    inner = f"{prefix}.self_attn"
    return {
        f"{prefix}.input_layernorm.weight": part.norm,
        f"{inner}.q_proj.weight": q,
        f"{inner}.k_proj.weight": k,
        f"{inner}.v_proj.weight": v,
        f"{inner}.o_proj.weight": part.out,
        f"{inner}.q_norm.weight": part.q_norm,
        f"{inner}.k_norm.weight": part.k_norm,
    }


def mixer_names(part: nn.Module, prefix: str) -> dict[str, Tensor]:
    """Name views of a feed-forward part's weights, expert by expert."""
    names = {f"{prefix}.post_attention_layernorm.weight": part.norm}
    mlp = f"{prefix}.mlp"
    if isinstance(part, Dense):
        for kind in ("gate", "up", "down"):
            names[f"{mlp}.{kind}_proj.weight"] = getattr(part, kind)
        return names
    assert isinstance(part, Experts)
    width = part.shape.expert_width
    names[f"{mlp}.gate.weight"] = part.router
    for kind, axis in (("gate", 0), ("up", 0), ("down", 1)):
        for number, view in enumerate(getattr(part, kind).split(width, axis)):
            names[f"{mlp}.experts.{number}.{kind}_proj.weight"] = view
    return names


def block_names(block: Block, prefix: str) -> dict[str, Tensor]:
    """Name views of a layer's weights."""
    return attention_names(block.attention, prefix) | mixer_names(block.mixer, prefix)


def tensor_names(net: Network) -> dict[str, Tensor]:
    """Name views of all weights; writing through them fills the network."""
    names = {"model.embed_tokens.weight": net.embedding, "model.norm.weight": net.norm}
    for number, block in enumerate(net.blocks):
        assert isinstance(block, Block)
        names |= block_names(block, f"model.layers.{number}")
    drafter = net.drafter
    names |= {
        "mtp.fc.weight": drafter.fc,
        "mtp.pre_fc_norm_embedding.weight": drafter.embedding_norm,
        "mtp.pre_fc_norm_hidden.weight": drafter.hidden_norm,
        "mtp.norm.weight": drafter.norm,
    }
    return names | block_names(drafter.block, "mtp.layers.0")


@torch.no_grad()
def export(net: Network, folder: Path) -> None:
    """Write config.json and bfloat16 shards; one shard gets the plain name and no index."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.dumps(config_of(net.shape), indent=2)
    (folder / "config.json").write_text(config + "\n")
    shards: list[dict[str, Tensor]] = [{}]
    room = total = 0
    for name, view in tensor_names(net).items():
        tensor = view.detach().to("cpu", torch.bfloat16).contiguous()
        size = tensor.numel() * tensor.element_size()
        if room + size > SHARD_BYTES:
            shards.append({})
            room = 0
        shards[-1][name] = tensor
        room, total = room + size, total + size
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", {"format": "pt"})
        return
    index: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, {"format": "pt"})
        index |= dict.fromkeys(shard, file)
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=1)
    (folder / "model.safetensors.index.json").write_text(text + "\n")


@torch.no_grad()
def load(folder: Path, *, slab: int = 1 << 30) -> Network:
    """Read a checkpoint that `export` wrote."""
    net = Network(shape_of(json.loads((folder / "config.json").read_text())), slab=slab)
    names = tensor_names(net)
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            names.pop(name).copy_(tensor)
    if names:
        raise ValueError(f"{folder} lacks {sorted(names)[:3]}")
    return net
