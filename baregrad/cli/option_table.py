"""`baregrad options`: every option, from the one table that defines them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from baregrad.base.options import Option, Options, options
from baregrad.cli.table import format_table


def option_table(current: Options) -> str:
    """Return the table of options; `now` is filled where `current` differs from the default."""
    rows = [
        (
            row.variable,
            row.describe_allowed(),
            _show(row.default),
            "" if getattr(current, row.name) == row.default else _show(getattr(current, row.name)),
            _help(row),
        )
        for row in Options.table()
    ]
    return format_table(("variable", "values", "default", "now", "meaning"), rows)


def main(argv: list[str]) -> int:
    """Print the table of options."""
    parser = argparse.ArgumentParser(
        prog="baregrad options",
        description="Print every option: the variable that sets it, what it takes, its value now.",
    )
    parser.parse_args(argv)
    print(option_table(options))
    return 0


def _help(row: Option[Any]) -> str:
    shorts = [*row.aliases, *(f"{flag}=1" for flag in row.flags)]
    return f"{row.help} Also: {', '.join(shorts)}." if shorts else row.help


def _show(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    # An empty path prints as the current folder, which it does not mean.
    return "(empty)" if value == Path() else str(value) or "(empty)"
