"""The loop of a worker process: questions on its standard input, answers on its standard output.

Whatever it cannot do is an answer too (`error`); crashes and endless loops are for its parent to
notice.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from baregrad.base.errors import DriverError
from baregrad.base.options import options
from baregrad.engine.workers.wire import receive, send

# What answers a question: its header and blobs.
Answering = Callable[[dict[str, Any], list[bytes]], tuple[dict[str, Any], list[bytes]]]

_DEATH_SIGNAL = 1


def serve(changes: dict[str, Any], make: Callable[[], Answering]) -> None:
    """Answer questions until there are none.

    changes: options to override. make: gives what answers, once those hold.
    """
    # Only the program that we work for handles an interrupt; it ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    questions = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    # What libraries print must not come between answers.
    os.dup2(2, 1)
    with options.override(**{**changes, "cache_dir": Path(changes["cache_dir"])}):
        answering = make()
        while (message := receive(questions)) is not None:
            header, blobs = message
            try:
                answer, out = answering(header, blobs)
            except DriverError as error:
                # What else the device holds may be lost or changed: the next process begins anew.
                answer, out = {"error": f"{type(error).__name__}: {error}", "faulted": True}, []
            except Exception as error:  # noqa: BLE001 - the answer says what it was
                answer, out = {"error": f"{type(error).__name__}: {error}"}, []
            send(answers, answer, out)


def _die_with_parent() -> None:
    """A worker in an endless loop must not outlive the program that it works for."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
