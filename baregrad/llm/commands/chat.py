"""`baregrad chat FILE`: a conversation with a model in the terminal."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

from baregrad.llm.commands.asking import (
    AnswerClock,
    add_model_options,
    add_sampling_options,
    load,
    sampling_of,
    settings_of,
    show,
)
from baregrad.llm.generation.opened import OpenedModel
from baregrad.llm.generation.sampling import Sampling

HELP = "/reset forgets the conversation, /exit ends it; Ctrl-C stops an answer, Ctrl-D ends all."


def main(argv: list[str]) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="baregrad chat", description=f"Talk to a language model. {HELP}"
    )
    add_model_options(parser)
    add_sampling_options(parser)
    parser.add_argument("--system", help="an instruction that stands before the conversation")
    given = parser.parse_args(argv)
    model = load(given.file, settings_of(given), given.draft)
    try:
        talk(model, sampling_of(model, given), given.system)
    finally:
        model.close()
    return 0


def talk(model: OpenedModel, sampling: Sampling, system: str | None = None) -> None:
    """Read lines and answer them until the input ends."""
    first = [] if system is None else [{"role": "system", "content": system}]
    messages: list[dict[str, Any]] = list(first)
    # What is refused for any conversation is refused before the first line.
    model.chat_tokens([*first, {"role": "user", "content": ""}])
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        print(f"{model.name}. {HELP}")
    while True:
        line = _read("> " if is_terminal else "")
        if line is None or line.strip() == "/exit":
            return
        if line.strip() == "/reset":
            messages = list(first)
        elif line.strip() == "/help":
            print(HELP)
        elif re.fullmatch(r"/[a-z]+", line.strip()):
            print(f"(there is no {line.strip()}: {HELP})")
        elif line.strip():
            messages.append({"role": "user", "content": line})
            answer(model, messages, sampling, is_terminal)


def answer(
    model: OpenedModel, messages: list[dict[str, Any]], sampling: Sampling, notes: bool
) -> None:
    """Write the answer to the last message, and add it to them.

    The oldest turns are left out where a conversation no longer fits the context.
    """
    context = model.engine.stepper.context
    kept = list(messages)
    tokens = model.chat_tokens(kept)
    while len(tokens) > context * 3 // 4:
        begin = 1 if kept[0]["role"] == "system" else 0
        if len(kept) - begin < 3:
            break
        del kept[begin : begin + 2]
        tokens = model.chat_tokens(kept)
    if len(tokens) >= context:
        messages.pop()
        print(f"(that is {len(tokens)} tokens, more than the context of {context})")
        return
    messages[:] = kept
    clock = AnswerClock()
    stream = model.ask(tokens, sampling)
    text, reason = show(stream)
    print()
    if notes:
        ended = {"length": ", cut off", "cancelled": ", stopped"}.get(reason or "", "")
        print(f"\x1b[2m({clock.note(stream)}{ended})\x1b[0m")
    messages.append({"role": "assistant", "content": text})


def _read(prompt: str) -> str | None:
    """A line of the input, "" where it was interrupted, None where the input ends."""
    try:
        return input(prompt)
    except KeyboardInterrupt:
        print()
        return ""
    except EOFError:
        if prompt:
            print()
        return None
