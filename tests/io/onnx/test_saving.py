from __future__ import annotations

import shutil

import numpy as np
import onnx
import pytest

from baregrad import Tensor, bind, func, io, nn, variable
from baregrad.base.errors import ArgumentError, ShapeError, UnsupportedError
from baregrad.base.options import options
from tests.io.onnx.models import by_onnxruntime

rng = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def agree(function, path, *arrays: np.ndarray, tolerance: float = 1e-4) -> onnx.ModelProto:
    """What is exported gives in onnxruntime, and loaded again here, what the function gives."""
    io.save_onnx(function, [Tensor(one) for one in arrays], path)
    for _ in range(2):
        given = {f"x{at}": one for at, one in enumerate(arrays)}
        wanted = function(*map(Tensor, arrays))
        wanted = [wanted] if isinstance(wanted, Tensor) else list(wanted)
        theirs = by_onnxruntime(path, given)
        ours = list(io.load_onnx(path)(given).values())
        for one, other, again in zip(wanted, theirs, ours, strict=True):
            array = one.numpy()
            assert other.dtype == array.dtype
            assert other.shape == array.shape
            np.testing.assert_allclose(other, array, tolerance, tolerance)
            np.testing.assert_allclose(again.numpy(), array, tolerance, tolerance)
        # Other values of the same shapes: nothing of the examples is baked in.
        arrays = tuple(
            rng.permutation(one.reshape(-1)).reshape(one.shape) for one in arrays
        )
    return onnx.load(path)


def test_a_network_of_layers(tmp_path) -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    model = agree(lambda x: net(x).softmax(-1), tmp_path / "net.onnx", array(5, 6))
    assert "Einsum" in {one.op_type for one in model.graph.node}
    assert [one.name for one in model.graph.output] == ["y0"]


def test_convolutions(tmp_path) -> None:
    first, second = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Conv2d(4, 4, 3, groups=2)

    def function(x: Tensor) -> Tensor:
        return second(first(x).relu().max_pool2d(2)).mean((2, 3))

    agree(function, tmp_path / "conv.onnx", array(2, 3, 13, 14))


def test_attention(tmp_path) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q.scaled_dot_product_attention(k, v, is_causal=True)

    agree(function, tmp_path / "a.onnx", array(2, 4, 5, 8), array(2, 4, 5, 8), array(2, 4, 5, 8))


def test_movement_and_integers(tmp_path) -> None:
    def function(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        padded = x.pad([1, 2], value=3.0).flip(0)
        return (
            padded[:, ::2].T, Tensor.cat([x, x * 2], dim=1).cumsum(1), x.index_select(1, index),
            index // 3, index % 3, (x > 0).any(1), x.trunc(), x.argmax(1), x.argmin(0),
            x.scatter_add(1, index.expand(4, 3), x[:, :3]),
        )  # fmt: skip

    agree(function, tmp_path / "m.onnx", array(4, 6), np.array([5, 0, 2]))


def test_running_folds(tmp_path) -> None:
    def function(x: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        return (
            x.logcumsumexp(1), x.logcumsumexp(0), x.cumprod(0), count.cumprod(1),
            x.cummax(1)[0], count.cummin(0)[0],
        )  # fmt: skip

    x = array(5, 7) * 30
    x[1, :3], x[2, 2], x[3, 4] = -np.inf, np.inf, np.nan
    agree(function, tmp_path / "runs.onnx", x, np.array([[3, 1, 2], [2, 4, 1]]))
    agree(lambda x: x.logcumsumexp(1), tmp_path / "one.onnx", array(4, 1))


def test_loops_are_scans(tmp_path) -> None:
    weight = Tensor(array(4, 4))

    def loops(h: Tensor, x: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
        factor = factor * 2

        def step(carry, row):
            h, count = carry
            h = (h @ weight + row * factor).tanh()
            return (h, count + 1.0), (h.sum(), h)

        (end, count), (sums, rows) = func.scan(step, (h, Tensor(0.0)), x, reverse=True)
        halves, _ = func.scan(lambda c, _: (c * 0.5 + end.sum(), None), Tensor(1.0), length=5)

        def nested(c, row):
            return func.scan(lambda a, b: (a * 0.5 + b, None), c, row)[0], c

        return (end, count, sums, rows, halves, *func.scan(nested, end[0], x))

    agree(loops, tmp_path / "loops.onnx", array(2, 4), array(6, 2, 4), array(4))


def test_gradients_of_loops_are_scans(tmp_path) -> None:
    weight = Tensor(array(4, 4))

    def gradients(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        def loss(h: Tensor, x: Tensor) -> Tensor:
            end, rows = func.scan(lambda c, row: ((c @ weight + row).tanh(), c.sum()), h, x)
            return (end * end).sum() + rows.sum()

        return (*func.grad(loss, argnums=(0, 1))(h, x), loss(h, x))

    model = agree(gradients, tmp_path / "back.onnx", array(2, 4), array(5, 2, 4))
    assert [one.op_type for one in model.graph.node].count("Scan") == 2


def test_choices_are_ifs(tmp_path) -> None:
    def chosen(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        found = func.cond(x.sum() > 0, lambda a, b: (a * 2, a @ b), lambda a, b: (b + 1, b @ a),
                          (x * 3, y))
        return found[0], found[1] + 1, x + 1

    for sign in (1.0, -1.0):
        model = agree(chosen, tmp_path / "if.onnx", np.abs(array(3, 3)) * sign, array(3, 3))
        assert [one.op_type for one in model.graph.node].count("If") == 1


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="wants a compiler")
def test_kernels_of_text_are_their_references(tmp_path) -> None:
    twice = func.custom_kernel(
        "void twice(float *out, const float *x) { for (int i = 0; i < n; i++) out[i] = 2 * x[i]; }",
        "x: float32[n] -> out: float32[n]", lambda x: x * 2,
    )
    with options.override(device="CPU"):
        agree(lambda x: twice(x + 1) * x, tmp_path / "text.onnx", array(5))


@pytest.mark.parametrize("limit", [4, pytest.param(None, marks=pytest.mark.slow)])
def test_loops_by_a_condition(tmp_path, limit: int | None) -> None:
    weight = Tensor(array(3, 3) / 9)

    def loops(x: Tensor, most: Tensor) -> tuple[Tensor, ...]:
        x, most = x * 0.5, most + 1

        def step(x, count):
            return x + (x @ weight).abs() + 1, count + 1

        def goes_on(x, count):
            return x.sum() < most.sum()

        def nested(total, count):
            return total + func.while_loop(goes_on, step, (x, count), limit)[0].sum(), count + 1

        end = func.while_loop(goes_on, step, (x, Tensor(0)), limit)
        return (*end, *func.while_loop(lambda _, count: count < 3, nested, (x[0, 0], end[1] * 0),
                                       limit))

    for most in (0.0, 12.0, 1e3 if limit else 40.0):
        model = agree(loops, tmp_path / "while.onnx", np.abs(array(2, 3)), np.full(2, most, "f4"))
        assert [one.op_type for one in model.graph.node].count("Loop") == 2


def test_inputs_and_outputs_by_name(tmp_path) -> None:
    path = tmp_path / "named.onnx"
    io.save_onnx(lambda left, right: {"total": left + right}, {
        "left": Tensor(array(3)), "right": Tensor(array(3)),
    }, path)  # fmt: skip
    loaded = io.load_onnx(path)
    assert (list(loaded.inputs), list(loaded.outputs)) == (["left", "right"], ["total"])
    a, b = array(3), array(3)
    np.testing.assert_array_equal(loaded(left=a, right=b)["total"].numpy(), a + b)


def test_what_cannot_be_exported_is_refused(tmp_path) -> None:
    path = tmp_path / "none.onnx"
    x = Tensor(array(4))
    with pytest.raises(ArgumentError, match="computes values of its inputs"):
        io.save_onnx(lambda x: x * x.sum().item(), [x], path)
    with pytest.raises(UnsupportedError, match="SORT"):
        io.save_onnx(lambda x: x.sort()[0], [x], path)
    with pytest.raises(ShapeError, match="symbolic"):
        io.save_onnx(lambda x: x[: bind(variable("n", 1, 4), 2)] * 2, [x], path)
    assert not path.exists()
