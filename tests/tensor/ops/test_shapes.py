"""Shape operations against PyTorch: values, gradients, and which of them are views."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from baregrad.base.errors import DTypeError, IndexOutOfRange, ShapeError
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.engine.session import Session, use_session
from baregrad.tensor import Tensor
from tests.tensor.oracle import compare, same

ROWS: tuple[tuple[str, tuple[int, ...], Any], ...] = (
    ("reshape", (2, 6), lambda f, x: x.reshape(3, -1)),
    ("reshape tuple", (2, 6), lambda f, x: x.reshape((4, 3))),
    ("reshape scalar", (1, 1), lambda f, x: x.reshape(())),
    ("reshape transposed", (2, 6), lambda f, x: x.transpose(0, 1).reshape(3, 4)),
    ("view", (2, 6), lambda f, x: x.view(2, 2, 3)),
    ("flatten", (2, 3, 4), lambda f, x: x.flatten()),
    ("flatten 1", (2, 3, 4), lambda f, x: x.flatten(1)),
    ("flatten 0 1", (2, 3, 4), lambda f, x: x.flatten(0, 1)),
    ("flatten scalar", (), lambda f, x: x.flatten()),
    ("ravel", (2, 3), lambda f, x: x.ravel()),
    ("unflatten", (2, 6), lambda f, x: x.unflatten(1, (2, -1))),
    ("squeeze", (1, 3, 1), lambda f, x: x.squeeze()),
    ("squeeze 0", (1, 3, 1), lambda f, x: x.squeeze(0)),
    ("squeeze 1", (1, 3, 1), lambda f, x: x.squeeze(1)),
    ("squeeze both", (1, 3, 1), lambda f, x: x.squeeze((0, 2))),
    ("unsqueeze", (2, 3), lambda f, x: x.unsqueeze(-1)),
    ("unsqueeze 0", (2, 3), lambda f, x: x.unsqueeze(0)),
    ("permute", (2, 3, 4), lambda f, x: x.permute(2, 0, 1)),
    ("permute negative", (2, 3, 4), lambda f, x: x.permute(-1, 0, 1)),
    ("transpose", (2, 3, 4), lambda f, x: x.transpose(0, 2)),
    ("swapaxes", (2, 3, 4), lambda f, x: x.swapaxes(1, 2)),
    ("t", (2, 3), lambda f, x: x.t()),
    ("t vector", (3,), lambda f, x: x.t()),
    ("T", (2, 3), lambda f, x: x.T),
    ("mT", (2, 3, 4), lambda f, x: x.mT),
    ("movedim", (2, 3, 4), lambda f, x: x.movedim(0, -1)),
    ("movedim several", (2, 3, 4), lambda f, x: x.movedim((0, 1), (2, 0))),
    ("expand", (1, 3), lambda f, x: x.expand(4, 3)),
    ("expand -1", (1, 3), lambda f, x: x.expand(2, 4, -1)),
    ("broadcast_to", (3, 1), lambda f, x: x.broadcast_to((2, 3, 4))),
    ("repeat", (2, 3), lambda f, x: x.repeat(2, 3)),
    ("repeat more", (2, 3), lambda f, x: x.repeat(2, 1, 2)),
    ("tile", (2, 3), lambda f, x: x.tile(2)),
    ("repeat_interleave", (2, 3), lambda f, x: x.repeat_interleave(2, 1)),
    ("repeat_interleave flat", (2, 3), lambda f, x: x.repeat_interleave(3)),
    ("flip", (2, 3), lambda f, x: x.flip(0)),
    ("flip both", (2, 3), lambda f, x: x.flip((0, 1))),
    ("roll", (2, 5), lambda f, x: x.roll(2, 1)),
    ("roll both", (2, 5), lambda f, x: x.roll((1, -2), (0, 1))),
    ("roll flat", (2, 5), lambda f, x: x.roll(3)),
    ("flip none", (2, 3), lambda f, x: x.flip(())),
    ("roll no axes", (2, 5), lambda f, x: x.roll(3, ())),
    ("narrow", (4, 5), lambda f, x: x.narrow(1, 1, 3)),
    ("unfold", (2, 7), lambda f, x: x.unfold(1, 3, 2)),
    ("unfold front", (7, 2), lambda f, x: x.unfold(0, 2, 1)),
    ("diagonal", (3, 4), lambda f, x: x.diagonal()),
    ("diagonal offset", (3, 4), lambda f, x: x.diagonal(1)),
    ("diagonal below", (4, 3), lambda f, x: x.diagonal(-2)),
    ("diagonal none", (3, 3), lambda f, x: x.diagonal(5)),
    ("diagonal batch", (2, 3, 4), lambda f, x: x.diagonal(0, 1, 2)),
    ("diagonal axes", (3, 2, 4), lambda f, x: x.diagonal(1, 2, 0)),
    ("diag", (3,), lambda f, x: x.diag()),
    ("diag 1", (3,), lambda f, x: x.diag(1)),
    ("diag -2", (3,), lambda f, x: x.diag(-2)),
    ("diag matrix", (3, 4), lambda f, x: x.diag(1)),
    ("diag_embed", (2, 3), lambda f, x: x.diag_embed(1)),
    ("tril", (3, 4), lambda f, x: x.tril()),
    ("tril 1", (2, 3, 4), lambda f, x: x.tril(1)),
    ("triu", (3, 4), lambda f, x: x.triu()),
    ("triu -1", (4, 3), lambda f, x: x.triu(-1)),
    ("split", (7, 2), lambda f, x: x.split(3)),
    ("split sizes", (7, 2), lambda f, x: x.split([2, 5])),
    ("split 1", (2, 6), lambda f, x: x.split(2, 1)),
    ("chunk", (7, 2), lambda f, x: x.chunk(3)),
    ("chunk many", (2, 2), lambda f, x: x.chunk(5)),
    ("tensor_split", (7,), lambda f, x: x.tensor_split(3)),
    ("tensor_split at", (7,), lambda f, x: x.tensor_split((2, 5))),
    ("unbind", (3, 2), lambda f, x: x.unbind()),
    ("unbind 1", (3, 2), lambda f, x: x.unbind(1)),
    ("cat", (2, 3), lambda f, x: f.cat([x, x * 2, x[:1]])),
    ("cat 1", (2, 3), lambda f, x: f.cat((x, x), dim=-1)),
    ("stack", (2, 3), lambda f, x: f.stack([x, x * 2])),
    ("stack last", (2, 3), lambda f, x: f.stack([x, x * 2], dim=-1)),
    ("hstack", (2, 3), lambda f, x: f.hstack([x, x])),
    ("hstack 1", (3,), lambda f, x: f.hstack([x, x])),
    ("vstack", (3,), lambda f, x: f.vstack([x, x])),
    ("meshgrid", (3,), lambda f, x: f.meshgrid(x, x * 2, indexing="ij")),
    ("meshgrid xy", (3,), lambda f, x: f.meshgrid(x, x[:2], indexing="xy")),
    ("pad", (2, 3), lambda f, x: f.pad(x, (1, 2))),
    ("pad both", (2, 3), lambda f, x: f.pad(x, (1, 2, 0, 1))),
    ("pad value", (2, 3), lambda f, x: f.pad(x, (1, 2), value=1.5)),
    ("pad negative", (2, 5), lambda f, x: f.pad(x, (-1, 2))),
    ("pad reflect", (1, 2, 4), lambda f, x: f.pad(x, (2, 1), mode="reflect")),
    ("pad replicate", (1, 2, 4), lambda f, x: f.pad(x, (2, 5), mode="replicate")),
    ("pad circular", (1, 2, 4), lambda f, x: f.pad(x, (2, 1), mode="circular")),
    ("pad reflect 2d", (1, 1, 3, 4), lambda f, x: f.pad(x, (1, 2, 2, 1), mode="reflect")),
    ("contiguous", (2, 3), lambda f, x: x.T.contiguous()),
    ("clone", (2, 3), lambda f, x: x.clone()),
    ("kron", (2, 3), lambda f, x: f.kron(x, x[:1])),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r[0])
@pytest.mark.parametrize("dtype", (dtypes.float64, dtypes.int32, dtypes.bool), ids=str)
def test_values_and_gradients(row: Any, dtype: Any) -> None:
    name, shape, function = row
    rng = np.random.default_rng(1)
    if dtype.kind == "bool" and ("*" in name or name in _ARITHMETIC):
        return
    array = rng.uniform(-2, 2, shape) if dtype.is_float else rng.integers(0, 5, shape)
    if name == "pad value" and dtype is not dtypes.float64:
        return
    compare(function, [array], dtype, tolerance=0.0, grad_tolerance=1e-12)


_ARITHMETIC = (
    "cat",
    "stack",
    "stack last",
    "meshgrid",
    "pad reflect",
    "pad replicate",
    "pad circular",
    "pad reflect 2d",
    "kron",
)


@pytest.mark.parametrize(
    "row",
    [r for r in ROWS if len(r[1]) >= 2 and r[0] not in ("narrow", "kron")],
    ids=lambda r: r[0],
)
def test_of_a_view(row: Any) -> None:
    _, shape, function = row
    array = np.random.default_rng(2).uniform(-2, 2, (shape[-1] * 2, *reversed(shape[:-1])))

    def of_view(f: Any, x: Any) -> Any:
        return function(f, x[::2].permute(*reversed(range(x.ndim))).flip(0))

    compare(of_view, [array], dtypes.float64, tolerance=0.0, grad_tolerance=1e-12)


def test_reshape_is_a_view_where_numpy_gives_one() -> None:
    array = np.arange(24.0).reshape(2, 3, 4)
    cases = (
        (lambda a: a, (6, 4)),
        (lambda a: a[:, 1:], (2, 8)),
        (lambda a: a[:, 1:], (4, 4)),
        (lambda a: a[..., ::2], (6, 2)),
        (lambda a: a[..., ::2], (2, 6)),
        (lambda a: a.transpose(1, 0, 2), (6, 4)),
        (lambda a: a.transpose(1, 0, 2), (3, 2, 2, 2)),
        (lambda a: a[::-1], (6, 4)),
        (lambda a: a[:, ::-1], (2, 12)),
        (lambda a: a[:1], (12,)),
        (lambda a: a[:, :1], (2, 4)),
        (lambda a: a.transpose(2, 1, 0), (24,)),
        (lambda a: a[1], (3, 2, 2)),
        (lambda a: a[:, :, 0], (6,)),
        (lambda a: a[:, :, None], (2, 3, 4)),
    )
    for view, shape in cases:
        x = Tensor(array)
        seen = view(x) if not _uses_transpose(view) else _permuted(x, view, array)
        expected = np.shares_memory(view(array).reshape(shape), array)
        aliases = seen.reshape(shape)._storage is x._storage
        assert aliases == expected, (shape, view(array).strides)


def _uses_transpose(view: Any) -> bool:
    return "transpose" in view.__code__.co_names


def _permuted(x: Tensor, view: Any, array: np.ndarray) -> Tensor:
    strides = view(array).strides
    return x.permute([array.strides.index(stride) for stride in strides])


def test_strides_follow_numpy() -> None:
    array = np.arange(24.0).reshape(2, 3, 4)
    x = Tensor(array)
    assert x.stride() == (12, 4, 1)
    assert x[:, ::-1, 1::2].stride() == (12, -4, 2)
    assert x.T.stride() == (1, 4, 12)
    assert x[:, None].expand(2, 5, 3, 4).stride() == (12, 0, 4, 1)
    assert x.diagonal(0, 0, 1).stride() == (1, 16)
    assert not x.T.is_contiguous()
    assert x.T.contiguous().is_contiguous()


def test_view_refuses_to_copy() -> None:
    with pytest.raises(ShapeError, match="reshape"):
        Tensor.ones(2, 3).T.view(6)
    assert Tensor([1.0]).view(dtypes.int32).tolist() == [1065353216]


@pytest.mark.parametrize("name", ("int8", "int16", "float16", "int32", "float32", "float64"))
def test_views_of_elements_of_another_size(name: str) -> None:
    """Values, shapes and strides are PyTorch's; what is written through one shows in the other."""
    array = np.random.default_rng(3).integers(0, 256, (3, 48), np.uint8)
    ours, theirs = Tensor(array), torch.from_numpy(array.copy())
    kind = getattr(torch, name)
    mine, other = ours.view(getattr(dtypes, name)), theirs.view(kind)
    assert mine._strides() == (other.stride(), other.storage_offset())
    for one, two in ((mine, other), (mine[1:, 1:3].view(dtypes.uint8),
                                     other[1:, 1:3].view(torch.uint8))):  # fmt: skip
        assert one._strides() == (two.stride(), two.storage_offset())
        assert one.numpy().tobytes() == two.numpy().tobytes()
        assert one.clone().numpy().tobytes() == two.numpy().tobytes()
    mine[:, 1] = 3
    other[:, 1] = 3
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    shown, seen = ours.view(dtypes.int16)[:, 2:6], theirs.view(torch.int16)[:, 2:6]
    shown, seen = shown.view(dtypes.int32), seen.view(torch.int32)
    shown += 7
    seen += 7
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize("make", (
    lambda x: x[:, 1:5], lambda x: x.T, lambda x: x[:, :6], lambda x: x[0, 0], lambda x: x[:, ::2],
))  # fmt: skip
def test_bytes_that_are_no_whole_words_have_no_view(make: Any) -> None:
    """As in PyTorch; a copy has one where its rows are whole words."""
    array = np.arange(96, dtype=np.uint8).reshape(4, 24)
    with pytest.raises(RuntimeError):
        make(torch.from_numpy(array)).view(torch.int32)
    shown = make(Tensor(array))
    with pytest.raises(ShapeError, match="side by side"):
        shown.view(dtypes.int32)
    if shown.ndim and shown.shape[-1] % 4 == 0:
        copied = np.ascontiguousarray(shown.numpy()).view(np.int32)
        np.testing.assert_array_equal(shown.contiguous().view(dtypes.int32).numpy(), copied)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    (
        (lambda x: x.reshape(4), ShapeError, r"\[2, 3\] \(6 elements\), wanted \[4\]"),
        (lambda x: x.reshape(-1, -1), ShapeError, "only one extent can be -1"),
        (lambda x: x.reshape(4, -1), ShapeError, "sizes do not fit"),
        (lambda x: x.reshape(2.0, 3), ShapeError, "an extent is an integer"),
        (lambda x: x.permute(0, 0), ShapeError, "each axis once"),
        (lambda x: x.expand(3, 3), ShapeError, "cannot expand axis -2 from 2 to 3"),
        (lambda x: x.expand(3), ShapeError, "cannot drop axes"),
        (lambda x: x.unsqueeze(4), IndexOutOfRange, "no axis 4"),
        (lambda x: x.split([1, 2]), ShapeError, "do not add up"),
        (lambda x: x.cat(Tensor.ones(2)), ShapeError, "equal extents"),
        (lambda x: x.stack(Tensor.ones(2)), ShapeError, "one shape"),
        (lambda x: x.pad((1,)), ShapeError, "before, after"),
        (lambda x: x.pad((4, 0), mode="reflect"), ShapeError, "at most 2"),
        (lambda x: x[0].tril(), ShapeError, "at least 2"),
        (lambda x: x.narrow(1, 2, 3), ShapeError, "narrow leaves the axis"),
        (lambda x: x.unfold(1, 4, 1), ShapeError, "does not fit"),
        (lambda x: x.flatten(1, 0), ShapeError, "wrong order"),
        (lambda x: x.movedim((0, 1), 0), ShapeError, "as many places"),
        (lambda x: Tensor.zeros(-1), ShapeError, "negative"),
        (lambda x: Tensor.ones(0).reshape(0, -1), ShapeError, "not determined"),
    ),
)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(Tensor.ones(2, 3))


def test_cat_promotes_and_skips_empty_vectors() -> None:
    joined = Tensor.cat([Tensor([1, 2]), Tensor([0.5]), Tensor.zeros(0)])
    assert joined.tolist() == [1.0, 2.0, 0.5]
    assert joined.dtype is dtypes.float32
    assert np.signbit(Tensor.cat([Tensor([-0.0]), Tensor([1.0])]).numpy()[0])


def test_an_empty_vector_gets_axes_and_is_joined() -> None:
    """Its axis of extent 0 is not the new array's, which may be padded to hold something."""
    rows = np.arange(9, dtype=np.float32).reshape(3, 3)
    with options.override(device="CPU"):
        empty = Tensor(np.zeros(0, np.float32)).reshape(0, 3)
        joined = Tensor.cat([empty, empty, Tensor(rows)]).numpy()
        padded = empty.pad((0, 0, 1, 1)).numpy()
    np.testing.assert_array_equal(joined, rows)
    np.testing.assert_array_equal(padded, np.zeros((2, 3), np.float32))


@pytest.mark.parametrize("count", [12, 13, 65, 600])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int16", "bool"])
def test_many_arrays_are_joined(count: int, dtype: str) -> None:
    """Of uneven extents, with every special value in its place."""
    rng = np.random.default_rng(count)
    special = np.array([-0.0, np.nan, np.inf, -np.inf, 1.5, 0.0])
    arrays = [rng.choice(special, (int(rng.integers(0, 3)), 3)) for _ in range(count)]
    with np.errstate(invalid="ignore"):
        arrays = [array.astype(dtype) for array in arrays]
    found = Tensor.cat([Tensor(array) for array in arrays]).numpy()
    wanted = np.concatenate(arrays)
    assert found.dtype == wanted.dtype
    # A GPU's conversions make every NaN the same one.
    np.testing.assert_array_equal(found, wanted)
    if wanted.dtype.kind == "f":
        number = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(found[number]), np.signbit(wanted[number]))


def test_gradients_of_many_joined_arrays() -> None:
    parts = [Tensor(np.full(2, i, np.float32), requires_grad=True) for i in range(300)]
    weights = np.random.default_rng(0).standard_normal((300, 2)).astype(np.float32)
    (Tensor.stack(parts).square() * Tensor(weights)).sum().backward()
    found = np.stack([part.grad.numpy() for part in parts])
    np.testing.assert_allclose(found, 2 * np.arange(300)[:, None] * weights, rtol=1e-6)


def test_joining_many_compiles_few_kernels() -> None:
    """Groups of equal shapes have one kernel, however many they are."""
    own = Session()
    with use_session(own), options.override(cache=False, device="CPU"):
        parts = [Tensor(np.full(3, i, np.float32)) for i in range(512)]
        np.testing.assert_array_equal(Tensor.stack(parts).numpy()[:, 1], np.arange(512))
        assert own.backend("CPU").compiler.compiled <= 4
    own.close()


@pytest.mark.parametrize("name", [
    "split", "chunk", "tensor_split", "unbind", "narrow", "roll", "size", "stride", "glu",
    "repeat_interleave",
])  # fmt: skip
def test_a_tensor_without_axes_has_none_to_go_along(name: str) -> None:
    arguments: dict[str, tuple[int, ...]] = {
        "unbind": (), "glu": (), "size": (0,), "stride": (0,), "narrow": (0, 0, 1), "roll": (1, 0),
        "repeat_interleave": (2, 0),
    }  # fmt: skip
    with pytest.raises(IndexOutOfRange, match="without axes"):
        getattr(Tensor(3.0), name)(*arguments.get(name, (1,)))


def test_no_parts_are_refused() -> None:
    with pytest.raises(ShapeError, match="positive"):
        Tensor([1.0, 2.0]).tensor_split(0)


ONE, TWO = np.int64(1), np.int32(2)
GRID = np.arange(12.0).reshape(3, 4)
BY_NUMPY: dict[str, tuple[Any, Any]] = {
    "sum": (lambda x: x.sum(ONE), lambda x: x.sum(1)),
    "sum of both": (lambda x: x.sum((ONE, 0)), lambda x: x.sum((1, 0))),
    "max": (lambda x: x.max(ONE), lambda x: x.max(1)),
    "min": (lambda x: x.min(np.uint8(0)), lambda x: x.min(0)),
    "argmax": (lambda x: x.argmax(ONE), lambda x: x.argmax(1)),
    "softmax": (lambda x: x.softmax(ONE), lambda x: x.softmax(1)),
    "cumsum": (lambda x: x.cumsum(ONE), lambda x: x.cumsum(1)),
    "topk": (lambda x: x.topk(TWO, ONE), lambda x: x.topk(2, 1)),
    "kthvalue": (lambda x: x.kthvalue(TWO), lambda x: x.kthvalue(2)),
    "flip": (lambda x: x.flip(ONE), lambda x: x.flip(1)),
    "roll": (lambda x: x.roll(ONE, 0), lambda x: x.roll(1, 0)),
    "roll both": (lambda x: x.roll((ONE, TWO), (0, ONE)), lambda x: x.roll((1, 2), (0, 1))),
    "permute": (lambda x: x.permute(ONE, 0), lambda x: x.permute(1, 0)),
    "unsqueeze": (lambda x: x.unsqueeze(ONE), lambda x: x.unsqueeze(1)),
    "squeeze": (lambda x: x[:1].squeeze(np.int64(0)), lambda x: x[:1].squeeze(0)),
    "movedim": (lambda x: x.movedim(ONE, 0), lambda x: x.movedim(1, 0)),
    "repeat": (lambda x: x.repeat_interleave(TWO, 0), lambda x: x.repeat_interleave(2, 0)),
    "narrow": (lambda x: x.narrow(ONE, ONE, TWO), lambda x: x.narrow(1, 1, 2)),
    "select": (lambda x: x.select(ONE, TWO), lambda x: x.select(1, 2)),
    "split": (lambda x: x.split(TWO, ONE), lambda x: x.split(2, 1)),
    "chunk": (lambda x: x.chunk(TWO), lambda x: x.chunk(2)),
    "tensor_split": (lambda x: x.tensor_split(TWO), lambda x: x.tensor_split(2)),
    "unfold": (lambda x: x.unfold(ONE, TWO, ONE), lambda x: x.unfold(1, 2, 1)),
    "diagonal": (lambda x: x.diagonal(ONE), lambda x: x.diagonal(1)),
    "diag": (lambda x: x[0].diag(ONE), lambda x: x[0].diag(1)),
    "gather": (lambda x: x.gather(ONE, x[:, :1].long() * 0), lambda x: x[:, :1]),
    "one_hot": (
        lambda x: x[0, :2].long().one_hot(TWO), lambda x: torch.tensor([[1, 0], [0, 1]]),
    ),
    "pool": (
        lambda x: x.reshape(1, 1, 3, 4).max_pool2d(TWO, stride=ONE),
        lambda x: torch.nn.functional.max_pool2d(x.reshape(1, 1, 3, 4), 2, stride=1),
    ),
    "adaptive": (
        lambda x: x.adaptive_avg_pool1d(TWO),
        lambda x: torch.nn.functional.adaptive_avg_pool1d(x, 2),
    ),
    "interpolate": (
        lambda x: x.reshape(1, 3, 4).interpolate(scale_factor=TWO),
        lambda x: torch.nn.functional.interpolate(x.reshape(1, 3, 4), scale_factor=2),
    ),
    "full_like": (
        lambda x: x.full_like(np.float32(0.5)), lambda x: torch.full_like(x, 0.5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_NUMPY)
def test_numbers_of_numpy_are_axes_and_sizes(name: str) -> None:
    ours, theirs = BY_NUMPY[name]
    same(ours(Tensor(GRID)), theirs(torch.tensor(GRID)))


def test_what_is_no_axis_is_not_taken_for_an_operand() -> None:
    x = Tensor(GRID)
    for value in (2.5, np.float32(1), np.bool_(True), [0]):
        with pytest.raises(ShapeError, match="an axis is an integer"):
            x.max(value)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="kernel"):
        x.reshape(1, 1, 3, 4).max_pool2d(np.float32(2))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="a size for each axis"):
        x.adaptive_avg_pool1d((1, 2))  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="scalar"):
        x.full_like("1")  # type: ignore[arg-type]
