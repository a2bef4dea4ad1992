"""Files of a trace: JSON lines, an allow-list for sandboxes, a timeline, and their comparison."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from baregrad.base.errors import FileFormatError
from baregrad.trace.decode import DriverCall
from baregrad.trace.submissions import Submission

# Numbers of lanes that are no threads of the system, beyond those that it gives.
_RING_LANES = 1 << 24


def as_row(call: DriverCall) -> dict[str, Any]:
    """Return a call as an object of JSON, understood and raw."""
    return {
        "name": call.name, "verb": call.verb, "subject": call.subject, "struct": call.struct,
        "fields": {one.name: [one.before, one.after] for one in call.changes},
        "answer": call.answer, "known": call.known, "raw": call.raw.as_json(),
    }  # fmt: skip


def allowlist(calls: Iterable[DriverCall], driver: str) -> dict[str, Any]:
    """Return the least that a sandbox must allow, by name and number."""
    nodes: set[str] = set()
    found: dict[str, dict[str, str]] = {kind: {} for kind in
                                        ("rm", "uvm", "other", "controls", "classes")}
    for call in calls:
        nodes.add(call.raw.node)
        if call.raw.call != "ioctl":
            continue
        request = call.raw.arguments[1]
        uvm = "nvidia-uvm" in call.raw.node
        other = call.verb.startswith("other")
        kind = "uvm" if uvm else "other" if other else "rm"
        found[kind][call.verb] = hex(request if uvm else request & 0xFF)
        if call.subject:
            group = "controls" if call.verb.endswith("CONTROL") else "classes"
            found[group][call.subject] = _subject_number(call)
    listed = {kind: dict(sorted(names.items())) for kind, names in found.items() if names}
    return {"driver": driver, "nodes": sorted(nodes - {"memory"}), **listed}


def _subject_number(call: DriverCall) -> str:
    data = next((one.before for one in call.raw.blocks if "OS" in one.struct), b"")
    at = 8 if call.verb.endswith("CONTROL") else 12
    return hex(int.from_bytes(data[at : at + 4], "little"))


def timeline(calls: Iterable[DriverCall], work: Iterable[Submission] = ()) -> dict[str, Any]:
    """Return calls and rings' work in Chrome's trace format, which Perfetto reads as well.

    Times are in us; those of work are when it was found in its ring, which has a lane of its own.
    """
    events: list[dict[str, Any]] = [
        {
            "name": call.subject or call.verb, "cat": call.verb, "ph": "X", "pid": call.raw.pid,
            "tid": call.raw.tid, "ts": call.raw.time * 1e6, "dur": call.raw.seconds * 1e6,
            "args": {"answer": call.answer, "library": call.raw.library,
                     **{one.name: str(one) for one in call.changes}},
        }
        for call in calls
    ]  # fmt: skip
    rings: dict[tuple[int, int], int] = {}
    for found in work:
        lane = rings.setdefault((found.pid, found.channel), _RING_LANES + len(rings))
        kernel = dict(found.work.values).get("kernel")
        events.append({
            "name": str(kernel or found.work.kind), "cat": "ring", "ph": "X", "pid": found.pid,
            "tid": lane,
            "ts": found.time * 1e6, "dur": 0,
            "args": {"what": found.work.text,
                     **{name: str(value) for name, value in found.work.values}},
        })  # fmt: skip
    events += [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": lane,
         "args": {"name": f"ring of channel {channel:#x}"}}
        for (pid, channel), lane in rings.items()
    ]  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def read_rows(path: str) -> list[dict[str, Any]]:
    """Return the calls of a file that `--json` wrote; raise FileFormatError for another file."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.startswith("{")]
        # A program without a call has a summary alone.
        if lines and not any(row.keys() & {"name", "work", "summary"} for row in rows):
            raise ValueError("no line of it is a call")
        rows = [row for row in rows if "name" in row]
        for row in rows:
            if not all(isinstance(one, str) for one in (
                row["name"], row["answer"], row["raw"]["call"],
            )):  # fmt: skip
                raise ValueError("a line is no call")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileFormatError(
            "not a trace", found=f"{path}: {error}", hint="write it with baregrad trace --json -o F"
        ) from error
    return rows


def compared(one: Sequence[dict[str, Any]], two: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield in what two traces differ: names, how often, answers, and where the order parts."""
    counts = [Counter(row["name"] for row in rows) for rows in (one, two)]
    for name in sorted(set(counts[0]) | set(counts[1])):
        before, after = counts[0][name], counts[1][name]
        if before != after:
            yield f"{'-' if not after else '+' if not before else ' '} {name}: {before} -> {after}"
    answers = [Counter((row["name"], row["answer"]) for row in rows
                       if row["raw"]["call"] == "ioctl") for rows in (one, two)]  # fmt: skip
    for name, answer in sorted(set(answers[0]) ^ set(answers[1])):
        if counts[0][name] and counts[1][name]:
            which = "first" if (name, answer) in answers[0] else "second"
            yield f"  {name}: = {answer} in the {which} alone"
    for at, (left, right) in enumerate(zip(one, two, strict=False)):
        if left["name"] != right["name"]:
            yield f"  the order parts at call {at + 1}: {left['name']} | {right['name']}"
            return
