"""Modules that programs import of PyTorch are found, under its names, and are no copies."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import baregrad
from baregrad import nn
from baregrad.base.errors import ArgumentError, IndexOutOfRange, UnsupportedError
from baregrad.utils import places

# Modules, and names that programs import from them.
NAMES = (
    ("distributions.categorical", "Categorical"), ("distributions.normal", "Normal"),
    ("distributions.kl", "kl_divergence"), ("nn.modules.conv", "Conv2d"),
    ("nn.modules.batchnorm", "_BatchNorm"), ("nn.modules.loss", "_Loss"),
    ("nn.modules.conv", "_ConvNd"), ("nn.modules.utils", "_pair"), ("nn.modules.utils", "_triple"),
    ("nn.modules", "Module"), ("nn.parallel", "DistributedDataParallel"),
    ("nn.parallel", "DataParallel"), ("nn.utils.clip_grad", "clip_grad_norm_"),
    ("nn.utils.convert_parameters", "parameters_to_vector"), ("optim.adamw", "AdamW"),
    ("optim.lr_scheduler", "_LRScheduler"), ("utils.data.dataset", "Dataset"),
    ("utils.data.dataloader", "default_collate"), ("utils.data.sampler", "Sampler"),
    ("utils.data.distributed", "DistributedSampler"), ("autograd.function", "Function"),
    ("autograd.variable", "Variable"), ("cuda.amp.grad_scaler", "GradScaler"),
    ("backends.cudnn", "benchmark"), ("random", "manual_seed"), ("multiprocessing", "Process"),
    ("distributed", "is_initialized"), ("onnx", "export"), ("accelerator", "is_available"),
    ("jit", "script"),
)


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_modules_are_found(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(f"torch.{module}"), name) or name == "_LRScheduler"
    found = importlib.import_module(f"baregrad.{module}")
    assert hasattr(found, name)
    assert not hasattr(found, f"{name}_of_another_world")


def test_what_they_have_is_ours() -> None:
    assert importlib.import_module("baregrad.nn.modules.conv").Conv2d is nn.Conv2d
    batchnorm: Any = importlib.import_module("baregrad.nn.modules.batchnorm")
    assert isinstance(nn.BatchNorm2d(2), batchnorm._BatchNorm)
    assert not isinstance(nn.LayerNorm(2), batchnorm._BatchNorm)
    cudnn: Any = importlib.import_module("baregrad.backends.cudnn")
    assert cudnn is baregrad.backends.cudnn
    importlib.import_module("baregrad.jit")
    assert callable(baregrad.jit) and not baregrad.jit.is_scripting()  # type: ignore[attr-defined]
    assert places.spec_of("baregrad.nn.modules.nothing") is None
    with pytest.raises(ModuleNotFoundError, match="nn.nothing"):
        importlib.import_module("baregrad.nn.nothing")


def test_repeated_sizes() -> None:
    theirs, ours = (importlib.import_module(f"{name}.nn.modules.utils")
                    for name in ("torch", "baregrad"))  # fmt: skip
    for given in (3, [1, 2], (4, 5)):
        assert ours._pair(given) == theirs._pair(given)
        assert ours._ntuple(4)(given) == theirs._ntuple(4)(given)


def test_a_program_is_one_process() -> None:
    dist: Any = importlib.import_module("baregrad.distributed")
    assert not dist.is_available() and not dist.is_initialized()
    with pytest.raises(UnsupportedError, match="without torchrun"):
        dist.init_process_group("nccl")
    parallel: Any = importlib.import_module("baregrad.nn.parallel")
    with pytest.raises(UnsupportedError, match="DataParallel"):
        parallel.DistributedDataParallel(nn.Linear(1, 1))


@pytest.mark.skipif(baregrad.cuda.is_available(), reason="there is a GPU")
def test_questions_about_gpus_where_there_is_none() -> None:
    cuda = baregrad.cuda
    assert cuda.memory_allocated() == torch.cuda.memory_allocated() == 0
    assert cuda.max_memory_allocated() == 0 and not cuda.is_initialized()
    assert not cuda.is_bf16_supported() and not baregrad.accelerator.is_available()
    assert baregrad.accelerator.current_accelerator() is None
    cuda.reset_peak_memory_stats()
    for call in (cuda.synchronize, cuda.current_device, cuda.get_device_properties,
                 lambda: cuda.set_device(0), lambda: cuda.Stream().synchronize()):  # fmt: skip
        with pytest.raises(IndexOutOfRange, match="no GPU 0"):
            call()
    with pytest.raises(ArgumentError, match="recorded"):
        cuda.Event(enable_timing=True).elapsed_time(cuda.Event(enable_timing=True))
    with cuda.stream(cuda.Stream()):
        pass


def test_a_module_is_written_as_a_model(tmp_path: Any) -> None:
    onnx: Any = importlib.import_module("baregrad.onnx")
    model, x = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5)), baregrad.randn(4, 2)
    onnx.export(model, x, tmp_path / "m.onnx", input_names=["a"], output_names=["b"],
                opset_version=17)  # fmt: skip
    assert model[1].training
    from baregrad.io.onnx import load_onnx

    found = load_onnx(tmp_path / "m.onnx")(a=x)
    assert list(found) == ["b"]
    assert (found["b"] - model.eval()(x)).abs().max().item() < 1e-6
    with pytest.raises(ArgumentError, match="a name for each output"):
        onnx.export(model, (x,), tmp_path / "m.onnx", output_names=["b", "c"])
    with pytest.raises(UnsupportedError, match="any size"):
        onnx.export(model, (x,), tmp_path / "m.onnx", dynamic_axes={"a": {0: "n"}})


@pytest.mark.parametrize("module", ["nn.modules", "nn.modules.linear", "distributions.normal"])
def test_all_names_of_a_module_are_imported(module: str) -> None:
    for package in ("torch", "baregrad"):
        names: dict[str, Any] = {}
        exec(f"from {package}.{module} import *", names)
        assert "Linear" in names or "Normal" in names
        assert "_ConvNd" not in names
