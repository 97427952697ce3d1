"""Run Triton kernels interpreted where there is no device to compile them for.

The variable must stand before triton is imported: triton reads it when a kernel is defined, its
own library's included.
"""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
