"""The commands of a list as the driver takes them: launched, or made nodes of a graph."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from baregrad.base.errors import DeviceError
from baregrad.program import LaunchExpr, evaluate, substitute
from baregrad.runtime.commands import Exec
from baregrad.runtime.cuda import abi
from baregrad.runtime.tensor_map import NBYTES as MAP_NBYTES

if TYPE_CHECKING:
    from baregrad.runtime.cuda.driver import Driver, Functions

    Words = np.ndarray[Any, np.dtype[np.uint64]]


class StreamStep(Protocol):
    """One command. `words` of its list hold its operands and variables, from `at` on."""

    name: str
    labelled_name: tuple[str, str]
    called: str
    empty: bool

    def enqueue(self, functions: Functions, stream: int) -> int:
        """Put the command into a stream and return the driver's answer."""
        ...

    def add_node(self, driver: Driver, graph: int, before: list[int], context: int) -> int:
        """Make it a node of a graph, after the nodes `before`, and return that."""
        ...

    def set_node(self, driver: Driver, executable: int, node: int, context: int) -> None:
        """Give the node of a graph that may be launched the present operands."""
        ...


class KernelStep:
    """A launch of a recorded kernel. Its parameters lie one after the other (`bind`)."""

    def __init__(self, command: Exec, function: int) -> None:
        program = command.kernel.program
        launch = program.launch
        assert launch is not None
        self.name = program.name
        self._words, self._maps = len(program.params) + len(program.variables), len(program.maps)
        self.labelled_name = (self.name, command.label)
        self.block = launch.block
        self.shared_nbytes = launch.shared_nbytes
        self.cluster = launch.cluster
        self.grid: tuple[LaunchExpr, ...] = tuple(
            substitute(size, command.variables) for size in launch.grid
        )
        self.fixed = all(isinstance(size, int) for size in self.grid)
        self.called = "cuLaunchKernelEx" if self.cluster > 1 else "cuLaunchKernel"
        self.empty = False
        self._function = function
        self._pointers: ctypes.Array[ctypes.c_void_p] = (ctypes.c_void_p * 0)()
        self._sizes = (0, 0, 0)
        # The arguments of a launch, and the two structs that hold them where a cluster or a graph
        # wants that: made once, since they cost more than the calls that take them.
        self._stream = 0
        self._call: tuple[Any, ...] = ()
        block = (ctypes.c_uint * 3)(*self.block)
        self._attribute = abi.LaunchAttribute(
            id=abi.CLUSTER_DIMENSION, cluster=(ctypes.c_uint * 3)(self.cluster, 1, 1)
        )
        self._config = abi.LaunchConfig(
            block=block, shared_nbytes=self.shared_nbytes,
            attributes=ctypes.pointer(self._attribute), attribute_count=1,
        )  # fmt: skip
        self._node = abi.KernelNode(
            function=function, block=block, shared_nbytes=self.shared_nbytes
        )
        self.node_reference = ctypes.byref(self._node)

    def bind(self, address: int) -> None:
        """Say where the parameters lie: 8 bytes each, and then tensor maps."""
        places = [address + 8 * index for index in range(self._words + self._maps)]
        for number in range(self._maps):
            places[self._words + number] = address + 8 * self._words + MAP_NBYTES * number
        self._pointers = (ctypes.c_void_p * max(len(places), 1))(*places)
        self._node.params = ctypes.addressof(self._pointers)
        if self.fixed:
            self.set_grid({})

    def set_grid(self, variables: Mapping[str, int]) -> bool:
        """Compute the grid, and return whether it changed; raise DeviceError if it is too large."""
        sizes = tuple(evaluate(size, variables) for size in self.grid)
        for size, most in zip(sizes, abi.MAX_GRID, strict=True):
            if not 0 <= size <= most:
                raise DeviceError(
                    f"{self.name} has a grid that no GPU takes", found=sizes, wanted=abi.MAX_GRID
                )
        if sizes[0] % self.cluster:
            raise DeviceError(
                f"the blocks of {self.name} do not fill its clusters",
                found=f"{sizes[0]} blocks", wanted=f"a multiple of {self.cluster}",
            )  # fmt: skip
        if sizes == self._sizes:
            return False
        self._sizes = (sizes[0], sizes[1], sizes[2])
        self._node.grid[:] = self._config.grid[:] = self._sizes
        self._stream = 0
        self.empty = 0 in sizes
        return True

    def enqueue(self, functions: Functions, stream: int) -> int:
        """Launch the kernel."""
        if stream != self._stream:
            self._call = self._arguments(stream)
            self._stream = stream
        return functions[self.called](*self._call)

    def _arguments(self, stream: int) -> tuple[Any, ...]:
        pointers = ctypes.addressof(self._pointers)
        if self.cluster > 1:
            self._config.stream = stream
            return (ctypes.byref(self._config), self._function, pointers, None)
        shape = (*self._sizes, *self.block, self.shared_nbytes)
        return (self._function, *shape, stream, pointers, None)

    def add_node(self, driver: Driver, graph: int, before: list[int], context: int) -> int:
        """Make the launch a node of a graph."""
        node = driver.handle(
            "cuGraphAddKernelNode_v2", graph, handles_of(before), len(before), self.node_reference
        )
        if self.cluster > 1:
            value = ctypes.addressof(self._attribute) + abi.LaunchAttribute.cluster.offset
            driver.call("cuGraphKernelNodeSetAttribute", node, abi.CLUSTER_DIMENSION, value)
        return node

    def set_node(self, driver: Driver, executable: int, node: int, context: int) -> None:
        """Change the node's parameters and grid."""
        name = "cuGraphExecKernelNodeSetParams_v2"
        code = driver.functions[name](executable, node, self.node_reference)
        if code:
            raise driver.error(name, code, f"the kernel {self.name!r}")


class CopyStep:
    """A copy of `nbytes` bytes; the words hold target and source."""

    called = "cuMemcpyDtoDAsync_v2"

    def __init__(self, name: str, words: Words, nbytes: int) -> None:
        self.name = name
        self.labelled_name = (name, name)
        self.empty = nbytes == 0
        self._words = words
        self._nbytes = nbytes

    def enqueue(self, functions: Functions, stream: int) -> int:
        """Copy in the stream."""
        target, source = self._words.tolist()
        return functions[self.called](target, source, self._nbytes, stream)

    def _node(self) -> abi.CopyNode:
        target, source = self._words.tolist()
        kind = abi.MEMORY_TYPE_DEVICE
        return abi.CopyNode(
            source=abi.CopySide(memory_type=kind, device=source, pitch=self._nbytes, height=1),
            target=abi.CopySide(memory_type=kind, device=target, pitch=self._nbytes, height=1),
            width_nbytes=self._nbytes, height=1, depth=1,
        )  # fmt: skip

    def add_node(self, driver: Driver, graph: int, before: list[int], context: int) -> int:
        """Make the copy a node of a graph."""
        return driver.handle(
            "cuGraphAddMemcpyNode", graph, handles_of(before), len(before),
            ctypes.byref(self._node()), context,
        )  # fmt: skip

    def set_node(self, driver: Driver, executable: int, node: int, context: int) -> None:
        """Change the node's addresses."""
        name = "cuGraphExecMemcpyNodeSetParams"
        driver.call(name, executable, node, ctypes.byref(self._node()), context)


class FillStep:
    """A fill of `nbytes` bytes with one value; the word holds the target."""

    called = "cuMemsetD8Async"

    def __init__(self, name: str, words: Words, nbytes: int, byte: int) -> None:
        self.name = name
        self.labelled_name = (name, name)
        self.empty = nbytes == 0
        self._words = words
        self._nbytes = nbytes
        self._byte = byte

    def enqueue(self, functions: Functions, stream: int) -> int:
        """Fill in the stream."""
        return functions[self.called](int(self._words[0]), self._byte, self._nbytes, stream)

    def _node(self) -> abi.FillNode:
        return abi.FillNode(
            target=int(self._words[0]), pitch=self._nbytes, value=self._byte, element_nbytes=1,
            width=self._nbytes, height=1,
        )  # fmt: skip

    def add_node(self, driver: Driver, graph: int, before: list[int], context: int) -> int:
        """Make the fill a node of a graph."""
        return driver.handle(
            "cuGraphAddMemsetNode", graph, handles_of(before), len(before),
            ctypes.byref(self._node()), context,
        )  # fmt: skip

    def set_node(self, driver: Driver, executable: int, node: int, context: int) -> None:
        """Change the node's address."""
        name = "cuGraphExecMemsetNodeSetParams"
        driver.call(name, executable, node, ctypes.byref(self._node()), context)


def handles_of(nodes: list[int]) -> ctypes.Array[ctypes.c_void_p] | None:
    """Return nodes as the driver takes those that another comes after."""
    return (ctypes.c_void_p * len(nodes))(*nodes) if nodes else None
