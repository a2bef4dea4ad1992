"""The Hopper matmul of machine instructions as PTX: run, alone and in clusters, and assembled."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baregrad import render
from baregrad.assemble.cuda_toolkit import find_program
from baregrad.assemble.ptxas import DEFAULT_FLAGS, PACKAGE
from baregrad.base.errors import MissingDependency
from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Ops
from baregrad.render.gpu import WARP_LANES, gpu_signature
from baregrad.runtime.tensor_map import map_of
from baregrad.testing.examples.matmul_hopper import MatmulSizes
from baregrad.testing.examples.matmul_hopper_linear import linear_level
from baregrad.testing.virtual_gpu.ptx.errors import KernelFault
from baregrad.testing.virtual_gpu.ptx.memory import PtxMemory
from baregrad.testing.virtual_gpu.ptx.program import PtxModule
from tests.examples.runs import bf16, from_bf16
from tests.render.gpu_harness import HOPPER, Writer, alloc
from tests.render.harness import param

pytestmark = pytest.mark.differential
PAIRS = MatmulSizes(rows=512, columns=64, depth=192, clusters=2, cluster=2)
ALONE = MatmulSizes(rows=256, columns=64, depth=192, clusters=2, cluster=1)


def text_of(program: Node) -> str:
    return render.get("ptx").render(program, HOPPER)


def run(sizes: MatmulSizes, text: str) -> float:
    """The largest error of the result, relative to the largest element."""
    program = linear_level(sizes)
    sig = gpu_signature(program)
    generator = np.random.default_rng(7)
    a = bf16(generator.standard_normal((sizes.rows, sizes.depth)))
    b = bf16(generator.standard_normal((sizes.columns, sizes.depth)))
    c = bf16(np.full((sizes.rows, sizes.columns), np.nan))
    arrays: list[Any] = [c, a, b]
    memory = PtxMemory()
    places = [memory.put(array) for array in arrays]
    maps = [map_of(box.spec, places[box.spec.param]) for box in sig.boxes]
    kernel = PtxModule.parse(text).kernel(sig.call.entry)
    dynamic = sig.dynamic_nbytes(HOPPER)
    grid = (sizes.clusters * sizes.cluster,)
    kernel.launch(memory, grid, (sig.threads,), [*places, *maps], dynamic)
    found = memory.get(places[0], c.dtype, c.shape)
    wanted = from_bf16(a) @ from_bf16(b).T
    return float(np.abs(from_bf16(found) - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("sizes", (ALONE, PAIRS), ids=("alone", "pairs"))
def test_the_ring_multiplies(sizes: MatmulSizes) -> None:
    assert run(sizes, text_of(linear_level(sizes))) < 2**-7


@pytest.mark.parametrize("pattern,instead", [
    (r"barrier.cluster.arrive.aligned;\s*barrier.cluster.wait.aligned;", ""),
    (r"(mbarrier.arrive).shared::cluster.b64 _, \[%r\d+\];", ""),
    (r"(bytes).multicast::cluster (.*), %h\d+;", r"\1 \2;"),
], ids=("meeting", "release", "multicast"))  # fmt: skip
def test_what_leaves_the_other_block_out_is_caught(pattern: str, instead: str) -> None:
    text, count = re.subn(pattern, instead, text_of(linear_level(PAIRS)))
    assert count
    with pytest.raises(KernelFault):
        run(PAIRS, text)


def broken(old: str, new: str) -> str:
    text = text_of(linear_level(ALONE))
    assert text.count(old)
    return text.replace(old, new)


@pytest.mark.parametrize("old,new", [
    ("wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1;"),
    ("fence.proxy.async.shared::cta;", ""),
    ("mbarrier.arrive.shared.b64 _,", "mbarrier.arrive.shared.b64 _, [shared_memory]; //"),
])
def test_what_leaves_a_step_out_is_caught(old: str, new: str) -> None:
    """The result above is right because of these instructions."""
    with pytest.raises(KernelFault):
        run(ALONE, broken(old, new))


def waiting(what: str) -> str:
    """The text of a wait for products behind arithmetic, in the way that is asked for."""
    w = Writer("waits")
    numbers, shared = param(0, 64), alloc(1, 64, dtypes.float32, "shared")
    lane = w.thread(WARP_LANES)
    w.store(shared, lane, w.load(numbers, lane))
    register = w.register(dtypes.float32)
    w.set(register, const(1.0, dtypes.float32))
    w.machine("wgmma.commit")
    if what == "left out":
        w.branch(w.test(Ops.CMPLT, lane, 7))
    if what == "repeated":
        w.set(register, w.do(Ops.ADD, register, register))
        w.begin(0, 3)
        w.machine("wgmma.wait", imm=(0,))
    else:
        w.set(register, w.do(Ops.ADD, register, register))
    if what == "replaced":
        w.set(register, w.load(numbers, lane))
    if what in ("left out", "repeated"):
        w.end()
    w.machine("wgmma.wait", imm=(0,))
    w.store(numbers, lane, register)
    return text_of(w.program())


@pytest.mark.parametrize(("what", "kept"), [
    ("straight", 1), ("left out", 0), ("repeated", 0), ("replaced", 0),
])  # fmt: skip
def test_only_what_arithmetic_made_for_certain_keeps_a_wait_behind_it(what: str, kept: int) -> None:
    """A number that was read, or none at all, may have any bits: the store would be made."""
    text = waiting(what)
    assert "wgmma.wait_group.sync.aligned 0;" in text
    assert text.count("0xFFFFFFFE") == kept


def ptxas() -> Path | None:
    try:
        return find_program("ptxas", PACKAGE)
    except MissingDependency:
        return None


LARGE = MatmulSizes(
    rows=4096, columns=4096, depth=4096, n=256, k=64, stages=4, clusters=66, part=16
)


@pytest.mark.skipif(ptxas() is None, reason="ptxas is not installed")
@pytest.mark.parametrize("sizes", (MatmulSizes(), ALONE, LARGE), ids=("small", "alone", "large"))
def test_the_assembler_keeps_the_matrix_unit_busy(sizes: MatmulSizes, tmp_path: Path) -> None:
    """C7509 to C7519 are its complaints that it made the products wait for each other."""
    path = tmp_path / "k.ptx"
    path.write_text(text_of(linear_level(sizes)))
    command = [str(ptxas()), "-arch=sm_90a", "-v", *DEFAULT_FLAGS, str(path), "-o", f"{path}.cubin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "C75" not in done.stderr
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in done.stderr


def test_the_launch_is_told() -> None:
    program = linear_level(MatmulSizes())
    sig, text = gpu_signature(program), text_of(program)
    assert sig.warps and sig.threads == 32 * program.arg.warps
    assert f".reqntid {sig.threads}, 1, 1" in text and ".reqnctapercluster 2, 1, 1" in text
    assert [box.param.arg.slot for box in sig.boxes] == [1, 2, 0]
    assert text.count(".param .align 64") == 3
    assert ".multicast::cluster" in text and "mapa.shared::cluster" in text
