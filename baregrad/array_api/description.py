"""Dtypes: which there are, what they hold, and which can become which."""

from __future__ import annotations

from typing import Any, NamedTuple

from baregrad.array_api.creation import default_device
from baregrad.array_api.values import extent, joined, scalar
from baregrad.base.errors import ArgumentError, DTypeError
from baregrad.dtypes import DType, dtypes, part_of
from baregrad.dtypes import finfo as limits
from baregrad.tensor import Tensor

_KINDS = (
    ("bool", ("bool",)),
    ("signed integer", ("int8", "int16", "int32", "int64")),
    ("unsigned integer", ("uint8", "uint16", "uint32", "uint64")),
    ("integral", ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")),
    ("real floating", ("float32", "float64")),
    ("complex floating", ("complex64", "complex128")),
    ("numeric", ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
                 "float32", "float64", "complex64", "complex128")),
)  # fmt: skip


class FloatFacts(NamedTuple):
    """What a dtype of floats holds."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class IntegerFacts(NamedTuple):
    """What a dtype of integers holds."""

    bits: int
    max: int
    min: int
    dtype: DType


def _dtype(value: DType | Tensor) -> DType:
    return value.dtype if isinstance(value, Tensor) else value


def finfo(type: DType | Tensor, /) -> FloatFacts:
    """Return what a dtype of floats holds, or what the parts of complex numbers hold."""
    dtype = part_of(_dtype(type))
    if dtype not in (dtypes.float32, dtypes.float64):
        raise DTypeError("finfo is of float32 or float64", found=str(dtype))
    facts = limits(dtype)
    return FloatFacts(
        facts.bits, facts.eps, facts.max, facts.min, facts.smallest_normal, dtype
    )


def iinfo(type: DType | Tensor, /) -> IntegerFacts:
    """Return what a dtype of integers holds."""
    dtype = _dtype(type)
    if dtype.kind not in ("int", "uint"):
        raise DTypeError("iinfo is of integers", found=str(dtype))
    low, high = extent(dtype)
    return IntegerFacts(dtype.bits, high, low, dtype)


def _members(kind: str) -> tuple[str, ...]:
    for name, members in _KINDS:
        if name == kind:
            return members
    raise ArgumentError(
        "no kind of dtypes", found=repr(kind), wanted=", ".join(name for name, _ in _KINDS)
    )


def isdtype(dtype: DType, kind: Any) -> bool:
    """Return whether a dtype is one, or of a kind, or of one of several."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, each) for each in kind)
    return dtype.name in _members(kind) if isinstance(kind, str) else dtype is kind


def can_cast(from_: DType | Tensor, to: DType, /) -> bool:
    """Return whether a dtype becomes another where it meets it."""
    try:
        return joined(_dtype(from_), to) is to
    except DTypeError:
        return False


def result_type(*arrays_and_dtypes: Any) -> DType:
    """Return the dtype that arrays, dtypes and Python scalars meet in."""
    strong = [_dtype(each) for each in arrays_and_dtypes if isinstance(each, Tensor | DType)]
    if not strong:
        raise DTypeError("a dtype of a result needs an array or a dtype", found="none")
    dtype = joined(*strong)
    for each in arrays_and_dtypes:
        if not isinstance(each, Tensor | DType):
            dtype = scalar(each, Tensor.zeros(0, dtype=dtype)).dtype
    return dtype


class NamespaceFacts:
    """What this namespace offers, as `__array_namespace_info__()` gives it."""

    def capabilities(self) -> dict[str, Any]:
        """What indices and shapes may be, and how many axes there may be."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> str:
        """The device of arrays for which none is named."""
        return default_device()

    def default_dtypes(self, *, device: str | None = None) -> dict[str, DType]:
        """The dtypes of numbers for which none is named."""
        return {
            "real floating": dtypes.float32, "complex floating": dtypes.complex64,
            "integral": dtypes.int64, "indexing": dtypes.int64,
        }  # fmt: skip

    def dtypes(
        self, *, device: str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """The dtypes of the standard that there are, all or those of kinds."""
        if kind is None:
            kind = ("bool", "numeric")
        kinds = (kind,) if isinstance(kind, str) else kind
        names = dict.fromkeys(name for each in kinds for name in _members(each))
        return {name: getattr(dtypes, name) for name in names}

    def devices(self) -> list[str]:
        """The devices that arrays can be on."""
        return list(dict.fromkeys((default_device(), "CPU")))


def __array_namespace_info__() -> NamespaceFacts:  # noqa: N807 - the standard's name
    """Return what this namespace offers."""
    return NamespaceFacts()
