"""Functions of `nn.functional` against PyTorch's: results and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as theirs

from baregrad.base.errors import ArgumentError, ShapeError, UnsupportedError
from baregrad.nn import functional as ours
from baregrad.tensor import Tensor


def drawn(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def spread(*shape: int) -> np.ndarray[Any, Any]:
    """Places of which some lie outside -1 to 1."""
    return (np.random.default_rng(5).random(shape) * 3 - 1.5).astype(np.float32)


def classes(count: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).integers(0, count, shape)


POSITIVE = np.abs(drawn(2, 3, 8, 6)) + 0.1
BAGS = classes(7, 4, 5)
OFFSETS = np.array([0, 3, 3, 11])
Case = tuple[str, tuple[Any, ...], dict[str, Any]]
SAMPLES: tuple[Case, ...] = tuple(
    ("grid_sample", (drawn(2, 3, 6, 7), spread(2, 4, 5, 2)),
     {"mode": mode, "padding_mode": padding, "align_corners": corners})
    for mode, padding, corners in (
        ("bilinear", "zeros", False), ("bilinear", "reflection", True),
        ("nearest", "border", False), ("nearest", "reflection", False),
        ("bicubic", "zeros", True), ("bicubic", "border", False),
    )
)  # fmt: skip
CASES: tuple[Case, ...] = (
    *SAMPLES,
    ("grid_sample", (drawn(2, 3, 4, 5, 6), spread(2, 2, 4, 3, 3)), {"align_corners": False}),
    ("affine_grid", (drawn(2, 2, 3), (2, 3, 4, 5)), {"align_corners": False}),
    ("affine_grid", (drawn(2, 3, 4), (2, 3, 4, 5, 2)), {"align_corners": True}),
    *[("embedding_bag", (BAGS, drawn(7, 3)), {"mode": mode, "padding_idx": 2})
      for mode in ("sum", "mean", "max")],
    *[("embedding_bag", (BAGS.reshape(-1), drawn(7, 3)), {"mode": mode, "offsets": OFFSETS})
      for mode in ("sum", "mean", "max")],
    ("embedding_bag", (BAGS.reshape(-1), drawn(7, 3)),
     {"mode": "sum", "offsets": np.array([0, 3, 20]), "include_last_offset": True}),
    ("embedding_bag", (BAGS, drawn(7, 3)), {"mode": "sum", "per_sample_weights": drawn(4, 5)}),
    ("embedding", (BAGS, drawn(7, 3)), {"padding_idx": -1}),
    ("bilinear", (drawn(2, 4, 3), drawn(2, 4, 5), drawn(6, 3, 5), drawn(6)), {}),
    ("multi_margin_loss", (drawn(4, 5), classes(5, 4)), {"p": 2}),
    ("multi_margin_loss", (drawn(4, 5), classes(5, 4)), {"weight": np.abs(drawn(5))}),
    ("multilabel_margin_loss", (drawn(2, 4), np.array([[3, 0, -1, 1], [1, -1, 0, 0]])), {}),
    ("multilabel_soft_margin_loss", (drawn(4, 5), np.abs(np.sign(drawn(4, 5)))), {}),
    ("triplet_margin_with_distance_loss", (drawn(4, 5), drawn(4, 5, seed=1), drawn(4, 5, seed=2)),
     {"swap": True}),
    ("pdist", (drawn(5, 3),), {"p": 1.0}),
    ("adaptive_avg_pool3d", (drawn(1, 2, 4, 5, 6), (2, 3, None)), {}),
    ("adaptive_max_pool1d", (drawn(2, 3, 7), 3), {}),
    ("adaptive_max_pool3d", (drawn(1, 2, 4, 5, 6), (2, 3, None)), {}),
    ("lp_pool1d", (POSITIVE[0], 2, 3, 2), {}),
    ("lp_pool2d", (POSITIVE, 2.0, (2, 3)), {"ceil_mode": True}),
    ("lp_pool3d", (POSITIVE, 3.0, 2), {}),
    ("local_response_norm", (drawn(2, 7, 3, 4), 4), {"alpha": 0.1, "k": 2.0}),
    ("pixel_unshuffle", (drawn(2, 3, 6, 4), 2), {}),
    ("channel_shuffle", (drawn(2, 6, 3, 3), 3), {}),
    ("unfold", (drawn(1, 2, 5, 5), 3), {"padding": 1}),
    ("rrelu", (drawn(3, 4),), {}),
    ("relu", (drawn(3, 4),), {}),
    ("threshold", (drawn(3, 4), 0.1, 2.0), {}),
    ("cross_entropy", (), {"input": drawn(3, 4), "target": classes(4, 3), "reduction": "sum"}),
    ("softmax", (), {"input": drawn(3, 4), "dim": -1}),
)  # fmt: skip


def compare(case: Case) -> None:
    name, args, kwargs = case
    a, b = ([convert(x) if isinstance(x, np.ndarray) else x for x in args]
            for convert in (torch.tensor, Tensor))  # fmt: skip
    ka, kb = ({k: convert(v) if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
              for convert in (torch.tensor, Tensor))  # fmt: skip
    floats = [(p, q) for p, q in zip(a, b, strict=True)
              if isinstance(p, torch.Tensor) and p.is_floating_point()]  # fmt: skip
    for pair in floats:
        for x in pair:
            x.requires_grad_()
    wanted, found = getattr(theirs, name)(*a, **ka), getattr(ours, name)(*b, **kb)
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5)
    if not floats:
        return
    weights = drawn(*wanted.shape, seed=3)
    (wanted * torch.tensor(weights)).sum().backward()
    (found * Tensor(weights)).sum().backward()
    for p, q in floats:
        # What nothing depends on has zeros there, and no gradient here.
        got = np.zeros(p.shape, np.float32) if q.grad is None else q.grad.numpy()
        assert p.grad is not None
        np.testing.assert_allclose(got, p.grad.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{list(c[2])}")
def test_functions_agree(case: Case) -> None:
    compare(case)


@pytest.mark.parametrize("count", [1, 2])
def test_unpooling_puts_values_back(count: int) -> None:
    x = drawn(2, 3, *(6,) * count)
    pool = (theirs.max_pool1d, theirs.max_pool2d)[count - 1]
    values, places = pool(torch.tensor(x), 2, return_indices=True)
    compare((f"max_unpool{count}d", (values.numpy(), places.numpy(), 2), {}))
    mine, spots = (Tensor.max_pool1d, Tensor.max_pool2d)[count - 1](
        Tensor(x), 2, return_indices=True
    )
    back = (ours.max_unpool1d, ours.max_unpool2d)[count - 1](mine, spots, 2)
    assert float(back.amax().item()) == float(mine.amax().item())


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_ctc(reduction: str) -> None:
    """Gradients by the scores: PyTorch's are those of softmax as well."""
    scores, targets = drawn(9, 4, 6), classes(5, 4, 3) + 1
    targets[2] = 3
    taken, counts = [9, 7, 4, 5], [3, 2, 3, 0]
    a, b = torch.tensor(scores, requires_grad=True), Tensor(scores, requires_grad=True)
    for flat in (False, True):
        given = np.concatenate([row[:n] for row, n in zip(targets, counts, strict=True)])
        labels = given if flat else targets
        args = (taken, counts) if not flat else (tuple(taken), tuple(counts))
        wanted = theirs.ctc_loss(
            a.log_softmax(-1), torch.tensor(labels), torch.tensor(taken), torch.tensor(counts),
            reduction=reduction, zero_infinity=True,
        )
        found = ours.ctc_loss(b.log_softmax(-1), Tensor(labels), *args, reduction=reduction,
                              zero_infinity=True)
        np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-5)
        a.grad = b.grad = None
        wanted.sum().backward()
        found.sum().backward()
        assert a.grad is not None and b.grad is not None
        np.testing.assert_allclose(b.grad.numpy(), a.grad.numpy(), rtol=1e-3, atol=1e-5)


def test_ctc_of_no_steps() -> None:
    """No labels are certain, and others impossible."""
    scores, targets = drawn(3, 3, 6), classes(5, 3, 2) + 1
    taken, counts = [0, 0, 3], [2, 0, 1]
    wanted = theirs.ctc_loss(torch.tensor(scores).log_softmax(-1), torch.tensor(targets),
                             torch.tensor(taken), torch.tensor(counts), reduction="none")
    found = ours.ctc_loss(Tensor(scores).log_softmax(-1), Tensor(targets), taken, counts,
                          reduction="none")
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5)


def test_what_is_written_in_place() -> None:
    x = Tensor(drawn(3, 4))
    assert ours.relu(x, True) is x and (x.numpy() >= 0).all()
    y = Tensor(drawn(3, 4))
    wanted = torch.tensor(drawn(3, 4))
    assert ours.elu(input=y, alpha=0.5, inplace=True) is y
    np.testing.assert_allclose(y.numpy(), theirs.elu(wanted, 0.5), rtol=1e-5)
    z = Tensor(drawn(3, 4), requires_grad=True) * 1.0
    assert ours.leaky_relu_(z, 0.2) is z
    z.sum().backward()


def test_draws() -> None:
    Tensor.manual_seed(0)
    x = Tensor(drawn(500, 64))
    for y in (ours.alpha_dropout(x, 0.3, True), ours.alpha_dropout(x, 0.3, True)):
        assert abs(y.mean().item()) < 0.03 and abs(y.std().item() - 1) < 0.03
    whole = ours.feature_alpha_dropout(Tensor.ones(50, 20, 7), 0.5, True).numpy()
    assert (whole == whole[..., :1]).all() and len(np.unique(whole)) == 2
    shares = Tensor(np.log(np.tile([[0.1, 0.2, 0.7]], (4000, 1))), requires_grad=True)
    hard = ours.gumbel_softmax(shares, hard=True)
    assert np.abs(hard.numpy().mean(0) - [0.1, 0.2, 0.7]).max() < 0.03
    assert set(np.unique(hard.numpy().round(6))) == {0.0, 1.0}
    (hard * Tensor(drawn(4000, 3))).sum().backward()
    assert shares.grad is not None and shares.grad.abs().sum().item() > 0


def test_what_is_refused() -> None:
    table = Tensor(drawn(7, 3))
    with pytest.raises(UnsupportedError, match="sparse"):
        ours.embedding(Tensor([1]), table, sparse=True)
    with pytest.raises(ArgumentError, match="only sums"):
        ours.embedding_bag(Tensor([[1]]), table, per_sample_weights=Tensor([[1.0]]))
    with pytest.raises(ShapeError, match="bags"):
        ours.embedding_bag(Tensor([1]), table)
    with pytest.raises(ShapeError, match="a grid"):
        ours.grid_sample(Tensor(drawn(1, 1, 2, 2)), Tensor(drawn(2, 1, 1, 2)))
    with pytest.raises(AttributeError, match="nearest that it has is 'relu"):
        _ = ours.relu7
