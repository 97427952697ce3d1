"""Whether Triton interprets its kernels; imported by kernels alone, for Triton asks only once."""

from __future__ import annotations

import os

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Interpreted products take bfloat16 for integers, so operands are widened there."""
