"""Integer helpers: rounding to multiples and powers of two, exact division; what people read."""

from __future__ import annotations


def ceil_div(dividend: int, divisor: int) -> int:
    """Return the quotient rounded up, for a divisor of either sign."""
    return -(-dividend // divisor)


def round_up(value: int, multiple: int) -> int:
    """Return the least multiple of a positive `multiple` that is not below `value`."""
    return -(-value // multiple) * multiple


def round_down(value: int, multiple: int) -> int:
    """Return the greatest multiple of a positive `multiple` that is not above `value`."""
    return value // multiple * multiple


def is_power_of_two(value: int) -> bool:
    """Return whether `value` is 1, 2, 4, ..."""
    return value > 0 and value & (value - 1) == 0


def next_power_of_two(value: int) -> int:
    """Return the least power of two that is not below `value`; 1 for values below 1."""
    return 1 << max(value - 1, 0).bit_length()


def previous_power_of_two(value: int) -> int:
    """Return the greatest power of two that is not above a positive `value`."""
    return 1 << (value.bit_length() - 1)


def greatest_divisor(value: int, limit: int) -> int:
    """Return the greatest divisor of a positive `value` that is at most a positive `limit`."""
    for candidate in range(min(value, limit), 1, -1):
        if value % candidate == 0:
            return candidate
    return 1


def human_bytes(nbytes: float) -> str:
    """Return a byte count for people: `512 B`, `1.5 KiB`, `2.0 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def human_seconds(seconds: float) -> str:
    """Return a duration for people: `1.5 us`, `12.0 ms`, `3.2 s`, `4 min 05 s`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    if seconds < 1.0:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 60.0:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def human_count(count: int, noun: str) -> str:
    """Return how many of something there are for people: `1 kernel`, `2 kernels`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def human_text(text: str) -> str:
    """Return a line of another program's words as a terminal may show it, escapes spelled out."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode()
                   for one in text)  # fmt: skip
