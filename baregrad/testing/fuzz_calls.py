"""Draws calls of the public functions, as texts: sound arguments mixed with hostile ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from types import FunctionType, MappingProxyType
from typing import Any

import numpy as np

import baregrad
from baregrad import data, io, nn, optim
from baregrad.data.digits import held_out_mask
from baregrad.data.shuffle import batches, permutation, splitmix64
from baregrad.dtypes import ALL, as_dtype, dtypes
from baregrad.engine.canonical import bind
from baregrad.ir.core.index import variable
from baregrad.tensor import Tensor
from baregrad.tensor.array.core import Array

# What waits, writes to a path it is given, prints, or changes what later calls do.
_LEFT_OUT = frozenset((
    "set_grad_enabled", "search", "jit", "TinyJit", "options", "load_digits", "from_dlpack",
    "apply",
))  # fmt: skip
_SHAPES = (
    (), (0,), (1,), (3,), (4,), (2, 3), (3, 3), (2, 0), (1, 1), (3, 4), (2, 3, 4), (1, 3, 5),
    (1, 2, 4, 4), (2, 2, 3, 3), (1, 1, 2, 3, 2),
)  # fmt: skip
_DTYPES = tuple(row.name for row in ALL if row.kind not in ("index", "token"))
_FILLS = ("", ", 'nan'", ", 'inf'", ", 'zero'", ", 'negative'", ", grad=True", ", 'big'")
_OPERATORS = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor",
    "lshift", "rshift", "radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow", "rmatmul",
    "iadd", "isub", "imul", "itruediv", "ipow", "eq", "ne", "lt", "le", "gt", "ge", "getitem",
    "setitem", "neg", "pos", "abs", "invert", "bool", "int", "float", "index", "len", "iter",
    "repr",
)  # fmt: skip
_HOSTILE = (
    "None", "float('nan')", "float('inf')", "-float('inf')", "-1", "0", "1", "2", "-2", "7", "1.5",
    "-0.5", "2.0", "0.0", "1e300", "1 << 33", "1 << 62", "1 << 63", "1 << 64", "-(1 << 63)",
    "-(1 << 70)", "10**30", "10**400", "True", "False", "''", "'a'", "'mean'", "'float32'", "'CPU'",
    "'NULL'", "'CPU:9'", "'nan'", "'0'", "'\\0'", "'ij,jk->ik'", "b''", "b'ab'", "bytearray(b'a')",
    "[]", "()", "[[]]", "[[1, 2], [3]]", "[1, None]", "['a']", "[1.5, 2]", "(1, -1)", "(-1, -1)",
    "(0, 0)", "(1 << 40, 1 << 40)", "[True, False]", "(2, 3)", "((1, 1), (2, 2))", "[0, [1]]",
    "{}", "{'a': 1}", "set()", "{1, 2}", "frozenset((1,))", "range(3)", "range(0)", "range(-1, 9)",
    "slice(None)", "slice(0, 9, 0)", "slice('a', None)", "slice(None, None, -1)", "slice(1.5)",
    "...", "NotImplemented", "(i for i in range(3))", "iter([1])", "map(str, [1])", "int",
    "str", "object()", "object", "lambda *a, **k: None", "Tensor", "Tensor.sum", "np", "type",
    "1j", "complex('nan')", "np.float32(1.5)", "np.float16('nan')", "np.int8(-1)",
    "np.uint64(2**63)",
    "np.bool_(True)", "np.str_('a')", "np.datetime64('2020-01-01')", "np.timedelta64(1)",
    "np.array(1)", "np.array([])", "np.array(['a', 'b'])", "np.array([None, 1], object)",
    "np.array([1j])", "np.array(['2020'], 'datetime64[Y]')", "np.zeros((2, 3), '>f4')",
    "np.zeros(2, 'i4,f4')", "np.zeros((1,) * 40)", "np.longdouble(1)", "np.arange(6).reshape(2, 3)",
    "np.array([True, False])", "np.ma.masked", "np.dtype('f4')", "np.float32", "np.dtype('U3')",
    "np.nan", "np.newaxis", "dtypes", "dtypes.float32", "dtypes.int4", "dtypes.float8_e4m3fn",
    "dtypes.token", "dtypes.index",
    "float", "bool", "complex", "size(2)", "size(3)", "size(1)", "Path('none')", "Path('.')",
    "Exception()", "Exception", "__import__('decimal').Decimal('1.5')", "memoryview(b'\\1\\2')",
    "__import__('fractions').Fraction(1, 3)", "__import__('array').array('i', [1, 2])",
)  # fmt: skip
_SOUND: MappingProxyType[str, tuple[str, ...]] = MappingProxyType({
    "int": ("0", "1", "2", "-1", "3"),
    "float": ("0.0", "0.5", "1.0", "2.0", "-1.0", "3"),
    "bool": ("True", "False"),
    "str": ("'mean'", "'sum'", "'none'", "'constant'", "'reflect'", "'linear'", "'nearest'",
            "'same'",
            "'floor'", "'trunc'", "'relu'", "'tanh'", "'ij,jk->ik'", "'amax'", "'fan_in'"),
    "Sequence": ("(1,)", "(2, 3)", "(0, 1)", "[1, 1]", "(3,)", "(-1,)", "(1, 1, 1)",
                 "(1, 2, 1, 1)"),
    "Path": ("Path('file')", "'file'", "Path('none')"),
    "Callable": ("lambda *a: 0.5",),
    "None": ("None",),
})  # fmt: skip
_NAMED: MappingProxyType[str, tuple[str, ...]] = MappingProxyType({
    "dtype": ("'float32'", "dtypes.int32", "'float16'", "None", "dtypes.bool", "'int4'", "float"),
    "device": ("None", "'CPU'", "'REF'"),
    "dim": _SOUND["int"], "axis": _SOUND["int"], "size": ("(2, 3)", "3", "()", "(0,)"),
    "tensors": ("[made((2, 3)), made((2, 3))]", "[made((3,))]"),
    "params": ("[made((2, 3), grad=True)]", "nn.Linear(3, 2).parameters()"),
    "parameters": ("[made((2, 3), grad=True)]", "nn.Linear(3, 2).parameters()"),
    "optimizer": ("optim.SGD([made((2, 3), grad=True)], lr=0.1)",),
    "modules": ("nn.Linear(3, 2)", "nn.ReLU()"), "module": ("nn.Linear(3, 3)",),
    "key": ("0", "(0, 1)", "slice(1)", "...", "[0, 1]", "made((2,), 'int64')", "None"),
})  # fmt: skip


def made(
    shape: tuple[int, ...], dtype: str = "float32", fill: str = "", grad: bool = False
) -> Tensor:
    """A tensor whose elements are small numbers; `fill` puts others at its ends."""
    count = int(np.prod(shape))
    values = (np.arange(count) % 4).astype(np.float64)
    end = {"nan": np.nan, "inf": np.inf, "zero": 0.0, "negative": -2.0, "big": 1e30}.get(fill, 1.0)
    found = as_dtype(dtype)
    if count and (found.is_float or fill in ("zero", "negative")):
        values[:1] = values[-1:] = end
    return Tensor(values.reshape(shape)).cast(found).requires_grad_(grad and found.is_float)


def size(value: int) -> Any:
    """A size that is known later: a variable up to 4, of this value now."""
    return bind(variable("n", 1, 4), value)


def names() -> dict[str, Any]:
    """What the text of a call may name."""
    from pathlib import Path

    return {
        "Tensor": Tensor, "baregrad": baregrad, "nn": nn, "optim": optim, "io": io, "np": np,
        "dtypes": dtypes, "made": made, "size": size, "Path": Path, "batches": batches,
        "permutation": permutation, "splitmix64": splitmix64, "held_out_mask": held_out_mask,
        "data": data,
    }  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A function that is called: `text` is what stands before its parenthesis.

    kind: "tensor", a method of one that is drawn; "function"; "layer", whose instance is called.
    """

    text: str
    function: Callable[..., Any] | None
    kind: str


@lru_cache(maxsize=1)
def targets() -> tuple[Target, ...]:
    """Every public function, method, layer and optimiser."""
    found = [Target("Tensor", Tensor.__init__, "function")]
    for name in sorted(set(dir(Tensor)) - set(dir(Array))):
        if name.startswith("_") or name in _LEFT_OUT:
            continue
        member = inspect.getattr_static(Tensor, name)
        if isinstance(member, classmethod | staticmethod):
            found.append(Target(f"Tensor.{name}", getattr(Tensor, name), "function"))
        elif isinstance(member, FunctionType):
            found.append(Target(name, member, "tensor"))
        elif isinstance(member, property):
            found.append(Target(name, None, "tensor"))
    found += [Target(f"__{name}__", getattr(Tensor, f"__{name}__"), "tensor")
              for name in _OPERATORS]  # fmt: skip
    for room, title in ((nn, "nn"), (optim, "optim"), (nn.init, "nn.init"), (baregrad, "baregrad")):
        for name in sorted(getattr(room, "__all__", None) or vars(room)):
            member = getattr(room, name)
            if name.startswith("_") or name in _LEFT_OUT or member is Tensor:
                continue
            if title == "nn.init" and getattr(member, "__module__", "") != room.__name__:
                continue
            if inspect.isclass(member) and issubclass(member, nn.Module):
                found.append(Target(f"{title}.{name}", member, "layer"))
            elif isinstance(member, FunctionType) and member.__module__.startswith("baregrad"):
                found.append(Target(f"{title}.{name}", member, "function"))
            elif inspect.isclass(member) and title == "optim":
                found.append(Target(f"{title}.{name}", member, "function"))
    here = (batches, permutation, splitmix64, held_out_mask)
    found += [Target(one.__name__, one, "function") for one in here]
    return tuple(found)


def draw(seed: int, place: int) -> str:
    """The text of one call, the same for the same numbers."""
    random = Random(f"{seed}:{place}")
    target = random.choice(targets())
    if target.kind == "layer":
        layer = f"{target.text}({_arguments(random, target.function, 1)})"
        forward = getattr(target.function, "forward", None)
        return layer if random.random() < 0.2 else f"{layer}({_arguments(random, forward, 1)})"
    if target.kind == "function":
        skipped = 1 if inspect.isclass(target.function) or target.text == "Tensor" else 0
        return f"{target.text}({_arguments(random, target.function, skipped)})"
    receiver = _tensor(random)
    if target.function is None:
        return f"{receiver}.{target.text}"
    by_operator = target.text.startswith("__")
    return f"{receiver}.{target.text}({_arguments(random, target.function, 1, by_operator)})"


def _arguments(random: Random, function: Any, skipped: int, by_operator: bool = False) -> str:
    """Arguments for the parameters of a function, but for the first `skipped`."""
    if inspect.isclass(function):
        function = function.__init__
    try:
        parameters = list(inspect.signature(function).parameters.values())[skipped:]
    except (TypeError, ValueError):
        return _value(random, "", "")
    hostile = random.choice((0.0, 0.15, 0.3, 0.6))
    if by_operator:
        # Python gives an operator what it takes, and no more.
        parameters = [one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    found = []
    by_name = False
    for one in parameters:
        if one.kind is one.VAR_KEYWORD:
            continue
        if one.kind is one.VAR_POSITIONAL:
            if not by_name:
                found += [_drawn(random, one, hostile) for _ in range(random.randint(0, 3))]
            continue
        if one.default is not one.empty and random.random() < 0.6:
            by_name = True
            continue
        text = _drawn(random, one, hostile)
        by_name = by_name or one.kind is one.KEYWORD_ONLY
        found.append(f"{one.name}={text}" if by_name else text)
    return ", ".join(found)


def _drawn(random: Random, parameter: inspect.Parameter, hostile: float) -> str:
    if random.random() < hostile:
        return random.choice(_HOSTILE) if random.random() < 0.8 else _tensor(random)
    return _value(random, parameter.name, str(parameter.annotation))


def _value(random: Random, name: str, annotation: str) -> str:
    """The text of what a parameter is likely to take, by its name or its annotation."""
    if name in _NAMED:
        return random.choice(_NAMED[name])
    choices = [key for key in _SOUND if key in annotation]
    if any(word in annotation for word in ("Tensor", "Operand", "Any")) or name in ("x", "other"):
        choices += ["Tensor"] * 2
    if any(word in annotation for word in ("Axes", "PerAxis", "Extents")):
        choices += ["int", "Sequence"]
    if "Scalar" in annotation:
        choices.append("float")
    picked = random.choice(choices or ["int", "float", "Tensor", "Sequence"])
    return _tensor(random) if picked == "Tensor" else random.choice(_SOUND[picked])


def _tensor(random: Random) -> str:
    """The text of a tensor of some shape and dtype, or of a view of one."""
    dtype = "'float32'" if random.random() < 0.5 else repr(random.choice(_DTYPES))
    text = f"made({random.choice(_SHAPES)!r}, {dtype}{random.choice(_FILLS)})"
    if random.random() < 0.15:
        text += random.choice((".T", ".flip(0)", "[:size(2)]", "[::2]", ".detach()", "[..., :1]"))
    return text
