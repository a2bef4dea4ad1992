"""Programs for devices, from the cubin of data/device.cu, and what they compute."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from baregrad.program import CUBIN, GpuLaunch, LaunchExpr, ParamSpec, Program

DATA = Path(__file__).parent / "data"
COUNT = ("var", "count")
BLOCK = 256

Words = np.ndarray[Any, np.dtype[np.uint32]]

# Name: access of each buffer, variables, blocks, threads of a block.
_KERNELS: dict[str, tuple[tuple[str, ...], tuple[str, ...], LaunchExpr, int]] = {
    "nothing": (("r",), (), 1, 32),
    "link64": (("rw",), ("number",), 1, 32),
    "link64_early": (("rw",), ("number",), 1, 32),
    "turn": (("w", "r"), ("count", "by"), ("floordiv", ("add", COUNT, BLOCK - 1), BLOCK), BLOCK),
    "turn_fetched": (
        ("w", "r"), ("count", "by"), ("floordiv", ("add", COUNT, BLOCK - 1), BLOCK), BLOCK,
    ),
    "turn_early": (
        ("w", "r"), ("count", "by"), ("floordiv", ("add", COUNT, BLOCK - 1), BLOCK), BLOCK,
    ),
    "turn_fetched_early": (
        ("w", "r"), ("count", "by"), ("floordiv", ("add", COUNT, BLOCK - 1), BLOCK), BLOCK,
    ),
    "add": (
        ("w", "r", "r"), ("count",), ("floordiv", ("add", COUNT, BLOCK - 1), BLOCK), BLOCK,
    ),
    "stacked": (("w",), ("stride",), 264, 256),
    "store64": (("w",), ("offset",), 1, 32),
    "trapped64": (("w",), (), 1, 32),
    "endless": (("r",), (), 1, 32),
    "slow": (("w",), ("turns",), 1, 32),
}  # fmt: skip


@functools.cache
def cubin() -> bytes:
    """Return the cubin for sm_90a."""
    return (DATA / "device.sm_90a.cuda13.cubin").read_bytes()


def program(name: str) -> Program:
    """Return one of the kernels as a program."""
    accesses, variables, blocks, threads = _KERNELS[name]
    size: LaunchExpr = ("mul", COUNT, 4) if "count" in variables else 128
    if name == "stacked":
        size = 4 * 264 * 256
    return Program(
        name=name,
        kind=CUBIN,
        code=cubin(),
        entry=name,
        params=tuple(
            ParamSpec(f"p{i}", "uint32", size, access) for i, access in enumerate(accesses)
        ),
        variables=variables,
        launch=GpuLaunch((blocks, 1, 1), (threads, 1, 1), waits=name.endswith("_early")),
    )


# What the kernels compute, on arrays of 32-bit words that are changed in place.


def link64(state: Words, number: int) -> None:
    """Multiply and add, modulo 2**32."""
    state[:32] = state[:32] * np.uint32(1664525) + np.uint32(number & 0xFFFFFFFF)


def turn(out: Words, source: Words, count: int, by: int) -> None:
    """Take elements from elsewhere."""
    places = (np.arange(count) + by) % count
    out[:count] = source[:count][places] * np.uint32(3) + np.uint32(by)


def add(out: Words, a: Words, b: Words, count: int) -> None:
    """Add float32."""
    found = a[:count].view(np.float32) + b[:count].view(np.float32)
    out[:count] = found.view(np.uint32)


def stacked(stride: int) -> Words:
    """Return what the kernel with a stack writes."""
    threads = np.arange(264 * 256, dtype=np.uint32)
    kept = np.zeros((64, len(threads)), np.uint32)
    for i in range(64):
        kept[i * stride & 63] = threads + np.uint32(i)
    total = np.zeros(len(threads), np.uint32)
    lanes = np.arange(len(threads))
    for i in range(64):
        places = (i * stride + lanes) & 63
        total = total * np.uint32(31) + kept[places, lanes]
    return total


def slow(turns: int) -> Words:
    """Return what `slow` writes."""
    value = np.arange(32, dtype=np.uint32)
    for _ in range(turns):
        value = value * np.uint32(1664525) + np.uint32(1013904223)
    return value
