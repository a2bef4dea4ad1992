"""What the commands that ask a model share: their options, loading with a bar, and streaming."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import time
from types import MappingProxyType
from typing import Any

from baregrad.base.progress import ProgressBar, no_bars
from baregrad.llm.generation.layer_pages import CACHE_TYPES
from baregrad.llm.generation.opened import EngineSettings, OpenedModel, open_to_ask
from baregrad.llm.generation.request import Stream
from baregrad.llm.generation.sampling import Sampling
from baregrad.llm.models.loading import open_model
from baregrad.llm.models.weights import WeightSource


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the file and what its engine is made for."""
    parser.add_argument("file", metavar="FILE", help="a GGUF file, or a folder with safetensors")
    parser.add_argument("--context", type=int, help="tokens of prompt and answer (the model's "
                        "own number, 4096 at most)")  # fmt: skip
    parser.add_argument("--cache", choices=CACHE_TYPES,
                        help="type of the cached keys and values (f16, bf16 on GPUs)")  # fmt: skip
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"),
                        help="of activations (float32, bfloat16 on GPUs)")  # fmt: skip
    parser.add_argument("--exact", action="store_true", help="multiply activations as they are: "
                        "otherwise processors round them to bytes, which is faster, "
                        "and GPUs some to 16 bits")  # fmt: skip
    parser.add_argument("--device", help="CPU, NV, NV:1, CUDA, ... (the default device)")
    parser.add_argument("--guesses", type=int, default=0, metavar="N",
                        help="tokens guessed ahead and checked together, from what was written "
                        "before or by --draft (%(default)s)")  # fmt: skip
    parser.add_argument("--draft", metavar="FILE", help="a smaller model of the same tokens, which "
                        "guesses (4 tokens, unless --guesses says so)")  # fmt: skip


# How tokens are drawn in a terminal where neither its user nor the model's file says it, as by
# llama.cpp's programs: all of a small model's distribution is soon nonsense.
USUAL = MappingProxyType({"temperature": 0.8, "top_p": 0.95, "min_p": 0.05})


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add how tokens are chosen; what is left out is the model's own default, or `USUAL`."""
    for name, kind, what in (
        ("temperature", float, "0 takes the best token each time"),
        ("top-p", float, "draw among the best whose probabilities add up to this"),
        ("top-k", int, "draw among so many of the best"),
        ("min-p", float, "draw among those at least so many times as probable as the best"),
        ("seed", int, "repeat the same answer"),
        ("max-tokens", int, "tokens of an answer at most"),
    ):
        usual = USUAL.get(name.replace("-", "_"))
        default = "" if usual is None else f" (the model's own, or {usual})"
        parser.add_argument(f"--{name}", type=kind, help=what + default)


def sampling_of(model: OpenedModel, given: argparse.Namespace) -> Sampling:
    """Return the sampling that options chose."""
    names = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens")
    return model.sampling(USUAL, **{name: getattr(given, name) for name in names})


def settings_of(given: argparse.Namespace) -> EngineSettings:
    """Return the engine's settings that options chose."""
    guesses = given.guesses or (4 if given.draft else 0)
    return EngineSettings(
        context=given.context, rows=1 + guesses, cache=given.cache, guesses=guesses,
        device=given.device, dtype=given.dtype, exact=given.exact,
    )


def load(
    path: str, settings: EngineSettings, draft: str | None = None, *, chats: bool = True
) -> OpenedModel:
    """Open a model while a bar shows the bytes that are read, and start its engine.

    chats: whether it will be asked in chats (see `open_to_ask`).
    """
    files = open_model(path, settings.device)
    with ProgressBar(_nbytes(files.source), "loading") as bar:
        model = open_to_ask(files, settings, bar.advance, draft, chats=chats)
    model.engine.start()
    return model


def _nbytes(source: WeightSource) -> int:
    shapes = source.shapes
    return sum(
        kind.row_nbytes(shapes[name][-1]) * math.prod(shapes[name][:-1])
        for name, kind in source.types.items()
    )


def show(stream: Stream, output: Any = None) -> tuple[str, str | None]:
    """Write an answer as it comes; return its text and why it ended.

    An interrupt ends the answer and nothing else.
    """
    out = sys.stdout if output is None else output
    text, reason = "", None
    pieces = iter(stream)
    with contextlib.ExitStack() as while_written:
        while True:
            try:
                piece = next(pieces, None)
            except KeyboardInterrupt:
                stream.cancel()
                # What is on its way is thrown away; the last piece says that it was cancelled. An
                # iterator that was interrupted has ended, so this is another one.
                for piece in stream:
                    reason = piece.reason
                return text, reason
            if piece is None:
                return text, reason
            if not text and piece.text:
                while_written.enter_context(no_bars())
            out.write(piece.text)
            out.flush()
            text += piece.text
            reason = piece.reason


class AnswerClock:
    """How long an answer took, for people to look at."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def note(self, stream: Stream) -> str:
        """Return the tokens of an answer and how many a second that were."""
        seconds = time.perf_counter() - self._start
        usage = stream.usage
        return (
            f"{usage.prompt} tokens read ({usage.cached} known), {usage.answer} written, "
            f"{usage.answer / max(seconds, 1e-9):.1f} a second"
        )
