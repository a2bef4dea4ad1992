"""What convolutions cost: products that are computed, whatever their strides."""

from __future__ import annotations

from math import prod

import pytest

from baregrad.base.options import options
from baregrad.dtypes import DType, dtypes
from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.target import gpu_row
from baregrad.tensor import Tensor


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
@pytest.mark.parametrize(
    ("taps", "stride", "padding"), [(2, 2, 0), (4, 2, 0), (3, 2, 0), (3, 2, 1), (7, 3, 0)]
)
def test_a_strided_transposed_convolution_multiplies_no_zeros(
    taps: int, stride: int, padding: int, dtype: DType
) -> None:
    with options.override(device="NULL"):
        x, w = Tensor.rand(2, 16, 6, 6).cast(dtype), Tensor.rand(16, 8, taps, taps).cast(dtype)
        y = x.conv_transpose2d(w, stride=stride, padding=padding)
        sink = Node(Ops.SINK, dtypes.token, (y.node,))
        made = [canonicalise(sink, target=target) for target in (None, gpu_row("sm_90a"))]
    on_cpu, on_gpu = (
        sum(prod(node.src[0].shape) for node in toposort(root)
            if node.op is Ops.REDUCE and node.src[0].op is Ops.MUL)
        for root in made
    )  # fmt: skip
    # Each place has the taps of its residue, filled up to as many as any residue has. Places are
    # filled up to whole residues.
    places = -(-y.shape[2] // stride) * stride
    assert on_gpu == 2 * 16 * 8 * places**2 * (-(-taps // stride)) ** 2
    assert 0 < on_cpu <= on_gpu
