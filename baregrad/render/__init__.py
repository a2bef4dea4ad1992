"""Linear level to source text: one file a language."""

from __future__ import annotations

from typing import Any, Literal, overload

from baregrad.render.interface import Renderer, Signature, entry_name, scratch_nbytes, signature
from baregrad.target.gpu import NvidiaTarget

__all__ = ["Renderer", "Signature", "entry_name", "get", "scratch_nbytes", "signature"]


@overload
def get(name: Literal["ptx", "cuda"]) -> Renderer[NvidiaTarget]: ...


@overload
def get(name: str) -> Renderer[Any]: ...


def get(name: str) -> Renderer[Any]:
    """The renderer called `name`: "llvm" or "c" for CPUs, "ptx" or "cuda" for GPUs.

    Raises OptionError for another name.
    """
    if name == "llvm":
        from baregrad.render.llvm.llvm import LLVM

        return LLVM
    if name == "c":
        from baregrad.render.c.c import C

        return C
    if name == "ptx":
        from baregrad.render.ptx.ptx import PTX

        return PTX
    if name == "cuda":
        from baregrad.render.c.cuda import CUDA

        return CUDA
    from baregrad.base.errors import OptionError

    raise OptionError("unknown renderer", found=name, wanted="llvm, c, ptx or cuda")
