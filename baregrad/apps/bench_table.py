"""The figures of a benchmark as a table in Markdown, between two markers of a document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from baregrad.apps.bench_measure import DISTURBED
from baregrad.base.bits import human_seconds
from baregrad.base.errors import ArgumentError, FileFormatError

# Names of peers as they write them.
_NAMES = (("torch", "PyTorch"), ("numpy", "NumPy"))
# What follows a row's name where its share of the machine's copy rate is given.
COPY_SHARE = ", share of the copy rate"


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


def joined(
    older: Mapping[str, Any], newer: Mapping[str, Any], order: Sequence[str]
) -> dict[str, Any]:
    """Return the figures of two runs as one: rows of the newer before those of the older.

    `order` names the suite's rows; a share of the copy rate follows its row. Raises ArgumentError
    where the runs differ in anything that figures depend on.
    """
    for what in ("suite", "against", "quick", "versions"):
        _agree(what, older.get(what), newer.get(what))
    for what in ("cpu", "cores", "threads"):
        _agree(what, older["machine"].get(what), newer["machine"].get(what))
    rows = {row["name"]: row for row in (*older["rows"], *newer["rows"])}

    def place(name: str) -> tuple[int, str]:
        begins = [at for at, one in enumerate(order) if name in (one, f"{one}{COPY_SHARE}")]
        return begins[0] if begins else len(order), name

    return {**newer, "rows": [rows[name] for name in sorted(rows, key=place)]}


def _agree(what: str, older: object, newer: object) -> None:
    if older != newer:
        raise ArgumentError(
            f"figures of two runs that differ in their {what} are not one table",
            found=f"{older} before, {newer} now", hint="leave out --keep to begin anew",
        )


def render_table(records: Mapping[str, Any]) -> str:
    """Return the table of the rows that have a ratio, and a line on where they were measured.

    Rows that other processes disturbed are named beneath, without their figures.
    """
    peer = records["against"][0]
    name = dict(_NAMES).get(peer, peer)
    machine, versions = records["machine"], records["versions"]
    lines = [
        f"| work | ours | {name} | ratio (quartiles) | wanted |", "|---|---|---|---|---|",
    ]
    disturbed = _disturbed(records["rows"])
    for row in records["rows"]:
        if row["ratio"] is None or row["name"] in disturbed:
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
    if disturbed:
        names = "; ".join(disturbed)
        lines += ["", f"Not shown, since other processes took part of the machine: {names}."]
    return "\n".join(lines)


def _disturbed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of rows, and of their shares, that others disturbed."""
    own = [row["name"] for row in rows if (row.get("others_share") or 0.0) > DISTURBED]
    names = {name for one in own for name in (one, f"{one}{COPY_SHARE}")}
    return [row["name"] for row in rows if row["name"] in names]


def markers(suite: str) -> tuple[str, str]:
    """Return the lines that enclose a suite's table."""
    return f"<!-- figures of the suite {suite} -->", f"<!-- end of the suite {suite} -->"


def read_document(path: Path) -> str:
    """Return the text that a table is to be written into; raises FileFormatError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(
            f"{str(path)!r} is no document", found=str(error), wanted="a file of text"
        ) from error


def check_document(document: str, suite: str) -> None:
    """Raise FileFormatError for a document that has no place for a suite's table."""
    begin, end = markers(suite)
    if end not in document.partition(begin)[2]:
        raise FileFormatError("the document has no place for a table", wanted=f"{begin} and {end}")


def put_table(document: str, records: Mapping[str, Any]) -> str:
    """Return a document with the table between its markers; raises FileFormatError without them."""
    begin, end = markers(records["suite"])
    check_document(document, records["suite"])
    before, _, rest = document.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{render_table(records)}\n{end}{after}"
