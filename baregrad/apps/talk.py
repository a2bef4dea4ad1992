"""`baregrad demo chat`: a question that a small language model answers."""

from __future__ import annotations

import time
from collections.abc import Sequence

from baregrad.data.smollm import find_model
from baregrad.engine.session import current_session
from baregrad.llm.commands.asking import load, show
from baregrad.llm.generation.opened import EngineSettings

CONTEXT = 1024
MOST_TOKENS = 96


def run(questions: Sequence[str]) -> int:
    """Answer questions of one conversation with SmolLM2 on the default device."""
    start = time.perf_counter()
    device = current_session().default_device()
    model = load(str(find_model()), EngineSettings(context=CONTEXT, rows=1, device=device))
    loaded = time.perf_counter() - start
    messages: list[dict[str, str]] = []
    sampling = model.sampling(temperature=0.0, max_tokens=MOST_TOKENS)
    try:
        for question in questions:
            print(f"> {question}")
            messages.append({"role": "user", "content": question})
            begin = time.perf_counter()
            stream = model.ask(model.chat_tokens(messages), sampling)
            text, _ = show(stream)
            seconds = time.perf_counter() - begin
            messages.append({"role": "assistant", "content": text})
            print(f"\n{device}: {stream.usage.answer} tokens in {seconds:.2f} s")
    finally:
        model.close()
    print(f"\nloaded in {loaded:.2f} s")
    return 0
