"""Tensors out to files and in again, and checkpoints that PyTorch wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from baregrad import nn
from baregrad.base.errors import ShapeError, UnsupportedDType
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.io import load_torch, safe_load, safe_save
from baregrad.tensor import Tensor


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with options.override(device="REF"):
        yield


def test_tensors_go_out_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    some = {
        "floats": Tensor([[1.5, -2.0]], requires_grad=True) * 2,
        "narrow": Tensor([1.0, 3.0]).bfloat16(),
        "view": Tensor.arange(6).reshape(2, 3).T[1:],
        "scalar": Tensor(7),
        "empty": Tensor.zeros(0, 3),
        "mask": Tensor([True, False]),
    }
    safe_save(some, path, {"made": "by a test"})
    found, theirs = safe_load(path), load_file(path)
    assert set(found) == set(some) == set(theirs)
    for name, tensor in some.items():
        assert found[name].dtype is tensor.dtype
        assert found[name].shape == tensor.shape
        assert found[name].tolist() == tensor.tolist() == theirs[name].tolist()
    with safe_open(path, "numpy") as file:
        assert file.metadata() == {"made": "by a test"}


def test_files_are_loaded_onto_a_device_that_is_named(tmp_path: Path) -> None:
    save_file({"x": torch.arange(3.0)}, tmp_path / "x.safetensors")
    torch.save({"x": torch.arange(3.0)}, tmp_path / "x.pt")
    for x in (
        safe_load(tmp_path / "x.safetensors", device="CPU")["x"],
        load_torch(tmp_path / "x.pt", device="CPU")["x"],
    ):
        assert x.device == "CPU"
        assert (x * 2).tolist() == [0.0, 2.0, 4.0]


def test_loading_maps_and_writes_never_reach_the_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"w": torch.arange(8.0), "b": torch.ones(2, dtype=torch.bfloat16)}, path)
    before = path.read_bytes()
    found = safe_load(path)
    assert found["w"]._storage.node.arg.handle.memory.readonly
    assert found["b"].dtype is dtypes.bfloat16
    found["w"].add_(1).realize()
    assert found["w"].tolist() == [float(i) for i in range(1, 9)]
    assert path.read_bytes() == before


def test_a_model_goes_over_from_pytorch(tmp_path: Path) -> None:
    theirs = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    path = tmp_path / "model.pt"
    torch.save({"model": theirs.state_dict(), "turned": torch.arange(6.0).reshape(2, 3).T}, path)
    found = load_torch(path)
    assert found["turned"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    ours = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    state = {name.removeprefix("model."): t for name, t in found.items() if "model." in name}
    ours.load_state_dict(state)
    x = np.random.default_rng(0).standard_normal((2, 1, 4, 4), np.float32)
    wanted = theirs.eval()(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(ours.eval()(Tensor(x)).numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_a_dtype_that_tensors_lack_is_named(tmp_path: Path) -> None:
    path = tmp_path / "narrow.pt"
    torch.save({"z": torch.zeros(2).to(torch.float8_e4m3fnuz)}, path)
    with pytest.raises(UnsupportedDType, match="'z'.*float8_e4m3fnuz"):
        load_torch(path)


def test_floats_of_4_bits_lie_two_in_a_byte(tmp_path: Path) -> None:
    place, again = tmp_path / "f.safetensors", tmp_path / "g.safetensors"
    numbers = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    numbers += [-x for x in numbers]
    codes = torch.arange(16, dtype=torch.uint8).reshape(2, 8)
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).view(torch.float4_e2m1fn_x2)
    save_file({"f": packed}, place)
    found = safe_load(place)["f"]
    assert found.dtype is dtypes.float4_e2m1fn and found.shape == (2, 8)
    assert found.cast("float32").flatten().tolist() == numbers
    safe_save({"f": Tensor(numbers).cast("float4_e2m1fn").reshape(2, 8)}, again)
    assert again.read_bytes()[-8:] == packed.view(torch.uint8).numpy().tobytes()
    assert load_file(again)["f"].view(torch.uint8).tolist() == packed.view(torch.uint8).tolist()
    safe_save({"f": found[:, :0]}, again)
    assert safe_load(again)["f"].shape == (2, 0)
    with pytest.raises(ShapeError, match="even number"):
        safe_save({"f": found[0, :3]}, again)
    with pytest.raises(UnsupportedDType, match="no name for.*cast it first"):
        safe_save({"i": Tensor([1, 2], dtype="int4")}, again)


def test_complex_numbers_are_kept(tmp_path: Path) -> None:
    z = np.array([[1 + 2j, -3j], [0.5, -1 - 1j]], np.complex64)
    safe_save({"z": Tensor(z)}, tmp_path / "z.safetensors")
    assert np.array_equal(safe_load(tmp_path / "z.safetensors")["z"].numpy(), z)
    wide = torch.tensor(z).to(torch.complex128)
    torch.save({"whole": wide, "turned": wide.T}, tmp_path / "z.pt")
    found = load_torch(tmp_path / "z.pt")
    assert np.array_equal(found["whole"].numpy(), z)
    assert np.array_equal(found["turned"].numpy(), z.T)
