"""`baregrad dtypes`: the dtypes, their limits and how they combine."""

from __future__ import annotations

import argparse

from baregrad.cli.table import format_table
from baregrad.dtypes import ALL, DType, finfo, promotion_table


def main(argv: list[str]) -> int:
    """Print the limits of every dtype, then the promotion table."""
    parser = argparse.ArgumentParser(
        prog="baregrad dtypes",
        description="Print every dtype with its limits, and the result of combining any two.",
    )
    parser.parse_args(argv)
    rows = [_limits(row) for row in ALL if row.bits]
    print(format_table(("dtype", "bits", "lowest", "highest", "epsilon", "use"), rows))
    print("\nWhat two dtypes give, and a dtype with a Python int or float ('-': an error):\n")
    print(promotion_table())
    return 0


def _limits(row: DType) -> tuple[str, ...]:
    use = "stored and cast only" if row.storage_only else "computed"
    if row.is_float:
        limits = finfo(row)
        return row.name, str(row.bits), f"{row.min:g}", f"{row.max:g}", f"{limits.eps:g}", use
    return row.name, str(row.bits), str(row.min), str(row.max), "", use
