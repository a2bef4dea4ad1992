"""Making tensors and getting data out: against NumPy and PyTorch."""

from __future__ import annotations

import copy
import itertools
import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import baregrad
from baregrad.base.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    GradientError,
    ShapeError,
    UnsupportedDevice,
    UnsupportedDType,
)
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.tensor import Tensor
from tests.tensor.oracle import THEIRS, compare, same

MADE: tuple[tuple[str, Any], ...] = (
    ("zeros", lambda f: f.zeros(2, 3)),
    ("zeros tuple", lambda f: f.zeros((2, 3))),
    ("zeros scalar", lambda f: f.zeros(())),
    ("ones", lambda f: f.ones(2, 0)),
    ("full", lambda f: f.full((2, 3), 2.5)),
    ("full int", lambda f: f.full((2,), 3)),
    ("full bool", lambda f: f.full((2,), True)),
    ("arange", lambda f: f.arange(5)),
    ("arange from", lambda f: f.arange(2, 9)),
    ("arange step", lambda f: f.arange(2, 9, 3)),
    ("arange down", lambda f: f.arange(9, 2, -2)),
    ("arange float", lambda f: f.arange(0.0, 1.0, 0.1)),
    ("arange float stop", lambda f: f.arange(5.0)),
    ("arange empty", lambda f: f.arange(3, 3)),
    ("linspace", lambda f: f.linspace(0, 1, 7)),
    ("linspace down", lambda f: f.linspace(3, -2, 6)),
    ("linspace 1", lambda f: f.linspace(3, 5, 1)),
    ("linspace 0", lambda f: f.linspace(3, 5, 0)),
    ("eye", lambda f: f.eye(3)),
    ("eye wide", lambda f: f.eye(2, 4)),
    ("zeros_like", lambda f: f.zeros_like(f.ones(2, 3))),
    ("ones_like", lambda f: f.ones_like(f.arange(4))),
    ("full_like", lambda f: f.full_like(f.ones(2, 3), 7)),
)


@pytest.mark.parametrize("row", MADE, ids=lambda r: r[0])
def test_made_as_by_pytorch(row: Any) -> None:
    same(row[1](Tensor), row[1](THEIRS))


@pytest.mark.parametrize("target", ("bool", "int8", "uint8", "int64", "float32", "float64"))
@pytest.mark.parametrize(
    "name", ("float16", "bfloat16", "float8_e5m2", "float8_e4m3fn", "float4_e2m1fn")
)
def test_what_is_folded_to_a_narrow_constant_is_cast(name: str, target: str) -> None:
    """The constant is all that the kernel has of its dtype."""

    def one(value: float) -> Tensor:
        filled = Tensor.full((4, 3), value, dtype=name)
        return filled[1:2, :1] if filled.dtype.storage_only else filled.amax((0, 1), keepdim=True)

    found = one(-2.5).cast(target)
    if target != "uint8":
        whole = np.full((1, 1), -2.5, getattr(ml_dtypes, name, None) or name).astype(np.float32)
        np.testing.assert_array_equal(found.numpy(), whole.astype(target))
        return
    found = one(2.5).cast(target)
    np.testing.assert_array_equal(found.numpy(), np.full((1, 1), 2, np.uint8))


DATA: tuple[Any, ...] = (
    1,
    1.5,
    True,
    [1, 2],
    [1.0, 2],
    [True, False],
    [[1, 2], [3, 4]],
    [],
    [[]],
    [[[1.5]]],
    (1, 2),
    [2**40, -1],
    np.arange(3),
    np.arange(3.0),
    np.float32([1, 2]),
    np.array(5),
    np.array([True]),
    np.arange(6).reshape(2, 3).T,
    np.arange(10)[::-2],
    np.zeros((0, 3), np.int32),
    np.uint8([255]),
    np.float16([1.5]),
    np.int64(7),
    np.float32(1.5),
)


@pytest.mark.parametrize("data", DATA, ids=repr)
def test_data_as_pytorch_takes_it(data: Any) -> None:
    plain = data.copy() if isinstance(data, np.ndarray) else data
    same(Tensor(data), torch.tensor(plain), 0.0)


def test_other_sources() -> None:
    assert Tensor(b"\x01\x02").tolist() == [1, 2]
    assert Tensor(b"\x00\x00\x80\x3f", dtype=dtypes.float32).tolist() == [1.0]
    assert Tensor(range(3)).tolist() == [0, 1, 2]
    assert Tensor(np.array([1.5, 2], ml_dtypes.bfloat16)).dtype is dtypes.bfloat16
    assert Tensor([Tensor([1, 2]), Tensor([3, 4])]).tolist() == [[1, 2], [3, 4]]
    for kind in (torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.float64):
        theirs = torch.tensor([[0, 1], [2, 3]]).to(kind).T
        same(Tensor(theirs), theirs, 0.0)
    source = torch.ones(2, requires_grad=True)
    assert not Tensor(source).requires_grad


def test_dtype_and_device() -> None:
    assert Tensor([1, 2], dtype=dtypes.float16).dtype is dtypes.float16
    assert Tensor([1.7, -1.7], dtype="int32").tolist() == [1, -1]
    assert Tensor(np.array([1.5, 300]), dtype=dtypes.uint8).tolist() == [1, 255]
    assert Tensor([0.1], dtype=dtypes.float64).item() == 0.1
    assert Tensor([1.0], device="ref").device == "REF"
    x = Tensor([1.0])
    y = Tensor(x)
    y += 1
    assert x.tolist() == [1.0]


def test_data_is_copied() -> None:
    array = np.ones(3, np.float32)
    x = Tensor(array)
    array[0] = 5
    assert x.tolist() == [1.0, 1.0, 1.0]
    out = x.numpy()
    out[0] = 7
    assert x.tolist() == [1.0, 1.0, 1.0]


def test_out() -> None:
    x = Tensor([[1.5, -2.0]])
    assert x.tolist() == [[1.5, -2.0]]
    assert x[0, 0].item() == 1.5 and float(x[0, 0]) == 1.5 and int(Tensor(3)) == 3
    assert [10, 20, 30][Tensor(1)] == 20
    np.testing.assert_array_equal(np.asarray(x), x.numpy())
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert bool(Tensor(1.0)) and not Tensor([0])
    assert Tensor([1.5, 2], dtype=dtypes.bfloat16).tolist() == [1.5, 2.0]
    assert torch.from_dlpack(x).tolist() == [[1.5, -2.0]]
    assert np.from_dlpack(x).tolist() == [[1.5, -2.0]]


@pytest.mark.parametrize("name", [
    "is_cpu", "is_cuda", "is_meta", "is_mps", "is_quantized", "is_sparse", "is_xpu",
])  # fmt: skip
def test_what_tensors_are_not(name: str) -> None:
    with options.override(device="REF"):
        assert getattr(Tensor([1.0]), name) is getattr(torch.tensor([1.0]), name)


@pytest.mark.parametrize("sizes", [(2, 3), (4, 0), (1, 2, 3), (2, 1, 3, 2)])
def test_integers_are_sizes(sizes: tuple[int, ...]) -> None:
    made, wanted = Tensor(*sizes), torch.Tensor(*sizes)
    assert made.shape == tuple(wanted.shape) and made.dtype is dtypes.float32
    assert not made.requires_grad
    with pytest.raises(DTypeError, match="not a dtype"):
        Tensor(True, 3)


@pytest.mark.parametrize("lazily", [False, True])
def test_later_changes_of_an_array_are_not_seen(lazily: bool) -> None:
    array, other = np.zeros(3, np.float32), torch.zeros(3)
    made = [
        Tensor.from_numpy(array),
        Tensor.from_numpy(array[::-1]),
        Tensor.from_dlpack(array),
        Tensor.from_dlpack(other),
    ]
    if lazily:
        made = [x + 1 for x in made]
    array[0] = 5
    other[0] = 5
    assert [x.tolist() for x in made] == [[float(lazily)] * 3] * 4


def test_batches_through_one_buffer() -> None:
    buffer = np.empty(4, np.float32)
    total = Tensor(0.0)
    for batch in (1, 2, 3):
        buffer[:] = batch
        total = total + Tensor.from_numpy(buffer).sum()
    assert total.item() == 4 * (1 + 2 + 3)


def test_memory_that_cannot_change_is_shared(tmp_path: Path) -> None:
    text = np.arange(4.0).tobytes()
    path = tmp_path / "values"
    path.write_bytes(text)
    for array in (np.frombuffer(text), np.memmap(path, np.float64, "r")[1:]):
        x = Tensor.from_numpy(array)
        assert x.tolist() == array.tolist()
        if x.device == "CPU":
            assert x._ref().handle.address == array.ctypes.data


def test_sharing_memory() -> None:
    array = np.arange(4.0)
    for x in (
        Tensor.from_numpy(array),
        Tensor.from_dlpack(torch.tensor(array)),
        Tensor.from_dlpack(array),
    ):
        assert x.tolist() == [0.0, 1.0, 2.0, 3.0]
        x += 1
    assert array.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert Tensor.from_numpy(np.zeros((0, 2))).shape == (0, 2)


def test_conversions() -> None:
    array = np.array([-1.5, 0.0, 2.5, 300.7])
    for name in ("float", "double", "half", "bfloat16", "int", "long", "short", "bool"):
        compare(lambda f, x, n=name: getattr(x, n)(), [array], dtypes.float64)
    assert Tensor([float("nan"), float("inf"), -float("inf")]).int().tolist() == [
        0,
        2**31 - 1,
        -(2**31),
    ]
    x = Tensor([1.0])
    assert x.float() is x and x.to(x.device) is x and x.to(dtypes.int32).dtype is dtypes.int32
    assert x.to(Tensor([1], dtype=dtypes.int8)).dtype is dtypes.int8
    assert x.type(dtypes.half).dtype is dtypes.float16


def test_copies() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert y.requires_grad and y.is_leaf and y.tolist() == [1.0, 2.0]
        (y * 3).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]
    assert copy.deepcopy(x).grad.tolist() == [2.0, 4.0]
    assert pickle.loads(pickle.dumps(Tensor([1.5], dtype=dtypes.bfloat16))).tolist() == [1.5]
    with pytest.raises(GradientError, match="detach"):
        copy.deepcopy(x * 2)


def test_facts() -> None:
    x = Tensor.zeros(2, 3, 4)
    assert (x.ndim, x.numel(), x.size(), x.size(-1), len(x)) == (3, 24, (2, 3, 4), 4, 2)
    assert x.shape == (2, 3, 4) and x.dtype is dtypes.float32
    assert x.element_size() == 4 and x.nbytes == 96


def test_text() -> None:
    assert repr(Tensor([1.0, 2.5])) == "Tensor([1. , 2.5], dtype=float32)"
    assert repr(Tensor(3)) == "Tensor(3, dtype=int64)"
    assert "requires_grad=True" in repr(Tensor([1.0], requires_grad=True))
    assert "shape=(0, 3)" in repr(Tensor.zeros(0, 3))
    assert "..." in repr(Tensor.zeros(50, 50))
    assert "1.5" in repr(Tensor([1.5], dtype=dtypes.bfloat16))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    (
        (lambda: Tensor("abc"), DTypeError, "numbers or bools"),
        (lambda: Tensor([[1], [1, 2]]), ShapeError, "different lengths"),
        (lambda: Tensor([1j], dtype="float32"), DTypeError, "imaginary"),
        (lambda: Tensor(None), DTypeError, "NoneType"),
        (lambda: Tensor(b"ab", dtype="float32"), ShapeError, "whole elements"),
        (lambda: Tensor([1.0]).new_tensor(memoryview(b"abc")), ShapeError, "whole elements"),
        (lambda: Tensor([1], dtype="floaty"), DTypeError, "unknown dtype"),
        (lambda: Tensor([1.0], device="TPU").realize(), UnsupportedDevice, "TPU"),
        (lambda: Tensor([1.0]) + Tensor([1.0], device="NULL"), DeviceError, r"\w+ and NULL"),
        (lambda: Tensor([1.0], dtype=dtypes.bfloat16).numpy(), UnsupportedDType, "bfloat16"),
        (lambda: Tensor([1, 2]).item(), ShapeError, "one element"),
        (lambda: bool(Tensor([1, 2])), ShapeError, "any\\(\\) or all"),
        (lambda: [1][Tensor(0.0)], DTypeError, "index"),
        (lambda: Tensor.arange(0, 5, -1), ValueError, "wrong way"),
        (lambda: Tensor.arange(2.0, 3, float("nan")), ValueError, "finite"),
        (lambda: Tensor.arange(0, float("inf")), ValueError, "finite"),
        (lambda: Tensor.arange(0, 5, 0), ValueError, "never ends"),
    ),
)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def _outcome(side: Any, name: str, value: int, call: Any) -> Any:
    x = side.tensor([1, 0], dtype=getattr(side, name))
    try:
        found = call(side, x, value)
        return (x if found is None else found).tolist()
    except Exception:  # noqa: BLE001 - whatever either side refuses it with
        return "refused"


@pytest.mark.parametrize("name", ["int64", "int32", "uint8"])
def test_integers_that_a_dtype_has_not_are_refused_as_pytorch_does(name: str) -> None:
    calls = (
        lambda t, x, v: x.fill_(v), lambda t, x, v: t.full((2,), v, dtype=x.dtype),
        lambda t, x, v: t.where(x > 0, x, v), lambda t, x, v: x.masked_fill(x > 0, v),
        lambda t, x, v: x.reshape(1, 2).tril(v % 2**63), lambda t, x, v: x.__setitem__(0, v),
        lambda t, x, v: t.tensor([v], dtype=x.dtype), lambda t, x, v: t.full_like(x, v),
        lambda t, x, v: x.scatter(0, t.tensor([0]), v),
        lambda t, x, v: x.index_fill(0, t.tensor([0]), v),
        lambda t, x, v: x.reshape(1, 2).fill_diagonal_(v),
    )  # fmt: skip
    for value in (300, -1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**30):
        for place, call in enumerate(calls):
            found = _outcome(baregrad, name, value, call)
            assert found == _outcome(torch, name, value, call), (value, place)
    with pytest.raises(ArgumentError, match="int64 has not"):
        Tensor([[1.0]]).tril(2**63)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "uint8", "int8"])
def test_floats_that_a_dtype_has_not_are_refused_as_pytorch_does(name: str) -> None:
    calls: list[Any] = [
        lambda t, x, v: t.full((2,), v, dtype=x.dtype), lambda t, x, v: t.full_like(x, v),
        lambda t, x, v: x.new_full((2,), v), lambda t, x, v: x.masked_fill(x > 0, v),
        lambda t, x, v: t.nn.functional.pad(x, (1, 1), value=v),
    ]  # fmt: skip
    is_float = "float" in name
    if is_float:
        # Floats are not written into integers.
        calls += [
            lambda t, x, v: x.fill_(v), lambda t, x, v: x.reshape(1, 2).fill_diagonal_(v),
            lambda t, x, v: x.scatter(0, t.tensor([0]), v),
            lambda t, x, v: x.index_fill(0, t.tensor([0]), v),
        ]  # fmt: skip
    largest = float(getattr(dtypes, name).max)
    values = (largest, -largest, largest * (1 + 1e-9), 1e300, 65510.0, -1.0, -0.5, -1)
    for value in (*values, float("inf")) if is_float else values:
        for place, call in enumerate(calls):
            found = _outcome(baregrad, name, value, call)
            assert found == _outcome(torch, name, value, call), (value, place)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_narrow_floats_take_infinities_for_scalars_where_pytorch_does(name: str) -> None:
    calls: list[Any] = [
        lambda t, x, v: x.__setitem__(0, v), lambda t, x, v: x.__setitem__(..., v),
        lambda t, x, v: x.__setitem__(x > 0, v),
        lambda t, x, v: x.__setitem__(t.tensor([1]), v),
    ]  # fmt: skip
    for value, place in itertools.product((1e5, 1e300, -0.5), range(4)):
        found = _outcome(baregrad, name, value, calls[place])
        assert found == _outcome(torch, name, value, calls[place]), (value, place)
    found = _outcome(baregrad, name, 1e5, lambda t, x, v: t.where(x > 0, x, v))
    assert found == _outcome(torch, name, 1e5, lambda t, x, v: t.where(x > 0, x, v))


def test_lists_of_integers_beyond_all_dtypes_are_refused() -> None:
    """NumPy makes floats or objects of them; beside a float they are floats, as in PyTorch."""
    for given in ([2**64 - 1, 0], [2**64, 0], [[-(2**63) - 1], [0]]):
        with pytest.raises(ArgumentError, match="int64 has not"):
            Tensor(given)
    for numbers in ([2**64 - 1, 0.5], [-(2**63) - 1, 0.5], [2**70, 0.5]):
        assert Tensor(numbers).tolist() == torch.tensor(numbers).tolist()
        assert Tensor(numbers).dtype is dtypes.float32


def test_numbers_of_numpys_are_stored_as_pythons_are() -> None:
    for value in (np.int64(3), np.int8(-3), np.float32(1.5), np.float64(-0.25), np.bool_(True)):
        wanted = [value.item()] * 2
        assert Tensor.full((2,), value, dtype=dtypes.float32).tolist() == wanted
        assert Tensor.zeros(2).fill_(value).tolist() == wanted
    with pytest.raises(ArgumentError, match="uint8 has not: found 300"):
        Tensor.full((2,), np.int64(300), dtype=dtypes.uint8)
    with pytest.raises(DTypeError, match="imaginary"):
        Tensor.full((2,), 1j, dtype=dtypes.float32)


def test_large_integers_are_kept_beside_small_ones_and_floats() -> None:
    """NumPy makes floats of such lists."""
    for numbers, name in (
        ([2**64 - 2, 0], "uint64"), ([[2**64 - 2], [-1]], "uint64"), ([2**62 + 1, 0.5], "int64"),
        ([-(2**63), 2**63 - 1, 0.5], "int64"),
    ):  # fmt: skip
        found = Tensor(numbers, dtype=name).numpy()
        wanted = np.vectorize(lambda one: int(one) % 2**64, otypes=[np.uint64])(
            np.array(numbers, dtype=object)
        )
        np.testing.assert_array_equal(found.view(np.uint64), wanted)
    for given, name in (
        ([2**63, 0], "int64"), ([2**64 - 1, 0], "uint8"), ([1e10, 0], "uint8"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=f"{name} has not"):
            Tensor(given, dtype=name)
    for given, name in (
        ([float("nan")], "int32"), ([0, float("-inf")], "int64"), (float("nan"), "uint8"),
    ):  # fmt: skip
        with pytest.raises(DTypeError, match=f"{name} has no such number"):
            Tensor(given, dtype=name)
    for value, error in ((float("nan"), DTypeError), (1e10, ArgumentError)):
        for store in (lambda v: Tensor([1, 2], dtype=dtypes.uint8).masked_fill(Tensor([True]), v),
                      lambda v: Tensor.full((2,), v, dtype=dtypes.uint8)):  # fmt: skip
            with pytest.raises(error, match="uint8 has no"):
                store(value)
