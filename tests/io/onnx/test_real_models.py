"""Models that packages carry give what onnxruntime gives.

magika (Apache-2.0), rapidocr-onnxruntime (Apache-2.0; its models are PaddleOCR's, Apache-2.0),
silero-vad (MIT). `pip install --no-deps` of the three is enough.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from baregrad import io
from baregrad.io.onnx.command import apart
from baregrad.io.onnx.values import array_of
from tests.io.onnx.models import by_onnxruntime

rng = np.random.default_rng(0)
Inputs = dict[str, np.ndarray]


def _normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _page(height: int, width: int) -> np.ndarray:
    """A white page with lines of ink: of noise alone a detector of text gives next to nothing."""
    page = np.full((1, 3, height, width), 2.0, np.float32)
    for top in range(8, height - 12, 24):
        ink = rng.random((14, (width - 16) // 2)) < 0.5
        line = np.where(np.repeat(ink, 2, 1), -2.0, 2.0)
        page[:, :, top : top + 14, 8 : 8 + line.shape[1]] = line
    return page


def _speech(rate: int, size: int) -> Inputs:
    return {"input": _normal(1, size), "state": np.zeros((2, 1, 128), np.float32),
            "sr": np.array(rate)}  # fmt: skip


# Package, file in it, and inputs of two calls of different sizes or settings.
CASES: tuple[tuple[str, str, Callable[[], list[Inputs]]], ...] = (
    ("magika", "models/standard_v3_3/model.onnx", lambda: [
        {"bytes": rng.integers(0, 257, (n, 2048)).astype(np.int32)} for n in (1, 3)]),
    ("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", lambda: [
        {"x": _normal(n, 3, 48, 192)} for n in (1, 2)]),
    ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", lambda: [
        {"x": _normal(1, 3, 48, width)} for width in (96, 160)]),
    ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", lambda: [
        {"x": _page(size, 96)} for size in (64, 96)]),
    ("silero_vad", "data/silero_vad.onnx", lambda: [_speech(16000, 576), _speech(8000, 288)]),
    ("silero_vad", "data/silero_vad_op18_ifless.onnx", lambda: [
        _speech(16000, 576), _speech(8000, 288)]),
    ("silero_vad", "data/silero_vad_16k_sequence.onnx", lambda: [
        {"input": _normal(n, 576), "h": _normal(1, 1, 128), "c": _normal(1, 1, 128)}
        for n in (3, 5)]),
)  # fmt: skip


def folder_of(package: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed: pip install --no-deps {package}")
    return Path(found.origin).parent


@pytest.mark.slow
@pytest.mark.differential
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[1].split("/")[-1])
def test_a_real_model_agrees_with_onnxruntime(case) -> None:
    package, name, inputs = case
    path = folder_of(package) / name
    model = io.load_onnx(path)
    for given in inputs():
        wanted = by_onnxruntime(path, given)
        for _ in range(3):
            found = [array_of(value) for value in model(given).values()]
            for one, other in zip(found, wanted, strict=True):
                assert apart(one, other) < 1e-3
    assert model.way.startswith("captured")
