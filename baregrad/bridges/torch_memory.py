"""PyTorch's tensors as ours and ours as PyTorch's, in one memory where both lie on the CPU."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, cast

import numpy as np

from baregrad.base.errors import DTypeError
from baregrad.dtypes import DType, dtypes
from baregrad.engine.session import current_session
from baregrad.tensor import Tensor
from baregrad.tensor.array.storage import buffer_node

# By their names in PyTorch.
_DTYPES = MappingProxyType({
    "bool": dtypes.bool, "uint8": dtypes.uint8, "int8": dtypes.int8, "int16": dtypes.int16,
    "int32": dtypes.int32, "int64": dtypes.int64, "float16": dtypes.float16,
    "bfloat16": dtypes.bfloat16, "float32": dtypes.float32, "float64": dtypes.float64,
})


def dtype_of(theirs: Any) -> DType:
    """Our dtype of PyTorch's. Raises DTypeError where we have none."""
    found = _DTYPES.get(str(theirs).removeprefix("torch."))
    if found is None:
        raise DTypeError(
            "PyTorch's dtype is none of ours", found=theirs, wanted=", ".join(_DTYPES),
        )
    return found


def torch_dtype(ours: DType) -> Any:
    """PyTorch's dtype of ours."""
    import torch

    return getattr(torch, ours.name)


def lend(tensor: Any, device: str) -> Tensor:
    """A PyTorch tensor on the CPU as one of ours, which reads its memory when it is computed.

    On a device that sees no host memory the values are copied. Nothing of ours writes there.
    """
    import torch

    ours = dtype_of(tensor.dtype)
    whole = tensor.detach().contiguous()
    # NumPy has no bfloat16: the bytes are handed on, whatever they mean.
    raw = whole.view(-1).view(torch.uint8).numpy() if whole.numel() else np.empty(0, np.uint8)
    raw.flags.writeable = False
    codes = raw.view(cast("np.dtype[Any]", ours.storage))
    session = current_session()
    shape = tuple(whole.shape)
    if not raw.nbytes:
        return Tensor.zeros(*shape, dtype=ours, device=device)
    ref = session.wrap(codes, ours, shape, device)
    return Tensor._make(buffer_node(ref, ours), device)


def give(tensor: Tensor) -> Any:
    """One of our computed tensors as PyTorch's, in the same memory where the host sees that.

    It is not a view of another one of PyTorch's.
    """
    import torch

    theirs = torch_dtype(tensor.dtype)
    shape = cast("tuple[int, ...]", tuple(tensor.shape))
    if 0 in shape:
        return torch.empty(shape, dtype=theirs)
    ref = tensor.contiguous()._ref()
    buffer = ref.handle
    nbytes = int(np.prod(shape, dtype=np.int64)) * (tensor.dtype.bits + 7 >> 3)
    if buffer.device.host_visible and not buffer.readonly:
        memory = buffer.view(0, nbytes).as_memoryview()
    else:
        memory = memoryview(bytearray(buffer.contents()[:nbytes]))
    return torch.frombuffer(memory, dtype=theirs).reshape(shape).data
