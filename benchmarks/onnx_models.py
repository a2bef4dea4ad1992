"""Times models that packages carry in ours and in onnxruntime, by turns, on the CPU.

    pip install onnxruntime
    pip install --no-deps magika rapidocr-onnxruntime silero-vad
    python benchmarks/onnx_models.py

Prints for each model the largest difference of the results, both medians and the ratio (above 1
we are faster), then the geometric mean. Exit status 1: results differ, or the mean is below 0.8.
"""

from __future__ import annotations

import importlib.util
import math
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from baregrad import io
from baregrad.io.onnx.command import AGREEMENT, apart
from baregrad.io.onnx.values import array_of

WANTED = 0.8
SECONDS = 4.0
rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    """Random numbers around 0."""
    return rng.standard_normal(shape).astype(np.float32)


def speech() -> dict[str, np.ndarray]:
    """What a detector of speech takes for 32 ms at 16 kHz."""
    return {"input": normal(1, 576), "state": np.zeros((2, 1, 128), np.float32),
            "sr": np.array(16000)}  # fmt: skip


ROWS = (
    ("magika", "models/standard_v3_3/model.onnx",
     {"bytes": rng.integers(0, 257, (1, 2048)).astype(np.int32)}),
    ("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
     {"x": normal(1, 3, 48, 192)}),
    ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", {"x": normal(1, 3, 48, 320)}),
    ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", {"x": normal(1, 3, 640, 640)}),
    ("silero_vad", "data/silero_vad.onnx", speech()),
    ("silero_vad", "data/silero_vad_op18_ifless.onnx", speech()),
    ("silero_vad", "data/silero_vad_16k_sequence.onnx",
     {"input": normal(20, 576), "h": normal(1, 1, 128), "c": normal(1, 1, 128)}),
)  # fmt: skip


def main() -> int:
    """Time every model whose package is installed."""
    import onnxruntime

    threads = len(os.sched_getaffinity(0))
    ratios, agree = [], True
    for package, name, given in ROWS:
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:
            print(f"{package} is not installed")
            continue
        path = Path(found.origin).parent / name
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        settings.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            str(path), settings, providers=["CPUExecutionProvider"]
        )
        model = io.load_onnx(path)

        def ours(model=model, given=given):
            return [array_of(value) for value in model(given).values()]

        def theirs(session=session, given=given):
            return session.run(None, given)

        difference = max(map(apart, ours(), theirs()))
        agree = agree and difference <= AGREEMENT
        mine, other = by_turns(ours, theirs)
        ratios.append(other / mine)
        print(f"{package} {path.name}: difference {difference:.1e}, ours {mine * 1e3:.3f} ms, "
              f"onnxruntime {other * 1e3:.3f} ms, ratio {ratios[-1]:.2f}", flush=True)  # fmt: skip
    mean = math.exp(statistics.fmean(map(math.log, ratios))) if ratios else 0.0
    print(f"geometric mean {mean:.2f} of {len(ratios)} (wanted {WANTED}), {threads} threads")
    return 0 if agree and mean >= WANTED else 1


def by_turns(ours, theirs) -> tuple[float, float]:
    """Medians of both in seconds, each run by turns so that both meet the same machine."""
    for _ in range(3):
        ours()
        theirs()
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times[0]) < 5:
        for kept, run in zip(times, (ours, theirs), strict=True):
            before = time.perf_counter()
            run()
            kept.append(time.perf_counter() - before)
    return statistics.median(times[0]), statistics.median(times[1])


if __name__ == "__main__":
    sys.exit(main())
