"""Transformations of functions: in comes a function of tensors, out goes another one.

`vmap` gives a function an axis of examples; `grad`, `vjp`, `jvp`, `jacrev`, `jacfwd`, `jacobian`
and `hessian` differentiate it. They call it once, on stand-ins, and rewrite the graph that it
builds. `checkpoint`, `scan` and `while_loop` run one as programs of its own, planned once, whose
inside is computed again for gradients; `cond` chooses between two; `memory_of` says what a program
will take. Names and meanings are PyTorch's where it has them, and JAX's for `scan`. Imports
`tensor`, `engine` and `ir`.
"""

from baregrad.base.namespaces import unknown_name
from baregrad.func.batching import vmap
from baregrad.func.branches import cond, while_loop
from baregrad.func.checkpointing import checkpoint
from baregrad.func.custom import custom_gradient
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
from baregrad.func.loops import scan
from baregrad.func.memory import memory_of
from baregrad.func.modules import functional_call, stack_module_state
from baregrad.func.text_kernels import custom_kernel

__all__ = [
    "checkpoint",
    "cond",
    "custom_gradient",
    "custom_kernel",
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jvp",
    "memory_of",
    "scan",
    "stack_module_state",
    "vjp",
    "vmap",
    "while_loop",
]


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.func", name, __all__)
