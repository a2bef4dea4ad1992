"""What every assembler offers: text in, machine code out."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar


class Assembler(ABC):
    """Turns program text into bytes that a device loads.

    several_at_once: whether texts are better assembled beside each other, as by a program that runs
    in a process of its own.
    """

    several_at_once: ClassVar[bool] = False

    @abstractmethod
    def assemble(self, text: str) -> bytes:
        """Return what a text becomes; raise CompileError with the source if it is refused."""

    @abstractmethod
    def disassemble(self, text: str) -> str:
        """Return the machine code of a text in words, for `DEBUG=6`."""

    @property
    @abstractmethod
    def version(self) -> str:
        """Everything but the text that decides what comes out, for cache keys."""

    def assemble_all(self, texts: Iterable[str]) -> Iterator[bytes]:
        """Give what each text becomes, in order; raise CompileError at the first refused.

        Where several are assembled at once, that of the first ones goes on while others are made.
        """
        if not self.several_at_once:
            yield from map(self.assemble, texts)
            return
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        with ThreadPoolExecutor(cores or 1) as pool:
            try:
                yield from pool.map(self.assemble, texts)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
