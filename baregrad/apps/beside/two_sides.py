"""One row's work on both sides: made ready, compared, and timed by turns."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from baregrad.apps.bench_measure import Array, error_of
from baregrad.apps.beside.sides import Side, SideFailed

TURNS = 2
PEER_LIMIT_S = 90.0
# A result is not wrong that is as far from the exact one as so many times PyTorch's.
AS_WRONG = 2.0
# How often PyTorch's results are made with more roundings, whose largest error counts.
ROUNDINGS = 4


@dataclass(frozen=True, slots=True)
class RowTask:
    """What a worker is asked to prepare, and how it is judged.

    `tolerance`: of the largest difference by the largest magnitude. `limit_s`: seconds for our
    side, once to prepare and once to time; `peer_limit_s`: likewise for PyTorch's. `copied`:
    numbers whose copy is timed beside, or 0. `turns`: how often each side is timed.
    `is_brief`: time one run, to see that it works. `pause_s`: seconds of rest between timed blocks.
    """

    name: str
    question: Mapping[str, Any]
    tolerance: float
    _: KW_ONLY
    limit_s: float = 20.0
    peer_limit_s: float = PEER_LIMIT_S
    copied: int = 0
    turns: int = TURNS
    is_brief: bool = False
    pause_s: float = 0.0


class TwoSides:
    """Our side and PyTorch's on one device; a context manager that ends both.

    `peer_device` is "cuda" or "cpu"; 0 threads are as many as there are cores.
    """

    def __init__(self, device: str, peer_device: str, threads: int = 0) -> None:
        self.ours = Side("ours", device, threads)
        self.peer = Side("torch", peer_device, threads)
        self._folder = Path(tempfile.mkdtemp(prefix="baregrad-bench-"))

    def __enter__(self) -> TwoSides:
        self.ours.start()
        self.peer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.ours.close()
            self.peer.close()
        else:
            self.ours.end()
            self.peer.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, task: RowTask) -> dict[str, Any]:
        """Return what was found: times in seconds, errors, or `failed` and `peer_failed`."""
        record: dict[str, Any] = {"name": task.name, "wrong": False}
        answers = self._prepare(task, record)
        if "ours" in answers:
            record |= answers["ours"]["facts"]
            record |= {key: answers["ours"][key] for key in ("inputs_s", "compile_s")}
            if "torch" in answers:
                # PyTorch's case may know what ours does not say.
                record |= {key: one for key, one in answers["torch"]["facts"].items() if one}
            record |= self._compare(task, answers.get("torch"))
        self._time(task, answers, record)
        return record

    def folder_of(self, side: str) -> Path:
        """Return an empty folder for the results of a side."""
        folder = self._folder / side
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def _prepare(self, task: RowTask, record: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Make both sides ready at once; say of a side that fails why."""
        answers: dict[str, dict[str, Any]] = {}
        asked = []
        for side, limit_s, key in (
            (self.ours, task.limit_s, "failed"), (self.peer, task.peer_limit_s, "peer_failed"),
        ):
            folder = self.folder_of(side.name)
            try:
                side.tell(what="prepare", folder=str(folder), **task.question)
            except SideFailed as error:
                record[key] = str(error)
            else:
                asked.append((side, limit_s, key))
        for side, limit_s, key in asked:
            try:
                answers[side.name] = side.answer(limit_s)
            except SideFailed as error:
                record[key] = str(error)
        return answers

    def _compare(self, task: RowTask, answer: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return our error and PyTorch's, by the exact results or else by PyTorch's.

        Where ours is too far from the exact results, the work may be such that roundings are
        magnified. What they do to PyTorch's own ops is asked then, and is allowed as its error is.
        """
        if answer is None:
            return {}
        ours, theirs = self._arrays("ours", "outputs"), self._arrays("torch", "outputs")
        exact = self._arrays("torch", "exact")
        if not exact:
            error = _error(ours, theirs)
            return {"error": error, "wrong": not error <= task.tolerance}
        found = _judged(task.tolerance, ours, exact, [theirs])
        if found["wrong"] and answer["is_rounded"]:
            try:
                rounded = self._rounded(task)
            except SideFailed as error:
                return found | {"peer_failed": f"its roundings: {error}"}
            found = _judged(task.tolerance, ours, exact, [theirs, *rounded])
        return found

    def _rounded(self, task: RowTask) -> list[list[Array]]:
        """Return PyTorch's results with more roundings, some times; raises SideFailed."""
        self.peer.ask(
            task.peer_limit_s, what="rounded", count=ROUNDINGS,
            folder=str(self._folder / self.peer.name),
        )
        return [self._arrays("torch", f"rounded{number}-") for number in range(ROUNDINGS)]

    def _arrays(self, side: str, name: str) -> list[Array]:
        paths = sorted(
            (self._folder / side).glob(f"{name}*.npy"),
            key=lambda path: int(path.stem.removeprefix(name)),
        )
        return [np.load(path) for path in paths]

    def _time(
        self, task: RowTask, answers: Mapping[str, Any], record: dict[str, Any]
    ) -> None:
        """Time both by turns, and a copy beside them where one is asked for.

        PyTorch comes first: its driver asks an idle GPU for its full clocks, which rise over
        seconds otherwise, and ours is timed while they last.
        """
        times: dict[str, list[float]] = {}
        rates = []
        sides = [
            (side, key) for side, key in ((self.peer, "peer_failed"), (self.ours, "failed"))
            if side.name in answers
        ]
        for _ in range(1 if task.is_brief else task.turns):
            for side, key in sides:
                if key in record:
                    continue
                limit_s = task.limit_s if side is self.ours else task.peer_limit_s
                try:
                    found = side.ask(
                        limit_s, what="time", brief=task.is_brief, pause_s=task.pause_s
                    )["times_s"]
                    times.setdefault(side.name, []).extend(found)
                    if side is self.peer and task.copied:
                        asked = side.ask(PEER_LIMIT_S, what="copy", count=task.copied)
                        rates.append(asked["bytes_per_s"])
                except SideFailed as error:
                    record[key] = str(error)
        for name, found in times.items():
            record[f"{name}_s"] = statistics.median(found)
            record[f"{name}_spread_s"] = [min(found), max(found)]
        if rates:
            record["copy_bytes_per_s"] = statistics.median(rates)


def _judged(
    tolerance: float, ours: list[Array], exact: list[Array], others: Sequence[list[Array]]
) -> dict[str, Any]:
    """Return errors by exact results: ours, PyTorch's, and that of its roundings if there are any.

    They are those of the worst array. Each is judged by itself: a gradient that cancels away
    excuses no loss. others: PyTorch's results, then those with more roundings.
    """
    if any(len(one) != len(exact) for one in (ours, *others)):
        return {"error": float("inf"), "wrong": True}
    arrays = zip(exact, ours, *others, strict=True)
    judged = [_judged_one(tolerance, _errors(*found)) for found in arrays]
    nothing = _judged_one(tolerance, [0.0] * (1 + len(others)))
    return max(judged, key=lambda one: (one["wrong"], one["error"]), default=nothing)


def _judged_one(tolerance: float, errors: Sequence[float]) -> dict[str, Any]:
    """Return errors of one array, ours first, and whether ours is beyond what is allowed."""
    error, peer_error, *of_roundings = errors
    judged = {"error": error, "peer_error": peer_error}
    if of_roundings:
        judged["rounding_error"] = max(of_roundings)
    bound = max(tolerance, *(AS_WRONG * one for one in errors[1:] if np.isfinite(one)))
    return judged | {"wrong": not error <= bound}


def _errors(exact: Array, ours: Array, *others: Array) -> list[float]:
    """Return the error of ours, inf for what should be a number, and of others' numbers.

    Infinities are as far as the least number that is rounded to them. Nothing is compared where
    ours and another found the same infinity, or no number: what comes after an infinity is either.
    """
    if any(one.shape != exact.shape for one in (ours, *others)):
        return [float("inf"), *[0.0] * len(others)]
    agreed = np.zeros(exact.shape, np.bool_)
    for one in others:
        agreed |= ~np.isfinite(ours) & ((one == ours) | (np.isnan(one) & np.isnan(ours)))
    exact, found = (np.where(agreed, 0, _clipped(one, ours.dtype)) for one in (exact, ours))
    # Others' infinities elsewhere tell nothing of ours.
    return [error_of(found, exact), *(
        error_of(np.where(np.isfinite(one) & ~agreed, one, exact), exact) for one in others
    )]


def _clipped(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return numbers as float64, with an end where those of a dtype of floats are infinite."""
    if dtype.kind != "f":
        return array
    limits = np.finfo(dtype)
    end = float(limits.max) * (1 + float(limits.eps) / 4)
    return np.clip(array.astype(np.float64), -end, end)


def _error(found: list[Array], exact: list[Array]) -> float:
    """Return the largest error over all results; inf where there are not as many."""
    if len(found) != len(exact):
        return float("inf")
    return max(error_of(one, other) for one, other in zip(found, exact, strict=True))
