"""Packages of ONNX, imported when they are first needed."""

from __future__ import annotations

import importlib
from typing import Any

from baregrad.base.errors import MissingDependency


def onnx_package() -> Any:
    """Return the package `onnx`, which reads the format. Raises MissingDependency."""
    try:
        package = importlib.import_module("onnx")
        for part in ("helper", "numpy_helper", "external_data_helper", "defs", "shape_inference"):
            importlib.import_module(f"onnx.{part}")
    except ImportError as error:
        raise MissingDependency(package="onnx", extra="onnx") from error
    return package


def onnxruntime_package() -> Any | None:
    """Return the package `onnxruntime`, to compare with, or None where it is not installed."""
    try:
        return importlib.import_module("onnxruntime")
    except ImportError:
        return None
