"""C text to a relocatable ELF object, through an installed C compiler.

The compiler's own version is part of the cache key, and so is the processor, since the code is
made for the machine that we run on.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from baregrad.assemble.cache import DiskCache
from baregrad.assemble.cached import CachedAssembler
from baregrad.assemble.llvm import host_fingerprint
from baregrad.base.errors import CompileError, MissingDependency

# Contraction would fuse a*b+c behind our back and change bits; errno keeps sqrt from being one
# instruction. Zeroed pages come from the kernel, so no stack probes or protectors are wanted.
DEFAULT_FLAGS = (
    "-O2",
    "-march=native",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fPIC",
)
COMPILERS = ("cc", "gcc", "clang")
_TIMEOUT_S = 120.0


class CAssembler(CachedAssembler):
    """Turns C text into objects with the compiler `command`, or the first one found on PATH.

    `cache` may be None. Raises MissingDependency, when first used, if there is no compiler.
    """

    form = "c-object-1"

    def __init__(
        self,
        cache: DiskCache | None = None,
        command: str = "",
        flags: tuple[str, ...] = DEFAULT_FLAGS,
    ) -> None:
        super().__init__(cache)
        self.flags = flags
        self._command = command
        self._found: tuple[str, str] | None = None
        self._identity: str | None = None

    @property
    def version(self) -> str:
        """Everything but the text that decides what comes out, for cache keys."""
        if self._identity is None:
            path, version = self._compiler()
            self._identity = "\n".join((path, version, *self.flags, host_fingerprint()))
        return self._identity

    def disassemble(self, text: str) -> str:
        """Return the machine code of a C text as assembly."""
        return self._run(text, "-S").decode(errors="replace")

    def _build(self, text: str) -> bytes:
        return self._run(text, "-c")

    def _compiler(self) -> tuple[str, str]:
        """Return the path of the compiler and its version text."""
        if self._found is not None:
            return self._found
        names = (self._command,) if self._command else COMPILERS
        path = next((found for name in names if (found := shutil.which(name))), None)
        if path is None:
            raise MissingDependency(
                "no C compiler was found",
                package=names[0],
                found=f"none of {', '.join(names)} on PATH",
                hint="install gcc or clang, or leave BAREGRAD_CPU_RENDERER at llvm",
            )
        done = subprocess.run(
            [path, "--version"], capture_output=True, timeout=_TIMEOUT_S, check=False
        )
        self._found = (path, done.stdout.decode(errors="replace"))
        return self._found

    def _run(self, text: str, action: str) -> bytes:
        path, _ = self._compiler()
        with tempfile.TemporaryDirectory(prefix="baregrad-cc-") as folder:
            output = Path(folder) / "out"
            command = [path, *self.flags, "-x", "c", action, "-", "-o", str(output)]
            try:
                done = subprocess.run(
                    command,
                    input=text.encode(),
                    capture_output=True,
                    timeout=_TIMEOUT_S,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise CompileError(
                    f"the C compiler {path} did not finish", source=text, log=str(error)
                ) from error
            if done.returncode != 0:
                raise CompileError(
                    f"the C compiler {path} refused a kernel (status {done.returncode})",
                    source=text,
                    log=done.stderr.decode(errors="replace"),
                )
            return output.read_bytes()
