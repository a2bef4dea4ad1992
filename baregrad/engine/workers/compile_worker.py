"""A process that makes the texts of kernels for a GPU, which it does not open."""

from __future__ import annotations

from typing import Any

from baregrad.engine.backends import gpu_compiler
from baregrad.engine.compiler import Compiler
from baregrad.engine.workers.serving import serve
from baregrad.ir.text.parse import parse
from baregrad.kernel import parse_schedule


class CompileWorker:
    """Makes programs without machine code of the texts of kernels, and keeps none."""

    def __init__(self, device: str, architecture: str) -> None:
        self.compiler: Compiler = gpu_compiler(device, architecture)
        self.compiler.cache = None

    def answer(
        self, header: dict[str, Any], blobs: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """The program of a kernel, under a schedule or the first one, but for its machine code."""
        schedule = parse_schedule(header["schedule"]) if "schedule" in header else None
        return {}, [self.compiler.without_code(parse(blobs[0].decode()), schedule).to_bytes()]


def main(setting: dict[str, Any]) -> None:
    """Answer questions until there are none.

    setting: `device`, `architecture`, and `options` to override.
    """
    serve(
        setting["options"], lambda: CompileWorker(setting["device"], setting["architecture"]).answer
    )
