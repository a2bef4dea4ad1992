"""PyTorch's side: tensors on the same GPU, and work that is replayed as a CUDA graph.

Without a GPU, tensors are on the CPU and work is what PyTorch does eagerly.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from baregrad.apps.bench_measure import Array
from baregrad.apps.bench_rows import peer_module
from baregrad.apps.beside.draws import Draw
from baregrad.apps.beside.work import SideWork, time_work, warm_up

_WARM_CALLS = 3


class Peer:
    """PyTorch on one device: "cuda" or "cpu". Raises MissingDependency without PyTorch."""

    def __init__(self, device: str, threads: int = 0) -> None:
        self.torch = peer_module("torch")
        self.device = device
        self.has_graphs = device == "cuda"
        self.uncaptured = ""
        torch = self.torch
        if threads:
            torch.set_num_threads(threads)
        if self.has_graphs:
            torch.cuda.init()
            torch.backends.cudnn.benchmark = True
            # Products of float32 are of float32.
            torch.backends.cudnn.allow_tf32 = False
            torch.backends.cuda.matmul.allow_tf32 = False

    @property
    def facts(self) -> dict[str, Any]:
        """Return what the side runs on."""
        name = platform.processor()
        if self.has_graphs:
            name = self.torch.cuda.get_device_name()
        return {"torch": self.torch.__version__, "device": name}

    def wait(self) -> None:
        """Wait for all that was begun."""
        if self.has_graphs:
            self.torch.cuda.synchronize()

    def tensor(self, draw: Draw, random: np.random.Generator) -> Any:
        """Draw a tensor, which lies on the device."""
        drawn = self.torch.from_numpy(draw.array(random)).to(self.device)
        return drawn.to(getattr(self.torch, draw.dtype))

    def array(self, tensor: Any) -> Array:
        """Return a result as NumPy has it; floats that it has not as float32."""
        torch = self.torch
        known = (torch.float16, torch.float32, torch.float64)
        if tensor.is_floating_point() and tensor.dtype not in known:
            tensor = tensor.float()
        return np.asarray(tensor.detach().cpu().numpy())

    def repeated(
        self, function: Callable[..., Any], sets: Sequence[Sequence[Any]],
        shown: Callable[..., Any] | None = None, is_eager: bool = False,
    ) -> SideWork:
        """Return the work of calling a function with each set of inputs, as a CUDA graph or not."""
        latest: list[Any] = []

        def every() -> None:
            for inputs in sets:
                latest[:] = [function(*inputs)]

        run = every if is_eager else self.captured(every)

        def outputs() -> list[Array]:
            run()
            found = tensors_of(latest[0])
            if shown is not None:
                found = tensors_of(shown(*sets[-1], *found))
            return [self.array(tensor) for tensor in found]

        return SideWork(run, outputs, len(sets))

    def captured(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Return what replays a function's work as a CUDA graph; on the CPU, the function.

        The function as well where it cannot be captured; `uncaptured` says why from then on. What
        the graph reads and writes outside of its own memory is the function's, which lives as long.
        """
        self.uncaptured = ""
        if not self.has_graphs:
            return function
        torch = self.torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_CALLS):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream):
                function()
        except RuntimeError as error:
            # Some of PyTorch's functions wait for the GPU.
            self.uncaptured = f"{error}".partition("\n")[0]
            torch.cuda.synchronize()
            return function
        return _Replay(graph, function)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what PyTorch's compiler makes of a function; without a GPU, the function.

        It is compiled in the first calls, and again behind the first gradients.
        """
        if not self.has_graphs:
            return function
        made: Callable[..., Any] = self.torch.compile(function, dynamic=False)
        return made

    def copy_rate(self, count: int) -> float:
        """Return the bytes read and written in a second by a copy of float32 numbers.

        It is the better of PyTorch's copy and of a kernel of its own that moves the same bytes: a
        copy in a CUDA graph may fall to a slower engine (2.7 for 4.2 TB/s on an H200).
        """
        torch = self.torch
        source = torch.zeros(count, device=self.device).uniform_()
        target = torch.empty_like(source)
        ways = (lambda: target.copy_(source), lambda: torch.add(source, 1.0, out=target))
        medians = []
        for way in ways:
            work = SideWork(self.captured(way), list)
            times = time_work(work, self.wait, warm_up(work, self.wait))
            medians.append(sorted(times)[len(times) // 2])
        return 8 * count / min(medians)

    def product_rate(self, size: int, dtype: str) -> float:
        """Return the operations in a second of a product of square matrices, replayed."""
        one = self.torch.zeros((size, size), device=self.device).uniform_()
        factor = one.to(getattr(self.torch, dtype))
        work = SideWork(self.captured(lambda: factor @ factor), list)
        times = time_work(work, self.wait, warm_up(work, self.wait))
        return 2 * size**3 / sorted(times)[len(times) // 2]

    def forget(self) -> None:
        """Give back memory that nothing uses."""
        if self.has_graphs:
            self.torch.cuda.empty_cache()


class _Replay:
    """A graph that was captured, with the function whose tensors it reads and writes."""

    def __init__(self, graph: Any, function: Callable[[], Any]) -> None:
        self.graph = graph
        self.function = function

    def __call__(self) -> None:
        self.graph.replay()


def tensors_of(result: Any) -> list[Any]:
    """Return the tensors of a result."""
    return list(result) if isinstance(result, tuple | list) else [result]


def with_gradients(
    function: Callable[..., Any], wanted: Sequence[int], is_scalar: bool, alone: bool, torch: Any
) -> Callable[..., tuple[Any, ...]]:
    """Return a function that gives a result and its gradients by the inputs numbered `wanted`.

    Its last argument is the gradient of the result, unless that is a scalar. With `alone`, the
    gradients are all that it gives, and the result is computed once for each set of inputs.
    """
    results: dict[int, tuple[list[Any], Any]] = {}

    def forward(inputs: tuple[Any, ...]) -> tuple[list[Any], Any]:
        leaves = [
            tensor.detach().requires_grad_() if number in wanted else tensor
            for number, tensor in enumerate(inputs)
        ]
        return leaves, function(torch, *leaves)

    def both(*given: Any) -> tuple[Any, ...]:
        inputs = given if is_scalar else given[:-1]
        if not alone:
            leaves, result = forward(inputs)
        else:
            key = id(inputs[0])
            if key not in results:
                results[key] = forward(inputs)
            leaves, result = results[key]
        found = torch.autograd.grad(
            result, [leaves[number] for number in wanted],
            None if is_scalar else given[-1], retain_graph=alone,
        )
        return tuple(found) if alone else (result.detach(), *found)

    return both
