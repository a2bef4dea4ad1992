"""Kernels and graphs on the device: loaded, and unloaded when nothing refers to them any more."""

from __future__ import annotations

import functools
from collections import deque

from baregrad.base.errors import CompileError, UnsupportedDevice
from baregrad.program import Program
from baregrad.runtime.cuda import abi
from baregrad.runtime.cuda.context import Context
from baregrad.runtime.teardown import Teardown

# Modules that nobody needs are worth a wait when there are this many.
MANY_MODULES = 64


class LoadedModule:
    """A cubin on the device; unloaded, when nothing refers to it any more, by the device."""

    __slots__ = ("_dead", "function", "module")

    def __init__(self, module: int, function: int, dead: deque[int]) -> None:
        self.module = module
        self.function = function
        self._dead = dead

    def __del__(self) -> None:
        # This may run inside a garbage collection, where no call may be made.
        self._dead.append(self.module)


class LoadedCode:
    """The modules and graphs of one context, which is current whenever a method is called.

    `dead_graphs` collects the handles of graphs of lists that are gone.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._driver = context.driver
        self._modules: set[int] = set()
        self._graphs: set[tuple[int, int]] = set()
        self._dead_modules: deque[int] = deque()
        self.dead_graphs: deque[tuple[int, int]] = deque()

    def load(self, program: Program) -> LoadedModule:
        """Return a program's kernel; raise CompileError if its code is broken or not for it."""
        context = self._context
        check_image(program)
        launch = program.launch
        assert launch is not None
        if launch.cluster > 1 and not context.clusters:
            gpu = f"{context.name} ({context.architecture})"
            raise UnsupportedDevice(f"{gpu} has no clusters of blocks")
        if launch.shared_nbytes > context.shared_nbytes:
            raise CompileError(
                f"the program {program.name!r} wants more shared memory than a block may have",
                found=launch.shared_nbytes, wanted=f"at most {context.shared_nbytes}",
            )  # fmt: skip
        self.bury()
        module = self._driver.handle("cuModuleLoadData", program.code)
        try:
            entry = program.entry.encode()
            function = self._driver.handle("cuModuleGetFunction", module, entry)
            if launch.shared_nbytes > abi.SHARED_DEFAULT_NBYTES:
                number = abi.MAX_DYNAMIC_SHARED
                self._driver.call("cuFuncSetAttribute", function, number, launch.shared_nbytes)
            if launch.cluster > abi.PORTABLE_CLUSTER:
                number = abi.NON_PORTABLE_CLUSTER_ALLOWED
                self._driver.call("cuFuncSetAttribute", function, number, 1)
        except BaseException:
            context.release("cuModuleUnload", module)
            raise
        self._modules.add(module)
        return LoadedModule(module, function, self._dead_modules)

    def add_graph(self, graph: int, executable: int) -> None:
        """Own a graph and its executable form from now on."""
        self._graphs.add((graph, executable))

    @property
    def has_dead(self) -> bool:
        """Whether there is enough that nobody needs to be worth a `bury`."""
        return bool(self.dead_graphs) or len(self._dead_modules) >= MANY_MODULES

    def bury(self) -> None:
        """Unload kernels and graphs that nothing refers to any more."""
        while self.dead_graphs:
            handles = self.dead_graphs.popleft()
            if handles in self._graphs:
                self._graphs.discard(handles)
                self._destroy_graph(handles)
        # Work that was enqueued may still be running their code.
        if not self._context.progress.idle() and len(self._dead_modules) < MANY_MODULES:
            return
        if self._dead_modules:
            self._context.synchronize()
        while self._dead_modules:
            module = self._dead_modules.popleft()
            if module in self._modules:
                self._modules.discard(module)
                self._context.release("cuModuleUnload", module)

    def drop(self) -> None:
        """Unload all kernels and graphs."""
        rest, release = Teardown(), self._context.release
        for module in self._modules:
            rest.push("a kernel", functools.partial(release, "cuModuleUnload", module))
        for handles in self._graphs:
            rest.push("a graph", functools.partial(self._destroy_graph, handles))
        self._modules.clear()
        self._graphs.clear()
        rest.close()

    def _destroy_graph(self, handles: tuple[int, int]) -> None:
        """Destroy a graph and its executable form; one that runs ends first by itself."""
        graph, executable = handles
        try:
            self._context.release("cuGraphExecDestroy", executable)
        finally:
            self._context.release("cuGraphDestroy", graph)

    def abandon(self) -> None:
        """Forget all, and call nothing."""
        self._graphs.clear()
        self._modules.clear()


def check_image(program: Program) -> None:
    """Raise CompileError unless a program's code is an ELF file as long as it says.

    The driver is given an address alone, and would read on where the file is cut short.
    """
    code = program.code
    good = len(code) >= 64 and code[:6] == b"\x7fELF\x02\x01"
    if good:
        sections = int.from_bytes(code[40:48], "little")
        count, size = (int.from_bytes(code[at : at + 2], "little") for at in (60, 58))
        good = sections + count * size <= len(code)
        for index in range(count if good else 0):
            row = code[sections + index * size :][:64]
            kind = int.from_bytes(row[4:8], "little")
            end = int.from_bytes(row[24:32], "little") + int.from_bytes(row[32:40], "little")
            # 8 is a section that takes no room in the file (SHT_NOBITS).
            good = good and (kind == 8 or end <= len(code))
    if not good:
        raise CompileError(
            f"the code of {program.name!r} is no whole cubin", found=f"{len(code)} bytes",
            wanted="an ELF file of 64 bits", source=program.source,
        )  # fmt: skip
