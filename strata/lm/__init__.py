"""Language models: configuration, checkpoint, tokenizer, layers."""

from strata.lm.model import LanguageModel, bundled_model_path, load_model

__all__ = ["LanguageModel", "bundled_model_path", "load_model"]
