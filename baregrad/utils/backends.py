"""`torch.backends`, as far as programs set it: what libraries PyTorch computes by, and how.

Here kernels are our own: most settings are kept and change nothing, since the same program has the
same bits each time. What there is no such setting of raises AttributeError.
"""

from __future__ import annotations

from baregrad.base.namespaces import unknown_name
from baregrad.tensor.torch_names import (
    get_float32_matmul_precision,
    set_float32_matmul_precision,
)

__all__ = ["cuda", "cudnn", "mps"]


class _Settings:
    """Settings that may be read and written, those that a class names."""

    def __setattr__(self, name: str, value: object) -> None:
        if not hasattr(type(self), name):
            known = [each for each in dir(self) if not each.startswith("_")]
            raise unknown_name(f"baregrad.backends.{type(self).__name__[1:].lower()}", name, known)
        object.__setattr__(self, name, value)


class _Cudnn(_Settings):
    """What PyTorch leaves to NVIDIA's library of layers, which is not used."""

    enabled = False
    benchmark = False
    deterministic = True
    allow_tf32 = False

    def is_available(self) -> bool:
        """Return false: kernels are our own."""
        return False

    def version(self) -> None:
        """Return None: there is none."""


class _Matmul(_Settings):
    """How products of float32 are computed on GPUs."""

    @property
    def allow_tf32(self) -> bool:
        """Whether factors are rounded to tfloat32, as the option `matmul_precision` says."""
        return get_float32_matmul_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, value: bool) -> None:
        set_float32_matmul_precision("high" if value else "highest")


class _Cuda(_Settings):
    """What PyTorch asks of GPUs; how attention is computed follows from shapes and dtypes."""

    matmul = _Matmul()

    def enable_flash_sdp(self, enabled: bool) -> None:
        """Do nothing: shapes and dtypes alone say how attention is computed."""

    enable_mem_efficient_sdp = enable_math_sdp = enable_cudnn_sdp = enable_flash_sdp


class _Mps(_Settings):
    """Apple's GPUs, which are not served."""

    def is_available(self) -> bool:
        """Return false."""
        return False

    is_built = is_available


cudnn, cuda, mps = _Cudnn(), _Cuda(), _Mps()


def __getattr__(name: str) -> object:
    raise unknown_name("baregrad.backends", name, __all__)
