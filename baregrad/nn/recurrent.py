"""Recurrent layers with PyTorch's parameters: RNN, LSTM and GRU, and one step of each.

Every step of a sequence is part of one graph. What the inputs give all steps is one product; only
what a state gives the next one is computed step by step.

Sources: S. Hochreiter and J. Schmidhuber, Neural Computation 1997 (LSTM); K. Cho and others, EMNLP
2014 (GRU), with the reset gate after the product, as in PyTorch and cuDNN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.nn import init
from baregrad.nn.init import begin, redraw
from baregrad.nn.module import Module
from baregrad.tensor import Tensor
from baregrad.tensor.ops.shapes import stored

if TYPE_CHECKING:
    from baregrad.nn.utils.rnn import PackedSequence

State = tuple[Tensor, ...]
# From what the inputs and the state give (N, gates * hidden), and the state, to the next state.
_Step = Callable[[Tensor, Tensor, State], State]

_PARTS = 8
_PARTS_OF_A_WAY = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")


def _tanh_step(given: Tensor, kept: Tensor, state: State) -> State:
    return ((given + kept).tanh(),)


def _relu_step(given: Tensor, kept: Tensor, state: State) -> State:
    return ((given + kept).relu(),)


def _lstm_step(given: Tensor, kept: Tensor, state: State) -> State:
    into, forget, cell, out = (given + kept).chunk(4, -1)
    held = forget.sigmoid() * state[1] + into.sigmoid() * cell.tanh()
    return out.sigmoid() * held.tanh(), held


def _gru_step(given: Tensor, kept: Tensor, state: State) -> State:
    reset, update, new = given.chunk(3, -1)
    kept_reset, kept_update, kept_new = kept.chunk(3, -1)
    mixed = (new + (reset + kept_reset).sigmoid() * kept_new).tanh()
    share = (update + kept_update).sigmoid()
    return ((1 - share) * mixed + share * state[0],)


def _rnn_step(nonlinearity: str) -> _Step:
    steps = {"tanh": _tanh_step, "relu": _relu_step}
    if nonlinearity not in steps:
        raise ArgumentError("nonlinearity is 'tanh' or 'relu'", found=repr(nonlinearity))
    return steps[nonlinearity]


def _check_input(x: Tensor, ndims: tuple[int, ...], size: int, wanted: str) -> None:
    if x.ndim not in ndims or x.shape[-1] != size:
        raise ShapeError("the input has another shape", found=list(x.shape), wanted=wanted)


def _check_state(state: State, shape: tuple[int, ...]) -> None:
    for part in state:
        if part.shape != shape:
            raise ShapeError(
                "the state has another shape", found=list(part.shape), wanted=list(shape)
            )


def _unstacked(x: Tensor) -> list[Tensor]:
    """Each x[i], stored by itself: cut by eights, and these again.

    Kernels of all steps are then alike, as they would not be for parts at different places of one
    array, and gradients are put together by eights too.
    """
    length = x.shape[0]
    if length <= _PARTS:
        return [stored(x[place]) for place in range(length)]
    size = _PARTS
    while size * _PARTS < length:
        size *= _PARTS
    return [step for part in x.split(size) for step in _unstacked(stored(part))]


# --- one step -------------------------------------------------------------------------------------


class RNNCellBase(Module):
    """What the cells share: weights of the input and of the state, for all gates together."""

    _GATES = 1
    _STATES = 1

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: str | None = None,
        dtype: object = None,
    ) -> None:
        self.input_size = input_size
        self.hidden_size = hidden_size
        rows = self._GATES * hidden_size

        def draw(*shape: int) -> Tensor:
            return init.drawn(*shape, fan=hidden_size, dtype=dtype, device=device)

        self.weight_ih = draw(rows, input_size)
        self.weight_hh = draw(rows, hidden_size)
        self.bias_ih = draw(rows) if bias else None
        self.bias_hh = draw(rows) if bias else None
        begin(self, RNNCellBase)

    def reset_parameters(self) -> None:
        """Draw first values anew."""
        redraw(self.hidden_size, *self.parameters())

    def _next(self, step: _Step, x: Tensor, state: State | None) -> State:
        size = self.hidden_size
        _check_input(x, (1, 2), self.input_size, f"({self.input_size},) after the batch, if any")
        if state is None:
            blank = Tensor.zeros(*x.shape[:-1], size, dtype=x.dtype, device=x.device)
            state = (blank,) * self._STATES
        _check_state(state, (*x.shape[:-1], size))
        given = x.linear(self.weight_ih, self.bias_ih)
        return step(given, state[0].linear(self.weight_hh, self.bias_hh), state)

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{self.input_size}, {self.hidden_size}"


class RNNCell(RNNCellBase):
    """One step of an `RNN`: tanh, or relu, of the sum of two linear layers."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        self.nonlinearity = nonlinearity
        self._step = _rnn_step(nonlinearity)
        super().__init__(input_size, hidden_size, bias, device, dtype)

    def forward(self, x: Tensor, hx: Tensor | None = None) -> Tensor:
        """Return the next state (N, hidden) or (hidden,), from zeros if none is given."""
        return self._next(self._step, x, None if hx is None else (hx,))[0]


class GRUCell(RNNCellBase):
    """One step of a `GRU`."""

    _GATES = 3

    def forward(self, x: Tensor, hx: Tensor | None = None) -> Tensor:
        """Return the next state (N, hidden) or (hidden,), from zeros if none is given."""
        return self._next(_gru_step, x, None if hx is None else (hx,))[0]


class LSTMCell(RNNCellBase):
    """One step of an `LSTM`."""

    _GATES = 4
    _STATES = 2

    def forward(
        self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the next hidden and cell states, each (N, hidden) or (hidden,)."""
        hidden, cell = self._next(_lstm_step, x, hx)
        return hidden, cell


# --- sequences ------------------------------------------------------------------------------------


class RNNBase(Module):
    """What recurrent layers share. Parameters: weight_ih_l0 and its like, with PyTorch's names.

    Sequences are (L, N, input_size), (N, L, input_size) with `batch_first`, or (L, input_size); or
    a `PackedSequence`, whose outputs are one as well.
    """

    _GATES = 1
    _STATES = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: str | None = None,
        dtype: object = None,
        proj_size: int = 0,
    ) -> None:
        for name, count in (("hidden_size", hidden_size), ("num_layers", num_layers)):
            if not isinstance(count, int) or count < 1:
                raise ArgumentError(f"{name} is an integer from 1 on", found=repr(count))
        if num_layers >> 16:
            raise ArgumentError("so many layers are never made", found=f"num_layers {num_layers}")
        if not 0 <= dropout <= 1:
            raise ArgumentError(f"a probability is from 0 to 1, not {dropout}")
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = dropout
        self.bidirectional = bidirectional
        if proj_size and self._STATES < 2:
            raise ArgumentError(
                f"an LSTM alone projects, no {type(self).__name__}", found=f"proj_size={proj_size}"
            )
        self.proj_size = proj_size
        # What each step gives.
        self._width = proj_size or hidden_size
        self._ways = ("", "_reverse") if bidirectional else ("",)
        rows = self._GATES * hidden_size
        for layer in range(num_layers):
            width = input_size if layer == 0 else self._width * len(self._ways)
            for way in self._ways:
                shapes: dict[str, tuple[int, ...]]
                shapes = {"weight_ih": (rows, width), "weight_hh": (rows, self._width)}
                if bias:
                    shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
                if proj_size:
                    shapes["weight_hr"] = (proj_size, hidden_size)
                for name, shape in shapes.items():
                    made = init.drawn(*shape, fan=hidden_size, dtype=dtype, device=device)
                    setattr(self, f"{name}_l{layer}{way}", made)
        begin(self, RNNBase)

    def reset_parameters(self) -> None:
        """Draw first values anew."""
        redraw(self.hidden_size, *self.parameters())

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The weights of each layer and way, in the order of their names' first parts."""
        ends = [f"_l{layer}{way}" for layer in range(self.num_layers) for way in self._ways]
        # Read as attributes: some may be made of others.
        return [[getattr(self, part + end) for part in _PARTS_OF_A_WAY if hasattr(self, part + end)]
                for end in ends]

    def flatten_parameters(self) -> None:
        """Do nothing: weights need not lie beside each other here."""

    def _run(
        self, step: _Step, x: Tensor | PackedSequence, state: State | None
    ) -> tuple[Any, State]:
        """The outputs of the last layer, and the last states of all, in the caller's layout."""
        if not isinstance(x, Tensor):
            return self._run_packed(step, x, state)
        size = self.input_size
        order = "(N, L, " if self.batch_first else "(L, N, "
        _check_input(x, (2, 3), size, f"{order}{size}) or (L, {size})")
        single = x.ndim == 2
        if single:
            x = x.unsqueeze(1)
        elif self.batch_first:
            x = x.transpose(0, 1)
        if not x.shape[0]:
            raise ShapeError("a sequence has a first step", found=list(x.shape))
        firsts = self._states(x, state, single)
        x, ends = self._through_layers(step, x, firsts, None)
        if single:
            return x.squeeze(1), tuple(part.squeeze(1) for part in ends)
        return (x.transpose(0, 1) if self.batch_first else x), ends

    def _run_packed(
        self, step: _Step, packed: PackedSequence, state: State | None
    ) -> tuple[PackedSequence, State]:
        """The outputs of packed sequences, packed, and the states at the end of each.

        They are padded for the layers, so that all steps are alike: what lies behind a sequence's
        end changes no state.
        """
        from baregrad.nn.utils import rnn

        if not isinstance(packed, rnn.PackedSequence):
            raise DTypeError(
                f"{type(self).__name__} does not take this as a sequence",
                found=f"{type(packed).__name__} {packed!r:.40}",
                wanted="a tensor or a PackedSequence",
            )
        size = self.input_size
        _check_input(packed.data, (2,), size, f"data (elements, {size})")
        x, is_there = rnn.padded_steps(packed)
        firsts = self._states(x, state, False)
        if packed.sorted_indices is not None and state is not None:
            firsts = tuple(part.index_select(1, packed.sorted_indices) for part in firsts)
        x, ends = self._through_layers(step, x, firsts, is_there)
        if packed.unsorted_indices is not None:
            ends = tuple(part.index_select(1, packed.unsorted_indices) for part in ends)
        return rnn.packed_like(x, packed), ends

    def _through_layers(
        self, step: _Step, x: Tensor, firsts: State, is_there: Tensor | None
    ) -> tuple[Tensor, State]:
        """Outputs (L, N, width) and last states of (L, N, input_size); see `_follow`."""
        lasts: list[State] = []
        for layer in range(self.num_layers):
            if layer and self.dropout and self.training:
                x = x.dropout(self.dropout)
            made = []
            for way in self._ways:
                first = tuple(part[len(lasts)] for part in firsts)
                name = f"l{layer}{way}"
                outputs, last = self._follow(step, x, first, name, bool(way), is_there)
                made.append(outputs)
                lasts.append(last)
            x = Tensor.cat(made, dim=-1) if len(made) > 1 else made[0]
        return x, tuple(Tensor.stack(parts) for parts in zip(*lasts, strict=True))

    def _states(self, x: Tensor, state: State | None, single: bool) -> State:
        """The first states of all layers and ways: (layers * ways, N, width) each."""
        count = self.num_layers * len(self._ways)
        widths = (self._width, self.hidden_size)[: self._STATES]
        if state is None:
            blank = [Tensor.zeros(count, x.shape[1], width, dtype=x.dtype, device=x.device)
                     for width in dict.fromkeys(widths)]
            return tuple(blank) if len(blank) == self._STATES else (blank[0],) * self._STATES
        rows = () if single else (x.shape[1],)
        for part, width in zip(state, widths, strict=True):
            _check_state((part,), (count, *rows, width))
        return tuple(part.unsqueeze(1) for part in state) if single else state

    def _follow(
        self, step: _Step, x: Tensor, state: State, name: str, backwards: bool,
        is_there: Tensor | None,
    ) -> tuple[Tensor, State]:
        """One layer one way: (L, N, width) to its outputs (L, N, hidden) and its last state.

        is_there: (L, N, 1), where there are elements; elsewhere states stay as they are.
        """
        given = x.linear(getattr(self, f"weight_ih_{name}"), getattr(self, f"bias_ih_{name}", None))
        weight, bias = getattr(self, f"weight_hh_{name}"), getattr(self, f"bias_hh_{name}", None)
        narrower = getattr(self, f"weight_hr_{name}") if self.proj_size else None
        outputs: list[Tensor] = []
        parts = list(enumerate(_unstacked(given)))
        for place, part in reversed(parts) if backwards else parts:
            made = step(part, state[0].linear(weight, bias), state)
            if narrower is not None:
                made = (made[0].linear(narrower), *made[1:])
            if is_there is not None:
                here = is_there[place]
                made = tuple(here.where(one, old) for one, old in zip(made, state, strict=True))
            # Stored, or the next steps would compute parts of this one again, each in its own way.
            state = tuple(map(stored, made))
            outputs.append(stored(state[0]))
        return Tensor.stack(outputs[::-1] if backwards else outputs), state

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}"


class RNN(RNNBase):
    """tanh, or relu, of a linear layer of the input and one of the state before."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        self.nonlinearity = nonlinearity
        self._step = _rnn_step(nonlinearity)
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device,
            dtype,
        )

    def forward(
        self, x: Tensor | PackedSequence, hx: Tensor | None = None
    ) -> tuple[Any, Tensor]:
        """Return the outputs (L, N, ways*hidden) and the last states (layers*ways, N, hidden).

        hx: the first states, zeros if none are given. Raises ShapeError.
        """
        outputs, (last,) = self._run(self._step, x, None if hx is None else (hx,))
        return outputs, last


class GRU(RNNBase):
    """A state of which an update gate keeps a share, and a reset gate hides a part."""

    _GATES = 3

    def forward(
        self, x: Tensor | PackedSequence, hx: Tensor | None = None
    ) -> tuple[Any, Tensor]:
        """Return the outputs (L, N, ways*hidden) and the last states (layers*ways, N, hidden).

        hx: the first states, zeros if none are given. Raises ShapeError.
        """
        outputs, (last,) = self._run(_gru_step, x, None if hx is None else (hx,))
        return outputs, last


class LSTM(RNNBase):
    """A cell that gates write to, forget and read, beside the hidden state."""

    _GATES = 4
    _STATES = 2

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        if not isinstance(proj_size, int) or not 0 <= proj_size < max(hidden_size, 1):
            raise ArgumentError(
                "proj_size is an integer below hidden_size, 0 for none", found=repr(proj_size)
            )
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device,
            dtype, proj_size,
        )

    def forward(
        self, x: Tensor | PackedSequence, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Any, tuple[Tensor, Tensor]]:
        """Return the outputs (L, N, ways*hidden) and the last hidden and cell states.

        hx: the first hidden and cell states, (layers*ways, N, hidden) each, zeros if none are
        given. With `proj_size` hidden states are made that narrow by one more product. Raises
        ShapeError.
        """
        outputs, (hidden, cell) = self._run(_lstm_step, x, hx)
        return outputs, (hidden, cell)
