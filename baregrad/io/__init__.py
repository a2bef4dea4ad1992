"""Tensors on disk: safetensors and PyTorch checkpoints, read without running their code."""

from __future__ import annotations

from baregrad.io.tensors import load_torch, safe_load, safe_save

__all__ = ["load_torch", "safe_load", "safe_save"]
