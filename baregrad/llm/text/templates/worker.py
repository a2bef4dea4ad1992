"""The process in which a chat template runs.

It says when it is ready, reads one line of JSON with the template and its limits, and then a line
for each prompt; it answers each with a line. It may use so much memory and no files; time is its
parent's to watch, which ends it. The loops of a template are other people's, and a single step of
one can take for ever: only another process can be stopped in it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from baregrad.llm.text.templates.dialect import TemplateRefusal, dialect
from baregrad.llm.text.templates.marked import join, mark_all, spans_of


def main() -> None:
    """Answer requests from standard input until it ends."""
    # Ctrl-C stops an answer, not what makes prompts.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    # Nothing but answers goes where the parent listens.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    environment = dialect()
    template: Any = None
    characters = 0
    answer: dict[str, Any] = {"kind": "ready"}
    while True:
        print(json.dumps(answer), file=answers, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        request = json.loads(line)
        if "values" in request:
            answer = _render(template, request, characters)
            continue
        characters = request["characters"]
        _limit(request["memory"])
        try:
            template = environment.from_string(request["template"])
            answer = {"kind": "ready"}
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent is told
            answer = _failure(error)


def _limit(memory: int) -> None:
    """Give up the right to more memory, and to files and cores, where the system can do so."""
    try:
        import resource
    except ImportError:
        return
    for name, value in (("RLIMIT_AS", memory), ("RLIMIT_FSIZE", 0), ("RLIMIT_CORE", 0)):
        number = getattr(resource, name)
        _, hard = resource.getrlimit(number)
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        try:
            resource.setrlimit(number, (value, value))
        except (ValueError, OSError):
            # Some systems know a limit by name only; time and the answer's size still hold.
            continue


def _render(template: Any, request: Mapping[str, Any], characters: int) -> dict[str, Any]:
    """Return the prompt of one request as spans, or what went wrong."""
    try:
        values = {**mark_all(request["values"]), **request["trusted"]}
        parts = []
        length = 0
        for part in template.generate(**values):
            length += len(part)
            if length > characters:
                return {"kind": "size", "message": f"more than {characters} characters"}
            parts.append(part)
        return {"kind": "done", "spans": spans_of(join("", parts))}
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent is told
        return _failure(error)


def _failure(error: BaseException) -> dict[str, Any]:
    """Return what went wrong, in a kind that the parent knows."""
    import jinja2

    kinds: tuple[tuple[type[BaseException], str], ...] = (
        (TemplateRefusal, "refusal"),
        (jinja2.sandbox.SecurityError, "security"),
        (jinja2.TemplateSyntaxError, "syntax"),
        (MemoryError, "memory"),
        (RecursionError, "depth"),
    )
    kind = next((kind for cls, kind in kinds if isinstance(error, cls)), "failure")
    line = getattr(error, "lineno", None)
    where = f" (line {line})" if line else ""
    return {"kind": kind, "message": f"{type(error).__name__}: {str(error)[:500]}{where}"}
