"""Random numbers: published vectors, seeds, distributions, fresh numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import DTypeError, ShapeError
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.engine.canonical import bind
from baregrad.engine.session import Session, use_session
from baregrad.ir.core.index import variable
from baregrad.ir.core.node import const
from baregrad.ir.core.op import Ops
from baregrad.tensor import Tensor
from baregrad.tensor.array import deferred, nodes, storage
from baregrad.tensor.array.random_state import RandomState
from baregrad.tensor.jit.jit import jit
from baregrad.tensor.ops import random

# Known answers of Threefry-2x32-20, from the authors' Random123 distribution (kat_vectors).
VECTORS = (
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
)


@pytest.mark.parametrize(("counter", "key", "wanted"), VECTORS)
def test_threefry_gives_the_published_vectors(
    counter: tuple[int, int], key: tuple[int, int], wanted: tuple[int, int]
) -> None:
    sources = [const(low | high << 32, dtypes.uint64) for low, high in (counter, key)]
    node = nodes.broadcast(nodes.alu(Ops.THREEFRY, *sources), (1,))
    (found,) = Tensor._make(node, Tensor([0]).device).tolist()
    assert (found & 0xFFFFFFFF, found >> 32) == wanted


def test_a_seed_gives_the_same_numbers_and_calls_give_fresh_ones() -> None:
    Tensor.manual_seed(7)
    first, second = Tensor.rand(5).tolist(), Tensor.rand(5).tolist()
    Tensor.manual_seed(7)
    assert Tensor.rand(5).tolist() == first
    assert Tensor.rand(5).tolist() == second
    assert first != second
    Tensor.manual_seed(8)
    assert Tensor.rand(5).tolist() != first
    Tensor.manual_seed(-1)
    assert Tensor.rand(3).tolist()


def test_a_seed_is_for_devices_that_nobody_drew_on_yet() -> None:
    found = []
    for used in (False, True):
        with options.override(device="CPU"), use_session(Session()):
            if used:
                Tensor.rand(1, device="REF")
            Tensor.manual_seed(7)
            found.append(Tensor.rand(5, device="REF").tolist())
    assert found[0] == found[1]


def test_numbers_do_not_depend_on_when_they_are_computed() -> None:
    Tensor.manual_seed(7)
    late = Tensor.rand(5)
    Tensor.rand(3).realize()
    Tensor.manual_seed(7)
    assert Tensor.rand(5).tolist() == late.tolist()


def test_numbers_of_one_shape_are_those_of_another() -> None:
    Tensor.manual_seed(7)
    flat = Tensor.rand(12).numpy()
    Tensor.manual_seed(7)
    np.testing.assert_array_equal(Tensor.rand(3, 4).numpy().reshape(-1), flat)


@pytest.mark.parametrize(
    "dtype", (dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16), ids=str
)
def test_uniform(dtype: Any) -> None:
    x = Tensor.rand(20_000, dtype=dtype)
    assert x.dtype is dtype
    values = x.double().numpy()
    assert values.min() >= 0 and values.max() < 1
    assert abs(values.mean() - 0.5) < 0.01
    assert abs(values.var() - 1 / 12) < 0.005
    deciles = np.histogram(values, 10, (0, 1))[0]
    assert ((deciles - 2000) ** 2 / 2000).sum() < 40  # chi-squared, 9 degrees of freedom


@pytest.mark.parametrize("dtype", (dtypes.float32, dtypes.float64, dtypes.bfloat16), ids=str)
def test_normal(dtype: Any) -> None:
    values = np.sort(Tensor.randn(20_000, dtype=dtype).double().numpy())
    assert np.isfinite(values).all()
    assert abs(values.mean()) < 0.03 and abs(values.std() - 1) < 0.03
    exact = np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in values])
    distance = np.abs(exact - np.arange(1, values.size + 1) / values.size).max()
    assert distance < 2 / math.sqrt(values.size)  # Kolmogorov and Smirnov


def test_other_distributions() -> None:
    x = Tensor.uniform(4000, low=-2, high=6).numpy()
    assert x.min() >= -2 and x.max() < 6 and abs(x.mean() - 2) < 0.2
    x = Tensor.normal(3.0, 0.5, (4000,)).numpy()
    assert abs(x.mean() - 3) < 0.05 and abs(x.std() - 0.5) < 0.05
    x = Tensor.randint(-3, 4, (7000,))
    assert x.dtype is dtypes.int64
    assert (np.abs(np.bincount(x.numpy() + 3) - 1000) < 150).all()
    assert Tensor.randint(5, (2, 3)).shape == (2, 3)
    x = Tensor.full((4000,), 0.3).bernoulli()
    assert set(x.tolist()) == {0.0, 1.0} and abs(x.numpy().mean() - 0.3) < 0.04


@pytest.mark.parametrize("size", (0, 1, 2, 100, 1500))
def test_randperm(size: int) -> None:
    found = Tensor.randperm(size).numpy()
    assert np.array_equal(np.sort(found), np.arange(size))
    if size >= 100:
        assert not np.array_equal(found, np.arange(size))


@pytest.mark.parametrize("size", (-1, 2.5, np.uint64(1 << 63)))
def test_randperm_of_no_size_is_refused(size: Any) -> None:
    with pytest.raises(ShapeError):
        Tensor.randperm(size)


@pytest.mark.parametrize("size", (1, 2, 5, 6))
def test_dropout_of_a_symbolic_size_drops_what_it_drops_of_a_number(size: int) -> None:
    found = []
    for extent in (size, bind(variable("n", 1, 8), size)):
        Tensor.manual_seed(7)
        x = Tensor.ones(6, 8)[:, :extent]
        found += [(x * 3).dropout(0.5).numpy(), x.dropout(0.25).numpy()]
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[1], found[3])


def test_multinomial() -> None:
    weights = Tensor([0.0, 1.0, 3.0, 0.0])
    drawn = weights.multinomial(4000, replacement=True).numpy()
    counts = np.bincount(drawn, minlength=4)
    assert counts[0] == counts[3] == 0 and abs(counts[2] / counts[1] - 3) < 0.4
    rows = Tensor([[1.0, 2.0, 3.0], [1.0, 0.0, 1.0]]).multinomial(2).numpy()
    assert rows.shape == (2, 2) and set(rows[1]) == {0, 2} and rows[0, 0] != rows[0, 1]
    with pytest.raises(ShapeError, match="at most 4"):
        weights.multinomial(5)


def test_dropout() -> None:
    x = Tensor.ones(10_000, requires_grad=True)
    y = x.dropout(0.25)
    values = y.numpy()
    assert set(np.unique(values)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((values == 0).mean() - 0.25) < 0.02
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), values)
    assert x.dropout(0.5, training=False) is x
    assert x.dropout(1.0).sum().item() == 0


@pytest.mark.parametrize("shape", ((4000,), (50, 81), (3, 20, 64), (), (1,)), ids=str)
def test_dropout_drops_elements_of_their_own(shape: tuple[int, ...]) -> None:
    """Neighbours share a draw where they are pairs, and no bit of it."""
    Tensor.manual_seed(3)
    kept = np.concatenate([
        (Tensor.ones(*shape).dropout(0.5).numpy() != 0).reshape(-1) for _ in range(8)
    ])
    if kept.size < 1000:
        assert set(kept) <= {True, False}
        return
    bound = 4 * 0.5 / np.sqrt(kept.size)
    assert abs(kept.mean() - 0.5) < bound
    for step in (1, 2, 3):
        assert abs((kept[step:] == kept[:-step]).mean() - 0.5) < bound


@pytest.mark.parametrize("p", (1e-12, 1e-3, 0.999, 1 - 1e-12))
def test_dropout_of_almost_nothing_or_almost_all(p: float) -> None:
    kept = Tensor.ones(20_000).dropout(p).numpy() != 0
    assert abs(kept.mean() - (1 - p)) < 1e-3


@pytest.fixture(name="_compiled")
def _on_a_device_that_compiles() -> Iterator[None]:
    with options.override(device="CPU"), use_session(Session()):
        yield


DRAWS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("rand", lambda x: Tensor.rand(3, 5)),
    ("randn", lambda x: Tensor.randn(3, 5)),
    ("randn of float64", lambda x: Tensor.randn(5, dtype=dtypes.float64)),
    ("randint", lambda x: Tensor.randint(0, 1000, (15,))),
    ("randperm", lambda x: Tensor.randperm(15)),
    ("dropout", lambda x: x.dropout(0.5)),
    ("bernoulli", lambda x: x.bernoulli(0.5)),
)


@pytest.mark.parametrize("draw", [draw for _, draw in DRAWS], ids=[name for name, _ in DRAWS])
@pytest.mark.usefixtures("_compiled")
def test_a_draw_like_one_before_makes_no_graph(
    draw: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is put off as other calls are, and draws what a captured function draws."""
    x = Tensor.ones(3, 5).realize()
    Tensor.manual_seed(7)
    replayed = jit(lambda x: draw(x))
    expected = [replayed(x).numpy() for _ in range(5)]
    Tensor.manual_seed(7)
    found = [draw(x).numpy() for _ in range(3)]
    monkeypatch.setattr(random, "_bits", None)
    found += [draw(x).numpy() for _ in range(2)]
    np.testing.assert_array_equal(found, expected)
    # Drawn together, in the order of the calls.
    Tensor.manual_seed(7)
    drawn = [draw(x) for _ in range(5)]
    monkeypatch.undo()
    np.testing.assert_array_equal(Tensor.stack(drawn).numpy(), expected)


@pytest.mark.usefixtures("_compiled")
def test_a_state_is_an_array_that_has_a_node_where_one_is_asked_for(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draws need none; who has one, as a graph that waits, reads what was there."""
    Tensor.manual_seed(3)
    expected = Tensor.rand(90, 5).numpy()
    Tensor.manual_seed(3)
    found = [Tensor.rand(5).realize() for _ in range(20)]
    for room in (storage, deferred):
        monkeypatch.setattr(room, "make_node", None)
    found += [Tensor.rand(5).realize() for _ in range(30)]
    monkeypatch.undo()
    for _ in range(20):
        drawn = Tensor.rand(5)
        assert drawn.node.op is not Ops.BUFFER
        found += [drawn, Tensor.rand(5).realize()]
    np.testing.assert_array_equal([one.numpy() for one in found], expected)


@pytest.mark.usefixtures("_compiled")
def test_draws_of_one_size_upload_a_state_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is uploaded ahead holds for draws of that size alone, and until a new seed."""
    sizes = [0] + [5] * 40 + [3, 5, 5, 3, 3, 3, 5] + [5] * 20 + [0]
    Tensor.manual_seed(3)
    all_at_once = Tensor.rand(sum(sizes)).tolist()
    ends = np.cumsum(sizes)
    expected = [all_at_once[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    uploads = [0]
    upload = Session.upload

    def counted(*args: Any, **kwargs: Any) -> Any:
        uploads[0] += 1
        return upload(*args, **kwargs)

    monkeypatch.setattr(Session, "upload", counted)
    for _ in range(2):
        uploads[0] = 0
        Tensor.manual_seed(3)
        assert [Tensor.rand(size).tolist() for size in sizes] == expected
        assert uploads[0] <= 18


@pytest.mark.usefixtures("_compiled")
def test_states_of_a_loop_lie_in_few_places_unless_somebody_waits_for_them(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's list is patched for each address that it has not seen."""
    places = set[int]()
    draw = RandomState.draw

    def noted(self: RandomState, *given: Any) -> Any:
        places.add(self.storage.node.arg.handle.address)
        return draw(self, *given)

    Tensor.manual_seed(3)
    expected = Tensor.rand(200, 5).tolist()
    monkeypatch.setattr(RandomState, "draw", noted)
    Tensor.manual_seed(3)
    assert [Tensor.rand(5).tolist() for _ in range(200)] == expected
    assert 1 < len(places) <= 20
    # What is drawn later, or not at all, has the numbers of its turn.
    Tensor.manual_seed(3)
    drawn = [Tensor.rand(5) for _ in range(70)]
    found = [Tensor.rand(5).tolist() for _ in range(70)]
    assert [one.tolist() for one in drawn] + found == expected[:140]
    Tensor.manual_seed(3)
    mixed = [Tensor.rand(5) if turn % 3 else Tensor.rand(5).tolist() for turn in range(200)]
    assert [one.tolist() if isinstance(one, Tensor) else one for one in mixed] == expected


@pytest.mark.usefixtures("_compiled")
def test_draws_between_replays_are_fresh() -> None:
    """Eager draws, replays and a new seed by turns take one counter's values in order."""
    step = jit(lambda: Tensor.rand(4))
    Tensor.manual_seed(11)
    expected = [Tensor.rand(4).tolist() for _ in range(12)]
    Tensor.manual_seed(11)
    found = []
    for _ in range(3):
        found += [step().tolist(), Tensor.rand(4).tolist(), step().tolist(), step().tolist()]
    assert found == expected
    Tensor.manual_seed(11)
    assert [step().tolist(), Tensor.rand(4).tolist()] == expected[:2]


def test_in_place() -> None:
    x = Tensor.zeros(1000)
    view = x[:500]
    x.uniform_(2, 3)
    assert view.numpy().min() >= 2
    view.normal_(-5, 0.1)
    assert view.numpy().max() < 0 and x[500:].numpy().min() >= 2
    assert set(x.bernoulli_(0.5).tolist()) == {0.0, 1.0}


def test_like() -> None:
    x = Tensor.zeros(2, 3, dtype=dtypes.float64)
    assert x.rand_like().dtype is x.randn_like().dtype is dtypes.float64
    assert x.rand_like(dtype=dtypes.float32).shape == (2, 3)


def test_errors() -> None:
    with pytest.raises(DTypeError, match="floating"):
        Tensor.rand(3, dtype=dtypes.int32)
    with pytest.raises(ValueError, match="no integer"):
        Tensor.randint(3, 3, (1,))
    with pytest.raises(ShapeError, match="integer"):
        Tensor.rand(2.5)


def test_more_numbers_than_can_be_counted() -> None:
    with pytest.raises(ShapeError, match="counted"):
        Tensor.rand(10**20)
    # What failed has drawn nothing.
    assert 0 <= float(Tensor.rand(1).item()) < 1


def test_the_counter_begins_again_after_its_last_value() -> None:
    for _ in range(3):
        Tensor.rand(2**62)
    drawn = Tensor.rand(2**62), Tensor.rand(2)
    assert all(0 <= float(value) < 1 for value in drawn[1].tolist())
