"""Schedules: how a kernel runs, as a value that prints, parses, hashes and is mutated.

A schedule is a tuple of steps that name axes, never positions. The axes of a fresh kernel are
called by their own label where that is unique, else `i<id>` (data) or `r<id>` (reduced); steps
make further names. What a step may do to a kernel is checked when it is applied (`axes.py`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from math import prod
from types import MappingProxyType
from typing import Any, TypeVar

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.axes import THREAD_BINDS
from baregrad.kernel.language.fields import has_typed_fields

CPU_UNITS = ("loop", "pool", "vector", "unroll")
_NONE: MappingProxyType[str, object] = MappingProxyType({})
GPU_UNITS = ("loop", "grid", "cluster", *THREAD_BINDS, "vector", "unroll")


def _spelled(word: str, positional: Iterable[object], named: Mapping[str, object] = _NONE) -> str:
    """A call of a word of the language."""
    arguments = [*map(repr, positional), *[f"{key}={value!r}" for key, value in named.items()]]
    return f"{word}({', '.join(arguments)})"


def _changed(step: Step, *names: str) -> dict[str, Any]:
    """What a step has in other fields than their defaults."""
    defaults = {field.name: field.default for field in fields(step) if field.name in names}
    values = {name: getattr(step, name) for name in names}
    return {name: value for name, value in values.items() if value != defaults[name]}


@dataclass(frozen=True, slots=True)
class Collapse:
    """Neighbouring axes, outermost first, run as one axis `name`."""

    axes: tuple[str, ...]
    name: str

    def __str__(self) -> str:
        return _spelled("collapse", self.axes, {"name": self.name})


@dataclass(frozen=True, slots=True)
class Split:
    """One axis becomes nested parts, outermost first; the first part takes what is left.

    `parts` holds (name, size), the first with size 0. What does not fill a whole inner tile is the
    axis `tail`, run after the rest; or, `masked`, one more tile in which what lies past the extent
    does nothing. Without either the sizes must divide the extent.
    """

    axis: str
    parts: tuple[tuple[str, int], ...]
    tail: str = ""
    masked: bool = False

    @property
    def tile(self) -> int:
        """The product of the inner sizes."""
        return prod([size for _, size in self.parts[1:]])

    def __str__(self) -> str:
        named = {"outer": self.parts[0][0], **dict(self.parts[1:])}
        return _spelled("split", (self.axis,), named | _changed(self, "tail", "masked"))


@dataclass(frozen=True, slots=True)
class Reorder:
    """The named axes run in this order, outermost first; they share out the places they had."""

    axes: tuple[str, ...]

    def __str__(self) -> str:
        return _spelled("reorder", self.axes)


@dataclass(frozen=True, slots=True)
class Bind:
    """An axis runs on a unit.

    Units are `loop`, `vector` and `unroll`, on CPUs `pool`, on GPUs `grid`, `cluster`, `thread`,
    `thread_y` and `thread_z`. On the pool a chunk is `grain` iterations, the last one perhaps
    fewer. On the grid each iteration is a block; those of the axes bound to threads are the threads
    of each. Blocks along a `cluster` run together: boxes that a pipeline copies, and that are the
    same for all of them, each copies a part of, for all.
    """

    axis: str
    unit: str
    grain: int = 1

    def __str__(self) -> str:
        return _spelled("bind", (self.axis, self.unit), _changed(self, "grain"))


@dataclass(frozen=True, slots=True)
class StageInput:
    """Elements of the input `param` are copied to scratch memory and read there.

    The copy is laid out over `axes`, outermost first. It is made anew for every value of the other
    axes that the input's elements depend on, outside the loops that they do not depend on. With
    `lanes`, it is made that number of elements at a time along the axis on which the input's
    elements are adjacent, which is padded to whole vectors; without, as its axes are bound.

    In the shared memory of a GPU's block a row is the last of `axes`, as many as reach all banks
    (128 bytes) but not the first. Between rows are `pad` elements; or chunk c of 16 bytes of row r
    lies where chunk c ^ r would, in the lowest `swizzle` bits of both.

    On a CPU, vectors that are read of the copy ask for its line that lies `ahead` bytes further on.
    """

    param: int
    axes: tuple[str, ...]
    lanes: int = 0
    pad: int | None = None
    swizzle: int = 0
    ahead: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The axes that the step names, each member of a sum by itself."""
        return tuple([name for axis in self.axes for name in axis.split("+")])

    def __str__(self) -> str:
        how = _changed(self, "lanes", "pad", "swizzle", "ahead")
        return _spelled("stage_input", (self.param, *self.axes), how)


def part_of_axis(part: str) -> tuple[str, str, int]:
    """The axis that `a`, `a/32` or `a%32` means, the sign between, and 32; "" and 0 for `a`."""
    for sign in "/%":
        name, found, size = part.partition(sign)
        if found:
            return name, sign, int(size)
    return part, "", 0


@dataclass(frozen=True, slots=True)
class StageFactor:
    """A factor of a kernel's only sum of products is kept in shared memory and read there.

    `place` is 0 or 1, in the order of the product. What is kept over `axes`, outermost first, is
    the value ahead of the cast that widens it: the elements of an input, or what is computed of
    several. Otherwise as `StageInput`; what is past the end of a masked axis is 0. An axis may be
    there in two parts, `a/32` and, further in, `a%32`: as many of these as hold all of it, of which
    the last has what comes next of the axis that `a` is a part of.
    """

    place: int
    axes: tuple[str, ...]
    pad: int | None = None
    swizzle: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The axes that the step names, each once."""
        return tuple(dict.fromkeys([name for name, _, _ in map(part_of_axis, self.axes)]))

    def __str__(self) -> str:
        return _spelled("stage_factor", (self.place, *self.axes), _changed(self, "pad", "swizzle"))


@dataclass(frozen=True, slots=True)
class StageReduce:
    """Reductions over `axis` keep their accumulators for all of `axes` in scratch memory.

    The loops over `axis`, and over reduced axes outside it, then stand outside the loops over
    `axes`; reduced axes inside it are reduced in registers and their result is added.
    """

    axis: str
    axes: tuple[str, ...]

    def __str__(self) -> str:
        return _spelled("stage_reduce", (self.axis, *self.axes))


@dataclass(frozen=True, slots=True)
class StreamOutput:
    """Whole vectors that are written to the output `param` bypass the caches: non-temporal stores.

    That is worth it where the output is larger than the caches and its lines are not written one
    after the other: else each line is read before it is written.
    """

    param: int

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that the step speaks of: none."""
        return ()

    def __str__(self) -> str:
        return _spelled("stream_output", (self.param,))


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Lines of the array `param` are asked for `nbytes` bytes before they are read or written.

    Where a kernel reads the array in several loops it is the last of them that asks: what is next
    comes while this is worked on. With `loops` they take shares: each iteration of one asks for so
    many bytes, the first loop for those that come first, and so on. The bytes are counted from
    where the array is read when all these loops begin.
    """

    param: int
    nbytes: int
    loops: tuple[tuple[str, int], ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that the step speaks of: the loops that take shares."""
        return tuple(name for name, _ in self.loops)

    def __str__(self) -> str:
        return _spelled("prefetch", (self.param, self.nbytes), dict(self.loops))


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The copies that each iteration of the loop `axis` makes are begun ahead of their iteration.

    A copy then has `depth` slots, taken in turns: while one is read the next are on their way. With
    the engine `lanes` the threads hold what comes in registers and store it once the iteration is
    computed; with `async` it goes from memory to the slot by itself. A factor that is computed, or
    whose elements lie in no whole words, always comes through registers.

    On a CPU, with the engine `stores`: what an iteration stores in its last loop is stored in the
    first loop of the next iteration.
    """

    axis: str
    depth: int = 2
    engine: str = "lanes"

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that the step speaks of."""
        return (self.axis,)

    def __str__(self) -> str:
        return _spelled("pipeline", (self.axis,), {"depth": self.depth, **_changed(self, "engine")})


@dataclass(frozen=True, slots=True)
class Persist:
    """The grid has `blocks` blocks at most: each does its own iterations, every so many of them.

    What a pipeline copies ahead of its loop it then copies for the iteration that is next, before
    the results of this one are stored. Of several `teams` of threads in a block each does every so
    many of its iterations: one stores results while another one multiplies. With `cut` the
    iterations of the last round are cut along what is summed, so that all blocks sum as long: parts
    of one are added up in their order by the block that has the first.
    """

    blocks: int
    teams: int = 1
    cut: bool = False

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that the step speaks of: none."""
        return ()

    def __str__(self) -> str:
        return _spelled("persist", (self.blocks,), _changed(self, "teams", "cut"))


@dataclass(frozen=True, slots=True)
class Roles:
    """Some warps of a block do nothing but copy the boxes of a pipeline; all others do the rest.

    `copies` and `products` are those: the number of their warps, and the registers that each of
    their threads has once registers have changed hands (`setmaxnreg`). These are 0 for both where
    threads keep what they had from the start. Those who multiply are the threads of all teams.
    """

    copies: tuple[int, int]
    products: tuple[int, int]

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that the step speaks of: none."""
        return ()

    def __str__(self) -> str:
        both = {"copies": self.copies, "products": self.products}
        is_bare = {name: type(one) is tuple and one[1:] == (0,) for name, one in both.items()}
        shown = {name: one[0] if is_bare[name] else one for name, one in both.items()}
        return _spelled("roles", (), shown)


@dataclass(frozen=True, slots=True)
class StageOutput:
    """Results for the output `param` go through shared memory and are stored beside the threads.

    So a block of a grid that persists computes its next tile while those of this one are stored.
    They are those of products by groups of four warps.
    """

    param: int

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that the step speaks of: none."""
        return ()

    def __str__(self) -> str:
        return _spelled("stage_output", (self.param,))


@dataclass(frozen=True, slots=True)
class Tensorize:
    """An instruction of the machine does all steps of some axes at once.

    `dot4` adds the products of four bytes to a lane of int32, `dot2` those of two bfloat16 to a
    lane of float32: their axis is the summed one. `mma` is a warp's matrix unit: 16 rows, 8
    columns, and 8 or 16 steps of a sum of products of 16-bit floats, in float32; the 32 lanes of
    the warp are the block's first dimension. `wgmma` is that of four warps, of 64 rows, 8 columns
    and 16 steps; tiles of columns beside each other, unrolled, are one instruction, and the steps
    of a panel one group. `amx` is a CPU core's: 16 or 32 rows, as many
    columns, and of what is summed any number of steps of 16 words of two bfloat16 or four bytes.
    """

    axes: tuple[str, ...]
    instruction: str

    @property
    def axis(self) -> str:
        """The axis that is summed: the last one."""
        return self.axes[-1]

    def __str__(self) -> str:
        return _spelled("tensorize", self.axes, {"instruction": self.instruction})


@dataclass(frozen=True, slots=True)
class StreamTiles:
    """The whole schedule of a kernel that is one stream over keys, on a GPU's matrix units.

    A block has `warps` warps, each with `tiles` tiles of 16 rows; keys pass it `keys` at a time.
    With the instruction `wgmma` it has groups of four warps in their place, and tiles of 64 rows.
    Scores are made `ahead` tiles of keys before their powers are multiplied: 0 or 1. Registers of a
    thread are held to what `resident` blocks of a multiprocessor have; 0: as the renderer likes.
    Blocks of the same rows follow each other for `beside` members of the batch. `shares` warps have
    the same rows, and each has `keys` of the keys that pass at a time.
    """

    warps: int
    tiles: int
    keys: int
    instruction: str = "mma"
    ahead: int = 0
    resident: int = 0
    beside: int = 1
    shares: int = 1

    def __str__(self) -> str:
        how = _changed(self, "instruction", "ahead", "resident", "beside", "shares")
        return _spelled("stream_tiles", (self.warps, self.tiles, self.keys), how)


Staging = StageInput | StageFactor
_Copy = StageInput | StageFactor | StageReduce | StreamOutput | Prefetch | Pipeline
_Block = Persist | Roles | StageOutput
Step = Collapse | Split | Reorder | Bind | _Copy | _Block | Tensorize | StreamTiles
_S = TypeVar("_S", bound=Step)
DOT_INSTRUCTIONS = ("dot4", "dot2")
INSTRUCTIONS = (*DOT_INSTRUCTIONS, "mma", "wgmma", "amx")


def illegal(step: Step | None, why: str = "", **details: Any) -> ScheduleError:
    """What is said of a step that is not legal, and why. details: as those of ScheduleError."""
    return ScheduleError(f"{step} is not legal{': ' if why else ''}{why}", **details)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps in the order in which they are applied."""

    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        if type(self.steps) is not tuple:
            raise ScheduleError(
                "the steps of a schedule are a tuple",
                found=repr(self.steps), wanted="Schedule((split(...), ...))",
            )
        for step in self.steps:
            if not isinstance(step, Step):
                raise ScheduleError("not a step", found=repr(step), wanted=_words())

    def __str__(self) -> str:
        return f"Schedule({', '.join(map(str, self.steps))})"

    def then(self, *steps: Step) -> Schedule:
        """This schedule followed by more steps."""
        return Schedule(self.steps + steps)


# --- the words of the language ------------------------------------------------------------------


def split(axis: str, *, outer: str, tail: str = "", masked: bool = False, **inner: int) -> Split:
    """`axis` becomes `outer` and the inner axes given as name=size, outermost first."""
    return _checked(Split(axis, ((outer, 0), *inner.items()), tail, masked))


def collapse(*axes: str, name: str) -> Collapse:
    """Neighbouring axes, outermost first, become the one axis `name`."""
    return _checked(Collapse(axes, name))


def reorder(*axes: str) -> Reorder:
    """The axes run in this order, outermost first."""
    return _checked(Reorder(axes))


def bind(axis: str, unit: str, grain: int = 1) -> Bind:
    """The axis runs on `unit`; on the pool, `grain` iterations are one chunk."""
    return _checked(Bind(axis, unit, grain))


def vectorise(axis: str) -> Bind:
    """The axis lies across the lanes of vector registers."""
    return bind(axis, "vector")


def unroll(axis: str) -> Bind:
    """The axis is spread over registers."""
    return bind(axis, "unroll")


def parallelise(axis: str, grain: int = 1) -> Bind:
    """The axis is shared out among threads, `grain` iterations at a time."""
    return bind(axis, "pool", grain)


def stage_input(
    param: int, *axes: str, lanes: int = 0, pad: int | None = None, swizzle: int = 0, ahead: int = 0
) -> StageInput:
    """The input is copied to nearer memory laid out over `axes`, `lanes` elements at a time.

    pad: elements between rows. swizzle: bits of chunks' numbers that are mixed with rows' numbers.
    ahead: bytes from what is read of the copy to the line that is asked for.
    """
    return _checked(StageInput(param, axes, lanes, pad, swizzle, ahead))


def stage_factor(
    place: int, *axes: str, pad: int | None = None, swizzle: int = 0
) -> StageFactor:
    """The factor at this place of a product is kept in shared memory, laid out over `axes`.

    pad, swizzle: as of `stage_input`.
    """
    return _checked(StageFactor(place, axes, pad, swizzle))


def stage_reduce(axis: str, *axes: str) -> StageReduce:
    """Accumulators for all of `axes` are kept in scratch memory while `axis` runs outside."""
    return _checked(StageReduce(axis, axes))


def stream_output(param: int) -> StreamOutput:
    """Stores to the output bypass the caches."""
    return _checked(StreamOutput(param))


def prefetch(param: int, nbytes: int, **loops: int) -> Prefetch:
    """Lines of the array are prefetched `nbytes` bytes ahead, by `loops` these bytes a step."""
    return _checked(Prefetch(param, nbytes, tuple(loops.items())))


def pipeline(axis: str, depth: int = 2, engine: str = "lanes") -> Pipeline:
    """What each iteration of the loop copies is begun `depth` - 1 iterations before it."""
    return _checked(Pipeline(axis, depth, engine))


def persist(blocks: int, teams: int = 1, cut: bool = False) -> Persist:
    """The grid has so many blocks at most, each of which does several iterations.

    teams: sets of threads in a block, which take its iterations in turns. cut: whether the last
    ones are cut along what is summed, so that all blocks sum as long.
    """
    return _checked(Persist(blocks, teams, cut))


def roles(*, copies: int | tuple[int, int], products: int | tuple[int, int]) -> Roles:
    """So many warps copy boxes, and so many do all else: each a number, or one with registers."""
    whole = [(each, 0) if type(each) is int else each for each in (copies, products)]
    return _checked(Roles(*whole))  # type: ignore[arg-type]


def stage_output(param: int) -> StageOutput:
    """Results go through shared memory, and runs of them are stored beside the threads."""
    return _checked(StageOutput(param))


def tensorize(*axes: str, instruction: str) -> Tensorize:
    """An instruction of the machine does all steps of the axes: one of INSTRUCTIONS."""
    return _checked(Tensorize(axes, instruction))


def stream_tiles(
    warps: int, tiles: int, keys: int, instruction: str = "mma", ahead: int = 0,
    resident: int = 0, beside: int = 1, shares: int = 1,
) -> StreamTiles:
    """Tiles of keys pass a block's rows: `warps` warps of `tiles` times 16 rows each.

    Or, with the instruction `wgmma`, groups of four warps of `tiles` times 64 rows. ahead: by how
    many tiles scores are made early. resident: blocks of a multiprocessor, which share registers.
    beside: members of the batch whose blocks of the same rows follow each other. shares: warps that
    have the same rows and share out the keys that pass: `keys` for each at a time.
    """
    return _checked(StreamTiles(warps, tiles, keys, instruction, ahead, resident, beside, shares))


_WORDS: MappingProxyType[str, Callable[..., Step]] = MappingProxyType({
    word.__name__: word for word in (
        split, collapse, reorder, bind, vectorise, unroll, parallelise, stage_input, stage_factor,
        stage_reduce, stream_output, prefetch, pipeline, persist, roles, stage_output, tensorize,
        stream_tiles,
    )
})


def parse_schedule(text: str) -> Schedule:
    """The schedule that `text` spells, as `str(schedule)` writes it.

    Only calls of the words above with literal arguments are understood; nothing is executed.
    Raises ScheduleError for anything else.
    """
    if not isinstance(text, str):
        raise ScheduleError(
            "a schedule is parsed from text", found=repr(text), wanted="what str(schedule) wrote"
        )
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return _parsed(tree, text)
    except SyntaxError as error:
        raise ScheduleError(f"a schedule does not parse ({error.msg})", found=text) from error
    except (MemoryError, RecursionError, UnicodeError) as error:
        # Python's parser says so of what is nested too deep, and of what is no text at all.
        raise ScheduleError("a schedule does not parse", found=repr(text[:100])) from error


def _parsed(tree: ast.expr, text: str) -> Schedule:
    if not isinstance(tree, ast.Call) or _called(tree) != "Schedule" or tree.keywords:
        raise ScheduleError("not a schedule", found=text, wanted="Schedule(split(...), ...)")
    return Schedule(tuple(_parse_step(item) for item in tree.args))


def _words() -> str:
    return ", ".join(sorted(_WORDS))


def _called(tree: ast.Call) -> str:
    return tree.func.id if isinstance(tree.func, ast.Name) else ""


def _parse_step(tree: ast.expr) -> Step:
    found = ast.unparse(tree)
    if not isinstance(tree, ast.Call) or _called(tree) not in _WORDS:
        raise ScheduleError("not a step", found=found, wanted=_words())
    names = [item.arg for item in tree.keywords]
    if None in names or len(set(names)) < len(names):
        raise ScheduleError(
            "a step has wrong arguments", found=found, wanted="each argument once, by its name"
        )
    try:
        positional = [ast.literal_eval(item) for item in tree.args]
        named = {str(item.arg): ast.literal_eval(item.value) for item in tree.keywords}
        return _WORDS[_called(tree)](*positional, **named)
    except (ValueError, TypeError) as error:
        raise ScheduleError(f"a step has wrong arguments ({error})", found=found) from error


def _checked(step: _S) -> _S:
    """Return a step whose arguments have the types that it is made of. Raises ScheduleError."""
    known = getattr(step, "instruction", INSTRUCTIONS[0]) in INSTRUCTIONS
    if not has_typed_fields(step) or not known or (isinstance(step, Tensorize) and not step.axes):
        raise ScheduleError("a step has arguments of the wrong type", found=str(step))
    return step
