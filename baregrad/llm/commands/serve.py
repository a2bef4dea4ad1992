"""`baregrad serve FILE`: a server that speaks the usual protocols of language models."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import logging
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from baregrad.base.errors import ArgumentError, MissingDependency
from baregrad.llm.commands.asking import add_model_options, load, settings_of
from baregrad.llm.generation.opened import OpenedModel
from baregrad.llm.models.loading import open_model
from baregrad.llm.serve import ServerSettings, VectorModel, application, open_to_embed

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
# Answers that are being written when the server is interrupted may go on for so long.
_SECONDS_TO_END = 5
_LAST_PORT = 65535


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
        most_waiting=given.waiting, whole_cache=True,
    )
    _check(given)
    with contextlib.ExitStack() as closing:
        with _told_of(given.host, given.port):
            places = _bound(closing, given.host, given.port)
        model: OpenedModel | VectorModel
        if open_model(given.file).is_encoder:
            model = open_to_embed(given.file, given.device)
        else:
            model = load(given.file, settings, given.draft)
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
        app = application(model, ServerSettings(given.api_key, tuple(given.origin)))
        # Nothing of it waits for the beginning or the end, which an interrupt would tear.
        config = uvicorn.Config(
            app, log_level="warning", timeout_graceful_shutdown=_SECONDS_TO_END, lifespan="off"
        )
        try:
            # Somebody else may have begun to listen while the model was read.
            with _told_of(given.host, given.port):
                for place in places:
                    place.listen(config.backlog)
            return _serve(uvicorn.Server(config), places, model.name)
        finally:
            if isinstance(model, OpenedModel):
                model.close()


def _check(given: argparse.Namespace) -> None:
    """Raise ArgumentError where options do not go together."""
    if given.answers < 1:
        raise ArgumentError(
            "answers written at once", found=f"--answers {given.answers}", wanted="1 or more"
        )
    if given.api_key == "":
        raise ArgumentError("an empty key would let everybody in", found="--api-key ''")
    if given.api_key is None and given.host not in _LOOPBACK:
        raise ArgumentError(
            "everybody who reaches this address could ask", found=f"--host {given.host}",
            wanted="--api-key as well",
        )


def _bound(closing: contextlib.ExitStack, host: str, port: int) -> list[socket.socket]:
    """Return sockets at all addresses of a host, before a model is loaded for nothing.

    All have one port; `closing` closes them. Raises ArgumentError, OSError and UnicodeError.
    """
    if not 0 <= port <= _LAST_PORT:
        raise ArgumentError("there is no such port", found=port, wanted=f"0 to {_LAST_PORT}")
    made: list[socket.socket] = []
    missing: OSError | None = None
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in dict.fromkeys(found):
        try:
            one = closing.enter_context(socket.socket(family, kind, protocol))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((address[0], port, *address[2:]))
        except OSError as error:
            # Names lead to addresses of a protocol that a machine does not speak.
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
            missing = error
        else:
            made.append(one)
            port = one.getsockname()[1]
    if not made and missing is not None:
        raise missing
    return made


@contextlib.contextmanager
def _told_of(host: str, port: int) -> Iterator[None]:
    """Raise ArgumentError where an address cannot be had in a block."""
    try:
        yield
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no name of a machine"
        raise ArgumentError(
            "nothing can be served at this address", found=f"{_together(host, port)}: {why}",
            hint="--host and --port choose another",
        ) from error


def _together(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _serve(server: Any, places: list[socket.socket], name: str) -> int:
    """Serve at sockets until it is interrupted; return the command's exit status."""
    host, port = places[0].getsockname()[:2]
    logging.info(json.dumps({
        "time": round(time.time(), 3), "model": name, "address": f"http://{_together(host, port)}",
    }))
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=places)
    return 0 if server.started else 1
