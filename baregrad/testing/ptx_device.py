"""A GPU that runs PTX text in this process: tensors to results through the GPU's compiler.

Its memory is NumPy's, its programs' `source` is interpreted (`virtual_gpu/ptx_program.py`), so
races and accesses outside every buffer are reported with the line of the text. It is thousands of
times slower than a GPU and starts at once, on any machine.

    with ptx_session() as session:
        print((Tensor([1.0, 2.0]) * 2).numpy())
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from baregrad.assemble.interface import Assembler
from baregrad.base.bits import round_up
from baregrad.base.errors import CompileError, UnsupportedDevice
from baregrad.base.options import options
from baregrad.engine.backends import CompiledBackend
from baregrad.engine.compiler import Compiler
from baregrad.engine.session import Session, use_session
from baregrad.program import CUBIN, Program, evaluate
from baregrad.render import get
from baregrad.runtime.buffers import Buffer, Memory, MemoryStats, flat_bytes
from baregrad.runtime.commands import CommandList, Copy, Exec, Kernel, Operand, Slot, Timeline
from baregrad.runtime.interface import Device
from baregrad.runtime.nvidia.lists.list_plan import written_before
from baregrad.runtime.tensor_map import map_of
from baregrad.target import gpu_row
from baregrad.testing.virtual_gpu.ptx.memory import PtxMemory
from baregrad.testing.virtual_gpu.ptx.program import PtxModule

if TYPE_CHECKING:
    from baregrad.runtime.buffers import Contiguous

# Buffers have this distance between them, so that an access just past the end of one is found out.
_GAP = 4096
_FIRST = 0x7F00_0000_0000


class PtxDevice(Device):
    """Runs programs of kind "cubin" by interpreting their PTX; the host does not see its memory."""

    def __init__(self, name: str = "NV", architecture: str = "sm_90a") -> None:
        self.name = name
        self.host_visible = False
        self.architecture = architecture
        self.launches = 0
        self._memory = PtxMemory()
        self._next = _FIRST
        self._arrays: dict[int, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self._in_use = 0
        self._peak = 0

    def allocate(self, nbytes: int) -> Buffer:
        """Return a buffer whose bytes are a pattern that no program should read."""
        base = self._next
        self._next += round_up(nbytes, _GAP) + _GAP
        if nbytes:
            data = np.full(nbytes, 0xA5, np.uint8)
            self._arrays[base] = data
            self._memory.map(base, data)
        self._in_use += nbytes
        self._peak = max(self._peak, self._in_use)
        return Buffer(self, Memory(base, nbytes), 0, nbytes)

    def load(self, program: Program) -> Kernel:
        """Parse a program's PTX; raise CompileError for another kind of program."""
        if program.kind != CUBIN or program.launch is None:
            raise CompileError(f"{program.name} is no GPU's program", found=program.kind)
        return Kernel(self, program, 0, PtxModule.parse(program.source).kernel(program.entry))

    def submit(
        self,
        commands: CommandList,
        buffers: Sequence[Buffer] = (),
        variables: Mapping[str, int] | None = None,
        *,
        timed: bool = False,
    ) -> Timeline | None:
        """Run the commands one after the other, each to its end."""
        given = dict(variables or {})
        commands.check_slots(buffers)
        commands.check_variables(given)
        commands.bound = self
        # What was submitted before has ended.
        self._memory.recent.clear()
        late = written_before(commands.commands)
        for number, command in enumerate(commands.commands):
            if isinstance(command, Exec):
                self._launch(command, buffers, given, number not in late)
            elif isinstance(command, Copy):
                source = self._bytes(self._address(command.source, buffers), command.nbytes)
                target = self._bytes(self._address(command.target, buffers), command.nbytes)
                target[:] = source
            else:
                target = self._bytes(self._address(command.target, buffers), command.nbytes)
                target[:] = command.byte
        if not timed:
            return None
        labels = tuple(command.label for command in commands.commands)
        return Timeline(labels, (0,) * len(labels), (0,) * len(labels))

    def copy_in(self, buffer: Buffer, data: Contiguous) -> None:
        """Copy host bytes, as many as the buffer has, into it."""
        source = flat_bytes(data)
        self._check_transfer(buffer, source.nbytes)
        if source.nbytes:
            self._bytes(buffer.address, buffer.nbytes)[:] = source

    def copy_out(self, buffer: Buffer, data: bytearray | memoryview | np.ndarray[Any, Any]) -> None:
        """Copy the buffer's bytes to host memory of the same size."""
        target = flat_bytes(data)
        self._check_transfer(buffer, target.nbytes)
        if target.nbytes:
            target[:] = self._bytes(buffer.address, buffer.nbytes)

    def memory_stats(self) -> MemoryStats:
        """Return how much was handed out; nothing is taken back."""
        return MemoryStats(self._in_use, self._peak, self._in_use)

    def close(self) -> None:
        """Forget the memory."""
        self._arrays.clear()

    def _launch(
        self, command: Exec, buffers: Sequence[Buffer], given: Mapping[str, int], early: bool
    ) -> None:
        program = command.kernel.program
        launch = program.launch
        assert launch is not None
        values = {**given, **command.variables}
        arguments: list[Any] = [self._address(one, buffers) for one in command.buffers]
        addresses = list(arguments)
        arguments += [values[name] for name in program.variables]
        arguments += [map_of(spec, addresses[spec.param]) for spec in program.maps]
        grid = tuple(evaluate(size, values) for size in launch.grid)
        handle: Any = command.kernel.handle
        # What promises to wait has to: each is run as if the one in front were still running.
        handle.launch(
            self._memory, grid, launch.block, arguments, launch.shared_nbytes,
            early=launch.waits and early,
        )  # fmt: skip
        self.launches += 1

    @staticmethod
    def _address(operand: Operand, buffers: Sequence[Buffer]) -> int:
        if isinstance(operand, Slot):
            return buffers[operand.index].address + operand.offset
        return operand.address

    def _bytes(self, address: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        region = self._memory.find(address)
        if region is not None and address + nbytes <= region.base + region.nbytes:
            return region.data[address - region.base : address - region.base + nbytes]
        raise UnsupportedDevice("an address outside every buffer", found=hex(address))


class TextAssembler(Assembler):
    """Stands in for ptxas: a program's code is its text."""

    @property
    def version(self) -> str:
        """Nothing but the text decides."""
        return "1"

    def assemble(self, text: str) -> bytes:
        """Return the text's bytes."""
        return text.encode()

    def disassemble(self, text: str) -> str:
        """Return the text."""
        return text


@contextmanager
def ptx_session(name: str = "NV", architecture: str = "sm_90a") -> Iterator[Session]:
    """A session, in force inside the block, whose device `name` interprets PTX; the default."""
    session = Session()
    compiler = Compiler(gpu_row(architecture), get("ptx"), TextAssembler(), None)
    session.adopt(CompiledBackend(name, PtxDevice(name, architecture), compiler))
    try:
        with use_session(session), options.override(device=name):
            yield session
    finally:
        session.close()
