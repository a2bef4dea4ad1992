from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baregrad.base import bits

INTS = st.integers(-(10**30), 10**30)
POSITIVE = st.integers(1, 10**9)


@given(INTS, INTS.filter(bool))
def test_ceil_div_is_the_least_integer_above(dividend: int, divisor: int) -> None:
    quotient = bits.ceil_div(dividend, divisor)
    distance = quotient * divisor - dividend
    assert 0 <= (distance if divisor > 0 else -distance) < abs(divisor)


@given(INTS, POSITIVE)
def test_rounding_to_multiples(value: int, multiple: int) -> None:
    up = bits.round_up(value, multiple)
    down = bits.round_down(value, multiple)
    assert down <= value <= up
    assert up % multiple == down % multiple == 0
    assert up - down in (0, multiple)


@given(POSITIVE)
def test_powers_of_two(value: int) -> None:
    above = bits.next_power_of_two(value)
    below = bits.previous_power_of_two(value)
    assert below <= value <= above
    assert bits.is_power_of_two(above)
    assert bits.is_power_of_two(below)
    assert above == below if bits.is_power_of_two(value) else above == 2 * below


def test_powers_of_two_at_the_edge() -> None:
    assert [bits.next_power_of_two(value) for value in (-1, 0, 1, 2, 3)] == [1, 1, 1, 2, 4]
    assert not bits.is_power_of_two(0)
    assert not bits.is_power_of_two(-4)


@given(st.integers(1, 5000), st.integers(1, 100))
def test_greatest_divisor(value: int, limit: int) -> None:
    assert bits.greatest_divisor(value, limit) == max(
        number for number in range(1, limit + 1) if value % number == 0
    )


def test_figures_for_people() -> None:
    assert bits.human_bytes(512) == "512 B"
    assert bits.human_bytes(1536) == "1.5 KiB"
    assert bits.human_bytes(3 << 40) == "3.0 TiB"
    counts = [bits.human_count(count, "kernel") for count in (0, 1, 2)]
    assert counts == ["0 kernels", "1 kernel", "2 kernels"]
    assert bits.human_seconds(1.5e-6) == "1.5 us"
    assert bits.human_seconds(0.012) == "12.0 ms"
    assert bits.human_seconds(245) == "4 min 05 s"


def test_words_of_another_program_tell_a_terminal_nothing() -> None:
    assert bits.human_text("größe 3") == "größe 3"
    assert bits.human_text("a\x1b[2J\x9b\nb\udc80") == r"a\x1b[2J\x9b\nb\udc80"
