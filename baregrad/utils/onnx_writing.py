"""`torch.onnx`: a module written as an ONNX model, by `baregrad.io.onnx`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from baregrad.base.errors import ArgumentError, UnsupportedError
from baregrad.base.namespaces import unknown_name
from baregrad.io.onnx import save_onnx
from baregrad.nn.module import Module
from baregrad.tensor import Tensor

__all__ = ["export"]


def export(
    model: Callable[..., Any], args: Tensor | Sequence[Tensor], f: str | Path, *,
    input_names: Sequence[str] | None = None, output_names: Sequence[str] | None = None,
    dynamic_axes: object = None, dynamic_shapes: object = None, export_params: bool = True,
    verbose: bool | None = None, opset_version: int | None = None,
    do_constant_folding: bool = True, dynamo: bool = True,
) -> None:
    """Write what a module computes of tensors, in its mode of evaluation, as an ONNX model.

    args: examples, which say shapes and dtypes. The version of the operators is the one of
    `save_onnx`, whatever `opset_version` says. Raises UnsupportedError for axes of any size,
    ArgumentError where there are not as many names as inputs or outputs.
    """
    if dynamic_axes or dynamic_shapes or not export_params:
        raise UnsupportedError(
            "a model is written with its weights, and for the sizes of its examples",
            found="export_params=False" if not export_params else "axes of any size",
            hint="write one model for each size",
        )
    given = [args] if isinstance(args, Tensor) else list(args)
    names = list(input_names or [f"x{at}" for at in range(len(given))])
    if len(names) != len(given):
        raise ArgumentError("a name for each input", found=len(names), wanted=len(given))

    def named(**inputs: Tensor) -> Any:
        found = model(*[inputs[name] for name in names])
        if output_names is None:
            return found
        outputs = [found] if isinstance(found, Tensor) else list(found)
        if len(outputs) != len(output_names):
            raise ArgumentError("a name for each output", found=len(output_names),
                                wanted=len(outputs))  # fmt: skip
        return dict(zip(output_names, outputs, strict=True))

    training = [one for one in model.modules() if one.training] if isinstance(model, Module) else []
    for one in training:
        one.training = False
    try:
        save_onnx(named, dict(zip(names, given, strict=True)), Path(f))
    finally:
        for one in training:
            one.training = True


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.onnx", name, __all__)
