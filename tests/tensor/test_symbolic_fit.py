"""Sizes that fit for some values of a variable only: checked where made, and where bound."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from baregrad.base.errors import BaregradError, IndexOutOfRange, ShapeError
from baregrad.engine.canonical import bind
from baregrad.ir.core.index import variable
from baregrad.ir.core.node import Node
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

N = variable("n", 1, 10)
N0 = variable("n", 0, 3)
HUGE = variable("n", 1, 1 << 28)


def line(count: int) -> Tensor:
    return Tensor(np.arange(float(count), dtype=np.float32)).realize()


MISFITS: dict[str, Callable[[], Tensor]] = {
    "too few elements": lambda: line(4).reshape(3, bind(N, 8)),
    "far too few elements": lambda: line(4).reshape(3, bind(HUGE, 1 << 27)),
    "too many elements": lambda: line(30).reshape(3, bind(N, 4)),
    "what is left over": lambda: line(30).reshape(bind(N, 4), -1),
    "as a view": lambda: line(4).view(3, bind(N, 8)),
    "of a symbolic shape": lambda: line(10)[: bind(N, 5)].reshape(2, 3),
    "a part of a symbolic axis": lambda: line(10)[: bind(N, 3)].narrow(0, 1, 3),
    "an end past a symbolic axis": lambda: line(10)[: bind(N, 3)][:4],
    "a start past a symbolic axis": lambda: line(10)[: bind(N, 3)][4:],
    "a count below zero": lambda: Tensor.arange(5, bind(N, 3)),
    "an extent below zero": lambda: Tensor.zeros(bind(N, 3) - 5),
    "a broadcast below zero": lambda: line(1).expand(bind(N, 3) - 5),
    "a narrow past the axis": lambda: line(4).narrow(0, bind(N, 3), 3),
    "the largest of nothing": lambda: line(4)[: bind(N0, 0)].amax(),
    "the smallest of nothing": lambda: table()[: bind(N0, 0)].amin((0, 1)),
    "the place of nothing": lambda: table()[: bind(N0, 0)].argmax(0),
    "a window past a symbolic axis": lambda: line(10)[: bind(N, 3)].unfold(0, 5, 1),
    "a gather beside what is cut off": lambda: table()[: bind(N0, 1)].gather(1, places(2)),
    "a scatter beside what is cut off": lambda: table()[: bind(N0, 1)]
    .scatter_add(1, places(2), table()),
    "a scatter of fewer values": lambda: table().scatter(1, places(2), table()[: bind(N0, 1)]),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_refused_where_it_is_made(name: str) -> None:
    with pytest.raises(ShapeError):
        MISFITS[name]()


def test_what_fits_is_computed() -> None:
    x = np.arange(30.0, dtype=np.float32)
    for count in (1, 2, 3, 5, 6, 10):
        n = bind(N, count)
        wanted = x.reshape(count, -1)
        assert line(30).reshape(n, -1).sum(1).tolist() == wanted.sum(1).tolist()
        assert line(30).reshape(n, 30 // count).sum(0).tolist() == wanted.sum(0).tolist()
        rows = line(30).reshape(30 // count, n).sum(1)
        assert rows.tolist() == x.reshape(-1, count).sum(1).tolist()


def test_a_replay_checks_the_value_that_it_is_given() -> None:
    x = line(30)

    @jit
    def rows(n: Node) -> Tensor:
        return x.reshape(3, n).sum(1)

    for _ in range(3):
        assert rows(bind(N, 10)).tolist() == [45, 145, 245]
    with pytest.raises(ShapeError, match="found 30, wanted 12"):
        rows(bind(N, 4))
    assert rows(bind(N, 10)).tolist() == [45, 145, 245]


def test_a_replay_refuses_a_reshape_that_cancels() -> None:
    """What is computed reads no shape of 3 x n, and the plain function would refuse it."""
    x = line(30)

    @jit
    def same(n: Node) -> Tensor:
        return x.reshape(3, n).reshape(30) + 1

    for _ in range(3):
        same(bind(N, 10))
    with pytest.raises(BaregradError):
        same(bind(N, 9))


@pytest.mark.parametrize("draw", [Tensor.rand, Tensor.randn])
def test_draws_of_a_changing_size(draw: Callable[..., Tensor]) -> None:
    Tensor.manual_seed(1)
    wanted = [draw(2, count).numpy() for count in (5, 4, 7)]
    Tensor.manual_seed(1)
    for count, numbers in zip((5, 4, 7), wanted, strict=True):
        made = draw(2, bind(N, count)).realize()
        np.testing.assert_array_equal(made.numpy(), numbers)


def test_dropout_of_a_changing_part() -> None:
    x = Tensor.ones(3, 10)
    for count in (5, 3, 9, 3):
        found = x[:, : bind(N, count)].dropout(0.5).numpy()
        assert found.shape == (3, count)
        assert set(found.reshape(-1).tolist()) <= {0.0, 2.0}


REFUSED: dict[str, Callable[[Tensor, Node], Tensor]] = {
    "two negative extents whose product fits": lambda x, n: x[:1].reshape((n - 2) * (n - 2), 1)
    .reshape(n - 2, n - 2),
    "a part that is overwritten": lambda x, n: outer(x[2:n]).uniform_(),
    "a part that nobody reads": lambda x, n: (x[2:n], x + 1)[1],
    "a write of no elements": lambda x, n: write(x.expand(n, 4).clone(), (2, slice(0, 0)), 1),
}


def outer(x: Tensor) -> Tensor:
    return x.reshape(-1, 1) @ x.reshape(1, -1)


def write(x: Tensor, place: object, value: float) -> Tensor:
    x[place] = value
    return x


@pytest.mark.parametrize("name", REFUSED)
def test_a_replay_refuses_what_the_plain_function_refuses(name: str) -> None:
    n = variable("n", 1, 4)
    function = jit(REFUSED[name])
    for _ in range(3):
        function(line(4), bind(n, 3)).realize()
    for call in (REFUSED[name], function):
        with pytest.raises((ShapeError, IndexOutOfRange)):
            call(line(4), bind(n, 1)).realize()


def test_a_replay_names_the_value_that_it_refuses_alone() -> None:
    function = jit(lambda x, n: x[1:n] * 2)
    n = variable("n", 0, 4)
    for _ in range(3):
        function(line(4), bind(n, 2))
    with pytest.raises(ShapeError, match="the part 1:n leaves axis 0 .* found 0, which is n"):
        function(line(4), bind(n, 0))


def test_draws_of_a_changing_size_in_a_jitted_function() -> None:
    @jit
    def draw(n: Node) -> Tensor:
        return Tensor.rand(2, n).sum(0)

    Tensor.manual_seed(3)
    found = [draw(bind(N, count)).numpy() for count in (5, 4, 7, 2)]
    Tensor.manual_seed(3)
    for count, numbers in zip((5, 4, 7, 2), found, strict=True):
        np.testing.assert_array_equal(Tensor.rand(2, count).sum(0).numpy(), numbers)


def table() -> Tensor:
    return Tensor(np.arange(12.0, dtype=np.float32).reshape(3, 4)).realize()


def places(rows: int) -> Tensor:
    return Tensor(np.arange(4 * rows, dtype=np.int64).reshape(rows, 4) % 4)


@pytest.mark.parametrize("count", [1, 2])
def test_a_scatter_of_a_changing_size(count: int) -> None:
    n = bind(variable("n", 1, 2), count)
    found = table().scatter_add(1, places(2)[:n], table()[1:])
    wanted = np.arange(12.0).reshape(3, 4)
    wanted[:count] += np.arange(4.0, 12).reshape(2, 4)[:count]
    assert found.tolist() == wanted.tolist()


def test_a_replay_gives_the_view_of_its_own_place() -> None:
    m = variable("m", 1, 4)
    state = table()

    @jit
    def column(x: Tensor, n: Node) -> tuple[Tensor, Tensor, Tensor]:
        return x[:, n - 1], x.narrow(1, n - 1, 1), state[:, n - 1]

    x = np.arange(12.0).reshape(3, 4)
    for count in (2, 3, 1, 4):
        one, part, kept = column(table(), bind(m, count))
        assert one.tolist() == kept.tolist() == x[:, count - 1].tolist()
        assert part.tolist() == x[:, count - 1 : count].tolist()


def test_a_result_and_its_reshape_keep_their_shapes() -> None:
    m = variable("m", 1, 4)

    @jit
    def both(x: Tensor, n: Node) -> tuple[Tensor, Tensor]:
        y = x[:, n // 2 :] + 0
        return y, y.reshape(3, y.shape[1], 1)

    for count in (2, 2, 2, 4):
        flat, tall = both(table(), bind(m, count))
        assert flat.shape == (3, 4 - count // 2)
        assert tall.shape == (3, 4 - count // 2, 1)
        assert tall[:, :, 0].tolist() == flat.tolist()


@pytest.mark.parametrize("made", ["clone", "repeat", "expand"])
def test_writing_into_a_part_of_a_symbolic_shape(made: str) -> None:
    n = bind(variable("m", 1, 3), 2)
    y = {
        "clone": lambda: Tensor.zeros(3, 6)[:n].clone(),
        "repeat": lambda: Tensor.zeros(1, 6).repeat(n, 1),
        "expand": lambda: Tensor.zeros(1, 6).expand(n, 6).contiguous(),
    }[made]()
    y[:, 0] = 2
    y[:, None, 3] += 1
    wanted = np.zeros((2, 6))
    wanted[:, 0], wanted[:, 3] = 2, 1
    assert y.tolist() == wanted.tolist()


def test_symbolic_places_counted_from_the_end() -> None:
    x = np.arange(12.0).reshape(3, 4)
    for count in (1, 2, 3):
        n = bind(variable("m", 1, 3), count)
        assert table()[-n:].tolist() == x[-count:].tolist()
        assert table()[:-n].tolist() == x[:-count].tolist()
        assert table()[-n].tolist() == x[-count].tolist()
    with pytest.raises(BaregradError):
        table()[1 - bind(variable("m", 0, 3), 2) :]


def test_a_variable_that_only_strides_hang_on() -> None:
    a = np.arange(24.0).reshape(3, 4, 2)
    n = bind(variable("m", 2, 3), 2)
    padded = Tensor(a).pad((0, n))
    product = padded[:, :, :2] * Tensor(a)
    padded.realize(product)
    assert padded.tolist() == np.pad(a, ((0, 0), (0, 0), (0, 2))).tolist()
    assert product.tolist() == (a * a).tolist()


def test_indices_of_the_host_into_a_symbolic_axis() -> None:
    x = table()[: bind(variable("m", 1, 3), 2)]
    assert x[[1, -2]].tolist() == [[4, 5, 6, 7], [0, 1, 2, 3]]
    with pytest.raises(IndexOutOfRange, match="index 2 is out of range"):
        x[[2]]
    with pytest.raises(IndexOutOfRange):
        x[[0, -3]] = 1


def test_views_of_what_was_computed_meanwhile() -> None:
    n = bind(variable("m", 1, 4), 3)
    base = Tensor.ones(2, n) * 2
    turned = base.flip(1)
    tall = turned.unsqueeze(0).expand(n, -1, -1)
    base.realize()
    assert tall.tolist() == np.full((3, 2, 3), 2).tolist()
    turned[0] = 5
    assert tall.tolist() == [[[5] * 3, [2] * 3]] * 3
    wide = table().expand(bind(variable("k", 1, 9), 4), 3, 4)
    wider = wide.unsqueeze(0).expand(n, -1, -1, -1)
    wider.realize()
    assert wider.numpy().shape == (3, 4, 3, 4)


def test_what_hangs_on_what_was_computed_with_a_gradient() -> None:
    for count in (3, 2, 1):
        n = bind(N, count)
        x = line(4).requires_grad_()
        repeated = x.repeat(n)
        row, wide = repeated[None], repeated.expand(n * 2, *repeated.shape)
        row.realize(wide, x)
        assert row.numpy().shape == (1, 4 * count)
        assert wide.tolist() == np.tile(np.arange(4.0), (2 * count, count)).tolist()
        wide.sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2 * count * count] * 4


def test_extremes_of_an_axis_that_may_be_empty() -> None:
    @jit
    def extremes(x: Tensor, n: Node) -> list[Tensor]:
        part = x[:n]
        return [part.amax(0), part.argmin(1), part.softmax(0), part.logsumexp(0)]

    x = np.arange(12.0).reshape(3, 4)
    for count in (2, 3, 1, 2):
        high, place, share, _ = extremes(table(), bind(N0, count))
        assert high.tolist() == x[:count].max(0).tolist()
        assert place.tolist() == [0] * count
        assert np.allclose(share.sum(0).numpy(), 1)
    with pytest.raises(ShapeError, match="has no element"):
        extremes(table(), bind(N0, 0))
    # A softmax of nothing is empty, and a sum of no exponentials has the logarithm -inf.
    assert table()[: bind(N0, 0)].softmax(0).numpy().shape == (0, 4)
    assert table()[: bind(N0, 0)].logsumexp(0).tolist() == [-np.inf] * 4


def test_a_reshape_is_the_same_view_or_copy_for_every_value() -> None:
    for count in (1, 2):
        x = table()
        merged = x[:, : bind(N0, count)].reshape(3 * bind(N0, count))
        split = x[: bind(N0, count)].reshape(bind(N0, count), 2, 2)
        before = x.numpy().copy()
        x += 1
        assert merged.tolist() == before[:, :count].reshape(-1).tolist()
        assert split.tolist() == (before + 1)[:count].reshape(-1, 2, 2).tolist()


def test_reductions_over_repetitions_that_may_be_none() -> None:
    truths = Tensor([True, False], device="CPU").realize()
    numbers = Tensor([np.inf, 1.0], device="CPU").realize()
    for count in (0, 2):
        n = bind(N0, count)
        repeated = truths.unsqueeze(0).expand(n, -1)
        plain = np.broadcast_to(truths.numpy(), (count, 2))
        assert repeated.any(0).tolist() == plain.any(0).tolist()
        assert repeated.all(0).tolist() == plain.all(0).tolist()
        wanted = np.broadcast_to(numbers.numpy(), (count, 2)).sum(0)
        assert numbers.unsqueeze(0).expand(n, -1).sum(0).tolist() == wanted.tolist()


def test_adding_at_places_that_a_padded_empty_array_names() -> None:
    """Each row adds once, though no row is told from the others by what it reads."""
    n = bind(variable("k", 1, 3), 2)
    places = Tensor(np.zeros((3, 0), np.int64)).pad((n, 0), value=1)
    found = Tensor.zeros(4).index_put((places,), Tensor.ones(3, n), accumulate=True)
    assert found.tolist() == [0, 6, 0, 0]


@pytest.mark.parametrize("name", ["a", "b", "c", "n0"])
def test_extents_are_alike_whatever_value_is_bound(name: str) -> None:
    x = line(4)
    for count in (4, 3, 1, 2):
        n = bind(variable(name, 1, 4), count)
        part = x[n % 3 // 2 : n % 3]
        chosen = (Tensor.arange(part.shape[0]) == n % 2).where(part, 0)
        values = np.arange(4.0)[count % 3 // 2 : count % 3]
        wanted = np.where(np.arange(len(values)) == count % 2, values, 0)
        assert chosen.tolist() == wanted.tolist()


def test_a_product_over_rows_that_are_never_there() -> None:
    x = Tensor(np.ones((3, 4, 4)), device="CPU").realize()
    n = bind(variable("n", 1, 2), 2)
    part = x[1 : n // 2][:, 0, 1:3]
    assert (part @ Tensor(np.ones((5, 2)), device="CPU").mT).numpy().shape == (0, 5)


def test_resampling_wants_sizes_that_are_known() -> None:
    image = Tensor.ones(1, 1, 10, 8)[:, :, : bind(N, 4)]
    with pytest.raises(ShapeError, match="known now"):
        image.interpolate(scale_factor=2)
