"""Modules: objects that hold parameters, buffers and other modules as attributes.

What is a parameter follows from the attribute: a floating-point tensor that is no result of
recorded operations. `register_buffer` makes it a buffer instead: part of the state, not trained.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import FunctionType, MappingProxyType
from typing import Any, ClassVar, Self

from baregrad.base.errors import ArgumentError, BaregradError, ShapeError, is_ours
from baregrad.dtypes import DType, as_dtype, dtypes
from baregrad.nn.hooks import (
    EXTRA_STATE,
    Hooked,
    IncompatibleKeys,
    Loading,
    Passage,
    StateDict,
    StateHooks,
    load_into,
    some_names,
)
from baregrad.nn.parameter import Buffer, Parameter, in_place_of
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import (
    blame_arguments,
    explain_arguments,
    explain_constructor,
)
from baregrad.tensor.array.core import realize_storages
from baregrad.tensor.ops.shapes import as_format, preserve_format

Named = Iterator[tuple[str, Tensor]]
NOTHING: Mapping[int, Any] = MappingProxyType({})


class Module(Hooked):
    """The base of layers and models; a subclass writes `forward`, and calls go there.

    `training` says how layers such as Dropout behave; `train` and `eval` set it. No constructor
    needs to be called.
    """

    training: bool = True
    # What PyTorch's state dicts tell of a module.
    _version: ClassVar[int] = 1
    # Whether parameters are made by the first call alone.
    is_unmade: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        explain_constructor(cls)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's result; each subclass writes its own. Raises NotImplementedError."""
        raise NotImplementedError(f"{type(self).__name__} has no forward()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what `forward` returns; the first call computes the initial parameters.

        Raises DTypeError or ArgumentError where a layer of ours fails over what it does not take.
        """
        if "_is_ready" not in self.__dict__:
            self.realize()
        if "_before_forward" in self.__dict__:
            args, kwargs = self._begun(args, kwargs)
        passage = None
        if "_before_backward" in self.__dict__ or "_after_backward" in self.__dict__:
            passage = Passage(self)
            args = passage.enter(args)
        try:
            output = self.forward(*args, **kwargs)
        except BaregradError:
            raise
        except Exception as error:
            forward = type(self).forward
            # One that was replaced, by a jitted one for instance, is the user's.
            if isinstance(forward, FunctionType) and is_ours(forward.__code__):
                blame_arguments(error, forward, type(self).__name__, (self, *args), kwargs)
            raise
        if passage is not None:
            output = passage.leave(output)
        if "_after_forward" in self.__dict__:
            output = self._ended(args, kwargs, output)
        return output

    def realize(self) -> Self:
        """Compute all parameters and buffers now, in one run, if they are not yet; return it.

        The first call of a module does so, lest every call draw its initial values anew.
        """
        realize_storages(tensor._storage for _, tensor in self._tensors())
        for _, module in self.named_modules():
            module.__dict__.setdefault("_is_ready", 1)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        """Hold a value; what `Buffer` made becomes a buffer, a `Parameter` a parameter."""
        if Buffer.marks and (persistent := Buffer.is_persistent(value)) is not None:
            self.__dict__.setdefault("_buffer_names", {})[name] = persistent
        elif name in self.__dict__.get("_buffer_names", ()) and isinstance(value, Parameter):
            del self._buffer_names[name]
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        """Hold it no longer."""
        object.__delattr__(self, name)
        self.__dict__.get("_buffer_names", {}).pop(name, None)

    def __getattr__(self, name: str) -> Any:
        """A weight that is made of others, by `utils.weight_norm` for instance.

        Programs that call this themselves get what is held by that name, as in PyTorch.
        """
        if name in vars(self):
            return vars(self)[name]
        made = vars(self).get("_made_weights")
        if made is not None and name in made:
            return made[name].made(self)
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
        )

    # --- what it holds ----------------------------------------------------------------------------

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Hold a tensor that is not trained; it is in the state unless `persistent` is False."""
        setattr(self, name, tensor)
        self.__dict__.setdefault("_buffer_names", {})[name] = persistent

    def register_parameter(self, name: str, param: Tensor | None) -> None:
        """Hold a parameter, or None, as the attribute of this name."""
        setattr(self, name, param)

    def add_module(self, name: str, module: Module | None) -> None:
        """Hold a module, or None, as the attribute of this name."""
        setattr(self, name, module)

    register_module = add_module

    def get_submodule(self, target: str) -> Module:
        """Return the module at a dotted path. Raises ArgumentError where there is none."""
        found: Any = self
        for name in target.split(".") if target else ():
            found = vars(found).get(name)
            if not isinstance(found, Module):
                raise ArgumentError(
                    f"{type(self).__name__} has no module there", found=repr(target),
                    wanted=f"one of {some_names([p for p, _ in self.named_modules() if p])}",
                )
        held: Module = found
        return held

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Put a module at a dotted path, in place of what is there or as a new one.

        strict: whether there has to be one. Raises ArgumentError for an empty path, one below what
        is no module, and one where something else stands.
        """
        path, _, name = target.rpartition(".")
        holder = self.get_submodule(path)
        if strict:
            self.get_submodule(target)
        there = vars(holder).get(name)
        if not name or not isinstance(there, Module | None):
            raise ArgumentError(
                "the path of a module is to be given", found=repr(target),
                wanted=f"one of {some_names([p for p, _ in self.named_modules() if p])}",
            )
        setattr(holder, name, module)

    def get_parameter(self, target: str) -> Tensor:
        """Return the parameter at a dotted path. Raises ArgumentError where there is none."""
        return self._at(target, buffers=False)

    def get_buffer(self, target: str) -> Tensor:
        """Return the buffer at a dotted path. Raises ArgumentError where there is none."""
        return self._at(target, buffers=True)

    def _at(self, target: str, buffers: bool) -> Tensor:
        path, _, name = target.rpartition(".")
        held = dict(self.get_submodule(path)._own(buffers))
        if name not in held:
            raise ArgumentError(
                f"{type(self).__name__} has no {'buffer' if buffers else 'parameter'} there",
                found=repr(target), wanted=f"one of {some_names(list(held))}",
            )
        return held[name]

    def children(self) -> Iterator[Module]:
        """Yield the modules that this one holds itself."""
        for _, module in self.named_children():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield the modules that this one holds itself, with the names of their attributes."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value

    def modules(self) -> Iterator[Module]:
        """Yield this module and all below it, each once."""
        for _, module in self.named_modules():
            yield module

    def named_modules(
        self, memo: object = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """Yield this module as `prefix` and all below it by dotted paths, each once unless told."""
        seen: set[int] = set()
        for path, module in self._places(prefix and f"{prefix}."):
            if id(module) not in seen or not remove_duplicate:
                seen.add(id(module))
                yield path.removesuffix("."), module

    def _places(self, prefix: str, below_first: bool = False) -> Iterator[tuple[str, Module]]:
        """This module and all below it, as often as they stand somewhere; paths end in a dot."""
        if not below_first:
            yield prefix, self
        for name, child in self.named_children():
            yield from child._places(f"{prefix}{name}.", below_first)
        if below_first:
            yield prefix, self

    def _own(self, buffers: bool) -> Named:
        """The tensors that are attributes of this very module: its buffers or its parameters."""
        names: Mapping[str, bool] = self.__dict__.get("_buffer_names", {})
        for name, value in vars(self).items():
            if not isinstance(value, Tensor) or (name in names) != buffers:
                continue
            if buffers or (value.dtype.kind == "float" and value.is_leaf):
                yield name, value

    def _tensors(self) -> Named:
        for prefix, module in self._places(""):
            if module.is_unmade:
                continue
            for buffers in (False, True):
                for name, tensor in module._own(buffers):
                    yield prefix + name, tensor

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Named:
        """Yield every parameter by its dotted path; one that stands at two places once.

        prefix: what paths begin with. recurse: whether those of the modules below count.
        """
        yield from self._once(False, prefix, recurse, remove_duplicate)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Named:
        """Yield every buffer by its dotted path, each once; see `named_parameters`."""
        yield from self._once(True, prefix, recurse, remove_duplicate)

    def _once(self, buffers: bool, before: str, recurse: bool, once: bool) -> Named:
        seen: set[int] = set()
        before = before and f"{before}."
        for prefix, module in self._places(before) if recurse else [(before, self)]:
            for name, tensor in module._own(buffers):
                if id(tensor) not in seen or not once:
                    seen.add(id(tensor))
                    yield prefix + name, tensor

    def parameters(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield every parameter, each once; what an optimiser is given."""
        for _, tensor in self.named_parameters(recurse=recurse):
            yield tensor

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield every buffer, each once."""
        for _, tensor in self.named_buffers(recurse=recurse):
            yield tensor

    # --- modes ------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Set `training` here and, by their own `train`, below; return the module.

        Raises ArgumentError for what is no bool.
        """
        if mode.__class__ is not bool:
            raise ArgumentError("training is on or off", found=repr(mode), wanted="a bool")
        self.training = mode
        for child in self.children():
            child.train(mode)
        return self

    def eval(self) -> Self:
        """Set `training` to False here and below; return the module."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Let gradients be accumulated in every parameter, or not; return the module."""
        for tensor in self.parameters():
            tensor.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of every parameter, or set those that there are to zero."""
        for tensor in self.parameters():
            held = tensor.grad
            tensor.grad = None if set_to_none or held is None else held.zeros_like()

    def apply(self, function: Callable[[Module], object]) -> Self:
        """Call a function on every module below and on this one; return the module."""
        for module in reversed(list(self.modules())):
            function(module)
        return self

    def to(
        self, *args: Any, dtype: object = None, device: str | None = None,
        non_blocking: bool = False, memory_format: object = preserve_format,
    ) -> Self:
        """Move parameters and buffers to a device, a dtype (floating-point ones), or both.

        The tensors are replaced, so optimisers are made afterwards. memory_format: how those with
        as many axes as it is for lie afterwards. Raises DTypeError unless the dtype is a
        floating-point one.
        """
        layout = as_format(memory_format)
        for arg in args:
            if isinstance(arg, Tensor):
                dtype, device = arg.dtype, arg.device
            elif isinstance(arg, str) and not hasattr(dtypes, arg):
                device = arg
            elif not isinstance(arg, bool):
                dtype = arg
        wanted = None if dtype is None else as_dtype(dtype)
        moved: dict[int, tuple[Tensor, Tensor]] = {}
        for module in self.modules():
            if module.is_unmade:
                module._make_later(wanted, device)
                continue
            for name, tensor in [*module._own(False), *module._own(True)]:
                if id(tensor) not in moved:
                    moved[id(tensor)] = (tensor, in_place_of(tensor, wanted, device, layout))
                # By no means that make a buffer which requires gradients a parameter.
                object.__setattr__(module, name, moved[id(tensor)][1])
        return self.realize() if moved else self

    def _fitting(self, state: Mapping[str, Tensor], prefix: str, strict: bool) -> Module | None:
        """For a module without parameters yet: one with those that a state has below a path."""
        raise NotImplementedError

    def _turn_into(self, plain: Module) -> None:
        """For a module without parameters yet: become such a one."""
        raise NotImplementedError

    def _make_later(self, dtype: DType | None, device: str | None) -> None:
        """Note what parameters are to be made as, where there are none yet."""

    def cuda(self, device: int | str | None = None) -> Self:
        """Move parameters and buffers to a GPU of the device CUDA; return the module."""
        if isinstance(device, str):
            return self.to(device=device)
        return self.to(device=f"CUDA:{device}" if device else "CUDA")

    def cpu(self) -> Self:
        """Move parameters and buffers to the device CPU; return the module."""
        return self.to(device="CPU")

    def float(self) -> Self:
        """Make floating-point parameters and buffers float32; return the module."""
        return self.to(dtypes.float32)

    def double(self) -> Self:
        """Make floating-point parameters and buffers float64; return the module."""
        return self.to(dtypes.float64)

    def half(self) -> Self:
        """Make floating-point parameters and buffers float16; return the module."""
        return self.to(dtypes.float16)

    def bfloat16(self) -> Self:
        """Make floating-point parameters and buffers bfloat16; return the module."""
        return self.to(dtypes.bfloat16)

    def type(self, dst_type: object) -> Self:
        """Make floating-point parameters and buffers of a dtype; return the module."""
        return self.to(dst_type)

    def to_empty(self, *, device: str | None, recurse: bool = True) -> Self:
        """Move parameters and buffers to a device; their values are not to be relied on."""
        return self.to(device=device)

    def share_memory(self) -> Self:
        """Return the module, whose tensors other threads see; processes have copies of them."""
        return self

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: what a module computes is compiled whoever calls it; see `jit`."""

    def _get_name(self) -> str:
        return type(self).__name__

    # --- state ------------------------------------------------------------------------------------

    def state_dict(
        self, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Return parameters and persistent buffers by dotted paths, in PyTorch's order and names.

        The tensors alias those of the module, and are detached but with `keep_vars`. destination:
        what they are put into. prefix: what paths begin with. The attribute `_metadata` of what is
        returned tells each module's `_version`.
        """
        found: dict[str, Any] = StateDict() if destination is None else destination
        held = vars(self)
        told = {"version": self._version}
        if isinstance(found, StateDict):
            found._metadata[prefix.removesuffix(".")] = told
        for hook in held.get("_before_state", ()):
            hook.function(self, prefix, keep_vars)
        self._save_to_state_dict(found, prefix, keep_vars)
        for name, child in self.named_children():
            child.state_dict(destination=found, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for hook in held.get("_after_state", ()):
            instead = hook.function(self, found, prefix, told)
            found = found if instead is None else instead
        return found

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        """Put this very module's state into `destination`, as models that override it expect."""
        for name, tensor in self._kept():
            destination[prefix + name] = tensor if keep_vars else tensor.detach()
        if type(self).get_extra_state is not StateHooks.get_extra_state:
            destination[prefix + EXTRA_STATE] = self.get_extra_state()

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Mapping[str, Any],
        strict: bool, missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:
        """Let `load_state_dict` put values into this very module, as models that override it call.

        One that does not call it puts them there itself.
        """
        if isinstance(state_dict, Loading):
            state_dict.ours.add(id(self))

    def _kept(self) -> Named:
        """Parameters and persistent buffers of this very module."""
        kept: Mapping[str, bool] = self.__dict__.get("_buffer_names", {})
        yield from self._own(False)
        for name, tensor in self._own(True):
            if kept[name]:
                yield name, tensor

    def _state(
        self, instead: Mapping[int, Module] = NOTHING, but: Collection[int] = ()
    ) -> dict[str, Tensor]:
        """What `state_dict` shows. instead: modules in others' places, by the ids of those.

        but: ids of modules that do not count if nothing stands in their place.
        """
        found: dict[str, Tensor] = {}
        for prefix, place in self._places(""):
            module = instead.get(id(place), place)
            if module is place and id(place) in but:
                continue
            found.update((prefix + name, tensor) for name, tensor in module._kept())
        return found

    def load_state_dict(
        self, state: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Put the values of `state` into parameters and buffers, cast to their dtypes.

        Memory is shared where dtype and device agree. Nothing is changed when it raises: ShapeError
        naming what is missing, unexpected (both only if `strict`) or of another shape. Lazy layers
        that the state has tensors for become the plain ones that it is of. assign: the tensors of
        `state` themselves take the places, as they are, and optimisers are made afterwards.
        """
        places = list(self._places(""))
        if any(module._watches_loading() for _, module in places):
            return self._load_watched(places, state, strict, assign)
        return self._load(state, strict, assign, ())

    def _watches_loading(self) -> bool:
        held, kind = vars(self), type(self)
        return (
            "_before_loading" in held or "_after_loading" in held
            or kind._load_from_state_dict is not Module._load_from_state_dict
            or kind.set_extra_state is not StateHooks.set_extra_state
        )

    def _load_watched(
        self, places: list[tuple[str, Module]], state: Mapping[str, Any], strict: bool, assign: bool
    ) -> IncompatibleKeys:
        """What `load_state_dict` does where modules have a say."""
        loading = Loading(state)
        metadata: Mapping[str, Any] = getattr(state, "_metadata", None) or {}
        missing: list[str] = []
        unexpected: list[str] = []
        errors: list[str] = []
        itself: set[int] = set()
        for prefix, module in places:
            local = metadata.get(prefix[:-1], {})
            told = (loading, prefix, local, strict, missing, unexpected, errors)
            for hook in vars(module).get("_before_loading", ()):
                hook.function(*((module, *told) if hook.with_kwargs else told))
            module._load_from_state_dict(*told)
            if id(module) not in loading.ours:
                itself.add(id(module))
                for name in [n for n in loading if n.startswith(prefix) and
                             "." not in n[len(prefix):]]:
                    del loading[name]
            elif type(module).set_extra_state is not StateHooks.set_extra_state:
                if prefix + EXTRA_STATE in loading:
                    module.set_extra_state(loading.pop(prefix + EXTRA_STATE))
                elif strict:
                    missing.append(prefix + EXTRA_STATE)
        if errors:
            raise ShapeError(f"the state does not fit {type(self).__name__}",
                             found="; ".join(errors))  # fmt: skip
        listens = any("_after_loading" in vars(module) for _, module in places)
        found = self._load(loading, strict and not listens, assign, itself)
        found.missing_keys.extend(missing)
        found.unexpected_keys.extend(unexpected)
        for _, module in self._places("", below_first=True):
            for hook in vars(module).get("_after_loading", ()):
                hook.function(module, found)
        if strict and (found.missing_keys or found.unexpected_keys):
            raise ShapeError(
                f"the state does not fit {type(self).__name__}",
                found=f"missing: {some_names(found.missing_keys)}; "
                f"unexpected: {some_names(found.unexpected_keys)}",
            )
        return found

    def _load(
        self, state: Mapping[str, Any], strict: bool, assign: bool, but: Collection[int]
    ) -> IncompatibleKeys:
        """What `load_state_dict` does. but: ids of modules that others put values into."""
        unmade = {id(m): (prefix, m) for prefix, m in self._places("") if m.is_unmade}
        made: dict[int, Module | None] = {}
        for key, (prefix, module) in unmade.items():
            names = [prefix + name for name, _ in (*module._own(False), *module._own(True))]
            if any(getattr(state.get(name), "is_unmade", False) for name in names):
                # Without values on either side: it is what it was.
                state = {name: value for name, value in state.items() if name not in names}
                made[key] = None
            else:
                made[key] = module._fitting(state, prefix, strict)
        own = self._state(
            {key: m for key, m in made.items() if m is not None}, {*unmade, *but}
        )
        found = load_into(own, state, strict, type(self).__name__, assign)
        if assign:
            self._assign(state, but)
        for key, (_, module) in unmade.items():
            plain = made[key]
            if plain is not None:
                module._turn_into(plain)
        return found

    def _assign(self, state: Mapping[str, Any], but: Collection[int]) -> None:
        """Let the tensors of a state take the places of those by their names."""
        for prefix, module in self._places(""):
            if id(module) in but or module.is_unmade:
                continue
            for name, old in list(module._kept()):
                if prefix + name in state:
                    made = state[prefix + name].detach()
                    object.__setattr__(module, name, made.requires_grad_(old.requires_grad))

    def __repr__(self) -> str:
        inner = [f"({name}): {module!r}".replace("\n", "\n  ")
                 for name, module in self.named_children()]
        own = self.extra_repr()
        if not inner:
            return f"{type(self).__name__}({own})"
        return "\n  ".join([f"{type(self).__name__}({own}", *inner]) + "\n)"

    def extra_repr(self) -> str:
        """Return what `repr` shows of the module's settings."""
        return ""


explain_arguments(Module)
