"""Captures on disk: found by what decides them alone, never trusted, and the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baregrad.assemble import cache as disk
from baregrad.assemble.cache import DiskCache
from baregrad.base.options import options
from baregrad.engine.canonical import bind
from baregrad.engine.session import Session, use_session
from baregrad.ir.core.index import variable
from baregrad.tensor import Tensor
from baregrad.tensor.array.grad_mode import autocast
from baregrad.tensor.jit import identity, kept, results
from baregrad.tensor.jit.jit import Jit

ROWS = variable("kept_call_rows", 1, 8)
WIDTH = 6


class Layer:
    """Weights, and rows that calls write."""

    def __init__(self, scale: float = 0.5, width: int = WIDTH) -> None:
        self.scale = scale
        numbers = np.random.default_rng(5).standard_normal((width, width)).astype(np.float32)
        self.weight = Tensor(numbers).realize()
        self.rows = Tensor.zeros(8, width).contiguous().realize()
        self.calls = Counter()

    def step(self) -> Callable[[Tensor, Any], list[Tensor]]:
        calls = self.calls

        def step(x: Tensor, rows: Any) -> list[Tensor]:
            calls.add()
            found = (x[:rows] @ self.weight).relu() * self.scale
            self.rows[:rows] = self.rows[:rows] + found
            return [found.sum(0), self.rows.sum()]

        return step


class Counter:
    """Counts in a list of this module's, which is no part of what a function computes."""

    def add(self) -> None:
        _CALLED.append(1)


_CALLED: list[int] = []


@pytest.fixture(autouse=True)
def _ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(kept, "IS_KEPT", True)
    monkeypatch.setattr(identity, "_OURS", (*identity._OURS, f"{__name__}."))
    _CALLED.clear()
    with options.override(cache_dir=tmp_path / "cache", device="CPU", debug=0):
        yield


def in_process(run: Callable[[], Any]) -> tuple[Any, int]:
    """What a run gives in a session of its own, which shares the disk alone; calls of functions."""
    before = len(_CALLED)
    with use_session(Session()) as session:
        found = run()
        session.close()
    return found, len(_CALLED) - before


def three_calls(layer: Layer | None = None, steps: tuple[int, ...] = (3, 8, 5)) -> list[Any]:
    layer = layer or Layer()
    jitted = Jit(layer.step(), is_ours=True)
    x = np.arange(8 * layer.weight.shape[0], dtype=np.float32).reshape(8, -1) / 16 - 1
    found = []
    for rows in steps:
        total, whole = jitted(Tensor(x), bind(ROWS, rows))
        found.append((total.numpy(), whole.numpy(), layer.rows.numpy()))
    return found


def as_numpy(steps: tuple[int, ...] = (3, 8, 5)) -> list[Any]:
    weight = np.random.default_rng(5).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    x = np.arange(8 * WIDTH, dtype=np.float32).reshape(8, -1) / 16 - 1
    state, found = np.zeros((8, WIDTH)), []
    for rows in steps:
        made = np.maximum(x[:rows].astype(np.float64) @ weight, 0) * 0.5
        state = state.copy()
        state[:rows] += made
        found.append((made.sum(0), state.sum(), state))
    return found


def test_a_later_process_does_not_run_the_function() -> None:
    first, called = in_process(three_calls)
    assert called == 1
    second, called = in_process(three_calls)
    assert called == 0
    for one, other, known in zip(first, second, as_numpy(), strict=True):
        for a, b, c in zip(one, other, known, strict=True):
            assert a.tobytes() == b.tobytes()
            np.testing.assert_allclose(a, c, rtol=1e-5)


def test_calls_of_other_values_are_the_same_capture() -> None:
    in_process(three_calls)
    found, called = in_process(lambda: three_calls(steps=(8, 1)))
    assert called == 0
    for one, known in zip(found, as_numpy((8, 1)), strict=True):
        np.testing.assert_allclose(one[2], known[2], rtol=1e-5)


@pytest.mark.parametrize("change", [
    lambda patch: three_calls(Layer(scale=0.25)),
    lambda patch: three_calls(Layer(width=5)),
    lambda patch: _with_option(matmul_precision="high"),
    lambda patch: _with_text(patch),
], ids=["a number", "a shape", "an option", "code"])  # fmt: skip
def test_what_decides_a_capture_is_part_of_its_key(
    change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process(three_calls)
    _, called = in_process(lambda: change(monkeypatch))
    assert called == 1


def _with_option(**chosen: Any) -> Any:
    with options.override(**chosen):
        return three_calls()


def _with_text(patch: pytest.MonkeyPatch) -> Any:
    # As where a file has changed, and the process came after that.
    patch.setattr(disk, "LOADED_NS", 1)
    return three_calls()


def entries(folder: Path) -> list[Path]:
    """The files that hold captures."""
    found = []
    for path in (folder / "cache").glob("??/*"):
        data = path.read_bytes()
        if b'"in_place' in data:
            found.append(path)
    return found


def other_text(saved: list[Any], change: Callable[[Any], None]) -> list[Any]:
    text, table = json.loads(saved[-1])
    change(table)
    return [*saved[:-1], json.dumps([text, table])]


_DAMAGE: tuple[Callable[[list[Any]], Any], ...] = (
    lambda saved: [], lambda saved: {"a": 1}, lambda saved: [[99], *saved[1:]],
    lambda saved: [*saved[:2], ["list", [[7]]], *saved[3:]], lambda saved: [*saved[:-1], "[]"],
    lambda saved: other_text(saved, lambda table: table.pop("runs")),
    lambda saved: other_text(saved, lambda table: table["outputs"].append(1000)),
    lambda saved: other_text(saved, lambda table: table["runs"][0]["inputs"].pop()),
    lambda saved: other_text(saved, lambda table: table["runs"][0].update(plan="{")),
    lambda saved: other_text(saved, lambda table: table["runs"][0].update(plan=1)),
    lambda saved: [*saved[:-2], 3, saved[-1]],
)  # fmt: skip


def test_a_capture_that_is_not_ours_is_made_anew(tmp_path: Path) -> None:
    in_process(lambda: three_calls(steps=(3,)))
    (path,) = entries(tmp_path)
    cache = DiskCache(tmp_path / "cache")
    key = path.parent.name + path.name
    saved = cache.get(key) or b""
    for damage in _DAMAGE:
        cache.put(key, json.dumps(damage(json.loads(saved))).encode())
        found, called = in_process(lambda: three_calls(steps=(3,)))
        assert called == 1
        np.testing.assert_allclose(found[0][2], as_numpy((3,))[0][2], rtol=1e-5)
        assert cache.get(key) == saved


def test_a_file_with_a_wrong_bit_is_made_anew(tmp_path: Path) -> None:
    in_process(three_calls)
    (path,) = entries(tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    found, called = in_process(three_calls)
    assert called == 1
    np.testing.assert_allclose(found[2][2], as_numpy()[2][2], rtol=1e-5)


def test_what_others_read_is_not_written_over() -> None:
    """A lazy expression of the state, a second tensor over its memory, and two of one memory."""

    def run() -> list[Any]:
        layer = Layer()
        layer.rows = Tensor.full((8, WIDTH), 2.0).contiguous().realize()
        twin = Tensor.full((8, WIDTH), 2.0).contiguous().realize()
        lazy = layer.rows * 3
        three_calls(layer)
        return [lazy.numpy(), twin.numpy(), layer.rows.numpy()]

    first, called = in_process(run)
    second, again = in_process(run)
    assert (called, again) == (1, 0)
    for found in (first, second):
        assert (found[0] == 6).all() and (found[1] == 2).all()
        np.testing.assert_allclose(found[2], 2 + as_numpy()[2][2], rtol=1e-5)


def test_states_that_lie_in_one_memory_get_their_own() -> None:
    def run() -> list[Any]:
        one, two = Layer(), Layer()

        def step(x: Tensor) -> None:
            one.calls.add()
            one.rows[:2] = x
            two.rows[:2] = x * 2

        jitted: Any = Jit(step, is_ours=True)
        jitted(Tensor(np.ones((2, WIDTH), np.float32)))
        jitted(Tensor(np.full((2, WIDTH), 3, np.float32)))
        return [one.rows.numpy(), two.rows.numpy()]

    for calls in (1, 0):
        found, called = in_process(run)
        assert called == calls
        assert (found[0][:2] == 3).all() and (found[1][:2] == 6).all()
        assert not found[0][2:].any() and not found[1][2:].any()


def test_a_changed_surrounding_is_learnt_anew() -> None:
    def run() -> Any:
        layer = Layer()
        jitted = Jit(layer.step(), is_ours=True)
        x = Tensor(np.ones((8, WIDTH), np.float32))
        jitted(x, bind(ROWS, 2))
        layer.scale = 4.0
        return jitted(x, bind(ROWS, 2))[0].numpy()

    (first, _), (second, called) = in_process(run), in_process(run)
    assert called == 0 and first.tobytes() == second.tobytes()
    weight = np.random.default_rng(5).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    wanted = np.maximum(np.ones((2, WIDTH)) @ weight, 0).sum(0) * 4
    np.testing.assert_allclose(second, wanted, rtol=1e-5)


def test_a_capture_in_autocast_is_one_of_its_own() -> None:
    def run(within: bool) -> Any:
        jitted = Jit(Layer().step(), is_ours=True)
        x = Tensor(np.ones((8, WIDTH), np.float32))
        with autocast() if within else nullcontext():
            return jitted(x, bind(ROWS, 2))[0].float().numpy()

    for within in (True, False):
        kept = [in_process(lambda: run(within))[0].tobytes() for _ in range(2)]  # noqa: B023
        assert kept[0] == kept[1]


@pytest.mark.parametrize("place, name, instead", [
    (Tensor, "relu", lambda x: x * 2), (results, "_ORDINARY", 5), (Tensor, "relu", Tensor.abs),
], ids=["somebody's code", "a number", "other code of ours"])  # fmt: skip
def test_what_somebody_replaced_is_captured_by_himself(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, instead: Any
) -> None:
    """And what he captured is not found by others."""
    in_process(three_calls)
    with monkeypatch.context() as patch:
        patch.setattr(place, name, instead, raising=place is Tensor)
        assert in_process(three_calls)[1] >= 1
    found, _ = in_process(three_calls)
    np.testing.assert_allclose(found[2][2], as_numpy()[2][2], rtol=1e-5)
