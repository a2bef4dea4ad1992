"""`baregrad serve FILE`: a server that speaks the usual protocols of language models."""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import replace

from baregrad.base.errors import ArgumentError, MissingDependency
from baregrad.llm.commands.asking import add_model_options, load, settings_of
from baregrad.llm.generation.opened import OpenedModel
from baregrad.llm.models.loading import open_model
from baregrad.llm.serve import ServerSettings, VectorModel, application, open_to_embed

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
# Answers that are being written when the server is interrupted may go on for so long.
_SECONDS_TO_END = 5


def main(argv: list[str]) -> int:
    """Run the server until it is interrupted; return the command's exit status."""
    parser = argparse.ArgumentParser(
        prog="baregrad serve",
        description="Serve a language model over HTTP: OpenAI's chat completions, completions and "
        "responses, Anthropic's messages, embeddings of encoders, /health, /metrics, and a page.",
    )
    add_model_options(parser)
    parser.add_argument("--host", default="127.0.0.1", help="the address (%(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="%(default)s")
    parser.add_argument("--api-key", help="what clients have to send as their key")
    parser.add_argument("--origin", action="append", default=[], metavar="URL",
                        help="a page that browsers may ask from (none)")  # fmt: skip
    parser.add_argument("--answers", type=int, default=8, metavar="N",
                        help="answers that are written at once (%(default)s)")  # fmt: skip
    parser.add_argument("--contexts", type=int, default=4, metavar="N",
                        help="whole contexts that the cache holds (%(default)s)")  # fmt: skip
    parser.add_argument("--waiting", type=int, default=256, metavar="N",
                        help="requests that may wait; further ones are told to try again "
                        "(%(default)s)")  # fmt: skip
    given = parser.parse_args(argv)
    try:
        import uvicorn
    except ImportError as error:
        raise MissingDependency(package="uvicorn", extra="serve") from error
    settings = settings_of(given)
    settings = replace(
        settings, rows=given.answers + settings.guesses, contexts=given.contexts,
        most_waiting=given.waiting,
    )
    if given.api_key is None and given.host not in _LOOPBACK:
        raise ArgumentError(
            "everybody who reaches this address could ask", found=f"--host {given.host}",
            wanted="--api-key as well",
        )
    model: OpenedModel | VectorModel
    if open_model(given.file).is_encoder:
        model = open_to_embed(given.file, given.device)
    else:
        model = load(given.file, settings, given.draft)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    app = application(model, ServerSettings(given.api_key, tuple(given.origin)))
    try:
        uvicorn.run(
            app, host=given.host, port=given.port, log_level="warning",
            timeout_graceful_shutdown=_SECONDS_TO_END,
        )
    finally:
        if isinstance(model, OpenedModel):
            model.close()
    return 0
