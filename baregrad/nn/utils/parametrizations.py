"""Weights by length and direction, of a largest singular value of 1, and orthogonal ones.

Each is registered by `parametrize`, with the names of PyTorch's parameters.
"""

from __future__ import annotations

import math
from typing import TypeVar

from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.base.namespaces import unknown_name
from baregrad.nn.module import Module
from baregrad.nn.utils.parametrize import register_parametrization
from baregrad.nn.utils.weights import norm_beside
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explained

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]

AnyModule = TypeVar("AnyModule", bound=Module)
_FIRST_ITERATIONS = 15
_MAPS = ("matrix_exp", "cayley", "householder")


class _WeightNorm(Module):
    """length * direction / |direction|. Source: T. Salimans and D. Kingma, NeurIPS 2016."""

    def __init__(self, dim: int | None) -> None:
        self.dim = dim

    def forward(self, length: Tensor, direction: Tensor) -> Tensor:
        """Return the weight."""
        return direction * (length / norm_beside(direction, self.dim))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return its lengths, and itself for the direction."""
        return norm_beside(weight, self.dim), weight


@explained
def weight_norm(module: AnyModule, name: str = "weight", dim: int | None = 0) -> AnyModule:
    """Have a weight made of its lengths, `original0`, and directions, `original1`; return `module`.

    Lengths are along each part of the axis `dim`, or of the whole for None.
    """
    return register_parametrization(module, name, _WeightNorm(dim), unsafe=True)


class _SpectralNorm(Module):
    """weight / its largest singular value, by power iteration at each read in training.

    Source: T. Miyato and others, "Spectral Normalization for GANs", ICLR 2018.
    """

    def __init__(self, weight: Tensor, iterations: int, dim: int, eps: float) -> None:
        self.n_power_iterations = iterations
        self.dim = dim
        self.eps = eps
        if weight.ndim < 2:
            return
        with Tensor.no_grad():
            matrix = self._matrix(weight.detach())
            for name, count in (("_u", matrix.shape[0]), ("_v", matrix.shape[1])):
                drawn = Tensor.randn(count, dtype=weight.dtype, device=weight.device)
                self.register_buffer(name, drawn.normalize(dim=0, eps=eps).realize())
            self._come_closer(matrix, _FIRST_ITERATIONS)

    def _matrix(self, weight: Tensor) -> Tensor:
        """The weight as a matrix whose rows are along `dim`."""
        return weight.movedim(self.dim, 0).flatten(1)

    def _come_closer(self, matrix: Tensor, iterations: int) -> None:
        u: Tensor = vars(self)["_u"]
        v: Tensor = vars(self)["_v"]
        for _ in range(iterations):
            u.copy_(matrix.mv(v).normalize(dim=0, eps=self.eps))
            v.copy_(matrix.transpose(0, 1).mv(u).normalize(dim=0, eps=self.eps))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight divided by its largest singular value; a vector by its length."""
        if weight.ndim < 2:
            return weight.normalize(dim=0, eps=self.eps)
        matrix = self._matrix(weight)
        if self.training:
            with Tensor.no_grad():
                self._come_closer(matrix.detach(), self.n_power_iterations)
        u: Tensor = vars(self)["_u"].clone()
        v: Tensor = vars(self)["_v"].clone()
        return weight / u.dot(matrix.mv(v))

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Return the weight itself: it has the same direction."""
        return weight


@explained
def spectral_norm(
    module: AnyModule, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12,
    dim: int | None = None,
) -> AnyModule:
    """Have a weight divided by its largest singular value whenever it is read; return `module`.

    The rows of the matrix are along `dim`: the first axis, the second for transposed convolutions.
    Raises ArgumentError for fewer iterations than one.
    """
    if n_power_iterations < 1:
        raise ArgumentError("iterations are from 1 on", found=n_power_iterations)
    rows = dim if dim is not None else int("ConvTranspose" in type(module).__name__)
    made = _SpectralNorm(_weight(module, name), n_power_iterations, rows, eps)
    return register_parametrization(module, name, made)


def _weight(module: Module, name: str) -> Tensor:
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ArgumentError(f"{type(module).__name__} has no such tensor", found=repr(name))
    return weight


def _by_sign(q: Tensor, triangle: Tensor) -> Tensor:
    """Columns of `q` by the signs of a diagonal: a QR factorisation's then is the only one."""
    return q * triangle.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)


def _made_orthogonal(x: Tensor) -> Tensor:
    """A square orthogonal matrix whose first columns span what those of `x` do."""
    reflectors, tau = x.geqrf()
    return _by_sign(reflectors.orgqr(tau), reflectors)


class _Orthogonal(Module):
    """An orthogonal matrix of any: by an exponential, Cayley's map, or reflections.

    With `base` it is that one times the map, so that a start anywhere is the map's easy place.
    Source: M. Lezcano-Casado, "Trivializations for gradient-based optimization on manifolds", 2019.
    """

    def __init__(self, weight: Tensor, way: str, is_based: bool) -> None:
        self.shape = weight.shape
        self.way = way
        if is_based:
            size = max(weight.shape[-2:])
            blank = Tensor.zeros(*weight.shape[:-2], size, size, dtype=weight.dtype,
                                 device=weight.device)
            self.register_buffer("base", blank)

    def forward(self, x: Tensor) -> Tensor:
        """Return the matrix: orthonormal columns, or rows where these are fewer."""
        is_wide = x.shape[-2] < x.shape[-1]
        tall = x.mT if is_wide else x
        n, k = tall.shape[-2:]
        if self.way == "householder":
            low = tall.tril(-1)
            tau = 2.0 / (1.0 + (low * low).sum(-2))
            signs = tall.diagonal(dim1=-2, dim2=-1).trunc()
            q = low.orgqr(tau) * signs.unsqueeze(-2)
        else:
            low = tall.tril()
            if n != k:
                low = Tensor.cat([low, low.new_zeros(*low.shape[:-2], n, n - k)], dim=-1)
            skew = low - low.mT
            if self.way == "matrix_exp":
                q = skew.matrix_exp()
            else:
                one = Tensor.eye(n, dtype=x.dtype, device=x.device)
                # Of a skew matrix: no singular value of what is inverted is below 1.
                q = (one - skew * 0.5).inverse() @ (one + skew * 0.5)
            q = q[..., :k]
        if "base" in vars(self):
            q = self.base @ q
        return q.mT if is_wide else q

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Return what makes the orthogonal matrix next to `weight`.

        Raises NotImplementedError for the exponential and Cayley's map without a base.
        """
        if weight.shape != self.shape:
            raise ShapeError("a weight of another shape", found=list(weight.shape),
                             wanted=list(self.shape))
        is_wide = weight.shape[-2] < weight.shape[-1]
        tall = weight.mT if is_wide else weight
        n, k = tall.shape[-2:]
        if "base" not in vars(self):
            if self.way != "householder":
                raise NotImplementedError("of these maps a logarithm is not offered")
            reflectors, tau = tall.geqrf()
            signs = reflectors.diagonal(dim1=-2, dim2=-1).sign()
            signs = (tau == 0).where(-signs, signs)
            made = reflectors.tril(-1) + reflectors.triu(1)
            found: Tensor = made + Tensor.eye(n, k, dtype=tall.dtype, device=tall.device) * (
                signs.unsqueeze(-2))
            return found.mT if is_wide else found
        if n != k:
            drawn = Tensor.randn(*tall.shape[:-1], n - k, dtype=tall.dtype, device=tall.device)
            tall = Tensor.cat([tall, drawn], dim=-1)
        elif _is_orthogonal(tall):
            self.base.copy_(tall)
            return self._start(weight)
        self.base.copy_(_made_orthogonal(tall))
        return self._start(weight)

    def _start(self, weight: Tensor) -> Tensor:
        """What every map makes the identity of."""
        rows, columns = weight.shape[-2:]
        one = Tensor.eye(rows, columns, dtype=weight.dtype, device=weight.device)
        return (-one).expand(weight.shape).clone()


def _is_orthogonal(q: Tensor) -> bool:
    """Whether a square matrix is one, to ten roundings for each column, as PyTorch asks."""
    n = q.shape[-1]
    away = q.mT @ q - Tensor.eye(n, dtype=q.dtype, device=q.device)
    return bool(away.abs().max().item() <= 10 * n * _epsilon(q))


def _epsilon(x: Tensor) -> float:
    return math.ldexp(1.0, -52 if x.dtype.bits == 64 else -23)


@explained
def orthogonal(
    module: AnyModule, name: str = "weight", orthogonal_map: str | None = None, *,
    use_trivialization: bool = True,
) -> AnyModule:
    """Have a matrix, or a batch of them, orthogonal, along its longer side; return `module`.

    orthogonal_map: "matrix_exp", "cayley" or "householder", by default the first for square
    matrices, else the last. use_trivialization: begin at the orthogonal matrix next to the present
    one, which a buffer `base` holds. Raises ArgumentError and ShapeError.
    """
    weight = _weight(module, name)
    if weight.ndim < 2:
        raise ShapeError("a matrix, or a batch of them", found=list(weight.shape))
    is_square = weight.shape[-2] == weight.shape[-1]
    way = orthogonal_map or ("matrix_exp" if is_square else "householder")
    if way not in _MAPS:
        raise ArgumentError(f"orthogonal_map is one of {', '.join(_MAPS)}", found=repr(way))
    made = _Orthogonal(weight, way, use_trivialization)
    return register_parametrization(module, name, made, unsafe=True)


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.nn.utils.parametrizations", name, __all__)
