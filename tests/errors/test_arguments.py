"""Wrong shapes, dtypes, devices, options and other arguments of tensor functions."""

from __future__ import annotations

import contextlib
import inspect
from operator import itemgetter
from pathlib import Path
from types import FunctionType

import pytest

from baregrad import nn
from baregrad.base.errors import (
    ArgumentError,
    BaregradError,
    DeviceError,
    DTypeError,
    IndexOutOfRange,
    OptionError,
    OutOfMemory,
    ShapeError,
    UnsupportedDevice,
)
from baregrad.tensor import Tensor
from baregrad.tensor.array import arguments
from baregrad.tensor.array.arguments import explain_arguments
from baregrad.tensor.array.core import Array
from baregrad.tensor.jit.jit import jit
from tests.errors.harness import Case, check, one

SHAPES = (
    one("x + v", ShapeError, "do not broadcast", "[2, 3] and [2]", "axis -1 has extents 3 and 2"),
    one("x @ v", ShapeError, "inner extents", "(..., M, K) and (..., K, N)", "transpose"),
    one("x.reshape(4, 2)", ShapeError, "6 elements", "8 elements"),
    one("x.reshape(-1, -1)", ShapeError, "only one extent can be -1"),
    one("x.reshape(-1, 5)", ShapeError, "do not fit", "found [2, 3]", "wanted [-1, 5]"),
    one("x.permute(0, 0)", ShapeError, "each axis once", "found [0, 0]", "wanted 2 axes"),
    one("x.expand(2, 2)", ShapeError, "cannot expand axis -1 from 3 to 2", "see repeat()"),
    one("x.sum((0, 0))", ShapeError, "named twice", "found [0, 0]"),
    one("x.sum(1.5)", ShapeError, "axes are integers", "float 1.5", "an int or several"),
    one("Tensor.cat([x, v])", ShapeError, "equal extents in the other axes", "[2, 3] and [2]"),
    one("Tensor.cat([])", ShapeError, "at least one tensor", "found []"),
    one("Tensor.stack([x, v])", ShapeError, "stack wants one shape", "[2, 3] and [2]"),
    one("x.split(0)", ShapeError, "positive size", "found 0"),
    one("x.conv2d(x)", ShapeError, "(N, C, ...)", "wanted 4 axes each"),
    one("Tensor.zeros(1, 3, 8, 8).conv2d(Tensor.zeros(4, 2, 3, 3))", ShapeError,
        "channels of input and weight differ", "wanted 2 channels"),
    one("Tensor.zeros(1, 3, 2, 2).conv2d(Tensor.zeros(4, 3, 3, 3))", ShapeError,
        "larger than the padded input", "use more padding"),
    one("x.pad(((1, 1), (0, 0)))", ArgumentError, "a flat list of amounts", "pad((left, right"),
    one("Tensor.zeros(1, 3, 8, 8).conv2d(Tensor.zeros(4, 3, 3, 3), stride=0)", ShapeError,
        "stride", "positive", "stride 0", "1 or more"),
    one("x.layer_norm((4,))", ShapeError, "found a tensor of [2, 3]", "ends in [4]"),
    one("x.topk(9)", ShapeError, "found k = 9", "wanted 0 to 3"),
    one("x.narrow(0, 1, 5)", ShapeError, "found 1 to 6", "wanted inside 0 to 2"),
    one("Tensor([[1, 2], [3]])", ShapeError, "different lengths", "pad them to one length"),
    one("Tensor.zeros(-1)", ShapeError, "cannot be negative", "found [-1]"),
    one("Tensor.zeros(2.5)", ShapeError, "an extent is an integer", "float 2.5"),
    one("x.item()", ShapeError, "one element", "found shape [2, 3]", "use tolist()"),
    one("bool(x)", ShapeError, "the truth of several elements", "use any() or all()"),
    one("len(Tensor(1.0))", ShapeError, "has no length", "item()"),
    one("x.unfold(0, -1, 1)", ShapeError, "windows of this size", "found -1", "0 or more"),
    one("x.unfold(1, 4, 1)", ShapeError, "does not fit"),
    one("x.unfold(0, 1, -1)", ShapeError, "windows of this step", "found -1", "1 or more"),
    one("x.unfold(0, 1, 0)", ShapeError, "windows of this step", "found 0", "1 or more"),
    one("Tensor(2.0).multinomial(1)", IndexOutOfRange, "a tensor without axes"),
    one("v.multinomial(0)", ShapeError, "draws some of some", "0 of [2]", "1 or more"),
    one("x[[[0], [0, 1]]]", ShapeError, "rows of one length", "[[0], [0, 1]]", "pad them"),
    one("Tensor.einsum('ij', x, x)", ShapeError, "a term for each operand", "wanted 2 terms"),
)
DTYPES = (
    one("x & x", DTypeError, "bitwise and of float32", "integers or bools", "cast"),
    one("b - b", DTypeError, "subtraction of bool", "use ^ or logical_xor"),
    one("i << 1.5", DTypeError, "a shift of float32", "wanted integers"),
    one("i.mean()", DTypeError, "found dtype int64", "cast it first"),
    one("Tensor.from_dlpack(5)", DTypeError, "speaks DLPack", "found int 5", "Tensor(data)"),
    one("__import__('baregrad').safe_save([x], 'a')", DTypeError, "saved by name", "found list",
        "a dict"),
    one("x.where(1, 2)", DTypeError, "condition", "found dtype float32", "x != 0"),
    one("Tensor.where(1, 2, 3)", DTypeError, "condition", "found int 1", "a bool tensor"),
    one("x.gather(0, v)", DTypeError, "indices are integers", "cast them"),
    one("x.masked_fill(v, 1.0)", DTypeError, "a mask is of bools", "mask != 0"),
    one("x + 'a'", DTypeError, "not an operand", "found str 'a'", "a tensor, a scalar or an array"),
    one("Tensor(['a'])", DTypeError, "numbers or bools", "convert it to numbers"),
    one("Tensor({1: 2})", DTypeError, "numbers or bools", "found dict"),
    one("Tensor([1, 2], dtype='float7')", DTypeError, "unknown dtype", "'float7'", "float32"),
    one("Tensor([1, 2, 3], dtype='uint8').bitcast(dtypes.int32)", ShapeError, "do not lie whole",
        "[3] of uint8", "whole elements of int32"),
    one("i.pad((1, 1), value=float('inf'))", DTypeError, "int64 has no such number", "found inf",
        "use a floating-point dtype"),
    one("Tensor.full((2,), float('nan'), dtype='int8')", DTypeError, "int8", "found nan"),
    one("i.bernoulli()", DTypeError, "found dtype int64", "cast it first"),
    one("Tensor.rand(2, dtype=dtypes.int32)", DTypeError, "found dtype int32", "cast it first"),
)
DEVICES = (
    one("Tensor([1.0], device='TPU')", UnsupportedDevice, "'TPU'", "CPU, REF", "baregrad doctor"),
    one("Tensor([1.0], device=3)", DeviceError, "a device is named", "found int 3", "'CPU'"),
    one("x.to('XPU')", UnsupportedDevice, "'XPU'", "one of CPU", "baregrad doctor"),
    one("v + Tensor([1.0], device='NULL')", DeviceError, "REF and NULL", "to('REF')"),
    one("Tensor([1.0], device='CPU').realize(); Tensor.full((1 << 50,), 2.0, device='CPU')"
        ".contiguous().realize()", OutOfMemory, "bytes"),
)
ARGUMENTS = (
    one("Tensor.arange(0, 10, 0)", ArgumentError, "step of 0", "give another step"),
    one("Tensor.linspace(0, 1, -1)", ArgumentError, "found -1", "0 or more"),
    one("x.dropout(2.0)", ArgumentError, "from 0 to 1", "not 2.0"),
    one("Tensor.randint(5, 2, (3,))", ArgumentError, "from 5 to 2", "no integer in between"),
    one("Tensor.randint(0.1, 3, (3,))", ArgumentError, "of integers", "float 0.1", "see uniform()"),
    one("Tensor.randint(0, 1 << 64, (3,))", ArgumentError, "int64 has not", "18446744073709551616"),
    one("Tensor.uniform(3, low=5, high=3)", ArgumentError, "found 5 to 3", "exchange"),
    one("x.uniform_(0.0, float('nan'))", ArgumentError, "found 0.0 to nan"),
    one("Tensor.normal(0.0, -1.0, (3,))", ArgumentError, "not negative", "found -1.0"),
    one("x.bernoulli(1.5)", ArgumentError, "from 0 to 1, not 1.5"),
    one("x.unfold(0, 1.5, 1)", ArgumentError, "an integer", "float 1.5"),
    one("x.clip()", ArgumentError, "min, max or both"),
    one("x.gelu('no')", ArgumentError, "'none' or 'tanh'", "'no'"),
    one("x.norm(p='a')", ArgumentError, "'a'", "a number or 'fro'"),
    one("i ** -1", ArgumentError, "negative power", "cast to float first"),
    one("Tensor.manual_seed('a')", ArgumentError, "a seed is an integer", "str 'a'"),
    one("options.override(debug=9).__enter__()", OptionError, "found 9", "0..6", "see:"),
    one("options.override(nope=1).__enter__()", OptionError, "unknown option 'nope'", "see:"),
    one("options.debug = 1", OptionError, "cannot be assigned", "options.override",
        "BAREGRAD_DEBUG"),
)
INDICES = (
    one("x[5]", IndexOutOfRange, "index 5", "axis of extent 2", "-2 to 1"),
    one("x[0, 0, 0]", IndexOutOfRange, "too many indices", "found 3", "at most 2"),
    one("x[Tensor([0, 7])]", IndexOutOfRange, "index 7", "axis 0", "-2 to 1"),
    one("x['a']", DTypeError, "not an index", "str 'a'", "slices"),
    one("x[1.5]", DTypeError, "not an index", "float 1.5", "slices"),
    one("x[::0]", ShapeError, "step cannot be 0", "positive or negative"),
    one("x[Tensor([True, False, True])]", ShapeError, "mask", "found [3]", "wanted [2]"),
    one("x.sum(2)", IndexOutOfRange, "there is no axis 2", "-2 to 1"),
    one("x.squeeze(5)", IndexOutOfRange, "there is no axis 5", "found 2 axes"),
    one("x.cross_entropy(Tensor([0, 9]))", IndexOutOfRange, "class id", "found 9", "0 to 2"),
)
# What is of another kind than a method's parameter, named by it.
KINDS = (
    one("x.mm(1)", DTypeError, "mm does not take this as `other`", "found int 1",
        "wanted a tensor"),
    one("x.expand_as([3, 2])", DTypeError, "expand_as", "`other`", "found list [3, 2]"),
    one("x.index_add(0, [1], x)", DTypeError, "index_add", "`index`", "found list [1]"),
    one("x.conv2d('w')", DTypeError, "conv2d", "`weight`", "found str 'w'"),
    one("x.dropout('often')", ArgumentError, "`p`", "found str 'often'", "wanted a number"),
    one("x.std(0, correction='x')", ArgumentError, "`correction`", "found str 'x'"),
    one("x.split('x')", ArgumentError, "`sizes`", "an integer or several integers"),
    one("x.adaptive_avg_pool2d(2.5)", ArgumentError, "`output_size`", "found float 2.5",
        "an integer, several integers or None"),
    one("Tensor.arange('x')", ArgumentError, "arange", "`start`", "found str 'x'"),
    one("Tensor.einsum(1)", ArgumentError, "`equation`", "found int 1", "wanted a text"),
    one("x.realize(1)", DTypeError, "`others`", "found int 1", "wanted a tensor"),
    one("x.addcmul_([1.0, 2.0, 3.0], 'x')", DTypeError, "not an operand", "found str 'x'"),
    one("x.addcmul(1, 2)", DTypeError, "addcmul is of tensors", "found 1 and 2",
        "at least one tensor"),
    one("x.roll(1.5)", ArgumentError, "`shifts`", "found float 1.5"),
)
LAYERS = (
    one("nn.Linear(3, 2)([1, 2, 3])", DTypeError, "Linear does not take this as `x`",
        "found list [1, 2, 3]", "wanted a tensor"),
    one("nn.Sequential(nn.Linear(3, 2), nn.ReLU())(None)", DTypeError, "Linear", "NoneType None"),
    one("nn.LSTM(2, 3)(1)", DTypeError, "LSTM", "found int 1", "a PackedSequence"),
    one("nn.ModuleDict(bytearray(b'a'))", ArgumentError, "a dict of modules", "found bytearray",
        "pairs of a name and a module"),
    one("nn.ModuleDict(['ab'])", DTypeError, "modules by name", "found str 'a': str"),
    one("nn.Dropout('x')", ArgumentError, "a number from 0 to 1", "not 'x'"),
    one("nn.ZeroPad3d(object)", ArgumentError, "ZeroPad3d", "`padding`", "found type"),
    one("nn.Upsample(scale_factor=slice(1))", ArgumentError, "Upsample", "`scale_factor`", "slice"),
    one("nn.ConvTranspose2d(3, (2, 3), -1)", ArgumentError, "`out_channels`", "an integer"),
    one("nn.Linear(3, 2).load_state_dict(x)", ArgumentError, "load_state_dict", "`state`",
        "a dict"),
    one("nn.TransformerEncoder(2.0, 1 << 62)", DTypeError, "copies a layer", "found float"),
    one("nn.init.constant_([], 0.5)", DTypeError, "constant_", "`tensor`", "found list"),
    one("nn.init.trunc_normal_(x, std=0.0)", ArgumentError, "cut off at two ends", "above 0"),
    one("nn.AdaptiveMaxPool2d(0)(Tensor.zeros(1, 1, 4, 4))", ShapeError, "found [0, 0]",
        "1 or more"),
)
# What optimisers, schedules, files and data are told.
ELSEWHERE = (
    one("optim.CosineAnnealingLR(1 << 64, -1)", ArgumentError, "CosineAnnealingLR", "`optimizer`",
        "an Optimizer"),
    one("optim.AdamW([g], betas=3)", ArgumentError, "AdamW", "`betas`", "several numbers"),
    one("optim.Adam([g], betas=(0.9,))", ArgumentError, "`betas`", "found tuple (0.9,)"),
    one("optim.RMSprop([g], alpha=[])", ArgumentError, "RMSprop", "`alpha`", "a number"),
    one("optim.CosineAnnealingLR(optim.SGD([g], lr=0.1), 0)", ArgumentError,
        "CosineAnnealingLR", "cannot compute", "found 0"),
    one("optim.clip_grad_norm_('ab', 2.0)", DTypeError, "clipped of tensors", "found str 'a'"),
    one("__import__('baregrad').safe_load(x)", ArgumentError, "safe_load", "`path`", "a path"),
)
# Numbers that are too large, sizes that are known later, and dtypes of nothing.
BEYOND = (
    one("x >= 10**400", ArgumentError, "an operand that float32 has not", "too large"),
    one("Tensor.linspace(0.0, 3, 10**400)", ArgumentError, "linspace", "cannot compute"),
    one("x.expand(1 << 63, 2, 3)", ShapeError, "no memory has so many", "9223372036854775808"),
    one("Tensor.full((1 << 40, 1 << 40), 2.0)", ShapeError, "no memory has so many"),
    one("x.repeat_interleave(-1)", ShapeError, "cannot be negative", "found [-1]"),
    one("x.tensor_split(size)", ShapeError, "tensor_split", "sizes that are known now"),
    one("x.narrow(0, [0], 1)", ArgumentError, "from an integer on", "found list [0]"),
    one("Tensor.zeros(3, dtype=dtypes.token)", DTypeError, "in no array", "token"),
    one("x.cast('index')", DTypeError, "in no array", "index"),
    one("x != __import__('numpy').str_('a')", DTypeError, "not an operand", "str_"),
    one("Tensor.zeros(1, 2, 4, 4).im2col(1, padding=((1, 1), (2, 2)))", ShapeError, "of integers",
        "(1, 1)"),
    one("Tensor.zeros(1, 1, 4, 4).avg_pool2d((0, 1))", ShapeError, "kernel_size", "1 or more"),
    one("Tensor.zeros(1, 2, 4, 4).conv2d(Tensor.zeros(2, 2, 1, 1), padding=False)", ShapeError,
        "padding is of integers", "bool False"),
    one("Tensor([0]).one_hot(0)", ArgumentError, "a class at least", "num_classes 0"),
    one("Tensor([-1, 2]).one_hot()", IndexOutOfRange, "a class id", "found -1", "0 or more"),
    one("Tensor([-1, 2]).one_hot(4)", IndexOutOfRange, "a class id", "found -1", "0 to 3"),
    one("Tensor.zeros(1, 2, 4).conv_transpose1d(Tensor.zeros(2, 2, 3), stride=0)", ShapeError,
        "positive", "stride [0]", "1 or more"),
    one("int(Tensor(float('nan')))", DTypeError, "int64 has no such number", "found nan"),
)
EVERY = (
    *SHAPES, *DTYPES, *DEVICES, *ARGUMENTS, *INDICES, *KINDS, *LAYERS, *ELSEWHERE, *BEYOND,
)  # fmt: skip


@pytest.mark.parametrize("case", EVERY, ids=str)
def test_the_message_says_what_was_found_and_what_to_do(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


class _Nothing:
    """What no method takes."""


def _methods_with_parameters() -> list[tuple[str, list[inspect.Parameter]]]:
    found = []
    for name in sorted(set(dir(Tensor)) - set(dir(Array))):
        member = inspect.getattr_static(Tensor, name)
        if isinstance(member, FunctionType) and not name.startswith("_"):
            parameters = list(inspect.signature(member).parameters.values())[1:]
            found.append((name, [each for each in parameters if each.default is each.empty]))
    return [(name, wanted) for name, wanted in found if wanted]


@pytest.mark.parametrize(("name", "wanted"), _methods_with_parameters(), ids=itemgetter(0))
def test_no_method_fails_by_accident(name: str, wanted: list[inspect.Parameter]) -> None:
    """Of what is required, one after the other is nothing that a method takes."""
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    for place in range(len(wanted)):
        given = [_Nothing() if place == each else x for each in range(len(wanted))]
        named = {
            each.name: one for each, one in zip(wanted, given, strict=True)
            if each.kind is each.KEYWORD_ONLY
        }
        with contextlib.suppress(BaregradError):
            getattr(x, name)(*given[: len(wanted) - len(named)], **named)


def test_a_module_of_the_users_fails_as_it_does() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("the user's own")

    class Jitted(nn.Module):
        forward = jit(Own.forward)

    for module in (Own(), Jitted()):
        with pytest.raises(KeyError, match="the user's own"):
            module(1)


def test_our_own_mistakes_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments are blamed where they are not as annotated, and for what a user calls alone."""

    def broken(x: Tensor, other: Tensor) -> Tensor:
        raise AttributeError("a mistake inside")

    class Own(Tensor):
        __slots__ = ()
        method = broken

    explain_arguments(Own)
    x = Own([1.0])
    with pytest.raises(AttributeError, match="a mistake inside"):
        x.method(x)
    with pytest.raises(DTypeError, match="method does not take this as `other`: found int 1"):
        x.method(1)  # type: ignore[arg-type]
    monkeypatch.setattr(arguments, "is_ours", lambda code: True)
    with pytest.raises(AttributeError, match="a mistake inside"):
        x.method(1)  # type: ignore[arg-type]
