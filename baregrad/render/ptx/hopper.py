"""The MACHINE instructions of Hopper's engines in PTX, as `ir/evaluate/gpu_hopper.py` has them.

In the code of whole warps a vector has an element in each thread, and addresses in shared memory
count from the start of what `KernelInfo.shared_nbytes` asks for. In that of one thread a barrier is
an element of an array.
Source: PTX ISA, "mbarrier", "cp.async.bulk.tensor", "wgmma", "stmatrix", "setmaxnreg".
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from baregrad.base.errors import CompilerBug
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.render.gpu import box_of, group_product, group_sums
from baregrad.render.group_registers import register_change
from baregrad.render.ptx.memory import place_of
from baregrad.render.ptx.text import ALL_LANES, PtxText, Rule, braces

# Swizzles by their bits, as a matrix descriptor names them: of 32, 64 and 128 bytes.
_SWIZZLE_CODES: MappingProxyType[int, int] = MappingProxyType({1: 3, 2: 2, 3: 1})
# Bytes of eight rows of 128.
_ROWS_NBYTES = 1024


def _role_registers(f: PtxText, node: Node) -> None:
    opcode = register_change(f.program, f.signature, f.target, node)
    if opcode:
        f.emit(*opcode)


def registers_at_launch(f: PtxText) -> int:
    """The registers that each thread has before the first `setmaxnreg`."""
    return min(f.target.registers_at_launch(f.signature.threads), f.target.registers_per_thread)


def _shared(f: PtxText, node: Node) -> str:
    """An address in shared memory: a register, or a symbol with a displacement."""
    name = f.one(node)
    if not name.startswith("%"):
        return f"shared_memory+{name}" if name != "0" else "shared_memory"
    key = (f.program, (name,))
    found = f.addresses.get(key)
    if found is None:
        word = f.word(node)
        start = f.made("%r", "mov.u32", "shared_memory")
        found = f.remember(key, f.made("%r", "add.u32", start, word))
    return found


def _barrier(f: PtxText, src: Sequence[Node]) -> tuple[str, Sequence[Node]]:
    """The address of a barrier, an address or an array and a place, and the sources behind it."""
    if src[0].op is Ops.ALLOC:
        return place_of(f, src[0], src[1], 0, 0).text(), src[2:]
    return f"[{_shared(f, src[0])}]", src[1:]


def _in_register(f: PtxText, place: str) -> str:
    """An address in shared memory, where an operand takes no symbols."""
    if place.startswith("%"):
        return place
    symbol, _, displacement = place.partition("+")
    start = f.made("%r", "mov.u32", symbol)
    if displacement:
        f.emit("add.u32", start, start, displacement)
    return start


# --- who runs ------------------------------------------------------------------------------------


def _warp(f: PtxText, node: Node) -> None:
    """The warp's number, taken from lane 0 so that the assembler knows it is the same in all."""
    (result,) = f.define(node)
    warp = f.made("%r", "shr.u32", f.made("%r", "mov.u32", "%tid.x"), "5")
    same = f.made("%r", "shfl.sync.idx.b32", warp, "0", "31", ALL_LANES)
    f.emit("cvt.u64.u32", result, same)


def _among(f: PtxText, node: Node) -> None:
    """Whether a thread is of some warps, the same for all of its own."""
    (result,) = f.define(node)
    first, count = node.arg.immediates
    warp = f.made("%r", "shr.u32", f.made("%r", "mov.u32", "%tid.x"), "5")
    same = f.made("%r", "shfl.sync.idx.b32", warp, "0", "31", ALL_LANES)
    f.emit("setp.lt.u32", result, f.made("%r", "sub.u32", same, str(first)), str(count))


def _special(register: str) -> Rule:
    def rule(f: PtxText, node: Node) -> None:
        (result,) = f.define(node)
        f.emit("cvt.u64.u32", result, f.made("%r", "mov.u32", register))

    return rule


def _plain(*opcodes: str) -> Rule:
    """Instructions without operands."""

    def rule(f: PtxText, node: Node) -> None:
        for opcode in opcodes:
            f.emit(opcode)

    return rule


def _set_registers(f: PtxText, node: Node) -> None:
    wanted = node.arg.immediates[0]
    if wanted not in f.target.register_shift:
        raise CompilerBug(
            "registers that cannot be asked for", found=wanted, wanted=f.target.register_shift
        )
    way = "inc" if wanted > registers_at_launch(f) else "dec"
    f.emit(f"setmaxnreg.{way}.sync.aligned.u32", str(wanted))


# --- barriers of phases --------------------------------------------------------------------------


def _at_barrier(opcode: str, *results: str) -> Rule:
    """An instruction whose operands are a barrier and the immediate."""

    def rule(f: PtxText, node: Node) -> None:
        place, _ = _barrier(f, node.src)
        f.emit(opcode, *results, place, *map(str, node.arg.immediates[:1]))

    return rule


def _wait(f: PtxText, node: Node) -> None:
    place, (turn,) = _barrier(f, node.src)
    parity = f.word(turn)
    over, label = f.fresh("%p"), f.fresh_label()
    f.label(f"W{label}")
    f.emit("mbarrier.try_wait.parity.shared.b64", over, place, parity)
    f.emit("bra", f"W{label}", guard=f"!{over}")


def _wait_for_flag(f: PtxText, node: Node) -> None:
    """Until a warp of another block has raised a flag: what that stored before is seen then."""
    place = place_of(f, node.src[0], node.src[1], 0, 0).text()
    up, over, label = f.fresh("%r"), f.fresh("%p"), f.fresh_label()
    f.label(f"W{label}")
    f.emit("ld.acquire.gpu.global.u32", up, place)
    f.emit("setp.ne.u32", over, up, "0")
    f.emit("bra", f"W{label}", guard=f"!{over}")


def _set_flag(opcode: str, value: str) -> Rule:
    def rule(f: PtxText, node: Node) -> None:
        place = place_of(f, node.src[0], node.src[1], 0, 0).text()
        f.emit(opcode, place, f.made("%r", "mov.u32", value))

    return rule


def _arrive_remote(f: PtxText, node: Node) -> None:
    place = _shared(f, node.src[0])
    if f.program.arg.cluster == 1:
        f.emit("mbarrier.arrive.shared.b64", "_", f"[{place}]")
        return
    place = _in_register(f, place)
    remote = f.fresh("%r")
    f.emit("mapa.shared::cluster.u32", remote, place, f.word(node.src[1]))
    f.emit("mbarrier.arrive.shared::cluster.b64", "_", f"[{remote}]")


def _arrive_in_cluster(f: PtxText, node: Node) -> None:
    """An arrival at the same place in each block of the cluster."""
    base, at = place_of(f, node.src[0], node.src[1], 0, 0)
    place = base if base.startswith("%") else f.made("%r", "mov.u32", base)
    place = f.made("%r", "add.u32", place, str(at)) if at else place
    for rank in range(f.program.arg.cluster):
        remote = f.made("%r", "mapa.shared::cluster.u32", place, str(rank))
        f.emit("mbarrier.arrive.shared::cluster.b64", "_", f"[{remote}]")


def _meet_in_cluster(f: PtxText, node: Node) -> None:
    """All threads of a cluster; a warp's come together unless the immediate says otherwise."""
    together = "" if any(node.arg.immediates) else ".aligned"
    for step in ("arrive", "wait"):
        f.emit(f"barrier.cluster.{step}{together}")


# --- copies --------------------------------------------------------------------------------------

_TENSOR = "cp.async.bulk.tensor"


def _tensor(f: PtxText, node: Node, corner: Sequence[Node]) -> str:
    """The operand of a tensor map and the coordinates of a box, the innermost first."""
    place = f.signature.boxes.index(box_of(node))
    address = f.made("%rd", "mov.b64", f"m{place}")
    f.emit("cvta.param.u64", address, address)
    return f"[{address}, {braces([f.word(child) for child in corner])}]"


_LANDS = "shared::cluster.global.mbarrier::complete_tx::bytes"


def _every_block(f: PtxText) -> str:
    """The operand of a copy to all blocks of the cluster, at the same place."""
    return f.made("%h", "mov.b16", str((1 << f.program.arg.cluster) - 1))


def _load_box(f: PtxText, node: Node) -> None:
    """A box of an argument to an array in shared memory, or places that the engine walks along."""
    shared, at, phases, slot, _, *corner = node.src
    target = place_of(f, shared, at, 0, 0).text()
    barrier = place_of(f, phases, slot, 0, 0).text()
    rank = node.arg.immediates[0]
    operands = [target, _tensor(f, node, corner[:rank]), barrier]
    lands = _LANDS
    if node.arg.name == "tma.multicast":
        lands += ".multicast::cluster"
        operands.append(_every_block(f))
    if node.arg.name == "tma.walk":
        lands = _LANDS.replace(".mbarrier", ".im2col.mbarrier")
        offsets = [f.made("%h", "cvt.u16.u32", f.word(each)) for each in corner[rank:]]
        operands.append(braces(offsets))
    f.emit(f"{_TENSOR}.{rank}d.{lands}", *operands)


def _load(f: PtxText, node: Node) -> None:
    target, barrier = _shared(f, node.src[1]), _shared(f, node.src[4])
    opcode = f"{_TENSOR}.2d.{_LANDS}"
    operands = [f"[{target}]", _tensor(f, node, node.src[2:4]), f"[{barrier}]"]
    if node.arg.immediates[3]:
        opcode += ".multicast::cluster"
        operands.append(_every_block(f))
    f.emit(opcode, *operands)


def _store(f: PtxText, node: Node) -> None:
    source = _shared(f, node.src[1])
    where = _tensor(f, node, node.src[2:4])
    f.emit(f"{_TENSOR}.2d.global.shared::cta.bulk_group", where, f"[{source}]")


def _store_run(f: PtxText, node: Node) -> None:
    """A run of bytes from shared memory to an array."""
    nbytes, first, at = node.arg.immediates
    array, offset, shared, start = node.src
    places = place_of(f, array, offset, 0, first).text(), place_of(f, shared, start, 0, at).text()
    f.emit("cp.async.bulk.global.shared::cta.bulk_group", *places, str(nbytes))


def _bulk_wait(f: PtxText, node: Node) -> None:
    """Between copies it is enough that shared memory was read; at the end all must be done."""
    keep, reads_only = node.arg.immediates
    f.emit(f"cp.async.bulk.wait_group{'.read' if reads_only else ''}", str(keep))


# --- the matrix unit -----------------------------------------------------------------------------


def _descriptor(f: PtxText, node: Node, swizzle: int) -> str:
    """A K-major operand in shared memory: rows of a swizzle's span, eight rows after eight."""
    if swizzle not in _SWIZZLE_CODES:
        raise CompilerBug("a matrix operand without a swizzle", found=swizzle, wanted="1, 2 or 3")
    start = _in_register(f, _shared(f, node))
    stride = (8 * (16 << swizzle)) >> 4
    rest = 1 << 16 | stride << 32 | _SWIZZLE_CODES[swizzle] << 62
    short = f.made("%r", "shr.u32", f.made("%r", "and.b32", start, "0x3FFF0"), "4")
    wide = f.made("%rd", "cvt.u64.u32", short)
    return f.made("%rd", "or.b64", wide, f"0x{rest:016X}")


def _multiply(f: PtxText, node: Node) -> None:
    columns, swizzle = node.arg.immediates
    a, b, keep, *registers = node.src
    left, right = _descriptor(f, a, swizzle), _descriptor(f, b, swizzle)
    total = braces([f.one(register) for register in registers])
    opcode = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16"
    f.emit(opcode, total, left, right, f.one(keep), "1", "1", "0", "0")


def _begin_of(f: PtxText, array: Node, offset: Node) -> str:
    """The descriptor of rows of 128 bytes that begin at an offset, the same in all lanes.

    Their chunks are exchanged, and eight rows come after eight.
    """
    name = f.one(offset)
    key = (array, ("descriptor", name))
    found = f.addresses.get(key)
    if found is None:
        place = place_of(f, array, offset, 0, 0)
        start = f.made("%r", "mov.u32", place.base)
        if place.at:
            start = f.made("%r", "add.u32", start, str(place.at))
        if name.startswith("%"):
            # The assembler is to know that no lane has another one.
            start = f.made("%r", "shfl.sync.idx.b32", start, "0", "31", ALL_LANES)
        short = f.made("%r", "shr.u32", f.made("%r", "and.b32", start, "0x3FFF0"), "4")
        wide = f.made("%rd", "cvt.u64.u32", short)
        rest = _ROWS_NBYTES >> 4 << 32 | _SWIZZLE_CODES[3] << 62
        found = f.remember(key, f.made("%rd", "or.b64", wide, f"0x{rest:016X}"))
    return found


def _multiply_groups(f: PtxText, node: Node) -> None:
    """A product of four warps, added to the registers of tiles of 8 columns, two rows of each."""
    registers = group_sums(node)
    kind_a, kind_b, turn_a, turn_b, panel, at_a, at_b, beside, _, keep = node.arg.immediates[:10]
    tiles = node.arg.immediates[10:]
    *held, b, offset_b = node.src[: -len(registers)]
    size = b.dtype.itemsize
    is_held = node.arg.name == "wgmma.held"
    if is_held:
        left = braces([f.one(word) for word in held])
    else:
        left = _begin_of(f, held[0], held[1])
        left = f.made("%rd", "add.s64", left, str(at_a * size >> 4))
    right = _begin_of(f, b, offset_b)
    right = f.made("%rd", "add.s64", right, str((at_b * size >> 4) + (panel * size >> 4 << 16)))
    total = []
    for number, register in enumerate(registers):
        names, tile = f.use(register), tiles[number // 2]
        total += [names[tile], names[beside + tile]]
    adds = f.made("%p", "setp.eq.u32" if keep else "setp.ne.u32", "0", "0")
    turned = (turn_b,) if is_held else (turn_a, turn_b)
    opcode, settings = group_product(kind_a, kind_b, turned, 8 * len(tiles))
    f.emit(opcode, braces(total), left, right, adds, *settings)


def _commit_products(f: PtxText, node: Node) -> None:
    f.emit("wgmma.commit_group.sync.aligned")
    f.computed = ""


def _wait_for_products(f: PtxText, node: Node) -> None:
    """A wait behind what threads compute meanwhile.

    The assembler moves it ahead of arithmetic, which asks for nothing that is waited for, but not
    ahead of a store of what that computed: one that is never made, as no arithmetic has such bits.
    """
    if f.computed:
        bits = f.made("%r", "mov.b32", f.computed)
        never = f.made("%p", "setp.eq.u32", bits, "0xFFFFFFFE")
        f.emit("st.shared.b32", "[shared_memory]", bits, guard=never)
        f.computed = ""
    f.emit("wgmma.wait_group.sync.aligned", str(node.arg.immediates[0]))


def _store_matrices(f: PtxText, node: Node) -> None:
    """8 x 8 matrices of 16-bit elements, a pair of values for each, four at once."""
    address, *values = node.src
    words = [
        f.made("%r", "mov.b32", f"{{{f.one(low)}, {f.one(high)}}}")
        for low, high in zip(values[0::2], values[1::2], strict=True)
    ]
    count = len(words)
    if count not in (1, 2, 4):
        raise CompilerBug("stmatrix of too many values", found=len(values), wanted="2, 4 or 8")
    place = f"[{_shared(f, address)}]"
    f.emit(f"stmatrix.sync.aligned.m8n8.x{count}.shared.b16", place, braces(words))


HOPPER_RULES: MappingProxyType[str, Rule] = MappingProxyType(
    {
        "warp": _warp,
        "warps": _among,
        "cluster.rank": _special("%cluster_ctarank"),
        "cluster.id": _special("%clusterid.x"),
        "mbarrier.init": _at_barrier("mbarrier.init.shared.b64"),
        "mbarrier.fence_init": _plain("fence.mbarrier_init.release.cluster"),
        "mbarrier.arrive.expect_tx": _at_barrier("mbarrier.arrive.expect_tx.shared.b64", "_"),
        "mbarrier.arrive": _at_barrier("mbarrier.arrive.shared.b64", "_"),
        "mbarrier.arrive.remote": _arrive_remote,
        "mbarrier.wait": _wait,
        "flag.wait": _wait_for_flag,
        "flag.raise": _set_flag("st.release.gpu.global.u32", "1"),
        "flag.lower": _set_flag("st.relaxed.gpu.global.u32", "0"),
        "mbarrier.arrive.cluster": _arrive_in_cluster,
        "barrier.cluster": _meet_in_cluster,
        "fence.proxy.async": _plain("fence.proxy.async.shared::cta"),
        "setmaxnreg": _set_registers,
        "role.registers": _role_registers,
        "tma.load": _load,
        "tma.box": _load_box,
        "tma.walk": _load_box,
        "tma.multicast": _load_box,
        "tma.store": _store,
        "bulk.store": _store_run,
        "bulk.commit": _plain("cp.async.bulk.commit_group"),
        "bulk.wait": _bulk_wait,
        "bar.warp": lambda f, node: f.emit("bar.warp.sync", ALL_LANES),
        "wgmma.fence": _plain("wgmma.fence.sync.aligned"),
        "wgmma.mma": _multiply,
        **dict.fromkeys(("wgmma", "wgmma.held"), _multiply_groups),
        "wgmma.commit": _commit_products,
        "wgmma.wait": _wait_for_products,
        "stmatrix": _store_matrices,
    }
)
