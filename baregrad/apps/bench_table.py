"""The figures of a benchmark as a table in Markdown, between two markers of a document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from baregrad.base.bits import human_seconds
from baregrad.base.errors import FileFormatError

# Names of peers as they write them.
_NAMES = (("torch", "PyTorch"), ("numpy", "NumPy"))


def read_records(path: Path) -> dict[str, Any]:
    """Return the figures that `baregrad bench --json` wrote; raises FileFormatError."""
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(
            f"{str(path)!r} holds no figures of a benchmark", found=str(error),
            wanted="what `baregrad bench --json FILE` writes",
        ) from error
    if not isinstance(records, dict) or not {"suite", "rows", "machine"} <= records.keys():
        raise FileFormatError(
            f"{str(path)!r} holds no figures of a benchmark", found=f"{records!r:.60}",
            wanted="what `baregrad bench --json FILE` writes",
        )
    return records


def render_table(records: Mapping[str, Any]) -> str:
    """Return the table of the rows that have a ratio, and a line on where they were measured."""
    peer = records["against"][0]
    name = dict(_NAMES).get(peer, peer)
    machine, versions = records["machine"], records["versions"]
    lines = [
        f"| work | ours | {name} | ratio (quartiles) | wanted |", "|---|---|---|---|---|",
    ]
    for row in records["rows"]:
        if row["ratio"] is None:
            continue
        spread = row["spread"]
        ours, other = (human_seconds(one["median_s"]) for one in list(row["times"].values())[:2])
        bar = "" if row["bar"] is None else f"{row['bar']:.2f}"
        lines.append(
            f"| {row['name']} | {ours} | {other} | {row['ratio']:.2f} "
            f"({spread['quartile_low']:.2f} to {spread['quartile_high']:.2f}) | {bar} |"
        )
    lines += [
        "",
        f"{machine['cpu']}, {machine['threads']} threads, which copies "
        f"{machine['copy_bytes_per_s'] / 1e9:.1f} GB a second (read and written); "
        f"{name} {versions.get(peer, '')}, eager. The second time of a share is that of the copy.",
    ]
    return "\n".join(lines)


def markers(suite: str) -> tuple[str, str]:
    """Return the lines that enclose a suite's table."""
    return f"<!-- figures of the suite {suite} -->", f"<!-- end of the suite {suite} -->"


def put_table(document: str, records: Mapping[str, Any]) -> str:
    """Return a document with the table between its markers; raises FileFormatError without them."""
    begin, end = markers(records["suite"])
    before, first, rest = document.partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise FileFormatError("the document has no place for a table", wanted=f"{begin} and {end}")
    return f"{before}{begin}\n{render_table(records)}\n{end}{after}"
