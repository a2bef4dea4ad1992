"""Clusters: blocks that share boxes give the bits of blocks by themselves; faults are caught."""

from __future__ import annotations

import re
from contextlib import closing

import numpy as np
import pytest

from baregrad.assemble.virtual_cubin import VirtualAssembler
from baregrad.base.errors import ScheduleError
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.engine.compiler import Compiler
from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import lower, parse_schedule
from baregrad.render import get
from baregrad.runtime import open_device
from baregrad.target import gpu_row
from baregrad.testing.virtual_gpu.ptx.errors import KernelFault
from baregrad.testing.virtual_gpu.ptx.program import PtxModule
from tests.kernel import kernels as k
from tests.kernel.contractions import contraction
from tests.kernel.gpu.test_roles import TMA, Sizes, by_experts, by_threads, piped
from tests.kernel.gpu_kernels import HOPPER, lowered, run_text, run_threads
from tests.kernel.instructions.test_mma_sync import count, product
from tests.render.gpu_harness import run_module


def together(spelled: str, side: str, blocks: int = 2) -> str:
    """A schedule in which so many blocks along rows or columns run together."""
    outer, first = {"m": ("a", "w="), "n": ("b", "p=")}[side]
    spelled = spelled.replace(f"outer='{outer}', {first}", f"outer='{outer}', c={blocks}, {first}")
    return spelled.replace("bind('a', 'grid')", "bind('a', 'grid'), bind('c', 'cluster')")


CLUSTERS = (
    ((128, 64, 192), (False, True), "m", 2, 0, {}),
    ((64, 256, 192), (True, True), "n", 4, 0, {}),
    # Past edges, and a last cluster of which one block has no rows; blocks that persist.
    pytest.param((136, 56, 328), (True, False), "m", 2, 2, {}, marks=pytest.mark.slow),
    pytest.param((136, 200, 328), (False, False), "n", 2, 4, {"groups": 2},
                 marks=pytest.mark.slow),
)  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "turned", "side", "cluster", "blocks", "sizes"), CLUSTERS, ids=str
)
def test_blocks_that_share_boxes_have_the_bits_of_blocks_by_themselves(
    shape: tuple[int, int, int], turned: tuple[bool, bool], side: str, cluster: int, blocks: int,
    sizes: Sizes,
) -> None:
    kernel = product(*shape, *turned, bias=True)
    arrays = k.arguments(kernel)
    spelled = piped(turned, TMA.format(3), blocks, **sizes)
    whole = lowered(kernel, together(spelled, side, cluster))
    wanted = run_text(*lowered(kernel, spelled), arrays)[0]
    np.testing.assert_array_equal(run_text(*whole, arrays)[0], wanted)
    np.testing.assert_array_equal(run_threads(*whole, arrays)[0], wanted)
    program = whole[1]
    assert program.arg.cluster == cluster and count(program, "barrier.cluster") == 2
    # One factor is the same for all blocks of a cluster: each copies a slice of its boxes.
    names = {one.src[4].arg.slot: one.arg.name for one in program.src
             if one.op is Ops.MACHINE and one.arg.name.startswith("tma.")}  # fmt: skip
    shared = {"m": 2, "n": 1}[side]
    assert names == {shared: "tma.multicast", 3 - shared: "tma.box"}


def test_a_driver_launches_clusters() -> None:
    """From an edited schedule to the descriptor of the launch, and its results."""
    kernel = product(128, 64, 128, b_t=True)
    spelled = parse_schedule(together(piped((False, True), TMA.format(2)), "m"))
    arrays = [array for _, array in sorted(k.arguments(kernel).items())]
    program = Compiler(HOPPER, get("ptx"), VirtualAssembler(), None).compile(kernel, spelled)
    assert program.launch is not None
    assert (program.launch.cluster, program.launch.grid) == (2, (2, 1, 1))
    with options.override(nv_port="virtual"), closing(open_device("NV")) as device:
        buffers = [device.allocate(array.nbytes) for array in arrays]
        for buffer, array in zip(buffers, arrays, strict=True):
            device.copy_in(buffer, np.ascontiguousarray(array))
        device.run(device.load(program), buffers, {})
        device.synchronize()
        found = np.empty_like(arrays[0])
        device.copy_out(buffers[0], found)
    left, right = (array.astype(np.float64) for array in arrays[1:])
    np.testing.assert_allclose(found, left @ right.T, atol=1e-4)


def of_matrices(spelled: str) -> str:
    """A schedule of a product as that of a stack of them."""
    for old, new in (
        ("'i1'", "'i2'"), ("'i0'", "'i1'"), ("'r2'", "'r3'"),
        ("bind('a', 'grid')", "bind('i0', 'grid'), bind('a', 'grid')"),
    ):
        spelled = spelled.replace(old, new)
    return spelled


@pytest.mark.slow
@pytest.mark.parametrize("side", ["m", "n"])
def test_blocks_that_share_boxes_end_together_where_nobody_reads_their_sums(side: str) -> None:
    rows, columns = {"m": (128, 64), "n": (64, 128)}[side]
    kernel = by_experts(5, rows, columns, 320, 3)
    arrays = k.arguments(kernel)
    places = {leaf.dtype: leaf.arg.slot for leaf in toposort(kernel) if leaf.op is Ops.PARAM}
    arrays[places[dtypes.int32]] = np.array([2, -1, 7, 0, 1], np.int32)
    arrays[places[dtypes.bool]] = np.array([1, 1, 1, 0, 1], np.bool_)
    spelled = piped((False, True), TMA.format(2), 4)
    whole = lowered(kernel, of_matrices(together(spelled, side)))
    wanted = run_text(*lowered(kernel, of_matrices(spelled)), arrays)[0]
    np.testing.assert_array_equal(run_text(*whole, arrays)[0], wanted)
    np.testing.assert_array_equal(run_threads(*whole, arrays)[0], wanted)


@pytest.mark.parametrize(("what", "pattern", "instead"), [
    ("the wait for all blocks before one ends", r"barrier.cluster.\w+;", ""),
    ("barriers that are there in all blocks", r"barrier.cluster.\w+.aligned;", ""),
    ("an arrival in another block", r"mapa.shared::cluster.u32 (%r\d+), %r\d+, 1;[^;]*;", ""),
    ("a slice of another block", r"\.multicast::cluster([^;]*), %h\d+;", r"\1;"),
    ("what others copy", r"(mbarrier.arrive.expect_tx[^;]*), 16384;", r"\1, 12288;"),
])  # fmt: skip
def test_what_a_cluster_leaves_out_is_caught(what: str, pattern: str, instead: str) -> None:
    kernel = product(128, 64, 320, b_t=True)
    _, program = lowered(kernel, together(piped((False, True), TMA.format(2)), "m"))
    arrays = [array for _, array in sorted(k.arguments(kernel).items())]
    wrong, changed = re.subn(pattern, instead, get("ptx").render(program, HOPPER))
    assert changed, what
    with pytest.raises(KernelFault):
        run_module(PtxModule.parse(wrong), program, arrays, grid=2)


def test_clusters_that_cannot_be() -> None:
    kernel = product(640, 64, 192, b_t=True)
    spelled = piped((False, True), TMA.format(3))
    for changed, why in (
        (together(spelled, "m", 16), "a few blocks of the output"),
        (together(by_threads(spelled), "m"), "share boxes"),
        (together(piped((False, True), TMA.format(3), 3), "m"), "no whole clusters"),
        (spelled.replace("bind('a', 'grid'), bind('b', 'grid')",
                         "bind('a', 'grid'), bind('ko', 'cluster')"), "of the output"),
    ):  # fmt: skip
        with pytest.raises(ScheduleError, match=why):
            lower(kernel, HOPPER, parse_schedule(changed))
    # Pairs of matrices share nothing.
    batched = contraction((64,), (64,), (192,), "sax", "snx", "san", batch=(2,))
    own = of_matrices(spelled).replace("bind('i0', 'grid')", "bind('i0', 'cluster')")
    with pytest.raises(ScheduleError, match="no box is the same"):
        lowered(batched, own)
    with pytest.raises(ScheduleError, match="has no clusters"):
        lower(kernel, gpu_row("sm_80"), parse_schedule(together(spelled, "m")))
