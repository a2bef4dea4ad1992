"""Where stored values lie: the arena and the buffers of outputs."""

from __future__ import annotations

from tests.schedule.graphs import A, check, param


def chain(x: A, count: int) -> A:
    for _ in range(count):
        x = (x + 1.0).contiguous()
    return x


def test_temporaries_share_memory() -> None:
    plan = check([chain(param(0, 1000), 12) * 2.0], kernels=13)
    assert plan.arena_nbytes == 2 * 4032


def test_live_temporaries_do_not_overlap() -> None:
    x = param(0, 500)
    parts = [chain(x * float(i), 2) for i in range(1, 8)]
    total = parts[0]
    for part in reversed(parts[1:]):
        total = total + part.flip(0)
    check([total, parts[3]])


def test_values_with_several_readers_live_long_enough() -> None:
    x = (param(0, 64, 64) @ param(1, 64, 64)).contiguous()
    y = (x @ param(2, 64, 64)).contiguous()
    z = (y @ param(3, 64, 64)).contiguous()
    check([z + x, y.sum(1)], tolerance=1e-2)
