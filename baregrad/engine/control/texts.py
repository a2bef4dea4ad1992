"""Kernels whose text somebody wrote, in C, CUDA C or PTX: compiled, and run among other work."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from baregrad.base.bits import round_up
from baregrad.base.errors import DeviceError, DTypeError
from baregrad.base.options import is_gpu
from baregrad.dtypes import dtypes
from baregrad.engine.canonical import Canonical
from baregrad.engine.control.works import NOTHING, BodyWork, Places, Player, part_of, plain_work
from baregrad.ir.analysis.liveness import ALIGNMENT
from baregrad.ir.core.attrs import TextKernel
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.program import CPU_OBJECT, CUBIN, GpuLaunch, ParamSpec, Program
from baregrad.runtime.commands import Kernel, Operand
from baregrad.schedule.memory import nbytes_of

_C_TYPES = MappingProxyType({
    "float32": "float", "float64": "double", "int8": "int8_t", "int16": "int16_t",
    "int32": "int32_t", "int64": "int64_t", "uint8": "uint8_t", "uint16": "uint16_t",
    "uint32": "uint32_t", "uint64": "uint64_t", "bool": "uint8_t",
})  # fmt: skip


def call_work(backend: Any, results: Sequence[Node]) -> BodyWork:
    """The work of a kernel of text; where nothing is compiled, that of its reference."""
    if backend.compiles:
        return CallWork(backend, results)
    roots = [results[0].arg.body.src[node.arg.part] for node in results]
    return plain_work(backend, Node(Ops.SINK, dtypes.token, tuple(roots)))


class CallWork:
    """One launch of a kernel of text. What nobody wants of it is written to memory beside."""

    is_fixed = True
    commands = 1
    over: frozenset[int] = frozenset()

    def __init__(self, backend: Any, results: Sequence[Node]) -> None:
        form: TextKernel = results[0].arg
        self.count = len(results)
        self.kernel = loaded(backend, form, results[0].src)
        self.leaves: list[tuple[Canonical, Any]] = []
        self._taken = form.taken
        self._parts = [node.arg.part for node in results]
        self._sizes = [_nbytes(root) for root in form.body.src]

    def scratch(self, variables: Mapping[str, int]) -> int:
        """The bytes of results that nobody wants."""
        sizes = [size for part, size in enumerate(self._sizes) if part not in self._parts]
        return sum(round_up(size, ALIGNMENT) for size in sizes)

    def passed(self, part: int) -> int | None:
        """Every result has memory of its own."""
        return None

    def play(
        self, player: Player, params: Places, wanted: Sequence[Operand | None],
        scratch: Operand | None, over: Collection[int] = NOTHING,
    ) -> list[Operand]:
        """Launch it once."""
        by_part: dict[int, Any] = dict(zip(self._parts, wanted, strict=True))
        made: list[Operand] = []
        at = 0
        for part, size in enumerate(self._sizes):
            place = by_part.get(part)
            if place is None:
                assert scratch is not None
                place = part_of(scratch, at, size)
                at += round_up(size, ALIGNMENT)
            made.append(place)
        player.run(self.kernel, [*made, *params[: self._taken]])
        return [by_part[part] for part in self._parts]


def loaded(backend: Any, form: TextKernel, sources: Sequence[Node]) -> Kernel:
    """The kernel on a device, compiled the first time.

    Raises DeviceError for a device that does not run the language, DTypeError for what C has no
    type for, and CompileError for a text that does not compile.
    """
    on_cpu, name = form.language == "c", backend.name
    if not (name.partition(":")[0] == "CPU" if on_cpu else is_gpu(name)):
        raise DeviceError(
            f"{form.entry} is written in {form.language}", found=f"tensors on {name}",
            wanted="tensors on the CPU" if on_cpu else "tensors on an NVIDIA GPU",
        )
    arrays = [*form.body.src, *sources[: form.taken]]
    kinds = tuple([(one.dtype, one.shape) for one in arrays])
    key = (*form._replace(body=None, part=0, shape=()), kinds)  # type: ignore[arg-type]
    found = backend.texts.get(key)
    if found is None:
        found = backend.texts[key] = backend.device.load(_program(backend, form, arrays))
    kernel: Kernel = found
    return kernel


def _program(backend: Any, form: TextKernel, arrays: Sequence[Node]) -> Program:
    params = tuple([
        ParamSpec(name, one.dtype.name, _nbytes(one), "w" if place < len(form.body.src) else "r")
        for place, (name, one) in enumerate(zip(form.names, arrays, strict=True))
    ])
    if form.language == "c":
        from baregrad.assemble.cc import CAssembler

        source, entry = _c_text(form, arrays)
        code = CAssembler(None).assemble(source)
        return Program(form.entry, CPU_OBJECT, code, entry, params, source=source)
    source, assembler = form.text, backend.compiler.assembler
    if form.language == "cuda":
        from baregrad.assemble.nvrtc import CudaAssembler

        assembler = CudaAssembler(backend.device.architecture)
        source = "\n".join((*_constants(form), form.text))
    launch = GpuLaunch(_three(form.grid), _three(form.block), shared_nbytes=form.shared_nbytes)
    return Program(
        form.entry, CUBIN, assembler.assemble(source), form.entry, params, source=source,
        launch=launch,
    )


def _c_text(form: TextKernel, arrays: Sequence[Node]) -> tuple[str, str]:
    """The author's text with what calls it as kernels of the CPU are called; and who that is."""
    arguments = []
    for place, (name, one) in enumerate(zip(form.names, arrays, strict=True)):
        if one.dtype.name not in _C_TYPES:
            raise DTypeError(f"C has no type for {name}", found=one.dtype,
                             wanted=", ".join(_C_TYPES))
        const = "const " if place >= len(form.body.src) else ""
        arguments.append(f"({const}{_C_TYPES[one.dtype.name]} *)buffers[{place}]")
    entry = f"baregrad_{form.entry}"
    call = (
        f"void {entry}(void **buffers, const int64_t *variables, int64_t chunk_begin, "
        "int64_t chunk_end, void *scratch) {\n"
        f"  {form.entry}({', '.join(arguments)});\n}}\n"
    )
    return "\n".join(("#include <stdint.h>", *_constants(form), form.text, call)), entry


def _constants(form: TextKernel) -> list[str]:
    """The names of extents as constants of C."""
    return [f"enum {{ {name} = {value} }};" for name, value in form.sizes]


def _three(sizes: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = sizes
    return x, y, z


def _nbytes(value: Node) -> int:
    """The bytes of an array whose extents are numbers."""
    nbytes = nbytes_of(value)
    assert isinstance(nbytes, int)
    return nbytes
