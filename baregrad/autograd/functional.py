"""`torch.autograd.functional`: derivatives of functions of one tensor or of several.

Inputs are a tensor or a tuple of them, and what is returned has their structure; `baregrad.func`
has the same as functions of functions. What does not depend on an input has zeros: `strict`, which
refuses that, raises UnsupportedError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baregrad import func as transforms
from baregrad.base.errors import ArgumentError, ShapeError, UnsupportedError
from baregrad.base.namespaces import unknown_name
from baregrad.tensor.tensor import Tensor

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]


def _given(inputs: Any, what: str, strict: bool) -> tuple[Any, ...]:
    if strict:
        raise UnsupportedError(f"{what} gives zeros where nothing depends on an input",
                               found="strict=True")  # fmt: skip
    found = inputs if isinstance(inputs, tuple) else (inputs,)
    for one in found:
        if not isinstance(one, Tensor):
            raise ArgumentError(f"{what} takes a tensor, or a tuple of them",
                                found=f"{type(one).__name__}")  # fmt: skip
    return found


def _cut(found: Any, create_graph: bool) -> Any:
    """What is returned, without its own graph unless that is wanted."""
    if create_graph:
        return found
    if isinstance(found, tuple | list):
        return tuple(_cut(one, False) for one in found)
    return found.detach()


def _alike(found: tuple[Any, ...], inputs: Any) -> Any:
    return found if isinstance(inputs, tuple) else found[0]


def jacobian(
    func: Callable[..., Any], inputs: Any, create_graph: bool = False, strict: bool = False,
    vectorize: bool = False, strategy: str = "reverse-mode",
) -> Any:
    """Return the Jacobian of each output by each input, of shape (*output, *input).

    strategy: "reverse-mode" or "forward-mode". Examples are always side by side, and what does not
    depend on an input has zeros. Raises ArgumentError.
    """
    ways = {"reverse-mode": transforms.jacrev, "forward-mode": transforms.jacfwd}
    if strategy not in ways:
        raise ArgumentError(f"strategy is one of {', '.join(ways)}", found=repr(strategy))
    given = _given(inputs, "jacobian", strict)
    several = isinstance(inputs, tuple)
    places = tuple(range(len(given))) if several else 0
    return _cut(ways[strategy](func, places)(*given), create_graph)


def hessian(
    func: Callable[..., Any], inputs: Any, create_graph: bool = False, strict: bool = False,
    vectorize: bool = False, outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """Return second derivatives of a function of one number: a tensor, or a tuple of tuples.

    Raises ShapeError for a function of more than one number.
    """
    given = _given(inputs, "hessian", strict)
    several = isinstance(inputs, tuple)
    places = tuple(range(len(given))) if several else 0
    return _cut(transforms.hessian(_scalar(func, "hessian"), places)(*given), create_graph)


def _scalar(func: Callable[..., Any], what: str) -> Callable[..., Any]:
    def called(*args: Any) -> Any:
        found = func(*args)
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise ShapeError(f"{what} is of a function of one number",
                             found=f"{getattr(found, 'shape', type(found).__name__)}")
        return found.reshape(())

    return called


def vjp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """Return func(*inputs), and `v` times the Jacobian; v is 1 for one number."""
    given = _given(inputs, "vjp", strict)
    value, pull = transforms.vjp(func, *given)
    if v is None:
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise ShapeError("v is left out for a function of one number alone",
                             found=f"{getattr(value, 'shape', type(value).__name__)}")
        v = value.detach().ones_like()
    found = pull(*v) if isinstance(v, tuple) else pull(v)
    return _cut(value, create_graph), _cut(_alike(found, inputs), create_graph)


def jvp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """Return func(*inputs), and the Jacobian times `v`; v is 1 for one number."""
    given = _given(inputs, "jvp", strict)
    if v is None:
        if len(given) != 1 or given[0].numel() != 1:
            raise ShapeError("v is left out for an input of one number alone",
                             found=[list(one.shape) for one in given])  # fmt: skip
        v = given[0].detach().ones_like()
    value, found = transforms.jvp(func, given, v if isinstance(v, tuple) else (v,))
    return _cut(value, create_graph), _cut(found, create_graph)


def hvp(
    func: Callable[..., Any], inputs: Any, v: Any, create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """Return func(*inputs), one number, and its second derivatives times `v`."""
    given = _given(inputs, "hvp", strict)
    scalar = _scalar(func, "hvp")
    slopes = transforms.grad(scalar, tuple(range(len(given))))
    _, found = transforms.jvp(slopes, given, v if isinstance(v, tuple) else (v,))
    return _cut(func(*given), create_graph), _cut(_alike(found, inputs), create_graph)


def vhp(
    func: Callable[..., Any], inputs: Any, v: Any, create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """Return `hvp`: second derivatives are symmetric."""
    return hvp(func, inputs, v, create_graph, strict)


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.autograd.functional", name, __all__)
