"""libcuda loaded late, and its answers turned into errors of our tree."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from baregrad.base.errors import BaregradError, CompileError, DriverError, OutOfMemory
from baregrad.runtime.cuda import abi

Functions: TypeAlias = Mapping[str, Callable[..., int]]

LIBRARY = "libcuda.so.1"
_NO_GPU = "is a GPU visible to this process? see nvidia-smi and CUDA_VISIBLE_DEVICES"
_HINTS = MappingProxyType({
    1: "this may be a bug in baregrad",
    abi.OUT_OF_MEMORY: "use smaller batches, or free tensors that are not needed",
    3: "was the process forked after CUDA was used? start workers by 'spawn'",
    abi.DEINITIALIZED: "the driver is shutting down with the process",
    abi.STUB_LIBRARY: "the toolkit's stub was loaded: take its folder `stubs` off LD_LIBRARY_PATH",
    36: "update NVIDIA's driver",
    46: "another process may hold the GPU in exclusive mode: see nvidia-smi -q -d COMPUTE",
    abi.NO_DEVICE: _NO_GPU,
    101: _NO_GPU,
    abi.INVALID_IMAGE: "the file is damaged, or made by a toolkit newer than the driver",
    abi.NO_BINARY_FOR_GPU: "the kernel was assembled for another architecture",
    abi.UNSUPPORTED_PTX_VERSION: "update the driver, or use a toolkit as old as it is",
    304: "look at the kernel's log (dmesg)",
    701: "the kernel needs more registers or shared memory than a block may have",
    802: "the fabric manager of the machine's NVSwitches may not be running yet",
    abi.SYSTEM_DRIVER_MISMATCH: "libcuda and the kernel's driver are of different releases: "
    "restart the machine after an update",
    804: "this GPU takes no forward-compatible libcuda: use that of its driver",
    abi.UNKNOWN: "look at the kernel's log (dmesg) for a line with Xid or nvidia-uvm",
})  # fmt: skip


def load_functions(library: str = LIBRARY) -> Functions:
    """Load libcuda and return its functions by name, typed as in `abi.FUNCTIONS`.

    Raises DriverError where there is no driver, or one that lacks a function.
    """
    try:
        loaded = ctypes.CDLL(library)
    except OSError as error:
        raise DriverError(
            "the CUDA driver was not found",
            found=str(error),
            wanted=library,
            hint="install NVIDIA's driver; in a container, give it the GPU (--gpus all)",
        ) from error
    functions: dict[str, Callable[..., int]] = {}
    for name, arguments in abi.FUNCTIONS.items():
        try:
            function = getattr(loaded, name)
        except AttributeError as error:
            raise outdated(_version_of(loaded), f"it has no {name}") from error
        function.restype = ctypes.c_int
        function.argtypes = arguments
        functions[name] = function
    return functions


def outdated(version: int, found: str = "") -> DriverError:
    """Return the error for a driver that is older than what we call."""
    text = f"CUDA {version_text(version)}" if version else "an unknown version"
    return DriverError(
        "the CUDA driver is too old",
        found=f"{text} ({found})" if found else text,
        wanted=f"CUDA {version_text(abi.OLDEST_VERSION)} or newer",
        hint="update NVIDIA's driver to release 525 or newer",
    )


def version_text(version: int) -> str:
    """Return 12.4 for 12040."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _version_of(library: ctypes.CDLL) -> int:
    version = ctypes.c_int()
    try:
        failed = library.cuDriverGetVersion(ctypes.byref(version))
    except AttributeError:
        return 0
    return 0 if failed else version.value


class Driver:
    """The driver's functions, each answer checked. `functions` stand in for libcuda in tests."""

    def __init__(self, functions: Functions | None = None) -> None:
        self.functions = load_functions() if functions is None else functions
        # Receives answers after which nothing works any more; returns the error to raise.
        self.on_fault: Callable[[str, int], BaregradError] | None = None
        # The version can be asked for before anything is initialised.
        self.version = self.integer("cuDriverGetVersion")
        if self.version < abi.OLDEST_VERSION:
            raise outdated(self.version)
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function; raise what its answer means."""
        code = self.functions[name](*arguments)
        if code:
            raise self.error(name, code)

    def handle(self, name: str, *arguments: object) -> int:
        """Call a function whose first argument is where it puts a handle, and return that."""
        found = ctypes.c_void_p()
        self.call(name, ctypes.byref(found), *arguments)
        return found.value or 0

    def integer(self, name: str, *arguments: object) -> int:
        """Call a function whose first argument is where it puts a C int, and return that."""
        found = ctypes.c_int()
        self.call(name, ctypes.byref(found), *arguments)
        return found.value

    def address(self, name: str, *arguments: object) -> int:
        """Call a function whose first argument is where it puts an address, and return that."""
        found = ctypes.c_uint64()
        self.call(name, ctypes.byref(found), *arguments)
        return found.value

    def error(self, name: str, code: int, about: str = "") -> BaregradError:
        """Return the error of our tree for an answer of a function; `about` says of what."""
        called = name.partition("_")[0]
        if code in abi.STICKY_ERRORS and self.on_fault is not None:
            return self.on_fault(called, code)
        status, text = self.status(code)
        hint = _HINTS.get(code)
        start = f"{about}: " if about else ""
        if code == abi.OUT_OF_MEMORY:
            found = f"{status} of {called}"
            return OutOfMemory(f"{start}the GPU has no memory left", found=found, hint=hint)
        if code in abi.IMAGE_ERRORS:
            message = f"{start}the CUDA driver refused the code ({text})"
            return CompileError(message, found=f"{status} of {called}", hint=hint)
        return DriverError(
            f"{start}the CUDA driver said no ({text})",
            ioctl=called, status=f"{status} ({code})", code=code, hint=hint,
        )  # fmt: skip

    def status(self, code: int) -> tuple[str, str]:
        """Return the name of an answer and the driver's words for it."""
        texts = []
        for name in ("cuGetErrorName", "cuGetErrorString"):
            text = ctypes.c_char_p()
            failed = self.functions[name](code, ctypes.byref(text))
            known = not failed and text.value is not None
            texts.append((text.value or b"").decode(errors="replace") if known else "")
        return texts[0] or f"CUresult {code}", texts[1] or "no text"

    # Devices, before any context.

    def device_count(self) -> int:
        """Return how many GPUs this process may use."""
        return self.integer("cuDeviceGetCount")

    def device(self, ordinal: int) -> int:
        """Return the driver's number of a GPU."""
        return self.integer("cuDeviceGet", ordinal)

    def device_name(self, device: int) -> str:
        """Return what the vendor calls a GPU."""
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", ctypes.addressof(text), len(text), device)
        return text.value.decode(errors="replace")

    def attribute(self, device: int, number: int) -> int:
        """Return an attribute of a GPU (enum CUdevice_attribute)."""
        return self.integer("cuDeviceGetAttribute", number, device)

    def total_nbytes(self, device: int) -> int:
        """Return the size of a GPU's memory."""
        found = ctypes.c_size_t()
        self.call("cuDeviceTotalMem_v2", ctypes.byref(found), device)
        return found.value

    def architecture(self, device: int) -> str:
        """Return what kernels for a GPU are assembled for, such as sm_90a.

        The suffix stands for instructions of that chip alone, which compute capabilities 9.0 and
        10.x have beside the ones that newer chips keep.
        """
        major = self.attribute(device, abi.COMPUTE_CAPABILITY_MAJOR)
        minor = self.attribute(device, abi.COMPUTE_CAPABILITY_MINOR)
        suffix = "a" if major in (9, 10) else ""
        return f"sm_{major}{minor}{suffix}"
