"""Derives what nobody should write: arrival counts, bytes, scopes, first barriers and drains.

A kernel enters with PIPEs that name their producer and consumers; it leaves with the numbers filled
in, a barrier after the barriers' own initialisation, and a drain at the end of each producer.
"""

from __future__ import annotations

from dataclasses import replace

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, extent_of, rebuild, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.protocol.attributes import Barrier, Pipe, Role
from baregrad.target.gpu import GpuTarget


def derive_synchronisation(kernel: Node, target: GpuTarget) -> Node:
    """`kernel` with its protocol complete; raises CompilerBug for a pipe without its roles."""
    roles = {node.arg.name: node.arg for node in toposort(kernel) if node.op is Ops.ROLE}
    found = {
        node: node.replace(arg=derived_pipe(kernel, node, roles, target))
        for node in toposort(kernel)
        if node.op is Ops.PIPE
    }

    def visit(node: Node) -> Node | None:
        if node.op is Ops.ROLE:
            return _drained(node)
        if node.op is Ops.KERNEL and found:
            wide = any(pipe.arg.scope == "cluster" for pipe in found.values())
            barrier = Node(Ops.BARRIER, dtypes.token, (), Barrier("cluster" if wide else "block"))
            return node.replace(src=(barrier, *node.src))
        return None

    return rebuild(kernel, visit, memo=dict(found))


def derived_pipe(
    kernel: Node, pipe: Node, roles: dict[str, Role], target: GpuTarget
) -> Pipe:
    """The facts of one pipe: who fills a slot with how many bytes, who empties it."""
    facts: Pipe = pipe.arg
    if facts.producer not in roles or any(name not in roles for name in facts.consumers):
        raise CompilerBug(
            f"the pipe {facts.name} joins roles that the kernel lacks",
            found=f"{facts.producer} -> {', '.join(facts.consumers)}",
            wanted=f"roles among {', '.join(roles)}",
        )
    copies = [n for n in toposort(kernel) if n.op is Ops.COPYTO and pipe in n.src]
    cluster = kernel.arg.cluster
    wide = any(copy.arg.multicast for copy in copies)
    nbytes = sum(box_nbytes(c) * (cluster if c.arg.multicast else 1) for c in copies)
    replicas = cluster if wide else 1
    agents = sum(roles[name].agents(target) for name in facts.consumers)
    return replace(
        facts,
        full_arrivals=1,
        full_nbytes=nbytes,
        empty_arrivals=agents * replicas,
        scope="cluster" if wide else "block",
    )


def box_nbytes(copy: Node) -> int:
    """Bytes of the box that a COPYTO moves, elements out of bounds included."""
    count = 1
    for axis in box_axes(copy):
        count *= int(axis.src[0].arg)
    return count * copy.src[0].dtype.bits // 8


def box_axes(copy: Node) -> tuple[Node, ...]:
    """The tile ranges of a COPYTO, by id: the axes of its box."""
    found = {n for n in toposort(*copy.src[1:]) if n.op is Ops.RANGE and n.arg.is_tile}
    return tuple(sorted(found, key=lambda axis: axis.arg.id))


def _drained(role: Node) -> Node | None:
    """The role with a DRAIN of each pipe it fills at its end."""
    drains = []
    body = role.src[0]
    for pipe, counts in _trips(body).items():
        if pipe.arg.producer == role.arg.name:
            count = index.as_node(index.total(counts))
            drains.append(Node(Ops.DRAIN, dtypes.token, (pipe, count)))
    if not drains:
        return None
    return role.replace(src=(Node(Ops.SEQ, dtypes.token, (body, *drains)),))


def _trips(body: Node) -> dict[Node, list[Dim]]:
    """For each pipe that is acquired, how often in all, as one product per ACQUIRE."""
    found: dict[Node, list[Dim]] = {}
    stack: list[tuple[Node, Dim]] = [(body, 1)]
    while stack:
        node, times = stack.pop()
        if node.op is Ops.SEQ:
            stack.extend((child, times) for child in node.src)
        elif node.op is Ops.LOOP:
            stack.append((node.src[1], index.mul(extent_of(node.src[0]), times)))
        elif node.op is Ops.ACQUIRE:
            found.setdefault(node.src[0], []).append(times)
    return found
