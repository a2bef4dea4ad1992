"""What one kernel does, how fast it could run, and which one is meant."""

from __future__ import annotations

import pytest

from baregrad.base.errors import ArgumentError
from baregrad.engine import explain_kernel
from baregrad.engine.rates import Level, Rates
from baregrad.kernel import Schedule

# A machine of round numbers: 10 operations a byte from memory, 5 from the cache.
RATES = Rates((Level("cache", 1e5, 2e9), Level("memory", float("inf"), 1e9)), 1e10, 2)


def test_bytes_and_operations_are_counted(kernels: list[explain_kernel.Found]) -> None:
    product, mapped, total = (explain_kernel.work_of(one) for one in kernels)
    assert (product.bytes_read, product.bytes_written) == (2 * 4 * 48 * 64, 4 * 48 * 48)
    assert product.operations == product.weighted == 2 * 48 * 48 * 64
    assert product.intensity == product.operations / product.nbytes
    assert (mapped.bytes_read, mapped.bytes_written) == (2 * 4 * 48 * 64, 4 * 48 * 64)
    assert mapped.operations == 2 * 48 * 64
    # An exponential is some fifteen additions more.
    assert mapped.weighted == mapped.operations + 15 * 48 * 64
    assert (total.bytes_read, total.bytes_written, total.operations) == (4 * 48 * 64, 4, 48 * 64)


def test_the_roofline_is_the_longer_of_two_times(kernels: list[explain_kernel.Found]) -> None:
    assert RATES.seconds(5e4, 1e6) == (2.5e-5, 1e-4)
    assert RATES.seconds(2e5, 1e6) == (2e-4, 1e-4)
    lines = explain_kernel.list_kernels(kernels, RATES).splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2", "3", "machine"]
    # 29,491 operations take 29.5 us; 33,792 bytes take 16.9 us.
    assert "operations" in lines[0]
    assert "29.5 us" in lines[0]
    assert "cache" in lines[2]
    assert ":5" in lines[0]


def test_a_kernel_is_picked_by_number_or_name(kernels: list[explain_kernel.Found]) -> None:
    name = kernels[1].kernel.arg.name
    assert explain_kernel.pick(kernels, "2") == (2, kernels[1])
    assert explain_kernel.pick(kernels, name) == (2, kernels[1])
    for wanted in ("0", "4", "moon"):
        with pytest.raises(ArgumentError, match="there is no such kernel.*--kernels"):
            explain_kernel.pick(kernels, wanted)
    with pytest.raises(ArgumentError, match=r"2 kernels are called.*one of the numbers 1, 2"):
        explain_kernel.pick([kernels[0], kernels[0]], kernels[0].kernel.arg.name)


def test_an_empty_schedule_is_python_too() -> None:
    assert explain_kernel.schedule_text(Schedule(), "map_1") == "map_1 = Schedule()"
