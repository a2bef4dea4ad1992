"""What warps make of keys that they share out is put together as NumPy has it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.loop_level import evaluate_loop
from baregrad.kernel import lower, parse_schedule
from baregrad.tensor import Tensor
from baregrad.testing.examples.nests import attended
from baregrad.testing.ptx_device import ptx_session
from baregrad.testing.virtual_gpu.ptx.errors import SharedMemoryRace
from tests.kernel.applying.test_stream_tiles import arrays_of, attention
from tests.kernel.gpu_kernels import HOPPER, lowered, run_text, run_threads

# rows, keys, width, causal; keys of a warp at a time, warps
SHARED = (
    (4, 128, 32, False, 16, 2), (1, 300, 64, False, 32, 4), (16, 200, 32, True, 32, 2),
    (20, 90, 16, False, 16, 4), (3, 40, 16, False, 16, 4),
)  # fmt: skip


@pytest.mark.parametrize(("rows", "keys", "width", "causal", "passing", "warps"), SHARED)
def test_shared_keys_give_what_numpy_gives(
    rows: int, keys: int, width: int, causal: bool, passing: int, warps: int
) -> None:
    """Also where some warps have no key at all, and rows see none of a warp's."""
    kernel = attended(rows, keys, width, causal)
    arrays = arrays_of(rows, keys, width)
    loop, program = lowered(kernel, f"Schedule(stream_tiles(1, 1, {passing}, shares={warps}))")
    blocks = {slot: np.array(array) for slot, array in arrays.items()}
    evaluate_loop(loop, blocks)
    wanted = attention(arrays, causal)
    limit = 2.0**-10 * np.abs(arrays[3]).max()
    found = blocks, run_threads(loop, program, arrays), run_text(loop, program, arrays)
    for one in found:
        assert np.abs(one[0] - wanted).max() < limit
    np.testing.assert_array_equal(found[1][0], found[2][0])


def test_nothing_that_orders_shared_keys_can_be_left_out() -> None:
    """Rows are for all warps, keys for one of them, states for all again."""
    kernel, arrays = attended(4, 256, 32), arrays_of(4, 256, 32)
    loop, program = lowered(kernel, "Schedule(stream_tiles(1, 1, 32, shares=4))")
    code = list(program.src)
    found = [
        (at, one.arg.name) for at, one in enumerate(code)
        if one.op is Ops.MACHINE and one.arg.name.startswith("bar.")
    ]
    assert [name for _, name in found] == ["bar.sync", "bar.warp.sync", "bar.sync"]
    for at, _ in found:
        with pytest.raises(SharedMemoryRace):
            run_text(loop, program.replace(src=(*code[:at], *code[at + 1 :])), arrays)


@pytest.mark.parametrize("how", ("2, 1, 32, shares=2", "1, 1, 32, instruction='wgmma', shares=2"))
def test_only_single_warps_share_keys(how: str) -> None:
    with pytest.raises(ScheduleError, match="single warps share keys"):
        lower(attended(128, 128, 64), HOPPER, parse_schedule(f"Schedule(stream_tiles({how}))"))


def test_rows_of_octets_have_the_same_bits_in_any_batch() -> None:
    """A decoding step of three sequences of 1,100 keys, which two warps share, beside float64."""
    random = np.random.default_rng(3)
    query = torch.tensor(random.standard_normal((3, 4, 1, 32))).bfloat16()
    key, value = (
        torch.tensor(random.standard_normal((3, 1, 1100, 32))).to(torch.float8_e4m3fn)
        for _ in range(2)
    )
    wanted = torch.nn.functional.scaled_dot_product_attention(
        query.double(), key.double(), value.double(), enable_gqa=True
    ).numpy()
    found = []
    for rows in (slice(0, 3), slice(1, 2)):
        with ptx_session():
            q = Tensor(query[rows].float().numpy()).cast("bfloat16").realize()
            k, v = (
                Tensor(one[rows].float().numpy()).cast("float8_e4m3fn").realize().cast("bfloat16")
                for one in (key, value)
            )
            made = q.scaled_dot_product_attention(k, v, enable_gqa=True)
            found.append(made.cast("float32").numpy())
    assert np.abs(found[0] - wanted).max() < 2.0**-7 * np.abs(wanted).max()
    np.testing.assert_array_equal(found[0][1:2], found[1])
