"""From a kernel-level node to a program: passes, a renderer and an assembler.

Programs are kept twice: by node identity within a session, and on disk by a key derived from the
kernel's digest, the target, every compile option, the versions of renderer and compiler, and the
text of our own compiler, so that no stale program can ever be found.
"""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from baregrad.assemble.cache import DiskCache, key_of, source_fingerprint
from baregrad.base.errors import BaregradError, ChangedPipeline, CompilerBug, ScheduleError
from baregrad.base.options import options
from baregrad.base.tracing import span
from baregrad.engine.launch import launch_expr
from baregrad.engine.report import print_compilation
from baregrad.ir.algebra.passes import Pass, check_order
from baregrad.ir.analysis.stream import is_contraction
from baregrad.ir.core import index
from baregrad.ir.core.digest import digest, stable_repr
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, extent_of, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.verify.verify import verify
from baregrad.program import CPU_OBJECT, CUBIN, GpuLaunch, MapSpec, ParamSpec, Program, Resources
from baregrad.runtime.commands import Kernel
from baregrad.runtime.interface import Device
from baregrad.target import GpuTarget

if TYPE_CHECKING:
    from baregrad.engine.search.tuner import Tuner
    from baregrad.engine.workers.compile_crew import CompileCrew
    from baregrad.kernel import Lowering, Schedule

# A kernel, and the schedule that a search has found for it.
Job = tuple[Node, "Schedule | None"]

# The rooms, and what lies beside them, whose text decides what a program is.
COMPILER_ROOMS = (
    "base",
    "target",
    "ir",
    "kernel",
    "render",
    "assemble",
    "dtypes.py",
    "program.py",
    "engine/compiler.py",
)

# Results of a product that a thread has, about.
_RESULTS = 64
# The texts of this number of kernels are held before they are assembled.
_TOGETHER = 64

# What the stages that are no `Pass` are called, and why they are there.
SCHEDULE = ("schedule", "how the kernel runs, as a value")
RENDER = ("render", "the text that is assembled")


class Stage(NamedTuple):
    """What one step of the compilation left behind: a schedule, a graph, or text."""

    name: str
    why: str
    result: Schedule | Node | str


@dataclass(frozen=True, slots=True)
class _Draft:
    """What the passes made of a kernel: its program, whose text is to be assembled.

    stages: every step, where they are to be shown. refused: what an assembler said of the first
    choice of a schedule, if it took another one.
    """

    kernel: Node
    program: Program
    stages: list[Stage]
    refused: str = ""


# Programs that stay in memory, some kilobytes each; those used last stay longest. What goes is read
# from the disk again, or compiled again.
PROGRAMS_KEPT = 8192


class Compiler:
    """Compiles kernels for one target; owns its program cache.

    renderer: linear level to text. assembler: text to bytes, with a `version()`. target: the row
    of facts.
    """

    def __init__(self, target: Any, renderer: Any, assembler: Any, cache: DiskCache | None) -> None:
        self.target = target
        self.renderer = renderer
        self.assembler = assembler
        self.cache = cache
        self._programs: OrderedDict[Job, Program] = OrderedDict()
        self._kernels: weakref.WeakValueDictionary[Job, Kernel] = weakref.WeakValueDictionary()
        self.compiled = 0
        self.loaded = 0
        self.tuner: Tuner | None = None
        # The device's name and the architecture, of a compiler for a GPU that workers can make too.
        self.made_for: tuple[str, str] | None = None
        self._crew: CompileCrew | None = None

    @contextmanager
    def helped(self, nodes: int) -> Iterator[None]:
        """Inside the block processes help to compile, if a program of so many nodes is worth them.

        They begin while the program is planned.
        """
        if self.made_for is None or self._crew is not None:
            yield
            return
        from baregrad.engine.workers.compile_crew import CompileCrew, workers_wanted

        count = workers_wanted(nodes)
        if not count:
            yield
            return
        self._crew = CompileCrew(*self.made_for, count)
        try:
            yield
        finally:
            crew, self._crew = self._crew, None
            crew.close()

    def elsewhere(self) -> Compiler:
        """Return a compiler with the same programs, for another device than this one loads on."""
        other = copy.copy(self)
        other._kernels = weakref.WeakValueDictionary()
        return other

    def load(
        self, kernels: Iterable[Node], device: Device, progress: Callable[[], None]
    ) -> dict[Node, Kernel]:
        """Canonical KERNELs, compiled and loaded on their device; `progress` is called for each.

        Those that are launched several times may be there as often: a search counts them.
        """
        launched = list(kernels)
        wanted = list(dict.fromkeys(launched))
        chosen = self._chosen(launched, device)
        jobs = [(kernel, chosen.get(kernel)) for kernel in wanted]
        found = {job: loaded for job in jobs if (loaded := self._kernels.get(job))}
        self._find_or_compile([job for job in jobs if job not in found], progress)
        for job in jobs:
            if job in found:
                progress()
            else:
                found[job] = self._kernels[job] = device.load(self._programs[job])
        while len(self._programs) > PROGRAMS_KEPT:
            self._programs.popitem(last=False)
        return {job[0]: found[job] for job in jobs}

    def _chosen(self, kernels: Sequence[Node], device: Device) -> dict[Node, Schedule]:
        """Schedules that somebody wrote for kernels, or that a search has found to be better."""
        written: dict[Node, Schedule] = {}
        if options.schedules.name:
            from baregrad.engine.search.written import written_for

            every = {kernel: written_for(kernel, self.target) for kernel in kernels}
            written = {kernel: found for kernel, found in every.items() if found is not None}
            kernels = [kernel for kernel in kernels if kernel not in written]
        # Sums beside a product are of the tiles that they were chosen for.
        kernels = [kernel for kernel in kernels if not kernel.arg.sums]
        if not (options.beam or options.beam_file.name) or not kernels:
            return written
        if self.tuner is None:
            from baregrad.engine.search.tuner import Tuner

            self.tuner = Tuner(self, device)
        return {**self.tuner.schedules(kernels), **written}

    def _find_or_compile(self, jobs: Sequence[Job], progress: Callable[[], None]) -> None:
        """Have the programs of kernels: from memory, from disk, or compiled now."""
        missing: dict[Job, str] = {}
        for job in jobs:
            if job in self._programs:
                self._programs.move_to_end(job)
                progress()
                continue
            if self.cache is None:
                missing[job] = ""
                continue
            kernel, schedule = job
            asked = () if schedule is None else (str(schedule),)
            key = key_of("program-1", self.environment, digest(kernel), *asked)
            # What `DEBUG` shows of a compilation has to be compiled.
            saved = self.cache.get(key) if options.debug < 2 else None
            if saved is None:
                missing[job] = key
                continue
            self.loaded += 1
            self._programs[job] = Program.from_bytes(saved)
            progress()
        if self.assembler.several_at_once:
            # What takes longest is begun first.
            groups = [sorted(missing, key=_assembly_steps, reverse=True)]
        else:
            groups = list(_groups(list(missing)))
        drafts: dict[Job, _Draft] = {}
        for group in groups:
            order: list[Job] = []
            made = self._programs_of(group, drafts, order)
            try:
                for job, program in made:
                    self._keep(job, program, missing[job])
                    progress()
            except ChangedPipeline as error:
                # They come in order: it is the first one that is not there.
                changed = next(job for job in order if job not in self._programs)
                del drafts[changed]
                program = self._by_single_warps(*changed, error)
                self._keep(changed, program, missing[changed])
                progress()
                groups.append([job for job in group if job not in self._programs])

    def _keep(self, job: Job, program: Program, key: str) -> None:
        """Note a program in memory, and on disk by its key."""
        self._programs[job] = program
        if self.cache is not None:
            self.cache.put(key, program.to_bytes())

    def _programs_of(
        self, group: list[Job], drafts: dict[Job, _Draft], order: list[Job]
    ) -> Iterator[tuple[Job, Program]]:
        """The programs of some kernels, which are assembled together.

        drafts: those that were made before and wait for their machine code. order: gets the kernels
        in the order in which they come.
        """
        texts: Iterable[str] = self._texts(group, drafts, order)
        if not self.assembler.several_at_once:
            # Our own passes run faster when the assembler has not just filled the processor's
            # caches with code and data of its own.
            texts = list(texts)
        for code, job in zip(_timed(self.assembler.assemble_all(texts)), order, strict=True):
            yield job, self._finish(drafts.pop(job), code)

    def _texts(
        self, jobs: Sequence[Job], drafts: dict[Job, _Draft], order: list[Job]
    ) -> Iterator[str]:
        """The texts of some kernels, each once it is asked for.

        drafts: gets the rest of what is made of each, and order: the kernels as their texts come.
        """
        missing = []
        for job in jobs:
            if job not in drafts:
                missing.append(job)
                continue
            order.append(job)
            yield drafts[job].program.source
        if self._crew is not None:
            for place, program in self._crew.programs(missing):
                job = missing[place]
                self.compiled += 1
                drafts[job] = _Draft(job[0], program, [])
                order.append(job)
                yield program.source
        given = set(order)
        for job in missing:
            if job not in given:
                drafts[job] = self._draft(*job)
                order.append(job)
                yield drafts[job].program.source

    @cached_property
    def environment(self) -> str:
        """Everything but the kernel that decides what a program is, as one text."""
        parts = (stable_repr(self.target), self.renderer.name, self.assembler.version)
        return "|".join((*parts, source_fingerprint(COMPILER_ROOMS)))

    def compile(self, kernel: Node, schedule: Schedule | None = None) -> Program:
        """Compile a KERNEL, whatever the caches hold, under a schedule or the first one.

        Raises CompilerBug, with the kernel's text saved, when a pass of ours fails, and
        ScheduleError where a step of the schedule is not legal. Where nobody asked for a schedule
        and the assembler changes the pipeline of the first one, single warps multiply.
        """
        draft = self._draft(kernel, schedule)
        try:
            (code,) = _timed(self.assembler.assemble_all([draft.program.source]))
        except ChangedPipeline as error:
            return self._by_single_warps(kernel, schedule, error)
        return self._finish(draft, code)

    def _by_single_warps(
        self, kernel: Node, schedule: Schedule | None, error: ChangedPipeline
    ) -> Program:
        """The program of a kernel whose first choice of a schedule an assembler would change.

        Raises that error again where somebody asked for the schedule, and of a product that makes
        sums of its results as well, which single warps do not.
        """
        if schedule is not None or self.target.kind != "gpu" or kernel.arg.sums:
            raise error
        simpler = self._kernel_level[1](kernel, _of_single_warps(self.target))
        draft = replace(self._draft(kernel, simpler), refused=f"{error.message}: {error.found}")
        (code,) = _timed(self.assembler.assemble_all([draft.program.source]))
        return self._finish(draft, code)

    def _draft(self, kernel: Node, schedule: Schedule | None) -> _Draft:
        """Everything about a program but its machine code."""
        self.compiled += 1
        stages = list(self.stages(kernel) if schedule is None else self.stages(kernel, schedule))
        graphs = {stage.name: stage.result for stage in stages if isinstance(stage.result, Node)}
        text = stages[-1].result
        assert isinstance(text, str)
        shown = stages if options.debug >= 2 else []
        levels = list(graphs.values())
        loop, linear = levels[-1 - len(self.passes)], levels[-1]
        return _Draft(kernel, _without_code(kernel, loop, linear, text, self.target), shown)

    def without_code(self, kernel: Node, schedule: Schedule | None = None) -> Program:
        """A KERNEL's program but for its machine code, which an assembler makes of its source."""
        return self._draft(kernel, schedule).program

    def _finish(self, draft: _Draft, code: bytes) -> Program:
        """The program of a draft with its machine code."""
        program = replace(draft.program, code=code)
        if draft.stages:
            from baregrad.engine.search.written import chosen

            refused = draft.refused
            choice = chosen(draft.kernel, _of_single_warps(self.target) if refused else self.target)
            if refused:
                choice = choice._replace(reasons=(*choice.reasons, ("{}", refused)))
            print_compilation(draft.stages, program, self.assembler.disassemble, choice)
        return program

    @cached_property
    def passes(self) -> tuple[Pass, ...]:
        """The passes from the loop level to the linear level."""
        from baregrad.kernel import codegen_passes

        found = codegen_passes(self.target)
        check_order(found, "loop")
        return found

    @cached_property
    def _kernel_level(self) -> tuple[Pass, Callable[..., Schedule], type[Lowering]]:
        """The pass ahead of the choice of a schedule, that choice, and the passes after it."""
        from baregrad.kernel import Lowering, Schedule, choose_schedule, prepare_pass

        first = prepare_pass(self.target)
        check_order((first, *Lowering(self.target, Schedule()).passes), "kernel")
        return first, choose_schedule, Lowering

    def stage_names(self) -> list[tuple[str, str]]:
        """The name of every stage of a kernel's compilation and why it is there, in order."""
        from baregrad.kernel import Schedule

        first, _, lowering = self._kernel_level
        passes = (*lowering(self.target, Schedule()).passes, *self.passes)
        return [(first.name, first.why), SCHEDULE, *[(p.name, p.why) for p in passes], RENDER]

    def stages(self, kernel: Node, schedule: Schedule | None = None) -> Iterator[Stage]:
        """Every stage of the compilation, in order, as it is made.

        Without a schedule it is the first one that the heuristics give.
        """
        first, choose_schedule, lowering = self._kernel_level
        verified = options.verify
        what = "choose schedule"
        try:
            if schedule is None:
                with span(what):
                    schedule = choose_schedule(kernel, self.target)
            node, lowered = kernel, lowering(self.target, schedule).passes
            for item in (first, *lowered, *self.passes):
                what = item.name
                with span(what):
                    node = item.run(node)
                    if verified and (item.level_out != item.level_in or item is lowered[-1]):
                        verify(node, item.level_out)
                yield Stage(what, item.why, node)
                if item is first:
                    yield Stage(*SCHEDULE, schedule)
            what = "render"
            with span(what):
                # A GPU's kernel is passed each array, whether it uses it or not.
                arrays = arrays_of(kernel) if self.target.kind == "gpu" else 0
                names = variables_of(kernel)
                text: str = self.renderer.render(node, self.target, names, arrays)
            yield Stage(*RENDER, text)
        except BaregradError:
            raise
        except Exception as error:
            from baregrad.ir.text.dump import dump

            raise CompilerBug(
                f"the pass '{what}' failed: {type(error).__name__}: {error}",
                ir_text=dump(kernel),
            ) from error


def _timed(codes: Iterator[bytes]) -> Iterator[bytes]:
    """Machine codes as they come, with the time that is waited for each."""
    while True:
        with span("assemble"):
            code = next(codes, None)
        if code is None:
            return
        yield code


def _of_single_warps(target: GpuTarget) -> GpuTarget:
    """A machine without the matrix unit that groups of warps share."""
    return replace(target, warpgroup_warps=0)


def _assembly_steps(job: Job) -> int:
    """About how long an assembler takes for a kernel.

    What is made of a product is code for each result of a thread.
    """
    nodes = toposort(job[0])
    is_product = any(node.op is Ops.REDUCE and is_contraction(node) for node in nodes)
    return _RESULTS * len(nodes) if is_product else len(nodes)


def _groups(jobs: list[Job]) -> Iterator[list[Job]]:
    for begin in range(0, len(jobs), _TOGETHER):
        yield jobs[begin : begin + _TOGETHER]


def variables_of(kernel: Node) -> tuple[str, ...]:
    """The names of a kernel's symbolic integers, sorted: the order of its program's call."""
    if not kernel.has(Ops.VAR):
        return ()
    nodes = toposort(kernel)
    # Where rows lie may hang on an extent that nothing else does.
    arrays = [n.shape for n in nodes if n.op is Ops.PARAM]
    extents = [extent for shape in arrays for extent in shape if isinstance(extent, Node)]
    return tuple(sorted({n.arg.name for n in (*nodes, *toposort(*extents)) if n.op is Ops.VAR}))


def arrays_of(kernel: Node) -> int:
    """How many arrays the program of a kernel is called with."""
    return len({node.arg.slot for node in toposort(kernel) if node.op is Ops.PARAM})


def _without_code(kernel: Node, loop: Node, linear: Node, text: str, target: Any) -> Program:
    from baregrad.kernel import cost_of
    from baregrad.render import entry_name, scratch_nbytes

    gpu = target.kind == "gpu"
    written = {out.src[0].arg.slot for out in kernel.src}
    accumulated = {out.src[0].arg.slot for out in kernel.src if out.arg.monoid is not None}
    params = {node.arg.slot: node for node in toposort(kernel) if node.op is Ops.PARAM}
    reads = _slots_read(kernel)
    specs = []
    for slot in range(len(params)):
        node = params[slot]
        access = "w" if slot in written else "r"
        if slot in written and (slot in reads or slot in accumulated):
            access = "rw"
        # Of launches that are to run beside others it is known how far they reach; others follow
        # each other in chains, though parts of one array may be apart.
        size = index.mul(index.product(node.arg.shape), node.dtype.itemsize)
        nbytes = launch_expr(size) if kernel.arg.beside else None
        specs.append(ParamSpec(node.arg.name or f"p{slot}", node.dtype.name, nbytes, access))
    cost = cost_of(kernel)
    meta = Resources(
        scratch_nbytes=0 if gpu else scratch_nbytes(linear),
        flops=launch_expr(cost.flops),
        bytes_read=launch_expr(cost.bytes_read),
        bytes_written=launch_expr(cost.bytes_written),
    )
    return Program(
        name=kernel.arg.name,
        kind=CUBIN if gpu else CPU_OBJECT,
        code=b"",
        entry=entry_name(linear),
        params=tuple(specs),
        variables=variables_of(kernel),
        chunks=1 if gpu else launch_expr(_chunks(loop)),
        source=text,
        meta=meta,
        launch=_launch(kernel, loop, linear, target) if gpu else None,
        maps=_maps(linear) if gpu else (),
    )


def _chunks(loop: Node) -> Dim:
    """How many chunks the parallel axis of a CPU's kernel has."""
    for node in toposort(loop):
        if node.op is Ops.LOOP and node.src[0].arg.bind == "pool":
            return index.floordiv(extent_of(node.src[0]), loop.arg.grain)
    return 1


def _launch(kernel: Node, loop: Node, linear: Node, target: GpuTarget) -> GpuLaunch:
    """How many threads run a GPU's program: one block at least."""
    from baregrad.kernel import grid_size
    from baregrad.render.gpu import gpu_signature, read_early

    signature = gpu_signature(linear)
    if signature.shared_nbytes > target.shared_bytes_per_block:
        raise ScheduleError(
            f"{kernel.arg.name} keeps more for a block than {target.name} has room for",
            found=f"{signature.shared_nbytes} bytes",
            wanted=f"at most {target.shared_bytes_per_block}",
        )
    cluster = linear.arg.cluster
    blocks = launch_expr(index.maximum(grid_size(loop), cluster))
    nbytes = signature.dynamic_nbytes(target)
    return GpuLaunch(
        (blocks, 1, 1), (signature.threads, 1, 1),
        cluster, nbytes, target.dependent_launch, read_early(linear),
    )  # fmt: skip


def _maps(linear: Node) -> tuple[MapSpec, ...]:
    """The tensor maps that a GPU's program takes."""
    from baregrad.render.gpu import gpu_signature

    return tuple([box.spec for box in gpu_signature(linear).boxes])


def _slots_read(kernel: Node) -> set[int]:
    return {
        node.src[0].arg.slot
        for node in toposort(kernel)
        if node.op is Ops.INDEX and node.src[0].op is Ops.PARAM
    }
