"""Maxima, sums of powers and scales: what rises a little scales nothing, factors are subtracted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baregrad.render import get
from baregrad.tensor import Tensor
from baregrad.testing.examples.nests import attended
from baregrad.testing.ptx_device import ptx_session
from tests.kernel.applying.test_stream_tiles import arrays_of, attention
from tests.kernel.gpu_kernels import HOPPER, lowered, run_text, run_threads


def test_maxima_that_rise_a_little_scale_nothing() -> None:
    """Beyond eight doublings all that was summed is scaled, once for a tile, whatever the order."""
    kernel = attended(64, 256, 64)
    found = {}
    for height in (4.0, 12.0):
        arrays = arrays_of(64, 256, 64)
        # Of each tile of 32 keys the scores are higher than of the last one.
        arrays[1][:] = 0
        arrays[1][:, 0] = 1
        arrays[2][:, 0] = np.arange(256) // 32 * height
        loop, program = lowered(kernel, "Schedule(stream_tiles(1, 1, 32, instruction='wgmma'))")
        found[height] = run_threads(loop, program, arrays)[0]
        np.testing.assert_array_equal(run_text(loop, program, arrays)[0], found[height])
        assert np.abs(found[height] - attention(arrays, False)).max() < 2.0**-10 * 4


@pytest.mark.parametrize("keys", [32, 20])
def test_one_tile_of_keys_scales_nothing(keys: int) -> None:
    """What is summed of it is all."""
    texts = {}
    for count in (keys, 64):
        kernel, arrays = attended(16, count, 64), arrays_of(16, count, 64)
        loop, program = lowered(kernel, "Schedule(stream_tiles(1, 1, 32))")
        found = run_threads(loop, program, arrays)[0]
        np.testing.assert_array_equal(run_text(loop, program, arrays)[0], found)
        assert np.abs(found - attention(arrays, False)).max() < 2.0**-10 * 4
        texts[count] = get("ptx").render(program, HOPPER)
    one, two = (texts[count].partition("mma.sync")[2] for count in (keys, 64))
    # What was summed of an earlier tile is multiplied by a factor, of which powers are made.
    assert two.count("mul.rn") - one.count("mul.rn") > 32


@pytest.mark.parametrize(("factor", "multiplies"), [(0.25, False), (2.0, True)])
def test_a_factor_of_scores_is_part_of_the_subtraction(factor: float, multiplies: bool) -> None:
    """One that might make infinities of numbers is not."""
    arrays = arrays_of(64, 96, 64)
    arrays[1] *= np.float16(0.25)
    kernel = attended(64, 96, 64, True, factor)
    loop, program = lowered(kernel, "Schedule(stream_tiles(1, 1, 32, instruction='wgmma'))")
    found = run_threads(loop, program, arrays)[0]
    np.testing.assert_array_equal(run_text(loop, program, arrays)[0], found)
    scaled = {**arrays, 1: arrays[1].astype(np.float64) * factor}
    assert np.abs(found - attention(scaled, True)).max() < 2.0**-10 * np.abs(arrays[3]).max()
    lines = get("ptx").render(program, HOPPER).split("\n")
    constant = f"0f{np.float32(factor).view(np.uint32):08X}"
    products = [line for line in lines if "mul.rn" in line and line.endswith(f"{constant};")]
    # Maxima of the two rows of a thread are multiplied in either case.
    assert (len(products) > 2) == multiplies


def test_what_dropout_leaves_has_room_in_float16() -> None:
    """Powers of nearly eight doublings times 500 would be infinite: those are of a maximum."""
    arrays = [np.zeros((1, 1, count, 64), np.float32) for count in (64, 256, 256)]
    arrays[0][..., 0] = 1
    # Of the last half of the keys the scores are higher.
    arrays[1][0, 0, 128:, 0] = 7.9 * np.log(2)
    arrays[2][:] = np.random.default_rng(0).standard_normal(arrays[2].shape)

    def found() -> Any:
        Tensor.manual_seed(3)
        q, k, v = [Tensor(array).cast("float16").realize() for array in arrays]
        dropped = q.scaled_dot_product_attention(k, v, dropout_p=0.998, scale=1.0)
        return dropped.cast("float32").numpy()

    wanted = found()
    with ptx_session():
        np.testing.assert_allclose(found(), wanted, atol=2.0**-9 * np.abs(wanted).max())
