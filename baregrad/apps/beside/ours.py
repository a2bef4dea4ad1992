"""Our side: tensors on one of our devices, and work that is replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from baregrad.apps.bench_measure import Array
from baregrad.apps.beside.draws import Draw
from baregrad.apps.beside.work import SideWork
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.engine.backends import CompiledBackend
from baregrad.engine.session import Session, use_session
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit


class Ours:
    """A device of ours with a session of its own."""

    def __init__(self, session: Session, device: str) -> None:
        self.session = session
        self.name = device
        backend = session.backend(device)
        assert isinstance(backend, CompiledBackend)
        self.backend = backend

    @property
    def facts(self) -> dict[str, Any]:
        """Return what the side runs on."""
        return {"device": self.name, "target": self.backend.compiler.target.name}

    def wait(self) -> None:
        """Wait for all that was begun."""
        self.backend.device.synchronize()

    def forget(self) -> None:
        """Give back memory that nothing uses."""
        self.backend.device.trim()

    def tensor(self, draw: Draw, random: np.random.Generator) -> Tensor:
        """Draw a tensor, which lies on the device."""
        found = Tensor(draw.array(random))
        return found.cast(draw.dtype).realize()

    def array(self, tensor: Tensor) -> Array:
        """Return a result as NumPy has it; floats that it has not as float32."""
        known = (dtypes.float16, dtypes.float32, dtypes.float64)
        if tensor.dtype.is_float and tensor.dtype not in known:
            tensor = tensor.detach().cast(dtypes.float32)
        return tensor.detach().numpy()

    def repeated(
        self, function: Callable[..., Any], sets: Sequence[Sequence[Any]],
        shown: Callable[..., Any] | None = None, is_eager: bool = False,
    ) -> SideWork:
        """Return the work of calling a function with each set of inputs, in one replay or none."""

        def every() -> Any:
            for inputs in sets[:-1]:
                # Computed here, so that no two calls become one kernel.
                realize(function(*inputs))
            last = function(*sets[-1])
            if is_eager:
                realize(last)
            return last

        replay = every if is_eager else jit(every)

        def outputs() -> list[Array]:
            found = tensors_of(replay())
            if shown is not None:
                found = tensors_of(shown(*sets[-1], *found))
            return [self.array(tensor) for tensor in found]

        return SideWork(replay, outputs, len(sets))


def tensors_of(result: Any) -> list[Tensor]:
    """Return the tensors of a result."""
    return list(result) if isinstance(result, tuple | list) else [result]


def realize(result: Any) -> None:
    """Compute all tensors of a result together."""
    first, *others = tensors_of(result)
    first.realize(*others)


def with_gradients(
    function: Callable[..., Any], wanted: Sequence[int], is_scalar: bool, alone: bool
) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function that gives a result and its gradients by the inputs numbered `wanted`.

    Its last argument is the gradient of the result, unless that is a scalar. With `alone`, the
    gradients are all that it gives.
    """

    def both(*given: Tensor) -> tuple[Tensor, ...]:
        inputs = given if is_scalar else given[:-1]
        leaves = [
            tensor.detach().requires_grad_() if number in wanted else tensor
            for number, tensor in enumerate(inputs)
        ]
        result: Tensor = function(*leaves)
        result.backward(None if is_scalar else given[-1])
        gradients = [leaves[number].grad for number in wanted]
        assert all(one is not None for one in gradients)
        found = tuple(one for one in gradients if one is not None)
        return found if alone else (result.detach(), *found)

    return both


@contextmanager
def opened(device: str) -> Iterator[Ours]:
    """Open a device of ours in a session of its own."""
    with options.override(device=device), use_session(Session()) as session:
        yield Ours(session, device)
        session.close()
