"""Keys of a ``config.json`` that the reader of shapes does not take, and what each may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from strata.lm.json_object import say

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "use_qk_norm": (True,),
    "qk_norm": (True,),
    "hidden_act": ("silu",),
    "hidden_activation": ("silu",),
    "rope_scaling": ({}, {"rope_type": "default"}, {"type": "default"}),
    "partial_rotary_factor": (1,),
    "rotary_pct": (1,),
    "rope_interleave": (False,),
    "rope_interleaved": (False,),
    "rope_local_base_freq": (),
    "use_sliding_window": (False,),
    "no_rope_layers": ([],),
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([],),
    "first_k_dense_replace": (0,),
    "n_shared_experts": (0,),
    "num_shared_experts": (0,),
    "shared_expert_intermediate_size": (0,),
    "routed_scaling_factor": (1,),
    "scoring_func": ("softmax",),
    "n_group": (1,),
    "topk_group": (1,),
    "topk_method": ("greedy",),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "attention_multiplier": (),
    "query_pre_attn_scalar": (),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "per_layer_config": ({}, []),
    "quantization_config": ({},),
    "compression_config": ({},),
}
"""Keys that change what a model computes, and the values at which they do not."""

_QUANTIZED = ("quantization_config", "compression_config")

_TOOL = "a note of the tool that wrote the file"
_TRAINING = "used in training alone"
_OUTPUT = "says what a library's call returns"
_CLASSES = "for models that classify"
_SAMPLING = "sampling is what the command says"
_TEXT = "the tokenizer says what it adds to a prompt"
_WINDOW = "no layer has a sliding window"

HARMLESS: dict[str, str] = {
    "architectures": "model_type names the layout",
    "auto_map": "strata runs no code of a checkpoint",
    "dtype": "strata computes in float32 on a CPU and bfloat16 on a GPU",
    "torch_dtype": "strata computes in float32 on a CPU and bfloat16 on a GPU",
    "transformers_version": _TOOL,
    "_name_or_path": _TOOL,
    "name_or_path": _TOOL,
    "_commit_hash": _TOOL,
    "attn_implementation": "the kernels are strata's own",
    "_attn_implementation": "the kernels are strata's own",
    "_attn_implementation_internal": "the kernels are strata's own",
    "experts_implementation": "the kernels are strata's own",
    "_experts_implementation_internal": "the kernels are strata's own",
    "initializer_range": _TRAINING,
    "attention_dropout": _TRAINING,
    "router_aux_loss_coef": _TRAINING,
    "chunk_size_feed_forward": "the same product in parts",
    "use_cache": _OUTPUT,
    "return_dict": _OUTPUT,
    "output_attentions": _OUTPUT,
    "output_hidden_states": _OUTPUT,
    "output_router_logits": _OUTPUT,
    "id2label": _CLASSES,
    "label2id": _CLASSES,
    "num_labels": _CLASSES,
    "problem_type": _CLASSES,
    "bos_token_id": _TEXT,
    "pad_token_id": "a session is one sequence",
    "sliding_window": _WINDOW,
    "max_window_layers": _WINDOW,
    "do_sample": _SAMPLING,
    "temperature": _SAMPLING,
    "top_k": _SAMPLING,
    "top_p": _SAMPLING,
    "repetition_penalty": _SAMPLING,
    "max_length": _SAMPLING,
}
"""Keys that change nothing here, and why."""


def refuse_or_note(rest: dict[str, Any], path: Path) -> tuple[str, ...]:
    """Return one warning that names the keys of `rest` that nobody knows, if there are any.

    Raises ValueError for a key that changes results. A key that is in no list is ignored by
    `transformers` too, and is most often a note that some tool left: it is no ground to refuse.
    """
    unknown = []
    for name, value in rest.items():
        if name in NEUTRAL:
            if not any(_same(value, neutral) for neutral in NEUTRAL[name]):
                if name in _QUANTIZED:
                    raise ValueError(f"{name}: quantized checkpoints are not supported")
                allowed = " or ".join(map(say, NEUTRAL[name])) or "null"
                raise ValueError(f"{name} is {say(value)}: only {allowed} is supported")
        elif name not in HARMLESS:
            unknown.append(name)
    if not unknown:
        return ()
    named = ", ".join(say(name) for name in sorted(unknown)[:8])
    more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
    return (f"{path} has keys that strata does not know and ignores: {named}{more}",)


def _same(value: Any, neutral: Any) -> bool:
    """Return whether the two are one value of one kind: true is not 1."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)
