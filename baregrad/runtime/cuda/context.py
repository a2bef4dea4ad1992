"""One GPU opened through the driver: its primary context, a stream, and the waiting for it."""

from __future__ import annotations

import ctypes
import functools
import re
import time
from collections.abc import Callable
from types import MappingProxyType

from baregrad.base.errors import DriverError, UnsupportedDevice
from baregrad.runtime.cuda import abi
from baregrad.runtime.cuda.driver import Driver, Functions
from baregrad.runtime.cuda.progress import Names, Progress
from baregrad.runtime.teardown import Teardown

# What kernels did, by the error that the context gives from then on (enum cudaError_enum).
_FAULTS = MappingProxyType({
    214: "met an error in the GPU's memory that cannot be corrected",
    220: "met an error of NVLink that cannot be corrected",
    700: "read or wrote memory outside every buffer",
    702: "ran longer than the system's watchdog lets kernels run",
    710: "stopped at an assertion",
    714: "overran its call stack",
    715: "met an illegal instruction",
    716: "read or wrote at an address that is no multiple of the access's size",
    717: "used an address of a kind that an instruction does not take",
    718: "jumped to where there is no code",
    719: "failed: it trapped, or read or wrote shared memory that it does not have",
    721: "left tensor memory allocated",
})  # fmt: skip
_NAMES_SHOWN = 8
_PLACE = re.compile(r"[^\s(]+:\d+")
# Waiting spins first, since most work is short, and then sleeps a little longer each time.
_SPIN_NS = 200_000
_SPINS_A_QUERY = 32
_LEAST_SLEEP_S, _MOST_SLEEP_S = 20e-6, 1e-3
_GONE = "what lay on the device is gone: start the program again"


class Context:
    """The device's primary context, shared with whoever else uses it in this process.

    `timeout_s` is how long work may go on without progress, 0 for ever. After a fault, or a
    kernel that does not end, every further use raises DriverError that says why.
    """

    def __init__(self, name: str, ordinal: int, timeout_s: float, functions: Functions | None):
        self.name = name
        self.teardown = Teardown()
        self.driver = Driver(functions)
        self.timeout_s = timeout_s
        self.lost = ""
        self._hung = False
        self._popped = ctypes.byref(ctypes.c_void_p())
        with self.teardown:
            count = self.driver.device_count()
            if not 0 <= ordinal < count:
                raise UnsupportedDevice(
                    f"there is no GPU for {name}",
                    found=f"{count} GPUs" if count else "no GPU",
                    wanted=f"an ordinal from 0 to {count - 1}" if count else "a GPU",
                    hint="see nvidia-smi and CUDA_VISIBLE_DEVICES",
                )
            self.device = self.driver.device(ordinal)
            self.architecture = self.driver.architecture(self.device)
            self.clusters = bool(self.driver.attribute(self.device, abi.CLUSTER_LAUNCH))
            self.shared_nbytes = self.driver.attribute(
                self.device, abi.MAX_SHARED_PER_BLOCK_OPTIN
            )
            self.handle = self.driver.handle("cuDevicePrimaryCtxRetain", self.device)
            self._later("the context", "cuDevicePrimaryCtxRelease_v2", self.device)
            self.entered()
            try:
                self._open_stream()
            finally:
                self.left()

    def _open_stream(self) -> None:
        driver = self.driver
        self.stream = driver.handle("cuStreamCreate", abi.STREAM_NON_BLOCKING)
        self._later("the stream", "cuStreamDestroy_v2", self.stream)
        flags = abi.HOST_ALLOC_PORTABLE | abi.HOST_ALLOC_MAPPED
        place = driver.handle("cuMemHostAlloc", 64, flags)
        self._later("the progress word", "cuMemFreeHost", place)
        seen = driver.address("cuMemHostGetDevicePointer_v2", place, 0)
        self.progress = Progress(driver, self.stream, place, seen)
        driver.on_fault = self._lose

    def _later(self, what: str, name: str, *arguments: int) -> None:
        self.teardown.push(what, lambda: self.release(name, *arguments))

    def release(self, name: str, *arguments: int) -> None:
        """Give something back; a context that is lost lets go of it in its own way."""
        if self._hung:
            # Frees wait for the GPU. What it holds goes with the process.
            return
        functions = self.driver.functions
        inside = name != "cuDevicePrimaryCtxRelease_v2"
        if inside:
            push = functools.partial(functions["cuCtxPushCurrent_v2"], self.handle)
            # Asked twice, since what is not given back now stays with the driver.
            code = push() and push()
            if code and not self.lost:
                raise self.driver.error("cuCtxPushCurrent_v2", code)
        code = functions[name](*arguments)
        if inside:
            functions["cuCtxPopCurrent_v2"](self._popped)
        if code and not self.lost and code not in abi.STICKY_ERRORS:
            raise self.driver.error(name, code)

    # The calling thread's context.

    def entered(self) -> None:
        """Make the context the current one of this thread, above the one that is."""
        code = self.driver.functions["cuCtxPushCurrent_v2"](self.handle)
        if code:
            raise self.driver.error("cuCtxPushCurrent_v2", code)

    def left(self) -> None:
        """Make the context current that was before `entered`."""
        code = self.driver.functions["cuCtxPopCurrent_v2"](self._popped)
        if code and not self.lost:
            raise self.driver.error("cuCtxPopCurrent_v2", code)

    def check(self) -> None:
        """Raise DriverError if the device is lost."""
        if self.lost:
            raise DriverError(f"the device {self.name} is lost: {self.lost}", hint=_GONE)

    # Errors.

    def _lose(self, called: str, code: int) -> DriverError:
        suspects = self.progress.suspects()
        if self.lost:
            return DriverError(f"the device {self.name} is lost: {self.lost}", hint=_GONE)
        status, text = self.driver.status(code)
        did = _FAULTS.get(code, f"failed ({text})")
        self.lost = f"{who(suspects)} {did}"
        hint = _GONE
        if len(suspects) > 1:
            hint = f"BAREGRAD_CUDA_BLOCKING=1 waits after each kernel and says which; {_GONE}"
        return DriverError(
            self.lost, ioctl=called, status=f"{status} ({code})", code=code, hint=hint,
            at=_place(suspects),
        )  # fmt: skip

    # Waiting.

    def soon_idle(self) -> bool:
        """Whether all that was marked gets done in a moment; asks nothing of the driver."""
        progress = self.progress
        if not progress.offered:
            return False
        until = time.perf_counter_ns() + _SPIN_NS
        while True:
            for _ in range(_SPINS_A_QUERY):
                if progress.idle():
                    progress.clear()
                    return True
            if time.perf_counter_ns() > until:
                return False

    def synchronize(self) -> None:
        """Wait until the stream is idle; raise for a fault, and for work that does not get on."""
        query = self.driver.functions["cuStreamQuery"]
        self.wait_for(lambda: query(self.stream), "cuStreamQuery")
        self.progress.clear()

    def wait_for(self, ready: Callable[[], int], called: str, *, nap: bool = False) -> None:
        """Wait until a query of the driver says that something is done.

        With `nap`, sleeps from the start and never long, for one of several threads that wait.
        """
        begin = time.perf_counter_ns()
        deadline_ns = begin + int(self.timeout_s * 1e9)
        arrived = self.progress.arrived
        sleep_s = _LEAST_SLEEP_S
        while True:
            code = ready()
            if code == abi.SUCCESS:
                return
            if code != abi.NOT_READY:
                raise self.driver.error(called, code)
            now = time.perf_counter_ns()
            if not nap and now - begin < _SPIN_NS:
                continue
            if self.progress.arrived != arrived:
                arrived = self.progress.arrived
                deadline_ns = now + int(self.timeout_s * 1e9)
            if self.timeout_s and now > deadline_ns:
                raise self._give_up()
            time.sleep(sleep_s)
            if not nap:
                sleep_s = min(sleep_s * 1.5, _MOST_SLEEP_S)

    def _give_up(self) -> DriverError:
        self._hung = True
        suspects = self.progress.suspects()
        self.lost = f"{who(suspects)} does not end"
        return DriverError(
            self.lost,
            at=_place(suspects),
            found=f"no progress in {self.timeout_s:g} s",
            hint=f"BAREGRAD_GPU_TIMEOUT sets how long is waited (0 for ever); {_GONE}",
        )

    # The end.

    def close(self) -> None:
        """Release all; a kernel that does not end is left to the end of the process."""
        self.teardown.close()

    def abandon(self) -> None:
        """Forget all without a call: in a forked process nothing of the parent's CUDA works."""
        self.lost = "CUDA does not survive a fork"
        self.progress.offered = False
        self.progress.clear()


def _place(names: Names) -> str | None:
    """Return the user's file and line, where one kernel is meant and its label has them."""
    found = _PLACE.search(names[0][1]) if len(names) == 1 else None
    return found.group() if found else None


def who(names: Names) -> str:
    """Return how a message names kernels; with the label where that says more than the name."""
    if not names:
        return "a kernel that nobody waited for"
    said = [f"{name!r} ({label})" if label not in (name, "") else repr(name)
            for name, label in names[:_NAMES_SHOWN]]
    if len(names) == 1:
        return f"the kernel {said[0]}"
    more = ", ..." if len(names) > _NAMES_SHOWN else ""
    return f"one of {len(names)} kernels ({', '.join(said)}{more})"
