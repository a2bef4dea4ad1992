"""Commands of runs that were timed as a whole have shares by the runs beside them."""

from __future__ import annotations

import numpy as np

from baregrad.profiling.shares import CloseTimes, is_timed_closely, lengths_between, placed
from baregrad.runtime.commands import Timeline


def test_commands_lie_in_another_run_of_their_list_in_proportion() -> None:
    labels, lengths = ("a", "b", "c"), (100_000, 0, 300_000)
    # Of what 400 us of work are longer 10 are the launch, in the rest the kernels are slower.
    slower = placed(labels, lengths, 1_000_000, 1_430_000)
    assert slower.begin_ns == (1_010_000, 1_115_000, 1_115_000)
    assert slower.end_ns == (1_115_000, 1_115_000, 1_430_000)
    # By a quarter at most; the rest lies before those that take time.
    apart = placed(labels, lengths, 0, 560_000)
    assert apart.begin_ns == (35_000, 160_000, 185_000)
    assert apart.end_ns == (160_000, 160_000, 560_000)
    launched = placed(labels, lengths, 0, 405_000)
    assert launched.durations_ns() == lengths and launched.begin_ns[0] == 5_000
    faster = placed(labels, lengths, 0, 200_000)
    assert (faster.begin_ns, faster.end_ns) == ((0, 50_000, 50_000), (50_000, 50_000, 200_000))
    nothing = placed(("a",), (0,), 7, 9)
    assert (nothing.begin_ns, nothing.end_ns) == ((9,), (9,))


def test_shares_lie_between_those_of_the_runs_that_were_timed_closely() -> None:
    def timeline(*lengths: int) -> Timeline:
        ends = tuple(np.cumsum(lengths).tolist())
        return Timeline(("a", "b"), (0, *ends[:-1]), ends)

    closely = CloseTimes()
    assert closely.beside(5) is None
    # The first run waited for the host, so that the second stands for both.
    closely.add(0, timeline(300_000, 100_500))
    closely.add(1, timeline(100_500, 100_500))
    closely.add(17, timeline(200_500, 100_500))

    def lengths(number: int, ran_ns: int) -> list[float]:
        beside = closely.beside(number)
        assert beside is not None
        return lengths_between(*beside, ran_ns)[1]

    # Half a microsecond of each is its event's. The slower the run, the more is it like the slower
    # of the two; how late it was counts not.
    assert lengths(3, 210_000) == lengths(15, 150_000) == [100_000, 100_000]
    assert lengths(3, 260_000) == lengths(30, 260_000) == [150_000, 100_000]
    assert lengths(0, 900_000) == [100_000, 100_000]
    assert lengths(99, 900_000) == [200_000, 100_000]
    # Runs that took as long: the nearer one counts more, and behind them the last.
    closely.add(33, timeline(100_500, 200_500))
    assert lengths(21, 300_000) == [175_000, 125_000]
    assert lengths(34, 300_000) == [100_000, 200_000]
    # Of a short one it is a fifth at most.
    short = timeline(1_000, 0)
    assert lengths_between(short, short, 0.0, 2_000)[1] == [800, 0]
    assert [one for one in range(150) if is_timed_closely(one, 64)] == [0, 1, 16, 64, 128]
    assert all(is_timed_closely(one, 1) for one in range(9))
