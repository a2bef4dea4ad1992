"""Random contractions and attentions on the virtual GPU; that a wrong number is seen."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from baregrad.dtypes import as_dtype
from baregrad.tensor import Tensor
from baregrad.testing.fuzz_products.cases import (
    AFTER,
    BEFORE,
    KINDS,
    MASKS,
    SMALL,
    AttentionCase,
    CaseLimits,
    Kinds,
    ProductCase,
    drawn,
)
from baregrad.testing.fuzz_products.checks import check_case
from baregrad.testing.fuzz_products.operands import contracted, laid_out, values_of
from baregrad.testing.ptx_device import ptx_session

# Cases of each run, and of each test: one takes an interpreter 0.02 s, but some of them seconds.
CASES, EACH = 2000, 20
# A quarter are as large as an interpreter can do: tiles of 64 rows are among these.
FEWER = replace(SMALL, products=1 << 16)


def differing(seeds: range) -> list[str]:
    found = []
    with ptx_session():
        for seed in seeds:
            case = drawn(seed, SMALL if seed % 4 == 2 else FEWER)
            problem = check_case(case, seed)
            if problem is not None:
                found.append(f"seed {seed}: {case}: {problem}")
    return found


@pytest.mark.parametrize("first", range(0, CASES, EACH))
def test_cases_have_the_numbers_of_numpy(first: int) -> None:
    assert differing(range(first, first + EACH)) == []


def test_cases_are_of_all_kinds() -> None:
    cases = [drawn(seed, CaseLimits()) for seed in range(4000)]
    products = [case for case in cases if isinstance(case, ProductCase)]
    assert {case.kinds for case in products} == set(KINDS)
    assert {case.before for case in products} == {"", *BEFORE}
    assert {case.after for case in products} == {"", *AFTER}
    longest = [max(size for _, size in case.sizes) for case in products]
    assert max(longest) > 3000 and min(longest) < 8
    assert any(case.gradients for case in products)
    assert any(case.gradients and case.before == "scale" for case in products)
    # A factor that a batch shares, by matrices and by letters.
    lone = [case for case in products if "a" not in case.equation.split(",")[0]
            and "a" in case.equation.split("->")[1]]  # fmt: skip
    assert {case.by_matmul for case in lone} == {True, False}
    attentions = [case for case in cases if isinstance(case, AttentionCase)]
    assert {case.mask for case in attentions} == {"", *MASKS}
    assert {case.dtype for case in attentions} == {"bfloat16", "float16", "float32", "float64"}
    assert {(case.by_hand, case.gradients) for case in attentions} == {
        (hand, gradients) for hand in (True, False) for gradients in (True, False)
    }
    assert any(case.stored for case in attentions) and any(case.queries == 1 for case in attentions)
    assert drawn(5, SMALL) == drawn(5, SMALL)


@pytest.mark.parametrize("seed", range(40))
def test_a_layout_has_the_numbers(seed: int) -> None:
    values = np.arange(30, dtype=np.float64).reshape(2, 3, 5)
    dtype = as_dtype(("float32", "bfloat16", "int32")[seed % 3])
    assert np.array_equal(values_of(laid_out(Random(seed), values, dtype)), values)


@pytest.mark.parametrize(
    "equation", ["amk,akn->amn", "kamibl,lkanb->bnaim", "mk,akn->nam", "k,k->"]
)
def test_the_oracle_is_einsum(equation: str) -> None:
    rng = np.random.default_rng(3)
    sizes = dict(zip("ambiknl", range(2, 9), strict=True))
    left, right = equation.split("->")[0].split(",")
    a, b = (rng.integers(-4, 5, [sizes[one] for one in term]) for term in (left, right))
    wanted = np.einsum(equation, a, b)
    for below in (0.0, 1e6):
        assert np.array_equal(contracted(equation, a * 1.0, b * 1.0, below), wanted)


@pytest.mark.parametrize("whole", [True, False])
def test_a_wrong_number_is_found(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One element is as much off as a product that is left out makes it."""
    sizes = (("m", 5), ("n", 7), ("k", 33))
    kinds = Kinds("float32", "float32", "float32")
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


@pytest.mark.parametrize("which,name", list(enumerate(("queries", "keys", "values"))))
def test_a_wrong_gradient_of_attention_is_found(
    which: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head's worth of it is half as large again."""
    case = AttentionCase(1, 2, 1, 6, 9, 16, 16, "bfloat16", "causal", gradients=True)
    assert check_case(case, 4) is None
    attention = Tensor.scaled_dot_product_attention

    def wrong(*tensors: Tensor, **settings: Any) -> Tensor:
        names = ("query", "key", "value")
        given: dict[str, Any] = dict(zip(names, tensors, strict=True))
        name = list(given)[which]
        half = given[name] * 0.5
        given[name] = given[name] + (half - half.detach())
        found: Tensor = attention(**given, **settings)
        return found

    monkeypatch.setattr(Tensor, "scaled_dot_product_attention", wrong)
    problem = check_case(case, 4)
    assert problem is not None and f"gradient by the {name}" in problem


def test_errors_are_findings() -> None:
    case = AttentionCase(1, 1, 1, 0, 3, 4, 4, "int32", "")
    problem = check_case(case, 1)
    assert problem is not None and "Error" in problem
