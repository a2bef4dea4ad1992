"""Loops and choices as nodes of the graph: bits of loops written out, on every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad import bind, func, variable
from baregrad.base.errors import ArgumentError, CompilerBug, GradientError
from baregrad.base.options import options
from baregrad.dtypes import dtypes
from baregrad.engine.canonical import canonicalise
from baregrad.engine.control.loops import ControlExecutable
from baregrad.engine.session import Session, use_session
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import CONTROL_MASK, Ops
from baregrad.ir.evaluate.tensor_level import evaluate_all
from baregrad.ir.text.dump import dump, parse
from baregrad.ir.verify.verify import verify
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

# Rows of 3 floats lie nowhere that arrays may lie; those of 16 do.
SIZES = (3, 16)
STEPS = 5
DEVICES = [
    {"device": "CPU"}, {"device": "REF"}, {"device": "REF", "ref_level": "linear"},
    {"device": "NV", "nv_port": "virtual"},
]


def array(seed: int, *shape: int) -> Any:
    return (np.random.default_rng(seed).normal(size=shape) * 0.5).astype(np.float32)


def layer(h: Tensor, row: tuple[Tensor, Tensor], v: Tensor) -> tuple[Tensor, Tensor]:
    h = (h @ row[0]).tanh() + row[1] * v
    return h, h * 2


def scanned(h: Tensor, w: Tensor, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    def step(carry: Any, row: tuple[Tensor, Tensor]) -> Any:
        count, h = carry
        h, y = layer(h, row, v)
        return (count + 1, h), y

    (_, end), rows = func.scan(step, (Tensor(0), h), (w, x), reverse=True)
    return end, rows


def written_out(h: Tensor, w: Tensor, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    rows = []
    for k in reversed(range(len(w))):
        h, y = layer(h, (w[k], x[k]), v)
        rows.append(y)
    return h, Tensor.stack(rows[::-1])


def step_by_step(h: Tensor, w: Tensor, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The loop written out, each step of which computes what it returns from arrays in memory."""
    rows, step = [], jit(layer)
    for k in reversed(range(len(w))):
        h, y = step(h, (w[k].contiguous().realize(), x[k].contiguous().realize()), v)
        rows.append(y)
    return h, Tensor.stack(rows[::-1])


def arrays(size: int) -> list[Tensor]:
    shapes = [(2, size), (STEPS, size, size), (STEPS, 2, size), (size,)]
    return [Tensor(array(i, *shape)).realize() for i, shape in enumerate(shapes)]


def gradients(loop: Callable[..., Any], given: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in given]
    end, rows = loop(*leaves)
    ((end * end).sum() + rows.sum()).backward()
    return [end.detach(), rows.detach(), *[leaf.grad for leaf in leaves]]  # type: ignore[list-item]


@pytest.mark.parametrize("setting", DEVICES, ids=lambda one: "-".join(one.values()))
def test_bits_are_those_of_the_loop_written_out(setting: dict[str, Any]) -> None:
    with use_session(Session()) as session, options.override(**setting):
        for size in SIZES[: 1 if setting["device"] == "NV" else 2]:
            given = arrays(size)
            values = [x.numpy() for x in scanned(*given)]
            for one, other in zip(values, step_by_step(*given), strict=True):
                assert one.tobytes() == other.numpy().tobytes()
            ours = [x.numpy() for x in gradients(scanned, given)]
            for one, other in zip(ours, gradients(written_out, given), strict=True):
                np.testing.assert_allclose(one, other.numpy(), rtol=2e-5, atol=1e-5)
            captured = jit(lambda *x: tuple(gradients(scanned, list(x))))
            for _ in range(3):
                for one, other in zip(captured(*given), ours, strict=True):
                    assert one.numpy().tobytes() == other.tobytes()
        session.close()


def test_nothing_runs_before_it_is_asked_for() -> None:
    with use_session(Session()) as session:
        runs: list[Any] = []
        x = Tensor(array(0, 4, 3)).realize()
        session.watching.observers.append(runs.append)
        end, rows = func.scan(lambda c, row: (c + row, c), Tensor.zeros(3), x)
        total = func.while_loop(lambda t: t.sum() < 9, lambda t: t + end, (Tensor.ones(3),))[0]
        assert not runs and total.node.mask & CONTROL_MASK
        assert rows.numpy().shape == (4, 3) and end.numpy().shape == (3,)
        loops = [run for run in runs if isinstance(run.executable, ControlExecutable)]
        assert len(loops) == 1, "results that anybody has are computed together"


@pytest.mark.parametrize("change", [lambda f: f, jit])
def test_a_length_may_be_symbolic(change: Any) -> None:
    n = variable("n", 1, 16)
    x = array(0, 16, 3)

    @change  # type: ignore[untyped-decorator]
    def steps(rows: Tensor, factor: Tensor) -> Any:
        leaf = factor.detach().requires_grad_()
        end, made = func.scan(lambda c, row: (c * leaf + row.sum(), row * leaf), Tensor(1.0), rows)
        (end + made.sum()).backward()
        assert leaf.grad is not None
        return end.detach(), leaf.grad, made.detach().sum()

    with use_session(Session()) as session:
        plans = set()
        session.watching.observers.append(lambda run: plans.add(run.executable))
        held, counts = Tensor(x).realize(), []
        for length in (3, 5, 8, 2, 5):
            end, slope, total = steps(held[: bind(n, length)], Tensor(0.5))
            c, d = 1.0, 0.0
            for row in x[:length].astype(np.float64):
                c, d = c * 0.5 + row.sum(), d * 0.5 + c
            d += x[:length].sum()
            np.testing.assert_allclose([end.item(), slope.item()], [c, d], rtol=1e-5)
            np.testing.assert_allclose(total.item(), x[:length].sum() / 2, rtol=1e-5)
            counts.append(len(plans))
        assert counts[2:] == counts[2:3] * 3, "a length plans nothing anew"


def test_loops_nest_and_batches_share_what_is_no_examples() -> None:
    def inner(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return (c * x).sin() + x, c * c

    def outer(c: Tensor, rows: Tensor) -> Any:
        end, made = func.scan(inner, c, rows)
        again = func.while_loop(lambda a: (a * a).sum() < 40, lambda a: a * 2, (end.detach(),))[0]
        return end, (made.sum(0), again)

    def plain(c: Any, rows: Any) -> Any:
        for x in rows:
            c = np.sin(c * x) + x
        return c

    x = array(1, 3, 4, 2)
    start = array(2, 2)
    end, (_, grown) = func.scan(outer, Tensor(start), Tensor(x))
    wanted, last = start.astype(np.float64), []
    for rows in x:
        wanted = plain(wanted, rows)
        doubled = wanted
        while (doubled * doubled).sum() < 40:
            doubled = doubled * 2
        last.append(doubled)
    np.testing.assert_allclose(end.numpy(), wanted, rtol=1e-5)
    np.testing.assert_allclose(grown.numpy(), np.stack(last), rtol=1e-5)

    def loss(c: Tensor, shared: Tensor) -> Tensor:
        return func.scan(lambda c, rows: func.scan(inner, c, rows), c, shared)[0].sum()

    starts = array(3, 3, 2)
    found = func.vmap(func.grad(loss), in_dims=(0, None))(Tensor(starts), Tensor(x))
    step = 1e-3
    for i, one in enumerate(starts.astype(np.float64)):
        for k in range(2):
            ends = []
            for sign in (1, -1):
                c = one.copy()
                c[k] += sign * step
                for rows in x.astype(np.float64):
                    c = plain(c, rows)
                ends.append(c.sum())
            slope = (ends[0] - ends[1]) / (2 * step)
            np.testing.assert_allclose(found.numpy()[i, k], slope, rtol=2e-3, atol=2e-4)


def root(a: Tensor) -> Tensor:
    found: Tensor = func.while_loop(
        lambda r, a: (r * r - a).abs() > 1e-12 * a, lambda r, a: ((r + a / r) * 0.5, a),
        (Tensor(1.0, dtype="float64"), a),
    )[0]
    return found


@pytest.mark.parametrize("device", ["CPU", "REF"])
def test_a_loop_by_a_condition_has_derivatives_forward(device: str) -> None:
    with options.override(device=device):
        values = np.array([2.0, 3.0, 1e4])
        captured = jit(lambda a: func.jvp(root, (a,), (a.ones_like(),)))
        for value in (*values, *values):
            y, slope = captured(Tensor(value, dtype="float64"))
            np.testing.assert_allclose([y.item(), slope.item()], [value**0.5, 0.5 * value**-0.5])
        assert captured.captures == 1
        np.testing.assert_allclose(func.vmap(root)(Tensor(values)).numpy(), np.sqrt(values))
        batch = func.vmap(lambda a: func.jvp(root, (a,), (a.ones_like(),))[1])(Tensor(values))
        np.testing.assert_allclose(batch.numpy(), 0.5 / np.sqrt(values))


def test_a_loop_by_a_condition_has_no_gradient_where_it_cannot_be_read() -> None:
    def slope(a: Tensor) -> Tensor:
        leaf = a.detach().requires_grad_()
        root(leaf).backward()
        assert leaf.grad is not None
        return leaf.grad

    with pytest.raises(GradientError, match=r"while_loop has no gradient.*func\.scan"):
        jit(slope)(Tensor(2.0, dtype="float64"))
    steps = lambda a: func.scan(lambda c, _: (root(c), None), a, length=2)[0]  # noqa: E731
    with pytest.raises(GradientError, match=r"while_loop has no gradient.*func\.scan"):
        func.grad(steps)(Tensor(2.0, dtype="float64")).numpy()


@pytest.mark.parametrize("device", ["CPU", "REF"])
def test_the_branch_that_is_not_taken_is_not_computed(device: str) -> None:
    def branch(x: Tensor) -> Tensor:
        chosen: Tensor = func.cond(
            x.sum() > 0, lambda x: x.sqrt(), lambda x: x * 2, (x,)
        )
        return chosen

    def slope(x: Tensor) -> tuple[Tensor, Tensor]:
        leaf = x.detach().requires_grad_()
        y = branch(leaf)
        y.sum().backward()
        assert leaf.grad is not None
        return y.detach(), leaf.grad

    with options.override(device=device):
        captured = jit(slope)
        for sign in (1, -1, 1, -1):
            # The gradient of the root at 0, in the other branch, is infinite: times 0 it is NaN.
            x = np.array([4.0, 1.0]) if sign > 0 else np.array([-4.0, 0.0])
            y, gradient = captured(Tensor(x))
            np.testing.assert_allclose(y.numpy(), np.sqrt(x) if sign > 0 else 2 * x)
            wanted = 0.5 / np.sqrt(x) if sign > 0 else [2.0, 2.0]
            np.testing.assert_allclose(gradient.numpy(), wanted)
        assert captured.captures == 1


def test_state_and_devices_inside_bodies_are_refused() -> None:
    total = Tensor(0.0)

    def adds(x: Tensor) -> Tensor:
        total.add_(x.sum().float())
        return x

    x = Tensor(array(0, 3))
    with pytest.raises(ArgumentError, match="did not make"):
        func.while_loop(lambda x: x.sum() < 3, adds, (x,))
    with pytest.raises(ArgumentError, match="did not make"):
        jit(lambda x: func.cond(x.sum() > 0, adds, lambda x: x, (x,)))(x)
    with pytest.raises(ArgumentError, match="another device"):
        func.scan(lambda c, x: (c + x.to("REF").to("CPU"), None), Tensor(0.0), x)
    assert total.item() == 0


@pytest.mark.slow
def test_many_layers_are_planned_once_and_told_in_advance() -> None:
    """126 layers of a small decoder, forward and backward."""
    layers, size, rows, wide = 126, 64, 48, 96

    def decoder() -> Any:
        shapes = {"q": (size, size), "k": (size, size), "v": (size, size), "u": (size, wide),
                  "d": (wide, size)}
        weights = {name: Tensor(array(i, layers, *shape) * 0.1).requires_grad_()
                   for i, (name, shape) in enumerate(shapes.items())}
        x = Tensor(array(9, rows, size))

        def block(h: Tensor, w: dict[str, Tensor]) -> tuple[Tensor, None]:
            q, k, v = (h @ w[name] for name in "qkv")
            h = h + (q @ k.mT).softmax(-1) @ v
            return h + (h @ w["u"]).silu() @ w["d"], None

        end, _ = func.scan(block, x, weights)
        (end * end).mean().backward()
        return [w.grad.realize() for w in weights.values() if w.grad is not None]

    told = func.memory_of(decoder)
    with use_session(Session()) as session, options.override(device="CPU"):
        plans = set()
        session.watching.observers.append(lambda run: plans.add(run.executable))
        kept = decoder()
        taken = session.backend("CPU").device.memory_stats()
        del kept
    assert len(plans) < 12
    assert abs(told.peak_nbytes - taken.peak_nbytes) <= 0.05 * taken.peak_nbytes


def test_a_loop_has_a_text_a_grammar_and_a_meaning() -> None:
    x = array(0, 4, 3)
    with use_session(Session()):
        held = Tensor(x).realize()
        end, rows = func.scan(lambda c, row: (c * 0.5 + row, c.sum()), Tensor.zeros(3), held)
        program = canonicalise([end.node, rows.node], lambda node: None)
        verify(program.sink, "tensor")
        assert parse(dump(program.sink)) is program.sink
        values = evaluate_all(program.sink.src, {0: x})
        wanted, sums = np.zeros(3), []
        for row in x:
            sums.append(wanted.sum())
            wanted = wanted * 0.5 + row
        np.testing.assert_allclose(values[0], wanted, rtol=1e-5)
        np.testing.assert_allclose(values[1], sums, rtol=1e-5, atol=1e-6)
        broken = end.node.replace(arg=end.node.arg._replace(length=None))
        with pytest.raises(CompilerBug, match="a length, or a condition"):
            verify(Node(Ops.SINK, dtypes.token, (broken,)), "tensor")
