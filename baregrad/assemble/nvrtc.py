"""CUDA C text to a cubin or to PTX, through NVRTC, the vendor's compiler as a library.

It is loaded into the process when it is first used, and only then; it needs no driver and no GPU.
The functions and their meanings are those of the vendor's `nvrtc.h` (CUDA 12 and 13).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from baregrad.assemble.cache import DiskCache
from baregrad.assemble.cached import CachedAssembler
from baregrad.assemble.cuda_toolkit import find_library
from baregrad.base.errors import CompileError, MissingDependency

DEFAULT_FLAGS = ("--fmad=false", "--std=c++17")
PACKAGE = "nvidia-cuda-nvrtc"
_FUNCTIONS = (
    "nvrtcVersion", "nvrtcGetErrorString", "nvrtcCreateProgram", "nvrtcDestroyProgram",
    "nvrtcCompileProgram", "nvrtcGetProgramLogSize", "nvrtcGetProgramLog", "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN", "nvrtcGetPTXSize", "nvrtcGetPTX",
)  # fmt: skip


class CudaAssembler(CachedAssembler):
    """Turns CUDA C text into cubins for one architecture, such as "sm_90a".

    `cache` may be None; `library` is an NVRTC to use instead of the first one found. Kernels keep
    their names with `extern "C"`. Raises MissingDependency, when first used, where there is none.
    """

    form = "cuda-cubin-1"

    def __init__(
        self,
        architecture: str,
        cache: DiskCache | None = None,
        library: str = "",
        flags: tuple[str, ...] = DEFAULT_FLAGS,
    ) -> None:
        self.architecture = architecture
        super().__init__(cache)
        self.flags = flags
        self._path = library
        self._loaded: ctypes.CDLL | None = None

    @property
    def version(self) -> str:
        """Everything but the text that decides what comes out, for cache keys.

        Two numbers name a release of NVRTC; the library's size distinguishes its patches.
        """
        library = self._library()
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
        size = Path(self._path).stat().st_size
        release = f"nvrtc {major.value}.{minor.value} of {size} bytes"
        return "\n".join((release, self.architecture, *self.flags))

    def to_ptx(self, text: str) -> str:
        """Return the PTX of a text, for the virtual architecture of the same number."""
        with self._compiled(text, self.architecture.replace("sm_", "compute_")) as program:
            return self._fetch(program, "nvrtcGetPTX").rstrip(b"\0").decode()

    def disassemble(self, text: str) -> str:
        """Return the PTX of a text."""
        return self.to_ptx(text)

    def _build(self, text: str) -> bytes:
        with self._compiled(text, self.architecture) as program:
            return self._fetch(program, "nvrtcGetCUBIN")

    @contextmanager
    def _compiled(self, text: str, architecture: str) -> Iterator[ctypes.c_void_p]:
        """Yield a program that was compiled, and destroy it."""
        library = self._library()
        program = ctypes.c_void_p()
        made = library.nvrtcCreateProgram(
            ctypes.byref(program), ctypes.c_char_p(text.encode()), None, 0, None, None
        )
        self._check(made, "nvrtcCreateProgram", text)
        try:
            flags = (f"--gpu-architecture={architecture}", *self.flags)
            encoded = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
            status = library.nvrtcCompileProgram(program, len(flags), encoded)
            if status:
                log = self._fetch(program, "nvrtcGetProgramLog").rstrip(b"\0")
                raise CompileError(
                    f"NVRTC refused a kernel ({self._status_name(status)})",
                    source=text,
                    log=log.decode(errors="replace"),
                )
            yield program
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    def _fetch(self, program: ctypes.c_void_p, name: str) -> bytes:
        """Return what one of the pairs of functions `...Size` and `...` gives."""
        library = self._library()
        size = ctypes.c_size_t()
        measure: Callable[..., int] = getattr(library, f"{name}Size")
        self._check(measure(program, ctypes.byref(size)), f"{name}Size")
        buffer = ctypes.create_string_buffer(max(size.value, 1))
        self._check(getattr(library, name)(program, buffer), name)
        return buffer.raw[: size.value]

    def _check(self, status: int, name: str, source: str = "") -> None:
        if status:
            raise CompileError(f"{name} failed ({self._status_name(status)})", source=source)

    def _status_name(self, status: int) -> str:
        text = self._library().nvrtcGetErrorString(status)
        return text.decode(errors="replace") if text else f"status {status}"

    def _library(self) -> ctypes.CDLL:
        if self._loaded is None:
            self._path = self._path or str(find_library("libnvrtc", PACKAGE))
            try:
                library = ctypes.CDLL(self._path)
                for name in _FUNCTIONS:
                    getattr(library, name).restype = ctypes.c_int
            except (OSError, AttributeError) as error:
                raise MissingDependency(
                    "NVRTC could not be loaded",
                    package=PACKAGE,
                    found=str(error),
                    hint=f"install it with: pip install {PACKAGE}",
                ) from error
            library.nvrtcGetErrorString.restype = ctypes.c_char_p
            self._loaded = library
        return self._loaded
