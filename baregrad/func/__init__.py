"""Transformations of functions: in comes a function of tensors, out goes another one.

`vmap` gives a function an axis of examples; `grad`, `vjp`, `jvp`, `jacrev`, `jacfwd`, `jacobian`
and `hessian` differentiate it. They call it once, on stand-ins, and rewrite the graph that it
builds. Names and meanings are those of `torch.func`. Imports `tensor`, `engine` and `ir`.
"""

from baregrad.func.batching import vmap
from baregrad.func.derivatives import (
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacobian,
    jacrev,
    jvp,
    vjp,
)

__all__ = [
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jvp",
    "vjp",
    "vmap",
]
