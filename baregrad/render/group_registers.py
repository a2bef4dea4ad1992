"""Registers of GPUs' blocks whose warps multiply in groups, and of those that copy for them."""

from __future__ import annotations

from baregrad.base.bits import round_down
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.render.gpu import WARP_LANES, GpuSignature, group_sums, is_group_product
from baregrad.target.gpu import NvidiaTarget

# Registers of a thread beside the sums of products of groups of warps and what is read ahead; and
# of one that copies boxes.
GROUP_REGISTERS, COPIER_REGISTERS = 50, 40
# Fewer beside its sums ptxas 13 refuses at launch, whatever changes hands later: of 64 it asked
# for 90 in all.
LEAST_BESIDE = 26


def blocks_of_groups(program: Node, signature: GpuSignature, target: NvidiaTarget) -> int:
    """Blocks with products of groups of warps that a multiprocessor is to hold; 0 without any.

    While one stores its results another one multiplies. As many as shared memory has room for, and
    registers for the sums, what is read ahead, and what products need beside them; warps that copy
    need few.
    """
    sums = [node for node in program.src if is_group_product(node)]
    if not sums:
        return 0
    registers = {one for node in sums for one in group_sums(node)}
    registers.update(node.src[0] for node in program.src if node.op is Ops.SET)
    widths = [one.shape[0] if one.shape and not signature.warps else 1 for one in registers]
    each = sum(widths) + GROUP_REGISTERS
    warps, copiers = signature.threads // WARP_LANES, program.arg.copiers
    if copiers:
        each = -(-(each * (warps - copiers) + COPIER_REGISTERS * copiers) // warps)
    blocks = target.resident_blocks(warps, each, signature.shared_nbytes)
    while copiers and blocks > 1 and (
        target.registers_at_launch(blocks * signature.threads) < sum(widths) + LEAST_BESIDE
    ):
        blocks -= 1
    return blocks


def register_change(
    program: Node, signature: GpuSignature, target: NvidiaTarget, node: Node
) -> tuple[str, str] | None:
    """The instruction, and its operand, by which a role of warps gives or takes registers.

    Copiers leave all but a few to the other warps of their block, for each of their threads. None
    where those would have no more.
    """
    kept, is_copier = node.arg.immediates
    warps, copiers = signature.threads // WARP_LANES, program.arg.copiers
    blocks = max(blocks_of_groups(program, signature, target), 1)
    given = target.registers_at_launch(blocks * signature.threads)
    others = (given * warps - kept * copiers) // (warps - copiers)
    others = round_down(min(others, max(target.register_shift, default=0)), 8)
    if not kept < given < others:
        return None
    way, count = ("dec", kept) if is_copier else ("inc", others)
    return f"setmaxnreg.{way}.sync.aligned.u32", str(count)
