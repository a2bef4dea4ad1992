"""`baregrad bench --suite llm FILE`: prompts and answers a second, ours beside llama.cpp's."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from baregrad.apps.llm_suite import peer
from baregrad.base.errors import ArgumentError, MissingDependency
from baregrad.base.options import options
from baregrad.llm.generation.opened import EngineSettings, OpenedModel, open_to_ask
from baregrad.llm.generation.request import AnswerRequest
from baregrad.llm.generation.sampling import Sampling
from baregrad.runtime.cpu.host import detect_host

STREAMS = 16
TEXTS = (
    "The capital of France is", "Once upon a time there was", "def fibonacci(n):",
    "Water boils at a temperature of",
)  # fmt: skip
TEXT_TOKENS = 64
# Two best tokens whose scores are closer than this may change places.
CLOSE = 1e-2


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds for reading a prompt and for writing tokens, and the tokens."""

    read_s: float
    write_s: float
    tokens: list[int]


Side = Callable[[list[int], int], Measured]


def main(argv: Sequence[str]) -> int:
    """Measure; 1 where texts part that should not."""
    chosen = _parser().parse_args(argv)
    threads = chosen.threads or detect_host().cores
    if not Path(chosen.file).is_file():
        raise ArgumentError("no model there", found=chosen.file, wanted="a GGUF file")
    context = max(chosen.prompt + chosen.decode, 256) + 64
    with options.override(threads=threads):
        model = open_to_ask(chosen.file, EngineSettings(
            context=context, rows=STREAMS, contexts=STREAMS // 2, device=chosen.device,
            exact=chosen.exact,
        ))  # fmt: skip
        other = None
        if chosen.against:
            other = LlamaCppSide(chosen.python, chosen.file, threads, context)
        try:
            return _run(model, other, chosen, threads)
        finally:
            model.close()
            if other is not None:
                other.close()


def _run(
    model: OpenedModel, other: LlamaCppSide | None, chosen: argparse.Namespace, threads: int
) -> int:
    ours = OurSide(model)
    rng = np.random.default_rng(0)
    words = min(model.tokenizer.size, model.decoder.traits.words)
    prompt = [int(token) for token in rng.integers(0, words, chosen.prompt)]
    sides: dict[str, Side] = {"ours": ours}
    if other is not None:
        sides["llama.cpp"] = other
    rates: dict[str, dict[str, list[float]]] = {
        name: {"prompt": [], "decode": []} for name in sides
    }
    for turn in range(chosen.rounds + 2):
        for name, side in sides.items():
            read = side(prompt, 1)
            write = side(prompt[:16], chosen.decode)
            if turn > 1:
                rates[name]["prompt"].append(len(prompt) / read.read_s)
                rates[name]["decode"].append((chosen.decode - 1) / write.write_s)
    print(f"{model.name}: tokens a second, {threads} threads")
    print(f"{'':<22}" + "".join(f"{name:>12}" for name in sides) + f"{'ratio':>9}")
    for what, count in (("prompt", chosen.prompt), ("decode", chosen.decode)):
        found = [statistics.median(rates[name][what]) for name in sides]
        _row(f"{what} {count}", found)
    together = ours.streams(prompt[:16], chosen.decode)
    _row(f"decode, {STREAMS} at once", [together])
    return 0 if other is None else _compare(model, ours, other)


def _row(name: str, rates: Sequence[float]) -> None:
    ratio = f"{rates[0] / rates[1]:9.2f}" if len(rates) > 1 else ""
    print(f"{name:<22}" + "".join(f"{rate:12.1f}" for rate in rates) + ratio)


def _compare(model: OpenedModel, ours: OurSide, other: Side) -> int:
    """Compare greedy texts; where they part, the two best tokens have to be close."""
    wrong = 0
    for text in TEXTS:
        prompt = model.tokenizer.encode(text)
        one, two = ours(prompt, TEXT_TOKENS), other(prompt, TEXT_TOKENS)
        pairs = enumerate(zip(one.tokens, two.tokens, strict=True))
        at = next((at for at, (a, b) in pairs if a != b), None)
        if at is None:
            print(f"{text!r}: the same {TEXT_TOKENS} tokens")
            continue
        gap = ours.gap([*prompt, *one.tokens[:at]])
        wrong += gap > CLOSE
        print(f"{text!r}: parts after {at} tokens, where the two best are {gap:.4f} apart")
    return 1 if wrong else 0


class OurSide:
    """Our engine, without its thread."""

    def __init__(self, model: OpenedModel) -> None:
        self._engine = model.engine

    def __call__(self, prompt: list[int], count: int) -> Measured:
        """Read a prompt and write `count` tokens, the best each time."""
        engine = self._engine
        # Nothing is found in the cache: a prompt is read anew each time.
        engine.stepper.cache.pool.forget()
        stream = engine.submit(AnswerRequest(prompt, _greedy(count)))
        start = time.perf_counter()
        while not stream.usage.answer and engine.step():
            pass
        read = time.perf_counter() - start
        begun = stream.usage.answer
        start = time.perf_counter()
        engine.run()
        seconds = time.perf_counter() - start
        tokens = [token.token for piece in stream for token in piece.tokens]
        # The turn that ends a prompt has written a row besides.
        scale = (count - 1) / max(count - begun, 1)
        return Measured(read, seconds * scale, tokens)

    def streams(self, prompt: list[int], count: int) -> float:
        """Return tokens a second of STREAMS answers at once."""
        engine = self._engine
        found = 0.0
        for _ in range(2):
            streams = [
                engine.submit(AnswerRequest([*prompt, number], _greedy(count)))
                for number in range(STREAMS)
            ]
            while any(not stream.usage.answer for stream in streams):
                engine.step()
            begun = sum(stream.usage.answer for stream in streams)
            start = time.perf_counter()
            engine.run()
            found = (STREAMS * count - begun) / (time.perf_counter() - start)
        return found

    def gap(self, tokens: list[int]) -> float:
        """Return how far apart the two best scores after some tokens are."""
        request = AnswerRequest(tokens, Sampling(temperature=0.0, max_tokens=1, logprobs=2))
        stream = self._engine.submit(request)
        self._engine.run()
        (token,) = (token for piece in stream for token in piece.tokens)
        return token.best[0][1] - token.best[1][1]


class LlamaCppSide:
    """llama.cpp in a process of its own. `by_tiles`: it attends to keys by tiles."""

    def __init__(
        self, python: str, file: str, threads: int, context: int, *, by_tiles: bool = False
    ) -> None:
        self._process: Any = subprocess.Popen(
            [python, peer.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            self._ask({
                "file": file, "threads": threads, "context": context, "by_tiles": by_tiles
            })  # fmt: skip
        except MissingDependency:
            self.close()
            raise

    def __call__(self, prompt: list[int], count: int) -> Measured:
        """Read a prompt and write `count` tokens, the best each time."""
        found = self._ask({"prompt": prompt, "count": count})
        return Measured(found["read_s"], found["write_s"], found["tokens"])

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        line = ""
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            said = self._process.stderr.read().strip().splitlines()
            raise MissingDependency(
                "llama.cpp does not run", found=said[-1] if said else "no word from it",
                package="llama-cpp-python", hint="--python names a Python that has it",
            )
        found: dict[str, Any] = json.loads(line)
        return found


def _greedy(count: int) -> Sampling:
    return Sampling(temperature=0.0, max_tokens=count, ignores_ends=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="baregrad bench --suite llm", description=__doc__)
    parser.add_argument("file", metavar="FILE", help="a GGUF file")
    parser.add_argument("--against", choices=["llama.cpp"], help="whom to measure beside us")
    parser.add_argument("--python", default=sys.executable,
                        help="the Python that has llama-cpp-python (this one)")  # fmt: skip
    parser.add_argument("--threads", type=int, default=0, help="of both sides (all cores)")
    parser.add_argument("--device", help="of our side (the default device)")
    parser.add_argument("--exact", action="store_true",
                        help="our products take activations as they are")  # fmt: skip
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--decode", type=int, default=128, help="tokens that are written")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
    return parser
