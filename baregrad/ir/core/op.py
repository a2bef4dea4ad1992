"""The op table: one row per op, by family, with the levels at which it is legal.

A row says what an op means, how many sources it takes and at which of the four levels (`tensor`,
`kernel`, `loop`, `linear`) it may stand. Rows are plain objects compared by identity; what else is
known about an op (its attribute's type, its shape rule, its evaluator, its gradient) is a column
keyed by row, and a test names every missing cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import NoneType
from typing import Any, Generic, TypeVar, cast, get_args, get_origin

from baregrad.base.errors import CompilerBug
from baregrad.base.namespaces import namespace

Cell = TypeVar("Cell")
Function = TypeVar("Function", bound=Callable[..., Any])

LEVELS = ("tensor", "kernel", "loop", "linear")
T = ("tensor",)
K = ("kernel",)
L = ("loop",)
LIN = ("linear",)
TK = ("tensor", "kernel")
TKL = ("tensor", "kernel", "loop")
KL = ("kernel", "loop")
LL = ("loop", "linear")
KLL = ("kernel", "loop", "linear")
ALL = LEVELS
MANY = 1 << 30
# Kinds of dtypes that arithmetic computes with.
NUMBERS = ("int", "uint", "float", "index")
INTEGERS = ("int", "uint", "index")
ANYTHING = ("bool", *NUMBERS)
BITS = ("bool", *INTEGERS)
FLOATS = ("float",)


@dataclass(frozen=True, eq=False, slots=True)
class Op:
    """One row of the op table.

    `bit` is the op's own bit in `Node.mask`; `arity` is the smallest and largest number of sources;
    `kinds` are those of the dtypes that arithmetic computes with.
    """

    name: str
    family: str
    levels: tuple[str, ...]
    arity: tuple[int, int]
    meaning: str
    bit: int
    commutative: bool = False
    kinds: tuple[str, ...] = ()

    def __set_name__(self, _: type, name: str) -> None:
        # The table's class gives the row the name that it has there.
        object.__setattr__(self, "name", name)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return (_row_by_name, (self.name,))


class Column(Generic[Cell]):
    """What one room knows about ops: for each row a cell, added where the cell is written."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cells: dict[Op, Cell] = {}
        self.get = self.cells.get

    def add(self, cell: Cell, *ops: Op) -> None:
        """Make `cell` that of `ops`. Raises CompilerBug for a second one."""
        for op in ops:
            if self.cells.setdefault(op, cell) is not cell:
                raise CompilerBug(f"{op.name} has a {self.name} already", found=repr(cell))

    def __call__(self, *ops: Op) -> Callable[[Function], Function]:
        """A decorator that makes a function or a class the cell of `ops`, as `add` does."""

        def added(cell: Function) -> Function:
            self.add(cast(Cell, cell), *ops)
            return cell

        return added


# The type of each op's attribute: a class, a union of some, or `tuple[item]`; None has no cell.
ATTRIBUTES: Column[Any] = Column("type of attribute")


class _Rows:
    """Builds the rows in order and hands out their bits."""

    def __init__(self) -> None:
        self.count = 0

    def row(
        self,
        family: str,
        levels: tuple[str, ...],
        arity: int | tuple[int, int],
        meaning: str,
        *,
        attribute: Any = None,
        commutative: bool = False,
        kinds: tuple[str, ...] = (),
    ) -> Op:
        span = (arity, arity) if isinstance(arity, int) else arity
        bit = 1 << self.count
        self.count += 1
        op = Op("", family, levels, span, meaning, bit, commutative, kinds)
        if attribute is not None:
            ATTRIBUTES.add(attribute, op)
        return op


_r = _Rows().row
_unary = partial(_r, "unary", ALL, 1)
_binary = partial(_r, "binary", ALL, 2)


class _Table:
    """Every op of every level. `Ops.ADD` is the row itself."""

    # leaves
    CONST = _r("leaf", ALL, 0, "a scalar constant", attribute=bool | int | float)
    BUFFER = _r("leaf", T, 0, "the contents of a realised buffer")
    PARAM = _r("leaf", ALL, 0, "the n-th argument array of a program")
    VAR = _r("leaf", ALL, 0, "a symbolic integer with bounds")
    IOTA = _r("leaf", T, (0, 1), "0, 1, ..., n-1 (n symbolic: the source)", attribute=int | None)
    RANGE = _r("leaf", KL, 1, "an axis: every value in [0, extent)")
    SLOT = _r("leaf", ALL, 0, "the i-th input of a small expression (monoid)", attribute=int)

    # unary arithmetic
    NEG = _unary("-x", kinds=NUMBERS)
    NOT = _unary("logical not of a bool, bitwise not of an integer", kinds=BITS)
    ABS = _unary("absolute value", kinds=NUMBERS)
    RECIPROCAL = _unary("1/x, correctly rounded", kinds=FLOATS)
    RECIPROCAL_NEAR = _r("unary", KLL, 1,
        "1/x of a finite x, off by 2**-23 of it at most, or 0 for more than 2**126", kinds=FLOATS)
    SQRT = _unary("square root, correctly rounded", kinds=FLOATS)
    EXP = _unary("e**x", kinds=FLOATS)
    EXP2 = _unary("2**x", kinds=FLOATS)
    EXP_NEAR = _unary("e**x, off by 2**-17 of it at most, or 0 for less than 2**-126",
        kinds=FLOATS)
    EXP2_NEAR = _unary("2**x, off by 2**-22 of it at most, or 0 for less than 2**-126",
        kinds=FLOATS)
    LOG = _unary("natural logarithm", kinds=FLOATS)
    LOG2 = _unary("base 2 logarithm", kinds=FLOATS)
    SIN = _unary("sine", kinds=FLOATS)
    COS = _unary("cosine", kinds=FLOATS)
    TANH = _unary("hyperbolic tangent", kinds=FLOATS)
    ERF = _unary("error function", kinds=FLOATS)
    GELU = _unary("x times the normal distribution's integral up to x", kinds=FLOATS)
    GELU_NEAR = _unary("GELU, off by 2**-14 of it at most from -4.3 on, below by 2**-23",
        kinds=FLOATS)
    ATAN = _unary("inverse tangent", kinds=FLOATS)
    FLOOR = _unary("round toward minus infinity", kinds=FLOATS)
    CEIL = _unary("round toward plus infinity", kinds=FLOATS)
    TRUNC = _unary("round toward zero", kinds=FLOATS)
    RINT = _unary("round to nearest, ties to even", kinds=FLOATS)

    # binary arithmetic
    ADD = _binary("x + y (wraps for integers, or for bool)", commutative=True, kinds=ANYTHING)
    SUB = _binary("x - y", kinds=NUMBERS)
    MUL = _binary("x * y (and for bool)", commutative=True, kinds=ANYTHING)
    DIV = _binary("x / y of floats, correctly rounded", kinds=FLOATS)
    FLOORDIV = _binary("floor(x / y) of integers; y == 0 gives 0", kinds=INTEGERS)
    MOD = _binary("x - y*floor(x / y); integers: y == 0 gives 0; floats: NaN", kinds=NUMBERS)
    TRUNCDIV = _binary("trunc(x / y) of integers; y == 0 gives 0", kinds=INTEGERS)
    POW = _binary("x ** y of floats", kinds=FLOATS)
    LDEXP = _r("binary", KLL, 2, "x * 2**y of floats, y whole, with one rounding", kinds=FLOATS)
    MAX = _binary("the larger; NaN if either is NaN", commutative=True, kinds=ANYTHING)
    MIN = _binary("the smaller; NaN if either is NaN", commutative=True, kinds=ANYTHING)
    AND = _binary("bitwise and", commutative=True, kinds=BITS)
    OR = _binary("bitwise or", commutative=True, kinds=BITS)
    XOR = _binary("bitwise exclusive or", commutative=True, kinds=BITS)
    SHL = _binary("x << y; y >= bits gives 0", kinds=INTEGERS)
    SHR = _binary("x >> y, arithmetic if signed; y >= bits fills with the sign", kinds=INTEGERS)
    CMPLT = _binary("x < y -> bool", kinds=ANYTHING)
    CMPLE = _binary("x <= y -> bool", kinds=ANYTHING)
    CMPEQ = _binary("x == y -> bool", commutative=True, kinds=ANYTHING)
    CMPNE = _binary("x != y -> bool", commutative=True, kinds=ANYTHING)
    THREEFRY = _binary("Threefry-2x32-20 of (counter u64, key u64) -> u64", kinds=("uint",))

    # ternary arithmetic
    WHERE = _r("ternary", ALL, 3, "y if cond else z, element by element", kinds=ANYTHING)
    FMA = _r("ternary", ALL, 3, "x*y + z with one rounding", kinds=NUMBERS)
    DOT4 = _r("ternary", ALL, 3,
        "z + the products of the four unsigned bytes of x and the signed ones of "
        "y, of int32", kinds=("int",))
    DOT2LO = _r("ternary", ALL, 3,
        "z + the products of the two lower unsigned bytes of x and the signed halves of y, the "
        "lower first, of int32", kinds=("int",))
    DOT2HI = _r("ternary", ALL, 3,
        "z + the products of the two upper unsigned bytes of x and the signed halves of y, the "
        "lower first, of int32", kinds=("int",))
    DOT2 = _r("ternary", KLL, 3,
        "z + the product of the upper bfloat16 of x and y, + that of the lower, each"
        " rounded once: of int32, int32 and float32; subnormal numbers are 0", kinds=FLOATS)

    # conversions
    CAST = _r("convert", ALL, 1, "to the node's dtype, C rules; float to int saturates, NaN -> 0")
    BITCAST = _r("convert", ALL, 1, "the same bits as the node's dtype, of equal size")
    LOOKUP = _r("convert", LL, 1,
        "the number of a table at an unsigned place, modulo the table's "
        "length, a power of two", attribute=tuple[float])

    # movement: views, they cost no copy
    RESHAPE = _r("movement", T, (1, MANY), "new shape, row-major order", attribute=tuple)
    PERMUTE = _r("movement", T, 1, "axes reordered", attribute=tuple[int])
    EXPAND = _r("movement", T, (1, MANY), "axes of extent 1 repeated", attribute=tuple)
    PAD = _r("movement", T, 1, "(lo, hi, interior) zeros per axis")
    SHRINK = _r("movement", T, 1, "start:stop:step per axis")
    FLIP = _r("movement", T, 1, "axes reversed", attribute=tuple[int])
    WINDOW = _r("movement", T, 1, "axis -> (positions, taps), a sliding window")

    # structure over whole arrays
    REDUCE = _r("reduce", TKL, (1, MANY), "fold of a monoid over axes or ranges")
    PROJ = _r("reduce", TKL, 1, "one part of a tuple-valued reduction", attribute=int)
    FOLD = _r("reduce", T, 1, "adjoint of WINDOW: overlapping taps are summed")
    SCAN = _r("reduce", TKL, (1, MANY), "running fold along one axis or tile, inclusive")
    GATHER = _r("index", T, (1, MANY),
        "x[i0, i1, ...], one index array per axis of x; where True, 0 outside of x",
        attribute=bool | None)
    SCATTER = _r("index", T, (2, MANY), "base, values, *indices")
    SORT = _r("index", T, (1, MANY),
        "the last of some integer arrays in rising order along the last axis, the first counting"
        " most")
    CONTIGUOUS = _r("place", T, 1,
        "the same value, staged in device memory; its gradient likewise "
        "where True", attribute=bool | None)
    DETACH = _r("place", T, 1, "the same value, where gradients stop")
    COPY = _r("place", T, 1, "the same value on another device", attribute=str)
    SINK = _r("place", ALL, (0, MANY), "several values wanted together")
    REPEAT = _r("control", T, (1, MANY), "one result of a loop, whose body is a SINK over PARAMs")
    CHOOSE = _r("control", T, (1, MANY),
        "one result of one of two bodies; the first source says whether it is the first's")
    CALL = _r("control", T, (1, MANY),
        "one result of a kernel of text; a SINK over PARAMs computes the same")

    # kernel level
    INDEX = _r("memory", KL, (1, MANY), "one element of an array, by one index per axis")
    GUARD = _r("memory", KL, 2, "value where cond, else 0; value is not evaluated elsewhere")
    STAGE = _r("memory", K, (1, MANY), "keep value over ranges in a space")
    OUT = _r("memory", K, (2, MANY), "param, value, *indices: write")
    KERNEL = _r("structure", KL, (1, MANY), "one launch")

    # loop level: statements (an effect executes where it stands, children in order)
    SEQ = _r("statement", L, (0, MANY), "statements in order")
    LOOP = _r("statement", L, 2, "range, body: the body once per value of the range")
    IF = _r("statement", L, 2, "cond, body")
    ROLE = _r("statement", L, 1, "a body that some warps run")
    ALLOC = _r("memory", LL, (0, MANY), "a buffer in a space; symbolic extents are sources")
    LOAD = _r("memory", L, (1, MANY), "buffer, *indices: read now")
    STORE = _r("statement", L, (2, MANY), "buffer, value, *indices: write")
    COPYTO = _r("statement", L, (2, MANY),
        "buffer, value, *indices[, pipe, counter]: an engine stores a tile, later; or, of a box, "
        "buffer, param, slot, place, *corner")
    PIPE = _r("memory", L, (1, MANY), "the ring protocol of buffers")
    ACQUIRE = _r("statement", L, 2,
        "pipe, counter: wait until the slot is empty, then announce what will arrive")
    COMMIT = _r("statement", L, (0, 2),
        "pipe, counter: nothing more is put in, full on arrival; of none, copies are a group")
    WAIT = _r("statement", L, 2, "pipe, counter: wait until the slot is full")
    RELEASE = _r("statement", L, 2, "pipe, counter: the slot may be reused")
    DRAIN = _r("statement", L, 2, "pipe, count: wait until every slot was released")
    MMA = _r("statement", L, (7, 9),
        "acc, a, b, keep, m, n, k[, outer ks]: issue acc = (acc if keep) + a @ b.T as one group")
    DONE = _r("statement", L, 0, "wait until at most n groups are in flight")
    BARRIER = _r("statement", L, 0, "all threads of a scope meet")
    FENCE = _r("statement", L, 0, "order accesses between proxies")
    CONVERT = _r("memory", L, 1, "the same tile under another layout")
    BITFIELD = _r("memory", KLL, 2,
        "word, bit offset: some bits of an unsigned word", attribute=int)

    WORDS = _r("memory", K, 2,
        "the products of the numbers in two words, added up, as the instruction of "
        "that name does", attribute=str)

    # linear level: an instruction is a node in PROGRAM's sources, executed where it stands; its
    # value, of shape (), (lanes,) or of a tile (rows, lanes), is that of its latest execution
    REG = _r("leaf", LIN, 0, "a mutable register, read when used")
    SET = _r("instruction", LIN, 2, "register, value: write it; a CONST to every lane")
    READ = _r("memory", LIN, 1, "a copy of a register as it is now")
    VLOAD = _r("memory", LIN, (2, 3),
        "PARAM or ALLOC, offset (one per lane: a gather), mask: read; 0 where the mask is false")
    VSTORE = _r("instruction", LIN, (3, 4),
        "PARAM or ALLOC, offset, value, mask: write lanes, with a mask contiguous ones")
    PREFETCH = _r("instruction", LIN, 2,
        "PARAM, offset: bring the lines of these elements near, if there is memory")
    TURN = _r("instruction", LIN, (3, MANY),
        "PARAM or ALLOC, offset, vectors: write a tile by its columns: lanes, stride apart, of "
        "all rows, in order or as the access has them")
    TURNED = _r("instruction", LIN, 4,
        "PARAM or ALLOC, offset, and those of the source: copy a tile, its rows as columns")
    SPLAT = _r("memory", LIN, 1, "a scalar in every lane", attribute=int)
    ROWS = _r("memory", LIN, 1, "a vector in every row of a tile", attribute=int)
    ROW = _r("memory", LIN, 1, "one row of a tile", attribute=int)
    LANES = _r("memory", LIN, 0, "0, 1, ..., lanes-1", attribute=int)
    EXTRACT = _r("memory", LIN, 1, "one lane of a vector", attribute=int)
    PART = _r("memory", LIN, 1, "lanes first, count of a vector", attribute=tuple[int])
    JOIN = _r("memory", LIN, (2, MANY), "scalars as the lanes of a vector")
    ACROSS = _r("memory", LIN, 1,
        "the lanes of a vector folded by a commutative primitive monoid, by halves")
    ANY = _r("memory", LIN, 1, "whether any lane of a vector of bools is true")
    BEGIN = _r("instruction", LIN, (2, 3),
        "from, to: the counter of a loop up to END; of the pool loop by chunks, and"
        " third, its end", attribute=int)
    TEST = _r("instruction", LIN, 1, "runs up to END if the condition holds")
    END = _r("instruction", LIN, 0, "closes the innermost BEGIN or TEST")
    MACHINE = _r("instruction", LIN, (0, MANY), "a target instruction")
    PROGRAM = _r("structure", LIN, (0, MANY), "instructions in order")


Ops = namespace(_Table)


def all_ops() -> tuple[Op, ...]:
    """Every row, in table order."""
    return tuple(row for row in vars(Ops).values() if isinstance(row, Op))


def mask_of(ops: Iterable[Op]) -> int:
    """The bits of some ops, as `Node.mask` has them; an op named twice counts once."""
    mask = 0
    for op in ops:
        mask |= op.bit
    return mask


def _row_by_name(name: str) -> Op:
    row: Op = getattr(Ops, name)
    return row


UNARY = frozenset(row for row in all_ops() if row.family == "unary")
BINARY = frozenset(row for row in all_ops() if row.family == "binary")
TERNARY = frozenset(row for row in all_ops() if row.family == "ternary")
# What GPUs make of an element of memory and a value in one step, if both are integers.
ATOMIC = frozenset((Ops.ADD, Ops.MAX, Ops.MIN))
# Sums of the products of an unsigned byte each and a number of one word or of two.
WORD_PRODUCTS = (Ops.DOT4, Ops.DOT2LO, Ops.DOT2HI)
COMPARE = frozenset((Ops.CMPLT, Ops.CMPLE, Ops.CMPEQ, Ops.CMPNE))
ALU = UNARY | BINARY | TERNARY
ELEMENTWISE = ALU | frozenset((Ops.CAST, Ops.BITCAST, Ops.LOOKUP))
MOVEMENT = frozenset(row for row in all_ops() if row.family == "movement")
STATEMENTS = frozenset(row for row in all_ops() if row.family == "statement")
CONTROL = frozenset((Ops.REPEAT, Ops.CHOOSE, Ops.CALL))
CONTROL_MASK = mask_of(CONTROL)
# Nodes of these alone are spelled out wherever they stand: an equal constant that somebody computed
# is no reason to read memory, and what was computed before must not change a graph's kernels.
SPELLED = mask_of((Ops.CONST, Ops.IOTA, Ops.CAST, Ops.DETACH, *MOVEMENT))
# So are those of these alone, which constant folding makes constants again.
FOLDED = mask_of((Ops.CONST, Ops.DETACH, *ELEMENTWISE, *MOVEMENT))


def form_fault(op: Op, sources: int, arg: object) -> str | None:
    """What the op's row says against this number of sources or this attribute."""
    least, most = op.arity
    if not least <= sources <= most:
        wanted = str(least) if least == most else f"at least {least}"
        return f"{op.name} has {sources} sources, wanted {wanted}"
    return _attribute_fault(op, arg)


def _attribute_fault(op: Op, arg: object) -> str | None:
    """The attribute's type must be one of those in the op's cell, exactly."""
    cell = ATTRIBUTES.get(op, NoneType)
    if get_origin(cell) is tuple:
        (item,) = get_args(cell)
        fits = type(arg) is tuple and all(type(one) is item for one in arg)
    else:
        fits = type(arg) in (get_args(cell) or (cell,))
    if fits:
        return None
    wanted = cell.__name__ if isinstance(cell, type) else cell
    return f"{op.name} carries a {type(arg).__name__}, wanted {wanted}"
