"""The copy engine of a channel. Source: open-gpu-doc `classes/dma-copy/clc8b5.h`."""

from __future__ import annotations

import numpy as np

from baregrad.runtime.nvidia.abi import methods as m
from baregrad.testing.virtual_gpu.machine.engine import EngineChannel, Steps, always
from baregrad.testing.virtual_gpu.machine.faults import ENGINE_EXCEPTION, GpuFault

_KNOWN = frozenset(one.address for one in m.COPY.values())
_CLIENT = "HUBCLIENT_CE0"
# A copy of at least so much may be seen half done.
_DIVIDED_NBYTES = 64
_ONE_WORD, _FOUR_WORDS = 1, 2


class CopyUnit:
    """The engine's registers as one channel set them, and the transfers that it starts."""

    def __init__(self, channel: EngineChannel) -> None:
        self._channel = channel
        self._state: dict[int, int] = {}

    def method(self, address: int, data: int) -> Steps:
        """Take a method; LAUNCH_DMA leaves work that is done later."""
        if address not in _KNOWN or (
            address == m.COPY["SET_SEMAPHORE_PAYLOAD_UPPER"].address
            and self._channel.gpu.row.copy_payload_bits == 32
        ):
            raise GpuFault(ENGINE_EXCEPTION, f"the copy engine has no method {address:#x}")
        self._state[address] = data
        if address == m.COPY["LAUNCH_DMA"].address:
            self._launch(data)
            yield always

    def _value(self, name: str) -> int:
        return self._state.get(m.COPY[name].address, 0)

    def _wide(self, upper: str, lower: str) -> int:
        return m.COPY[upper].read(self._value(upper), "UPPER") << 32 | self._value(lower)

    def _launch(self, word: int) -> None:
        part = m.COPY["LAUNCH_DMA"].read
        transfer = part(word, "DATA_TRANSFER_TYPE")
        if transfer:
            pitch = part(word, "SRC_MEMORY_LAYOUT") and part(word, "DST_MEMORY_LAYOUT")
            if not pitch:
                raise GpuFault(ENGINE_EXCEPTION, "the virtual GPU copies pitch layouts only")
            ordered = transfer == m.TRANSFER_NON_PIPELINED
            fill = bool(part(word, "REMAP_ENABLE"))
            lines = self._lines(bool(part(word, "MULTI_LINE_ENABLE")), fill)
            work = Transfer(self._channel, lines, self._fill(fill), ordered)
            self._channel.outstanding.append(work)
        kind = part(word, "SEMAPHORE_TYPE")
        if kind == m.SEMAPHORE_NONE:
            return
        if kind not in (_ONE_WORD, _FOUR_WORDS):
            raise GpuFault(ENGINE_EXCEPTION, f"a semaphore of no type, {kind}")
        wide = bool(part(word, "SEMAPHORE_PAYLOAD_SIZE"))
        value = self._value("SET_SEMAPHORE_PAYLOAD")
        if wide:
            value |= self._value("SET_SEMAPHORE_PAYLOAD_UPPER") << 32
        address = self._wide("SET_SEMAPHORE_A", "SET_SEMAPHORE_B")
        grain = 16 if kind == _FOUR_WORDS else 8 if wide else 4
        if address % grain:
            raise GpuFault(ENGINE_EXCEPTION, f"a semaphore at {address:#x} is not on {grain} bytes")
        self._channel.outstanding.append(
            EngineRelease(self._channel, address, value, wide, kind == _FOUR_WORDS)
        )

    def _lines(self, several: bool, fill: bool) -> list[tuple[int, int, int]]:
        """Return (target, source, bytes) of every line."""
        source = self._wide("OFFSET_IN_UPPER", "OFFSET_IN_LOWER")
        target = self._wide("OFFSET_OUT_UPPER", "OFFSET_OUT_LOWER")
        nbytes = self._value("LINE_LENGTH_IN")
        if fill:
            components = m.COPY["SET_REMAP_COMPONENTS"]
            word = self._value("SET_REMAP_COMPONENTS")
            each = components.read(word, "COMPONENT_SIZE") + 1
            nbytes *= each * (components.read(word, "NUM_DST_COMPONENTS") + 1)
        count = self._value("LINE_COUNT") if several else 1
        pitches = self._value("PITCH_OUT"), self._value("PITCH_IN")
        return [
            (target + line * pitches[0], source + line * pitches[1], nbytes)
            for line in range(count)
        ]

    def _fill(self, fill: bool) -> bytes:
        """Return the pattern that is written instead of a source's bytes, b"" for a plain copy."""
        if not fill:
            return b""
        components = m.COPY["SET_REMAP_COMPONENTS"]
        word = self._value("SET_REMAP_COMPONENTS")
        each = components.read(word, "COMPONENT_SIZE") + 1
        pattern = b""
        for name in ("DST_X", "DST_Y", "DST_Z", "DST_W"):
            chosen = components.read(word, name)
            if len(pattern) // each > components.read(word, "NUM_DST_COMPONENTS"):
                break
            constants = {m.REMAP_CONST_A: "SET_REMAP_CONST_A", 5: "SET_REMAP_CONST_B"}
            if chosen not in constants:
                raise GpuFault(ENGINE_EXCEPTION, "the virtual GPU remaps to constants only")
            pattern += self._value(constants[chosen]).to_bytes(4, "little")[:each]
        return pattern


class Transfer:
    """Lines to copy or to fill; a long one may be seen half done, and lags behind its launch."""

    stuck = False

    def __init__(
        self,
        channel: EngineChannel,
        lines: list[tuple[int, int, int]],
        pattern: bytes,
        ordered: bool,
    ) -> None:
        self._channel = channel
        self._lines = lines
        self._pattern = pattern
        self.ordered = ordered
        self._divided = False

    def run(self) -> bool:
        """Move the next line, or half of it."""
        if not self._lines:
            return True
        target, source, nbytes = self._lines[0]
        if nbytes >= _DIVIDED_NBYTES and not self._divided:
            self._divided = True
            half = nbytes // 2 & ~15
            self._lines[0] = (target + half, source + half, nbytes - half)
            nbytes = half
        else:
            del self._lines[0]
            self._divided = False
        self._move(target, source, nbytes)
        return not self._lines

    def _move(self, target: int, source: int, nbytes: int) -> None:
        space = self._channel.space
        if self._pattern:
            block = np.frombuffer(self._pattern, np.uint8)
            data = np.resize(block, nbytes)
            space.put(target, data, _CLIENT)
        else:
            space.copy(target, source, nbytes, _CLIENT)


class EngineRelease:
    """The copy engine's own semaphore, after all transfers before it."""

    ordered = True
    stuck = False

    def __init__(
        self, channel: EngineChannel, address: int, value: int, wide: bool, stamped: bool
    ) -> None:
        self._channel = channel
        self._what = (address, value, wide, stamped)

    def run(self) -> bool:
        """Write it."""
        address, value, wide, stamped = self._what
        self._channel.release(address, value, wide=wide, stamped=stamped)
        return True
