"""Shared settings of the tests: the IR is verified, and nothing is written to the user's cache."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from typing import Any

import hypothesis
import pytest

from tests.packages import away

# Before anything reads the options: they are parsed once. A run may still choose its own.
_CACHE = tempfile.TemporaryDirectory(prefix="baregrad-tests-")
os.environ.setdefault("BAREGRAD_VERIFY", "1")
os.environ.setdefault("BAREGRAD_CACHE_DIR", _CACHE.name)
os.environ.setdefault("BAREGRAD_PROGRESS", "off")
# Programs that tests start share the package's byte code, and so do processes that run tests: it is
# compiled once and not a hundred times.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A run that a shell began in the background ignores Ctrl-C, and so would all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, so that the verdict on a change does not depend on luck; no
# deadline, since the machine may be busy. `--hypothesis-profile=explore` looks for new ones.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("steady")


@pytest.fixture(scope="session", autouse=True)
def _cache_folder() -> Iterator[None]:
    """Remove the folder of compiled kernels when the run ends."""
    yield
    _CACHE.cleanup()


@pytest.fixture(scope="session", autouse=True)
def _plans_are_made() -> Iterator[None]:
    """Keep no plans on disk: a test that changes how things are planned sees what it changed."""
    from baregrad.engine.kept import plans
    from baregrad.tensor.jit import kept

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "KEPT_FROM", sys.maxsize)
        patch.setattr(kept, "IS_KEPT", False)
        yield


@pytest.fixture(scope="module", autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """Fail where a file's tests leave a process that runs on, or that nobody has waited for."""
    yield
    if not hasattr(os, "waitid"):
        return
    with contextlib.suppress(ChildProcessError):
        for is_last in (False, True):
            left = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            assert not is_last, f"a process was left: {left or 'it runs on'}"
            # It may be garbage that holds it. That is looked for only here, as it takes long.
            gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let collections of garbage pass over the tests themselves and all that they import.

    These are a million objects, which live to the end. Going through them took a third of the time
    that collecting the tests takes, and a seventh of the time that they run. What tests leave, such
    as known plans, lives long as well: all of it is gone through a fifth as often as usual.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        young, middle, old = gc.get_threshold()
        gc.set_threshold(young, middle, 5 * old)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names that differ from process to process, with which tests cannot be shared out.

    Of a test that is marked `few(count)`, all cases but `count` are slow: those that are marked so,
    and of the others those whose names' digests come last, so that the choice is the same
    everywhere and favours no parameter.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"give the parameters of {item.nodeid} names (ids=...)")
        if item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for same in cases.values():
        (count,) = same[0].get_closest_marker("few").args  # type: ignore[union-attr]
        same.sort(key=lambda item: hashlib.blake2b(item.nodeid.encode()).digest())
        for item in same[count:]:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def earlier_objects_rest() -> None:
    """Let collections of garbage pass over what lay in memory before the file's tests.

    A worker that has run thousands of tests holds millions of objects, and going through them
    takes a second or more. They rest to the end: `unfreeze` would wake the tests as well.
    """
    gc.collect()
    gc.freeze()


# --- packages that are away -----------------------------------------------------------------------


def skipped(report: Any, path: str, line: int | None, reason: str) -> None:
    """Make a report of an error one of a test that was skipped."""
    report.outcome = "skipped"
    report.longrepr = (path, line, f"Skipped: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a file of tests that imports a package which is away."""
    report = yield
    info = getattr(getattr(report, "call", None), "excinfo", None)
    if report.failed and info is not None and (reason := away(info.value)):
        skipped(report, str(collector.path), None, reason)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test that needs a package which is away, as it or its fixtures find out."""
    report = yield
    if report.failed and call.excinfo is not None and (reason := away(call.excinfo.value)):
        skipped(report, *item.location[:2], reason)
    return report
