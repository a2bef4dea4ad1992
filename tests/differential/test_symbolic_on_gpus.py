"""Products and sums with a symbolic extent through the GPU's compiler, against NumPy's float64.

One program serves all numbers, its tiles end where the number does, and what lies beyond that in
an array, which is no number here, takes no part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from baregrad.dtypes import DType, dtypes
from baregrad.engine.canonical import bind
from baregrad.ir.core.index import variable
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit
from baregrad.testing.ptx_device import ptx_session
from tests.tensor.oracle import to_numpy

pytestmark = pytest.mark.differential
MOST = 24
Product = Callable[[Any, Any, Any], Any]


def rows(x: Any, w: Any, n: Any) -> Any:
    return x[:n] @ w


def rows_of_several(x: Any, w: Any, n: Any) -> Any:
    return x[:, :n] @ w


def both_sides(x: Any, w: Any, n: Any) -> Any:
    return x[:, :n] @ w[:, :n].swapaxes(1, 2)


def depth(x: Any, w: Any, n: Any) -> Any:
    return x[:, :n] @ w[:n]


def depth_across(x: Any, w: Any, n: Any) -> Any:
    return x[:n].swapaxes(0, 1) @ w[:n]


def rows_and_depth(x: Any, w: Any, n: Any) -> Any:
    return x[:, :n, :n] @ w[:, :n]


def rows_that_were_stored(x: Any, w: Any, n: Any) -> Any:
    return (x[:, :n] * 2).swapaxes(0, 1) @ w


CASES: dict[str, tuple[Product, tuple[int, ...], tuple[int, ...]]] = {
    "rows": (rows, (MOST, 64), (64, 48)),
    "rows of several": (rows_of_several, (2, MOST, 64), (64, 48)),
    "rows that were stored": (rows_that_were_stored, (2, MOST, 64), (64, 48)),
    "both sides": (both_sides, (2, MOST, 32), (2, MOST, 32)),
    "depth": (depth, (48, MOST), (MOST, 64)),
    "depth across": (depth_across, (MOST, 48), (MOST, 64)),
    "rows and depth": (rows_and_depth, (2, MOST, MOST), (2, MOST, 32)),
}


BRAIN, SINGLE = dtypes.bfloat16, dtypes.float32
WIDE = "rows", "depth", "rows and depth"


@pytest.mark.parametrize(
    ("name", "dtype"), [*[(name, BRAIN) for name in CASES], *[(name, SINGLE) for name in WIDE]]
)
def test_one_program_multiplies_any_number(name: str, dtype: DType) -> None:
    make, *shapes = CASES[name]
    rng = np.random.default_rng(1)
    # Few bits each, so that what is left is the rounding of the result.
    given = [rng.integers(-32, 33, shape) / 16 for shape in shapes]
    with ptx_session():
        step = jit(make)
        for n in (17, 1, 8, MOST):
            for array, shape in zip(given, shapes, strict=True):
                for axis in (axis for axis, size in enumerate(shape) if size == MOST):
                    array[(slice(None),) * axis + (slice(n, None),)] = np.nan
            ours = [Tensor(array.astype(np.float32)).cast(dtype) for array in given]
            found = to_numpy(step(*ours, bind(variable("n", 1, MOST), n)).float())
            wanted = make(*given, n)
            assert found.shape == wanted.shape
            unit = 2.0**-8 if dtype is BRAIN else 2.0**-20
            assert np.abs(found - wanted).max() <= unit * np.abs(wanted).max()
            given = [rng.integers(-32, 33, shape) / 16 for shape in shapes]


@pytest.mark.parametrize(
    ("fold", "wanted"), ((Tensor.sum, np.sum), (Tensor.amax, np.max), (Tensor.argmax, np.argmax))
)
def test_one_program_folds_long_columns_of_any_number(fold: Any, wanted: Any) -> None:
    """In parts, of which the last ones may be partial or empty."""
    most = 1024
    given = np.random.default_rng(2).integers(-32, 33, (most, 4)) / 16
    with ptx_session():

        @jit
        def step(x: Tensor, n: Any) -> Tensor:
            made: Tensor = fold(x[:n], 0)
            return made

        for n in (700, 1, 64, 65, most):
            array = given.copy()
            array[n:] = np.nan
            found = step(Tensor(array.astype(np.float32)), bind(variable("n", 1, most), n))
            np.testing.assert_array_equal(to_numpy(found), wanted(given[:n], 0))


def test_one_program_convolves_images_of_any_size() -> None:
    """With gradients: tiles end where rows and columns of images do."""
    rng = np.random.default_rng(4)
    image, filters = (rng.integers(-8, 9, s) / 8 for s in ((1, 8, 12, 12), (16, 8, 3, 3)))
    with ptx_session():

        @jit
        def step(image: Tensor, filters: Tensor, n: Any) -> list[Tensor]:
            x, w = image[:, :, :n, :n].detach().requires_grad_(), filters.detach().requires_grad_()
            out = x.conv2d(w, padding=1)
            return [out, *(out * out).sum().gradient(x, w)]

        for n in (9, 12):
            array = np.full_like(image, np.nan)
            array[:, :, :n, :n] = image[:, :, :n, :n]
            ours = [Tensor(x.astype(np.float32)).cast(BRAIN) for x in (array, filters)]
            found = step(*ours, bind(variable("n", 1, 12), n))
            x, w = (torch.tensor(each, requires_grad=True)
                    for each in (image[:, :, :n, :n], filters))  # fmt: skip
            out = torch.nn.functional.conv2d(x, w, padding=1)
            out.square().sum().backward()
            for one, other in zip(found, (out.detach(), x.grad, w.grad), strict=True):
                assert other is not None
                error = np.abs(to_numpy(one.float()) - other.numpy()).max()
                assert error < 2.0**-6 * other.abs().max().item()


def test_heads_that_share_keys_are_written_side_by_side() -> None:
    """Rows that two axes make up lie apart by a symbolic number."""
    rng = np.random.default_rng(3)
    query, keys = (rng.integers(-32, 33, (1, heads, MOST, 32)) / 16 for heads in (4, 2))
    with ptx_session():

        @jit
        def step(query: Tensor, keys: Tensor, n: Any) -> Tensor:
            own = query[:, :, :1].reshape(1, 2, 2, 1, 32)
            scores = own @ keys[:, :, None, :n].swapaxes(-1, -2)
            return scores.reshape(1, 4, n).contiguous() + 1

        ours = [Tensor(array.astype(np.float32)).cast(BRAIN) for array in (query, keys)]
        for n in (17, 1, MOST):
            found = to_numpy(step(*ours, bind(variable("n", 1, MOST), n)).float())
            each = query[:, :, :1] @ keys.repeat(2, 1)[:, :, :n].swapaxes(-1, -2)
            assert np.abs(found - each[:, :, 0] - 1).max() <= 2.0**-7 * np.abs(each).max()
