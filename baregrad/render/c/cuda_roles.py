"""Roles of warps in CUDA C, boxes that one of them copies, and barriers of phases between them.

In the text of PTX, since the compiler has no headers. Tensor maps are parameters of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

from baregrad.ir.core.node import Node
from baregrad.render.c.text import CText
from baregrad.render.gpu import WARP_LANES, Box, GpuSignature, box_of
from baregrad.render.group_registers import register_change
from baregrad.target.gpu import NvidiaTarget

# A map as a parameter, whose address instructions take.
MAP_TYPE = "struct __align__(64) tensor_map { unsigned long long words[16]; };"
Rule = Callable[[CText, Node], None]


def map_parameters(boxes: Sequence[Box]) -> list[str]:
    """The parameters of a kernel's tensor maps."""
    return [f"const __grid_constant__ tensor_map m{place}" for place in range(len(boxes))]


def _asm(f: CText, text: str, *operands: str) -> None:
    f.line(f'asm volatile("{text}" :: {", ".join(operands)} : "memory");')


def _place(f: CText, src: Sequence[Node]) -> str:
    """The operand of a place in shared memory: an array and where it is there."""
    array, at = src[:2]
    return f'"r"((u32)__cvta_generic_to_shared(&{f.names[array]}[{f.use(at)}]))'


def _warps(f: CText, node: Node) -> None:
    """Whether a thread is of some warps; taken from lane 0, so that it is the same for a warp."""
    first, count = node.arg.immediates
    warp = f"__shfl_sync(0xffffffffu, (u32)threadIdx.x / {WARP_LANES}u, 0)"
    f.define(node, f"{warp} - {first}u < {count}u")


def _at_barrier(opcode: str) -> Rule:
    def rule(f: CText, node: Node) -> None:
        count = "".join([f", {one}" for one in node.arg.immediates])
        _asm(f, f"{opcode} [%0]{count};", _place(f, node.src))

    return rule


def _wait(f: CText, node: Node) -> None:
    text = (
        "{ .reg .pred p; W: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra W; }"
    )
    _asm(f, text, _place(f, node.src), f'"r"((u32){f.use(node.src[2])})')


def _at_flag(text: str) -> Rule:
    """An instruction on a flag in memory, of which warps of other blocks hear."""

    def rule(f: CText, node: Node) -> None:
        array, at = node.src
        _asm(f, text, f'"l"(__cvta_generic_to_global(&{f.names[array]}[{f.use(at)}]))')

    return rule


def _load_box(signature: GpuSignature, f: CText, node: Node) -> None:
    rank = node.arg.immediates[0]
    corner, offsets = node.src[5 : 5 + rank], node.src[5 + rank :]
    place = signature.boxes.index(box_of(node))
    holes = [f"%{3 + number}" for number in range(len(corner) + len(offsets))]
    mode, behind = "", ""
    mask: tuple[str, ...] = ()
    if offsets:
        # Places that the engine walks along.
        mode, behind = ".im2col", f", {{{', '.join(holes[rank:])}}}"
    opcode = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global{mode}.mbarrier"
    if node.arg.name == "tma.multicast":
        # To every block of the cluster, at the same place.
        opcode, behind = f"{opcode}::complete_tx::bytes.multicast::cluster", f", %{3 + rank}"
        mask = (f'"h"((u16){(1 << f.program.arg.cluster) - 1})',)
    else:
        opcode += "::complete_tx::bytes"
    _asm(
        f, f"{opcode} [%0], [%1, {{{', '.join(holes[:rank])}}}], [%2]{behind};",
        _place(f, node.src), f'"l"(&m{place})', _place(f, node.src[2:]),
        *[f'"r"((i32){f.use(each)})' for each in corner],
        *[f'"h"((u16){f.use(each)})' for each in offsets], *mask,
    )  # fmt: skip


def _arrive_in_cluster(f: CText, node: Node) -> None:
    """An arrival at the same place in each block of the cluster."""
    for rank in range(f.program.arg.cluster):
        text = (
            f"{{ .reg .b32 r; mapa.shared::cluster.u32 r, %0, {rank}; "
            "mbarrier.arrive.shared::cluster.b64 _, [r]; }"
        )
        _asm(f, text, _place(f, node.src))


def _meet_in_cluster(f: CText, node: Node) -> None:
    together = "" if any(node.arg.immediates) else ".aligned"
    steps = " ".join([f"barrier.cluster.{step}{together};" for step in ("arrive", "wait")])
    f.line(f'asm volatile("{steps}" ::: "memory");')


def role_rules(program: Node, signature: GpuSignature, target: NvidiaTarget) -> dict[str, Rule]:
    """The rules of a kernel that has roles."""

    def registers(f: CText, node: Node) -> None:
        change = register_change(program, signature, target, node)
        if change is not None:
            f.line(f'asm volatile("{" ".join(change)};" ::: "memory");')

    return {
        **_RULES,
        "role.registers": registers,
        "tma.box": lambda f, node: _load_box(signature, f, node),
        "tma.walk": lambda f, node: _load_box(signature, f, node),
        "tma.multicast": lambda f, node: _load_box(signature, f, node),
    }


_RULES: MappingProxyType[str, Rule] = MappingProxyType({
    "warps": _warps,
    "mbarrier.init": _at_barrier("mbarrier.init.shared.b64"),
    "mbarrier.fence_init": lambda f, node: f.line(
        'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");'
    ),
    "mbarrier.arrive": _at_barrier("mbarrier.arrive.shared.b64 _,"),
    "mbarrier.arrive.expect_tx": _at_barrier("mbarrier.arrive.expect_tx.shared.b64 _,"),
    "mbarrier.arrive.cluster": _arrive_in_cluster,
    "mbarrier.wait": _wait,
    "flag.wait": _at_flag(
        "{ .reg .pred p; .reg .u32 v; W: ld.acquire.gpu.global.u32 v, [%0]; "
        "setp.ne.u32 p, v, 0; @!p bra W; }"
    ),
    "flag.raise": _at_flag("st.release.gpu.global.u32 [%0], 1;"),
    "flag.lower": _at_flag("st.relaxed.gpu.global.u32 [%0], 0;"),
    "barrier.cluster": _meet_in_cluster,
})  # fmt: skip
