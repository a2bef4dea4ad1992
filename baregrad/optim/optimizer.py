"""What optimisers share: groups of parameters, their states, and one run for a whole step."""

from __future__ import annotations

from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    ValuesView,
)
from typing import Any

from baregrad.base.errors import ArgumentError, DTypeError, GradientError, ShapeError
from baregrad.dtypes import DType, dtypes
from baregrad.engine.session import current_session
from baregrad.optim.step_hooks import WithHooks
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explain_arguments, explain_constructor
from baregrad.tensor.array.core import realize_storages
from baregrad.tensor.array.storage import Storage, buffer_node
from baregrad.tensor.jit.parts import part_shared
from baregrad.tensor.ops.creation import stored_zeros

State = dict[str, Tensor]


class ParamGroup(dict[str, Any]):
    """Parameters with their settings: a dict with the keys "params", "lr" and others.

    "lr" is a float64 tensor of one element, whose value a number assigned to it replaces: a
    captured step reads what it holds at each replay. Read, in whatever way, it is a tensor of the
    present value; `lr` is the one that is held.
    """

    @property
    def lr(self) -> Tensor:
        """The tensor that holds the rate, which steps read."""
        held: Tensor = dict.__getitem__(self, "lr")
        return held

    def __getitem__(self, key: str) -> Any:
        found = dict.__getitem__(self, key)
        # What programs keep of it, as in a list of rates, changes no more.
        return found.detach().clone() if key == "lr" and isinstance(found, Tensor) else found

    def __iter__(self) -> Iterator[str]:
        # Where a class has this, dict() and ** ask for each key, and do not copy what is held.
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        """Return a setting, the rate as its present value; `default` where there is none."""
        return self[key] if key in self else default  # noqa: SIM401 - this is `get`

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        """Return the keys and what they give."""
        return ItemsView(self)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """Return what the keys give."""
        return ValuesView(self)

    def update(self, *given: Any, **named: Any) -> None:
        """Assign each of several settings."""
        for key, value in dict(*given, **named).items():
            self[key] = value

    def __setitem__(self, key: str, value: Any) -> None:
        known = dict.get(self, "lr")
        if key == "lr" and isinstance(known, Tensor):
            with Tensor.no_grad():
                known.copy_(_scalar(value, known.device))
            return
        super().__setitem__(key, value)


def _scalar(value: Any, device: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().to(dtypes.float64, device)
    if not isinstance(value, int | float) or value < 0:
        raise ArgumentError(f"a learning rate is a number from 0 on, not {value!r}")
    return Tensor(float(value), dtype=dtypes.float64, device=device)


def has_momentum(group: ParamGroup) -> bool:
    """Whether steps of a group have momentum: a number above 0, or a schedule's tensor."""
    momentum = group["momentum"]
    return isinstance(momentum, Tensor) or momentum > 0


def _is_followed() -> bool:
    """Whether what happens now is made a function of: replays would find memory as they left it."""
    watching = current_session().watching
    return bool(watching.transforming) or watching.isolated is not None


def zeros_beside(p: Tensor) -> Tensor:
    """Zeros of the shape of a parameter, in memory of their own."""
    shape = p.shape
    if p.is_paired or _is_followed():
        return p.zeros_like()
    if not all(isinstance(extent, int) for extent in shape) or p.dtype.bits < 8:
        return p.zeros_like()
    return stored_zeros(Tensor, shape, p.dtype, p.device)


def _number(value: Any) -> Any:
    """A setting as it is kept in a state: numbers for the tensors of a schedule."""
    if isinstance(value, tuple):
        return tuple(_number(one) for one in value)
    return value.item() if isinstance(value, Tensor) else value


class Optimizer(WithHooks):
    """The base of optimisers; a subclass writes `update`.

    params: tensors that require gradients, or dicts with the key "params" and settings that differ
    from `defaults`. Parameters of narrow floats are kept in float32 as well (the state
    "master"), where updates too small for them add up, and so are their other states. Not so with
    the setting `master_weights` false: then all are of the parameter's dtype, half the memory, and
    each step is computed in float32 and rounded once. Parameters of lazy layers may be without
    values until these are called. Raises ShapeError for no parameters, GradientError for tensors
    that are no leaves.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        explain_constructor(cls)

    def __init__(
        self, params: Iterable[Tensor] | Iterable[Mapping[str, Any]], defaults: Mapping[str, Any]
    ) -> None:
        given = _listed(params)
        if not given:
            raise ShapeError("an optimiser wants parameters", found="none")
        groups = given if isinstance(given[0], Mapping) else [{"params": given}]
        self.defaults = dict(defaults)
        self.param_groups: list[ParamGroup] = []
        self._states: dict[int, State] = {}  # by id of the parameter, which a group holds
        for group in groups:
            self.add_param_group(group)
        realize_storages(self._held())

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add parameters with settings of their own."""
        if "params" not in group:
            raise ArgumentError(
                "a group of parameters has them under 'params'", found=f"keys {[*group]!r:.80}"
            )
        params = group["params"]
        params = [params] if isinstance(params, Tensor) else _listed(params)
        known = {id(p) for other in self.param_groups for p in other["params"]}
        for p in params:
            _check_parameter(p, known)
            known.add(id(p))
        settings = {**self.defaults, **group, "params": params}
        made = ParamGroup(settings)
        lr = settings["lr"]
        dict.__setitem__(made, "lr", _scalar(lr, params[0].device).clone())
        made.setdefault("initial_lr", float(lr))
        self.param_groups.append(made)

    @property
    def state(self) -> dict[Tensor, State]:
        """The tensors kept beside each parameter, such as running means; empty before a step."""
        params = (p for group in self.param_groups for p in group["params"])
        return {p: self._states[id(p)] for p in params if id(p) in self._states}

    # --- a step -----------------------------------------------------------------------------------

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or set those that there are to zero."""
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None if set_to_none or p.grad is None else p.grad.zeros_like()

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Change every parameter that has a gradient; compute all that changes in one run.

        The run includes the loss that `backward` was called on, learning rates, and other tensors
        changed in place, such as running statistics. `closure` computes the loss first, which is
        returned.
        """
        loss = None if closure is None else closure()
        self._take()
        self._realize()
        return loss

    @Tensor.no_grad()
    def _take(self) -> None:
        """Change every parameter that has a gradient, in nodes."""
        active = self.begin()
        self._advance([state for _, state, _ in active])
        for p, state, group in active:
            self._change(p, state, group)

    @Tensor.no_grad()
    def begin(self) -> list[tuple[Tensor, State, ParamGroup]]:
        """The parameters that have gradients, with states, made where a first step finds none."""
        clocks: dict[str, Tensor] = {}
        known = len(self._states)
        found = [
            (p, self._state_of(p, group, clocks), group)
            for group in self.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        if len(self._states) > known and not _is_followed():
            self._settle(found)
        return found

    def _settle(self, active: Sequence[tuple[Tensor, State, ParamGroup]]) -> None:
        """Have parameters and their states in memory, each in its own.

        So a first step is one like all others, and is not planned and compiled for itself.
        """
        groups = {id(group): group for _, _, group in active}
        settled = [t for p, state, _ in active for t in (p, *state.values())]
        settled += [group.lr for group in groups.values()]
        storages = dict.fromkeys(tensor._storage for tensor in settled)
        pending: dict[str, list[Storage]] = {}
        for storage in storages:
            if storage.is_pending and not storage.grad:
                pending.setdefault(storage.device, []).append(storage)
        for device, held in pending.items():
            # By themselves: nothing of the loss and its gradients is computed along.
            nodes = [storage.node for storage in held]
            refs = current_session().realize(nodes, device)
            for storage, node, ref in zip(held, nodes, refs, strict=True):
                storage.hold(buffer_node(ref, node.dtype), node)
        part_shared(storages)

    def initial_state(self, p: Tensor, group: ParamGroup) -> State:
        """Return the tensors that an update of `p` wants beside it."""
        return {}

    def update(self, p: Tensor, gradient: Tensor, state: State, group: ParamGroup) -> Tensor:
        """Return the new value of a parameter, of its dtype, and write new values into `state`."""
        raise NotImplementedError(f"{type(self).__name__} has no update()")

    def _state_of(self, p: Tensor, group: ParamGroup, clocks: dict[str, Tensor]) -> State:
        """The state of a parameter; those made in one step share a step count."""
        found = self._states.get(id(p))
        if found is None:
            if p.device not in clocks:
                clocks[p.device] = Tensor.zeros(device=p.device)
            found = {"step": clocks[p.device]}
            if _has_master(p, group):
                found["master"] = p.detach().cast(dtypes.float32)
            found.update(self.initial_state(found.get("master", p), group))
            self._states[id(p)] = found
        return found

    def _advance(self, states: Sequence[State]) -> None:
        """Count a step. Those that have always moved together keep sharing one tensor."""
        moving = {id(state) for state in states}
        lagging = {id(s["step"]) for s in self._states.values() if id(s) not in moving}
        counts: dict[int, Tensor] = {}
        for state in states:
            count = state["step"]
            if id(count) not in counts:
                counts[id(count)] = count.clone() if id(count) in lagging else count
                counts[id(count)].add_(1)
            state["step"] = counts[id(count)]

    def _change(self, p: Tensor, state: State, group: ParamGroup) -> None:
        gradient = p.grad
        assert gradient is not None
        target = state.get("master", p)
        old, seen = target.detach(), state
        if target.dtype.bits < 32:
            # Rounded once, at the end.
            old, seen = old.cast(dtypes.float32), _widened(state)
        if gradient.dtype is not old.dtype:
            gradient = gradient.cast(old.dtype)
        if group.get("maximize", False):
            gradient = -gradient
        value = self.update(old, gradient.detach(), seen, group)
        if seen is not state:
            _narrow(seen, state, target.dtype)
            value = value.cast(target.dtype)
        target.copy_(value)
        if target is not p:
            p.copy_(value)

    def _held(self) -> list[Any]:
        """The storages of the parameters that have values: those of lazy layers may not yet."""
        params = (p for group in self.param_groups for p in group["params"])
        return [p._storage for p in params if not p.is_unmade]

    def _realize(self) -> None:
        changed = self._held()
        changed += [t._storage for state in self._states.values() for t in state.values()]
        changed += [group.lr._storage for group in self.param_groups]
        realize_storages(dict.fromkeys(changed))

    # --- state ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the states by the parameters' positions, and the settings, as PyTorch does."""
        self._called("before_state")
        places: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for p in group["params"]:
                places[id(p)] = len(places)
            kept = {
                key: _number(value) for key, value in group.items() if key not in ("params", "lr")
            }
            numbers = [places[id(p)] for p in group["params"]]
            groups.append({"lr": group.lr.item(), **kept, "params": numbers})
        states = {
            places[key]: {name: tensor.detach() for name, tensor in state.items()}
            for key, state in self._states.items()
        }
        shown = {"state": states, "param_groups": groups}
        found: dict[str, Any] = self._called("after_state", shown)
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over states and settings that `state_dict` (or PyTorch's) returned.

        Raises ShapeError when groups, parameters or shapes do not fit.
        """
        state_dict = self._called("before_loading", state_dict)
        sizes = [len(group["params"]) for group in state_dict["param_groups"]]
        if sizes != [len(group["params"]) for group in self.param_groups]:
            raise ShapeError(
                "the state is of other groups of parameters",
                found=sizes,
                wanted=[len(group["params"]) for group in self.param_groups],
            )
        groups = list(zip(self.param_groups, state_dict["param_groups"], strict=True))
        numbers = [i for _, other in groups for i in other["params"]]
        params = [
            (p, _has_master(p, {**group, **other})) for group, other in groups
            for p in group["params"]
        ]
        clocks: dict[tuple[str, float], Tensor] = {}
        loaded = {
            id(p): _loaded_state(p, state_dict["state"][number], clocks, keeps)
            for (p, keeps), number in zip(params, numbers, strict=True)
            if number in state_dict["state"]
        }
        for group, other in groups:
            for key, value in other.items():
                if key != "params":
                    group[key] = value
        self._states = loaded
        self._called("after_loading")

    def __repr__(self) -> str:
        facts = ", ".join(f"{key}={value}" for key, value in self.defaults.items())
        return f"{type(self).__name__}({facts})"


def _has_master(p: Tensor, group: Mapping[str, Any]) -> bool:
    """Whether a parameter is kept in float32 as well."""
    return p.dtype.bits < 32 and bool(group.get("master_weights", True))


def _widened(state: State) -> State:
    """The tensors of a state in float32; the step count is what it was."""
    return {
        name: tensor if name == "step" else tensor.cast(dtypes.float32)
        for name, tensor in state.items()
    }


def _narrow(seen: State, state: State, dtype: DType) -> None:
    """Write what was widened back into a state, and what is new in it."""
    for name, tensor in seen.items():
        if name in state and name != "step":
            state[name].copy_(tensor.cast(dtype))
        elif name != "step":
            state[name] = tensor.cast(dtype)


def _listed(params: Any) -> list[Any]:
    """Several parameters or groups, as a list."""
    try:
        return list(params)
    except TypeError as error:
        raise DTypeError(
            "an optimiser's parameters are tensors", found=type(params).__name__,
            wanted="several of them, or groups",
        ) from error


def _check_parameter(p: object, known: set[int]) -> None:
    if not isinstance(p, Tensor):
        raise DTypeError("an optimiser's parameters are tensors", found=type(p).__name__)
    if p.dtype.kind != "float" or not p.is_leaf:
        raise GradientError(
            "an optimiser changes floating-point leaves",
            found=f"dtype {p.dtype}" if p.dtype.kind != "float" else "a result of operations",
            hint="pass the tensors on which requires_grad_() was called",
        )
    if id(p) in known:
        raise ShapeError("a parameter stands twice in an optimiser", found=list(p.shape))


def _loaded_state(
    p: Tensor, state: Mapping[str, Any], clocks: dict[tuple[str, float], Tensor], keeps: bool
) -> State:
    """A parameter's state; equal step counts become one tensor, as they were when saved.

    keeps: whether the parameter is kept in float32 as well.
    """
    steps = (p.device, float(state.get("step") or 0.0))
    found: State = {"step": clocks.setdefault(steps, Tensor(steps[1], device=p.device))}
    wanted = dtypes.float32 if keeps else p.dtype
    for name, value in state.items():
        if value is None or name == "step" or (name == "master" and not keeps):
            continue
        tensor = value if isinstance(value, Tensor) else Tensor(value)
        if tensor.ndim == 0:
            # A number beside the parameter, of as many bits as it needs.
            found[name] = tensor.detach().to(dtypes.float64, p.device).clone()
            continue
        if name not in ("row_var", "col_var") and tensor.shape != p.shape:
            raise ShapeError(
                f"the state {name!r} is of another parameter",
                found=list(tensor.shape),
                wanted=list(p.shape),
            )
        found[name] = tensor.detach().to(wanted, p.device).clone()
    if keeps:
        found.setdefault("master", p.detach().cast(dtypes.float32))
    return found


explain_constructor(Optimizer)
explain_arguments(Optimizer)
