"""Modules that are found in memory: by threads, with pages that are not there, while it ends."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import time

from baregrad.runtime.nvidia.abi.vendor import load_tables
from baregrad.runtime.nvidia.queue.push_decoder import PushDecoder, PushedWork
from baregrad.trace.memory import ProcessMemory
from baregrad.trace.module_search import ModuleSearch, sections_of
from baregrad.trace.modules import KernelNames, kernels_of
from tests.trace.observed import FOLDER, own_memory

CUBIN = (FOLDER.parent / "data" / "parts.sm_90a.cuda13.cubin").read_bytes()
SHARE, PIECE = 1 << 23, 1 << 18
# Where only the first bytes of a module are, and where some begin: at no particular place, across
# pieces and shares, and up to the end.
NONE = SHARE + 6 * PIECE + 77
PLACES = (5, PIECE - 3, SHARE - 5, 2 * SHARE, 3 * SHARE + 4096 - 1, 5 * SHARE - len(CUBIN))


def _memory() -> tuple[mmap.mmap, int]:
    pages = mmap.mmap(-1, 5 * SHARE)
    for at in PLACES:
        pages[at : at + len(CUBIN)] = CUBIN
    # What begins like one and is none.
    pages[NONE : NONE + 7] = CUBIN[:7]
    return pages, ctypes.addressof(ctypes.c_char.from_buffer(pages))


def test_threads_find_what_one_look_finds() -> None:
    pages, begin = _memory()
    memory = ProcessMemory(os.getpid())
    search = ModuleSearch(memory.read, [(begin, begin + len(pages))], memory.find)
    found = []
    for one in search:
        if one is not None:
            found.append(one)
        else:
            search.wait(0.01)
    assert search.has_threads
    assert sorted(one.address - begin for one in found) == list(PLACES)
    assert all(one.data == CUBIN for one in found)
    memory.close()


def test_pages_that_are_not_there_are_passed_over() -> None:
    pages, begin = _memory()
    memory = ProcessMemory(os.getpid())
    # Memory that nobody may read, as a file's pages beyond its end.
    protect = ctypes.CDLL(None).mprotect
    first, last = SHARE + (1 << 16), SHARE + (1 << 17)
    assert protect(ctypes.c_void_p(begin + first), ctypes.c_size_t(last - first), 0) == 0
    try:
        places = memory.find(begin, begin + len(pages), CUBIN[:7])
    finally:
        protect(ctypes.c_void_p(begin + first), ctypes.c_size_t(last - first), 3)
    assert [at - begin for at in places] == sorted((*PLACES, NONE))
    assert ProcessMemory(2**22 + 1).find(begin, begin + 8192, CUBIN[:7]) == []
    memory.close()


def test_a_launch_is_named_by_what_threads_find_and_stopping_ends_them() -> None:
    pages, begin = _memory()
    memory = ProcessMemory(os.getpid())
    kernel = next(kernels_of(CUBIN))
    code = ctypes.create_string_buffer(kernel.data)
    program = ctypes.addressof(code)
    decoder = PushDecoder(load_tables("580.159.04"), own_memory)
    launch = PushedWork("launch", "launch of it", (("program", program),))
    for ends in (False, True):
        names = KernelNames(own_memory, own_memory, lambda: [(begin, begin + len(pages))],
                            finds=memory.find)  # fmt: skip
        names.told(launch, decoder)
        assert names.step() in (True, False)
        if ends:
            names.stop()
        names.finish()
        assert ends or names.names == {program: kernel.name}
    memory.close()


def test_threads_end_between_two_files() -> None:
    """Of a stretch that seems to be full of large files as well."""
    reads = []

    def read(address: int, nbytes: int) -> bytes:
        reads.append(address)
        while not search._given_up:
            time.sleep(0.001)
        return b""

    search = ModuleSearch(read, [(0, 5 * SHARE)], lambda begin, end, what: [begin] * 1000)
    assert next(iter(search)) is None
    search.stop()
    assert len(reads) <= len(search._threads)


def test_damaged_files_have_no_kernels() -> None:
    """Cut off, with sections beyond the end, and with sections that all have the whole file."""
    (table,) = struct.unpack_from("<Q", CUBIN, 40)
    count = len(sections_of(CUBIN))
    far, same = bytearray(CUBIN), bytearray(CUBIN)
    struct.pack_into("<Q", far, table + 64 + 24, 1 << 63)
    for at in range(1, count):
        struct.pack_into("<QQ", same, table + 64 * at + 24, 0, len(CUBIN))
    for data in (CUBIN[:64], CUBIN[: table + 64 * count - 1], far, same):
        assert sections_of(bytes(data)) == list(kernels_of(bytes(data))) == []
