"""`baregrad generate FILE PROMPT`: the text that a model continues a prompt with."""

from __future__ import annotations

import argparse
import sys

from baregrad.llm.commands.asking import (
    AnswerClock,
    add_model_options,
    add_sampling_options,
    load,
    sampling_of,
    settings_of,
    show,
)


def main(argv: list[str]) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="baregrad generate",
        description="Continue a text with a language model and write the continuation as it comes.",
    )
    add_model_options(parser)
    parser.add_argument("prompt", metavar="PROMPT", help="the text; - reads it from the input")
    add_sampling_options(parser)
    parser.add_argument("--system", help="answer the prompt as in a chat, with this instruction")
    parser.add_argument("--chat", action="store_true", help="answer the prompt as in a chat")
    given = parser.parse_args(argv)
    prompt = sys.stdin.read() if given.prompt == "-" else given.prompt
    chats = given.chat or given.system is not None
    model = load(given.file, settings_of(given), given.draft, chats=chats)
    try:
        if chats:
            messages = [{"role": "user", "content": prompt}]
            if given.system is not None:
                messages.insert(0, {"role": "system", "content": given.system})
            tokens = model.chat_tokens(messages)
        else:
            tokens = model.tokenizer.encode(prompt)
        clock = AnswerClock()
        stream = model.ask(tokens, sampling_of(model, given))
        _, reason = show(stream)
        print()
        if sys.stderr.isatty():
            print(clock.note(stream), file=sys.stderr)
    finally:
        model.close()
    return 130 if reason == "cancelled" else 0
