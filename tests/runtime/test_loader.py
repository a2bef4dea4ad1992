"""The ELF loader: what it loads runs, what is broken is refused, nothing is writable code."""

from __future__ import annotations

import ctypes
import gc
import mmap
import re
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baregrad.apps.instructions import count
from baregrad.assemble.cc import COMPILERS, CAssembler
from baregrad.assemble.llvm import LlvmAssembler, LlvmOptions
from baregrad.base.errors import CompileError, DriverError
from baregrad.program import CPU_OBJECT, ParamSpec, Program
from baregrad.runtime.cpu.elf import AARCH64, MACHINES, X86_64, read_object
from baregrad.runtime.cpu.host import detect_host
from baregrad.runtime.cpu.loader import LoadedObject, Loader
from tests.runtime.kernels import assembled, floats, open_cpu, program, read

ARM = LlvmOptions(cpu="generic", features="", triple="aarch64-unknown-linux-gnu")
X86 = LlvmOptions(cpu="x86-64", features="", triple="x86_64-unknown-linux-gnu")

CONSTANTS = """
@table = private unnamed_addr constant [4 x i64] [i64 11, i64 22, i64 33, i64 44], align 64
@jump = private unnamed_addr constant [2 x ptr] [ptr @one, ptr @two], align 8
define internal i64 @one() nounwind noinline { ret i64 1 }
define internal i64 @two() nounwind noinline { ret i64 2 }
define i64 @lookup(i64 %i) nounwind {
  %p = getelementptr [4 x i64], ptr @table, i64 0, i64 %i
  %v = load i64, ptr %p
  ret i64 %v
}
define i64 @call(i64 %i) nounwind {
  %p = getelementptr [2 x ptr], ptr @jump, i64 0, i64 %i
  %f = load ptr, ptr %p
  %v = call i64 %f()
  ret i64 %v
}
define i64 @aligned() nounwind {
  %v = ptrtoint ptr @table to i64
  %r = and i64 %v, 63
  ret i64 %r
}
"""
EXTERNAL = """
declare double @sin(double)
declare float @fmodf(float, float)
define double @use(double %x) nounwind {
  %s = call double @sin(double %x)
  ret double %s
}
define float @use2(float %x, float %y) nounwind {
  %s = call float @fmodf(float %x, float %y)
  ret float %s
}
"""
VECTOR = """
define void @scale(ptr %buffers, ptr %vars, i64 %from, i64 %to, ptr %scratch) nounwind {
  %o = load ptr, ptr %buffers
  %v = load <8 x float>, ptr %o, align 4
  %m = fmul <8 x float> %v, <float 1.0, float 2.0, float 3.0, float 4.0,
                             float 5.0, float 6.0, float 7.0, float 8.0>
  store <8 x float> %m, ptr %o, align 4
  ret void
}
"""


@pytest.fixture(scope="module")
def loader() -> Loader:
    return Loader(MACHINES[detect_host().machine])


def integer(loaded: LoadedObject, name: str, *arguments: int) -> int:
    kinds = [ctypes.c_int64] * len(arguments)
    return int(ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(loaded.address(name))(*arguments))


def test_constants_and_tables_of_functions(loader: Loader) -> None:
    loaded = loader.load(assembled(CONSTANTS))
    assert [integer(loaded, "lookup", i) for i in range(4)] == [11, 22, 33, 44]
    assert [integer(loaded, "call", i) for i in range(2)] == [1, 2]
    assert integer(loaded, "aligned") == 0


def test_vector_constants_are_aligned() -> None:
    device = open_cpu()
    kernel = device.load(program("scale", VECTOR, (("o", "rw", 32),)))
    buffer = floats(device, np.ones(8))
    device.run(kernel, [buffer])
    np.testing.assert_array_equal(read(buffer), np.arange(1, 9))


def test_calls_reach_the_maths_library(loader: Loader) -> None:
    loaded = loader.load(assembled(EXTERNAL))
    use = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(loaded.address("use"))
    assert use(0.5) == np.sin(0.5)
    use2 = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float, ctypes.c_float)(loaded.address("use2"))
    assert use2(7.5, 2.0) == 1.5


def test_a_function_that_no_library_has_is_named(loader: Loader) -> None:
    text = "declare void @no_such_function()\n"
    text += "define void @f() {\n call void @no_such_function()\n ret void\n}"
    with pytest.raises(CompileError, match="'no_such_function', which no system library has"):
        loader.load(assembled(text))


def test_an_unknown_entry_is_named(loader: Loader) -> None:
    with pytest.raises(CompileError, match="no entry 'absent'"):
        loader.load(assembled(CONSTANTS)).address("absent")


def test_variables_of_a_kernel_are_refused(loader: Loader) -> None:
    for start in ("7", "zeroinitializer"):
        text = f"@state = global i64 {start}\ndefine void @f() {{\n ret void\n}}"
        with pytest.raises(CompileError, match="variables of its own"):
            loader.load(assembled(text))


def test_code_of_another_machine_is_refused(loader: Loader) -> None:
    other = ARM if loader.machine == X86_64 else X86
    with pytest.raises(CompileError, match="another machine"):
        loader.load(LlvmAssembler().assemble(CONSTANTS, other))
    with pytest.raises(DriverError, match="cannot be loaded"):
        Loader(8)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no list of mappings")
def test_nothing_is_writable_and_executable(loader: Loader) -> None:
    kept = [loader.load(assembled(CONSTANTS)) for _ in range(5)]
    del kept[2]
    address = kept[0].address("lookup")
    found = False
    for line in Path("/proc/self/maps").read_text().splitlines():
        parts = re.match(r"(\w+)-(\w+) (\S+)", line)
        assert parts is not None
        if int(parts[1], 16) <= address < int(parts[2], 16):
            found = True
            assert parts[3].startswith("r-x")
    assert found


def test_unloaded_pages_are_used_again(loader: Loader) -> None:
    first = loader.load(assembled(CONSTANTS))
    address = first.address("lookup")
    del first
    gc.collect()
    second = loader.load(assembled(CONSTANTS))
    assert second.address("lookup") == address
    assert integer(second, "lookup", 2) == 33


def test_many_objects_and_a_large_one(loader: Loader) -> None:
    kept = [loader.load(assembled(CONSTANTS)) for _ in range(600)]
    assert len({loaded.address("call") for loaded in kept}) == 600
    assert all(integer(loaded, "call", 1) == 2 for loaded in kept)
    numbers = ", ".join(f"i64 {i}" for i in range(200_000))
    text = (
        f"@big = private constant [200000 x i64] [{numbers}]\n"
        "define i64 @at(i64 %i) nounwind {\n"
        "  %p = getelementptr [200000 x i64], ptr @big, i64 0, i64 %i\n"
        "  %v = load i64, ptr %p\n  ret i64 %v\n}"
    )
    assert integer(loader.load(assembled(text)), "at", 199_999) == 199_999


def test_a_kernel_stays_loaded_as_long_as_its_list() -> None:
    device = open_cpu()
    kernel = device.load(program("scale", VECTOR, (("o", "rw", 32),)))
    buffer = floats(device, np.ones(8))
    commands = device.command_list()
    commands.exec(kernel, [buffer])
    del kernel
    gc.collect()
    device.submit(commands)
    assert read(buffer)[7] == 8


@pytest.mark.parametrize("size", [0, 1, 63, 64, 200, -1, -64])
def test_truncated_objects_are_refused(loader: Loader, size: int) -> None:
    with pytest.raises(CompileError):
        loader.load(assembled(CONSTANTS)[:size])


@pytest.mark.property
@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 20), st.integers(1, 255))
def test_damaged_objects_are_refused_or_read(place: int, flip: int) -> None:
    data = bytearray(assembled(CONSTANTS))
    data[place % len(data)] ^= flip
    try:
        read_object(bytes(data))
    except CompileError:
        return


def test_loading_is_quick(loader: Loader) -> None:
    code = assembled(CONSTANTS)
    loaded = [loader.load(code) for _ in range(3)]
    # 4135 with Python 3.11, however many are loaded.
    assert all(count(lambda: loaded.append(loader.load(code))) < 4600 for _ in range(3))


C_TEXT = """
#include <stdint.h>
#include <math.h>
#include <string.h>
static const float weights[4] = {1.5f, -2.0f, 3.0f, 0.25f};
void entry(void **buffers, const int64_t *variables, int64_t from, int64_t to, void *scratch) {
    float *o = buffers[0];
    const float *a = buffers[1];
    int64_t n = variables[0];
    for (int64_t c = from; c < to; c++)
        for (int64_t i = 0; i < n; i++) {
            switch (i % 7) {
            case 0: o[c * n + i] = sinf(a[c * n + i]); break;
            case 1: o[c * n + i] = weights[i & 3]; break;
            case 2: o[c * n + i] = -a[c * n + i]; break;
            case 3: o[c * n + i] = expf(a[c * n + i]); break;
            case 4: o[c * n + i] = 4; break;
            default: memcpy(o + c * n + i, a + c * n + i, sizeof(float));
            }
        }
}
"""


@pytest.mark.skipif(
    not any(shutil.which(name) for name in COMPILERS), reason="no C compiler is installed"
)
def test_a_kernel_in_c() -> None:
    device = open_cpu(2)
    params = (ParamSpec("o", "float32", None, "w"), ParamSpec("a", "float32", None, "r"))
    code = CAssembler().assemble(C_TEXT)
    made = Program("c", CPU_OBJECT, code, "entry", params, ("n",), ("var", "n"), C_TEXT)
    n = 50
    a = np.random.default_rng(0).normal(size=(n, n)).astype(np.float32)
    out, source = device.allocate(a.nbytes), floats(device, a)
    device.run(device.load(made), [out, source], {"n": n})
    weights = np.array([1.5, -2, 3, 0.25], np.float32)
    wanted = a.copy()
    wanted[:, 0::7] = np.sin(a[:, 0::7])
    wanted[:, 1::7] = weights[np.arange(n)[1::7] & 3]
    wanted[:, 2::7] = -a[:, 2::7]
    wanted[:, 3::7] = np.exp(a[:, 3::7])
    wanted[:, 4::7] = 4
    np.testing.assert_allclose(read(out).reshape(n, n), wanted, rtol=1e-6)


def test_relocations_of_aarch64_are_applied() -> None:
    """Decode the patched instructions by hand: there is no such machine here to run them."""
    text = """
declare double @sin(double)
@table = private unnamed_addr constant [2 x i64] [i64 5, i64 6], align 16
define double @f(double %x) nounwind {
  %s = call double @sin(double %x)
  ret double %s
}
define i64 @g(i64 %i) nounwind {
  %p = getelementptr [2 x i64], ptr @table, i64 0, i64 %i
  %v = load i64, ptr %p
  ret i64 %v
}
"""
    loader = Loader(AARCH64)
    loaded = loader.load(LlvmAssembler().assemble(text, ARM))
    words = _words(loaded.address("f"), 4)
    call_at = next(i for i, word in enumerate(words) if word >> 26 == 0b100101)
    target = loaded.address("f") + call_at * 4 + _signed(words[call_at] & 0x3FFFFFF, 26) * 4
    stub = ctypes.string_at(target, 16)
    assert stub[:8] == struct.pack("<II", 0x58000050, 0xD61F0200)
    assert struct.unpack("<Q", stub[8:])[0] == loader.external("sin")
    base = loaded.address("g")
    words = _words(base, 3)
    adrp = next(i for i, word in enumerate(words) if word & 0x9F000000 == 0x90000000)
    pages = _signed((words[adrp] >> 5 & 0x7FFFF) << 2 | words[adrp] >> 29 & 3, 21)
    add = next(word for word in words if word & 0xFFC00000 == 0x91000000)
    table = (base + adrp * 4 & ~0xFFF) + (pages << 12) + (add >> 10 & 0xFFF)
    assert struct.unpack("<qq", ctypes.string_at(table, 16)) == (5, 6)


def _words(address: int, count: int) -> list[int]:
    return list(struct.unpack(f"<{count}I", ctypes.string_at(address, 4 * count)))


def _signed(value: int, width: int) -> int:
    return value - (1 << width) if value >> (width - 1) else value


def test_pages_are_as_the_loader_thinks() -> None:
    assert mmap.PAGESIZE % 4096 == 0
