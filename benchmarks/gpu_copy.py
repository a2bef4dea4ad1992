"""Copies between host and GPU, and between GPUs, ours beside PyTorch's pinned ones.

    python benchmarks/gpu_copy.py [--devices NV,CUDA] [--rounds 5] [--sizes 4096,...] [--json FILE]

PyTorch copies pinned tensors (`copy_(..., non_blocking=True)`, then a wait). Ours copy pinned
arrays and ordinary NumPy arrays (which they have to bring into pinned memory first). Each copy is
waited for, and timed from its call to its end. With two GPUs, copies between them are timed too.
Every side checks that what comes back is what was sent. Each is a process of its own; rounds
alternate.

One line each: name and size, ratio of rates ours/PyTorch's (median over rounds), bar, GB/s, spread
over rounds, verdict. The bars are for 16 MiB and more, where the bus is what counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks import gpu_sides as sides
from benchmarks.gpu_sides import Answer

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = (*(4 * KIB << 2 * step for step in range(9)), GIB)
BAR_FROM = 16 * MIB
PINNED_BAR, ORDINARY_BAR, PEER_BAR = ">0.98", ">0.8", ">0.95"
# What ours are asked, and which of PyTorch's figures it is held against.
OURS = {
    "pinned in": ("pinned in", PINNED_BAR), "pinned out": ("pinned out", PINNED_BAR),
    "ordinary in": ("pinned in", ORDINARY_BAR), "ordinary out": ("pinned out", ORDINARY_BAR),
}
MOST_TIMES, LEAST_TIMES, ROUND_NBYTES = 400, 4, 2 * GIB
WARM_UP = 3


def times_for(nbytes: int) -> int:
    """How many copies of a size make a round."""
    return max(LEAST_TIMES, min(MOST_TIMES, ROUND_NBYTES // nbytes))


def noise(nbytes: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes that do not repeat."""
    words = np.random.default_rng(seed).integers(0, 1 << 63, -(-nbytes // 8), np.int64)
    return words.view(np.uint8)[:nbytes]


def ours(name: str) -> tuple[Mapping[str, Any], Callable[[Answer], Answer]]:
    """A device of ours, and its neighbour for copies between two."""
    from baregrad.base.errors import BaregradError
    from baregrad.runtime import open_device

    device: Any = open_device(name)
    other: Any = None

    def host_array(what: str, nbytes: int) -> Any:
        if what.startswith("pinned"):
            return device.pinned(nbytes)
        return np.empty(nbytes, np.uint8)

    def answer(question: Answer) -> Answer:
        what, nbytes, times = question["what"], question["nbytes"], question["times"]
        if what == "peer":
            return peer(nbytes, times)
        source, back = host_array(what, nbytes), host_array(what, nbytes)
        source[:] = noise(nbytes, times)
        back[:] = 0
        buffer = device.allocate(nbytes)

        def copy_in() -> None:
            device.copy_in(buffer, source)
            device.synchronize()

        def copy_out() -> None:
            device.copy_out(buffer, back)

        copy_in()
        once = copy_in if what.endswith("in") else copy_out
        for _ in range(WARM_UP):
            once()
        found = sides.timed_ns(once, times)
        copy_out()
        if not np.array_equal(source, back):
            return {"error": f"{what}: {nbytes} bytes come back changed"}
        return {"times_ns": found, "libraries": sides.vendor_libraries()}

    def peer(nbytes: int, times: int) -> Answer:
        nonlocal other
        if other is None:
            try:
                other = open_device(f"{name.partition(':')[0]}:1")
            except BaregradError as error:
                return {"skip": str(error)}
        data = noise(nbytes, times)
        source, target = device.allocate(nbytes), other.allocate(nbytes)
        device.copy_in(source, data)

        def once() -> None:
            other.copy_peer(target, source)
            other.synchronize()

        for _ in range(WARM_UP):
            once()
        found = sides.timed_ns(once, times)
        back = np.empty_like(data)
        other.copy_out(target, back)
        if not np.array_equal(data, back):
            return {"error": f"between GPUs, {nbytes} bytes arrive changed"}
        return {"times_ns": found}

    facts = {"device": device.name, "architecture": device.architecture}
    if hasattr(device, "staging"):
        group, staging = device.channels[1].group, device.staging
        facts["copies"] = f"engine {group.engine} ({group.why}), {staging.workers} threads, " + str(
            staging.options
        )
    return facts, answer


def pytorch() -> tuple[Mapping[str, Any], Callable[[Answer], Answer]]:
    """PyTorch's copies of pinned memory."""
    import torch

    torch.cuda.init()
    wait = torch.cuda.synchronize

    def answer(question: Answer) -> Answer:
        what, nbytes, times = question["what"], question["nbytes"], question["times"]
        data = torch.from_numpy(noise(nbytes, times))
        back = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        if what == "peer":
            if torch.cuda.device_count() < 2:
                return {"skip": "PyTorch sees one GPU"}
            source, target = data.to("cuda:0"), torch.empty_like(data, device="cuda:1")
        else:
            pinned = data.pin_memory()
            on_gpu = torch.empty(nbytes, dtype=torch.uint8, device="cuda:0")
            on_gpu.copy_(pinned)
            source, target = (pinned, on_gpu) if what.endswith("in") else (on_gpu, back)

        def once() -> None:
            target.copy_(source, non_blocking=True)
            # The target's stream waits for a copy between GPUs.
            wait(1 if what == "peer" else 0)

        for _ in range(WARM_UP):
            once()
        found = sides.timed_ns(once, times)
        back.copy_(target if what != "pinned out" else back)
        if not torch.equal(back, data):
            return {"error": f"{what}: {nbytes} bytes come back changed"}
        return {"times_ns": found}

    facts = {"torch": torch.__version__, "cuda": torch.version.cuda,
             "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]}
    return facts, answer


def compare(arguments: argparse.Namespace) -> int:
    """Ask all sides in turn, and print and write what they say."""
    me = [sys.executable, str(Path(__file__).resolve()), "--side"]
    names = [name for name in arguments.devices.split(",") if name]
    ready = sides.start({name: [*me, name] for name in ("PyTorch", *names)})
    if "PyTorch" not in ready:
        print("nothing to compare with: PyTorch's side did not start")
        return 1
    for side in ready.values():
        print(f"{side.facts}")
    lines: list[str] = []
    rates: dict[str, list[float]] = {}
    skipped: dict[str, str] = {}
    sizes = [int(size) for size in arguments.sizes.split(",")] if arguments.sizes else list(SIZES)
    try:
        for nbytes in sizes:
            for _ in range(arguments.rounds):
                ask_round(ready, nbytes, rates, skipped)
            for line in rows(ready, nbytes, rates):
                lines.append(line)
                print(line, flush=True)
    finally:
        for side in ready.values():
            side.close()
    for what, why in skipped.items():
        lines.append(f"skipped {what}: {why}")
        print(lines[-1])
    sides.write_report(arguments.json, {
        "machine": sides.machine(), "rates": rates, "lines": lines, "unit": "GB/s",
        "facts": {name: side.facts for name, side in ready.items()},
    })
    return 0


def ask_round(
    ready: Mapping[str, sides.Side], nbytes: int, rates: dict[str, list[float]],
    skipped: dict[str, str],
) -> None:
    """One round of every question of a size, the sides in turn."""
    for what in ("pinned in", "ordinary in", "pinned out", "ordinary out", "peer"):
        for name, side in ready.items():
            if (name == "PyTorch" and what.startswith("ordinary")) or f"{name} {what}" in skipped:
                continue
            found = side.ask(what=what, nbytes=nbytes, times=times_for(nbytes))
            if "skip" in found:
                skipped[f"{name} {what}"] = found["skip"]
                continue
            rate = nbytes / statistics.median(found["times_ns"])
            rates.setdefault(f"{name} {what} {nbytes}", []).append(rate)


def rows(
    ready: Mapping[str, sides.Side], nbytes: int, rates: Mapping[str, list[float]]
) -> list[str]:
    """The lines of a size."""
    found = []
    for name in ready:
        for what, (theirs, bar) in {**OURS, "peer": ("peer", PEER_BAR)}.items():
            mine = rates.get(f"{name} {what} {nbytes}")
            other = rates.get(f"PyTorch {theirs} {nbytes}")
            if name == "PyTorch" or mine is None or other is None:
                continue
            ratios = [one / two for one, two in zip(mine, other, strict=True)]
            told = f"{statistics.median(mine):.2f} / {statistics.median(other):.2f} GB/s"
            bar = bar if nbytes >= BAR_FROM else ""
            found.append(sides.row(f"{name} {what} {size_text(nbytes)}", ratios, bar, told))
    return found


def size_text(nbytes: int) -> str:
    """A size in KiB, MiB or GiB."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} B"


def main() -> int:
    """Compare, or be a side."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", default="NV,CUDA", help="ours, with commas between")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="", help="bytes, with commas between")
    parser.add_argument("--json", default="", help="where to write all figures")
    parser.add_argument("--side", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side == "PyTorch":
        sides.serve(pytorch)
    elif arguments.side:
        sides.serve(lambda: ours(arguments.side))
    else:
        return compare(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
