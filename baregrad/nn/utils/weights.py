"""Weights as vectors, layers joined, weights made of others whenever they are read."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.nn.hooks import HookHandle
from baregrad.nn.module import Module
from baregrad.nn.parameter import parameter
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explained

AnyModule = TypeVar("AnyModule", bound=Module)


@explained
def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Return the elements of all parameters, one after another."""
    return Tensor.cat([p.reshape(-1) for p in parameters])


@explained
def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Write a vector's elements into parameters. Raises ShapeError unless it has as many."""
    given = list(parameters)
    count = sum(p.numel() for p in given)
    if vec.shape != (count,):
        raise ShapeError("a vector of all elements", found=list(vec.shape), wanted=[count])
    first = 0
    with Tensor.no_grad():
        for p in given:
            p.copy_(vec[first : first + p.numel()].reshape(p.shape))
            first += p.numel()


# --- layers joined --------------------------------------------------------------------------------


@explained
def fuse_conv_bn_weights(
    conv_w: Tensor, conv_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float,
    bn_w: Tensor | None, bn_b: Tensor | None, transpose: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a convolution that does what a normalisation behind it did.

    bn_rm, bn_rv: its running mean and variance. Channels are the weight's first axis, the second
    one with `transpose`.
    """
    scale = (bn_rv + bn_eps).rsqrt()
    scale = scale if bn_w is None else scale * bn_w
    shift = -bn_rm if conv_b is None else conv_b - bn_rm
    bias = shift * scale if bn_b is None else shift * scale + bn_b
    axis = int(transpose)
    shape = [-1 if place == axis else 1 for place in range(conv_w.ndim)]
    made = [(conv_w * scale.reshape(*shape)).cast(conv_w.dtype), bias.cast(conv_w.dtype)]
    weight, bias = [one.detach().requires_grad_(conv_w.requires_grad) for one in made]
    return weight, bias


@explained
def fuse_linear_bn_weights(
    linear_w: Tensor, linear_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float,
    bn_w: Tensor | None, bn_b: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return `fuse_conv_bn_weights` of a linear layer."""
    return fuse_conv_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)


def _fused(layer: AnyModule, norm: Any, transpose: bool) -> AnyModule:
    if layer.training or norm.training or norm.running_mean is None:
        raise ArgumentError(
            "layers are joined of which the second scales by running statistics",
            found="one that trains, or keeps none", hint="call eval() first",
        )
    made = copy.deepcopy(layer)
    given: Any = layer
    weight, bias = fuse_conv_bn_weights(
        given.weight, given.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight,
        norm.bias, transpose,
    )
    vars(made).update(weight=weight, bias=bias)
    return made


@explained
def fuse_conv_bn_eval(conv: AnyModule, bn: Module, transpose: bool = False) -> AnyModule:
    """Return a convolution that does what `bn` behind it did, both in evaluation."""
    return _fused(conv, bn, transpose)


@explained
def fuse_linear_bn_eval(linear: AnyModule, bn: Module) -> AnyModule:
    """Return a linear layer that does what `bn` behind it did, both in evaluation."""
    return _fused(linear, bn, False)


def skip_init(module_cls: type[AnyModule], *args: Any, **kwargs: Any) -> AnyModule:
    """Return a module whose parameters hold what is not to be relied on: drawn when they are read.

    Values here are lazy, so that none are drawn that something is written over first.
    """
    return module_cls(*args, **kwargs)


# --- weights made of others -----------------------------------------------------------------------


class _Made:
    """A weight of a module that is made of other parameters whenever it is read."""

    def __init__(self, name: str) -> None:
        self.name = name

    def made(self, module: Module) -> Tensor:
        """Return the weight."""
        raise NotImplementedError

    def put(self, module: Module) -> None:
        """Take the weight's place in a module."""
        held = vars(module).get("_made_weights", {})
        vars(module)["_made_weights"] = {**held, self.name: self}


def _taken_away(module: Module, name: str, kind: type[_Made]) -> _Made:
    """Make the weight a parameter again, of the value that it has now; return what made it."""
    held: Mapping[str, _Made] = vars(module).get("_made_weights", {})
    made = held.get(name)
    if not isinstance(made, kind):
        raise ArgumentError(f"{type(module).__name__} has no such weight", found=repr(name))
    with Tensor.no_grad():
        value = made.made(module)
    vars(module)["_made_weights"] = {
        key: value for key, value in held.items() if key != name
    }
    for part in [part for part in vars(module) if part.startswith(f"{name}_")]:
        delattr(module, part)
    setattr(module, name, parameter(value))
    return made


def norm_beside(v: Tensor, dim: int | None) -> Tensor:
    """The norm of each part of `v` along an axis, with as many axes; of all of it for None."""
    if dim is None:
        return v.norm()
    axes = tuple(i for i in range(v.ndim) if i != dim % v.ndim)
    return v.norm(2, axes, True) if axes else v.abs()


class _WeightNorm(_Made):
    """g * v / |v|. Source: T. Salimans and D. Kingma, NeurIPS 2016."""

    def __init__(self, name: str, dim: int | None) -> None:
        super().__init__(name)
        self.dim = dim

    def made(self, module: Module) -> Tensor:
        """Return the weight of the present length and direction."""
        v: Tensor = getattr(module, f"{self.name}_v")
        g: Tensor = getattr(module, f"{self.name}_g")
        return v * (g / norm_beside(v, self.dim))


@explained
def weight_norm(module: AnyModule, name: str = "weight", dim: int | None = 0) -> AnyModule:
    """Have a weight made of its lengths, `weight_g`, and directions, `weight_v`; return the module.

    Lengths are along each part of the axis `dim`, or of the whole for None.
    """
    weight = module.get_parameter(name)
    delattr(module, name)
    setattr(module, f"{name}_g", parameter(norm_beside(weight.detach(), dim)))
    setattr(module, f"{name}_v", parameter(weight))
    _WeightNorm(name, dim).put(module)
    return module


@explained
def remove_weight_norm(module: AnyModule, name: str = "weight") -> AnyModule:
    """Make a weight a parameter again. Raises ArgumentError where it has no `weight_norm`."""
    _taken_away(module, name, _WeightNorm)
    return module


class _SpectralNorm(_Made):
    """weight / its largest singular value, by power iteration.

    Source: T. Miyato and others, "Spectral Normalization for GANs", ICLR 2018.
    """

    def __init__(self, name: str, iterations: int, eps: float, dim: int) -> None:
        super().__init__(name)
        self.iterations = iterations
        self.eps = eps
        self.dim = dim
        self.handle: HookHandle | None = None

    def matrix(self, weight: Tensor) -> Tensor:
        """The weight as a matrix whose rows are along `dim`."""
        return weight.movedim(self.dim, 0).flatten(1)

    def made(self, module: Module) -> Tensor:
        """Return the weight divided by its largest singular value."""
        weight: Tensor = getattr(module, f"{self.name}_orig")
        u: Tensor = getattr(module, f"{self.name}_u")
        v: Tensor = getattr(module, f"{self.name}_v")
        largest = u.clone().detach().dot(self.matrix(weight).mv(v.clone().detach()))
        return weight / largest

    def __call__(self, module: Module, args: Any) -> None:
        """Come closer to the singular vectors, before each call in training."""
        if not module.training:
            return
        u, v = getattr(module, f"{self.name}_u"), getattr(module, f"{self.name}_v")
        with Tensor.no_grad():
            matrix = self.matrix(getattr(module, f"{self.name}_orig"))
            for _ in range(self.iterations):
                v.copy_(matrix.transpose(0, 1).mv(u).normalize(dim=0, eps=self.eps))
                u.copy_(matrix.mv(v).normalize(dim=0, eps=self.eps))


@explained
def spectral_norm(
    module: AnyModule, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12,
    dim: int | None = None,
) -> AnyModule:
    """Have a weight divided by its largest singular value before each call; return the module.

    The rows of the matrix are along `dim`: the first axis, the second for transposed convolutions.
    """
    weight = module.get_parameter(name)
    rows = dim if dim is not None else int("Transpose" in type(module).__name__)
    norm = _SpectralNorm(name, n_power_iterations, eps, rows)
    delattr(module, name)
    matrix = norm.matrix(weight.detach())
    for part, count in (("u", matrix.shape[0]), ("v", matrix.shape[1])):
        drawn = Tensor.randn(count, dtype=weight.dtype, device=weight.device)
        module.register_buffer(f"{name}_{part}", drawn.normalize(dim=0, eps=eps))
    setattr(module, f"{name}_orig", parameter(weight))
    norm.put(module)
    norm.handle = module.register_forward_pre_hook(norm)
    return module


@explained
def remove_spectral_norm(module: AnyModule, name: str = "weight") -> AnyModule:
    """Make a weight a parameter again. Raises ArgumentError where it has no `spectral_norm`."""
    made = _taken_away(module, name, _SpectralNorm)
    if isinstance(made, _SpectralNorm) and made.handle is not None:
        made.handle.remove()
    return module
