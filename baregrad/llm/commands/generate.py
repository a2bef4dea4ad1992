"""`baregrad generate FILE PROMPT`: the text that a model continues a prompt with."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from baregrad.base.errors import ArgumentError
from baregrad.llm.commands.asking import (
    AnswerClock,
    add_model_options,
    add_sampling_options,
    load,
    sampling_of,
    settings_of,
    show,
)
from baregrad.llm.generation.constraints import AnswerForm


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
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--schema", metavar="FILE", help="write JSON of the schema in a file")
    forms.add_argument("--grammar", metavar="FILE",
                       help="write what the grammar in a file allows (GBNF or Lark)")  # fmt: skip
    forms.add_argument("--regex", help="write what a regular expression matches")
    given = parser.parse_args(argv)
    prompt = sys.stdin.read() if given.prompt == "-" else given.prompt
    chats, form = given.chat or given.system is not None, _form(given)
    model = load(given.file, settings_of(given), given.draft, chats=chats)
    try:
        if chats:
            messages = [{"role": "user", "content": prompt}]
            if given.system is not None:
                messages.insert(0, {"role": "system", "content": given.system})
            # What has a form begins at once.
            more = {} if form is None else {"enable_thinking": False}
            tokens = model.chat_tokens(messages, **more)
        else:
            tokens = model.tokenizer.encode(prompt)
        clock = AnswerClock()
        stream = model.ask(tokens, sampling_of(model, given), form)
        _, reason = show(stream)
        print()
        if sys.stderr.isatty():
            print(clock.note(stream), file=sys.stderr)
    finally:
        model.close()
    return 130 if reason == "cancelled" else 0


def _form(given: argparse.Namespace) -> AnswerForm | None:
    """Return the form that options ask for, read before the model is. Raises ArgumentError."""
    if given.regex is not None:
        return AnswerForm("regex", given.regex)
    for kind, path in (("json_schema", given.schema), ("grammar", given.grammar)):
        if path is not None:
            try:
                return AnswerForm(kind, Path(path).read_text("utf-8"))
            except OSError as error:
                raise ArgumentError(
                    f"the {kind} cannot be read", found=f"{path}: {error.strerror}"
                ) from error
            except ValueError as error:
                raise ArgumentError(f"the {kind} cannot be read", found=str(error)) from error
    return None
