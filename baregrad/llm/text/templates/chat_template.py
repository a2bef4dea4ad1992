"""Prompts from messages by a model's own template, within limits."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baregrad.base.errors import ArgumentError, BaregradError, FileFormatError, MissingDependency
from baregrad.llm.text.templates.messages import WRITINGS, messages_for

# A process that only imports: slow machines need some of it.
_START_SECONDS = 60.0
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from baregrad.llm.text.templates.worker import main; main()"
)


class _ProcessEnded(FileFormatError):
    """The process is no more: killed from outside, or by what it was asked to do."""


@dataclass(frozen=True)
class TemplateLimits:
    """What a template may use: seconds for a prompt, characters of it, bytes of memory."""

    seconds: float = 5.0
    characters: int = 16_000_000
    memory_nbytes: int = 768 * 2**20


class ChatTemplate:
    """A chat template, run in a process of its own.

    The process starts with `prepare` or the first prompt and ends with `close` (or with the object,
    or with ours). It is ended where a template takes longer than `limits` allow; the next prompt
    starts another. Where it is killed, a prompt that it was asked for is made by another; twice in
    a row is the template's own doing. Threads may share a template.
    """

    def __init__(
        self, text: str, bos: str = "", eos: str = "", *, limits: TemplateLimits | None = None
    ) -> None:
        self.text = text
        self.limits = limits or TemplateLimits()
        self._trusted = {"bos_token": bos, "eos_token": eos}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._finalizer: weakref.finalize[[subprocess.Popen[bytes]], Any] | None = None

    def render(
        self, messages: Sequence[Mapping[str, Any]], *,
        tools: Sequence[Mapping[str, Any]] | None = None, add_generation_prompt: bool = True,
        **more: Any,
    ) -> str:
        """Return the prompt of some messages, as one text; see `render_spans`."""
        spans = self.render_spans(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, **more
        )
        return "".join(text for text, _ in spans)

    def render_spans(
        self, messages: Sequence[Mapping[str, Any]], *,
        tools: Sequence[Mapping[str, Any]] | None = None, add_generation_prompt: bool = True,
        **more: Any,
    ) -> list[tuple[str, bool]]:
        """Return the prompt of some messages as (text, whether the template wrote it), in order.

        Messages are those of the OpenAI API, with arguments of calls as JSON text or as mappings.
        `more` are values that the template may ask for.

        Raises ArgumentError for messages that are malformed or that the template refuses, with
        what it says, and FileFormatError for a template that is broken, breaks out of its sandbox,
        or takes more time, memory or room than the limits.
        """
        # A template may ask whether it is defined, or whether it is none.
        values: dict[str, Any] = {
            **more, "add_generation_prompt": add_generation_prompt,
            "tools": list(tools) if tools else None,
        }
        first: dict[str, Any] | None = None
        tried: list[list[dict[str, Any]]] = []
        for writing in WRITINGS:
            written = messages_for(self.text, messages, writing)
            if written in tried:
                continue
            tried.append(written)
            answer = self._rendered({**values, "messages": written})
            if answer["kind"] == "done":
                return [(text, is_template) for text, is_template in answer["spans"]]
            first = first or answer
            if answer["kind"] != "failure":
                break
        assert first is not None
        raise _error(first)

    def _rendered(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the process answers to some values."""
        try:
            request = json.dumps({"values": values, "trusted": self._trusted})
        except (TypeError, ValueError, RecursionError) as error:
            raise ArgumentError(f"the messages are no JSON: {error}") from error
        with self._lock:
            try:
                return self._ask(request)
            except _ProcessEnded:
                return self._ask(request)

    def prepare(self) -> None:
        """Start the process and do not wait for it, so that the first prompt need not."""
        with self._lock:
            if self._process is None:
                self._spawn()

    def close(self) -> None:
        """End the process; a later prompt starts it again."""
        with self._lock:
            self._end()

    def _ask(self, request: str) -> dict[str, Any]:
        """Return the process's answer to a line; the process is ended where none comes."""
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._spawn()
        try:
            if not self._is_ready:
                self._hand_over()
            return self._exchange(request, self.limits.seconds)
        except BaseException:
            self._end()
            raise

    def _spawn(self) -> None:
        """Start the process."""
        _need_jinja()
        process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        self._process = process
        self._is_ready = False
        self._finalizer = weakref.finalize(self, _end_process, process)

    def _hand_over(self) -> None:
        """Give the process its template; raises what is wrong with it."""
        setup = json.dumps({
            "template": self.text, "memory": self.limits.memory_nbytes,
            "characters": self.limits.characters,
        })
        self._exchange("", _START_SECONDS)
        answer = self._exchange(setup, self.limits.seconds)
        if answer["kind"] != "ready":
            raise _error(answer)
        self._is_ready = True

    def _exchange(self, line: str, seconds: float) -> dict[str, Any]:
        """Send a line, or nothing, and wait so long for a line."""
        assert self._process is not None and self._process.stdin and self._process.stdout
        deadline = time.monotonic() + seconds
        data = memoryview(line.encode("ascii") + b"\n" if line else b"")
        into, out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(into, False)
        received = bytearray()
        while not received.endswith(b"\n"):
            left = deadline - time.monotonic()
            readable, writable, _ = select.select([out], [into] if data else [], [], max(left, 0))
            if left <= 0 and not readable:
                raise FileFormatError(
                    "the chat template takes too long", wanted=f"a prompt in {seconds:g} s"
                )
            try:
                if writable:
                    data = data[os.write(into, data) :]
                piece = os.read(out, 1 << 20) if readable else b""
            except BrokenPipeError:
                readable, piece = [out], b""
            if readable and not piece:
                raise _ProcessEnded("the chat template ended its process")
            received += piece
        answer: dict[str, Any] = json.loads(received)
        return answer

    def _end(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._finalizer = None


def _need_jinja() -> None:
    """Raise MissingDependency here, where it is read, and not in the process."""
    if importlib.util.find_spec("jinja2") is None:
        raise MissingDependency(package="jinja2", extra="llm")


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """End a process and wait until it is gone."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _error(answer: Mapping[str, Any]) -> BaregradError:
    """Return the error that a failed answer tells of."""
    kind, message = answer["kind"], answer["message"]
    if kind == "refusal":
        return ArgumentError(f"the chat template refuses: {message.partition(': ')[2]}")
    words = {
        "security": "the chat template tries to leave its sandbox",
        "syntax": "the chat template is broken",
        "memory": "the chat template takes too much memory",
        "depth": "the chat template calls itself without end",
        "size": "the chat template writes too much",
    }
    if kind in words:
        return FileFormatError(f"{words[kind]}: {message}")
    return ArgumentError(f"the chat template fails on these messages: {message}")
