"""PyTorch checkpoints: what torch.save writes comes back bit for bit."""

from __future__ import annotations

import collections
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch

from baregrad.base.errors import FileFormatError
from baregrad.io.element_types import BY_NAME
from baregrad.io.stored_tensor import StoredTensor
from baregrad.io.torch_checkpoint import TorchName, read_checkpoint

FORMATS = (
    {},
    {"_use_new_zipfile_serialization": False},
    {"pickle_protocol": 3},
    {"pickle_protocol": 4},
    {"pickle_protocol": 5},
    {"_use_new_zipfile_serialization": False, "pickle_protocol": 4},
)
TYPED = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
# PyTorch has no storage class for these and saves them in another way.
UNTYPED = (
    "uint16",
    "uint32",
    "uint64",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)


def flat_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(found: object, wanted: object) -> bool:
    """Compare what we read with what torch.load gives, in type, value and bits."""
    if isinstance(wanted, torch.Tensor):
        assert isinstance(found, StoredTensor)
        assert found.dtype == str(wanted.dtype).removeprefix("torch.")
        assert found.shape == tuple(wanted.shape)
        assert found.strides == wanted.stride()
        assert found.offset == wanted.storage_offset()
        assert found.requires_grad == wanted.requires_grad
        assert found.is_parameter == isinstance(wanted, torch.nn.Parameter)
        assert found.is_contiguous == wanted.is_contiguous()
        bits = found.bits()
        assert not bits.flags.writeable
        assert np.ascontiguousarray(bits).tobytes() == flat_bytes(wanted)
        if found.is_contiguous:
            assert bytes(found.raw) == flat_bytes(wanted)
        return True
    if isinstance(wanted, torch.dtype):
        return found == TorchName("dtype", str(wanted).removeprefix("torch."))
    if isinstance(wanted, torch.device):
        return found == TorchName("device", str(wanted))
    if isinstance(wanted, dict):
        assert type(found) is dict
        assert list(found) == list(wanted)
        return all(same(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, (list, tuple)):
        assert isinstance(found, (list, tuple))
        assert len(found) == len(wanted)
        return all(same(ours, theirs) for ours, theirs in zip(found, wanted, strict=True))
    assert type(found) is type(wanted)
    return found == wanted


def trained_model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 3),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        model(torch.randn(5, 1, 4, 4)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def sample() -> dict[str, object]:
    model, optimizer = trained_model()
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5])
    base = torch.arange(24, dtype=torch.float32)
    attributed = torch.nn.Parameter(torch.ones(2))
    attributed.note = "kept by PyTorch"
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "parameters": list(model.parameters()),
        "shared": [base, base[3:9], base.reshape(4, 6).t(), base.reshape(4, 6)[1:, ::2]],
        "expanded": torch.ones(1, 3).expand(5, 3),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "bfloat16": torch.randn(3, 5).bfloat16(),
        "attributed": attributed,
        "plain": [1, -(1 << 70), 2.5, None, True, "ü", b"\xff\0", bytearray(b"ab"), 1j],
        "sets": [{1, 2}, frozenset({"a"}), set()],
        "names": [torch.bfloat16, torch.device("cuda", 1), torch.device("cpu"), torch.Size([2, 3])],
        "counter": collections.Counter({"a": 2}),
        "default": collections.defaultdict(list, {"a": [1]}),
        3: ("tuple", (1, 2, 3, 4)),
        (1, "a"): "a key of two parts",
    }


@pytest.mark.differential
@pytest.mark.parametrize("options", FORMATS, ids=str)
def test_reads_what_torch_saves(tmp_path, options):
    path = tmp_path / "a.pt"
    torch.save(sample(), path, **options)
    found = read_checkpoint(path)
    wanted = torch.load(path, weights_only=False)
    wanted["counter"] = dict(wanted["counter"])
    assert same(found.value, wanted)
    shared = [tensor.storage for tensor in found.value["shared"]]
    assert all(storage is shared[0] for storage in shared)
    tensors = found.tensors()
    assert tensors["model.0.weight"].shape == (4, 1, 3, 3)
    assert tensors["optimizer.state.0.exp_avg"].dtype == "float32"
    assert len([name for name in tensors if name.startswith("model.")]) == len(wanted["model"])


@pytest.mark.differential
@pytest.mark.parametrize(
    ("options", "names"),
    [({}, TYPED + UNTYPED), (FORMATS[1], TYPED)],
    ids=("zip", "legacy"),
)
def test_every_dtype(tmp_path, options, names):
    path = tmp_path / "a.pt"
    bits = torch.arange(48, dtype=torch.uint8)
    wanted = {name: bits.view(getattr(torch, name)) for name in names if name != "bool"}
    wanted["bool"] = bits > 20
    wanted = {name: tensor.clone()[1:] for name, tensor in wanted.items()}
    torch.save(wanted, path, **options)
    found = read_checkpoint(path)
    assert same(found.value, torch.load(path))
    for name, tensor in found.value.items():
        assert tensor.itemsize == BY_NAME[name].itemsize == wanted[name].element_size()
    assert np.array_equal(found.value["float32"].bits().view("<f4"), wanted["float32"].numpy())


@pytest.mark.differential
def test_repacked_and_compressed_archive(tmp_path):
    path, packed = tmp_path / "a.pt", tmp_path / "b.pt"
    torch.save(sample(), path)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.namelist():
            new.writestr(member, old.read(member))
    wanted = torch.load(path, weights_only=False)
    wanted["counter"] = dict(wanted["counter"])
    assert same(read_checkpoint(packed).value, wanted)
    with pytest.raises(FileFormatError, match=r"inflates to too much.*store it uncompressed"):
        read_checkpoint(packed, inflate_limit_nbytes=100)


def test_tensors_stay_in_the_file(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"x": torch.zeros(1 << 22)}, path)
    tracemalloc.start()
    tensor = read_checkpoint(path).value["x"]
    assert tensor.raw.readonly
    assert tensor.bits()[-1] == 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_raw_of_a_strided_tensor_is_refused(tmp_path):
    path = tmp_path / "a.pt"
    torch.save(torch.zeros(3, 4).t(), path)
    with pytest.raises(FileFormatError, match=r"strides \(1, 4\).*read it with bits\(\)"):
        _ = read_checkpoint(path).value.raw


def test_two_tensors_of_one_path(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}}, path)
    with pytest.raises(FileFormatError, match=r"two tensors have one path: found 'a\.b'"):
        read_checkpoint(path).tensors()


def test_whole_modules_are_refused(tmp_path):
    path = tmp_path / "a.pt"
    torch.save(torch.nn.Linear(2, 2), path)
    with pytest.raises(FileFormatError, match=r"torch\.nn\.modules\.linear\.Linear.*state_dict"):
        read_checkpoint(path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused(tmp_path):
    path = tmp_path / "a.pt"
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)
    with pytest.raises(FileFormatError, match="TorchScript program"):
        read_checkpoint(path)
