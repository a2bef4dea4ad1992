"""Linear level to source text: one file a language."""

from __future__ import annotations

from baregrad.render.interface import (
    Renderer,
    Signature,
    entry_name,
    scratch_nbytes,
    signature,
)

__all__ = ["Renderer", "Signature", "entry_name", "get", "scratch_nbytes", "signature"]


def get(name: str) -> Renderer:
    """The renderer called `name`: "llvm" or "c". Raises OptionError for another name."""
    if name == "llvm":
        from baregrad.render.llvm import LlvmRenderer

        return LlvmRenderer()
    if name == "c":
        from baregrad.render.c import CRenderer

        return CRenderer()
    from baregrad.base.errors import OptionError

    raise OptionError("unknown renderer", found=name, wanted="llvm or c")
