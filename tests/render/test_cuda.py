"""CUDA C: what it looks like, and, where a compiler of it is found, that its PTX is right.

The vendor's compiler makes PTX of one text with every kernel below, and the interpreter runs it.
"""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from baregrad import render
from baregrad.assemble.cuda_toolkit import find_program
from baregrad.assemble.nvrtc import CudaAssembler
from baregrad.base.errors import CompilerBug, MissingDependency
from baregrad.dtypes import COMPUTED, DType, dtypes
from baregrad.ir.core.node import Node, alu, cast, const
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.kernel_level import evaluate_kernel
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.render.gpu import gpu_signature
from baregrad.testing.examples.nests import attended
from baregrad.testing.virtual_gpu.ptx.program import PtxModule
from tests.kernel import kernels as k
from tests.kernel.gpu_kernels import lowered
from tests.kernel.instructions.test_mma_sync import product
from tests.kernel.instructions.test_wgmma import ASYNC, text_of_turned, turned_product
from tests.kernel.instructions.test_wgmma import text as groups_text
from tests.render.gpu_harness import (
    HOPPER,
    I64,
    TOKEN,
    Writer,
    alloc,
    lower,
    run_module,
    scheduled,
    spread,
)
from tests.render.harness import ENTRY, elementwise, same_bits, tools
from tests.render.test_alu import Function, blank, functions_of, pairs, stores
from tests.render.test_ptx_kernels import FAMILIES, LARGER
from tests.render.test_ptx_memory import SHUFFLED, copy_program, param, stored

pytestmark = pytest.mark.differential
# Virtual: the interpreter knows no later instructions than these.
ARCHITECTURE = "sm_90a"


@functools.cache
def nvcc() -> Path | None:
    try:
        return find_program("nvcc", "nvidia-cuda-nvcc")
    except MissingDependency:
        return None


@functools.cache
def nvrtc() -> CudaAssembler | None:
    assembler = CudaAssembler(ARCHITECTURE)
    try:
        assert assembler.version
    except MissingDependency:
        return None
    return assembler


COMPILED = pytest.mark.skipif(
    nvcc() is None and nvrtc() is None, reason="neither NVRTC nor nvcc is installed"
)


def text_of(program: Node) -> str:
    return render.get("cuda").render(program, HOPPER)


def to_ptx(text: str) -> str:
    """PTX of CUDA C, by NVRTC or else by nvcc."""
    library = nvrtc()
    if library is not None:
        return library.to_ptx(text)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "k.cu", Path(folder) / "k.ptx"
        source.write_text(text)
        flags = ["-ptx", "-fmad=false", "-std=c++17", "-arch=compute_90a"]
        command = [str(nvcc()), *flags, str(source), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return target.read_text()


def together(programs: list[Node]) -> str:
    """One text of several kernels: what stands before them once."""
    heads: dict[str, None] = {}
    bodies = []
    for program in programs:
        head, mark, body = text_of(program).partition('extern "C"')
        heads.update(dict.fromkeys(head.splitlines()))
        bodies.append(mark + body)
    return "\n".join([*heads, *bodies])


def every_op(dtype: DType) -> list[Function]:
    functions = functions_of(dtype)
    functions.append(lambda x, y: alu(Ops.WHERE, alu(Ops.CMPLE, x, y), x, y))
    functions += [lambda x, y, t=to: cast(y, t) for to in COMPUTED]
    same = [to for to in COMPUTED if to.bits == dtype.bits and "bool" not in (to.kind, dtype.kind)]
    return functions + [lambda x, y, t=to: Node(Ops.BITCAST, t, (x,)) for to in same]


def named(program: Node, name: str) -> Node:
    return program.replace(arg=program.arg._replace(name=name))


def op_program(dtype: DType) -> Node:
    count = len(pairs(dtype)[0])
    program = spread(lower(elementwise(every_op(dtype), count, (dtype, dtype), 2), HOPPER))
    return named(program, f"ops_{dtype}")


def shuffle_program(dtype: DType) -> Node:
    w = Writer(f"shuffle_{dtype}")
    me = w.thread(64)
    value = w.load(param(1, 64, dtype), me)
    for mode in ("bfly", "down", "up", "idx"):
        value = w.machine(f"shfl.sync.{mode}", value, imm=(3,), dtype=dtype)
    w.store(param(0, 64, dtype), me, value)
    return w.program()


COPIES = [
    (dtype, width, align)
    for dtype in (dtypes.bool, dtypes.int8, dtypes.float16, dtypes.float32, dtypes.float64)
    for width, align in ((1, dtype.itemsize), (3, dtype.itemsize), (8, 16), (16, 16))
]


def copy_named(dtype: DType, width: int, align: int) -> Node:
    return named(copy_program(dtype, width, align), f"copy_{dtype}_{width}")


@functools.cache
def compiled() -> PtxModule:
    """PTX of every kernel that the tests below run."""
    programs = [op_program(dtype) for dtype in COMPUTED]
    programs += [shuffle_program(dtype) for dtype in SHUFFLED]
    programs += [copy_named(*row) for row in COPIES]
    for place, (make, sizes) in enumerate([*FAMILIES, *LARGER]):
        programs.append(named(scheduled(make(*sizes))[0], f"family{place}"))
    return PtxModule.parse(to_ptx(together(programs)))


@COMPILED
@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
def test_ops_agree(dtype: DType) -> None:
    arrays = list(pairs(dtype))
    if dtype.is_float:
        # What a NaN's bits are is nobody's business, and BITCAST would show them.
        x = arrays[0]
        keep = np.isfinite(x.astype(np.float64)) if dtype.numpy else (x & 0x7F80) != 0x7F80
        arrays[0] = np.where(keep, x, x.dtype.type(0))
    count = len(arrays[0])
    whole = elementwise(every_op(dtype), count, (dtype, dtype), count)
    expected, found = blank(whole, count), blank(whole, count)
    evaluate_loop(whole, [*expected, *arrays])
    run_module(compiled(), op_program(dtype), [*found, *arrays])
    for place, store in enumerate(stores(whole)):
        assert same_bits(expected[place], found[place], store.src[0].dtype), store.src[1]


@COMPILED
@pytest.mark.parametrize("place", range(len(FAMILIES) + len(LARGER)))
def test_families_run_as_gpus_run_them(place: int) -> None:
    make, sizes = [*FAMILIES, *LARGER][place]
    kernel = make(*sizes)
    program, blocks = scheduled(kernel)
    arrays = k.arguments(kernel)
    expected = {slot: np.array(array) for slot, array in arrays.items()}
    evaluate_kernel(kernel, expected)
    found = [np.array(arrays[slot]) for slot in range(len(arrays))]
    run_module(compiled(), named(program, f"family{place}"), found, grid=blocks)
    k.assert_equal(expected, dict(enumerate(found)), 10)


@COMPILED
@pytest.mark.parametrize("dtype", SHUFFLED, ids=str)
def test_shuffles(dtype: DType) -> None:
    data = stored(dtype, 64)
    found = np.zeros_like(data)
    run_module(compiled(), shuffle_program(dtype), [found, data])
    expected = data.reshape(2, 32)
    lane = np.arange(32)
    down, up = np.where(lane + 3 < 32, lane + 3, lane), np.where(lane >= 3, lane - 3, lane)
    for source in (lane ^ 3, down, up, 0 * lane + 3):
        expected = expected[:, source]
    np.testing.assert_array_equal(found, expected.reshape(-1))


@COMPILED
@pytest.mark.parametrize("dtype,width,align", COPIES)
def test_copies(dtype: DType, width: int, align: int) -> None:
    data = stored(dtype, 4 * width)
    found = np.zeros_like(data)
    run_module(compiled(), copy_named(dtype, width, align), [found, data])
    np.testing.assert_array_equal(found, data)


@COMPILED
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_groups_of_warps(turned: bool) -> None:
    kernel = product(64, 64, 192, turned, not turned)
    loop, program = lowered(kernel, groups_text((turned, not turned), ASYNC.format(3)))
    arrays = k.arguments(kernel)
    expected = {slot: np.array(array) for slot, array in arrays.items()}
    evaluate_loop(loop, expected)
    found = [np.array(arrays[slot]) for slot in range(len(arrays))]
    run_module(PtxModule.parse(to_ptx(text_of(program))), program, found)
    k.assert_equal(expected, dict(enumerate(found)))


@COMPILED
def test_products_of_what_lanes_read() -> None:
    kernel = turned_product(64, 64, 96)
    loop, program = lowered(kernel, text_of_turned(ASYNC.format(3)))
    arrays = k.arguments(kernel)
    expected = {slot: np.array(array) for slot, array in arrays.items()}
    evaluate_loop(loop, expected)
    found = [np.array(arrays[slot]) for slot in range(len(arrays))]
    run_module(PtxModule.parse(to_ptx(text_of(program))), program, found)
    k.assert_equal(expected, dict(enumerate(found)))


# --- what needs no compiler ----------------------------------------------------------------------


def test_sums_of_groups_of_warps_are_read_behind_their_wait() -> None:
    """Where the compiler may believe that they are there, it may read them sooner."""
    spelled = "Schedule(stream_tiles(2, 1, 64, instruction='wgmma', ahead=1))"
    lines = text_of(lowered(attended(128, 256, 64), spelled)[1]).splitlines()
    sums = [set(re.findall(r'"\+f"\(([^()]+)\)', line)) for line in lines]
    begun = [place for place, line in enumerate(lines) if "wgmma.mma_async" in line]
    every = set().union(*[sums[place] for place in begun])
    waits = {place: int(found[1]) for place, line in enumerate(lines)
             if (found := re.search(r"wgmma\.wait_group\S* (\d);", line))}  # fmt: skip
    assert len(waits) > 2 and {*waits.values()} == {0, 1}
    for place, keep in waits.items():
        running = sums[max(one for one in begun if one < place)] if keep else set()
        assert sums[place + 1] and every - sums[place + 1] == running


def test_the_text_says_what_runs_it() -> None:
    w = Writer("turn")
    shared = alloc(1, 64, dtypes.float32, "shared")
    me = w.thread(64)
    w.store(shared, me, w.load(param(1, 64), me))
    w.machine("bar.sync", imm=(0,))
    w.store(param(0, 64), me, w.load(shared, w.do(Ops.SUB, const(63, I64), me)))
    text = text_of(w.program())
    assert '__launch_bounds__(64)\nturn(float *b0, const float *b1) {' in text
    assert "__shared__ __align__(16) u8 shared_memory[256];" in text
    assert "__syncthreads();" in text and "(i32)threadIdx.x" in text
    assert text == text_of(w.program())


def test_wide_accesses_are_vectors() -> None:
    text = text_of(copy_program(dtypes.float32, 8, 16))
    assert "struct __align__(16) floatx4 { float x[4]; };" in text
    assert text.count("*(const floatx4 *)&b1[") == 2 and text.count("*(floatx4 *)&b0[") == 2


@pytest.mark.parametrize("dtype", (dtypes.int32, dtypes.int8, dtypes.int64), ids=str)
def test_extremes_of_signed_integers_are_hidden_from_the_compiler(dtype: DType) -> None:
    """A chain of them with negated operands came out wrong from the assembler."""
    functions = [lambda x, y, op=op: alu(op, x, alu(Ops.NEG, y)) for op in (Ops.MAX, Ops.MIN)]
    text = text_of(lower(elementwise(functions, 4, (dtype, dtype), 2), HOPPER))
    wanted = 0 if dtype is dtypes.int64 else 1
    assert text.count("setp.gt.s32") == text.count("setp.lt.s32") == wanted


def test_what_has_no_text_is_named() -> None:
    programs = []
    for words, name in (("no rule for a machine", "setmaxnreg"), ("no barrier", "bar.sync")):
        w = Writer()
        w.machine(name, imm=(4,))
        programs.append((words, w.program()))
    w = Writer()
    w.put(Ops.BEGIN, I64, const(0, I64), const(1, I64), const(2, I64), arg=1)
    w.end()
    programs.append(("a CPU's chunks", w.program()))
    w = Writer()
    w.put(Ops.BARRIER, TOKEN)
    programs.append(("no rule", w.program()))
    w = Writer()
    w.put(Ops.EXP, dtypes.float32, w.load(param(1, 4), 0))
    programs.append(("no rule", w.program()))
    for words, program in programs:
        with pytest.raises(CompilerBug, match=words):
            text_of(program)


# What a host's compiler needs to take the text as C.
_SHIMS = """
#define memcpy __builtin_memcpy
#define rint __builtin_roundeven
#define rintf __builtin_roundevenf
typedef struct { int x; } place;
static inline double __longlong_as_double(i64 x) { double y; memcpy(&y, &x, 8); return y; }
static inline float __uint_as_float(u32 x) { float y; memcpy(&y, &x, 4); return y; }
static inline u32 __float_as_uint(float x) { u32 y; memcpy(&y, &x, 4); return y; }
#define APART static __attribute__((noinline))
APART float f16_to_f32(u16 x) { _Float16 y; memcpy(&y, &x, 2); return y; }
APART u16 f32_to_f16(float x) { _Float16 h = x; u16 y; memcpy(&y, &h, 2); return y; }
"""


def host_text(program: Node) -> str:
    """The kernel as C for this machine: its threads one after the other, as a CPU kernel."""
    sig = gpu_signature(program)
    text = re.sub(r"static __device__ \S+ \S+ (f16_to|f32_to_f16).*\n", "", text_of(program))
    text = text.replace("static __device__ __forceinline__", "static inline")
    text = text.replace('asm volatile("griddepcontrol.wait;" ::: "memory");', "")
    head = "static inline void kernel(place threadIdx, "
    text = re.sub(r'extern "C" __global__ .*\n\w+\(', head, text)
    for name in ("sqrt", "floor", "ceil", "trunc", "fma", "fabs", "fmod"):
        text = re.sub(rf"\b{name}(f?)\(", rf"__builtin_{name}\1(", text)
    for test, sign in (("gt", ">"), ("lt", "<")):
        choice = rf'asm\("[^"]*setp\.{test}\.s32[^"]*" : "=r"\(r\)[^;]*;'
        text = re.sub(choice, f"r = x {sign} y ? x : y;", text)
    prelude, mark, rest = text.partition("typedef unsigned long long u64;")
    arrays = ", ".join(f"buffers[{place}]" for place in range(len(sig.call.params)))
    return f"""{prelude}{mark}{_SHIMS}{rest}
void entry(void **buffers, i64 *variables, i64 begin, i64 end, void *scratch) {{
  for (place thread = {{0}}; thread.x < {sig.threads}; thread.x++) kernel(thread, {arrays});
}}"""


@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
def test_ops_agree_on_this_machine(dtype: DType) -> None:
    """Expressions mean the same to the host's compiler, which is always there."""
    arrays = list(pairs(dtype))
    count = len(arrays[0])
    whole = elementwise(functions_of(dtype), count, (dtype, dtype), count)
    expected, found = blank(whole, count), blank(whole, count)
    evaluate_loop(whole, [*expected, *arrays])
    program = spread(lower(elementwise(functions_of(dtype), count, (dtype, dtype), 2), HOPPER))
    loader, _, cc = tools()
    loaded = loader.load(cc.assemble(host_text(program)))
    every = [*found, *arrays]
    addresses = (ctypes.c_void_p * len(every))(*(array.ctypes.data for array in every))
    ENTRY(loaded.address("entry"))(ctypes.addressof(addresses), None, 0, 1, None)
    for place, store in enumerate(stores(whole)):
        assert same_bits(expected[place], found[place], store.src[0].dtype), store.src[1]
