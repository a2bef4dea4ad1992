"""How far a stream came: numbers that the GPU writes into host memory between commands.

After a fault the context answers every call with the same error and says nothing of which kernel
it was. Host memory stays readable, so the first number that did not arrive names it.
"""

from __future__ import annotations

import ctypes
from collections import deque

from baregrad.runtime.cuda import abi
from baregrad.runtime.cuda.driver import Driver

_HALF = 1 << 31
_MASK = (1 << 32) - 1
# A command's name and its label, which may say more; of one command, or of several.
LabelledName = tuple[str, str]
Names = tuple[LabelledName, ...]


class Progress:
    """The commands under way, oldest first.

    `place` is pinned host memory of 4 bytes that the GPU sees at `gpu_address`.
    """

    def __init__(self, driver: Driver, stream: int, place: int, gpu_address: int) -> None:
        self._driver = driver
        self._stream = stream
        self._gpu_address = gpu_address
        self._word = ctypes.c_uint32.from_address(place)
        self._word.value = 0
        self._sent = 0
        self._open: deque[tuple[int, Names]] = deque()
        # A driver may not offer such writes (then all that is known is what was not waited for).
        self.offered = True

    def mark(self, names: Names) -> None:
        """Have the GPU say when all that was enqueued, the last being `names`, is done."""
        self._sent += 1
        self._open.append((self._sent, names))
        if not self.offered:
            return
        name = "cuStreamWriteValue32_v2"
        code = self._driver.functions[name](
            self._stream, self._gpu_address, self._sent & _MASK, 0
        )
        if code == abi.NOT_SUPPORTED:
            self.offered = False
        elif code:
            self._open.pop()
            raise self._driver.error(name, code)
        while self._open and self._arrived(self._open[0][0]):
            self._open.popleft()

    def _arrived(self, number: int) -> bool:
        return (self._word.value - number) & _MASK < _HALF

    @property
    def arrived(self) -> int:
        """A number that changes whenever the GPU gets on."""
        return self._word.value

    def idle(self) -> bool:
        """Whether all that was marked is known to be done."""
        return not self._open or (self.offered and self._arrived(self._open[-1][0]))

    def clear(self) -> None:
        """All that was marked is done."""
        self._open.clear()

    def suspects(self) -> Names:
        """Return the names of what was under way: of one command where the marks distinguish it."""
        if not self.offered:
            return tuple(dict.fromkeys(name for _, names in self._open for name in names))
        for number, names in self._open:
            if not self._arrived(number):
                return tuple(dict.fromkeys(names))
        return ()
