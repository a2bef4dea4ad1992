"""PTX text to a cubin, through ptxas of NVIDIA's CUDA toolkit.

The program runs by itself: nothing of the vendor's is loaded into our process. Its version is part
of the cache key, and so are the architecture and the flags.

What ptxas says of pipelines that it changed, it says as information and succeeds: a kernel whose
matrix products it made to wait for each other runs at a fraction of its speed. Here such a kernel
is refused, by an error of its own: where nobody asked for the pipeline, another form takes over.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from baregrad.assemble.cache import DiskCache
from baregrad.assemble.cached import CachedAssembler
from baregrad.assemble.cuda_toolkit import find_program
from baregrad.base.errors import ChangedPipeline, CompileError

# Contraction would fuse a*b+c behind our back and change bits: texts say `fma` where they mean it.
DEFAULT_FLAGS = ("-O3", "-fmad=false")
PACKAGE = "nvidia-cuda-nvcc"
_TIMEOUT_S = 600.0
# Of wgmma and setmaxnreg: products made to wait for each other, waits and fences that were missing,
# register counts that are not obeyed.
_CHANGED_PIPELINE = re.compile(r"\(C75\d\d\)")
_FUNCTION = re.compile(r"function '([^']+)'")
_ENTRY = re.compile(r"\.entry\s+([\w$%]+)")


class PtxAssembler(CachedAssembler):
    """Turns PTX text into cubins for one architecture, such as "sm_90a".

    `cache` may be None; `command` is a ptxas to use instead of the first one found. Raises
    MissingDependency, when first used, where there is none.
    """

    form = "ptx-cubin-2"
    several_at_once = True

    def __init__(
        self,
        architecture: str,
        cache: DiskCache | None = None,
        command: str = "",
        flags: tuple[str, ...] = DEFAULT_FLAGS,
    ) -> None:
        self.architecture = architecture
        super().__init__(cache)
        self.flags = flags
        self._command = command
        self._found: tuple[Path, str] | None = None

    @property
    def version(self) -> str:
        """Everything but the text that decides what comes out, for cache keys.

        The place of the program is left out: the same release makes the same code anywhere.
        """
        _, version = self._program()
        return "\n".join((version, self.architecture, *self.flags))

    def disassemble(self, text: str) -> str:
        """Return the machine code of a PTX text, through nvdisasm."""
        program = find_program("nvdisasm", "nvidia-cuda-nvdisasm")
        with tempfile.TemporaryDirectory(prefix="baregrad-ptx-") as folder:
            path = Path(folder) / "kernel.cubin"
            path.write_bytes(self.assemble(text))
            found, _ = run_tool([str(program), "-c", str(path)], "", text)
        return found.decode(errors="replace")

    def _program(self) -> tuple[Path, str]:
        """Return the path of ptxas and what it says of its version."""
        if self._found is None:
            path = find_program("ptxas", PACKAGE, self._command)
            version, _ = run_tool([str(path), "--version"], "", "")
            self._found = (path, version.decode(errors="replace"))
        return self._found

    def _build(self, text: str) -> bytes:
        path, _ = self._program()
        with tempfile.TemporaryDirectory(prefix="baregrad-ptx-") as folder:
            output = Path(folder) / "kernel.cubin"
            command = [str(path), f"-arch={self.architecture}", *self.flags, "-", "-o", str(output)]
            _, remarks = run_tool(command, text, text)
            _check_pipelines(remarks.decode(errors="replace"), text)
            return output.read_bytes()


def _check_pipelines(remarks: str, text: str) -> None:
    """Raise ChangedPipeline if ptxas remarks that it changed the pipeline of a kernel of a text."""
    lines = [line for line in remarks.splitlines() if _CHANGED_PIPELINE.search(line)]
    if not lines:
        return
    log = "\n".join(lines)
    names = _FUNCTION.findall(log) or _ENTRY.findall(text)
    raise ChangedPipeline(
        f"ptxas changed the pipeline of {', '.join(dict.fromkeys(names))}",
        found=", ".join(dict.fromkeys(_CHANGED_PIPELINE.findall(log))),
        wanted="wgmma and setmaxnreg as they are written",
        hint="wait for products before their registers are touched, under no condition, and leave"
        " registers for them",
        source=text,
        log=log,
    )


def run_tool(command: list[str], entered: str, source: str) -> tuple[bytes, bytes]:
    """Return what a program prints, and its remarks on standard error.

    Raises CompileError with its complaints if it fails.
    """
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command, input=entered.encode(), capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{name} did not finish", source=source, log=str(error)) from error
    if done.returncode != 0:
        raise CompileError(
            f"{name} {'refused a kernel' if source else 'failed'} (status {done.returncode})",
            found=command[0],
            source=source,
            log=(done.stderr + done.stdout).decode(errors="replace"),
        )
    return done.stdout, done.stderr
