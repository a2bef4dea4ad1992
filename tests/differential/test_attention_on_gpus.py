"""Attention through the GPU's compiler, against PyTorch: the kernel that streams tiles of keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from baregrad.graph.streams import groups
from baregrad.tensor import Tensor
from baregrad.testing.ptx_device import ptx_session
from tests.tensor.oracle import to_numpy

pytestmark = pytest.mark.differential
# heads of queries, of keys; rows, keys, width; causal
SHAPES = (
    (2, 2, 40, 40, 32, True),
    (4, 2, 35, 35, 64, True),
    (2, 2, 33, 50, 16, False),
    (2, 1, 1, 50, 32, False),
    (1, 1, 20, 30, 128, True),
)


def pair(rng: np.random.Generator, dtype: torch.dtype, *shape: int) -> tuple[Any, torch.Tensor]:
    theirs = torch.tensor(rng.standard_normal(shape)).to(dtype)
    return Tensor(theirs), theirs


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize(("heads", "own", "rows", "keys", "width", "causal"), SHAPES)
def test_attention_agrees_with_pytorch(
    heads: int, own: int, rows: int, keys: int, width: int, causal: bool, dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(rows)
    shapes = ((1, heads, rows, width), *[(1, own, keys, width)] * 2)
    with ptx_session():
        ours, theirs = zip(*[pair(rng, dtype, *shape) for shape in shapes], strict=True)
        found = ours[0].scaled_dot_product_attention(
            *ours[1:], is_causal=causal, enable_gqa=heads != own
        )
        query, key, value = (x.double() for x in theirs)
        true, mean = (
            torch.nn.functional.scaled_dot_product_attention(
                query, key, each, is_causal=causal, enable_gqa=heads != own
            ).numpy()
            for each in (value, value.abs())
        )
        error = np.abs(to_numpy(found).astype(np.float64) - true)
        # What is promised: powers are rounded, and the result; a little more in float32.
        unit = 2.0**-8 if dtype is torch.bfloat16 else 2.0**-11
        assert (error <= unit * (mean + np.abs(true)) + 2.0**-18 * mean).all()


def test_views_dropout_and_masks_agree_with_the_cpu() -> None:
    """Heads that lie inside positions, transposed keys, what dropout leaves, masks by position."""
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal((2, 24, 2, 32)).astype(np.float32) for _ in range(3)]
    turned = np.ascontiguousarray(np.swapaxes(arrays[1], 1, 3))

    def results() -> list[Any]:
        Tensor.manual_seed(7)
        q, k, v = (Tensor(array).bfloat16().realize() for array in arrays)
        other = Tensor(turned).bfloat16().realize().transpose(1, 3)
        q, k, v, other = (x.transpose(1, 2) for x in (q, k, v, other))
        found = [
            q.scaled_dot_product_attention(k, v, is_causal=True),
            q.scaled_dot_product_attention(other, v),
            q.scaled_dot_product_attention(k, v, dropout_p=0.5),
            q.scaled_dot_product_attention(k, v, Tensor.ones(24, 24).tril(-3) > 0),
        ]
        # What follows is part of no other kernel's axes.
        found.append(found[0].transpose(1, 2).reshape(2, 24, 64) + 1)
        return [to_numpy(x) for x in found]

    wanted = results()
    with ptx_session():
        for found, expected in zip(results(), wanted, strict=True):
            np.testing.assert_allclose(found, expected, atol=2.0**-6)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize(("heads", "own", "rows", "keys", "width", "causal"), SHAPES)
def test_gradients_agree_with_pytorch(
    heads: int, own: int, rows: int, keys: int, width: int, causal: bool, dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(keys)
    shapes = ((1, heads, rows, width), *[(1, own, keys, width)] * 2, (1, heads, rows, width))
    drawn = [torch.tensor(rng.standard_normal(shape)).to(dtype) for shape in shapes]
    theirs = [x.double().requires_grad_() for x in drawn[:3]]
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *theirs, is_causal=causal, enable_gqa=heads != own
    )
    wanted.backward(drawn[3].double())
    with ptx_session():
        ours = [Tensor(x).requires_grad_() for x in drawn[:3]]
        found = ours[0].scaled_dot_product_attention(
            *ours[1:], is_causal=causal, enable_gqa=heads != own
        )
        found.backward(Tensor(drawn[3]))
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.grad is not None and other.grad is not None
            true = other.grad.numpy()
            error = np.abs(to_numpy(mine.grad).astype(np.float64) - true).max()
            # Slopes and weights are rounded, and so are their sums.
            unit = 2.0 ** (-8 if dtype is torch.bfloat16 else -11)
            assert error < 4 * unit * np.abs(true).max()


@pytest.mark.few(3)
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("shape", ((1, 2, 70, 70), (70, 70), (2, 1, 1, 70)), ids=str)
def test_gradients_of_addends_agree_with_pytorch(
    shape: tuple[int, ...], causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "LEAST_TILES", 1)
    rng = np.random.default_rng(len(shape))
    drawn = [torch.tensor(rng.standard_normal(one)).bfloat16()
             for one in (*[(2, 2, 70, 16)] * 4, shape)]  # fmt: skip
    hidden = np.triu(np.ones((70, 70), bool), 1)
    theirs = [drawn[n].double().requires_grad_() for n in (0, 1, 2, 4)]
    added = theirs[3].expand(2, 2, 70, 70)
    if causal:
        added = added.masked_fill(torch.tensor(hidden), float("-inf"))
    torch.nn.functional.scaled_dot_product_attention(*theirs[:3], added).backward(
        drawn[3].double()
    )
    with ptx_session():
        ours = [Tensor(drawn[n]).requires_grad_() for n in (0, 1, 2, 4)]
        mask = ours[3]
        if causal:
            mask = mask.masked_fill(Tensor.ones(70, 70).tril() == 0, float("-inf"))
        ours[0].scaled_dot_product_attention(*ours[1:3], mask).backward(Tensor(drawn[3]))
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.grad is not None and other.grad is not None
            true = other.grad.numpy()
            error = np.abs(to_numpy(mine.grad).astype(np.float64) - true).max()
            assert error < 4 * 2.0**-8 * np.abs(true).max()


def test_gradients_of_a_layer_agree_with_pytorch() -> None:
    """Query, key and value are parts of one product without a bias; another product follows."""
    rng = np.random.default_rng(11)
    shapes = ((2, 20, 64), (96, 64), (64, 32), (2, 20, 64))
    drawn = [torch.tensor(rng.standard_normal(shape) / 4).bfloat16() for shape in shapes]

    def layer(x: Any, packed: Any, mix: Any, attend: Any) -> Any:
        parts = (x @ packed.mT).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (2, 16)).transpose(1, 2) for part in parts)
        return attend(q, k, v, is_causal=True).transpose(1, 2).flatten(2) @ mix.mT

    theirs = [x.double().requires_grad_() for x in drawn[:3]]
    wanted = layer(*theirs, torch.nn.functional.scaled_dot_product_attention)
    wanted.backward(drawn[3].double())
    with ptx_session():
        ours = [Tensor(x).requires_grad_() for x in drawn[:3]]
        found = layer(*ours, Tensor.scaled_dot_product_attention)
        found.backward(Tensor(drawn[3]))
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.grad is not None and other.grad is not None
            true = other.grad.numpy()
            error = np.abs(to_numpy(mine.grad).astype(np.float64) - true).max()
            assert error < 4 * 2.0**-8 * np.abs(true).max()


def by_hand(q: Any, k: Any, v: Any, hidden: Any, how: str) -> Any:
    """Attention of 16-bit floats as it is written without a function for it."""
    scores = (q @ k.transpose(-2, -1)) * (1.0 / q.shape[-1] ** 0.5)
    if how == "capped":
        scores = (scores / 2.0).tanh() * 2.0
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return (weights.dropout(0.25) if how == "dropout" else weights) @ v


@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
@pytest.mark.parametrize("how", ("plain", "capped", "dropout", "shared"))
def test_attention_by_hand_has_the_numbers_of_the_cpu(how: str, dtype: str) -> None:
    rng = np.random.default_rng(13)
    arrays = [rng.standard_normal((1, 2, 40, 32)).astype(np.float32) for _ in range(4)]
    if how == "shared":
        arrays[1:3] = [array[:, :1] for array in arrays[1:3]]

    def results() -> list[Any]:
        Tensor.manual_seed(7)
        *inputs, given = [Tensor(array).cast(dtype).realize() for array in arrays]
        q, k, v = [x.detach().requires_grad_() for x in inputs]
        # Read from memory, or known by its places.
        seen = Tensor.ones(40, 40).tril()
        out = by_hand(q, k, v, (seen if how == "capped" else seen.realize()) == 0, how)
        out.backward(given)
        return [to_numpy(x).astype(np.float64) for x in (out, q.grad, k.grad, v.grad)]

    wanted = results()
    with ptx_session():
        found = results()
    unit = 2.0 ** (-8 if dtype == "bfloat16" else -11)
    for mine, other in zip(found, wanted, strict=True):
        # Sums of another order; what is rounded on the way is rounded alike.
        assert (mine != other).mean() < 0.05
        assert np.abs(mine - other).max() < 2 * unit * np.abs(other).max()
    if how == "dropout":
        return
    theirs = [torch.tensor(array, dtype=torch.float64) for array in arrays]
    theirs = [x.to(getattr(torch, dtype)).double() for x in theirs]
    leaves = [x.requires_grad_() for x in theirs[:3]]
    true = by_hand(*leaves, torch.ones(40, 40).tril() == 0, how)
    true.backward(theirs[3])
    for mine, exact in zip(found, (true.detach(), *[x.grad for x in leaves]), strict=True):
        assert exact is not None
        error = np.abs(mine - exact.numpy()).max()
        assert error < 8 * unit * exact.abs().max()


@pytest.mark.parametrize("stored", (torch.float8_e4m3fn, torch.float8_e5m2), ids=str)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_caches_of_bytes_agree_with_pytorch(dtype: torch.dtype, stored: torch.dtype) -> None:
    """Grouped heads over keys and values that lie there as 8-bit floats, each with its scale."""
    rng = np.random.default_rng(9)
    with ptx_session():
        query, of_query = pair(rng, dtype, 1, 4, 1, 32)
        (key, of_key), (value, of_value) = (pair(rng, stored, 1, 2, 90, 32) for _ in range(2))
        found = query.scaled_dot_product_attention(
            key.cast(query.dtype), value.cast(query.dtype), scale=0.25, enable_gqa=True
        ) * 0.5
        wanted = 0.5 * torch.nn.functional.scaled_dot_product_attention(
            *[x.double() for x in (of_query, of_key, of_value)], scale=0.25, enable_gqa=True
        )
        true = wanted.numpy()
        error = np.abs(to_numpy(found).astype(np.float64) - true).max()
        assert error < 2.0 ** (-7 if dtype is torch.bfloat16 else -10) * np.abs(true).max()


def test_what_reads_a_result_and_its_gradient_has_a_kernel_of_its_own() -> None:
    """Keys of further attention, made of both: the first kernel's maxima are not written there."""
    rng = np.random.default_rng(17)
    arrays = [rng.standard_normal((2, 32, 16)).astype(np.float32) for _ in range(4)]

    def result() -> Any:
        *inputs, given = [Tensor(array).bfloat16().realize() for array in arrays]
        q, k, v = [x.detach().requires_grad_() for x in inputs]
        out = q.scaled_dot_product_attention(k, v, is_causal=True)
        out.backward(given)
        assert q.grad is not None
        further = k.detach().scaled_dot_product_attention(out.detach() + q.grad, v.detach())
        return to_numpy(further)

    wanted = result()
    with ptx_session():
        np.testing.assert_allclose(result(), wanted, atol=2.0**-6)


@pytest.mark.few(2)
@pytest.mark.parametrize("how", ("sum", "rows", "columns", "heads"))
def test_a_gradient_that_is_repeated_has_no_scores_in_memory(how: str) -> None:
    """That of a sum or a mean: a product by its rows would be no product."""
    rng = np.random.default_rng(23)
    weights = rng.standard_normal((24, 16)).astype(np.float32)

    def loss(out: Any, by: Any) -> Any:
        return {
            "sum": lambda: out.sum(), "rows": lambda: (out.mean(-1) * by[:, 0]).sum(),
            "columns": lambda: (out.mean(-2) * by[0]).sum(),
            "heads": lambda: (out.mean(1) * by).sum(),
        }[how]()

    with ptx_session() as session:
        shapes = ((1, 2, 24, 16), (1, 1, 24, 16), (1, 1, 24, 16))
        pairs = [pair(rng, torch.bfloat16, *shape) for shape in shapes]
        ours = [x.requires_grad_() for x, _ in pairs]
        out = ours[0].scaled_dot_product_attention(*ours[1:], is_causal=True, enable_gqa=True)
        loss(out.cast("float32"), Tensor(weights)).backward()
        found = [to_numpy(x.grad).astype(np.float64) for x in ours]
        compiler = session.backend("NV").compiler  # type: ignore[attr-defined]
        names = [program.name for program in compiler._programs.values()]
    # Scores would be results of 24 rows and 24 keys each.
    assert names and not any("24x24" in name for name in names)
    exact = [x.double().requires_grad_() for _, x in pairs]
    true = torch.nn.functional.scaled_dot_product_attention(
        *exact, is_causal=True, enable_gqa=True
    )
    loss(true, torch.tensor(weights).double()).backward()
    for mine, x in zip(found, exact, strict=True):
        assert x.grad is not None
        # Queries and keys have differences of numbers that are rounded as large as values are.
        assert np.abs(mine - x.grad.numpy()).max() < 2.0**-6 * exact[2].grad.abs().max()


@pytest.mark.parametrize("causal", (True, False))
def test_what_a_result_s_rows_sum_to_may_weigh_its_gradient(causal: bool) -> None:
    """A norm of each head's result: its gradient needs a sum of what the first kernel writes."""
    rng = np.random.default_rng(19)
    arrays = [rng.standard_normal((1, 2, 16, 16)) for _ in range(3)]
    theirs = [torch.tensor(array, dtype=torch.bfloat16) for array in arrays]
    with ptx_session():
        inputs = [Tensor(x).requires_grad_() for x in theirs]
        out = inputs[0].scaled_dot_product_attention(*inputs[1:], is_causal=causal)
        ((out * out).sum(-1).float() ** 2).sum().backward()
        found = [to_numpy(x.grad).astype(np.float64) for x in inputs]
    exact = [x.double().requires_grad_() for x in theirs]
    true = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=causal)
    ((true * true).sum(-1) ** 2).sum().backward()
    for mine, x in zip(found, exact, strict=True):
        assert x.grad is not None
        # The result is rounded, its square, their sum, what it is multiplied by, the gradient.
        assert np.abs(mine - x.grad.numpy()).max() < 8 * 2.0**-8 * x.grad.abs().max()
