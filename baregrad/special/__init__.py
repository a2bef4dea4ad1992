"""Special functions by the names of `torch.special`, with gradients.

In come tensors, out go tensors. Imports `tensor`, where what is no method of a tensor lives too.
"""

from __future__ import annotations

from baregrad.base.namespaces import unknown_name
from baregrad.tensor import Tensor
from baregrad.tensor.array.arguments import explained
from baregrad.tensor.array.put_off import put_off
from baregrad.tensor.special import bessel as _bessel
from baregrad.tensor.special import gamma as _gamma
from baregrad.tensor.special import normal as _normal

digamma = psi = Tensor.digamma
gammaln = Tensor.lgamma
multigammaln = Tensor.mvlgamma
polygamma = explained(_gamma.polygamma, run=put_off)
zeta = explained(_gamma.zeta, run=put_off)

erf, erfc, erfinv = Tensor.erf, Tensor.erfc, Tensor.erfinv
erfcx = explained(_normal.erfcx, run=put_off)
ndtr = explained(_normal.ndtr, run=put_off)
ndtri = explained(_normal.ndtri, run=put_off)
log_ndtr = explained(_normal.log_ndtr, run=put_off)
entr = explained(_normal.entr, run=put_off)
xlog1py = explained(_normal.xlog1py, run=put_off)
xlogy = Tensor.xlogy

i0 = modified_bessel_i0 = Tensor.i0
i0e = explained(_bessel.i0e, run=put_off)
i1 = modified_bessel_i1 = explained(_bessel.i1, run=put_off)
i1e = explained(_bessel.i1e, run=put_off)

exp2, expm1, log1p, sinc, round = (
    Tensor.exp2, Tensor.expm1, Tensor.log1p, Tensor.sinc, Tensor.round,
)
expit, logit = Tensor.sigmoid, Tensor.logit
softmax, log_softmax, logsumexp = Tensor.softmax, Tensor.log_softmax, Tensor.logsumexp

__all__ = [
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfcx",
    "erfinv",
    "exp2",
    "expit",
    "expm1",
    "gammaln",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "log1p",
    "log_ndtr",
    "log_softmax",
    "logit",
    "logsumexp",
    "modified_bessel_i0",
    "modified_bessel_i1",
    "multigammaln",
    "ndtr",
    "ndtri",
    "polygamma",
    "psi",
    "round",
    "sinc",
    "softmax",
    "xlog1py",
    "xlogy",
    "zeta",
]


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.special", name, __all__)
