"""Checkpoints that `save` writes, as PyTorch reads them, and the way back."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import baregrad
from baregrad import Tensor, nn, optim
from baregrad.base.errors import ArgumentError, DTypeError, FileFormatError, UnsupportedDType

PLAIN = {
    "epoch": 3, "big": -(1 << 40), "rate": 0.25, "name": "Zeile \u00e4", "raw": b"\x00\xff",
    "flags": (True, False, None), "list": [1, [2, "x"]], 5: {"empty": {}, "none": []},
}  # fmt: skip


def test_pytorch_reads_what_is_written(tmp_path: Path) -> None:
    names = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8",
             "uint8", "bool", "complex64")  # fmt: skip
    tensors = {name: Tensor([[1, 0, 2], [3, 4, 5]]).cast(name) for name in names}
    views = {"view": Tensor(np.arange(12.0).reshape(3, 4)).T[1:], "scalar": Tensor(2.5),
             "none": Tensor.zeros(0, 3), "leaf": Tensor([1.0], requires_grad=True)}  # fmt: skip
    shared = Tensor([7.0])
    value: dict[Any, Any] = {**PLAIN, "tensors": {**tensors, **views}, "two": [shared, shared],
                             "dtype": baregrad.bfloat16, "number": np.float32(0.5)}  # fmt: skip
    place = tmp_path / "state.pt"
    baregrad.save(value, place)
    found = torch.load(place)
    assert {key: found[key] for key in PLAIN} == PLAIN
    assert found["dtype"] is torch.bfloat16 and found["number"] == 0.5
    for name, tensor in {**tensors, **views}.items():
        there = found["tensors"][name]
        assert tuple(there.shape) == tensor.shape and str(there.dtype) == f"torch.{tensor.dtype}"
        wide = torch.complex128 if tensor.dtype.is_complex else torch.float64
        ours = tensor.detach().cast("complex128" if tensor.dtype.is_complex else "float64")
        np.testing.assert_array_equal(there.detach().to(wide).numpy(), ours.numpy())
    assert found["tensors"]["leaf"].requires_grad
    assert found["two"][0].data_ptr() == found["two"][1].data_ptr()
    again = baregrad.load(place)
    assert {key: again[key] for key in PLAIN} == PLAIN
    assert again["dtype"] is baregrad.bfloat16
    np.testing.assert_array_equal(again["tensors"]["view"].numpy(), views["view"].numpy())


@pytest.mark.parametrize("name", (
    "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "uint16", "uint32", "uint64",
))
def test_dtypes_without_storages_of_their_own(name: str, tmp_path: Path) -> None:
    x = Tensor([[1.0, 0.5, 2.0], [4.0, 8.0, 16.0]]).cast(name)
    place = tmp_path / "x.pt"
    baregrad.save({"x": x, "turned": x.T, "none": x[:0]}, place)
    for found in (torch.load(place), baregrad.load(place)):
        assert str(found["x"].dtype).endswith(name)
        for one, wanted in (("x", x), ("turned", x.T)):
            assert found[one].float().tolist() == wanted.cast("float32").tolist()
        assert tuple(found["none"].shape) == (0, 3)


def test_states_go_there_and_back(tmp_path: Path) -> None:
    model, other = nn.Linear(3, 2), torch.nn.Linear(3, 2)
    adam = optim.Adam(model.parameters(), lr=0.01)
    model(Tensor.ones(1, 3)).sum().backward()
    adam.step()
    file = io.BytesIO()
    baregrad.save({"model": model.state_dict(), "optim": adam.state_dict()}, file)
    file.seek(0)
    found = torch.load(file)
    other.load_state_dict(found["model"])
    torch.optim.Adam(other.parameters()).load_state_dict(found["optim"])
    np.testing.assert_array_equal(other.weight.detach().numpy(), model.weight.numpy())
    file = io.BytesIO()
    torch.save(other.state_dict(), file)
    file.seek(0)
    fresh = nn.Linear(3, 2)
    fresh.load_state_dict(baregrad.load(file, map_location="cpu"))
    np.testing.assert_array_equal(fresh.weight.numpy(), model.weight.numpy())


def test_what_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "x.pt"
    with pytest.raises(DTypeError, match=r"the object\['m'\] is no data.*state_dict"):
        baregrad.save({"m": nn.Linear(1, 1)}, place)
    for dtype in ("int4", "float4_e2m1fn"):
        with pytest.raises(UnsupportedDType, match=r"no storages of: found .*cast it first"):
            baregrad.save([Tensor([1.0]).cast(dtype)], place)
    assert not place.exists()
    with pytest.raises(FileFormatError):
        baregrad.load(io.BytesIO(b"nothing"))
    inside: list[Any] = []
    inside.append(inside)
    with pytest.raises(ArgumentError, match="inside of itself"):
        baregrad.save(inside, place)
    for odd in (np.datetime64("2020-01-01"), {(1, frozenset([2])): 3}, {1, 2}):
        with pytest.raises(DTypeError, match="no data|no plain value"):
            baregrad.save([odd], place)
    with pytest.raises(ArgumentError, match="open for writing"):
        baregrad.save(1, None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="open for reading bytes"):
        baregrad.load(io.StringIO("x"))  # type: ignore[arg-type]
    for where in (lambda storage, _: storage, {"cuda:0": "cpu"}):
        with pytest.raises(ArgumentError, match="one device"):
            baregrad.load(place, map_location=where)  # type: ignore[arg-type]


def _theirs(value: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def test_what_shares_elements_does_so_afterwards() -> None:
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    file = io.BytesIO()
    baregrad.save({**tied.state_dict(), "number": np.complex64(1 + 2j)}, file)
    file.seek(0)
    found = torch.load(file)
    assert found["0.weight"].data_ptr() == found["1.weight"].data_ptr()
    assert found["number"] == 1 + 2j
    leaf = torch.arange(3.0, requires_grad=True)
    one, two, other = baregrad.load(_theirs([leaf, leaf, leaf.detach()[1:]]))
    assert one is two and one.requires_grad and not other.requires_grad
    assert other.tolist() == [1.0, 2.0]


def test_what_is_no_tensor_as_it_looks_is_refused() -> None:
    z = torch.tensor([1 + 2j])
    for shown, bit in ((z.conj(), "conj"), (z.conj().imag, "neg")):
        with pytest.raises(FileFormatError, match=f"resolve_{bit}"):
            baregrad.load(_theirs([shown]))
    assert baregrad.load(_theirs(z.imag)).tolist() == [2.0]
    for kept in (z.untyped_storage(), torch.Tensor):
        with pytest.raises(FileFormatError, match="neither a tensor nor a plain value"):
            baregrad.load(_theirs({"x": kept}))
