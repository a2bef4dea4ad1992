"""Rows of the sweep: the same for the same seed, of every kind, and within their bounds."""

from __future__ import annotations

import subprocess
import sys
from math import prod

from baregrad.apps.beside.tensor_case import TensorCase
from baregrad.apps.sweep.cases import LARGEST, TABLE, sweep_case
from baregrad.apps.sweep.elementwise import ELEMENTWISE
from baregrad.apps.sweep.pick import Pick
from baregrad.apps.sweep.products import PRODUCTS
from baregrad.apps.sweep.reductions import REDUCTIONS
from baregrad.apps.sweep.structure import STRUCTURE

ROWS = range(600)


def described(seed: int, rows: range) -> str:
    found = [sweep_case(seed, row) for row in rows]
    return "\n".join(f"{one.text} {getattr(one.case, 'inputs', '')}" for one in found)


def test_a_row_depends_on_its_seed_and_number_alone() -> None:
    told = described(3, range(40))
    assert told == described(3, range(40))
    assert told != described(4, range(40))
    # Neither on what was drawn before, nor on the process.
    assert sweep_case(3, 17).text == told.splitlines()[17].partition(" (")[0]
    program = (
        "from tests.apps.sweep.test_cases import described; print(described(3, range(40)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == told


def test_there_are_sixty_ops_and_more() -> None:
    assert len({name for name, _ in TABLE}) >= 60
    assert min(map(len, (ELEMENTWISE, REDUCTIONS, STRUCTURE, PRODUCTS))) > 10


def test_rows_are_of_every_kind() -> None:
    texts = [sweep_case(0, row).text for row in ROWS]
    for part in (
        "float32", "bfloat16", "float16", "int32", "int64", "transposed", "sliced",
        "with gradients", "eager", "jit", "after ", "then ", "AdamW", "conv2d", "conv_transpose2d",
        "attention", "matmul", "einsum", "sort", "topk", "scatter_add", "embedding", "softmax",
        "layer_norm", "cross_entropy", "cat", "pad", "rand", "cumsum", "linear", "max_pool2d",
    ):
        assert any(part in text for text in texts), part


def test_arrays_are_small_and_large_within_their_bound() -> None:
    sizes = []
    for row in ROWS:
        case = sweep_case(1, row).case
        if isinstance(case, TensorCase):
            # A slice is drawn three wider than it is.
            sizes += [prod(draw.shape) for draw in case.inputs if prod(draw.shape) > 3]
            assert all(
                prod(draw.shape[:-1]) * max(1, draw.shape[-1] - 3) <= LARGEST
                for draw in case.inputs
            )
    assert min(sizes) < 100
    assert max(sizes) > LARGEST / 16
    assert sum(size > 1 << 16 for size in sizes) > len(sizes) / 4


def test_small_rows_stay_small() -> None:
    for row in ROWS:
        case = sweep_case(2, row, 4096).case
        if isinstance(case, TensorCase):
            assert all(prod(draw.shape) < 1 << 17 for draw in case.inputs)


def test_shapes_hold_at_most_what_was_chosen() -> None:
    shapes = [Pick(0, row, LARGEST).shape(1, 4, 1000) for row in range(300)]
    assert all(0 < prod(shape) <= 1000 for shape in shapes)
    assert {len(shape) for shape in shapes} == {1, 2, 3, 4}
    assert any(size % 2 for shape in shapes for size in shape if size > 8)
    assert any(size % 8 == 0 for shape in shapes for size in shape)


def test_inputs_rotate_on_a_gpu_alone() -> None:
    cases = [(sweep_case(0, row).case, sweep_case(0, row, is_gpu=True).case) for row in range(50)]
    sets = [
        (one.sets, other.sets) for one, other in cases
        if isinstance(one, TensorCase) and isinstance(other, TensorCase)
    ]
    assert {one for one, _ in sets} == {1}
    assert max(other for _, other in sets) == 8
