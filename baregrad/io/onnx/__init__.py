"""ONNX models: read, run on any device, compared with others' results, written."""

from __future__ import annotations

from baregrad.io.onnx.model import OnnxModel, load_onnx
from baregrad.io.onnx.saving import save_onnx

__all__ = ["OnnxModel", "load_onnx", "save_onnx"]
