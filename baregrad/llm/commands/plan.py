"""`baregrad plan FILE --context N`: what a model takes in memory, before its weights are read."""

from __future__ import annotations

import argparse
import math

from baregrad.base.bits import human_bytes
from baregrad.base.errors import ArgumentError
from baregrad.llm.generation.layer_pages import CACHE_TYPES
from baregrad.llm.generation.opened import EngineSettings, memory_of_engine
from baregrad.llm.models.architectures import read_traits
from baregrad.llm.models.loading import open_model
from baregrad.runtime.host_memory import available_nbytes


def main(argv: list[str]) -> int:
    """Run the command: its exit status is 1 where the model does not fit."""
    parser = argparse.ArgumentParser(
        prog="baregrad plan",
        description="Say what a language model takes in memory, and whether it fits. Of its file "
        "only the header is read.",
    )
    parser.add_argument("file", metavar="FILE", help="a GGUF file, or a folder with safetensors")
    parser.add_argument("--context", type=int, help="tokens of prompt and answer")
    parser.add_argument("--contexts", type=int, default=1, help="contexts in the cache (1)")
    parser.add_argument("--cache", choices=CACHE_TYPES,
                        help="type of the cached keys and values (f16, bf16 on GPUs)")  # fmt: skip
    parser.add_argument("--memory", type=float, metavar="GB",
                        help="what there is (what this machine can still give)")  # fmt: skip
    given = parser.parse_args(argv)
    if given.memory is not None and not 0 < given.memory < math.inf:
        raise ArgumentError("--memory is a size", found=given.memory, wanted="more than 0 GB")
    settings = EngineSettings(given.context, contexts=given.contexts, cache=given.cache)
    files = open_model(given.file)
    traits = read_traits(
        files.metadata, files.source.shapes, context=given.context, rope=files.rope
    )
    figures = memory_of_engine(traits, files.source.types, settings)
    for name, nbytes in (
        ("weights", figures.weights), ("cache", figures.cache),
        ("workspace", figures.workspace), ("together", figures.total),
    ):
        print(f"{name:<10} {human_bytes(nbytes):>10}")
    there = available_nbytes() if given.memory is None else int(given.memory * 1e9)
    if there is None:
        return 0
    fits = figures.total <= there
    print(f"{'there is':<10} {human_bytes(there):>10}: it {'fits' if fits else 'does not fit'}")
    return 0 if fits else 1
