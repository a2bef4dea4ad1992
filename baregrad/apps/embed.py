"""`baregrad demo embed`: sentences encoded, and how alike they are."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from baregrad.engine.session import current_session

_SHOWN = 60  # characters of a text in the list


def table(texts: Sequence[str], matrix: npt.NDArray[np.float32]) -> str:
    """Return the texts, numbered, and the matrix of their similarities as text."""
    lines = []
    for number, text in enumerate(texts, 1):
        line = " ".join(text.split())
        shown = line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "..."
        lines.append(f"{number:>3}  {shown}")
    heads = range(1, len(texts) + 1)
    lines += ["", "     " + " ".join(f"{number:>7}" for number in heads)]
    for number, row in zip(heads, matrix, strict=True):
        lines.append(f"{number:>3}  " + " ".join(f"{value:7.4f}" for value in row))
    return "\n".join(lines)


def run(texts: Sequence[str]) -> int:
    """Encode texts with MiniLM-L6 on the default device and print their similarities."""
    from baregrad.apps.minilm import SentenceEncoder, similarities

    start = time.perf_counter()
    encoder = SentenceEncoder()
    ready = time.perf_counter()
    matrix = similarities(encoder.encode(texts))
    done = time.perf_counter()
    print(table(texts, matrix))
    device = current_session().default_device()
    print(f"\n{device}: loaded in {ready - start:.2f} s, encoded in {done - ready:.2f} s")
    return 0
