"""A function of tensors as work for both sides: inputs drawn alike, gradients, an exact result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from baregrad.apps.bench_measure import Array
from baregrad.apps.beside import ours as our_side
from baregrad.apps.beside import peer as peer_side
from baregrad.apps.beside.draws import Draw
from baregrad.apps.beside.ours import Ours
from baregrad.apps.beside.peer import Peer
from baregrad.apps.beside.roundings import rounding_mode
from baregrad.apps.beside.work import SideWork
from baregrad.tensor.ops.shapes import channels_last

# Sets of inputs take so much together that no cache holds what the next call reads.
ROTATED_NBYTES = 1 << 28
MOST_SETS = 64


@dataclass(frozen=True, slots=True)
class TensorCase:
    """A function in ours and in PyTorch's, whose version takes the module first.

    `wanted` numbers the inputs whose gradients are results as well; the last input is then the
    gradient of the result, unless `is_scalar`. With `alone`, gradients are the only results.
    `shown` makes of inputs and results what is compared, by methods that both sides have.
    `exact`: the dtype in which PyTorch computes the exact result, "" where results are compared
    with PyTorch's own. `is_smooth`: nothing in it jumps, so that more roundings tell what each may
    do to the results. `channels_last`: whose inputs of four axes lie so, of "", "torch" and
    "both". `is_eager`: nothing is replayed. `is_compiled`: PyTorch compiles its function. `sets`:
    over how many sets of inputs a run goes, 0 for as many as no cache holds. `flops` and `traffic`:
    operations and bytes of one call at least.
    """

    inputs: tuple[Draw, ...]
    ours: Callable[..., Any]
    torch: Callable[..., Any]
    wanted: tuple[int, ...] = ()
    is_scalar: bool = False
    alone: bool = False
    shown: Callable[..., Any] | None = None
    exact: str = "float64"
    is_smooth: bool = False
    channels_last: str = ""
    is_eager: bool = False
    is_compiled: bool = False
    sets: int = 0
    flops: float = 0.0
    traffic: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        """Return what rates are made of."""
        return {"flops": self.flops, "traffic": self.traffic}

    @property
    def copies(self) -> int:
        """Return over how many sets of inputs a replay goes."""
        nbytes = sum(draw.nbytes for draw in self.inputs)
        return self.sets or max(1, min(MOST_SETS, -(-ROTATED_NBYTES // max(nbytes, 1))))

    def on_ours(self, side: Ours) -> SideWork:
        """Return the work on our side."""
        function = self.ours
        if self.wanted:
            function = our_side.with_gradients(function, self.wanted, self.is_scalar, self.alone)
        layout = channels_last if self.channels_last == "both" else None
        sets = self._sets(
            lambda draw, random: _laid_out(side.tensor(draw, random), layout).realize()
        )
        return replace(side.repeated(function, sets, self.shown, self.is_eager), facts=self.facts)

    def on_peer(self, side: Peer) -> SideWork:
        """Return the work on PyTorch's side, with the exact results."""
        layout = side.torch.channels_last if self.channels_last else None
        sets = self._sets(lambda draw, random: _laid_out(side.tensor(draw, random), layout))
        function = self._of_peer(side, self.is_compiled)
        work = side.repeated(function, sets, self.shown, self.is_eager)
        if not self.exact:
            return work

        def once(*inputs: Any) -> list[Any]:
            found = peer_side.tensors_of(self._of_peer(side)(*inputs))
            if self.shown is not None:
                found = peer_side.tensors_of(self.shown(*inputs, *found))
            return found

        def exact() -> list[Array]:
            wider = getattr(side.torch, self.exact)
            found = once(*(
                tensor.to(wider) if tensor.is_floating_point() else tensor for tensor in sets[-1]
            ))
            return [side.array(tensor) for tensor in found]

        def rounded(seed: int) -> list[Array]:
            with rounding_mode(side.torch, side.device, seed):
                found = once(*sets[-1])
            return [side.array(tensor) for tensor in found]

        return replace(work, exact=exact, rounded=rounded if self.is_smooth else None)

    def _of_peer(self, side: Peer, is_compiled: bool = False) -> Callable[..., Any]:
        function, torch = self.torch, side.torch
        if is_compiled:
            compiled = side.compiled(partial(self.torch, torch))
            function = lambda _, *inputs: compiled(*inputs)  # noqa: E731
        if self.wanted:
            return peer_side.with_gradients(
                function, self.wanted, self.is_scalar, self.alone, torch
            )

        def plain(*inputs: Any) -> Any:
            with torch.no_grad():
                return function(torch, *inputs)

        return plain

    def _sets(self, make: Callable[[Draw, np.random.Generator], Any]) -> list[list[Any]]:
        """As many sets of inputs as a run goes over, drawn alike on both sides."""
        seeds = [np.random.default_rng(number) for number in range(self.copies)]
        return [[make(draw, random) for draw in self.inputs] for random in seeds]


def _laid_out(tensor: Any, layout: Any) -> Any:
    if layout is None or tensor.ndim != 4:
        return tensor
    return tensor.to(memory_format=layout)
