"""Backends: a device together with what turns a canonical program into its work.

`CPU`, `NV` and `CUDA` compile kernels and run them; `NULL` compiles and runs nothing; `REF`
evaluates the graph with the reference evaluator, at the level that `BAREGRAD_REF_LEVEL` names, and
is the oracle for all others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from baregrad.base.errors import ChangedPipeline, UnsupportedDevice
from baregrad.base.options import is_gpu, options
from baregrad.base.tracing import span
from baregrad.engine.canonical import Canonical
from baregrad.engine.compiler import Compiler
from baregrad.engine.executor import Executable
from baregrad.engine.report import REWRITES, print_graph_rewrites, print_kernels
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import CONTROL_MASK
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import Kernel
from baregrad.runtime.interface import Device

if TYPE_CHECKING:
    from baregrad.engine.kept.plans import KeptPlans
    from baregrad.schedule import Plan
    from baregrad.target.cpu import CpuTarget

# The user's file:line that first asked for what a launch of a program computes; "" if unknown.
Where = Callable[[Canonical, Any], str]


class Backend(Protocol):
    """What the session needs from a backend. `compiles`: whether making a plan takes long."""

    name: str
    device: Device
    compiles: bool

    def setting(self) -> tuple[Any, ...]:
        """Options that change what `prepare` makes."""
        ...

    def prepare(self, program: Canonical, donated: Mapping[int, int]) -> Any:
        """Plan and compile a program once."""
        ...

    def execute(self, executable: Any, program: Canonical, where: Where | None) -> list[Buffer]:
        """Run what `prepare` made over the program's inputs: one buffer per output.

        where: for reports of times.
        """
        ...

    def close(self) -> None:
        """Free the device."""
        ...


class CompiledBackend:
    """Plans, compiles and runs on a device."""

    compiles = True

    def __init__(self, name: str, device: Device, compiler: Compiler) -> None:
        self.name = name
        self.device = device
        self.compiler = compiler
        # Kernels whose text somebody wrote, by all that they are made of.
        self.texts: dict[Any, Kernel] = {}

    def setting(self) -> tuple[Any, ...]:
        """Options that change what `prepare` makes."""
        setting = (options.beam, options.beam_file, options.notes_lines)
        if not options.schedules.name:
            return setting
        from baregrad.engine.search.written import written_setting

        return (*setting, *written_setting())

    def prepare(self, program: Canonical, donated: Mapping[int, int]) -> Executable:
        """Schedule the program and compile its kernels."""
        with span("schedule"):
            # What is shown of a plan has to be planned.
            key = None if options.notes_lines else self._plans.key(program, donated)
            plan = None if key is None else self._plans.find(key)
        with self.compiler.helped(len(program.made) if plan is None else 0):
            if plan is None:
                with span("schedule"):
                    plan = self._plan(program, donated)
                    if key is not None:
                        self._plans.keep(key, plan)
            try:
                return self._loaded(plan)
            except ChangedPipeline:
                if not any(step.kernel.arg.sums for step in plan.steps):
                    raise
            # Single warps make no sums beside a product: they are kernels of their own.
            with span("schedule"):
                plan = self._plan(program, donated, has_side_sums=False)
                if key is not None:
                    self._plans.keep(key, plan)
            return self._loaded(plan)

    def _loaded(self, plan: Plan) -> Executable:
        """A plan with its kernels compiled and loaded."""
        if self.device.overlaps:
            from baregrad.engine.plans.unpacked_beside import unpacked_beside

            plan = unpacked_beside(plan, self.compiler.target)
        with span("compile"):
            return Executable(plan, self.device, self.compiler)

    @property
    def kept_environment(self) -> str:
        """Everything but the program that decides what a plan and its kernels are, as one text."""
        return self._plans.environment

    @cached_property
    def _plans(self) -> KeptPlans:
        from baregrad.engine.kept.plans import KeptPlans

        return KeptPlans(self.compiler)

    def _plan(
        self, program: Canonical, donated: Mapping[int, int], has_side_sums: bool = True
    ) -> Plan:
        from baregrad.engine.plans.fixed_numbers import with_fixed
        from baregrad.engine.plans.groups import grouped
        from baregrad.engine.plans.side_sums import with_side_sums
        from baregrad.graph import canonicalise
        from baregrad.schedule import make_plan

        # Only then it is noted where code stands, and may be asked for.
        origins: dict[Node, Node] | None = {} if options.notes_lines else None
        order = program.order()
        if options.debug >= REWRITES:
            print_graph_rewrites(program.sink, self.compiler.target)
        sink = canonicalise(program.sink, origins, self.compiler.target, order)
        plan = make_plan(sink, donate=donated, target=self.compiler.target, origins=origins)
        if self.compiler.target.kind != "gpu":
            return plan
        if has_side_sums:
            plan = with_side_sums(plan, self.compiler.target)
        plan = grouped(plan)
        return with_fixed(plan) if self.compiler.target.dependent_launch else plan

    def execute(
        self, executable: Executable, program: Canonical, where: Where | None
    ) -> list[Buffer]:
        """Run the plan over the program's inputs."""
        # What is not run takes no time.
        timed = options.debug >= 1 and self.device.name != "NULL"
        inputs = [ref.handle for ref in program.inputs]
        with span("run"):
            line_of = None if where is None else partial(where, program)
            outputs, timeline = executable.run(
                inputs, program.variables, timed=timed, where=line_of
            )
        if timed and timeline is not None and line_of is not None:
            print_kernels(executable.launches, timeline, program.variables, line_of)
        return outputs

    def close(self) -> None:
        """Close the device."""
        self.device.copier = None
        self.device.close()


class ReferenceBackend:
    """Evaluates graphs in NumPy: slow, simple, and the meaning of everything else."""

    compiles = False

    def __init__(self, name: str, device: Device) -> None:
        self.name = name
        self.device = device

    @cached_property
    def target(self) -> CpuTarget:
        """The row of this machine, for which lower levels are made."""
        return host_target()

    def setting(self) -> tuple[Any, ...]:
        """The level at which programs are evaluated."""
        return (options.ref_level,)

    def prepare(self, program: Canonical, donated: Mapping[int, int]) -> Any:
        """A plan for the lower levels; nothing for the tensor level."""
        if options.ref_level == "tensor":
            return None
        from baregrad.graph import canonicalise
        from baregrad.schedule import make_plan

        return make_plan(canonicalise(program.sink), donate={}, target=self.target)

    def execute(self, executable: Any, program: Canonical, where: Where | None) -> list[Buffer]:
        """Evaluate the program over its inputs."""
        from baregrad.engine.reference import evaluate_plan, evaluate_program

        if program.sink.mask & CONTROL_MASK:
            inputs = [ref.handle for ref in program.inputs]
            made: list[Buffer] = executable.run(inputs, program.variables)[0]
            return made
        arrays = [np.frombuffer(ref.handle.as_memoryview(), np.uint8) for ref in program.inputs]
        if executable is None:
            results = evaluate_program(program, arrays)
        else:
            results = evaluate_plan(executable, program, arrays, options.ref_level, self.target)
        return [self._keep(array) for array in results]

    def _keep(self, array: np.ndarray[Any, Any]) -> Buffer:
        buffer = self.device.allocate(array.nbytes)
        if array.nbytes:
            self.device.copy_in(buffer, np.ascontiguousarray(array))
        return buffer

    def close(self) -> None:
        """Close the device."""
        self.device.close()


def host_target() -> CpuTarget:
    """The row of this machine, with its own caches and cores.

    All cores count, whatever this process may use: results must not depend on that.
    """
    from baregrad.runtime.cpu.host import detect_host
    from baregrad.target import cpu_row

    host = detect_host()
    row = cpu_row(host.features, host.vendor)
    return replace(
        row,
        l1_bytes=host.l1_nbytes or row.l1_bytes,
        l2_bytes=host.l2_nbytes or row.l2_bytes,
        l3_bytes=host.l3_nbytes or row.l3_bytes,
        line_bytes=host.line_nbytes,
        cores=os.cpu_count() or row.cores,
    )


def open_backend(name: str) -> Backend:
    """Open the device `name` and what compiles for it."""
    from baregrad.runtime import open_device

    if name == "REF":
        return ReferenceBackend(name, open_device(name))
    if is_gpu(name):
        gpu = open_device(name)
        try:
            return gpu_backend(name, gpu)
        except BaseException:
            gpu.close()
            raise
    return cpu_backend(name, host_target())


def cpu_backend(name: str, target: CpuTarget) -> CompiledBackend:
    """This machine's CPU under a name, or what stands for it, and what compiles for its row."""
    from baregrad.assemble import default_cache
    from baregrad.assemble.llvm import LlvmAssembler
    from baregrad.render import get
    from baregrad.runtime import open_device

    renderer = get(options.cpu_renderer)
    cache = default_cache()
    llvm = LlvmAssembler(cache)
    # Kernels are rendered as finished SSA with phi nodes: no pass of LLVM's has work to do.
    assembler: Any = LlvmAssembler(None)
    if renderer.assembler == "c":
        from baregrad.assemble.cc import CAssembler

        assembler = CAssembler(None)
    device = open_device(name, assemble=llvm.assemble)
    return CompiledBackend(name, device, Compiler(target, renderer, assembler, cache))


def gpu_backend(name: str, device: Any) -> CompiledBackend:
    """An opened GPU, whose `architecture` names its row, and what compiles for it."""
    from baregrad.engine.copies import CopyKernels

    compiler = gpu_compiler(name, device.architecture)
    device.copier = CopyKernels(compiler, device)
    return CompiledBackend(name, device, compiler)


def gpu_compiler(name: str, architecture: str) -> Compiler:
    """What compiles for a GPU of an architecture, of which none needs to be there.

    With the option `gpu_instructions` it uses none but those of that generation.
    """
    from baregrad.assemble import default_cache
    from baregrad.assemble.nvrtc import CudaAssembler
    from baregrad.assemble.ptxas import PtxAssembler
    from baregrad.render import get
    from baregrad.target import gpu_row

    target = gpu_row(architecture)
    if options.gpu_instructions and not target.instructions:
        try:
            target = target.with_instructions_of(gpu_row(options.gpu_instructions))
        except UnsupportedDevice as error:
            raise UnsupportedDevice(f"the option gpu_instructions: {error}") from error
    renderer = get(options.gpu_renderer)
    assembler: Any = PtxAssembler(target.architecture)
    if name.startswith("NV") and options.nv_port == "virtual":
        from baregrad.assemble.virtual_cubin import VirtualAssembler

        # It is PTX that a GPU in software runs.
        renderer, assembler = get("ptx"), VirtualAssembler()
    elif renderer.assembler == "nvrtc":
        assembler = CudaAssembler(target.architecture)
    compiler = Compiler(target, renderer, assembler, default_cache())
    compiler.made_for = name, architecture
    return compiler
