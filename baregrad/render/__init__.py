"""Linear level to source text: one file a language."""

from __future__ import annotations

import importlib
from functools import cache
from types import MappingProxyType
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
    row = _RENDERERS.get(name)
    if row is None:
        from baregrad.base.errors import OptionError

        raise OptionError("unknown renderer", found=name, wanted="llvm, c, ptx or cuda")
    return _renderer(name, *row)


# By name: the kind of assembler that takes the text, and the module that writes it.
_RENDERERS = MappingProxyType({
    "llvm": ("llvm", "baregrad.render.llvm.llvm"), "c": ("c", "baregrad.render.c.c"),
    "ptx": ("ptxas", "baregrad.render.ptx.ptx"), "cuda": ("nvrtc", "baregrad.render.c.cuda"),
})  # fmt: skip


@cache
def _renderer(name: str, assembler: str, module: str) -> Renderer[Any]:
    """The renderer whose module is imported once it writes: not where programs lie on disk."""

    def write(*given: Any) -> str:
        text: str = importlib.import_module(module).render(*given)
        return text

    return Renderer(name, assembler, write)
