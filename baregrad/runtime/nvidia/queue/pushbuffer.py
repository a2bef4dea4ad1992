"""Words for the GPU: method headers and data, encoded from the tables of `abi/methods`."""

from __future__ import annotations

from baregrad.base.errors import ArgumentError
from baregrad.runtime.nvidia.abi import methods as m

# Subchannels by convention of the vendor's own drivers; each holds one object.
HOST_SUBCHANNEL = 0
COMPUTE_SUBCHANNEL = 1
COPY_SUBCHANNEL = 4

# A copy's length is 32 bits; larger ones are cut.
COPY_CHUNK_NBYTES = 1 << 31

# Operands that are the same each time.
_RELEASE = m.HOST["SEM_EXECUTE"].word(
    OPERATION=m.SEM_EXECUTE_RELEASE, PAYLOAD_SIZE=1, RELEASE_TIMESTAMP=1
)
_RELEASE_IDLE = _RELEASE | m.HOST["SEM_EXECUTE"].word(RELEASE_WFI=1)
_ACQUIRE = m.HOST["SEM_EXECUTE"].word(
    OPERATION=m.SEM_EXECUTE_ACQ_CIRC_GEQ, ACQUIRE_SWITCH_TSG=1, PAYLOAD_SIZE=1
)
_CONSTANTS = m.COMPUTE["INVALIDATE_SHADER_CACHES_NO_WFI"].word(CONSTANT=1)
_ALL_CACHES = m.COMPUTE["INVALIDATE_SHADER_CACHES_NO_WFI"].word(
    INSTRUCTION=1, GLOBAL_DATA=1, CONSTANT=1
)


def split(value: int) -> tuple[int, int]:
    """Return the upper and the lower 32 bits."""
    return value >> 32, value & 0xFFFFFFFF


class PushBuffer:
    """Words that are collected here and submitted to a channel in one piece."""

    def __init__(self) -> None:
        self.words: list[int] = []
        # Kernels in here, for errors to tell.
        self.names: list[str] = []

    def methods(self, subchannel: int, first: m.Method, *data: int) -> None:
        """Write `data` to methods that follow each other, beginning at `first`."""
        if not 0 < len(data) <= m.MAX_COUNT:
            raise ArgumentError("a run of methods has a bad length", found=len(data))
        header = m.INCREMENTING << 29 | len(data) << 16 | subchannel << 13 | first.address >> 2
        self.words.append(header)
        self.words.extend(data)

    def set_object(self, subchannel: int, kind: int) -> None:
        """Bind an object's class to a subchannel, once for each channel."""
        self.methods(subchannel, m.HOST["SET_OBJECT"], kind)

    # Semaphores of the host unit, 16 bytes: the payload, then the GPU's time in nanoseconds.

    def release(self, gpu_va: int, value: int, *, wait_idle: bool = True) -> None:
        """Write `value` and the time, by default after all work before it is done."""
        self._semaphore(gpu_va, value, _RELEASE_IDLE if wait_idle else _RELEASE)

    def acquire(self, gpu_va: int, value: int) -> None:
        """Hold this channel until a semaphore is `value` or more; others of its group go on."""
        self._semaphore(gpu_va, value, _ACQUIRE)

    def _semaphore(self, gpu_va: int, value: int, execute: int) -> None:
        if gpu_va % 16:
            raise ArgumentError("a semaphore lies on 16 bytes", found=hex(gpu_va))
        address_high, address_low = split(gpu_va)
        value_high, value_low = split(value)
        self.methods(
            HOST_SUBCHANNEL, m.HOST["SEM_ADDR_LO"],
            address_low, address_high, value_low, value_high, execute,
        )  # fmt: skip

    # Copies.

    def copy(self, target: int, source: int, nbytes: int, *, pipelined: bool = False) -> None:
        """Copy bytes from one GPU address to another, in order with other copies of the channel.

        With `pipelined`, it may begin before those before it are done.
        """
        launch = m.COPY["LAUNCH_DMA"].word(
            DATA_TRANSFER_TYPE=m.TRANSFER_PIPELINED if pipelined else m.TRANSFER_NON_PIPELINED,
            SRC_MEMORY_LAYOUT=m.LAYOUT_PITCH,
            DST_MEMORY_LAYOUT=m.LAYOUT_PITCH,
        )
        for start in range(0, nbytes, COPY_CHUNK_NBYTES):
            chunk = min(COPY_CHUNK_NBYTES, nbytes - start)
            self.methods(
                COPY_SUBCHANNEL, m.COPY["OFFSET_IN_UPPER"],
                *split(source + start), *split(target + start),
            )  # fmt: skip
            self.methods(COPY_SUBCHANNEL, m.COPY["LINE_LENGTH_IN"], chunk, 1)
            self.methods(COPY_SUBCHANNEL, m.COPY["LAUNCH_DMA"], launch)

    def copy_and_tell(
        self, target: int, source: int, nbytes: int, word: int, value: int, *,
        pipelined: bool, flush: bool,
    ) -> None:  # fmt: skip
        """Copy at most 2 GiB, and have the copy engine write 32 bits to `word` after that.

        With `flush`, everybody sees the bytes at their target then; without, all that is sure is
        that they have been read. With `pipelined`, the copy may begin before those before it are
        done, unless these flush.
        """
        self.methods(
            COPY_SUBCHANNEL, m.COPY["OFFSET_IN_UPPER"], *split(source), *split(target)
        )
        self.methods(COPY_SUBCHANNEL, m.COPY["LINE_LENGTH_IN"], nbytes, 1)
        self.methods(COPY_SUBCHANNEL, m.COPY["SET_SEMAPHORE_A"], *split(word), value)
        launch = m.COPY["LAUNCH_DMA"].word(
            DATA_TRANSFER_TYPE=m.TRANSFER_PIPELINED if pipelined else m.TRANSFER_NON_PIPELINED,
            FLUSH_ENABLE=flush,
            SEMAPHORE_TYPE=m.SEMAPHORE_WITHOUT_TIMESTAMP,
            SRC_MEMORY_LAYOUT=m.LAYOUT_PITCH,
            DST_MEMORY_LAYOUT=m.LAYOUT_PITCH,
        )
        self.methods(COPY_SUBCHANNEL, m.COPY["LAUNCH_DMA"], launch)

    def fill(self, target: int, pattern: int, words: int) -> None:
        """Write a 32-bit pattern to `words` words at a GPU address."""
        self.fill_pattern(pattern)
        step = COPY_CHUNK_NBYTES // 4
        for start in range(0, words, step):
            self.fill_piece(target + 4 * start, min(step, words - start))

    def fill_pattern(self, pattern: int, *, wide: bool = True) -> None:
        """Say what the fills to come write: 32 bits at a time, or a byte."""
        components = m.COPY["SET_REMAP_COMPONENTS"].word(
            DST_X=m.REMAP_CONST_A,
            COMPONENT_SIZE=m.COMPONENT_FOUR_BYTES if wide else m.COMPONENT_ONE_BYTE,
            NUM_SRC_COMPONENTS=0,
            NUM_DST_COMPONENTS=0,
        )
        self.methods(COPY_SUBCHANNEL, m.COPY["SET_REMAP_CONST_A"], pattern)
        self.methods(COPY_SUBCHANNEL, m.COPY["SET_REMAP_COMPONENTS"], components)

    def fill_piece(self, target: int, count: int) -> None:
        """Write the pattern `count` times, at most 2**31 bytes."""
        launch = m.COPY["LAUNCH_DMA"].word(
            DATA_TRANSFER_TYPE=m.TRANSFER_NON_PIPELINED,
            SRC_MEMORY_LAYOUT=m.LAYOUT_PITCH,
            DST_MEMORY_LAYOUT=m.LAYOUT_PITCH,
            REMAP_ENABLE=1,
        )
        self.methods(COPY_SUBCHANNEL, m.COPY["OFFSET_OUT_UPPER"], *split(target))
        self.methods(COPY_SUBCHANNEL, m.COPY["LINE_LENGTH_IN"], count, 1)
        self.methods(COPY_SUBCHANNEL, m.COPY["LAUNCH_DMA"], launch)

    def copy_release(self, gpu_va: int, value: int, *, payload_bits: int) -> None:
        """Have the copy engine itself write `value` and the time, after its copies are flushed.

        `payload_bits` is the generation's; with 32 of them, a larger value is refused.
        """
        if value >> payload_bits:
            raise ArgumentError("the copy engine cannot release the value", found=value)
        wide = payload_bits == 64
        high, low = split(value)
        launch = m.COPY["LAUNCH_DMA"].word(
            DATA_TRANSFER_TYPE=m.TRANSFER_NONE,
            FLUSH_ENABLE=1,
            SEMAPHORE_TYPE=m.SEMAPHORE_WITH_TIMESTAMP,
            SEMAPHORE_PAYLOAD_SIZE=int(wide),
        )
        data = (*split(gpu_va), low, high) if wide else (*split(gpu_va), low)
        self.methods(COPY_SUBCHANNEL, m.COPY["SET_SEMAPHORE_A"], *data)
        self.methods(COPY_SUBCHANNEL, m.COPY["LAUNCH_DMA"], launch)

    # Compute.

    def set_windows(self, shared: int, local: int) -> None:
        """Place the two ranges of addresses that shaders see shared and local memory at."""
        first = m.COMPUTE["SET_SHADER_SHARED_MEMORY_WINDOW_A"]
        self.methods(COMPUTE_SUBCHANNEL, first, *split(shared))
        first = m.COMPUTE["SET_SHADER_LOCAL_MEMORY_WINDOW_A"]
        self.methods(COMPUTE_SUBCHANNEL, first, *split(local))

    def set_local_memory(self, gpu_va: int, tpc_nbytes: int) -> None:
        """Place the pool of stacks, of which each pair of multiprocessors has `tpc_nbytes`."""
        first = m.COMPUTE["SET_SHADER_LOCAL_MEMORY_A"]
        self.methods(COMPUTE_SUBCHANNEL, first, *split(gpu_va))
        first = m.COMPUTE["SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_A"]
        self.methods(COMPUTE_SUBCHANNEL, first, *split(tpc_nbytes), m.MAX_SM_COUNT)

    def wait_idle(self) -> None:
        """Wait until no launch runs, and none is to follow one that does."""
        self.methods(COMPUTE_SUBCHANNEL, m.COMPUTE["WAIT_FOR_IDLE"], 0)

    def drop_constants(self) -> None:
        """Forget cached constants."""
        method = m.COMPUTE["INVALIDATE_SHADER_CACHES_NO_WFI"]
        self.methods(COMPUTE_SUBCHANNEL, method, _CONSTANTS)

    def invalidate_caches(self) -> None:
        """Forget cached instructions, data and constants, so that new ones are read."""
        method = m.COMPUTE["INVALIDATE_SHADER_CACHES_NO_WFI"]
        self.methods(COMPUTE_SUBCHANNEL, method, _ALL_CACHES)
