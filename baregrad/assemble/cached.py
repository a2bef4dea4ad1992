"""What assemblers of texts share: the way through the disk cache."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from baregrad.assemble.cache import DiskCache, key_of
from baregrad.assemble.interface import Assembler


class CachedAssembler(Assembler):
    """An assembler whose results are kept by the text and by all else that decides what comes out.

    `cache` may be None; `form` names what comes out and how it is kept.
    """

    form: ClassVar[str]

    def __init__(self, cache: DiskCache | None) -> None:
        self.cache = cache

    def assemble(self, text: str) -> bytes:
        """Return what a text becomes; raise CompileError with the source if it is refused."""
        if self.cache is None:
            return self._build(text)
        return self.cache.get_or_build(self.key(text), lambda: self._build(text))

    def key(self, text: str) -> str:
        """Return the cache key of a text."""
        return key_of(self.form, self.version, text)

    @abstractmethod
    def _build(self, text: str) -> bytes:
        """Assemble a text, whatever the cache holds."""
