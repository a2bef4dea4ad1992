"""Linear level to CUDA C: one kernel, the code of one thread, for NVRTC.

It is the text to read beside `ptx.py`, and takes the same programs and signature, but for those of
Hopper's engines. 16-bit floats are held as their codes. The compiler must not contract
floating-point operations (--fmad=false). Source: CUDA C++ Programming Guide 13.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, as_dtype, dtypes
from baregrad.ir.analysis.rows import by_rows
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.render.c.cuda_roles import MAP_TYPE, map_parameters, role_rules
from baregrad.render.c.ops import instruction, place_text, vload, vstore
from baregrad.render.c.text import CText, Dialect, Rule
from baregrad.render.gpu import (
    ACROSS_NBYTES,
    ATOMS,
    BLOCK,
    CLUSTER,
    LATE_NBYTES,
    RANK,
    THREAD,
    WAIT,
    WAITS,
    WARP_LANES,
    GpuSignature,
    check_atomic,
    gpu_signature,
    group_product,
    group_sums,
    is_group_product,
    pieces,
)
from baregrad.render.gpu_integers import narrow_integers
from baregrad.render.group_registers import blocks_of_groups
from baregrad.render.interface import INTEGERS
from baregrad.target.gpu import NvidiaTarget


def render(
    program: Node, target: NvidiaTarget, variables: Sequence[str] | None, arrays: int
) -> str:
    """The translation unit of one PROGRAM: one kernel of the GPU programs' signature."""
    narrowed = narrow_integers(by_rows(program))
    signature = gpu_signature(narrowed, variables, arrays)
    signature.check(target)
    return _Kernel(narrowed, target, signature).text()


_TYPES: MappingProxyType[DType, str] = MappingProxyType(
    {
        **{dtype: f"{dtype.kind[0]}{dtype.bits}" for dtype in INTEGERS},
        dtypes.bool: "u8",
        dtypes.float16: "u16",
        dtypes.bfloat16: "u16",
        dtypes.float8_e4m3fn: "u8",
        dtypes.float8_e5m2: "u8",
        dtypes.tfloat32: "u32",
        dtypes.float32: "float",
        dtypes.float64: "double",
    }
)
# NVRTC has no headers of its own.
_PRELUDE = """typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;"""
_FLOAT16 = (
    (
        "f16_to_f32",
        "float f16_to_f32(u16 x) "
        '{ float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }',
    ),
    (
        "f32_to_f16",
        "u16 f32_to_f16(float x) "
        '{ u16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }',
    ),
)
# The code of a bfloat16 is the upper half of the float32; ties go to even.
_BFLOAT16 = (
    ("bf16_to_f32", "float bf16_to_f32(u16 x) { return __uint_as_float((u32)x << 16); }"),
    (
        "f32_to_bf16",
        "u16 f32_to_bf16(float x) { u32 b = __float_as_uint(x); "
        "return x != x ? 0x7fff : (u16)((b + 0x7fff + (b >> 16 & 1)) >> 16); }",
    ),
)
# Its code is that of a float32 without the low digits.
_TFLOAT32 = (
    ("tf32_to_f32", "float tf32_to_f32(u32 x) { return __uint_as_float(x); }"),
    (
        "f32_to_tf32",
        "u32 f32_to_tf32(float x) "
        '{ u32 y; asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(y) : "f"(x)); return y; }',
    ),
)


def _octet(name: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """How an 8-bit float is widened, by way of float16; nothing narrows to it by one rule."""
    widen = (
        f"{name}_to_f32",
        f"float {name}_to_f32(u8 x) {{ float y; "
        f'asm("{{ .reg .b32 p; .reg .b16 h; cvt.rn.f16x2.{name}x2 p, %1; cvt.u16.u32 h, p; '
        'cvt.f32.f16 %0, h; }" : "=f"(y) : "h"((u16)x)); return y; }',
    )
    return widen, ("", "")


# Assembled from an expression, a chain of them loses the signs of negated operands: see the text of
# PTX. The compiler does not look into this one.
_EXTREME = (
    'i32 r; asm("{ .reg .pred p; setp.{test}.s32 p, %1, %2; selp.b32 %0, %1, %2, p; }"'
    ' : "=r"(r) : "r"((i32)x), "r"((i32)y)); return r;'
)
_NAMES = ("exp2", "sqrt", "floor", "ceil", "trunc", "fma", "fabs", "fmod", "ldexp", "memcpy")
_CUDA = Dialect(
    name="CUDA C",
    types=_TYPES,
    least="(-9223372036854775807LL - 1)",
    functions=MappingProxyType({**{name: name for name in _NAMES}, "roundeven": "rint"}),
    nan="__longlong_as_double(0x7ff8000000000000LL)",
    infinity="__longlong_as_double(0x7ff0000000000000LL)",
    helper="static __device__ __forceinline__",
    each="#pragma unroll",
    stride="",
    halves=MappingProxyType({
        dtypes.float16: _FLOAT16, dtypes.bfloat16: _BFLOAT16,
        dtypes.tfloat32: _TFLOAT32,
        dtypes.float8_e4m3fn: _octet("e4m3"), dtypes.float8_e5m2: _octet("e5m2"),
    }),
    extreme=_EXTREME,
)
_HIDDEN: MappingProxyType[str, str] = MappingProxyType(
    {BLOCK: "(i32)blockIdx.x", THREAD: "(i32)threadIdx.x"}
)


class _Kernel(CText):
    """One kernel being written."""

    def __init__(self, program: Node, target: NvidiaTarget, signature: GpuSignature) -> None:
        super().__init__(program, _CUDA)
        self.target = target
        self.signature = signature
        self.structs: dict[str, str] = {}
        self.roles = role_rules(program, signature, target)
        # The sums of each group of products since nothing was under way; the last group is open.
        self.begun: list[list[str]] = [[]]

    def text(self) -> str:
        """The text of the translation unit."""
        prologue = self._prologue()
        for node in self.program.src:
            instruction(self, node, _RULES)
        registers = self.declared_registers()
        call = self.signature.call
        bounds = str(self.signature.threads)
        if self.program.arg.copiers:
            # Registers change hands where it is said how many there are.
            blocks = blocks_of_groups(self.program, self.signature, self.target)
            bounds += f", {max(blocks, 1)}"
            self.structs["tensor_map"] = MAP_TYPE
        cluster = self.program.arg.cluster
        if cluster > 1:
            bounds += f") __cluster_dims__({cluster}, 1, 1"
        head = (
            f'extern "C" __global__ void __launch_bounds__({bounds})\n'
            f"{call.entry}({', '.join(self._parameters())}) {{"
        )
        if self.target.dependent_launch:
            head += f'\n  asm volatile("{WAIT};" ::: "memory");'
        parts = [_PRELUDE, *self.structs.values(), *self.functions.values(), head]
        return "\n".join([*parts, *prologue, *registers, *self.lines, "}", ""])

    def _parameters(self) -> list[str]:
        call, written = self.signature.call, self.signature.written
        arrays = [
            f"{'' if param in written else 'const '}{self.type(param.dtype)} *b{param.arg.slot}"
            for param in call.params
        ]
        variables = [f"i64 n{place}" for place in range(len(call.variables))]
        return arrays + variables + map_parameters(self.signature.boxes)

    def _prologue(self) -> list[str]:
        """Declarations of memory; what they are called."""
        signature = self.signature
        for param in signature.call.params:
            self.names[param] = f"b{param.arg.slot}"
        lines = []
        if signature.shared_nbytes:
            dynamic = signature.dynamic_nbytes(self.target)
            size = "" if dynamic else str(signature.shared_nbytes)
            linkage = "extern " if dynamic else ""
            lines.append(
                f"  {linkage}__shared__ __align__({signature.alignment}) u8 shared_memory[{size}];"
            )
        for alloc, offset in signature.shared.items():
            place = f"(shared_memory + {offset})"
            lines.append(self.pointer(alloc, f"a{alloc.arg.id}", place))
        for alloc in signature.own:
            declared = self.local(alloc, "__device__ __align__(16) ").strip()
            self.structs[self.names[alloc]] = declared
        return lines + [self.local(alloc, "__align__(16) ") for alloc in signature.private]

    def variable(self, node: Node) -> str:
        """The number of a block or thread, or an argument."""
        name: str = node.arg.name
        if name in (CLUSTER, RANK):
            # Blocks of a cluster are neighbours.
            part = "/" if name == CLUSTER else "%"
            return f"(i32)(blockIdx.x {part} {self.program.arg.cluster}u)"
        if name in _HIDDEN:
            return _HIDDEN[name]
        if name not in self.signature.call.variables:
            raise CompilerBug("a variable that a GPU kernel does not have", found=name)
        return f"n{self.signature.call.variables.index(name)}"

    def vector(self, dtype: DType, lanes: int) -> str:
        """A type of adjacent elements that are loaded and stored together."""
        kind = self.type(dtype)
        name = f"{kind}x{lanes}"
        nbytes = lanes * dtype.itemsize
        self.structs[name] = f"struct __align__({nbytes}) {name} {{ {kind} x[{lanes}]; }};"
        return name


# --- memory --------------------------------------------------------------------------------------


def _pieces(f: _Kernel, node: Node) -> Iterator[tuple[int, int, str, str]]:
    """Of each vector access: its first element and their number, its place and its type.

    There are none where lanes go one by one, and a single element has no type of its own.
    """
    access, dtype = node.arg, node.src[0].dtype
    masked = len(node.src) > (2 if node.op is Ops.VLOAD else 3)
    if access.width == 1 or access.stride != 1 or node.src[1].shape or masked:
        return
    # The compiler has no vectors of more than 16 bytes.
    most = min(f.target.load_bytes, 16)
    for first, count in pieces(dtype.itemsize, access.width, access.align, most):
        kind = f.vector(dtype, count) if count > 1 else ""
        yield first, count, place_text(f, node, str(first) if first else ""), kind


def _vload(f: CText, node: Node) -> None:
    assert isinstance(f, _Kernel)
    spans = list(_pieces(f, node))
    if not spans:
        vload(f, node)
        return
    name = f.fresh(node)
    f.line(f"{f.type(node.dtype)} {name}[{node.arg.width}];")
    for first, count, place, kind in spans:
        if not kind:
            f.line(f"{name}[{first}] = {place};")
            continue
        f.count += 1
        f.line(f"const {kind} v{f.count} = *(const {kind} *)&{place};")
        f.each(count, f"{name}[l + {first}] = v{f.count}.x[l];")


def _vstore(f: CText, node: Node) -> None:
    assert isinstance(f, _Kernel)
    value = node.src[2]
    spans = list(_pieces(f, node))
    if not spans:
        vstore(f, node)
    for first, count, place, kind in spans:
        lane = f"{f.array(value)}[{'l + ' if kind else ''}{first}]" if value.shape else f.use(value)
        if not kind:
            f.line(f"{place} = {lane};")
            continue
        f.count += 1
        f.line(f"{kind} v{f.count};")
        f.each(count, f"v{f.count}.x[l] = {lane};")
        f.line(f"*({kind} *)&{place} = v{f.count};")


# --- what threads do together --------------------------------------------------------------------

_SHUFFLES: MappingProxyType[str, str] = MappingProxyType(
    {"bfly": "__shfl_xor_sync", "down": "__shfl_down_sync", "up": "__shfl_up_sync",
     "idx": "__shfl_sync"}
)  # fmt: skip


def _barrier(f: CText, node: Node) -> None:
    if not node.src and node.arg.immediates in ((), (0,)):
        f.line("__syncthreads();")
    elif node.src and node.src[0].op is Ops.CONST:
        meets = f"{node.src[0].arg}, {WARP_LANES * node.arg.immediates[0]}"
        f.line(f'asm volatile("bar.sync {meets};" ::: "memory");')
    else:
        raise CompilerBug("CUDA C has no barrier whose number is computed", found=node)


def _shuffle(f: CText, node: Node) -> None:
    (value,) = node.src
    function = _SHUFFLES[node.arg.name.rpartition(".")[2]]
    operand, kind = f.use(value), f.type(node.dtype)
    # There are none of fewer than 32 bits.
    carried = operand if node.dtype.bits >= 32 else f"(u32){operand}"
    f.define(node, f"({kind}){function}(0xffffffffu, {carried}, {node.arg.immediates[0]})")


def _atomic(f: CText, node: Node) -> None:
    buffer, offset, value, *mask = node.src
    check_atomic(node)
    name = node.arg.name.rpartition(".")[2]
    at = sum(node.arg.immediates)
    place, operand = f"&{f.names[buffer]}[{f.use(offset)} + {at}]", f.use(value)
    if name == "add" and buffer.dtype is dtypes.int64:
        # Sums wrap alike whatever their sign.
        place, operand = f"(u64 *){place}", f"(u64){operand}"
    text = f"atomic{name.capitalize()}({place}, {operand})"
    if node.dtype is dtypes.token:
        f.line(f"if ({f.use(mask[0])}) {text};" if mask else f"{text};")
    else:
        f.define(node, f"({f.type(node.dtype)}){text}")


def _copy(f: CText, node: Node) -> None:
    """An asynchronous copy; in the text of PTX, since the compiler has no headers."""
    nbytes, to, first = (*node.arg.immediates, 0, 0)[:3]
    shared, at, array, offset, *mask = node.src
    target = f"(u32)__cvta_generic_to_shared(&{f.names[shared]}[{f.use(at)} + {to}])"
    origin = f"&{f.names[array]}[{f.use(offset)} + {first}]"
    taken = f"{f.use(mask[0])} ? {nbytes} : 0" if mask else str(nbytes)
    way = "cg" if nbytes == 16 else "ca"
    f.line(
        f'asm volatile("cp.async.{way}.shared.global [%0], [%1], {nbytes}, %2;" :: '
        f'"r"({target}), "l"({origin}), "r"({taken}) : "memory");'
    )


def _store_run(f: CText, node: Node) -> None:
    """A run of bytes from shared memory to an array."""
    nbytes, first, at = node.arg.immediates
    array, offset, shared, start = node.src
    target = f"&{f.names[array]}[{f.use(offset)} + {first}]"
    origin = f"(u32)__cvta_generic_to_shared(&{f.names[shared]}[{f.use(start)} + {at}])"
    f.line(
        f'asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], {nbytes};" :: '
        f'"l"({target}), "r"({origin}) : "memory");'
    )


def _bulk_wait(f: CText, node: Node) -> None:
    """Runs were read, or are stored."""
    keep, reads_only = node.arg.immediates
    how = ".read" if reads_only else ""
    f.line(f'asm volatile("cp.async.bulk.wait_group{how} {keep};" ::: "memory");')


def _group(f: CText, node: Node) -> None:
    """A group of copies is closed, or waited for."""
    closes = node.arg.name == "cp.async.commit"
    text = "commit_group" if closes else f"wait_group {node.arg.immediates[0]}"
    f.line(f'asm volatile("cp.async.{text};" ::: "memory");')


def _cells(f: CText, register: Node) -> list[str]:
    """The variables of a register, one a lane."""
    name = f.array(register)
    return [f"{name}[{lane}]" for lane in range(register.shape[0])] if register.shape else [name]


def _load_matrices(f: CText, node: Node) -> None:
    """Matrices of 8 x 8 to registers."""
    count, turned, first = (*node.arg.immediates, 0)[:3]
    array, offset, *registers = node.src
    names = [name for register in registers for name in _cells(f, register)]
    way = ".trans" if turned else ""
    holes = ", ".join([f"%{place}" for place in range(count)])
    outs = ", ".join([f'"=r"({name})' for name in names])
    place = f"(u32)__cvta_generic_to_shared(&{f.names[array]}[{f.use(offset)} + {first}])"
    f.line(
        f'asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{way}.shared.b16 {{{holes}}}, '
        f'[%{count}];" : {outs} : "r"({place}) : "memory");'
    )


def _load_across(f: CText, node: Node) -> None:
    """Two neighbours at a lane's place, and two of 4 steps on or back: the first steps' first."""
    (first,) = node.arg.immediates
    array, offset, *registers = node.src
    names = [name for register in registers for name in _cells(f, register)]
    outs = ", ".join([f'"=r"({name})' for name in names])
    place = f"(u32)__cvta_generic_to_shared(&{f.names[array]}[{f.use(offset)}])"
    chosen = " ".join([
        f"selp.b32 %{number}, {theirs}, {mine}, late;"
        for number, (mine, theirs) in enumerate(zip("acbd", "bdac", strict=True))
    ])  # fmt: skip
    f.line(
        'asm volatile("{ .reg .pred late; .reg .b32 o, a, b, c, d; '
        f"and.b32 o, %4, {LATE_NBYTES}; setp.ne.u32 late, o, 0; xor.b32 o, %4, {ACROSS_NBYTES}; "
        f"ld.shared.v2.b32 {{a, c}}, [%4+{4 * first}]; "
        f"ld.shared.v2.b32 {{b, d}}, [o+{4 * first}]; "
        f'{chosen} }}" : {outs} : "r"({place}) : "memory");'
    )


_SHORT = MappingProxyType({
    "float16": "f16", "bfloat16": "bf16", "tfloat32": "tf32", "int8": "s8", "uint8": "u8",
    "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
})  # fmt: skip


def _multiply(f: CText, node: Node) -> None:
    """A product of a warp's matrices, added to registers."""
    depth, kind, *lanes = node.arg.immediates[:4]
    if kind not in _SHORT:
        raise CompilerBug("CUDA C has no such product of matrices", found=kind)
    factors = [name for register in node.src[:-2] for name in _cells(f, register)]
    cells = [_cells(f, register) for register in node.src[-2:]]
    total = [each[lane] for each in cells for lane in lanes or range(2)]
    names = [*factors, *total]
    holes = [f"%{place}" for place in range(len(names))]
    words = 2 * len(factors) // 3
    c, a, b = holes[:4], holes[4 : 4 + words], holes[4 + words :]
    braces = ["{" + ", ".join(part) + "}" for part in (c, a, b, c)]
    letter, sums = ("f", "f32") if as_dtype(kind).is_float else ("r", "s32")
    outs = ", ".join([f'"+{letter}"({name})' for name in total])
    ins = ", ".join([f'"r"({name})' for name in factors])
    kinds = f"{sums}.{_SHORT[kind]}.{_SHORT[kind]}.{sums}"
    opcode = f"mma.sync.aligned.m16n8k{depth}.row.col.{kinds}"
    f.line(f'asm volatile("{opcode} {", ".join(braces)};" : {outs} : {ins});')


def _rows(f: CText, array: Node, offset: Node, at: int, panel: int) -> str:
    """The descriptor of rows of 128 bytes whose chunks are exchanged, eight rows after eight."""
    place = f"__cvta_generic_to_shared(&{f.names[array]}[{f.use(offset)} + {at}])"
    rest = 1 << 62 | 1024 >> 4 << 32 | panel * array.dtype.itemsize >> 4 << 16
    return f"((u64)((u32){place} >> 4 & 0x3FFF) | {rest}ull)"


def _sums(f: CText, node: Node) -> list[str]:
    """The operands that a product of groups is added to."""
    beside, tiles = node.arg.immediates[7], node.arg.immediates[10:]
    found = []
    for number, register in enumerate(group_sums(node)):
        cells, tile = _cells(f, register), tiles[number // 2]
        letter = "f" if register.dtype.is_float else "r"
        found += [f'"+{letter}"({cells[place]})' for place in (tile, beside + tile)]
    return found


def _multiply_groups(f: CText, node: Node) -> None:
    """A product of the matrices of four warps, added to registers, some time."""
    assert isinstance(f, _Kernel)
    kind_a, kind_b, turn_a, turn_b, panel, at_a, at_b, _, _, keep = node.arg.immediates[:10]
    tiles = node.arg.immediates[10:]
    *held, b, offset_b = node.src[: -len(group_sums(node))]
    sums = _sums(f, node)
    f.begun[-1] += sums
    holes, outs = ", ".join([f"%{place}" for place in range(len(sums))]), ", ".join(sums)
    is_held = node.arg.name == "wgmma.held"
    if is_held:
        left = [f'"r"({f.use(word)})' for word in held]
    else:
        left = [f'"l"({_rows(f, held[0], held[1], at_a, 0)})']
    ins = ", ".join([*left, f'"l"({_rows(f, b, offset_b, at_b, panel)})'])
    count = len(sums)
    turned = (turn_b,) if is_held else (turn_a, turn_b)
    opcode, settings = group_product(kind_a, kind_b, turned, 8 * len(tiles))
    first = ", ".join([f"%{count + place}" for place in range(len(left))])
    first = f"{{{first}}}" if is_held else first
    operands = ", ".join([f"{{{holes}}}", first, f"%{count + len(left)}", "p", *settings])
    f.line(
        f'asm volatile("{{ .reg .pred p; setp.{"eq" if keep else "ne"}.u32 p, 0, 0; '
        f'{opcode} {operands}; }}" : {outs} : {ins} : "memory");'
    )


def _commit_products(f: CText, node: Node) -> None:
    """What was begun is a group."""
    assert isinstance(f, _Kernel)
    f.line('asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");')
    f.begun.append([])


def _wait_for_products(f: CText, node: Node) -> None:
    """All but some groups are waited for, and their sums are read behind that.

    To the compiler a sum is there once it was begun, so that it might read it ahead of the wait.
    Where it moves other arithmetic across waits, time is lost and nothing else.
    """
    assert isinstance(f, _Kernel)
    (keep,) = node.arg.immediates
    f.line(f'asm volatile("wgmma.wait_group.sync.aligned {keep};" ::: "memory");')
    groups = f.begun[:-1]
    if not keep:
        # Also what was begun further below, in the iteration before.
        groups = [_sums(f, each) for each in f.program.src if is_group_product(each)]
        f.begun = [[]]
    running = {each for group in groups[len(groups) - keep :] for each in group}
    done = dict.fromkeys([each for group in groups for each in group if each not in running])
    if done:
        f.line(f'asm volatile("" : {", ".join(done)} :: "memory");')


def _plain(text: str) -> Callable[[CText, Node], None]:
    """An instruction without operands."""

    def rule(f: CText, node: Node) -> None:
        f.line(f'asm volatile("{text};" ::: "memory");')

    return rule


def _pack(f: CText, node: Node) -> None:
    """Two floats rounded to 16 bits each, as a word."""
    pair, word = node.src
    low, high = _cells(f, pair)
    opcode = f"cvt.rn.{_SHORT[node.arg.immediates[0]]}x2.f32"
    (target,) = _cells(f, word)
    f.line(f'asm("{opcode} %0, %1, %2;" : "=r"({target}) : "f"({high}), "f"({low}));')


def _widen(f: CText, node: Node) -> None:
    """The four 8-bit floats of a word as two 16-bit ones in each of two words."""
    word, *targets = node.src
    source, target, turned = node.arg.immediates
    kind, short = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}[source], _SHORT[target]
    (given,) = _cells(f, word)
    order = "prmt.b32 w, %2, 0, 0x3120; " if turned else "mov.b32 w, %2; "
    lines = "mov.b32 {l, h}, w; " + "".join(
        f"cvt.rn.f16x2.{kind}x2 {pair}, {half}; " for pair, half in (("p", "l"), ("q", "h"))
    )
    if short == "f16":
        lines += "mov.b32 %0, p; mov.b32 %1, q; "
    else:
        lines += "".join(
            f"mov.b32 {{l, h}}, {pair}; cvt.f32.f16 x, l; cvt.f32.f16 y, h; "
            f"cvt.rn.{short}x2.f32 {place}, y, x; " for pair, place in (("p", "%0"), ("q", "%1"))
        )
    first, second = (_cells(f, one)[0] for one in targets)
    names = ".reg .b32 w, p, q; .reg .b16 l, h; .reg .f32 x, y; "
    f.line(f'asm("{{ {names}{order}{lines}}}" : "=&r"({first}), "=&r"({second}) : "r"({given}));')


_MACHINE: MappingProxyType[str, Callable[[CText, Node], None]] = MappingProxyType(
    {
        "bar.sync": _barrier,
        "bar.warp.sync": lambda f, node: f.line("__syncwarp();"),
        **dict.fromkeys([f"shfl.sync.{mode}" for mode in _SHUFFLES], _shuffle),
        **dict.fromkeys(ATOMS, _atomic),
        # All threads of a kernel in C++ wait first.
        WAITS: lambda f, node: None,
        "cp.async": _copy,
        "cp.async.commit": _group,
        "cp.async.wait": _group,
        "elect": lambda f, node: f.define(node, "(threadIdx.x & 31) == 0"),
        "bulk.store": _store_run,
        "bulk.commit": _plain("cp.async.bulk.commit_group"),
        "bulk.wait": _bulk_wait,
        "ldmatrix": _load_matrices,
        "ldmatrix.across": _load_across,
        "mma.sync": _multiply,
        "cvt.pack": _pack,
        "cvt.widen": _widen,
        "fence.proxy.async": _plain("fence.proxy.async.shared::cta"),
        **dict.fromkeys(("wgmma", "wgmma.held"), _multiply_groups),
        "bar.warp": _plain("bar.warp.sync 0xFFFFFFFF"),
        "wgmma.fence": _plain("wgmma.fence.sync.aligned"),
        "wgmma.commit": _commit_products,
        "wgmma.wait": _wait_for_products,
    }
)


def _machine(f: CText, node: Node) -> None:
    assert isinstance(f, _Kernel)
    rule = _MACHINE.get(node.arg.name) or f.roles.get(node.arg.name)
    if rule is None:
        raise CompilerBug(
            "CUDA C has no rule for a machine instruction",
            found=node.arg.name,
            wanted=", ".join(sorted(_MACHINE)),
        )
    rule(f, node)


_RULES: MappingProxyType[Op, Rule] = MappingProxyType(
    {Ops.VLOAD: _vload, Ops.VSTORE: _vstore, Ops.MACHINE: _machine}
)
