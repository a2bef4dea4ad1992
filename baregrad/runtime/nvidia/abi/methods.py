"""Pushbuffer methods: where each lies, and the bits of those that are not one plain number.

Sources: SDK `class/clc86f.h` (host), open-gpu-doc `classes/dma-copy/clc8b5.h` (copy) and
`classes/compute/clcbc0.h` (compute). The numbers are the same from Turing to Blackwell, except that
a copy engine's SET_SEMAPHORE_PAYLOAD_UPPER begins with class C7B5 (`target/nvidia.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from baregrad.base.errors import ArgumentError


@dataclass(frozen=True)
class Method:
    """One method of a class: `address` in bytes, and the bits (high, low) of its named parts."""

    name: str
    address: int
    parts: Mapping[str, tuple[int, int]] = field(repr=False)

    def word(self, **values: int) -> int:
        """Return the method's 32-bit operand with the given parts set, the others zero."""
        word = 0
        for name, value in values.items():
            if name not in self.parts:
                raise ArgumentError(f"{self.name} has no part {name}")
            high, low = self.parts[name]
            if value < 0 or value >> (high - low + 1):
                raise ArgumentError(f"{self.name}.{name} does not hold the value", found=value)
            word |= value << low
        return word

    def read(self, word: int, name: str) -> int:
        """Return one part of an operand."""
        high, low = self.parts[name]
        return word >> low & ((1 << (high - low + 1)) - 1)


def _methods(text: str) -> dict[str, Method]:
    """Return methods by name from lines of `address NAME [PART high:low]...`."""
    found = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        address, name, *rest = line.split()
        parts = {}
        for part, bits in zip(rest[::2], rest[1::2], strict=True):
            high, low = bits.split(":")
            parts[part] = (int(high), int(low))
        found[name] = Method(name, int(address, 16), parts)
    return found


# The host unit's own methods are the same on every subchannel.
HOST = _methods("""
    0x00 SET_OBJECT
    0x20 NON_STALL_INTERRUPT
    0x28 MEM_OP_A
    0x2c MEM_OP_B
    0x30 MEM_OP_C
    0x34 MEM_OP_D        OPERATION 31:27
    0x5c SEM_ADDR_LO     OFFSET 31:2
    0x60 SEM_ADDR_HI     OFFSET 24:0
    0x64 SEM_PAYLOAD_LO
    0x68 SEM_PAYLOAD_HI
    0x6c SEM_EXECUTE     OPERATION 2:0 ACQUIRE_SWITCH_TSG 12:12 RELEASE_WFI 20:20 \
                         PAYLOAD_SIZE 24:24 RELEASE_TIMESTAMP 25:25
    0x78 WFI             SCOPE 0:0
""".replace("\\\n", ""))

SEM_EXECUTE_RELEASE = 1
SEM_EXECUTE_ACQ_CIRC_GEQ = 3

COPY = _methods("""
    0x240 SET_SEMAPHORE_A        UPPER 24:0
    0x244 SET_SEMAPHORE_B        LOWER 31:0
    0x248 SET_SEMAPHORE_PAYLOAD
    0x24c SET_SEMAPHORE_PAYLOAD_UPPER
    0x300 LAUNCH_DMA             DATA_TRANSFER_TYPE 1:0 FLUSH_ENABLE 2:2 SEMAPHORE_TYPE 4:3 \
                                 SRC_MEMORY_LAYOUT 7:7 DST_MEMORY_LAYOUT 8:8 \
                                 MULTI_LINE_ENABLE 9:9 REMAP_ENABLE 10:10 \
                                 SEMAPHORE_PAYLOAD_SIZE 27:27
    0x400 OFFSET_IN_UPPER        UPPER 24:0
    0x404 OFFSET_IN_LOWER
    0x408 OFFSET_OUT_UPPER       UPPER 24:0
    0x40c OFFSET_OUT_LOWER
    0x410 PITCH_IN
    0x414 PITCH_OUT
    0x418 LINE_LENGTH_IN
    0x41c LINE_COUNT
    0x700 SET_REMAP_CONST_A
    0x704 SET_REMAP_CONST_B
    0x708 SET_REMAP_COMPONENTS   DST_X 2:0 DST_Y 6:4 DST_Z 10:8 DST_W 14:12 \
                                 COMPONENT_SIZE 17:16 NUM_SRC_COMPONENTS 21:20 \
                                 NUM_DST_COMPONENTS 25:24
""".replace("\\\n", ""))

TRANSFER_NONE = 0
TRANSFER_PIPELINED = 1
TRANSFER_NON_PIPELINED = 2
SEMAPHORE_NONE = 0
SEMAPHORE_WITHOUT_TIMESTAMP = 1
SEMAPHORE_WITH_TIMESTAMP = 2
LAYOUT_PITCH = 1
REMAP_CONST_A = 4
COMPONENT_ONE_BYTE, COMPONENT_FOUR_BYTES = 0, 3

COMPUTE = _methods("""
    0x0110 WAIT_FOR_IDLE
    0x021c INVALIDATE_SHADER_CACHES        INSTRUCTION 0:0 DATA 4:4 CONSTANT 12:12
    0x0298 INVALIDATE_SKED_CACHES
    0x02a0 SET_SHADER_SHARED_MEMORY_WINDOW_A
    0x02a4 SET_SHADER_SHARED_MEMORY_WINDOW_B
    0x02b4 SEND_PCAS_A
    0x02bc SEND_SIGNALING_PCAS_B           INVALIDATE 0:0 SCHEDULE 1:1
    0x02c0 SEND_SIGNALING_PCAS2_B          PCAS_ACTION 3:0
    0x02e4 SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_A
    0x02e8 SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_B
    0x02ec SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_C MAX_SM_COUNT 8:0
    0x0790 SET_SHADER_LOCAL_MEMORY_A
    0x0794 SET_SHADER_LOCAL_MEMORY_B
    0x07b0 SET_SHADER_LOCAL_MEMORY_WINDOW_A
    0x07b4 SET_SHADER_LOCAL_MEMORY_WINDOW_B
    0x1698 INVALIDATE_SHADER_CACHES_NO_WFI INSTRUCTION 0:0 GLOBAL_DATA 4:4 CONSTANT 12:12
""")

# SEND_SIGNALING_PCAS2_B_PCAS_ACTION: clcbc0.h:439. The first copies the descriptor and starts it,
# the second has it fetched ahead and keeps what it holds of it, the third does both.
PCAS_INVALIDATE_COPY_SCHEDULE = 3
PCAS_PREFETCH_SCHEDULE = 9
PCAS_INVALIDATE_PREFETCH_COPY_SCHEDULE = 10
# SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_C: no bound on how many multiprocessors share the pool.
MAX_SM_COUNT = 0xFF

# A method header: SDK class/clc86f.h documents the host methods, NVC86F_DMA_* their header
# (open-gpu-doc classes/host/clc76f.h). Operation 1 is INC_METHOD.
INCREMENTING = 1
MAX_COUNT = 0x1FFF

# An entry of the ring: NVC86F_GP_ENTRY1_LEVEL_SUBROUTINE and _LENGTH, as bits of 64.
GP_ENTRY_NBYTES = 8
GP_ENTRY_SUBROUTINE = 1 << 41
GP_ENTRY_LENGTH_SHIFT = 42
GP_ENTRY_ADDRESS_BITS = 40

# The block that holds a channel's ring pointers: Nvc86fControl (SDK class/clc86f.h).
USERD_NBYTES = 512
USERD_GP_GET = 0x88
USERD_GP_PUT = 0x8C
