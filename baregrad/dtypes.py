"""Dtypes: what they are, how they combine, and how their values become bits.

A DType is a frozen, interned row: `dtypes.float32` is the only one of its name, so dtypes are
compared by identity. Promotion follows PyTorch wherever PyTorch defines it and is one lattice,
`LATTICE`, which `promotion_table` shows whole. `encode` and `decode` turn values into raw
codes and back, exactly; rounding is to nearest, ties to even.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np

from baregrad.base.errors import DTypeError, UnsupportedDType
from baregrad.base.floats import (
    TF32_CUT,
    FloatFormat,
    bfloat16_codes,
    code_values,
    encode_float,
    info_of,
    round_float,
)
from baregrad.base.floats import (
    FloatInfo as FloatInfo,
)
from baregrad.base.namespaces import namespace

if TYPE_CHECKING:
    import numpy.typing as npt

Kind = Literal["bool", "uint", "int", "float", "complex", "index", "token"]
Scalar = builtins.bool | builtins.int | builtins.float


# Equality is identity: `eq=False` keeps object's own __eq__ and __hash__.
@dataclass(frozen=True, eq=False, slots=True)
class DType:
    """The type of an element; there is one object for each name.

    `bits` is its size (0 for `index` and `token`, which are never stored), `numpy` NumPy's own
    dtype for it or None, `storage` the NumPy dtype of its raw codes (bfloat16: uint16; a 4-bit
    type: uint8 with the code in the low half; tfloat32: uint32, the code of the float32 that it
    is). `storage_only`: see `check_computed`.
    `itemsize` is the bytes of one element when stored alone: a 4-bit element takes one.
    """

    name: str
    kind: Kind
    bits: int
    numpy: np.dtype[Any] | None
    storage: np.dtype[Any] | None
    format: FloatFormat | None = None
    storage_only: builtins.bool = False
    itemsize: builtins.int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "itemsize", (self.bits + 7) // 8)

    def __repr__(self) -> str:
        return f"dtypes.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return as_dtype, (self.name,)

    def __copy__(self) -> DType:
        return self

    def __deepcopy__(self, memo: object) -> DType:
        return self

    @property
    def is_float(self) -> builtins.bool:
        """Whether it is a floating-point type."""
        return self.kind == "float"

    is_floating_point = is_float  # as programs of PyTorch's ask

    @property
    def is_narrow(self) -> builtins.bool:
        """Whether it is a float of fewer digits than float32, computed in that."""
        return self.format is not None and self.format.bits < 32

    @property
    def is_complex(self) -> builtins.bool:
        """Whether it is a type of complex numbers."""
        return self.kind == "complex"

    @property
    def is_int(self) -> builtins.bool:
        """Whether it is an integer type that users see, signed or not."""
        return self.kind in ("int", "uint")

    @property
    def is_signed(self) -> builtins.bool:
        """Whether it has negative values."""
        is_power = self.format is not None and self.format.powers
        return self.kind in ("int", "float", "complex", "index") and not is_power

    @property
    def min(self) -> Scalar:
        """The lowest finite value."""
        if self.format is not None:
            return info_of(self.format, self.bits).min
        if self.kind == "bool":
            return False
        self._need_bits()
        return -(1 << self.bits - 1) if self.kind == "int" else 0

    @property
    def max(self) -> Scalar:
        """The highest finite value."""
        if self.format is not None:
            return self.format.largest
        if self.kind == "bool":
            return True
        self._need_bits()
        return (1 << (self.bits - 1 if self.kind == "int" else self.bits)) - 1

    @property
    def lowest(self) -> Scalar:
        """What a maximum starts from: minus infinity where there is one, else `min`."""
        has_infinity = self.format is not None and self.format.special == "ieee"
        return -math.inf if has_infinity else self.min

    @property
    def highest(self) -> Scalar:
        """What a minimum starts from: infinity where there is one, else `max`."""
        has_infinity = self.format is not None and self.format.special == "ieee"
        return math.inf if has_infinity else self.max

    def _need_bits(self) -> None:
        if not self.bits:
            raise DTypeError(f"{self.name} has no bounds", wanted="a dtype of stored elements")


def _plain(kind: Kind, bits: int, format: FloatFormat | None = None) -> DType:
    name = "bool" if kind == "bool" else f"{kind}{bits}"
    storage = np.dtype("uint8" if kind == "bool" else f"uint{bits}")
    return DType(name, kind, bits, np.dtype(name), storage, format)


def _coded(name: str, format: FloatFormat, storage_only: builtins.bool = True) -> DType:
    storage = np.dtype(np.uint16 if format.bits > 8 else np.uint8)
    return DType(name, "float", format.bits, None, storage, format, storage_only)


class _Table:
    """The dtypes, by name, with PyTorch's short spellings of some."""

    bool: Final = _plain("bool", 8)
    uint8: Final = _plain("uint", 8)
    uint16: Final = _plain("uint", 16)
    uint32: Final = _plain("uint", 32)
    uint64: Final = _plain("uint", 64)
    int8: Final = _plain("int", 8)
    int16: Final = _plain("int", 16)
    int32: Final = _plain("int", 32)
    int64: Final = _plain("int", 64)
    float16: Final = _plain("float", 16, FloatFormat(5, 10, 15))
    bfloat16: Final = _coded("bfloat16", FloatFormat(8, 7, 127), storage_only=False)
    float32: Final = _plain("float", 32, FloatFormat(8, 23, 127))
    float64: Final = _plain("float", 64, FloatFormat(11, 52, 1023))

    # Storage only. OCP 8-bit floating point 1.0, OCP microscaling 1.0.
    float8_e4m3fn: Final = _coded("float8_e4m3fn", FloatFormat(4, 3, 7, "nan"))
    float8_e5m2: Final = _coded("float8_e5m2", FloatFormat(5, 2, 15))
    float4_e2m1fn: Final = _coded("float4_e2m1fn", FloatFormat(2, 1, 1, "none"))
    float8_e8m0fnu: Final = _coded("float8_e8m0fnu", FloatFormat(8, 0, 127, "nan", powers=True))
    # What matrix units make of float32: its exponents, and ten of its digits.
    tfloat32: Final = DType(
        "tfloat32", "float", 32, None, np.dtype(np.uint32), FloatFormat(8, 10, 127), True
    )
    int4: Final = DType("int4", "int", 4, None, np.dtype(np.uint8), None, True)
    uint4: Final = DType("uint4", "uint", 4, None, np.dtype(np.uint8), None, True)

    # Of tensors alone: below them such numbers are pairs of floats.
    complex64: Final = DType("complex64", "complex", 64, np.dtype(np.complex64), None)
    complex128: Final = DType("complex128", "complex", 128, np.dtype(np.complex128), None)

    # Internal: index arithmetic over unbounded integers, and the order of effects.
    index: Final = DType("index", "index", 0, None, None)
    token: Final = DType("token", "token", 0, None, None)

    half: Final = float16
    float: Final = float32
    double: Final = float64
    short: Final = int16
    int: Final = int32
    long: Final = int64
    cfloat: Final = complex64
    cdouble: Final = complex128


# Spelled as users of such libraries know it.
dtypes: Final = namespace(_Table)
DEFAULT_FLOAT: Final = dtypes.float32
DEFAULT_INT: Final = dtypes.int64
COMPLEX: Final = (dtypes.complex64, dtypes.complex128)
# Every dtype of a node, in the order of promotion, the storage-only and internal ones last.
ALL: Final = tuple(
    dict.fromkeys(row for row in vars(dtypes).values() if isinstance(row, DType)
                  and row not in COMPLEX)
)
COMPUTED: Final = tuple(row for row in ALL if row.bits and not row.storage_only)


class Defaults:
    """The dtype of floats that have none of their own, as `set_default_dtype` sets it."""

    float: ClassVar[DType] = DEFAULT_FLOAT


def default_float(is_complex: builtins.bool = False) -> DType:
    """Return the dtype of floats that have none of their own, or of complex numbers of such."""
    return complex_of(Defaults.float) if is_complex else Defaults.float


# ---- names --------------------------------------------------------------------------------------


def as_dtype(spec: object) -> DType:
    """Return the dtype that `spec` names.

    `spec` is a DType, a name (`"float32"`), a NumPy dtype or scalar type, or Python's `bool`,
    `int` (int64), `float` (float32) or `complex` (complex64). Raises DTypeError or UnsupportedDType
    otherwise.
    """
    if isinstance(spec, DType):
        return spec
    if isinstance(spec, str):
        found = getattr(dtypes, spec, None)
        if isinstance(found, DType):
            return found
        raise DTypeError("unknown dtype", found=repr(spec), wanted=", ".join(map(str, ALL)))
    if spec is builtins.bool:
        return dtypes.bool
    if spec is builtins.int:
        return DEFAULT_INT
    if spec is builtins.float:
        return default_float()
    if spec is complex:
        return default_float(is_complex=True)
    if isinstance(spec, np.dtype) or (isinstance(spec, type) and issubclass(spec, np.generic)):
        return from_numpy(np.dtype(spec))
    raise DTypeError("not a dtype", found=repr(spec), wanted="a DType, its name or a NumPy dtype")


@lru_cache(1 << 6)
def from_numpy(dtype: np.dtype[Any]) -> DType:
    """Return the dtype of a NumPy array's elements; raise UnsupportedDType where there is none.

    Narrow types that other packages add to NumPy (bfloat16, float8_e4m3fn) are known by name.
    """
    for row in (*ALL, *COMPLEX):
        if row.numpy is not None and row.numpy == dtype:
            return row
        # Types that other packages add equal nothing that NumPy can name by itself.
        if row.numpy is None and row.storage is not None and row.name == dtype.name:
            return row
    hint = "convert it first: array.astype(...)"
    if not dtype.isnative:
        hint = "take this machine's byte order: array.astype(array.dtype.newbyteorder('='))"
    raise UnsupportedDType("NumPy's dtype has no counterpart", found=str(dtype), hint=hint)


def to_numpy(dtype: DType) -> np.dtype[Any]:
    """Return NumPy's dtype for `dtype`; raise UnsupportedDType where NumPy has none."""
    if dtype.numpy is None:
        raise UnsupportedDType(
            f"NumPy has no {dtype.name}", hint=f"cast it first: .cast({computed_for(dtype)!r})"
        )
    return dtype.numpy


def computed_for(dtype: DType) -> DType:
    """Return the dtype to compute in for `dtype`: the least plain one that holds its values."""
    if dtype.is_float:
        return dtypes.float64 if dtype.bits > 32 else dtypes.float32
    return (dtypes.int8 if dtype.is_signed else dtypes.uint8) if dtype.bits == 4 else dtype


def array_dtype(spec: object) -> DType:
    """`as_dtype` for the elements of an array. Raises DTypeError for `index` and `token` too.

    It does for complex ones as well, which what asks does not know of: their arrays hold pairs.
    """
    found = as_dtype(spec)
    if found.kind in ("index", "token"):
        raise DTypeError("the dtype of what is in no array", found=repr(found))
    if found.is_complex:
        raise DTypeError(
            "this makes no complex numbers", found=found, wanted="a dtype of real ones",
            hint="make the real and the imaginary parts, and join them: Tensor.complex(re, im)",
        )
    return found


def part_of(dtype: DType) -> DType:
    """Return the dtype of the real and of the imaginary part; of a real dtype itself."""
    if not dtype.is_complex:
        return dtype
    return dtypes.float32 if dtype.bits == 64 else dtypes.float64


def complex_of(dtype: DType) -> DType:
    """Return the complex dtype whose parts hold what `dtype` does, or `dtype` if it is complex."""
    if dtype.is_complex:
        return dtype
    return dtypes.complex128 if dtype is dtypes.float64 else dtypes.complex64


def cut_to_integer(value: builtins.float, dtype: DType) -> builtins.int:
    """`value` without what follows the point. Raises DTypeError for infinities and NaN."""
    try:
        return builtins.int(value)
    except (OverflowError, ValueError) as error:
        raise DTypeError(
            f"{dtype} has no such number", found=f"{value}", wanted="a finite one",
            hint="use a floating-point dtype",
        ) from error


def check_computed(dtype: DType) -> None:
    """Raise DTypeError for a dtype that is not computed with: a `storage_only` one.

    Such arrays are made, moved, chosen among, written into, read and cast, as `where`, indexing and
    joins do. Whatever looks at what the values are refuses them: arithmetic, comparisons,
    reductions, running ones too, sorting. What computes in another dtype anyway, such as a sum of
    integers in int64, takes them.
    """
    if dtype.storage_only:
        raise DTypeError(
            f"{dtype} is stored, moved and cast, but not computed with",
            wanted=f"a dtype that is computed with, such as {computed_for(dtype)}",
            hint=f"cast it first: .cast({computed_for(dtype)!r})",
        )


# ---- promotion ----------------------------------------------------------------------------------

# Each dtype and those just above it. The promotion of two dtypes is their least common upper bound.
# Where PyTorch defines the result, this gives PyTorch's; PyTorch refuses to mix uint16, uint32 and
# uint64 with other integers, where this gives the smallest type that holds both. uint64 with a
# signed integer has none (float16 and bfloat16 are equally near), so it is an error here too.
LATTICE: Final = (
    (dtypes.bool, (dtypes.uint8, dtypes.int8)),
    (dtypes.uint8, (dtypes.uint16, dtypes.int16)),
    (dtypes.uint16, (dtypes.uint32, dtypes.int32)),
    (dtypes.uint32, (dtypes.uint64, dtypes.int64)),
    (dtypes.uint64, (dtypes.float16, dtypes.bfloat16)),
    (dtypes.int8, (dtypes.int16,)),
    (dtypes.int16, (dtypes.int32,)),
    (dtypes.int32, (dtypes.int64,)),
    (dtypes.int64, (dtypes.float16, dtypes.bfloat16)),
    (dtypes.float16, (dtypes.float32,)),
    (dtypes.bfloat16, (dtypes.float32,)),
    (dtypes.float32, (dtypes.float64, dtypes.complex64)),
    (dtypes.float64, (dtypes.complex128,)),
    (dtypes.complex64, (dtypes.complex128,)),
    (dtypes.complex128, ()),
)


def _joins() -> dict[tuple[DType, DType], DType | None]:
    """Return the least common upper bound of every pair in LATTICE, None where there is none."""
    above: dict[DType, frozenset[DType]] = {}
    for row, parents in reversed(LATTICE):
        above[row] = frozenset((row,)).union(*(above.get(parent, ()) for parent in parents))
    # int64 stands above uint32 in the table's order, so one more sweep completes the closure.
    for row, parents in reversed(LATTICE):
        above[row] = frozenset((row,)).union(*(above[parent] for parent in parents))
    joins: dict[tuple[DType, DType], DType | None] = {}
    for left in above:
        for right in above:
            common = above[left] & above[right]
            least = [row for row in common if common == above[row]]
            joins[left, right] = least[0] if least else None
    return joins


_JOINS: Final = _joins()


def promote(*operands: DType) -> DType:
    """Return the dtype in which dtypes meet: their least common upper bound in LATTICE.

    Storage-only and internal dtypes meet only themselves. Raises DTypeError where there is none,
    which among computed dtypes is uint64 with a signed integer.
    """
    if not operands:
        raise DTypeError("promotion needs a dtype", found="none", wanted="at least one")
    result = operands[0]
    for other in operands[1:]:
        joined = result if other is result else _JOINS.get((result, other))
        if joined is None:
            raise DTypeError(
                f"{result} and {other} have no common dtype",
                hint=f"cast one of them, for example to {_cast_advice(result, other)}",
            )
        result = joined
    return result


def _cast_advice(left: DType, right: DType) -> DType:
    return dtypes.int64 if left.is_int and right.is_int else dtypes.float32


def scalar_dtype(scalar: object) -> DType:
    """Return the dtype that a scalar has by itself: bool, int64, float32 or complex64.

    NumPy's scalars count as Python's of the same category, as in PyTorch: `np.float64(2)` is
    what many a NumPy function returns, and should not widen a float32 array.
    """
    if isinstance(scalar, builtins.bool | np.bool_):
        return dtypes.bool
    if isinstance(scalar, builtins.int | np.integer):
        return DEFAULT_INT
    if isinstance(scalar, builtins.float | np.floating):
        return default_float()
    if isinstance(scalar, complex | np.complexfloating):
        return default_float(is_complex=True)
    raise DTypeError(
        "not a scalar that a tensor can meet",
        found=f"{type(scalar).__name__} {scalar!r}",
        wanted="a bool, an int or a float",
    )


def _category(dtype: DType) -> int:
    return {"bool": 0, "float": 2, "complex": 3}.get(dtype.kind, 1)


def _outrank(strong: DType | None, weak: DType | None) -> DType | None:
    """Combine two tiers: the weak one counts only where its category is the higher one."""
    if strong is None or weak is None:
        return strong or weak
    return promote(strong, weak) if _category(weak) > _category(strong) else strong


def result_type(
    arrays: Iterable[DType] = (),
    zero_dim: Iterable[DType] = (),
    scalars: Iterable[object] = (),
) -> DType:
    """Return the dtype of an operation's result, by PyTorch's three tiers.

    `arrays` are the dtypes of operands with axes, `zero_dim` of arrays without, `scalars` Python
    values. A lower tier changes the result only by being of a higher category (bool, integer,
    float), so `int8 array + 1.5` is float32 and `float16 array + float64 zero-dim array` float16.
    Source: "Tensor Attributes, torch.dtype" in the PyTorch manual.
    """
    tiers = []
    for tier in (arrays, zero_dim, (scalar_dtype(scalar) for scalar in scalars)):
        members = tuple(tier)
        tiers.append(promote(*members) if members else None)
    result = _outrank(tiers[0], _outrank(tiers[1], tiers[2]))
    if result is None:
        raise DTypeError("a result needs an operand", found="none", wanted="at least one")
    return result


def promote_with_scalar(dtype: DType, scalar: object) -> DType:
    """Return the dtype of `array of dtype (op) Python scalar`.

    The scalar is weak: an int leaves every numeric dtype alone, a float every floating one; bool
    with an int is int64, an integer dtype with a float is float32.
    """
    return result_type((dtype,), scalars=(scalar,))


def promotion_table() -> str:
    """Return the promotion of every pair of computed dtypes, and with scalars, as text.

    `-` marks pairs that do not meet; `int` and `float` are Python's scalars.
    """
    columns = tuple(str(row) for row in COMPUTED)
    width = max(map(len, columns)) + 1
    lines = ["".join(f"{cell:>{width}}" for cell in ("", *columns, "int", "float"))]
    for left in COMPUTED:
        cells = [str(_JOINS[left, right] or "-") for right in COMPUTED]
        cells += [str(promote_with_scalar(left, 1)), str(promote_with_scalar(left, 1.0))]
        lines.append("".join(f"{cell:>{width}}" for cell in (str(left), *cells)))
    return "\n".join(lines)


# ---- limits -------------------------------------------------------------------------------------


def finfo(dtype: DType) -> FloatInfo:
    """Return the limits of a floating-point dtype, or of a complex one's parts.

    Raises DTypeError for any other.
    """
    dtype = part_of(dtype)
    form = dtype.format
    if form is None:
        raise DTypeError("finfo is of floating-point dtypes", found=dtype, wanted="a float dtype")
    return info_of(form, dtype.bits)


# ---- values and bits ----------------------------------------------------------------------------


def round_scalar(value: Scalar, dtype: DType) -> Scalar:
    """Return a Python scalar as `dtype` holds it.

    Floats are rounded to nearest, ties to even, and overflow as `encode` does; integers wrap
    around; a float becomes an integer by truncation, saturating, NaN as 0. `index` takes integers.
    """
    if dtype.kind == "bool":
        return builtins.bool(value)
    if dtype.format is not None:
        return round_float(builtins.float(value), dtype.format)
    if isinstance(value, builtins.float):
        if not math.isfinite(value):
            return 0 if math.isnan(value) else dtype.max if value > 0 else dtype.min
        value = math.trunc(value)
        return min(max(value, dtype.min), dtype.max) if dtype.bits else value
    if not dtype.bits:
        return builtins.int(value)
    wrapped = builtins.int(value) & ((1 << dtype.bits) - 1)
    if dtype.kind == "int" and wrapped >> dtype.bits - 1:
        wrapped -= 1 << dtype.bits
    return wrapped


def encode(
    values: npt.ArrayLike, dtype: DType, *, saturate: builtins.bool = False
) -> npt.NDArray[Any]:
    """Return the raw codes of `values` in `dtype`: unsigned integers of `dtype.storage`, any shape.

    Floats round to nearest, ties to even, in one step from float64. Beyond the largest finite
    value they become infinity, NaN (e4m3) or the largest value (e2m1); with `saturate` always the
    largest. NaN is the quiet NaN of its sign, in e2m1, which has none, a zero. In e8m0, which has
    no others, zero and what is negative are NaN, and ties go to the larger power. 4-bit integers
    round as floats do and saturate; NaN is 0. Other dtypes are NumPy's own conversion.
    """
    array = np.asarray(values)
    if dtype.storage is None:
        raise DTypeError(f"{dtype} is never stored", wanted="a dtype with a size in bits")
    if dtype.bits == 4 and dtype.format is None:
        limited = np.clip(np.rint(array.astype(np.float64)), dtype.min, dtype.max)
        codes = np.nan_to_num(limited, nan=0.0).astype(np.int8).view(np.uint8)
        return np.asarray(codes & np.uint8(15))
    if dtype is dtypes.bfloat16 and array.dtype == np.float32 and not saturate:
        return bfloat16_codes(array)
    if dtype.numpy is not None and not (saturate and dtype.format):
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(array.astype(dtype.numpy)).view(dtype.storage)
    assert dtype.format is not None
    with np.errstate(invalid="ignore"):
        # A signalling NaN is no reason to warn: it becomes the quiet one.
        exact = array.astype(np.float64)
    codes = encode_float(exact, dtype.format, saturate).astype(dtype.storage)
    return codes << np.uint32(TF32_CUT) if dtype is dtypes.tfloat32 else codes


def decode(raw: npt.NDArray[Any], dtype: DType) -> npt.NDArray[Any]:
    """Return the values of raw codes, exactly.

    Floats of at most 32 bits come back as float32, 4-bit integers as int8 or uint8, others as NumPy
    has them. `raw` is of `dtype.storage`; what a code has beyond the dtype's own bits is ignored.
    """
    if dtype.storage is None or raw.dtype != dtype.storage:
        raise DTypeError(f"raw codes of {dtype}", found=raw.dtype, wanted=dtype.storage)
    raw = np.ascontiguousarray(raw).reshape(raw.shape)
    if dtype is dtypes.bfloat16:
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype.bits == 4 and dtype.format is None:
        low = raw & np.uint8(15)
        return low if dtype.kind == "uint" else (low ^ np.uint8(8)).view(np.int8) - np.int8(8)
    if dtype is dtypes.float16:
        with np.errstate(invalid="ignore"):
            return raw.view(np.float16).astype(np.float32)
    if dtype.numpy is not None:
        return raw.view(dtype.numpy)
    if dtype is dtypes.tfloat32:
        return (raw >> np.uint32(TF32_CUT) << np.uint32(TF32_CUT)).view(np.float32)
    assert dtype.format is not None
    table = code_values(dtype.format)
    return np.asarray(table[raw & np.uint8((1 << dtype.bits) - 1)])


def __getattr__(name: str) -> DType:
    """Let the module stand for its namespace: importing it binds it to `baregrad.dtypes` too."""
    found = getattr(dtypes, name, None)
    if isinstance(found, DType):
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
