"""Recurrent layers over a whole sequence: RNN, LSTM and GRU, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from baregrad.io.onnx.call import NodeCall, Result, standard
from baregrad.tensor import Tensor

_Activation = Callable[[Tensor], Tensor]


def _activations(call: NodeCall, defaults: Sequence[str], directions: int) -> list[_Activation]:
    """The functions of all gates, for one direction after the other."""
    names = call.attribute("activations") or list(defaults) * directions
    alphas, betas = (list(call.attribute(f"activation_{kind}") or []) for kind in ("alpha", "beta"))

    def taken(values: list[float], default: float) -> float:
        return values.pop(0) if values else default

    found: list[_Activation] = []
    for name in names:
        if name == "LeakyRelu":
            found.append(_with(Tensor.leaky_relu, taken(alphas, 0.01)))
        elif name == "Elu":
            found.append(_with(Tensor.elu, taken(alphas, 1.0)))
        elif name == "ThresholdedRelu":
            found.append(_with(Tensor.threshold, taken(alphas, 1.0), 0.0))
        elif name == "HardSigmoid":
            a, b = taken(alphas, 0.2), taken(betas, 0.5)
            found.append(_hard_sigmoid(a, b))
        elif name == "ScaledTanh":
            found.append(_scaled_tanh(taken(alphas, 1.0), taken(betas, 1.0)))
        elif name == "Affine":
            found.append(_affine(taken(alphas, 1.0), taken(betas, 0.0)))
        elif name in _PLAIN:
            found.append(_PLAIN[name])
        else:
            raise call.refuse("has an activation that is not offered", found=name)
    return found


def _with(function: Any, *numbers: float) -> _Activation:
    return lambda x: function(x, *numbers)


def _hard_sigmoid(alpha: float, beta: float) -> _Activation:
    return lambda x: (x * alpha + beta).clamp(0, 1)


def _scaled_tanh(alpha: float, beta: float) -> _Activation:
    return lambda x: (x * beta).tanh() * alpha


def _affine(alpha: float, beta: float) -> _Activation:
    return lambda x: x * alpha + beta


_PLAIN: MappingProxyType[str, _Activation] = MappingProxyType({
    "Tanh": Tensor.tanh, "Sigmoid": Tensor.sigmoid, "Relu": Tensor.relu,
    "Softplus": Tensor.softplus, "Softsign": Tensor.softsign,
})  # fmt: skip

State = tuple[Tensor, ...]
# Given what the inputs add to all gates (N, gates*H), and the state, the next state.
_Step = Callable[[Tensor, State], State]


def _layer(
    call: NodeCall, gates: int, states: int, defaults: Sequence[str],
    step_of: Callable[[int, list[_Activation]], _Step],
) -> Result:
    """Both directions over the sequence: all outputs, the last state and, of an LSTM, its cell."""
    x, weight = call[0], call[1]
    batch_first = call.attribute("layout", 0)
    x = x.transpose(0, 1) if batch_first else x
    hidden = call.attribute("hidden_size") or call[2].shape[-1]
    direction = call.attribute("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    functions = _activations(call, defaults, directions)
    each = len(functions) // directions
    starts = [call.maybe(5), call.maybe(6) if states == 2 else None][:states]
    if batch_first:
        starts = [None if one is None else one.transpose(0, 1) for one in starts]
    lengths = call.maybe(4)
    all_steps, last = [], []
    for at in range(directions):
        back = direction == "reverse" or at == 1
        state = tuple(
            Tensor.zeros(x.shape[1], hidden, dtype=x.dtype, device=x.device)
            if one is None else one[at] for one in starts
        )
        given = x @ weight[at].mT
        if call.has(3):
            bias = call[3][at]
            size = gates * hidden
            added = bias[:size] if call.node.op == "GRU" else bias[:size] + bias[size:]
            given = given + added
        step = step_of(at, functions[at * each : (at + 1) * each])
        found, state = _run(given, state, step, lengths, back)
        all_steps.append(found)
        last.append(state)
    outputs = Tensor.stack(all_steps, dim=1)
    finals = [Tensor.stack([one[kind] for one in last]) for kind in range(states)]
    if batch_first:
        outputs = outputs.permute(2, 0, 1, 3)
        finals = [one.transpose(0, 1) for one in finals]
    return (outputs, *finals)


def _run(
    given: Tensor, state: State, step: _Step, lengths: Tensor | None, back: bool
) -> tuple[Tensor, State]:
    count = given.shape[0]
    found: list[Tensor] = [given] * count
    for at in range(count)[::-1] if back else range(count):
        made = step(given[at], state)
        if lengths is None:
            state = made
            found[at] = made[0]
        else:
            goes_on = (lengths > at).reshape(-1, 1)
            state = tuple(goes_on.where(new, old) for new, old in zip(made, state, strict=True))
            found[at] = goes_on.where(made[0], 0)
    return Tensor.stack(found), state


def _clipped(call: NodeCall, x: Tensor) -> Tensor:
    clip = call.attribute("clip")
    return x if clip is None else x.clamp(-clip, clip)


def _rnn(call: NodeCall) -> Result:
    def step_of(at: int, functions: list[_Activation]) -> _Step:
        recurrent = call[2][at].mT
        return lambda given, state: (functions[0](_clipped(call, given + state[0] @ recurrent)),)

    return _layer(call, 1, 1, ["Tanh"], step_of)


def _lstm(call: NodeCall) -> Result:
    def step_of(at: int, functions: list[_Activation]) -> _Step:
        recurrent = call[2][at].mT
        peeps = call[7][at].chunk(3, -1) if call.has(7) else None
        f, g, h = functions
        coupled = call.attribute("input_forget", 0)

        def step(given: Tensor, state: State) -> State:
            into, out, forget, cell = (given + state[0] @ recurrent).chunk(4, -1)
            if peeps is not None:
                into, forget = into + peeps[0] * state[1], forget + peeps[2] * state[1]
            into = f(_clipped(call, into))
            forget = 1 - into if coupled else f(_clipped(call, forget))
            held = forget * state[1] + into * g(_clipped(call, cell))
            if peeps is not None:
                out = out + peeps[1] * held
            return f(_clipped(call, out)) * h(held), held

        return step

    return _layer(call, 4, 2, ["Sigmoid", "Tanh", "Tanh"], step_of)


def _gru(call: NodeCall) -> Result:
    def step_of(at: int, functions: list[_Activation]) -> _Step:
        weight = call[2][at]
        hidden = weight.shape[-1]
        f, g = functions
        later = call.attribute("linear_before_reset", 0)
        bias = call[3][at][3 * hidden :] if call.has(3) else None
        gates, own = weight[: 2 * hidden].mT, weight[2 * hidden :].mT

        def step(given: Tensor, state: State) -> State:
            kept = state[0] @ gates
            if bias is not None:
                kept = kept + bias[: 2 * hidden]
            update, reset = f(_clipped(call, given[:, : 2 * hidden] + kept)).chunk(2, -1)
            new = given[:, 2 * hidden :]
            if later:
                inner = state[0] @ own
                inner = reset * (inner if bias is None else inner + bias[2 * hidden :])
            else:
                inner = (reset * state[0]) @ own
                inner = inner if bias is None else inner + bias[2 * hidden :]
            return ((1 - update) * g(_clipped(call, new + inner)) + update * state[0],)

        return step

    return _layer(call, 3, 1, ["Sigmoid", "Tanh"], step_of)


OPERATORS = MappingProxyType(standard({"RNN": _rnn, "LSTM": _lstm, "GRU": _gru}))
