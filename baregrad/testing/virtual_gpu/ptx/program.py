"""Modules and kernels ready to run, and the launch.

`PtxModule.parse(text).kernel("saxpy").launch(memory, (4,), (256,), [n, a, x, y])` changes `memory`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from baregrad.base.bits import round_up
from baregrad.base.errors import ArgumentError
from baregrad.testing.virtual_gpu.ptx.block import WARP, Block, PreparedInstruction, PreparedKernel
from baregrad.testing.virtual_gpu.ptx.cluster import BlockCluster
from baregrad.testing.virtual_gpu.ptx.memory import MODULE_WINDOW, PtxMemory
from baregrad.testing.virtual_gpu.ptx.operands import Decoder, guarded
from baregrad.testing.virtual_gpu.ptx.ops import floats
from baregrad.testing.virtual_gpu.ptx.ops.access import ACCESSES, nothing
from baregrad.testing.virtual_gpu.ptx.ops.convert import CONVERSIONS
from baregrad.testing.virtual_gpu.ptx.ops.copies import COPY_CONTROL
from baregrad.testing.virtual_gpu.ptx.ops.flow import FLOW
from baregrad.testing.virtual_gpu.ptx.ops.integers import INTEGER
from baregrad.testing.virtual_gpu.ptx.ops.matrix import MATRIX_CONTROL
from baregrad.testing.virtual_gpu.ptx.ops.mbarrier import MBARRIER_CONTROL
from baregrad.testing.virtual_gpu.ptx.ops.warp import WARP_CONTROL, active_mask
from baregrad.testing.virtual_gpu.ptx.ops.wgmma import WARPGROUP_CONTROL
from baregrad.testing.virtual_gpu.ptx.parse import parse_module, type_nbytes
from baregrad.testing.virtual_gpu.ptx.syntax import KernelText, ModuleText, PtxInstruction, Variable
from baregrad.testing.virtual_gpu.ptx.types import TYPES

Argument = int | float | bytes | np.generic | npt.NDArray[Any]
Shape = tuple[int, int, int]
Places = dict[tuple[int, str], tuple[Variable, int]]

_FLOATS: Final = MappingProxyType({
    "add": floats.arithmetic, "sub": floats.arithmetic, "mul": floats.arithmetic,
    "fma": floats.arithmetic, "mad": floats.arithmetic, "div": floats.divide,
    "min": floats.extreme, "max": floats.extreme, "abs": floats.sign_operation,
    "neg": floats.sign_operation, "copysign": floats.copy_sign, "testp": floats.test_property,
    **dict.fromkeys(floats.APPROXIMATIONS, floats.transcendental),
})
_CONTROL: Final = MappingProxyType({
    **FLOW, **WARP_CONTROL, **MATRIX_CONTROL, **MBARRIER_CONTROL, **COPY_CONTROL,
    **WARPGROUP_CONTROL,
})
# What blocks that run as one have none of: their state is a block's or a cluster's.
_OF_ONE_BLOCK: Final = (
    "mbarrier", "wgmma", "setmaxnreg", "mapa", "getctarank", "bulk", "cluster", "shared::cluster",
    "proxy", "async::generic",
)
# How many threads run as one at most; with shared memory, of which each knows what others did.
JOINED: Final = 8192
JOINED_SHARED: Final = 512
MAX_THREADS: Final = 1024
MAX_SHARED: Final = 232_448
MAX_CLUSTER: Final = 16


class PtxKernel:
    """A kernel that can be launched: `parameter_nbytes` are those of all its parameters."""

    def __init__(self, kernel: KernelText, module_places: Places, globals_: PtxMemory) -> None:
        self.name = kernel.name
        self.parameters, self.parameter_nbytes = _lay_out(kernel.parameters, 0)
        self.program = _prepare_kernel(kernel, {**module_places, **self.parameters}, globals_)

    @property
    def shared_nbytes(self) -> int:
        """Bytes of shared memory that its variables take; dynamic memory follows them."""
        return self.program.shared_nbytes

    def launch(
        self,
        memory: PtxMemory | Mapping[int, npt.NDArray[np.uint8]],
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Argument] | bytes | npt.NDArray[np.uint8],
        shared_nbytes: int = 0,
        *,
        check_races: bool = True,
        skew: float = 0.0,
        step_limit: int = 20_000_000,
        early: bool = False,
        cluster: Sequence[int] | None = None,
    ) -> None:
        """Run the kernel over `memory`: clusters one by one, and of other blocks several as one.

        `memory` maps base addresses to arrays of uint8, which are changed. `arguments` are one
        value a parameter, or the bytes of all. `shared_nbytes` is the dynamic shared memory.
        `skew` in [-1, 1] moves approximate functions by that part of their documented error;
        `step_limit` bounds the instructions that a block may run. With `early` the kernel begins
        before the one in front has ended: it faults unless each thread runs `griddepcontrol.wait`
        before it writes to global memory, or reads what kernels wrote since the last one that began
        otherwise, and before it ends. `cluster` counts the blocks of a
        cluster, as the kernel says itself where it is None. Raises a KernelFault where the kernel
        does what it must not.
        """
        program = self.program
        if not isinstance(memory, PtxMemory):
            memory = PtxMemory(memory)
        grid_shape, block_shape = _shape(grid), _shape(block)
        total = program.shared_nbytes + shared_nbytes
        self._check(block_shape, total)
        data = self._pack(arguments)
        if not early:
            memory.recent.clear()
        unseen = len(memory.recent) if early else None
        size = self._cluster(grid_shape, cluster)
        counts = tuple(whole // part for whole, part in zip(grid_shape, size, strict=True))
        with np.errstate(all="ignore"):
            corners = list(_places(counts))
            joined = self._joined(size, block_shape, total)
            for first in range(0, len(corners), joined):
                some = corners[first : first + joined]
                threads = int(np.prod(block_shape)) * len(some)
                together = BlockCluster(size, threads, check_races)
                for inner in _places(size):
                    places = [
                        (x * size[0] + inner[0], y * size[1] + inner[1], z * size[2] + inner[2])
                        for x, y, z in some
                    ]
                    together.blocks.append(Block(
                        program, memory, grid_shape, block_shape, places, data, total, together,
                        step_limit, skew, unseen,
                    ))  # fmt: skip
                together.run()

    def _joined(self, cluster: Shape, block: Shape, shared_nbytes: int) -> int:
        """Return how many blocks run as one."""
        threads = int(np.prod(block))
        if not self.program.joins or cluster != (1, 1, 1) or threads % WARP:
            return 1
        return max((JOINED_SHARED if shared_nbytes else JOINED) // threads, 1)

    def _cluster(self, grid: Shape, given: Sequence[int] | None) -> Shape:
        """Return the blocks of a cluster; raise ArgumentError where they do not fit."""
        required = self.program.kernel.directives.get("reqnctapercluster")
        size = _shape(given or required or (1,))
        if required and size != _shape(required):
            raise ArgumentError(
                f"{self.name} requires a cluster of its own size", found=size, wanted=required
            )
        if any(count % part for count, part in zip(grid, size, strict=True)):
            raise ArgumentError(f"a grid of {grid} is not made of clusters of {size}")
        if int(np.prod(size)) > MAX_CLUSTER:
            raise ArgumentError("too large a cluster", found=size, wanted=f"at most {MAX_CLUSTER}")
        return size

    def _pack(
        self, arguments: Sequence[Argument] | bytes | npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.uint8]:
        """Return the bytes of the parameter space that hold the arguments."""
        if isinstance(arguments, bytes | np.ndarray):
            data = np.frombuffer(bytes(arguments), np.uint8).copy()
            if len(data) < self.parameter_nbytes:
                raise ArgumentError(
                    "too few bytes of parameters", found=len(data), wanted=self.parameter_nbytes
                )
            return data
        if len(arguments) != len(self.parameters):
            raise ArgumentError(
                f"{self.name} takes other arguments",
                found=len(arguments),
                wanted=len(self.parameters),
            )
        out = np.zeros(self.parameter_nbytes, np.uint8)
        for value, (variable, offset) in zip(arguments, self.parameters.values(), strict=True):
            octets = _argument_bytes(value, variable)
            out[offset : offset + len(octets)] = np.frombuffer(octets, np.uint8)
        return out

    def _check(self, block: Shape, shared_nbytes: int) -> None:
        count = block[0] * block[1] * block[2]
        if not 0 < count <= MAX_THREADS:
            raise ArgumentError("a block of impossible size", found=count, wanted="1 to 1024")
        if shared_nbytes > MAX_SHARED:
            raise ArgumentError(
                "too much shared memory", found=shared_nbytes, wanted=f"at most {MAX_SHARED}"
            )
        required = self.program.kernel.directives.get("reqntid")
        if required and count != int(np.prod(required)):
            raise ArgumentError(
                f"{self.name} requires a block of its own size", found=block, wanted=required
            )
        most = self.program.kernel.directives.get("maxntid")
        if most and count > int(np.prod(most)):
            raise ArgumentError(f"{self.name} takes smaller blocks", found=block, wanted=most)


class PtxModule:
    """A PTX file, ready to give its kernels."""

    def __init__(self, text: ModuleText) -> None:
        self.text = text
        self.globals = PtxMemory()
        self._places: Places = {}
        address = MODULE_WINDOW
        for variable in text.variables.values():
            if variable.space == "global":
                address = round_up(address, variable.align)
                data = np.zeros(max(variable.nbytes, 1), np.uint8)
                if variable.initial is not None:
                    data[: len(variable.initial)] = np.frombuffer(variable.initial, np.uint8)
                self.globals.map(address, data, f"variable {variable.name} at")
                self._places[-1, variable.name] = (variable, address)
                address += -(-len(data) // 256) * 256 + 256
            else:
                self._places[-1, variable.name] = (variable, 0)
        offset = 0
        for key, (variable, _) in list(self._places.items()):
            if variable.space == "const":
                offset = round_up(offset, variable.align)
                self._places[key] = (variable, offset)
                offset += variable.nbytes

    @classmethod
    def parse(cls, text: str) -> PtxModule:
        """Return a module from PTX text; raise CompileError where it is malformed."""
        return cls(parse_module(text))

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of its kernels."""
        return tuple(self.text.kernels)

    def kernel(self, name: str) -> PtxKernel:
        """Return a kernel; raise UnsupportedInstruction if it has what cannot be run here."""
        if name not in self.text.kernels:
            raise ArgumentError("no such kernel", found=name, wanted=", ".join(self.kernels))
        return PtxKernel(self.text.kernels[name], self._places, self.globals)


def _places(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Give the places of a shape, x fastest."""
    for place in np.ndindex(*reversed(shape)):
        yield tuple(reversed(place))


# ---- making ready -------------------------------------------------------------------------------


def _prepare_kernel(kernel: KernelText, places: Places, globals_: PtxMemory) -> PreparedKernel:
    """Lay out the kernel's variables and make its instructions ready; `places` is extended."""
    last = kernel.instructions[-1].line if kernel.instructions else 1
    # Running off the end of the body ends a thread as `ret` does.
    instructions = [*kernel.instructions, PtxInstruction(last, "}", "ret", (), (), None, 0)]
    shared_nbytes = _lay_out_shared(kernel, places)
    local_nbytes = _lay_out_local(kernel, places)
    slots = {key: (number, held) for number, (key, held) in enumerate(kernel.registers.items())}
    decoder = Decoder(kernel, slots, places)
    steps = [_prepare(decoder, one) for one in instructions]
    controls = {place for place, step in enumerate(steps) if step.control}
    return PreparedKernel(
        kernel, instructions, steps,
        leaders=frozenset({*kernel.labels.values(), *controls, *(one + 1 for one in controls)}),
        register_bits=[TYPES[held].bits for held in kernel.registers.values()],
        shared_nbytes=shared_nbytes,
        local_nbytes=local_nbytes,
        constants=_constants([one for one, _ in places.values() if one.space == "const"], places),
        globals=globals_,
        granule=_granule(instructions),
        joins=not any(
            one.opcode in _OF_ONE_BLOCK or one.has(*_OF_ONE_BLOCK) for one in instructions
        ),
    )  # fmt: skip


def _prepare(decoder: Decoder, instruction: PtxInstruction) -> PreparedInstruction:
    try:
        return _build(decoder, instruction)
    except (IndexError, KeyError, ValueError):
        # Operands or modifiers that the form does not have: another form, not known here.
        decoder.refuse(instruction, "this form of it is not known")


def _build(decoder: Decoder, instruction: PtxInstruction) -> PreparedInstruction:
    name = instruction.opcode
    if name in ("st", "red") and instruction.has("async"):
        name += ".async"
    if name in _CONTROL:
        return PreparedInstruction(_CONTROL[name](decoder, instruction), True)
    if name == "pragma":
        return PreparedInstruction(nothing(decoder, instruction), False)
    build = ACCESSES.get(name) or CONVERSIONS.get(name)
    if name == "activemask":
        build = active_mask
    if build is None and (name in _FLOATS or name in INTEGER):
        is_float = decoder.type_of(instruction).is_float
        build = (_FLOATS if is_float else INTEGER).get(name)
    if build is None:
        decoder.refuse(instruction)
    run = guarded(decoder.guard(instruction), build(decoder, instruction))
    return PreparedInstruction(run, False)


def _granule(instructions: list[PtxInstruction]) -> int:
    """Return the bytes of the smallest access that may touch shared memory."""
    smallest = 16
    for one in instructions:
        if one.opcode == "wgmma" or "tensor" in one.modifiers:
            # Their elements may be as small as bytes.
            half = one.has("f16", "bf16") or one.opcode == "cp"
            smallest = min(smallest, 2 if half else 1 if one.has("mma_async") else 16)
        if one.opcode in ("ld", "st", "atom", "red") and not one.has("global", "param", "const"):
            name = next((each for each in reversed(one.modifiers) if each in TYPES), "b8")
            smallest = min(smallest, type_nbytes(name))
        elif one.opcode in ("cp", "ldmatrix", "stmatrix"):
            smallest = min(smallest, 4)
    return smallest


def _lay_out(variables: list[Variable], offset: int) -> tuple[Places, int]:
    places: Places = {}
    for variable in variables:
        offset = round_up(offset, variable.align)
        places[0, variable.name] = (variable, offset)
        offset += variable.nbytes
    return places, offset


def _lay_out_shared(kernel: KernelText, places: Places) -> int:
    """Place shared variables, open arrays after all others; return the bytes of the others."""
    keyed = [*places.items(), *((key, (one, 0)) for key, one in kernel.variables.items())]
    shared = [(key, one) for key, (one, _) in keyed if one.space == "shared"]
    offset = 0
    for key, one in shared:
        if one.count is not None:
            offset = round_up(offset, one.align)
            places[key] = (one, offset)
            offset += one.nbytes
    align = max((one.align for _, one in shared if one.count is None), default=1)
    if any(one.count is None for _, one in shared):
        offset = round_up(offset, align)
    for key, one in shared:
        if one.count is None:
            places[key] = (one, offset)
    return offset


def _lay_out_local(kernel: KernelText, places: Places) -> int:
    """Place local variables; return the bytes of a thread."""
    offset = 0
    for key, variable in kernel.variables.items():
        if variable.space == "local":
            offset = round_up(offset, variable.align)
            places[key] = (variable, offset)
            offset += variable.nbytes
    return round_up(offset, 16)


def _constants(variables: list[Variable], places: Places) -> npt.NDArray[np.uint8]:
    found = [place for place in places.values() if place[0] in variables]
    size = max((offset + variable.nbytes for variable, offset in found), default=0)
    data = np.zeros(size, np.uint8)
    for variable, offset in found:
        if variable.initial is not None:
            data[offset : offset + len(variable.initial)] = np.frombuffer(
                variable.initial, np.uint8
            )
    return data


def _argument_bytes(value: Argument, variable: Variable) -> bytes:
    nbytes = variable.nbytes
    if isinstance(value, bytes):
        data = value
    elif isinstance(value, np.ndarray | np.generic):
        data = value.tobytes()
    elif isinstance(value, float) and variable.type in ("f32", "f64"):
        data = struct.pack("<f" if nbytes == 4 else "<d", value)
    elif isinstance(value, int) and variable.type not in ("f32", "f64"):
        data = (value & ((1 << 8 * nbytes) - 1)).to_bytes(nbytes, "little")
    else:
        raise ArgumentError(
            f"an argument that does not fit {variable.name}", found=repr(value),
            wanted=f"a .{variable.type}",
        )
    if len(data) != nbytes:
        raise ArgumentError(
            f"an argument of other size than {variable.name}", found=len(data), wanted=nbytes
        )
    return data


def _shape(axes: Sequence[int]) -> Shape:
    x, y, z = (*axes, 1, 1, 1)[:3]
    return int(x), int(y), int(z)
