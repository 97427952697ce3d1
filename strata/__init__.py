"""Long-context LLM inference with a tuned K/V ring."""

__version__ = "0.1.0"
