"""Tensors and models on disk: safetensors, PyTorch checkpoints, ONNX; no code in them is run."""

from __future__ import annotations

from baregrad.io.onnx import load_onnx, save_onnx
from baregrad.io.tensors import load_torch, safe_load, safe_save

__all__ = ["load_onnx", "load_torch", "safe_load", "safe_save", "save_onnx"]
