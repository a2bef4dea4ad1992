"""Linear algebra: factors, systems of equations, determinants and norms, named as PyTorch's.

Matrices are the last two axes of float32, float64 or complex tensors, the axes before them a
batch. All of it runs as kernels on the tensors' device, in blocks whose programs are captured once,
and has gradients. A file is imported when one of its names is first asked for.
"""

from __future__ import annotations

import importlib
from types import MappingProxyType
from typing import TYPE_CHECKING

from baregrad.base.errors import LinAlgError
from baregrad.base.namespaces import unknown_name
from baregrad.tensor import Tensor

if TYPE_CHECKING:
    from baregrad.linalg.decompositions import cholesky as cholesky
    from baregrad.linalg.decompositions import cholesky_ex as cholesky_ex
    from baregrad.linalg.decompositions import eigh as eigh
    from baregrad.linalg.decompositions import eigvalsh as eigvalsh
    from baregrad.linalg.decompositions import qr as qr
    from baregrad.linalg.decompositions import svd as svd
    from baregrad.linalg.decompositions import svdvals as svdvals
    from baregrad.linalg.elimination import lu as lu
    from baregrad.linalg.elimination import lu_factor as lu_factor
    from baregrad.linalg.elimination import lu_factor_ex as lu_factor_ex
    from baregrad.linalg.elimination import lu_solve as lu_solve
    from baregrad.linalg.general import eig as eig
    from baregrad.linalg.general import eigvals as eigvals
    from baregrad.linalg.householder import householder_product as householder_product
    from baregrad.linalg.indefinite import ldl_factor as ldl_factor
    from baregrad.linalg.indefinite import ldl_factor_ex as ldl_factor_ex
    from baregrad.linalg.indefinite import ldl_solve as ldl_solve
    from baregrad.linalg.measures import cond as cond
    from baregrad.linalg.measures import cross as cross
    from baregrad.linalg.measures import diagonal as diagonal
    from baregrad.linalg.measures import matrix_exp as matrix_exp
    from baregrad.linalg.measures import matrix_norm as matrix_norm
    from baregrad.linalg.measures import matrix_power as matrix_power
    from baregrad.linalg.measures import multi_dot as multi_dot
    from baregrad.linalg.measures import norm as norm
    from baregrad.linalg.measures import vander as vander
    from baregrad.linalg.measures import vecdot as vecdot
    from baregrad.linalg.measures import vector_norm as vector_norm
    from baregrad.linalg.solving import det as det
    from baregrad.linalg.solving import inv as inv
    from baregrad.linalg.solving import inv_ex as inv_ex
    from baregrad.linalg.solving import lstsq as lstsq
    from baregrad.linalg.solving import matrix_rank as matrix_rank
    from baregrad.linalg.solving import pinv as pinv
    from baregrad.linalg.solving import slogdet as slogdet
    from baregrad.linalg.solving import solve as solve
    from baregrad.linalg.solving import solve_ex as solve_ex
    from baregrad.linalg.solving import tensorinv as tensorinv
    from baregrad.linalg.solving import tensorsolve as tensorsolve
    from baregrad.linalg.triangular import solve_triangular as solve_triangular

matmul = Tensor.matmul
_HOMES = MappingProxyType({
    "decompositions": (
        "cholesky", "cholesky_ex", "eigh", "eigvalsh", "qr", "svd", "svdvals",
    ),
    "elimination": (
        "lu", "lu_factor", "lu_factor_ex", "lu_solve",
    ),
    "general": (
        "eig", "eigvals",
    ),
    "householder": (
        "householder_product",
    ),
    "indefinite": (
        "ldl_factor", "ldl_factor_ex", "ldl_solve",
    ),
    "measures": (
        "cond", "cross", "diagonal", "matrix_exp", "matrix_norm", "matrix_power", "multi_dot",
        "norm", "vander", "vecdot", "vector_norm",
    ),
    "solving": (
        "det", "inv", "inv_ex", "lstsq", "matrix_rank", "pinv", "slogdet", "solve",
        "solve_ex", "tensorinv", "tensorsolve",
    ),
    "triangular": (
        "solve_triangular",
    ),
})
_NEAREST = MappingProxyType({
    "inverse": "inv",
})

__all__ = [
    "LinAlgError",
    "cholesky",
    "cholesky_ex",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "householder_product",
    "inv",
    "inv_ex",
    "ldl_factor",
    "ldl_factor_ex",
    "ldl_solve",
    "lstsq",
    "lu",
    "lu_factor",
    "lu_factor_ex",
    "lu_solve",
    "matmul",
    "matrix_exp",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_ex",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensorinv",
    "tensorsolve",
    "vander",
    "vecdot",
    "vector_norm",
]


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            found: object = getattr(importlib.import_module(f"baregrad.linalg.{home}"), name)
            # Kept, so that this function runs once a name.
            globals()[name] = found
            return found
    raise unknown_name("baregrad.linalg", name, __all__, _NEAREST)
