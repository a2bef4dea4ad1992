"""Long running folds in pieces, on GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from baregrad import bind, jit, variable
from baregrad.dtypes import DType, dtypes
from baregrad.engine.session import current_session
from baregrad.graph import canonicalise, scans
from baregrad.graph.views import full
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Scan
from baregrad.ir.core.monoid import primitive, scaled_sum
from baregrad.ir.core.node import Node, alu, cast, const, extent_of, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel import facts_of
from baregrad.schedule import make_plan
from baregrad.tensor import Tensor
from baregrad.testing.ptx_device import ptx_session
from tests.graph.graphs.gpu_graphs import F32, F64, HOPPER, I32, RNG, argument, changed


def scanned(op: Any, dtype: DType, axis: int, *shape: int) -> Node:
    scan = Scan(primitive(op, dtype), axis)
    return Node(Ops.SCAN, dtype, (argument(0, dtype, *shape),), scan)


def extents(root: Node) -> list[int]:
    """How long the running folds are."""
    scans = [node for node in toposort(root) if node.op is Ops.SCAN]
    return sorted(node.shape[node.arg.axis] for node in scans)


@pytest.mark.parametrize(
    ("op", "dtype", "axis", "shape", "lengths"),
    (
        (Ops.ADD, F32, 0, (1024, 2), [16, 64]),
        (Ops.ADD, F64, 1, (3, 601, 2), [10, 64]),
        (Ops.MAX, I32, 1, (2, 1536, 3), [24, 64]),
        (Ops.MUL, I32, 0, (512, 2), [8, 64]),
        # Of a prime length, which no piece divides: what is put behind it is neutral.
        (Ops.MAX, I32, 0, (601, 2), [10, 64]),
        (Ops.ADD, F32, 0, (200, 2), [200]),
        (Ops.ADD, F32, 0, (256, 1 << 16), [256]),
        (Ops.ADD, dtypes.float16, 0, (1024,), [1024]),
        # What pieces come to is rounded, but not if it is one of their elements.
        (Ops.ADD, dtypes.float16, 0, (9000,), [9000]),
        (Ops.MAX, dtypes.float16, 0, (9001,), [3, 4096]),
        (Ops.ADD, F32, 0, (32768, 2), [8, 64, 64]),
        # Along the innermost axis a piece is what a block's threads fold together.
        (Ops.ADD, F32, 0, (4096,), [4096]),
        (Ops.ADD, F64, 1, (3, 4097), [2, 4096]),
        (Ops.MAX, I32, 1, (2, 77), [77]),
        (Ops.MIN, F32, 0, (9001,), [3, 4096]),
        # Of whole pieces, if a number of about as many elements divides it.
        (Ops.MIN, F32, 0, (9000,), [3, 3000]),
        (Ops.ADD, F32, 1, (2, 15003), [9, 1667]),
        (Ops.ADD, F32, 0, (1 << 25,), [2, 4096, 4096]),
        (Ops.ADD, F32, 1, (1 << 10, 8192), [2, 4096]),
    ),
    ids=str,
)
def test_long_running_folds_are_cut(
    op: Any, dtype: DType, axis: int, shape: tuple[int, ...], lengths: list[int]
) -> None:
    node = scanned(op, dtype, axis, *shape)
    if np.prod(shape) > 1 << 20:
        made = canonicalise(Node(Ops.SINK, dtypes.token, (node,)), None, HOPPER)
    else:
        small = RNG.integers(-3, 4, shape) if dtype.kind == "int" else RNG.standard_normal(shape)
        made = changed(node, [small.astype(dtype.numpy)])
    assert extents(made) == lengths


@pytest.mark.parametrize("length", (1 << 22, 22_401_032, 3 * 5 * 7 * 11 * 13 * 17))
def test_what_is_made_of_pieces_is_written_as_they_are_folded(length: int) -> None:
    """No sums of all elements are stored on the way to narrower ones."""
    half = dtypes.float16
    wide = cast(argument(0, half, length), F32)
    fold = Node(Ops.SCAN, F32, (wide,), Scan(primitive(Ops.ADD, F32), 0))
    value = cast(alu(Ops.SUB, fold, alu(Ops.MUL, fold, full(const(0.5, F32), (length,)))), half)
    root = canonicalise(Node(Ops.SINK, dtypes.token, (value,)), None, HOPPER)
    plan = make_plan(root, target=HOPPER)
    large = [one for one in plan.buffers if np.prod(one.shape) >= length]
    assert sorted(one.kind for one in large) == ["output", "param"]


@pytest.mark.parametrize("rows", ((12_000,), (2, 6000)), ids=str)
def test_functions_of_pieces(rows: tuple[int, ...]) -> None:
    given = RNG.standard_normal(rows).astype(np.float32)
    with ptx_session():
        folds = Tensor(given).cumsum(-1)
        both = (folds - folds * folds * 0.1).numpy(), (folds + Tensor(given)).numpy()
    wanted = np.cumsum(given.astype(np.float64), -1)
    for found, right in zip(both, (wanted - wanted * wanted * 0.1, wanted + given), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("axis", (0, 1))
@pytest.mark.parametrize("op", ("cumsum", "cummax", "cumprod"))
def test_on_the_gpu_of_the_tests(op: str, axis: int) -> None:
    given = RNG.standard_normal((300, 270)).astype(np.float32)
    given[3, 5], given[250, 40] = np.nan, -np.inf
    if op == "cumprod":
        given = np.sign(given) + (given == 0)
    wanted = {"cumsum": np.cumsum, "cummax": np.maximum.accumulate, "cumprod": np.cumprod}[op]
    with ptx_session():
        found = getattr(Tensor(given), op)(axis)
        found = (found if isinstance(found, Tensor) else found.values).numpy()
    np.testing.assert_allclose(found, wanted(given, axis), rtol=1e-3, atol=1e-3)


VIEWS: dict[str, tuple[Any, Any]] = {
    "backwards": (
        lambda x: x.flip(-1).cumsum(-1).flip(-1), lambda x: x[:, ::-1].cumsum(-1)[:, ::-1]
    ),
    "read across": (lambda x: x.T.cumsum(-1), lambda x: x.T.cumsum(-1)),
    "written across": (lambda x: x.cumsum(-1).T + 0, lambda x: x.cumsum(-1).T),
    "twice": (lambda x: x.cumsum(-1).cumsum(-1), lambda x: x.cumsum(-1).cumsum(-1)),
    "beside a sum": (
        lambda x: x.cumsum(-1) * x.sum(-1, keepdim=True),
        lambda x: x.cumsum(-1) * x.sum(-1, keepdims=True),
    ),
    "of sums": (lambda x: x.softmax(-1).cumsum(-1), lambda x: np.exp(
        x - np.log(np.exp(x).sum(-1, keepdims=True))
    ).cumsum(-1)),
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_rows_lie_anyhow(name: str) -> None:
    ours, theirs = VIEWS[name]
    given = RNG.standard_normal((40, 35)).astype(np.float32)
    with ptx_session():
        found = ours(Tensor(given)).numpy()
    np.testing.assert_allclose(found, theirs(given.astype(np.float64)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axis", (0, 1))
@pytest.mark.parametrize("most", (40, 400))
def test_symbolic_lengths_are_folded_as_their_bounds_are(
    most: int, axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one block, or in pieces: nothing runs in order but folds of a few pieces."""
    monkeypatch.setattr(scans, "LEAST", 32)
    monkeypatch.setattr(scans, "PIECE", 16)
    monkeypatch.setattr(scans, "BLOCK_PIECE", 64)
    shape = (most, 3) if axis == 0 else (3, most)
    array = RNG.integers(-9, 9, shape).astype(np.float32)
    with ptx_session():
        x = Tensor(array).realize()
        kernels: list[Node] = []
        watching = current_session().watching
        watching.observers.append(lambda run: kernels.extend(run.executable.plan.kernels))
        for count in (1, most - 3, most):
            n = bind(variable("n", 1, most), count)
            found = (x[:n] if axis == 0 else x[:, :n]).cumsum(axis)
            cut = array[:count] if axis == 0 else array[:, :count]
            np.testing.assert_array_equal(found.numpy(), cut.cumsum(axis))
    scanned = [axis for one in kernels for axis in facts_of(one).scanned]
    assert scanned and max(index.upper(extent_of(axis)) for axis in scanned) <= 64


HOSTILE: tuple[list[float], ...] = (
    [-np.inf, -np.inf, 1, np.inf, 2], [3, np.nan, 2], [-1e4, 1e4, -1e4, 88, 89], [-np.inf] * 3,
)  # fmt: skip


def powers(x: Tensor, weights: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Logarithms of running sums of powers, and the gradient of a sum of them."""
    x = x.detach()
    x.requires_grad = True
    found = x.logcumsumexp(axis)
    (found * weights).sum().backward()
    assert x.grad is not None
    return found, x.grad


def prefixes_of(array: Any, weights: Any, axis: int) -> tuple[Any, Any]:
    """The same as PyTorch has it in float64, by a sum for each prefix."""
    x = torch.tensor(array, dtype=torch.float64, requires_grad=True)
    prefixes = [x.narrow(axis, 0, i + 1) for i in range(array.shape[axis])]
    found = torch.stack([prefix.logsumexp(axis) for prefix in prefixes], axis)
    (found * torch.tensor(weights)).sum().backward()
    assert x.grad is not None
    return found.detach().numpy(), x.grad.numpy()


@pytest.mark.parametrize(("shape", "axis"), [((70,), 0), ((3, 200), 1), ((200, 3), 0)], ids=str)
def test_sums_of_powers_in_pieces_and_in_one(
    shape: tuple[int, ...], axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state of two parts, forwards and for the gradient; jit and eager give the same bits."""
    array = RNG.uniform(-90, 90, shape).astype(np.float32)
    weights = RNG.standard_normal(shape).astype(np.float32)
    wanted = prefixes_of(array, weights, axis)
    for piece in (16, 1 << 12):
        monkeypatch.setattr(scans, "LEAST", 2 * piece)
        monkeypatch.setattr(scans, "PIECE", piece)
        monkeypatch.setattr(scans, "BLOCK_PIECE", piece)
        with ptx_session():
            given = Tensor(array).realize(), Tensor(weights).realize()
            found = [one.numpy() for one in powers(*given, axis)]
            again = [one.numpy() for one in jit(lambda x, w: powers(x, w, axis))(*given)]
        for ours, replayed, theirs in zip(found, again, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-5)
            np.testing.assert_array_equal(ours, replayed)


@pytest.mark.parametrize("row", HOSTILE, ids=str)
def test_sums_of_hostile_powers_in_pieces(
    row: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "BLOCK_PIECE", 16)
    array = np.array([*row, *[0.5] * 30, *row], np.float32)
    weights = RNG.standard_normal(array.shape).astype(np.float32)
    wanted = prefixes_of(array, weights, 0)
    with ptx_session():
        found = [one.numpy() for one in powers(Tensor(array), Tensor(weights), 0)]
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-6)


def test_pairs_are_read_three_times_and_not_stored() -> None:
    """What is folded is a few operations on an array: no copy of it is made."""
    x = argument(0, F32, 1 << 25)
    pair = Scan(scaled_sum(F32), 0)
    both = Node(Ops.SCAN, F32, (x, alu(Ops.MUL, x, x)), pair)
    sums = Node(Ops.PROJ, F32, (both,), 1)
    made = canonicalise(Node(Ops.SINK, dtypes.token, (sums,)), None, HOPPER)
    assert extents(made) == [2, 4096, 4096]
    stored = [node for node in toposort(made) if node.op is Ops.CONTIGUOUS]
    assert max(np.prod(node.shape) for node in stored) == 1 << 13


@pytest.mark.parametrize("shape", [(70_000,), (70_000, 2)], ids=str)
def test_very_many_addends_all_count_on_a_cpu(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 2**24 on a float32 that grew by ones one by one would not grow any more."""
    monkeypatch.setattr(scans, "MOST_ADDED", 1 << 10)
    most = float(1 << 24)
    ones = Tensor.ones(*shape).contiguous().realize()
    start = np.zeros(shape, np.float32)
    start[0] = most - 1
    running = (Tensor(start) + ones).cumsum(0).numpy()
    count = np.arange(len(start)).reshape(-1, *[1] * (len(shape) - 1))
    assert np.abs(running - (most + count)).max() <= 1
    whole = Tensor.zeros(*shape).logcumsumexp(0).numpy()
    np.testing.assert_allclose(whole, np.log1p(count) + 0 * whole, rtol=2e-7, atol=2e-7)


def test_long_sums_on_a_cpu_are_wide() -> None:
    def folded(op: Any, dtype: DType, count: int) -> list[DType]:
        node = scanned(op, dtype, 0, count)
        made = canonicalise(Node(Ops.SINK, dtypes.token, (node,)))
        return [one.dtype for one in toposort(made) if one.op is Ops.SCAN]

    assert folded(Ops.ADD, F32, 1 << 17) == folded(Ops.ADD, F64, 1 << 17) == [F64]
    assert folded(Ops.ADD, F32, 1 << 16) == folded(Ops.MAX, F32, 1 << 17) == [F32]
    assert folded(Ops.ADD, I32, 1 << 17) == [I32]
