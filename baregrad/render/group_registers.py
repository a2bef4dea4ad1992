"""Registers of GPUs' blocks whose warps multiply in groups, and of those that copy for them."""

from __future__ import annotations

from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.render.gpu import WARP_LANES, GpuSignature, group_sums, is_group_product
from baregrad.target.gpu import NvidiaTarget


def blocks_of_groups(program: Node, signature: GpuSignature, target: NvidiaTarget) -> int:
    """Blocks with products of groups of warps that a multiprocessor is to hold; 0 without any.

    While one stores its results another one multiplies. A schedule may have said how many.
    """
    if program.arg.resident:
        return int(program.arg.resident)
    sums = [node for node in program.src if is_group_product(node)]
    if not sums:
        return 0
    registers = {one for node in sums for one in group_sums(node)}
    registers.update(node.src[0] for node in program.src if node.op is Ops.SET)
    widths = [one.shape[0] if one.shape and not signature.warps else 1 for one in registers]
    warps, roles = signature.threads // WARP_LANES, program.arg.roles
    return target.blocks_of_groups(warps, sum(widths), signature.shared_nbytes, roles)


def register_change(
    program: Node, signature: GpuSignature, target: NvidiaTarget, node: Node
) -> tuple[str, str] | None:
    """The instruction, and its operand, by which a role of warps gives or takes registers.

    None where its threads have as many from the start.
    """
    (wanted,) = node.arg.immediates
    blocks = max(blocks_of_groups(program, signature, target), 1)
    given = target.registers_at_launch(blocks * signature.threads)
    if wanted == given:
        return None
    return f"setmaxnreg.{'inc' if wanted > given else 'dec'}.sync.aligned.u32", str(wanted)
