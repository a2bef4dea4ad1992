"""Layers against PyTorch's: outputs, gradients and state keys, with weights carried over by key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from baregrad import nn
from baregrad.base.errors import ArgumentError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

Case = tuple[str, Callable[[Any], Any], tuple[int, ...]]

CASES: tuple[Case, ...] = (
    ("linear", lambda n: n.Linear(5, 3), (4, 5)),
    ("linear without bias", lambda n: n.Linear(5, 3, bias=False), (2, 4, 5)),
    ("conv1d", lambda n: n.Conv1d(3, 4, 3, stride=2, padding=1), (2, 3, 9)),
    ("conv2d", lambda n: n.Conv2d(3, 4, 3, padding=1), (2, 3, 6, 5)),
    ("conv2d groups", lambda n: n.Conv2d(4, 6, (3, 2), groups=2, bias=False), (2, 4, 6, 5)),
    ("conv2d same", lambda n: n.Conv2d(2, 3, 3, padding="same", dilation=2), (1, 2, 6, 5)),
    ("conv3d", lambda n: n.Conv3d(2, 4, (3, 2, 1), stride=2, padding=1, groups=2), (1, 2, 5, 4, 3)),
    ("transposed 1d", lambda n: n.ConvTranspose1d(3, 4, 3, 2, 1, 1), (2, 3, 5)),
    ("transposed 2d", lambda n: n.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2), (2, 4, 3, 4)),
    ("batch norm 1d", lambda n: n.BatchNorm1d(4), (6, 4)),
    ("batch norm 1d long", lambda n: n.BatchNorm1d(4), (3, 4, 5)),
    ("batch norm 2d", lambda n: n.BatchNorm2d(3, momentum=0.3), (4, 3, 3, 2)),
    ("instance norm tracked", lambda n: n.InstanceNorm2d(3, affine=True, track_running_stats=True),
     (4, 3, 3, 2)),
    ("batch norm untracked", lambda n: n.BatchNorm2d(3, track_running_stats=False), (4, 3, 3, 2)),
    ("layer norm", lambda n: n.LayerNorm((4, 5)), (3, 4, 5)),
    ("layer norm without bias", lambda n: n.LayerNorm(5, bias=False), (3, 5)),
    ("rms norm", lambda n: n.RMSNorm(5, eps=1e-6), (3, 5)),
    ("group norm", lambda n: n.GroupNorm(2, 6), (2, 6, 3)),
    ("max pool", lambda n: n.MaxPool2d(2), (2, 3, 6, 4)),
    ("average pool", lambda n: n.AvgPool2d(3, 2, 1), (2, 3, 6, 4)),
    ("adaptive pool", lambda n: n.AdaptiveAvgPool2d(1), (2, 3, 6, 4)),
    ("adaptive pool 1d", lambda n: n.AdaptiveAvgPool1d(3), (2, 3, 7)),
    ("adaptive pool 3d", lambda n: n.AdaptiveAvgPool3d((2, 3, None)), (2, 3, 5, 4, 2)),
    ("adaptive max pool", lambda n: n.AdaptiveMaxPool2d((3, 2)), (2, 3, 6, 4)),
    ("adaptive max pool 1d", lambda n: n.AdaptiveMaxPool1d(3), (2, 3, 7)),
    ("adaptive max pool 3d", lambda n: n.AdaptiveMaxPool3d((2, 3, 1)), (2, 3, 5, 4, 3)),
    ("max pool 3d", lambda n: n.MaxPool3d(2, 1), (1, 2, 3, 4, 3)),
    ("average pool 3d", lambda n: n.AvgPool3d(2), (1, 2, 4, 4, 2)),
    ("upsample", lambda n: n.Upsample(scale_factor=2), (1, 2, 3, 4)),
    ("upsample bilinear", lambda n: n.Upsample((5, 7), mode="bilinear"), (1, 2, 3, 4)),
    ("pixel shuffle", lambda n: n.PixelShuffle(2), (2, 8, 3, 2)),
    ("instance norm", lambda n: n.InstanceNorm2d(3, affine=True), (2, 3, 4, 2)),
    ("instance norm 1d", lambda n: n.InstanceNorm1d(3), (3, 5)),
    ("instance norm 3d", lambda n: n.InstanceNorm3d(2), (2, 2, 3, 2, 2)),
    ("constant pad", lambda n: n.ConstantPad2d((1, 2, 0, 3), 1.5), (2, 3, 4)),
    ("constant pad 1d", lambda n: n.ConstantPad1d(2, -1.0), (2, 3)),
    ("constant pad 3d", lambda n: n.ConstantPad3d(1, 0.5), (1, 2, 2, 3)),
    ("zero pad", lambda n: n.ZeroPad2d((1, -1, 2, 0)), (1, 2, 3, 4)),
    ("zero pad 1d", lambda n: n.ZeroPad1d(1), (2, 3)),
    ("zero pad 3d", lambda n: n.ZeroPad3d(1), (2, 2, 2, 3)),
    ("reflection pad", lambda n: n.ReflectionPad2d((1, 2, 2, 1)), (1, 2, 3, 4)),
    ("reflection pad 1d", lambda n: n.ReflectionPad1d(2), (2, 4)),
    ("reflection pad 3d", lambda n: n.ReflectionPad3d(1), (1, 2, 2, 3, 2)),
    ("replication pad", lambda n: n.ReplicationPad2d(2), (1, 2, 3, 4)),
    ("replication pad 1d", lambda n: n.ReplicationPad1d((3, 0)), (2, 4)),
    ("replication pad 3d", lambda n: n.ReplicationPad3d(1), (1, 2, 2, 3, 2)),
    ("circular pad", lambda n: n.CircularPad2d((1, 2, 0, 1)), (1, 2, 3, 4)),
    ("circular pad 1d", lambda n: n.CircularPad1d(1), (1, 2, 3)),
    ("circular pad 3d", lambda n: n.CircularPad3d(1), (1, 2, 2, 3, 2)),
    ("unfold", lambda n: n.Unfold((2, 3), 1, 1, 2), (2, 3, 5, 6)),
    ("fold", lambda n: n.Fold((5, 4), 3, 1, 1, 2), (2, 18, 6)),
    ("selu", lambda n: n.SELU(), (3, 4)),
    ("celu", lambda n: n.CELU(0.7), (3, 4)),
    ("softsign", lambda n: n.Softsign(), (3, 4)),
    ("tanhshrink", lambda n: n.Tanhshrink(), (3, 4)),
    ("softshrink", lambda n: n.Softshrink(0.3), (3, 4)),
    ("hardshrink", lambda n: n.Hardshrink(0.7), (3, 4)),
    ("threshold", lambda n: n.Threshold(0.2, -3.0), (3, 4)),
    ("softmin", lambda n: n.Softmin(1), (3, 4)),
    ("rnn cell", lambda n: n.RNNCell(3, 4, nonlinearity="relu"), (2, 3)),
    ("gru cell", lambda n: n.GRUCell(3, 4, bias=False), (2, 3)),
    ("gru cell single", lambda n: n.GRUCell(3, 4), (3,)),
    (
        "encoder layer",
        lambda n: n.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True),
        (2, 5, 8),
    ),
    (
        "encoder",
        lambda n: n.TransformerEncoder(
            n.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", norm_first=True, batch_first=True),
            2, n.LayerNorm(8), **({"enable_nested_tensor": False} if n is torch.nn else {}),
        ),
        (2, 5, 8),
    ),
    ("relu6", lambda n: n.ReLU6(), (3, 4)),
    ("mish", lambda n: n.Mish(), (3, 4)),
    ("sigmoid", lambda n: n.Sigmoid(), (3, 4)),
    ("log sigmoid", lambda n: n.LogSigmoid(), (3, 4)),
    ("hardtanh", lambda n: n.Hardtanh(-0.5, 0.7), (3, 4)),
    ("hardsigmoid", lambda n: n.Hardsigmoid(), (3, 4)),
    ("hardswish", lambda n: n.Hardswish(), (3, 4)),
    ("identity", lambda n: n.Identity(), (3, 4)),
    ("unflatten", lambda n: n.Unflatten(1, (2, 3)), (4, 6)),
    ("batch norm 3d", lambda n: n.BatchNorm3d(2), (3, 2, 2, 3, 2)),
    ("max pool 1d", lambda n: n.MaxPool1d(3, 2, 1), (2, 3, 8)),
    ("average pool 1d", lambda n: n.AvgPool1d(2), (2, 3, 8)),
    ("prelu", lambda n: n.PReLU(), (3, 4)),
    ("prelu of channels", lambda n: n.PReLU(4, 0.3), (3, 4, 2)),
    ("glu", lambda n: n.GLU(1), (3, 4)),
    ("gelu", lambda n: n.GELU("tanh"), (3, 4)),
    ("leaky relu", lambda n: n.LeakyReLU(0.2), (3, 4)),
    ("elu", lambda n: n.ELU(0.7), (3, 4)),
    ("softplus", lambda n: n.Softplus(2.0), (3, 4)),
    ("softmax", lambda n: n.Softmax(1), (3, 4)),
    ("log softmax", lambda n: n.LogSoftmax(dim=-1), (3, 4)),
    ("relu in place", lambda n: n.Sequential(n.Linear(4, 4), n.ReLU(True)), (3, 4)),
    ("elu in place", lambda n: n.Sequential(n.Linear(4, 4), n.ELU(0.5, inplace=True)), (3, 4)),
    ("softmax of channels", lambda n: n.Softmax2d(), (2, 3, 2, 2)),
    ("pixel unshuffle", lambda n: n.PixelUnshuffle(2), (1, 2, 4, 6)),
    ("channel shuffle", lambda n: n.ChannelShuffle(2), (1, 4, 2, 2)),
    ("response norm", lambda n: n.LocalResponseNorm(3, 0.1), (2, 5, 3, 2)),
    ("power pool 1d", lambda n: n.LPPool1d(2, 3, 2), (2, 3, 8)),
    ("upsampling", lambda n: n.UpsamplingBilinear2d(scale_factor=2), (1, 2, 3, 4)),
    ("upsampling nearest", lambda n: n.UpsamplingNearest2d((4, 6)), (1, 2, 3, 4)),
    ("transposed 3d", lambda n: n.ConvTranspose3d(2, 3, 2, 2), (1, 2, 3, 2, 2)),
    ("conv reflected", lambda n: n.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
     (1, 2, 4, 5)),
    ("conv replicated", lambda n: n.Conv1d(2, 3, 3, padding="same", padding_mode="replicate"),
     (1, 2, 6)),
    ("by names", lambda n: n.Sequential(OrderedDict(a=n.Linear(4, 3), b=n.Tanh()))[:1], (2, 4)),
    ("weight norm", lambda n: n.utils.weight_norm(n.Conv1d(2, 3, 3)), (2, 2, 6)),
    ("weight norm whole", lambda n: n.utils.weight_norm(n.Linear(4, 3), dim=None), (2, 4)),
    (
        "spectral norm",
        lambda n: n.Sequential(n.utils.spectral_norm(n.ConvTranspose2d(2, 3, 3), eps=1e-6)).eval(),
        (1, 2, 3, 3),
    ),
    (
        "sequential",
        lambda n: n.Sequential(
            n.Conv2d(1, 4, 3), n.BatchNorm2d(4), n.ReLU(), n.Flatten(), n.Linear(16, 2), n.SiLU()
        ),
        (3, 1, 4, 4),
    ),
)
IDS = [name for name, _, _ in CASES]


def pair(make: Callable[[Any], Any]) -> tuple[nn.Module, torch.nn.Module]:
    """Our module and PyTorch's, with PyTorch's weights (made uneven) in both."""
    torch.manual_seed(0)
    theirs = make(torch.nn)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    ours = make(nn)
    ours.load_state_dict({name: Tensor(t) for name, t in theirs.state_dict().items()})
    return ours, theirs


@pytest.mark.differential
@pytest.mark.parametrize("make,shape", [(make, shape) for _, make, shape in CASES], ids=IDS)
def test_outputs_and_gradients_equal_pytorchs(
    make: Callable[[Any], Any], shape: tuple[int, ...]
) -> None:
    ours, theirs = pair(make)
    data = np.random.default_rng(1).standard_normal(shape, np.float32)
    x = Tensor(data, requires_grad=True)
    t = torch.tensor(data, requires_grad=True)
    for _ in range(2):
        y, z = ours(x), theirs(t)
        np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=2e-5, atol=2e-6)
        weights = np.random.default_rng(2).standard_normal(z.shape, np.float32)
        (y * Tensor(weights)).sum().backward()
        (z * torch.tensor(weights)).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy(), rtol=1e-4, atol=1e-5)
    for (name, p), (other, q) in zip(
        ours.named_parameters(), theirs.named_parameters(), strict=True
    ):
        assert name == other
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-4, atol=2e-5)
    for name, buffer in theirs.state_dict().items():
        found = ours.state_dict()[name].numpy()
        np.testing.assert_allclose(found, buffer.numpy(), rtol=1e-5, atol=1e-6)
    y, z = ours.eval()(x), theirs.eval()(t)
    np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.differential
@pytest.mark.parametrize("make", [make for _, make, _ in CASES], ids=IDS)
def test_state_keys_and_initial_ranges_are_pytorchs(make: Callable[[Any], Any]) -> None:
    ours, theirs = make(nn), make(torch.nn)
    found = {name: (t.shape, t.dtype.name) for name, t in ours.state_dict().items()}
    wanted = {
        name: (tuple(t.shape), str(t.dtype).removeprefix("torch."))
        for name, t in theirs.state_dict().items()
    }
    assert list(found.items()) == list(wanted.items())
    for name, p in ours.named_parameters():
        q = theirs.get_parameter(name).detach()
        if q.numel() > 20:
            assert abs(p.numpy().std() - q.numpy().std()) < 0.4 * q.numpy().std() + 1e-6, name


@pytest.mark.differential
@pytest.mark.parametrize("size", [3, 40])
def test_linear_draws_within_its_bound(size: int) -> None:
    values = nn.Linear(size, 200).weight.numpy()
    bound = 1 / np.sqrt(size)
    assert np.abs(values).max() <= bound
    assert np.abs(values).max() > 0.98 * bound
    assert abs(values.mean()) < 0.1 * bound


def test_embedding_equals_pytorchs_and_padding_gets_no_gradient() -> None:
    theirs = torch.nn.Embedding(7, 3, padding_idx=2)
    ours = nn.Embedding(7, 3, padding_idx=2)
    assert not ours.weight.numpy()[2].any()
    ours.load_state_dict({"weight": Tensor(theirs.weight)})
    rows = np.array([[1, 2, 6], [2, 1, 0]])
    ours(Tensor(rows)).square().sum().backward()
    theirs(torch.tensor(rows)).square().sum().backward()
    np.testing.assert_allclose(ours.weight.grad.numpy(), theirs.weight.grad.numpy(), rtol=1e-6)


def test_dropout_drops_in_training_alone() -> None:
    layer = nn.Dropout(0.25)
    ones = Tensor.ones(100, 100)
    dropped = layer(ones).numpy()
    assert set(np.unique(dropped)) == {0.0, np.float32(1 / 0.75)}
    assert abs((dropped == 0).mean() - 0.25) < 0.02
    assert layer.eval()(ones) is ones


@pytest.mark.differential
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("masks", ["none", "bool", "float", "padding", "both"])
def test_attention_equals_pytorchs(batch_first: bool, masks: str) -> None:
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=batch_first)
    ours = nn.MultiheadAttention(8, 2, batch_first=batch_first)
    ours.load_state_dict({name: Tensor(t) for name, t in theirs.state_dict().items()})
    rng = np.random.default_rng(0)
    query = rng.standard_normal((3, 4, 8), np.float32)
    key = rng.standard_normal((3, 5, 8), np.float32)
    value = rng.standard_normal((3, 5, 8), np.float32)
    if not batch_first:
        query, key, value = (x.swapaxes(0, 1).copy() for x in (query, key, value))
    chosen: dict[str, np.ndarray[Any, Any]] = {}
    if masks in ("bool", "both"):
        chosen["attn_mask"] = np.triu(np.ones((4, 5), bool), 2)
    if masks == "float":
        chosen["attn_mask"] = rng.standard_normal((4, 5)).astype(np.float32)
    if masks in ("padding", "both"):
        chosen["key_padding_mask"] = np.array([[False] * 5, [False] * 3 + [True] * 2, [False] * 5])
    for extra in ({}, {"need_weights": False}, {"average_attn_weights": False}):
        out, weights = ours(
            *map(Tensor, (query, key, value)), **{k: Tensor(m) for k, m in chosen.items()}, **extra
        )
        wanted, wanted_weights = theirs(
            *map(torch.tensor, (query, key, value)),
            **{k: torch.tensor(m) for k, m in chosen.items()},
            **extra,
        )
        np.testing.assert_allclose(out.numpy(), wanted.detach().numpy(), rtol=1e-5, atol=1e-6)
        assert (weights is None) == (wanted_weights is None)
        if weights is not None:
            np.testing.assert_allclose(
                weights.numpy(), wanted_weights.detach().numpy(), rtol=1e-5, atol=1e-6
            )


LOSSES: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("mse", lambda n: n.MSELoss()),
    ("l1", lambda n: n.L1Loss(reduction="sum")),
    ("smooth l1", lambda n: n.SmoothL1Loss(reduction="sum", beta=0.5)),
    ("huber", lambda n: n.HuberLoss(delta=0.5)),
    ("binary", lambda n: n.BCEWithLogitsLoss()),
    ("kl", lambda n: n.KLDivLoss(reduction="batchmean")),
)


@pytest.mark.differential
@pytest.mark.parametrize("make", [make for _, make in LOSSES], ids=[name for name, _ in LOSSES])
def test_losses_equal_pytorchs(make: Callable[[Any], Any]) -> None:
    rng = np.random.default_rng(0)
    x, target = rng.standard_normal((4, 3), np.float32), rng.random((4, 3), np.float32)
    found = make(nn)(Tensor(x), Tensor(target)).item()
    assert found == pytest.approx(make(torch.nn)(torch.tensor(x), torch.tensor(target)).item())


SIGNS = np.array([1, -1, -1, 1], np.float32)
PAIR_LOSSES: tuple[tuple[Callable[[Any], Any], int, bool], ...] = (
    (lambda n: n.CosineEmbeddingLoss(0.1), 2, True),
    (lambda n: n.MarginRankingLoss(0.3, reduction="none"), 2, False),
    (lambda n: n.TripletMarginLoss(0.5, swap=True), 3, False),
    (lambda n: n.PoissonNLLLoss(full=True), 2, False),
    (lambda n: n.SoftMarginLoss(reduction="sum"), 2, False),
    (lambda n: n.CosineSimilarity(dim=0), 2, False),
    (lambda n: n.PairwiseDistance(1.0, keepdim=True), 2, False),
)


@pytest.mark.differential
@pytest.mark.parametrize(("make", "count", "signed"), PAIR_LOSSES)
def test_losses_of_pairs_equal_pytorchs(
    make: Callable[[Any], Any], count: int, signed: bool
) -> None:
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((4, 3), np.float32) for _ in range(count)]
    if signed:
        given.append(SIGNS)
    elif isinstance(make(nn), nn.MarginRankingLoss):
        given.append(np.sign(rng.standard_normal((4, 3), np.float32)))
    found = make(nn)(*map(Tensor, given)).numpy()
    wanted = make(torch.nn)(*map(torch.tensor, given)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-6)


def test_losses_with_their_own_arguments_equal_pytorchs() -> None:
    rng = np.random.default_rng(0)
    x, target, spread = (rng.standard_normal(4, np.float32) for _ in range(3))
    spread = np.abs(spread)
    found = nn.GaussianNLLLoss(full=True)(Tensor(x), Tensor(target), Tensor(spread))
    wanted = torch.nn.GaussianNLLLoss(full=True)(*map(torch.tensor, (x, target, spread)))
    assert found.item() == pytest.approx(wanted.item())
    found = nn.HingeEmbeddingLoss(0.4)(Tensor(x), Tensor(SIGNS))
    wanted = torch.nn.HingeEmbeddingLoss(0.4)(torch.tensor(x), torch.tensor(SIGNS))
    assert found.item() == pytest.approx(wanted.item())


@pytest.mark.parametrize(("layer", "shape"), [
    (nn.Dropout1d(0.5), (40, 30, 3)), (nn.Dropout2d(0.5), (40, 30, 2, 3)),
    (nn.Dropout3d(0.5), (40, 30, 2, 1, 3)), (nn.Dropout2d(0.5), (300, 2, 3)),
])  # fmt: skip
def test_channels_are_dropped_whole(layer: nn.Module, shape: tuple[int, ...]) -> None:
    ones = Tensor.ones(*shape)
    dropped = layer(ones).numpy()
    # An axis less than the layer's name has is a channel of an image without a batch.
    inner = {nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}[type(layer)]
    channels = dropped.reshape(-1, int(np.prod(shape[-inner:])))
    assert set(np.unique(dropped)) == {0.0, 2.0}
    assert (channels == channels[:, :1]).all()
    assert abs((channels[:, 0] == 0).mean() - 0.5) < 0.1
    if inner > 1:
        # Of channels without places each element is one.
        assert set(np.unique(layer(Tensor.ones(9, 9)).numpy())) == {0.0, 2.0}
    assert layer.eval()(ones) is ones


def test_modules_say_what_is_wrong() -> None:
    x = Tensor.ones(2, 3)
    for make, error, told in (
        (lambda: nn.ZeroPad2d((1, 2)), ShapeError, "an amount before and after each axis"),
        (lambda: nn.Dropout2d()(x[0]), ShapeError, "wanted 4 axes, or 3 without a batch"),
        (lambda: nn.InstanceNorm2d(3)(x), ShapeError, "wanted 4 axes, 3 channels"),
        (lambda: nn.LayerNorm(np.float32(2)), ShapeError, "an extent is an integer"),
        (lambda: nn.TransformerEncoderLayer(4, 2, activation="sin"), ArgumentError, "found sin"),
    ):
        with pytest.raises(error, match=told):
            make()
    assert nn.LayerNorm(np.int64(3))(x).shape == (2, 3)


@pytest.mark.differential
def test_class_losses_equal_pytorchs() -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((6, 4), np.float32), rng.random(4, np.float32)
    target = np.array([0, 3, 1, -100, 2, 2])
    for smoothing in (0.0, 0.1):
        ours = nn.CrossEntropyLoss(Tensor(weight), label_smoothing=smoothing)
        theirs = torch.nn.CrossEntropyLoss(torch.tensor(weight), label_smoothing=smoothing)
        found = ours(Tensor(x), Tensor(target)).item()
        assert found == pytest.approx(theirs(torch.tensor(x), torch.tensor(target)).item())
    assert list(ours.state_dict()) == list(theirs.state_dict())
    shares = np.log(rng.random((6, 4), np.float32))
    given = nn.NLLLoss(Tensor(weight), reduction="sum")(Tensor(shares), Tensor(target)).item()
    wanted = torch.nn.NLLLoss(torch.tensor(weight), reduction="sum")
    assert given == pytest.approx(wanted(torch.tensor(shares), torch.tensor(target)).item())
    likely, truth = rng.random((2, 6, 4), np.float32)
    given = nn.BCELoss()(Tensor(likely), Tensor(truth)).item()
    other = torch.nn.BCELoss()(torch.tensor(likely), torch.tensor(truth))
    assert given == pytest.approx(other.item())


def test_narrow_dtypes_and_moves() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).bfloat16()
    kinds = {name: t.dtype for name, t in model.state_dict().items()}
    assert kinds.pop("1.num_batches_tracked") is dtypes.int64
    assert set(kinds.values()) == {dtypes.bfloat16}
    assert all(p.requires_grad for p in model.parameters())
    assert model.float()(Tensor.ones(4, 3)).dtype is dtypes.float32


def masked(size: int) -> Any:
    return np.triu(np.full((size, size), -np.inf, np.float32), 1)


@pytest.mark.differential
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_transformer_decodes_as_pytorchs(norm_first: bool) -> None:
    ours, theirs = pair(lambda n: n.Transformer(
        8, 2, 1, 2, 12, 0.0, batch_first=True, norm_first=norm_first
    ))  # fmt: skip
    rng = np.random.default_rng(1)
    src, tgt = (rng.standard_normal((2, n, 8), np.float32) for n in (5, 4))
    mask = masked(4)
    assert (nn.Transformer.generate_square_subsequent_mask(4).numpy() == mask).all()
    padding = np.array([[False] * 5, [False] * 3 + [True] * 2])
    found = ours(Tensor(src), Tensor(tgt), tgt_mask=Tensor(mask),
                 memory_key_padding_mask=Tensor(padding))
    wanted = theirs(torch.tensor(src), torch.tensor(tgt), tgt_mask=torch.tensor(mask),
                    memory_key_padding_mask=torch.tensor(padding))
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5)
    found.square().sum().backward()
    wanted.square().sum().backward()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        wanted_grad = q.grad
        assert p.grad is not None and wanted_grad is not None
        np.testing.assert_allclose(p.grad.numpy(), wanted_grad.numpy(), rtol=1e-3, atol=1e-4)


def test_bags_and_bilinear_forms() -> None:
    rng = np.random.default_rng(0)
    index = rng.integers(0, 6, (3, 4))
    ours, theirs = pair(lambda n: n.EmbeddingBag(6, 3, mode="sum", padding_idx=1))
    found, wanted = ours(Tensor(index)), theirs(torch.tensor(index))
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-5)
    table = nn.Embedding.from_pretrained(Tensor(rng.standard_normal((6, 3), np.float32)))
    assert not table.weight.requires_grad and table(Tensor(index)).shape == (3, 4, 3)
    ours, theirs = pair(lambda n: n.Bilinear(3, 4, 2))
    x, y = (rng.standard_normal((5, n), np.float32) for n in (3, 4))
    wanted = theirs(torch.tensor(x), torch.tensor(y))
    np.testing.assert_allclose(
        ours(Tensor(x), Tensor(y)).numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-6
    )


def test_pooling_gives_places_that_unpooling_takes() -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 6)).astype(np.float32)
    results = []
    for n, t in ((nn, Tensor(x)), (torch.nn, torch.tensor(x))):
        values, places = n.MaxPool2d(2, return_indices=True)(t)
        results.append(n.MaxUnpool2d(2)(values, places).numpy())
    assert (results[0] == results[1]).all()


LOSSES: tuple[tuple[Callable[[Any], Any], tuple[Any, ...]], ...] = (
    (lambda n: n.MultiMarginLoss(2, 0.5), ((4, 5), np.array([0, 3, 2, 4]))),
    (lambda n: n.MultiLabelMarginLoss(), ((2, 3), np.array([[2, 0, -1], [1, -1, 0]]))),
    (lambda n: n.MultiLabelSoftMarginLoss(), ((2, 3), np.ones((2, 3), np.float32))),
    (lambda n: n.TripletMarginWithDistanceLoss(margin=2.0), ((4, 3), (4, 3), (4, 3))),
    (lambda n: n.CTCLoss(), ((6, 2, 4), np.array([[1, 2], [3, 3]]), np.array([6, 5]),
                             np.array([2, 2]))),
)  # fmt: skip


@pytest.mark.parametrize("make,args", LOSSES, ids=range(len(LOSSES)))
def test_more_losses_equal_pytorchs(make: Callable[[Any], Any], args: tuple[Any, ...]) -> None:
    rng = np.random.default_rng(2)
    given = [rng.standard_normal(a).astype(np.float32) if isinstance(a, tuple) else a for a in args]
    if isinstance(make(nn), nn.CTCLoss):
        given[0] = torch.tensor(given[0]).log_softmax(-1).numpy()
    found = make(nn)(*map(Tensor, given))
    wanted = make(torch.nn)(*map(torch.tensor, given))
    np.testing.assert_allclose(found.item(), wanted.item(), rtol=1e-5)


def test_weights_that_are_made_are_no_parameters() -> None:
    layer = nn.utils.weight_norm(nn.Linear(3, 2))
    x = Tensor.ones(1, 3)
    before = layer(x).numpy()
    with Tensor.no_grad():
        layer(x)
    assert sorted(layer.state_dict()) == ["bias", "weight_g", "weight_v"]
    captured = jit(layer)
    found = [captured(x).numpy() for _ in range(4)]
    assert all((one == before).all() for one in found)
    nn.utils.remove_weight_norm(layer)
    assert sorted(layer.state_dict()) == ["bias", "weight"]
    np.testing.assert_allclose(layer(x).numpy(), before, rtol=1e-6)
    with pytest.raises(ArgumentError, match="no such weight"):
        nn.utils.remove_weight_norm(layer)
    other = nn.utils.spectral_norm(nn.Linear(5, 4))
    for _ in range(40):
        other(Tensor.ones(1, 5))
    assert abs(np.linalg.norm(other.weight.numpy(), 2) - 1) < 1e-3
    assert sorted(dict(other.named_parameters())) == ["bias", "weight_orig"]
    nn.utils.remove_spectral_norm(other)
    assert sorted(other.state_dict()) == ["bias", "weight"]


def test_parameters_as_a_vector_and_sequences_side_by_side() -> None:
    layer = nn.Linear(3, 2)
    vector = nn.utils.parameters_to_vector(layer.parameters())
    nn.utils.vector_to_parameters(vector * 2, layer.parameters())
    again = nn.utils.parameters_to_vector(layer.parameters())
    np.testing.assert_allclose(again.numpy(), vector.numpy() * 2)
    with pytest.raises(ShapeError, match="a vector of all"):
        nn.utils.vector_to_parameters(vector[1:], layer.parameters())
    rows = [np.arange(6.0).reshape(3, 2), np.ones((1, 2))]
    for first in (False, True):
        found = nn.utils.rnn.pad_sequence([Tensor(r) for r in rows], first, -1.0)
        wanted = torch.nn.utils.rnn.pad_sequence([torch.tensor(r) for r in rows], first, -1.0)
        assert (found.numpy() == wanted.numpy()).all()
