"""Copies of a window's places are known as walks where a schedule has joined and split its axes."""

from __future__ import annotations

import pytest

from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.protocol.attributes import Walk
from baregrad.kernel import choose
from baregrad.kernel.applying.apply import apply_chunked
from baregrad.kernel.gpu.window_boxes import WindowBox, kept_window
from baregrad.kernel.planning.gpu import gemm_mma
from tests.kernel.contractions import packed_convolution
from tests.kernel.gpu_kernels import HOPPER


@pytest.mark.parametrize(("taps", "low"), [(3, -1), (5, -2)])
def test_an_image_is_a_walk_between_its_corners(
    taps: int, low: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm_mma, "WALKED", 1.0)
    kernel = packed_convolution(64, 128, 24, 256, taps)
    applied = apply_chunked(kernel, choose(kernel, HOPPER).schedule, HOPPER)
    stages = [node for node in toposort(applied) if node.op is Ops.STAGE]
    (image,) = [one for one in stages if any(n.op is Ops.GUARD for n in toposort(one))]
    found = kept_window(image)
    assert isinstance(found, WindowBox)
    assert found.box.shape == (128, 24, 24, 64) and found.box.box[0] == 64
    assert found.box.walk == Walk((low, low), (low, low), (1, 1))
    assert len(found.corner) == found.box.corner == 6 and not found.apart


@pytest.mark.parametrize(("side", "walks"), [(56, True), (28, True), (14, False), (7, True)])
def test_threads_copy_places_that_are_stored_at_once_so_alone(side: int, walks: bool) -> None:
    """Of 14 x 14 places four lie together in each image, but not eight, and of 7 x 7 not two."""
    choice = choose(packed_convolution(64, 256, side, 256, 3), HOPPER)
    assert ("'tma'" in str(choice.schedule)) == walks != ("'async'" in str(choice.schedule))
    assert any("less time than boxes" in reason for reason in choice.why()) != walks
