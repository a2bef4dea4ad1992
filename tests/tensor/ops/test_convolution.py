"""What convolutions cost: products that are computed, whatever their strides."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import torch

from baregrad.base.options import options
from baregrad.dtypes import DType, dtypes
from baregrad.graph import canonicalise
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.verify.verify import verify
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


@pytest.mark.parametrize(("taps", "stride", "dilation", "more"), [
    ((4, 1), (1, 2), (2, 1), (1, 0)), ((3, 1), (2, 1), (1, 2), (0, 1)),
    ((3, 2), (1, 2), (3, 1), (2, 1)), ((2, 3), (3, 1), (1, 1), (2, 0)),
])
def test_results_behind_all_windows_are_zero(
    taps: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int],
    more: tuple[int, int],
) -> None:
    """What is asked for behind them may be long enough for a window more."""
    random = np.random.default_rng(4)
    x = random.standard_normal((2, 16, 5, 4)).astype(np.float32)
    w = random.standard_normal((16, 3, *taps)).astype(np.float32)
    how = {"stride": stride, "dilation": dilation, "output_padding": more, "groups": 2}
    y = Tensor(x).conv_transpose2d(Tensor(w), **how)
    verify(Node(Ops.SINK, dtypes.token, (y.node,)), "tensor")
    wanted = torch.conv_transpose2d(torch.from_numpy(x), torch.from_numpy(w), **how)
    np.testing.assert_allclose(y.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-4)
