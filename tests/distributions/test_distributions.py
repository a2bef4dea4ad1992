"""Densities, moments and divergences of distributions as PyTorch has them, and draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributions as theirs

from baregrad import distributions as ours
from baregrad import jit
from baregrad.base.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError
from baregrad.base.options import options
from baregrad.tensor import Tensor

slow = pytest.mark.slow
A, B, C = [0.5, 1.5, 3.0], [[0.7], [2.0]], [2.5, 3.5, 6.0]
CHANCES, LOGITS = [0.1, 0.5, 0.8], [-1.0, 0.0, 2.5]
SHARES = [[0.2, 0.3, 0.5], [0.6, 0.0, 0.4]]
SCORES = [[1.0, -2.0, 0.5], [0.0, 0.0, 3.0]]
MATRIX = [[2.0, 0.6, 0.1], [0.6, 1.5, -0.3], [0.1, -0.3, 1.0]]
REALS = [[-1.5, 0.2, 2.0], [0.3, -0.4, 5.0]]
POSITIVES = [[0.1, 0.9, 2.0], [3.0, 0.5, 1.2]]
UNITS = [[0.1, 0.9, 0.5], [0.3, 0.25, 0.7]]
COUNTS = [[0.0, 1.0, 3.0], [2.0, 4.0, 0.0]]
BITS = [[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]
SIMPLEX = [[0.2, 0.3, 0.5], [0.1, 0.8, 0.1]]
ONES = [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]

# Of a module of distributions and a function that makes tensors: a distribution. And values.
Make = Callable[[Any, Callable[[Any], Any]], Any]
CASES: tuple[tuple[str, Make, Any], ...] = (
    ("Normal", lambda d, t: d.Normal(t(A), t(B)), REALS),
    ("Normal of numbers", lambda d, t: d.Normal(1, 2.0), 0.25),
    ("Laplace", lambda d, t: d.Laplace(t(A), t(B)), REALS),
    ("Cauchy", lambda d, t: d.Cauchy(t(A), t(B)), REALS),
    ("Gumbel", lambda d, t: d.Gumbel(t(A), t(B)), REALS),
    ("Uniform", lambda d, t: d.Uniform(t([-2.0, -1.0, 1.0]), t([[6.0], [7.0]])), REALS),
    ("Exponential", lambda d, t: d.Exponential(t(A)), POSITIVES),
    ("VonMises", lambda d, t: d.VonMises(t(A), t(B)), REALS),
    ("Gamma", lambda d, t: d.Gamma(t(A), t(B)), POSITIVES),
    ("Chi2", lambda d, t: d.Chi2(t(C)), POSITIVES),
    ("InverseGamma", lambda d, t: d.InverseGamma(t(C), t(B)), POSITIVES),
    ("Beta", lambda d, t: d.Beta(t(A), t(B)), UNITS),
    ("Dirichlet", lambda d, t: d.Dirichlet(t(C)), SIMPLEX),
    ("StudentT", lambda d, t: d.StudentT(t(C), t(A), t(B)), REALS),
    ("FisherSnedecor", lambda d, t: d.FisherSnedecor(t(C), t([5.0, 6.0, 9.0])), POSITIVES),
    ("Bernoulli", lambda d, t: d.Bernoulli(t(CHANCES)), BITS),
    ("Bernoulli logits", lambda d, t: d.Bernoulli(logits=t(LOGITS)), BITS),
    ("Geometric", lambda d, t: d.Geometric(t(CHANCES)), COUNTS),
    ("Binomial", lambda d, t: d.Binomial(5, t(CHANCES)), COUNTS),
    ("Binomial logits", lambda d, t: d.Binomial(t([4.0, 4.0, 7.0]), logits=t(LOGITS)), COUNTS),
    ("NegativeBinomial", lambda d, t: d.NegativeBinomial(t(C), t(CHANCES)), COUNTS),
    ("Categorical", lambda d, t: d.Categorical(t(SHARES)), [[0.0], [2.0]]),
    ("Categorical logits", lambda d, t: d.Categorical(logits=t(SCORES)), [[0.0], [2.0]]),
    ("OneHotCategorical", lambda d, t: d.OneHotCategorical(logits=t(SCORES)), ONES),
    ("straight through", lambda d, t: d.OneHotCategoricalStraightThrough(logits=t(SCORES)), ONES),
    ("Multinomial", lambda d, t: d.Multinomial(4, t(SHARES)), [[1.0, 1.0, 2.0], [2.0, 0.0, 2.0]]),
    ("Poisson", lambda d, t: d.Poisson(t(A)), COUNTS),
    ("MultivariateNormal", lambda d, t: d.MultivariateNormal(t(REALS), t(MATRIX)), REALS[0]),
    ("by precision", lambda d, t: d.MultivariateNormal(t(A), precision_matrix=t(MATRIX)), REALS),
    ("low rank", lambda d, t: d.LowRankMultivariateNormal(t(A), t(MATRIX)[..., :2], t(C)), REALS),
    ("LogNormal", lambda d, t: d.LogNormal(t(A), t(B)), POSITIVES),
    ("HalfNormal", lambda d, t: d.HalfNormal(t(A)), POSITIVES),
    ("HalfCauchy", lambda d, t: d.HalfCauchy(t(A)), POSITIVES),
    ("Weibull", lambda d, t: d.Weibull(t(A), t(C)), POSITIVES),
    ("Pareto", lambda d, t: d.Pareto(t([0.1, 0.4, 0.2]), t(C)), POSITIVES),
    ("Kumaraswamy", lambda d, t: d.Kumaraswamy(t(A), t(C)), UNITS),
    ("RelaxedBernoulli", lambda d, t: d.RelaxedBernoulli(t(0.7), t(CHANCES)), UNITS),
    ("RelaxedOneHot", lambda d, t: d.RelaxedOneHotCategorical(t(0.7), logits=t(SCORES)), SIMPLEX),
    ("Independent", lambda d, t: d.Independent(d.Normal(t(REALS), t(B)), 1), REALS),
    ("mixture", lambda d, t: d.MixtureSameFamily(
        d.Categorical(t(SIMPLEX)), d.Normal(t(REALS), t(POSITIVES))), [0.1, 2.0]),
    ("mixture of vectors", lambda d, t: d.MixtureSameFamily(
        d.Categorical(t([0.3, 0.7])), d.Independent(d.Normal(t(REALS), t(B)), 1)), A),
    ("tanh", lambda d, t: d.Independent(d.TransformedDistribution(
        d.Normal(t(REALS), t(B)), [d.TanhTransform(), d.AffineTransform(0.5, t([2.0]))]), 1),
     [[0.1, 0.9, -0.5], [1.1, 0.2, 2.0]]),
    ("sticks", lambda d, t: d.TransformedDistribution(
        d.Normal(t([0.1, 0.2]), t([1.0, 2.0])), d.StickBreakingTransform()), SIMPLEX),
    ("reshaped", lambda d, t: d.TransformedDistribution(
        d.Normal(t(REALS), t(B)), d.ReshapeTransform((2, 3), (3, 2))),
     [[0.1, 0.2], [-1.0, 1.0], [0.5, 0.0]]),
)  # fmt: skip
QUICK = {"Normal", "Gamma", "Bernoulli", "Categorical logits", "Independent"}
IDS = [name for name, *_ in CASES]
EACH = [pytest.param(*case, marks=() if case[0] in QUICK else slow, id=case[0]) for case in CASES]
SOME = [pytest.param(*case, marks=() if case[0] in ("Normal", "Categorical logits") else slow,
                     id=case[0]) for case in CASES]  # fmt: skip


@pytest.fixture(autouse=True)
def _device() -> Any:
    with options.override(device="REF"):
        Tensor.manual_seed(0)
        yield


def as_ours(x: Any) -> Tensor:
    return Tensor(np.array(x, np.float64))


def as_theirs(x: Any) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def agree(mine: Any, other: Any) -> None:
    np.testing.assert_allclose(mine.detach().numpy(), other.detach().numpy(), 2e-6, 1e-9)


def asked(one: Any, name: str, *args: Any) -> Any:
    """What a distribution says, None where it has no such thing."""
    try:
        found = getattr(one, name)
        return found(*args) if callable(found) else found
    except (NotImplementedError, UnsupportedError, AttributeError):
        return None


@pytest.mark.parametrize(("name", "make", "values"), EACH)
def test_what_they_say_equals_pytorchs(name: str, make: Make, values: Any) -> None:
    leaves: list[Tensor] = []
    leaves_t: list[torch.Tensor] = []

    def leaf(x: Any) -> Tensor:
        leaves.append(as_ours(x).requires_grad_())
        return leaves[-1]

    def leaf_t(x: Any) -> torch.Tensor:
        leaves_t.append(as_theirs(x).requires_grad_())
        return leaves_t[-1]

    mine = make(ours, leaf)
    theirs.Distribution.set_default_validate_args(False)
    other = make(theirs, leaf_t)
    assert mine.batch_shape == tuple(other.batch_shape)
    assert mine.event_shape == tuple(other.event_shape)
    found, wanted = mine.log_prob(as_ours(values)), other.log_prob(as_theirs(values))
    agree(found, wanted)
    if leaves:
        found.sum().backward()
        wanted.sum().backward()
    for one, two in zip(leaves, leaves_t, strict=True):
        assert (one.grad is None) == (two.grad is None)
        if one.grad is not None and two.grad is not None:
            agree(one.grad, two.grad)
    compared = 1
    for asking in ("mean", "mode", "variance", "stddev", "entropy"):
        answer, aim = asked(mine, asking), asked(other, asking)
        # PyTorch has no closed mode of a one-hot at no chance, ours none that it has not.
        if answer is not None and aim is not None:
            agree(answer, aim)
            compared += 1
    assert compared > 1 or name in ("RelaxedBernoulli", "RelaxedOneHot", "tanh", "sticks",
                                    "reshaped")  # fmt: skip
    for asking, given in (("cdf", values), ("icdf", UNITS)):
        answer = asked(mine, asking, as_ours(given))
        if answer is not None:
            agree(answer, asked(other, asking, as_theirs(given)))


@pytest.mark.parametrize(("name", "make", "values"), SOME)
def test_draws_have_the_mean_and_the_variance(name: str, make: Make, values: Any) -> None:
    one = make(ours, as_ours)
    count = 4000
    drawn = one.sample((count,))
    assert drawn.shape == (count, *one.batch_shape, *one.event_shape)
    assert one.log_prob(drawn[:5]).numpy().max() < np.inf
    mean, variance = asked(make(theirs, as_theirs), "mean"), asked(one, "variance")
    if mean is None or variance is None or name == "VonMises":
        return
    mean, variance = mean.numpy(), variance.numpy()
    known = np.isfinite(mean) & np.isfinite(variance)
    x = drawn.numpy().reshape(count, -1)[:, known.reshape(-1)]
    error = np.sqrt(variance[known].reshape(-1) / count)
    # 5 deviations; a mean of long tails is further away.
    assert (np.abs(x.mean(0) - mean[known].reshape(-1)) <= 5 * error + 1e-12).all()
    if name not in ("StudentT", "FisherSnedecor", "InverseGamma", "Pareto", "LogNormal"):
        np.testing.assert_allclose(x.var(0), variance[known].reshape(-1), 0.25, 1e-12)


@pytest.mark.parametrize(("name", "make", "values"), [
    case for case, one in zip(SOME, CASES, strict=True)
    if one[0] not in ("reshaped", "RelaxedOneHot")])  # fmt: skip
def test_batches_of_other_shapes(name: str, make: Make, values: Any) -> None:
    one, other = make(ours, as_ours), make(theirs, as_theirs)
    shape = (2, *one.batch_shape)
    wide, wide_t = one.expand(shape), other.expand(shape)
    assert wide.batch_shape == shape and type(wide) is type(one)
    agree(wide.log_prob(as_ours(values)), wide_t.log_prob(as_theirs(values)))
    assert wide.sample((3,)).shape == (3, *shape, *one.event_shape)
    assert type(one).__name__ in repr(one)


PAIRS: tuple[tuple[str, Make, Make], ...] = (
    ("Normal", lambda d, t: d.Normal(t(A), t(B)), lambda d, t: d.Normal(t(C), t(B) * 2)),
    ("Bernoulli", lambda d, t: d.Bernoulli(t([0.0, 0.4, 1.0])),
     lambda d, t: d.Bernoulli(t([0.3, 0.9, 0.5]))),
    ("Binomial", lambda d, t: d.Binomial(5, t(CHANCES)),
     lambda d, t: d.Binomial(5, t([0.3, 0.9, 0.5]))),
    ("Categorical", lambda d, t: d.Categorical(t(SHARES)),
     lambda d, t: d.Categorical(logits=t(SCORES))),
    ("OneHotCategorical", lambda d, t: d.OneHotCategorical(t(SHARES)),
     lambda d, t: d.OneHotCategorical(logits=t(SCORES))),
    ("Geometric", lambda d, t: d.Geometric(t(CHANCES)), lambda d, t: d.Geometric(t([[0.3]]))),
    ("Poisson", lambda d, t: d.Poisson(t(A)), lambda d, t: d.Poisson(t(C))),
    ("Beta", lambda d, t: d.Beta(t(A), t(B)), lambda d, t: d.Beta(t(C), t(A))),
    ("Gamma", lambda d, t: d.Gamma(t(A), t(B)), lambda d, t: d.Gamma(t(C), t(A))),
    ("Chi2", lambda d, t: d.Chi2(t(A)), lambda d, t: d.Chi2(t(C))),
    ("Dirichlet", lambda d, t: d.Dirichlet(t(A)), lambda d, t: d.Dirichlet(t(C))),
    ("Exponential", lambda d, t: d.Exponential(t(A)), lambda d, t: d.Exponential(t(C))),
    ("Laplace", lambda d, t: d.Laplace(t(A), t(B)), lambda d, t: d.Laplace(t(C), t(A))),
    ("Cauchy", lambda d, t: d.Cauchy(t(A), t(B)), lambda d, t: d.Cauchy(t(C), t(A))),
    ("Gumbel", lambda d, t: d.Gumbel(t(A), t(B)), lambda d, t: d.Gumbel(t(C), t(A))),
    ("Uniform", lambda d, t: d.Uniform(t([0.0, 1.0]), t([1.0, 5.0])),
     lambda d, t: d.Uniform(t([-1.0, 2.0]), t([3.0, 9.0]))),
    ("Uniform Normal", lambda d, t: d.Uniform(t(A), t(C)), lambda d, t: d.Normal(t(C), t(A))),
    ("Pareto", lambda d, t: d.Pareto(t(A), t(B)), lambda d, t: d.Pareto(t(1.0), t(C))),
    ("HalfNormal", lambda d, t: d.HalfNormal(t(A)), lambda d, t: d.HalfNormal(t(C))),
    ("LogNormal", lambda d, t: d.LogNormal(t(A), t(B)), lambda d, t: d.LogNormal(t(C), t(A))),
    ("MultivariateNormal", lambda d, t: d.MultivariateNormal(t(REALS), t(MATRIX)),
     lambda d, t: d.MultivariateNormal(t(A), scale_tril=t(MATRIX).tril())),
    ("Independent", lambda d, t: d.Independent(d.Normal(t(REALS), t(B)), 1),
     lambda d, t: d.Independent(d.Normal(t(A), t(POSITIVES)), 1)),
)  # fmt: skip


@pytest.mark.parametrize(("name", "p", "q"), [
    pytest.param(*case, marks=() if case[0] in ("Normal", "Independent") else slow, id=case[0])
    for case in PAIRS])  # fmt: skip
def test_divergences_equal_pytorchs(name: str, p: Make, q: Make) -> None:
    theirs.Distribution.set_default_validate_args(False)
    found = ours.kl_divergence(p(ours, as_ours), q(ours, as_ours))
    wanted = theirs.kl_divergence(p(theirs, as_theirs), q(theirs, as_theirs))
    agree(found, wanted)


def test_a_divergence_can_be_registered() -> None:
    class Own(ours.Normal):
        pass

    with pytest.raises(UnsupportedError, match="register_kl"):
        ours.kl_divergence(ours.Gamma(1.0, 1.0), ours.Normal(0.0, 1.0))

    @ours.register_kl(Own, ours.Normal)
    def own(p: Own, q: ours.Normal) -> Tensor:
        return p.loc - q.loc

    assert ours.kl_divergence(Own(3.0, 1.0), ours.Normal(1.0, 1.0)).item() == 2.0
    assert ours.kl_divergence(ours.Normal(3.0, 1.0), ours.Normal(3.0, 1.0)).item() == 0.0


def test_gradients_pass_draws() -> None:
    loc, scale = as_ours(A).requires_grad_(), as_ours([2.0]).requires_grad_()
    drawn = ours.Normal(loc, scale).rsample((4,))
    drawn.sum().backward()
    np.testing.assert_allclose(loc.grad.numpy(), [4.0] * 3)
    z = (drawn.detach() - loc.detach()) / scale.detach()
    np.testing.assert_allclose(scale.grad.numpy(), [z.sum().item()], rtol=1e-6)
    assert not ours.Normal(loc, scale).sample().requires_grad
    logits = as_ours(SCORES).requires_grad_()
    one = ours.OneHotCategoricalStraightThrough(logits=logits).rsample()
    assert sorted(np.unique(one.detach().numpy().round(12))) == [0.0, 1.0]
    (one * as_ours([1.0, 2.0, 4.0])).sum().backward()
    t = as_theirs(SCORES).requires_grad_()
    (t.softmax(-1) * as_theirs([1.0, 2.0, 4.0])).sum().backward()
    agree(logits.grad, t.grad)


@pytest.mark.slow
def test_gradients_of_gamma_draws_are_those_of_quantiles() -> None:
    from baregrad.distributions.gammas import log_gamma_slope

    a = np.array([1e-2, 0.1, 0.5, 0.9, 1.0, 2.0, 7.5, 30.0, 200.0, 3000.0])
    shares = np.array([1e-3, 0.05, 0.3, 0.5, 0.7, 0.95, 0.9999])
    low, high = np.zeros((7, 10)), np.full((7, 10), 4e3)
    for _ in range(1500):
        middle = np.where(low > 0, np.sqrt(low * high), high / 1e3)
        middle = np.where(low > 0, (low + high) / 2, middle)
        below = torch.special.gammainc(torch.tensor(a).expand(7, 10), torch.tensor(middle)).numpy()
        high = np.where(below >= shares[:, None], middle, high)
        low = np.where(below >= shares[:, None], low, middle)
        if (high - low <= 1e-15 * high).all():
            break
    z = torch.tensor(high)
    step = torch.tensor(a) * 1e-4
    below, above = (torch.special.gammainc((torch.tensor(a) + s).expand(7, 10), z)
                    for s in (-step, step))  # fmt: skip
    density = theirs.Gamma(torch.tensor(a), torch.tensor(1.0, dtype=torch.float64))
    wanted = (-(above - below) / (2 * step) / density.log_prob(z).exp()).numpy()
    concentration = Tensor(np.broadcast_to(a, (7, 10)).copy())
    found = log_gamma_slope(concentration, Tensor(np.log(high))).numpy() * high
    known = high > 1e-250
    np.testing.assert_allclose(found[known], wanted[known], rtol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Gamma", "Beta", "Dirichlet", "StudentT", "Chi2"])
def test_draws_of_gammas_move_with_their_parameters(name: str) -> None:
    """The mean of the draws' gradients is the gradient of their mean."""
    make = {case[0]: case[1] for case in CASES}[name]
    leaves: list[Tensor] = []

    def leaf(x: Any) -> Tensor:
        leaves.append(as_ours(x).requires_grad_())
        return leaves[-1]

    weights = as_ours([1.0, -2.0, 0.5])
    count = 4000
    (make(ours, leaf).rsample((count,)) * weights).sum().backward()
    found = [one.grad.numpy() / count for one in leaves]
    mean = make(ours, leaf).mean
    (mean * weights).sum().backward()
    wanted = [one.grad for one in leaves[len(found):]]
    for one, two in zip(found, wanted, strict=True):
        if two is not None:
            np.testing.assert_allclose(one, two.numpy(), rtol=0.1, atol=0.05)


@pytest.mark.slow
def test_circular_draws_have_the_mean_direction() -> None:
    for kappa in (1e-6, 0.5, 4.0, 200.0):
        drawn = ours.VonMises(as_ours(1.0), as_ours(kappa)).sample((20000,)).numpy()
        length = torch.special.i1e(torch.tensor(kappa)) / torch.special.i0e(torch.tensor(kappa))
        assert abs(np.cos(drawn - 1.0).mean() - length.item()) < 0.02
        assert abs(np.sin(drawn - 1.0).mean()) < 0.02


@pytest.mark.slow
def test_poisson_draws_have_their_probabilities() -> None:
    for rate in (0.3, 6.0, 10.5, 90.0):
        drawn = ours.Poisson(rate).sample((40000,)).numpy()
        counts = np.bincount(drawn.astype(int), minlength=200)[:200]
        chances = theirs.Poisson(torch.tensor(rate, dtype=torch.float64)).log_prob(
            torch.arange(200.0, dtype=torch.float64)).exp().numpy()
        likely = chances * 40000 > 20
        away = (counts - chances * 40000)[likely] ** 2 / (chances * 40000)[likely]
        assert away.sum() < likely.sum() + 6 * math.sqrt(2 * likely.sum())


def test_a_captured_function_draws_anew() -> None:
    @jit
    def draw(logits: Tensor) -> tuple[Tensor, Tensor]:
        policy = ours.Categorical(logits=logits)
        action = policy.sample()
        return action, policy.log_prob(action)

    logits = Tensor(np.zeros((64, 4), np.float32))
    drawn = [draw(logits) for _ in range(4)]
    assert len({tuple(action.numpy()) for action, _ in drawn}) == 4
    np.testing.assert_allclose(drawn[-1][1].numpy(), math.log(0.25), rtol=1e-6)


@pytest.mark.parametrize("name", ["Bernoulli", "Binomial", "Categorical", "OneHotCategorical"])
def test_supports_are_listed(name: str) -> None:
    make = {case[0]: case[1] for case in CASES}[name]
    mine, other = make(ours, as_ours), make(theirs, as_theirs)
    for expand in (True, False):
        np.testing.assert_array_equal(
            mine.enumerate_support(expand).numpy(), other.enumerate_support(expand).numpy())


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentError, match="the scale of Normal lies outside.*wanted positive"):
        ours.Normal(0.0, -1.0, validate_args=True)
    with pytest.raises(ArgumentError, match="a value outside"):
        ours.Beta(1.0, 1.0, validate_args=True).log_prob(Tensor(2.0))
    ours.Distribution.set_default_validate_args(True)
    with pytest.raises(ArgumentError, match="low lies below high"):
        ours.Uniform(2.0, 1.0)
    ours.Distribution.set_default_validate_args(False)
    with pytest.raises(ArgumentError, match="takes probs or logits"):
        ours.Bernoulli()
    with pytest.raises(ArgumentError, match="one of covariance_matrix"):
        ours.MultivariateNormal(Tensor([1.0]))
    with pytest.raises(ShapeError, match="as long and as wide"):
        ours.MultivariateNormal(Tensor([1.0]), Tensor.eye(2))
    with pytest.raises(ShapeError, match="a value of another shape"):
        ours.Dirichlet(Tensor([1.0, 2.0])).log_prob(Tensor([0.2, 0.3, 0.5]))
    with pytest.raises(ArgumentError, match="0 to 1"):
        ours.Independent(ours.Normal(Tensor([1.0]), 1.0), 2)
    with pytest.raises(ShapeError, match="what is chosen of"):
        ours.MixtureSameFamily(ours.Categorical(Tensor([0.5, 0.5])), ours.Normal(0.0, 1.0))
    with pytest.raises(DTypeError, match="a number or a tensor"):
        ours.Normal("0", 1.0)
    with pytest.raises(UnsupportedError, match="no cdf"):
        ours.Gamma(1.0, 1.0).cdf(Tensor(1.0))
    with pytest.raises(UnsupportedError, match="gradients pass"):
        ours.Poisson(1.0).rsample()
    with pytest.raises(AttributeError, match="'Normal'"):
        _ = ours.Normall


def test_parameters_of_integers_and_of_numpy() -> None:
    assert ours.Normal(np.float32(0.5), np.int64(2)).loc.item() == 0.5
    shares = ours.Dirichlet(Tensor([1, 2, 3])).sample()
    assert shares.dtype.is_float and abs(shares.sum().item() - 1) < 1e-6
    vector = ours.MultivariateNormal(Tensor([1, 2]), Tensor([[2, 0], [0, 2]]))
    assert vector.sample((3,)).shape == (3, 2)
    with pytest.raises(ShapeError, match="along the last axis"):
        ours.Dirichlet(Tensor(1.0))
    with pytest.raises(ArgumentError, match="from 0 on"):
        ours.Multinomial(-1, Tensor([0.5, 0.5]))


def test_shares_of_small_concentrations_are_nearly_all_of_one() -> None:
    """Where draws of the gamma distribution are too small for numbers, as well."""
    concentration = as_ours([1e-4, 2e-4]).requires_grad_()
    drawn = ours.Dirichlet(concentration).rsample((400,))
    largest = drawn.detach().numpy().max(-1)
    # Within (0.01, 0.99) lie about 2 * a * b / (a + b) * log(99) = 6e-4 of them.
    assert (largest > 0.99).mean() > 0.97
    assert abs(drawn.detach().numpy()[:, 0].mean() - 1 / 3) < 5 * math.sqrt(2 / 9 / 400)
    drawn.sum().backward()
    assert np.isfinite(concentration.grad.numpy()).all()


def test_certain_outcomes_of_infinite_logits() -> None:
    logits = as_ours([math.inf, -math.inf, 0.0])
    chances = ours.Bernoulli(logits=logits)
    np.testing.assert_array_equal(chances.log_prob(as_ours([1.0, 0.0, 1.0])).exp().numpy().round(9),
                                  [1.0, 1.0, 0.5])  # fmt: skip
    np.testing.assert_array_equal(chances.log_prob(as_ours([0.0, 1.0, 0.0])).exp().numpy().round(9),
                                  [0.0, 0.0, 0.5])  # fmt: skip


def test_parameters_of_transforms_are_a_larger_batch() -> None:
    def make(d: Any, t: Any) -> Any:
        return d.TransformedDistribution(
            d.Normal(t([0.0, 1.0]), 1.0), d.AffineTransform(t([[1.0], [2.0], [3.0]]), t(2.0)))

    one, other = make(ours, as_ours), make(theirs, as_theirs)
    assert one.batch_shape == tuple(other.batch_shape) == (3, 2)
    assert one.sample((5,)).shape == (5, 3, 2)
    agree(one.log_prob(as_ours(0.5)), other.log_prob(as_theirs(0.5)))
    np.testing.assert_array_equal(ours.kl_divergence(one, make(ours, as_ours)).numpy(), 0.0)


def test_what_is_looked_at() -> None:
    """What PyTorch refuses where parameters and values are looked at."""
    for make in (
        lambda: ours.Pareto(1.0, 1.0, validate_args=True).log_prob(Tensor(0.5)),
        lambda: ours.OneHotCategorical(Tensor([0.5, 0.5]), validate_args=True).log_prob(
            Tensor([1.0, 1.0])),
        lambda: ours.RelaxedBernoulli(-1.0, 0.5, validate_args=True),
        lambda: ours.RelaxedOneHotCategorical(0.5, Tensor([-0.5, 0.5]), validate_args=True),
        lambda: ours.NegativeBinomial(3.0, Tensor([1.0]), validate_args=True),
        lambda: ours.Geometric(0.0, validate_args=True),
        lambda: ours.Beta(1.0, 1.0, validate_args=True).expand((2,)).log_prob(Tensor([2.0, 2.0])),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match="outside of what"):
            make()
    inside = ours.Independent(ours.Beta(as_ours([1.0, 2.0]), 1.0), 1).support
    assert inside is not None and not inside.check(as_ours([0.5, 2.0])).item()


def test_divergences_of_small_chances_and_of_low_rank() -> None:
    p, q = ours.Geometric(Tensor([1e-8, 1.0])), ours.Geometric(Tensor([1e-7, 1.0]))
    np.testing.assert_allclose(ours.kl_divergence(p, q).numpy(), [6.697415, 0.0], rtol=1e-5)
    makes = (
        lambda d, t: d.LowRankMultivariateNormal(t(A), t(MATRIX)[..., :2], t(C)),
        lambda d, t: d.MultivariateNormal(t(REALS), t(MATRIX)),
    )
    for one, two in ((0, 0), (0, 1), (1, 0)):
        agree(ours.kl_divergence(makes[one](ours, as_ours), makes[two](ours, as_ours)),
              theirs.kl_divergence(makes[one](theirs, as_theirs), makes[two](theirs, as_theirs)))
