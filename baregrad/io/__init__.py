"""Tensors and models on disk: safetensors, PyTorch checkpoints, ONNX; no code in them is run.

What is for ONNX is imported when it is first asked for, so that reading weights stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from baregrad.io.tensors import load, load_torch, safe_load, safe_save, save

if TYPE_CHECKING:
    from baregrad.io.onnx import load_onnx, save_onnx

__all__ = ["load", "load_onnx", "load_torch", "safe_load", "safe_save", "save", "save_onnx"]


def __getattr__(name: str) -> object:
    if name in ("load_onnx", "save_onnx"):
        from baregrad.io import onnx

        found: object = vars(onnx)[name]
        # Kept, so that this function runs once a name.
        globals()[name] = found
        return found
    raise AttributeError(f"module 'baregrad.io' has no attribute {name!r}")
