from __future__ import annotations

import pytest
import torch

from baregrad import Tensor, dtypes
from baregrad.base.errors import DTypeError
from baregrad.bridges.torch_memory import dtype_of, give, lend, torch_dtype

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
          torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_go_there_and_back(dtype: torch.dtype) -> None:
    theirs = (torch.arange(-3, 9).reshape(3, 4) / 2).to(dtype)
    for one in (theirs, theirs.T, theirs[1], theirs[:0], theirs[0, 1]):
        back = give(lend(one, "CPU"))
        assert back.dtype == dtype
        assert torch.equal(back, one)
    assert torch_dtype(dtype_of(dtype)) == dtype


def test_memory_is_shared_until_something_is_computed() -> None:
    theirs = torch.zeros(3)
    lent = lend(theirs, "CPU")
    theirs[0] = 5
    assert (lent + 1).tolist() == [6, 1, 1]


def test_what_we_give_is_theirs_to_write() -> None:
    ours = (Tensor([1.0, 2.0], device="CPU") * 2).realize()
    given = give(ours)
    given[0] = 7
    assert given.tolist() == [7, 4]


def test_a_dtype_that_we_lack_is_named() -> None:
    with pytest.raises(DTypeError, match="complex64"):
        dtype_of(torch.complex64)
    assert dtype_of(torch.bfloat16) is dtypes.bfloat16
