"""Random contractions and attentions on the virtual GPU; that a wrong number is seen."""

from __future__ import annotations

import numpy as np
import pytest

from baregrad.tensor import Tensor
from baregrad.testing import fuzz_products
from baregrad.testing.fuzz_products import (
    SMALL,
    AttentionCase,
    CaseLimits,
    ProductCase,
    check_case,
    drawn,
)
from baregrad.testing.ptx_device import ptx_session

FEW, MANY = 5, 2000


def differing(seeds: range) -> list[str]:
    found = []
    with ptx_session():
        for seed in seeds:
            case = drawn(seed, SMALL)
            problem = check_case(case, seed)
            if problem is not None:
                found.append(f"seed {seed}: {case}: {problem}")
    return found


def test_few_cases() -> None:
    assert differing(range(FEW)) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_many_cases(part: int) -> None:
    each = MANY // 8
    assert differing(range(part * each, (part + 1) * each)) == []


def test_cases_are_of_all_kinds() -> None:
    cases = [drawn(seed, CaseLimits()) for seed in range(3000)]
    products = [case for case in cases if isinstance(case, ProductCase)]
    assert {case.kinds for case in products} == set(fuzz_products.KINDS)
    longest = [max(size for _, size in case.sizes) for case in products]
    assert max(longest) > 3000 and min(longest) < 8
    assert any(case.gradients for case in products)
    masks = {case.mask for case in cases if isinstance(case, AttentionCase)}
    assert masks == {"", "causal", "bool", "added"}
    assert drawn(5, SMALL) == drawn(5, SMALL)


@pytest.mark.parametrize("whole", [True, False])
def test_a_wrong_number_is_found(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One element is as much off as a product that is left out makes it."""
    kinds = fuzz_products.Kinds("float32", "float32", "float32")
    sizes = (("m", 5), ("n", 7), ("k", 33))
    case = ProductCase("mk,kn->mn", sizes, kinds, whole, True)
    assert check_case(case, 3) is None
    product = Tensor.matmul

    def wrong(x: Tensor, other: Tensor, out_dtype: object = None) -> Tensor:
        found = product(x, other)
        off = np.zeros(found.shape, np.float32)
        off[2, 3] = 1.0
        return found + Tensor(off)

    monkeypatch.setattr(Tensor, "__matmul__", wrong)
    problem = check_case(case, 3)
    assert problem is not None and "1 of 35 differ, the first at [2, 3]" in problem


def test_a_wrong_row_of_attention_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = AttentionCase(1, 2, 1, 6, 9, 16, 16, "float32", "causal")
    assert check_case(case, 4) is None
    attention = Tensor.scaled_dot_product_attention
    monkeypatch.setattr(
        Tensor, "scaled_dot_product_attention",
        lambda *tensors, is_causal, **settings: attention(*tensors, **settings),
    )
    problem = check_case(case, 4)
    assert problem is not None and "differ" in problem


def test_errors_are_findings() -> None:
    case = AttentionCase(1, 1, 1, 0, 3, 4, 4, "int32", "")
    problem = check_case(case, 1)
    assert problem is not None and "Error" in problem
