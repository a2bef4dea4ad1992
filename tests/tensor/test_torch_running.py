"""How programs run and are shown, as they say by PyTorch's functions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad import Tensor, nn
from baregrad.base.errors import ArgumentError, DTypeError, UnsupportedError
from baregrad.engine.session import Session, use_session
from baregrad.tensor.ops.convert import Printing


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Printing, "settings", Printing.settings)
    yield
    torch.set_default_dtype(torch.float32)
    baregrad.set_default_dtype(baregrad.float32)


def made(t: Any) -> list[Any]:
    """Values whose dtype nobody gave."""
    whole = t.arange(3)
    return [
        t.tensor(1.5), t.tensor([1, 2.0]), t.zeros(2), t.ones(2), t.empty(1), t.eye(2),
        t.full((2,), 1.5), t.rand(2), t.randn(2), t.linspace(0, 1, 3), t.arange(0, 1, 0.5),
        whole / 2, whole.sin(), whole.sigmoid(), whole * 1.5, whole.float(), t.tensor(1j),
        t.logspace(0, 1, 3), t.hann_window(4), t.zeros(2, dtype=None), whole.deg2rad(),
        t.normal(0.0, 1.0, (2,)), t.distributions.Normal(0.0, 1.0).sample(), t.nn.Linear(2, 2).bias,
        t.nn.Conv2d(1, 1, 1).weight, t.nn.LayerNorm(2).weight, t.nn.BatchNorm1d(2).running_var,
        t.nn.Embedding(2, 2).weight, t.nn.LSTM(2, 2).weight_hh_l0, t.nn.PReLU().weight,
        t.nn.MultiheadAttention(2, 1).in_proj_bias, t.fft.fftfreq(4), t.fft.rfftfreq(4),
    ]


@pytest.mark.parametrize("name", ["float64", "float32"])
def test_floats_of_no_dtype_are_of_the_default_one(name: str) -> None:
    told = []
    for t in (torch, baregrad):
        made(t)  # so that calls are known by what they made before
        t.set_default_dtype(getattr(t, name))
        told.append([str(one.dtype).removeprefix("torch.") for one in made(t)])
        assert str(t.get_default_dtype()).endswith(name)
    assert told[1] == told[0]


def test_a_capture_is_of_one_default_dtype() -> None:
    @baregrad.jit
    def half(x: Tensor) -> Tensor:
        return x / 2

    x = Tensor([1, 2, 3])
    for _ in range(5):  # the last are like the one before, which is seen at a glance
        assert half(x).dtype is baregrad.float32
    baregrad.set_default_tensor_type("torch.DoubleTensor")
    for _ in range(3):
        assert half(x).dtype is baregrad.float64
    baregrad.set_default_tensor_type(baregrad.FloatTensor)
    assert half(x).dtype is baregrad.float32
    with pytest.raises(DTypeError, match="one of floats"):
        baregrad.set_default_dtype(baregrad.int32)


def test_the_default_dtype_is_that_of_all_sessions() -> None:
    other = Session()
    with use_session(other):
        for _ in range(3):
            assert (Tensor([1, 2, 3]) / 2).dtype is baregrad.float32
    baregrad.set_default_dtype(baregrad.float64)
    with use_session(other):
        assert (Tensor([1, 2, 3]) / 2).dtype is baregrad.float64
        np.testing.assert_array_equal((Tensor([1, 2, 3]) / 2).numpy(), [0.5, 1.0, 1.5])
    other.close()


def test_a_function_is_what_it_is_when_compiled() -> None:
    model = nn.Linear(2, 2)
    assert baregrad.compile(model, mode="max-autotune") is model

    @baregrad.compile(fullgraph=True)  # type: ignore[operator]
    def plus(x: Tensor) -> Tensor:
        return x + 1

    assert plus(Tensor([1])).tolist() == [2]
    with pytest.raises(ArgumentError, match="a function or a module"):
        baregrad.compile(3)


def test_threads_are_counted_and_set_before_the_first_use() -> None:
    count = baregrad.get_num_threads()
    assert count >= 1
    baregrad.set_num_threads(count)
    with pytest.raises(UnsupportedError, match=f"BAREGRAD_THREADS={count + 1}"):
        baregrad.set_num_threads(count + 1)
    with pytest.raises(ArgumentError, match="1 or more"):
        baregrad.set_num_threads(0)


def test_threads_that_are_set_are_those_of_all_threads() -> None:
    code = (
        "import threading, baregrad; baregrad.set_num_threads(1);"
        "work = threading.Thread(target=lambda: print(baregrad.get_num_threads(), flush=True));"
        "work.start(); work.join(); print(baregrad.get_num_threads())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["1", "1"]


def test_values_are_shown_as_asked() -> None:
    x = Tensor([1 / 3, 1e-6])
    baregrad.set_printoptions(precision=2, sci_mode=False)
    assert "0.33, 0." in repr(x)
    baregrad.set_printoptions(profile="default", sci_mode=True)
    assert "e-" in repr(x)
    with pytest.raises(ArgumentError, match="short"):
        baregrad.set_printoptions(profile="tiny")


def test_elements_of_a_buffer() -> None:
    data = np.arange(6, dtype=np.float32).tobytes()
    for arguments in ({}, {"count": 2}, {"offset": 8}, {"count": 3, "offset": 4}):
        words: Any = arguments
        theirs = torch.frombuffer(bytearray(data), dtype=torch.float32, **words)
        assert baregrad.frombuffer(data, dtype=baregrad.float32, **words).tolist() \
            == theirs.tolist()
    for name in ("bfloat16", "float16", "bool", "complex64", "float8_e4m3fn"):
        near, far = (t.frombuffer(bytearray(b"\1\0" * 8), dtype=getattr(t, name), offset=8)
                     for t in (baregrad, torch))  # fmt: skip
        assert str(near.dtype) == name
        kind = "complex64" if name == "complex64" else "float32"
        assert near.to(getattr(baregrad, kind)).tolist() == far.to(getattr(torch, kind)).tolist()
    for words in ({"count": 7}, {"offset": 2}, {"offset": 24}):
        with pytest.raises(ArgumentError, match="lie in the buffer"):
            baregrad.frombuffer(data, dtype=baregrad.float32, **words)


def test_numbers_are_formatted_and_found() -> None:
    for package in (torch, baregrad):
        t: Any = package
        x = t.tensor([[1.0, 2.5], [3.0, 4.0]])
        assert f"{x.mean():.3f} {t.tensor(7):>4d}" == "2.625    7"
        with pytest.raises(TypeError, match="unsupported format"):
            f"{x:.2f}"
        assert 2.5 in x and 9 not in x and t.tensor(3.0) in x
        assert [one.tolist() for one in reversed(x)] == [[3, 4], [1, 2.5]]
    with pytest.raises(DTypeError, match="contains numbers"):
        _ = "a" in Tensor([1])


def test_arguments_of_moves() -> None:
    for package in (torch, baregrad):
        t: Any = package
        x = t.ones(2)
        assert x.to(x.device, non_blocking=True) is x
        assert x.to(x.device, t.float64, True).dtype == t.float64
        copied = x.to(x.dtype, copy=True)
        assert copied is not x and x.to(x.device, t.float32, False, True) is not x
        copied.add_(1)
        assert x.tolist() == [1, 1]
        model = t.nn.Linear(1, 1).to(x.device, non_blocking=True).type(t.float64)
        assert model.weight.dtype == t.float64
        # Averages of states hold counts, which are written as they are.
        count = t.tensor([3, 4])
        count.copy_(t.tensor([1.9, -1.9]))
        assert count.tolist() == [1, -1]
    with pytest.raises(DTypeError, match="found True"):
        Tensor([1.0]).to(True)


def test_norms_by_older_names() -> None:
    x = np.random.default_rng(2).standard_normal((3, 4))
    theirs, ours = torch.tensor(x), Tensor(x)
    pairs = (
        (torch.norm_except_dim(theirs, 2, 1), baregrad.norm_except_dim(ours, 2, 1)),
        (torch.norm_except_dim(theirs, 2, -1), baregrad.norm_except_dim(ours, 2, -1)),
        (torch.frobenius_norm(theirs, [1]), baregrad.frobenius_norm(ours, [1])),
        (torch.nuclear_norm(theirs), baregrad.nuclear_norm(ours)),
        (torch.fill(theirs, 2), baregrad.fill(ours, 2)),
    )
    for wanted, found in pairs:
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-12)
    assert baregrad.empty_strided((2, 3), (3, 1)).shape == (2, 3)
    assert baregrad.sym_max(2, 3.0) == 3.0 and baregrad.sym_min(2, 3) == 2
