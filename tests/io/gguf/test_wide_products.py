"""Lone rows as whole numbers of 16 bits: right within their rounding, whatever the numbers are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad import Tensor, bind, dtypes, variable
from baregrad.io.gguf import PackedWeight, PlanarWeight, by_name
from baregrad.io.gguf.wide_products import BY_INTEGERS, RUN, whole_row, wide_linear
from baregrad.kernel.planning.gpu import packed_sums
from baregrad.testing.ptx_device import ptx_session
from tests.io.gguf.packed import random_rows, reference


@pytest.mark.parametrize("name", BY_INTEGERS)
def test_products_are_right_within_the_rounding_of_16_bits(name: str) -> None:
    row = by_name(name)
    packed = random_rows(row, 16, 512)
    values = np.random.default_rng(6).standard_normal((1, 512)).astype(np.float32)
    values[0, :RUN], values[0, RUN : 2 * RUN], values[0, 40] = 0, 1e-30, 300
    x = Tensor(values).cast(dtypes.bfloat16)
    planes = PackedWeight(row, (16, 512), Tensor(packed)).in_planes()
    assert isinstance(planes, PlanarWeight)
    found = wide_linear(x.cast(dtypes.float32), planes.planes, name).numpy()
    exact = x.cast(dtypes.float32).numpy().astype(np.float64)
    wanted = reference(row, packed).astype(np.float64)
    # Each small number is off by half a step of its run's, those of float32 aside.
    largest = np.abs(exact.reshape(-1, RUN)).max(1).repeat(RUN)
    step = np.exp2(np.floor(np.log2(np.maximum(largest, 2.0**-126)))) / (1 << 13)
    off = np.where(np.abs(exact) < largest / 64, step / 2, 0)
    bound = (off + 1e-6 * np.abs(exact)) @ np.abs(wanted).T
    assert (np.abs(found - exact @ wanted.T) <= bound).all()


def test_rows_are_whole_numbers_of_16_bits() -> None:
    """Ties are rounded to even ones; two lie in a word, whatever sign they have."""
    random = np.random.default_rng(3)
    values = random.standard_normal((64, RUN)).astype(np.float32)
    values[:16] = random.integers(-(1 << 14), 1 << 14, (16, RUN)) / 2
    values[16, 0], values[17, 0], values[34] = 16383.9, -16383.9, 0
    words, step, total = (one.numpy() for one in whole_row(Tensor(values)))
    found = words.view(np.int16).reshape(64, RUN)
    largest = np.abs(values).max(1)
    scale = np.exp2(13 - np.floor(np.log2(np.maximum(largest, 2.0**-100)))).astype(np.float64)
    scale[34] = 0
    wanted = np.rint(values * scale[:, None])
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(total, wanted.sum(1) * step)
    np.testing.assert_array_equal(step * scale, np.where(largest > 0, 1, 0))


@pytest.mark.parametrize("bits", [0x7F800000, 0xFF800000, 0x7FC00000, 0x7FFFFFFF])
@pytest.mark.parametrize("name", ["Q4_1", "Q4_K"])
def test_what_is_no_number_gives_none(name: str, bits: int) -> None:
    """Infinities neither: their integer is any, and numbers beside them may be as large as one."""
    row = by_name(name)
    weight = PackedWeight(row, (4, 256), Tensor(random_rows(row, 4, 256))).in_planes()
    values = np.ones((1, 256), np.float32)
    values[0, 8] = 1e38
    values.view(np.uint32)[0, 7] = bits
    assert isinstance(weight, PlanarWeight)
    found = wide_linear(Tensor(values), weight.planes, name).numpy()
    assert np.isnan(found).all()


def test_exact_products_take_numbers_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baregrad.io.gguf.weight.LARGE_NBYTES", 0)
    row = by_name("Q4_K")
    packed = random_rows(row, 16, 512)
    dense = reference(row, packed).astype(np.float64)
    weight = PackedWeight(row, (16, 512), Tensor(packed))
    # Beside the largest of a run the others are less than half a step of it.
    values = np.full((1, 512), 1e-3, np.float16)
    values[0, ::RUN] = 300
    x, planes = Tensor(values), weight.in_planes()
    wanted = values.astype(np.float64) @ dense.T
    alike = 1e-6 * (np.abs(values.astype(np.float64)) @ np.abs(dense).T)
    rounded = planes.linear(x, wide=True).numpy()
    assert (np.abs(rounded - wanted) > alike).any()
    exact = planes.exactly()
    for one in (exact, exact.at(slice(0, 16)), weight.exactly().in_planes()):
        assert one.is_exact and not planes.is_exact
        assert (np.abs(one.linear(x, wide=True).numpy() - wanted) <= alike).all()
    found = planes.linear(x, exact=True, wide=True).numpy()
    assert (np.abs(found - wanted) <= alike).all()


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("name", "rows"),
    [("Q4_K", 1), ("Q4_K", 2), ("Q4_K", 6), ("Q4_K", 7), ("Q4_K", 8), ("Q6_K", 3), ("Q5_K", 2),
     ("Q2_K", 2), ("Q4_1", 4)],
)  # fmt: skip
def test_few_rows_are_lone_rows_of_one_launch(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, as the number of a step's sequences is symbolic."""
    monkeypatch.setattr("baregrad.io.gguf.weight.LARGE_NBYTES", 0)
    row = by_name(name)
    packed = random_rows(row, 10, 512)
    values = np.random.default_rng(rows).standard_normal((8, 512)).astype(np.float32)
    with ptx_session() as session:
        weight = PackedWeight(row, (10, 512), Tensor(packed)).in_planes()
        x = Tensor(values).cast(dtypes.bfloat16).realize()
        some = x[: bind(variable("rows", 1, 8), rows)]
        weight.linear(some, wide=True).realize()
        before = session.backend("NV").device.launches
        found = weight.linear(some, wide=True).numpy()
        launches = session.backend("NV").device.launches - before
        lone = [weight.linear(x[at : at + 1].contiguous(), wide=True).numpy() for at in range(rows)]
        read = x.cast(dtypes.float32).numpy()[:rows].astype(np.float64)
        del weight, x, some
    assert launches == 1
    np.testing.assert_array_equal(found, np.concatenate(lone))
    wanted = reference(row, packed).astype(np.float64)
    assert (np.abs(found - read @ wanted.T) <= 2.0**-13 * (np.abs(read) @ np.abs(wanted).T)).all()


def test_more_rows_are_multiplied_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baregrad.io.gguf.weight.LARGE_NBYTES", 0)
    row = by_name("Q4_K")
    packed = random_rows(row, 16, 512)
    # Beside the largest of a run the others are less than half a step of it.
    values = np.full((9, 512), 1e-3, np.float16)
    values[:, ::RUN] = 300
    weight = PackedWeight(row, (16, 512), Tensor(packed)).in_planes()
    few, more = (weight.linear(Tensor(values[:count]), wide=True).numpy() for count in (8, 9))
    assert (few[0] != more[0]).any()
    exact = weight.linear(Tensor(values[:8]), exact=True, wide=True).numpy()
    np.testing.assert_allclose(exact[0], more[0], rtol=1e-5)


def test_integers_are_made_along_with_a_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a token's norm, its integers and its product are two launches, however many rows."""
    monkeypatch.setattr("baregrad.io.gguf.weight.LARGE_NBYTES", 0)
    row, random = by_name("Q4_K"), np.random.default_rng(8)
    rows = 2048  # of fewer, each would make the norm anew sooner than a launch begins
    packed = random_rows(row, rows, 512)
    values = random.standard_normal((1, 512)).astype(np.float32)
    gain = random.standard_normal(512).astype(np.float32)
    with ptx_session() as session:
        weight = PackedWeight(row, (rows, 512), Tensor(packed)).in_planes()
        x = Tensor(values).cast(dtypes.bfloat16).realize()
        scale = Tensor(gain).realize()
        before = session.backend("NV").device.launches
        result = weight.linear(x.rms_norm(512, scale, 1e-5)).realize()
        launches = session.backend("NV").device.launches - before
        found, read = (one.cast(dtypes.float32).numpy() for one in (result, x))
        del weight, x, scale, result
    assert launches == 2
    read = read.astype(np.float64)
    normed = read / np.sqrt((read**2).mean() + 1e-5) * gain
    dense = reference(row, packed).astype(np.float64)
    assert (np.abs(found - normed @ dense.T) <= 2.0**-8 * (np.abs(normed) @ np.abs(dense).T)).all()


def test_a_gate_is_read_along_with_what_it_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """No load waits for the threads of the other product to meet, which do so once for each sum."""
    monkeypatch.setattr("baregrad.io.gguf.weight.LARGE_NBYTES", 0)
    row, random = by_name("Q4_K"), np.random.default_rng(9)
    packed = [random_rows(row, 6, 4096)[::step].copy() for step in (1, -1)]
    seen = list[Any]()
    with ptx_session() as session:
        gate, up = (PackedWeight(row, (6, 4096), Tensor(one)).in_planes() for one in packed)
        x = Tensor(random.standard_normal((1, 4096)).astype(np.float32)).cast("bfloat16").realize()
        session.watching.observers.append(seen.append)
        result = (gate.linear(x, wide=True).tanh() * up.linear(x, wide=True)).realize()
        kernel = seen[-1].executable.plan.steps[-1].kernel
        found, read = result.numpy(), x.cast(dtypes.float32).numpy().astype(np.float64)
        stages = session.backend("NV").compiler.stages(kernel)
        (text,) = [str(stage.result) for stage in stages if stage.name == "render"]
        del gate, up, x, result
    first, second = (reference(row, one).astype(np.float64) for one in packed)
    bound = 2.0**-16 * (np.abs(read) @ np.abs(first).T + 1) * (np.abs(read) @ np.abs(second).T)
    assert (np.abs(found - np.tanh(read @ first.T) * (read @ second.T)) <= bound).all()
    _, _, behind = text.partition("shfl.sync")
    assert behind and "ld.global" not in behind
    assert text.count("bar.sync") == text.count("st.shared.f32")


@pytest.mark.parametrize(
    ("name", "out", "turns"), [("Q4_K", 5, 1), ("Q4_K", 14, 3), ("Q6_K", 6, 1), ("Q6_K", 9, 2)]
)
def test_gated_products_have_the_same_bits_whatever_rows_are_beside_them(
    name: str, out: int, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks have several rows, one, or some of several: each is a version of the same work.

    turns: that a block has its words in, which it copies ahead.
    """
    monkeypatch.setattr("baregrad.io.gguf.weight.LARGE_NBYTES", 0)
    shares = packed_sums._shares_of_words
    monkeypatch.setattr(
        packed_sums, "_shares_of_words", lambda *given: (shares(*given)[0], 1 + turns % 2, turns)
    )
    row, random = by_name(name), np.random.default_rng(10)
    packed = [random_rows(row, out, 512) for _ in range(2)]
    values = random.standard_normal((8, 512)).astype(np.float32)
    at = variable("rows", 1, 8)
    with ptx_session():
        gate, up = (PackedWeight(row, (out, 512), Tensor(one)).in_planes() for one in packed)
        x = Tensor(values).cast(dtypes.bfloat16).realize()
        found = []
        for count in (8, 1, 2, 3, 5, 7):
            some = x[: bind(at, count)]
            product = gate.linear(some, wide=True).tanh() * up.linear(some, wide=True)
            found.append(product.numpy())
        read = x.cast(dtypes.float32).numpy().astype(np.float64)
        del gate, up, x, some, product
    for some in found[1:]:
        np.testing.assert_array_equal(some, found[0][: len(some)])
    first, second = (reference(row, one).astype(np.float64) for one in packed)
    bound = 2.0**-12 * (np.abs(read) @ np.abs(first).T + 1) * (np.abs(read) @ np.abs(second).T)
    assert (np.abs(found[0] - np.tanh(read @ first.T) * (read @ second.T)) <= bound).all()
