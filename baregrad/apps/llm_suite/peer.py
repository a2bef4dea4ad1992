"""llama.cpp's side, as a program by itself: commands come in as lines of JSON, answers go out.

It imports nothing of baregrad, so that any Python that has llama-cpp-python can run it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main() -> None:
    """Answer commands until the input ends; the first names the file, threads and context."""
    settings = json.loads(sys.stdin.readline())
    side = LlamaCpp(**settings)
    _say({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)
        _say(side.answer(command))


class LlamaCpp:
    """A model loaded by llama.cpp."""

    def __init__(self, file: str, threads: int, context: int, by_tiles: bool) -> None:
        import llama_cpp

        self._model: Any = llama_cpp.Llama(
            model_path=file, n_ctx=context, n_threads=threads, n_threads_batch=threads,
            n_batch=512, verbose=False, n_gpu_layers=0, flash_attn=by_tiles,
        )  # fmt: skip

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Return the seconds that reading `prompt` and writing `count` tokens take, and those."""
        model = self._model
        model.reset()
        start = time.perf_counter()
        model.eval(command["prompt"])
        read = time.perf_counter() - start
        tokens: list[int] = []
        start = time.perf_counter()
        for _ in range(command["count"]):
            token = self._best()
            tokens.append(token)
            if len(tokens) < command["count"]:
                model.eval([token])
        return {"read_s": read, "write_s": time.perf_counter() - start, "tokens": tokens}

    def _best(self) -> int:
        import numpy as np

        # What a context keeps are the scores after its last token alone.
        scores = self._model._ctx.get_logits_ith(-1)
        return int(np.ctypeslib.as_array(scores, (self._model.n_vocab(),)).argmax())


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
