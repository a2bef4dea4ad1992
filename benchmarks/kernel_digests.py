"""Digests of the code of four models' kernels, to see what a change of the compiler changes.

    python benchmarks/kernel_digests.py [--targets x86-64-avx512,sm_90a] [--json F] [--against F]

The models are those of `baregrad bench`: ResNet-18's loss with its gradients, the training steps of
the digits network and of the six-layer transformer, and MiniLM's forward pass. Every kernel is
planned, compiled and rendered for each target, not assembled; nothing is computed. With `--against`
the exit status says whether any kernel differs from the digests of that file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from baregrad import nn, optim, render
from baregrad.apps.bench_models import Network, digits_network, transformer_network
from baregrad.apps.compile_time import build, prepare
from baregrad.apps.minilm import SentenceEncoder
from baregrad.base.options import options
from baregrad.base.progress import ProgressBar
from baregrad.engine.backends import CompiledBackend
from baregrad.engine.compiler import Compiler
from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node
from baregrad.schedule import make_plan
from baregrad.target import gpu_row
from baregrad.target.cpu import cpu_row_named
from baregrad.tensor import Tensor

TARGETS = ("x86-64-avx512", "sm_90a")


def resnet() -> None:
    """The loss of ResNet-18 and its gradients."""
    tensors = build(*prepare())
    tensors[0].realize(*tensors[1:])


def training(network: Network, x: Tensor, y: Tensor) -> None:
    """One step of AdamW."""
    optimiser = optim.AdamW(network.parameters(), lr=1e-3)
    loss: Tensor = network(x).cross_entropy(y)
    loss.backward()
    optimiser.step()
    loss.realize(*network.parameters())


def digits() -> None:
    """A training step of the digits network on 128 images."""
    images = Tensor(np.zeros((128, 1, 8, 8), np.float32))
    network = digits_network(nn, Tensor.scaled_dot_product_attention, 0.5, False)
    training(network, images, _labels(128))


def transformer() -> None:
    """A training step of the six-layer transformer on 8 lines of 128 words."""
    words = Tensor(np.zeros((8, 128), np.int64))
    network = transformer_network(nn, Tensor.scaled_dot_product_attention, 0.0, False)
    training(network, words, _labels(1024))


def minilm() -> None:
    """MiniLM on 32 sentences of 24 tokens."""
    words, mask = (Tensor(np.zeros((32, 24), np.int64)) for _ in range(2))
    with Tensor.no_grad():
        SentenceEncoder().model.embed_texts(words, mask).realize()


def _labels(count: int) -> Tensor:
    return Tensor(np.zeros(count, np.int64))


MODELS: dict[str, Callable[[], None]] = {
    "resnet-18": resnet, "digits": digits, "transformer": transformer, "minilm": minilm,
}


@contextmanager
def listening(sinks: dict[Node, None]) -> Iterator[None]:
    """Inside the block the graphs that are prepared are noted."""
    real = CompiledBackend.prepare

    def prepare(self: CompiledBackend, program: Any, donated: Any) -> Any:
        sinks[program.sink] = None
        return real(self, program, donated)

    CompiledBackend.prepare = prepare  # type: ignore[method-assign]
    try:
        yield
    finally:
        CompiledBackend.prepare = real  # type: ignore[method-assign]


def texts(sinks: dict[Node, None], target: str) -> Iterator[str]:
    """The code of every kernel of some graphs for one target, in order."""
    is_gpu = target.startswith("sm_")
    row: Any = gpu_row(target) if is_gpu else cpu_row_named(target)
    compiler = Compiler(row, render.get("ptx" if is_gpu else "llvm"), None, None)
    for sink in sinks:
        for kernel in make_plan(canonicalise(sink, target=row), donate={}, target=row).kernels:
            *_, last = compiler.stages(kernel)
            yield str(last.result)


def digests(targets: list[str]) -> dict[str, list[str]]:
    """For each model and target the digest of each kernel."""
    found: dict[str, list[str]] = {}
    with ProgressBar(len(MODELS) * len(targets), "digests") as bar:
        for name, run in MODELS.items():
            sinks: dict[Node, None] = {}
            with listening(sinks), options.override(device="NULL", cache=False):
                run()
            for target in targets:
                found[f"{name} {target}"] = [
                    hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts(sinks, target)
                ]
                bar.advance()
    return found


def main() -> int:
    """Print how many kernels there are, or how many differ."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--targets", default=",".join(TARGETS), help="rows of `target`")
    parser.add_argument("--json", type=Path, metavar="F", help="write the digests here")
    parser.add_argument("--against", type=Path, metavar="F", help="digests to compare with")
    chosen = parser.parse_args()
    found = digests(chosen.targets.split(","))
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")
    before = json.loads(chosen.against.read_text()) if chosen.against else found
    differ = 0
    for name, new in found.items():
        old = before.get(name, [])
        same = sum(a == b for a, b in zip(new, old, strict=False))
        differ += max(len(new), len(old)) - same
        print(f"{name}: {len(new)} kernels, {max(len(new), len(old)) - same} differ")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
