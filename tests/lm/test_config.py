"""Every key of a configuration has one type, and a refusal names it as the file does."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_samples import Folder

from strata.errors import CheckpointError
from strata.lm.config import load_config

WHOLE = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
         "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
         "moe_intermediate_size", "num_experts_per_tok", "num_local_experts", "num_mtp_layers",
         "num_nextn_predict_layers", "head_dim")  # fmt: skip
WRONG: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(WHOLE, ("4", 4.0, 4.5, True, math.inf, math.nan, [4], {}, -1, 2**31)),
    "rms_norm_eps": ("1e-6", True, [1.0], 0, -1.0, math.inf, math.nan, 0.0),
    "tie_word_embeddings": ("no", "true", 0, 1, 1.0, []),
    "norm_topk_prob": ("no", 0, 1, []),
    "model_type": (3, ["mellum"], True, "qwen3_moe"),
    "layer_types": ("full_attention", [1], {}, [["full_attention"]], [None], []),
    "mlp_layer_types": ("sparse", [1], {}, ["dense", "sparse"], ["sparse"]),
    "mtp_layer_types": (["sliding_attention"], [], 5, "full_attention", None),
    "mtp_mlp_layer_types": (["sparse"], [], 5, "dense", None),
    "rope_parameters": (3, [], "default", True),
    "eos_token_id": ("0", True, [True], 1.0, [[0]], {}, -1, 1024, [0, 1024], math.inf),
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, vs in WRONG.items() for v in vs])
def test_a_value_of_another_type_is_refused_by_its_name(folder: Folder, key: str, value) -> None:
    folder.config(**{key: value})
    assert key in folder.refused()


def test_two_names_of_one_key_agree(folder: Folder) -> None:
    folder.config(num_experts=8)
    assert load_config(folder.path).experts == 8
    folder.config(num_experts=9)
    assert "num_local_experts is 8 and num_experts is 9" in folder.refused()
    folder.config(num_local_experts=None, num_experts=8)
    assert load_config(folder.path).experts == 8


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def test_whatever_a_key_says_the_answer_is_a_configuration_or_one_sentence(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = Folder(tmp_path_factory.mktemp("any") / "model")
    whole = (folder.path / "config.json").read_text()

    @settings(max_examples=80)
    @given(changes=st.dictionaries(st.sampled_from(sorted(WRONG)), ANY, min_size=1, max_size=3))
    def holds(changes: dict[str, Any]) -> None:
        (folder.path / "config.json").write_text(whole)
        folder.config(**changes)
        sentence = ""
        try:
            load_config(folder.path)
        except CheckpointError as error:
            sentence = str(error)
        assert "\n" not in sentence
        assert len(sentence) < 400

    holds()
