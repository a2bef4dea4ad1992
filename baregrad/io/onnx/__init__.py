"""ONNX models: read, run on any device, compared with others' results."""

from __future__ import annotations

from baregrad.io.onnx.model import OnnxModel, load_onnx

__all__ = ["OnnxModel", "load_onnx"]
