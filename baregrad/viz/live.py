"""What `VIZ` asks for: a process that really runs is recorded, profiled, and shown at its end."""

from __future__ import annotations

import atexit
import json
import os
import sys
from pathlib import Path
from typing import Any

from baregrad.base.errors import OptionError
from baregrad.base.options import options
from baregrad.engine.backends import CompiledBackend
from baregrad.engine.rates import measure_rates
from baregrad.engine.session import Session
from baregrad.profiling import Profile
from baregrad.profiling.events import events_of
from baregrad.runtime.cpu.device import CpuDevice
from baregrad.viz.command import check_place, show
from baregrad.viz.documents import RecordedDocuments
from baregrad.viz.filed import save
from baregrad.viz.recording import Recording
from baregrad.viz.timeline import timeline_document

_SHOW = "1"


class LiveDocuments(RecordedDocuments):
    """The documents of a recording of a real run, and of its profile."""

    def __init__(self, recording: Recording, timeline: Any) -> None:
        super().__init__(recording)
        self._timeline = timeline

    def names(self) -> list[str]:
        """Every document there is."""
        return [*super().names(), "timeline"]

    def _make(self, name: str) -> Any:
        if name == "timeline":
            return self._timeline
        made = super()._make(name)
        if name == "summary":
            made["views"] += ["timeline", "memory"]
        return made


class LiveRecording:
    """Records what the thread that began it computes on the default device, and profiles all.

    Raises OptionError where nothing is compiled for the default device.
    """

    def __init__(self, session: Session) -> None:
        backend = session.backend(session.default_device())
        if not isinstance(backend, CompiledBackend):
            raise OptionError(
                "there is nothing to show of a device that is not compiled for",
                found=f"the default device {backend.name}", wanted="CPU, NV or CUDA",
            )
        self._backend = backend
        self._recording = Recording(Path(sys.argv[0]).name or "python", backend)
        if isinstance(backend.device, CpuDevice):
            self._recording.rates = measure_rates(backend.device, backend.compiler)
        self._profile = Profile(lines=False)
        self._profile.__enter__()
        session.watching.observers.append(lambda run: self._note(run, session))

    def _note(self, run: Any, session: Session) -> None:
        if run.backend is self._backend:
            self._recording.note(run, session)

    def documents(self) -> LiveDocuments | None:
        """End it; return what there is to show, None where nothing was computed."""
        self._profile.__exit__(None, None, None)
        if not self._recording.computations:
            return None
        return LiveDocuments(self._recording, timeline_document([events_of(self._profile._seen)]))


class _OfProcess:
    """The recording that `VIZ` asks for: from the first device on to the process's end."""

    def __init__(self) -> None:
        self._live: LiveRecording | None = None
        self._pid = 0

    def begin(self, session: Session) -> None:
        if self._pid:
            # Of another session, or what a fork inherited.
            return
        self._pid = os.getpid()
        if options.viz != _SHOW:
            check_place(Path(options.viz))
        # A page for each process that this one starts would have this one wait for ever.
        options.withhold("viz")
        self._live = LiveRecording(session)
        atexit.register(self.end, options.viz)

    def end(self, wanted: str) -> None:
        if self._live is None or os.getpid() != self._pid:
            return
        documents = self._live.documents()
        if documents is None:
            print("viz: nothing was computed on the default device", file=sys.stderr)
        elif wanted == _SHOW:
            show(documents, json.loads(documents.get("summary") or b"{}")["title"])
        else:
            save(documents, Path(wanted))
            print(f"written to {wanted}: `baregrad viz {wanted}` shows it", file=sys.stderr)


_of_process = _OfProcess()


def begin_for_process(session: Session) -> None:
    """Record this process until it ends, for the option `viz`."""
    _of_process.begin(session)
