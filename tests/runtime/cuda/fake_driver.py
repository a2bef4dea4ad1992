"""A libcuda that is not there: its functions, called as C functions, over pretended GPUs.

Streams are lazy: work runs when somebody asks whether it is done, one command an ask, so that
whoever reuses memory too early is found out. Kernels are the PTX inside their images, run by the
PTX interpreter. What a caller does that no driver would forgive is noted in `complaints`.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from baregrad.runtime.cuda import abi
from baregrad.testing.virtual_gpu.ptx.errors import (
    IllegalInstruction,
    KernelFault,
    KernelHang,
    MisalignedAccess,
    OutOfBoundsAccess,
)
from baregrad.testing.virtual_gpu.ptx.program import PtxModule
from tests.runtime.cuda.fake_core import (
    INVALID_VALUE,
    Event,
    FakeCore,
    Function,
    Graph,
    Node,
    Refusal,
    Stream,
)

CODE_MAGIC = b"baregrad PTX 1\0\0"
CODE_HEAD = struct.Struct("<16sIII")


class FakeCuda(FakeCore):
    """GPUs of the given compute capability behind a driver of the given version."""

    # Kernels.

    def cuModuleLoadData(self, out: Any, image: int) -> None:
        out[0] = self.put(PtxModule.parse(text_of(image)))

    def cuModuleUnload(self, handle: int) -> None:
        module = self.drop(handle, PtxModule)
        for gpu in self.gpus:
            for key, thing in list(gpu.context.things.items()) if gpu.context else ():
                if isinstance(thing, Function) and thing.kernel in module.__dict__.get("given", ()):
                    del gpu.context.things[key]

    def cuModuleGetFunction(self, out: Any, handle: int, name: bytes) -> None:
        module = self.get(handle, PtxModule)
        if name.decode() not in module.kernels:
            raise Refusal(abi.NOT_FOUND)
        kernel = module.kernel(name.decode())
        module.__dict__.setdefault("given", []).append(kernel)
        out[0] = self.put(Function(kernel))

    def cuFuncSetAttribute(self, handle: int, number: int, value: int) -> None:
        function: Function = self.get(handle, Function)
        if number == abi.MAX_DYNAMIC_SHARED:
            assert value <= 227 << 10
            function.shared_limit = value
        else:
            assert number == abi.NON_PORTABLE_CLUSTER_ALLOWED and value == 1
            function.big_clusters = True

    def _launch(
        self, handle: int, grid: Any, block: Any, shared: int, cluster: int, pointers: int
    ) -> Callable[[], bool]:
        function: Function = self.get(handle, Function)
        grid, block = tuple(grid), tuple(block)
        portable = cluster <= 8 or function.big_clusters
        if 0 in grid + block or shared > function.shared_limit or not portable:
            raise Refusal(INVALID_VALUE)
        kernel = function.kernel
        data = bytearray(kernel.parameter_nbytes)
        places = (ctypes.c_void_p * len(kernel.parameters)).from_address(pointers)
        for place, (variable, at) in zip(places, kernel.parameters.values(), strict=True):
            assert place is not None
            data[at : at + variable.nbytes] = ctypes.string_at(place, variable.nbytes)
        context = self.current()

        def work() -> bool:
            self.launches.append((kernel.name, grid, block, shared, cluster))
            try:
                kernel.launch(
                    context.gpu.memory, grid, block, bytes(data), shared, step_limit=3000
                )
            except KernelHang:
                return False
            except KernelFault as fault:
                codes = {OutOfBoundsAccess: 700, MisalignedAccess: 716, IllegalInstruction: 715}
                context.sticky = codes.get(type(fault), 719)
                if context.sticky == 719:
                    self.complaints.append(str(fault))
            return True

        return work

    def cuLaunchKernel(self, handle: int, *arguments: Any) -> None:
        *sizes, shared, stream, pointers, extra = arguments
        assert not extra
        work = self._launch(handle, sizes[:3], sizes[3:], shared, 1, pointers)
        self.get(stream, Stream).work.append(work)

    def cuLaunchKernelEx(self, config: Any, handle: int, pointers: int, extra: int) -> None:
        asked = config.contents
        assert asked.attribute_count == 1 and asked.attributes[0].id == abi.CLUSTER_DIMENSION
        x, y, z = asked.attributes[0].cluster
        assert (y, z) == (1, 1) and asked.grid[0] % x == 0
        work = self._launch(handle, asked.grid, asked.block, asked.shared_nbytes, x, pointers)
        self.get(asked.stream, Stream).work.append(work)

    # Graphs.

    def cuGraphCreate(self, out: Any, flags: int) -> None:
        out[0] = self.put(Graph())

    def cuGraphDestroy(self, handle: int) -> None:
        self.drop(handle, Graph)

    def _add(self, out: Any, handle: int, before: Any, count: int, kind: str, params: Any) -> None:
        graph: Graph = self.get(handle, Graph)
        # Nodes are a chain, in the order in which they are made.
        assert [before[i] for i in range(count)] == list(graph.nodes)[-1:]
        self.next_handle += 0x10
        graph.nodes[self.next_handle] = Node(kind, self._params(kind, params))
        out[0] = self.next_handle

    def _params(self, kind: str, params: Any) -> Any:
        """A copy of a node's parameters, since the caller's may change."""
        found = type(params.contents).from_buffer_copy(params.contents)
        if kind != "kernel":
            return found
        function: Function = self.get(found.function, Function)
        variables = [variable for variable, _ in function.kernel.parameters.values()]
        sources = (ctypes.c_void_p * len(variables)).from_address(found.params)
        values = []
        for source, variable in zip(sources, variables, strict=True):
            assert source is not None
            values.append(ctypes.create_string_buffer(
                ctypes.string_at(source, variable.nbytes), variable.nbytes
            ))
        pointers = (ctypes.c_void_p * max(len(values), 1))(*map(ctypes.addressof, values))
        found.params = ctypes.addressof(pointers)
        return SimpleNamespace(params=found, kept=(values, pointers))

    def cuGraphAddKernelNode(self, out: Any, graph: int, *rest: Any) -> None:
        before, count, params = rest
        self._add(out, graph, before, count, "kernel", params)

    def cuGraphAddMemcpyNode(self, out: Any, graph: int, *rest: Any) -> None:
        before, count, params, context = rest
        assert context == self.current().handle
        self._add(out, graph, before, count, "copy", params)

    def cuGraphAddMemsetNode(self, out: Any, graph: int, *rest: Any) -> None:
        before, count, params, context = rest
        assert context == self.current().handle
        self._add(out, graph, before, count, "fill", params)

    def cuGraphAddEventRecordNode(self, out: Any, handle: int, *rest: Any) -> None:
        before, count, event = rest
        graph: Graph = self.get(handle, Graph)
        assert [before[i] for i in range(count)] == list(graph.nodes)[-1:]
        self.get(event, Event)
        self.next_handle += 0x10
        graph.nodes[self.next_handle] = Node("event", event)
        out[0] = self.next_handle

    def cuGraphKernelNodeSetAttribute(self, handle: int, number: int, value: int) -> None:
        assert number == abi.CLUSTER_DIMENSION
        x, y, z = (ctypes.c_uint * 3).from_address(value)
        assert (y, z) == (1, 1)
        for graph in self.current().things.values():
            if isinstance(graph, Graph) and handle in graph.nodes:
                graph.nodes[handle].cluster = x

    def cuGraphInstantiateWithFlags(self, out: Any, handle: int, flags: int) -> None:
        graph: Graph = self.get(handle, Graph)
        nodes = {key: Node(one.kind, one.params, one.cluster) for key, one in graph.nodes.items()}
        out[0] = self.put(Graph(nodes))

    def cuGraphExecDestroy(self, handle: int) -> None:
        self.drop(handle, Graph)

    def _set(self, handle: int, node: int, kind: str, params: Any) -> None:
        found = self.get(handle, Graph).nodes[node]
        assert found.kind == kind
        found.params = self._params(kind, params)

    def cuGraphExecKernelNodeSetParams(self, handle: int, node: int, params: Any) -> None:
        self._set(handle, node, "kernel", params)

    def cuGraphExecMemcpyNodeSetParams(self, handle: int, node: int, *rest: Any) -> None:
        self._set(handle, node, "copy", rest[0])

    def cuGraphExecMemsetNodeSetParams(self, handle: int, node: int, *rest: Any) -> None:
        self._set(handle, node, "fill", rest[0])

    def cuGraphLaunch(self, handle: int, stream: int) -> None:
        target = self.get(stream, Stream)
        for node in self.get(handle, Graph).nodes.values():
            if node.kind == "event":
                self.cuEventRecord(node.params, stream)
            else:
                target.work.append(self._node_work(node))

    def _node_work(self, node: Node) -> Callable[[], bool]:
        if node.kind == "kernel":
            one = node.params.params
            return self._launch(
                one.function, one.grid, one.block, one.shared_nbytes, node.cluster, one.params
            )
        one = node.params
        if node.kind == "fill":
            assert (one.element_nbytes, one.height) == (1, 1)
            return self._fill(one.target, one.value, one.width)
        kinds = (one.source.memory_type, one.target.memory_type)
        assert kinds == (abi.MEMORY_TYPE_DEVICE,) * 2 and (one.height, one.depth) == (1, 1)
        return self._copy(one.target.device, one.source.device, one.width_nbytes)


def text_of(image: int) -> str:
    """Return the PTX inside an image in memory; refuse one that is for a GPU."""
    head = ctypes.string_at(image, 64)
    if head[:4] != b"\x7fELF":
        raise Refusal(abi.INVALID_IMAGE)
    sections, size, count = struct.unpack_from("<Q10xHH", head, 40)
    end = sections + size * count
    data = ctypes.string_at(image, end)
    for row in range(sections, end, size):
        _, kind, *_, at, nbytes = struct.unpack_from("<IIQQQQ", data, row)
        end = max(end, at + nbytes) if kind != 8 else end
    data = ctypes.string_at(image, end)
    at = data.find(CODE_MAGIC)
    if at < 0:
        raise Refusal(abi.NO_BINARY_FOR_GPU)
    _, name_nbytes, text_nbytes, _ = CODE_HEAD.unpack_from(data, at)
    start = at + CODE_HEAD.size + name_nbytes
    return data[start : start + text_nbytes].decode()


def image_of(text: str) -> bytes:
    """Return the smallest image that holds a PTX text."""
    code = CODE_HEAD.pack(CODE_MAGIC, 0, len(text.encode()), 0) + text.encode()
    head = bytearray(64)
    head[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q10xHH", head, 40, 64 + len(code), 64, 0)
    return bytes(head) + code
