"""`baregrad serve` with a small model: it answers on loopback until it is interrupted."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import baregrad.llm.serve
from baregrad.base.errors import ArgumentError
from baregrad.llm.commands import serve
from tests.llm.commands.small_model import write_model

for name in ("tokenizers", "starlette", "uvicorn"):
    pytest.importorskip(name, reason="the server needs tokenizers, starlette and uvicorn")
LIMIT_S = 120


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server's process and its address."""
    file = write_model(tmp_path / "small.gguf")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "baregrad", "serve", str(file), "--port", str(port),
         "--api-key", "secret", "--context", "128", "--answers", "2"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + LIMIT_S
        while True:
            try:
                urllib.request.urlopen(f"{address}/health").close()
                break
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None, process.communicate()[1]
                assert time.monotonic() < end
                time.sleep(0.05)
        yield process, address
    finally:
        process.kill()
        process.communicate()


def ask(address: str, key: str) -> Any:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "seed": 1}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(body).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        return json.load(answer)


def test_it_answers_until_it_is_interrupted(
    server: tuple[subprocess.Popen[str], str]
) -> None:
    process, address = server
    first, second = ask(address, "secret"), ask(address, "secret")
    assert first["choices"] == second["choices"]
    assert first["usage"]["completion_tokens"] <= 3
    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask(address, "wrong")
    # One request never comes to its end: who interrupts twice does not wait for it.
    host, _, port = address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), LIMIT_S) as open_one:
        open_one.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
                         b"Content-Length: 9\r\n\r\n{")  # fmt: skip
        process.send_signal(signal.SIGINT)
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            for _ in range(LIMIT_S * 20):
                urllib.request.urlopen(f"{address}/health").close()
                time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT_S)
    assert f'"address": "{address}"' in said
    assert "Traceback" not in said
    assert process.returncode in (0, 130)


def test_an_address_that_cannot_be_had_is_told_before_a_model_is_read() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with pytest.raises(ArgumentError, match=f"127.0.0.1:{port}: Address already in use"):
            serve.main(["no.gguf", "--port", port])
    for words, told in (
        (["--port", "65536"], "no such port: found 65536"),
        (["--host", "a..b", "--api-key", "k"], "a..b:8080: no name of a machine"),
        (["--answers", "0", "--guesses", "3"], "found --answers 0"),
        (["--host", "0.0.0.0", "--api-key", ""], "an empty key would let everybody in"),
    ):
        with pytest.raises(ArgumentError, match=told):
            serve.main(["no.gguf", *words])


def test_an_address_that_is_taken_while_the_model_is_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only who listens has an address to himself."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        port = str(other.getsockname()[1])
        real = baregrad.llm.serve.application

        def application(*given: Any) -> Any:
            other.listen()
            return real(*given)

        monkeypatch.setattr(serve, "application", application)
        with pytest.raises(ArgumentError, match=f"127.0.0.1:{port}: Address already in use"):
            serve.main([str(write_model(tmp_path / "m.gguf")), "--port", port, "--context", "64"])


def test_a_name_is_served_at_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    rows = [(*kind, (f"127.0.0.{last}", 0)) for last in (1, 2)]
    strange = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [strange, *rows, rows[0]])
    with contextlib.ExitStack() as closing:
        (host, port), second = (
            one.getsockname() for one in serve._bound(closing, "localhost", 0)
        )
        assert (host, second) == ("127.0.0.1", ("127.0.0.2", port))
