"""`baregrad bench`: the same work in ours and in the peers, by turns in one process.

Results are compared before anything is timed. A ratio is the peer's time by ours, so more is
better; it is the median of the rounds, with their quartiles beside it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from types import MappingProxyType
from typing import Any

from baregrad.apps.bench_cpu import SUITES
from baregrad.apps.bench_machine import CoreUse, copy_rate, machine_record, version_record
from baregrad.apps.bench_measure import (
    DISTURBED,
    Array,
    Effort,
    Spread,
    Subject,
    Times,
    error_of,
    measure,
    ratios,
    warm_up,
)
from baregrad.apps.bench_rows import PEERS, Prepared, Row, Suite, effort_of, peer_module
from baregrad.apps.bench_table import (
    COPY_SHARE,
    check_document,
    joined,
    put_table,
    read_document,
    read_records,
    render_table,
)
from baregrad.base.bits import human_seconds
from baregrad.base.errors import ArgumentError, BaregradError, MissingDependency
from baregrad.base.options import options
from baregrad.base.places import check_writable
from baregrad.base.progress import ProgressBar
from baregrad.engine.session import Session, use_session
from baregrad.runtime.copy_probe import CopyProbe
from baregrad.runtime.cpu.host import detect_host

# Suites that take arguments of their own: modules with a `main`.
OTHER_SUITES = MappingProxyType({
    "gpu": "baregrad.apps.gpu_suite.main", "sweep": "baregrad.apps.sweep.main",
    "llm": "baregrad.apps.llm_suite.main",
})
COPY_BAR = 0.85
_COPY = "copy rate"
# Larger than any cache.
COPIED = 1 << 26
_COPIED_QUICK = 1 << 16


@dataclass(frozen=True, slots=True)
class Contest:
    """How a suite is run: against whom, on how many threads, how long."""

    suite: Suite
    against: tuple[str, ...]
    threads: int
    effort: Effort


def main(argv: Sequence[str]) -> int:
    """Run a suite; 1 where a result was wrong, or with --check where a bar was missed."""
    elsewhere = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    elsewhere.add_argument("--suite")
    named, rest = elsewhere.parse_known_args(argv)
    if named.suite in OTHER_SUITES:
        run: Callable[[Sequence[str]], int] = importlib.import_module(
            OTHER_SUITES[named.suite]
        ).main
        return run(rest)
    parser = _parser()
    chosen = parser.parse_args(argv)
    if chosen.keep and chosen.json is None:
        parser.error("--keep says what stays in a file: name it with --json")
    suite = SUITES[chosen.suite]
    if chosen.figures is not None:
        return _write_readme(read_records(chosen.figures), chosen.readme)
    rows = _chosen_rows(suite, chosen.only or ["*"])
    if chosen.list:
        print("\n".join(f"{row.name}  (bar {row.bar})" for row in rows))
        return 0
    host = detect_host()
    against = tuple(dict.fromkeys(chosen.against))
    contest = Contest(suite, against, chosen.threads or host.cores, effort_of(chosen.quick))
    for name in against:
        peer_module(name)
    _check_files(chosen, suite.name)
    records = _run(rows, contest)
    found = records["rows"]
    if chosen.json is not None:
        if chosen.keep and chosen.json.exists():
            records = joined(read_records(chosen.json), records, [row.name for row in suite.rows])
        chosen.json.write_text(json.dumps(records, indent=1) + "\n")
    if chosen.readme is not None:
        _write_readme(records, chosen.readme)
    wrong = [record["name"] for record in found if record.get("wrong")]
    if wrong:
        print(f"wrong results: {', '.join(wrong)}", file=sys.stderr)
    missed = [record["name"] for record in found if _is_missed(record)]
    print(f"{len(found)} rows, {len(missed)} below their bar, {len(wrong)} wrong")
    return 1 if wrong or (chosen.check and missed) else 0


def _chosen_rows(suite: Suite, names: Sequence[str]) -> list[Row]:
    """The rows that match one of the names, each of which matches some."""
    for name in names:
        if not any(fnmatch(row.name, name) for row in suite.rows):
            raise ArgumentError(
                f"no row of the suite {suite.name} is called {name!r}",
                wanted=", ".join(row.name for row in suite.rows),
            )
    return [row for row in suite.rows if any(fnmatch(row.name, name) for name in names)]


def _check_files(chosen: argparse.Namespace, suite: str) -> None:
    """Refuse files that cannot take figures before the time is spent that figures take."""
    if chosen.json is not None:
        check_writable(chosen.json, "figures cannot be written")
        if chosen.keep and chosen.json.exists():
            read_records(chosen.json)
    if chosen.readme is not None:
        check_document(read_document(chosen.readme), suite)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="baregrad bench", description=__doc__)
    parser.add_argument(
        "--suite", choices=sorted([*SUITES, *OTHER_SUITES]), default="cpu",
        help="default: cpu; `--suite NAME --help` says what each of the others takes",
    )
    parser.add_argument(
        "--against", type=_peers, default=("torch",), metavar="NAME,...",
        help=f"peers, of {', '.join(PEERS)}; the first one's ratio has the bar; default: torch",
    )
    parser.add_argument(
        "--only", action="append", metavar="GLOB", help="rows whose names match; several add up"
    )
    parser.add_argument("--threads", type=_count, help="threads of everyone; default: all cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all figures")
    parser.add_argument(
        "--keep", action="store_true",
        help="with --json: keep rows that the file has and this run has not, of the same machine",
    )
    parser.add_argument(
        "--readme", type=Path, metavar="FILE", help="a document to write the table into"
    )
    parser.add_argument(
        "--figures", type=Path, metavar="FILE",
        help="time nothing: take the figures that --json wrote, and print or write the table",
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes and two rounds: see that it works"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bar is missed")
    parser.add_argument("--list", action="store_true", help="name the rows and stop")
    return parser


def _peers(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(PEERS)}")
    return names


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number, 1 or more")
    return int(text)


def _write_readme(records: Mapping[str, Any], path: Path | None) -> int:
    """Write the table into a document, or print it."""
    if path is None:
        print(render_table(records))
    else:
        path.write_text(put_table(read_document(path), records), encoding="utf-8")
    return 0


def _run(rows: Sequence[Row], contest: Contest) -> dict[str, Any]:
    """Run the rows in a session of their own, printing each; return the record of all."""
    host = detect_host()
    width = max(len(row.name) + (len(COPY_SHARE) if row.traffic else 0) for row in rows)
    if "torch" in contest.against:
        peer_module("torch").set_num_threads(contest.threads)
    found: list[dict[str, Any]] = []
    settings = options.override(device=contest.suite.device, threads=contest.threads)
    with settings, use_session(Session()) as session:
        copied = _COPIED_QUICK if contest.effort.is_quick else COPIED
        rate = copy_rate(copied, contest.threads, contest.effort)
        machine = machine_record(host, contest.threads) | {"copy_bytes_per_s": rate}
        versions = version_record()
        if contest.effort.is_quick:
            print("quick: tiny sizes whatever the names say, few rounds, no bars")
        print(f"{host.name}, {contest.threads} threads, copies {rate / 1e9:.1f} GB/s; "
              + ", ".join(f"{name} {version}" for name, version in versions.items()))
        with ProgressBar(len(rows), "benchmarks") as bar:
            for row in rows:
                bar.advance(0, note=row.name)
                records = _attempt(row, contest, row.unfit(host))
                bar.close()
                for record in records:
                    print(_line(record, width, contest.against), flush=True)
                found += records
                bar.advance()
        session.close()
    return {
        "suite": contest.suite.name, "against": list(contest.against),
        "quick": contest.effort.is_quick, "machine": machine, "versions": versions, "rows": found,
    }


def _attempt(row: Row, contest: Contest, unfit: str) -> list[dict[str, Any]]:
    """Run one row; where it fails, the record says why, and the others still run."""
    try:
        return _run_row(row, contest, unfit)
    except BaregradError as error:
        failed = {"name": row.name, "bar": row.bar, "ratio": None, "failed": str(error)}
        return [failed | {"wrong": True}]


def _run_row(row: Row, contest: Contest, unfit: str) -> list[dict[str, Any]]:
    """Compare and time one row; a second record gives its share of the copy rate, if it has one."""
    bar = None if unfit or contest.effort.is_quick else row.bar
    now = datetime.now(UTC).isoformat(timespec="seconds")
    record: dict[str, Any] = {"name": row.name, "bar": bar, "ratio": None, "measured": now}
    if unfit:
        record["note"] = unfit
    try:
        prepared = row.prepare(contest.effort.is_quick)
    except MissingDependency as error:
        return [record | {"skipped": str(error)}]
    names = ["ours", *(name for name in contest.against if name in prepared.subjects)]
    subjects = {name: prepared.subjects[name](prepared.inputs) for name in names}
    runs = {name: subject.run for name, subject in subjects.items()}
    once = warm_up(runs)
    record |= _compare(row, prepared, subjects)
    probe = None
    if row.traffic:
        probe = CopyProbe(_COPIED_QUICK if contest.effort.is_quick else COPIED, contest.threads)
        runs[_COPY] = probe.run
        once |= warm_up({_COPY: probe.run})
    neighbours = CoreUse(os.cpu_count() or 1)
    times = measure(runs, once, contest.effort, lambda: CoreUse(os.cpu_count() or 1).share)
    record |= _record_times(times, names) | {"others_share": neighbours.share()}
    if probe is None:
        return [record]
    share = ratios(times[_COPY], times["ours"], row.traffic / probe.moved)
    return [record, _share_record(row, share, times, probe, contest.effort)]


def _compare(
    row: Row, prepared: Prepared, subjects: Mapping[str, Subject]
) -> dict[str, Any]:
    """Return errors against the exact result, or the first peer's where there is none."""
    outputs: dict[str, Array] = {name: one.outputs() for name, one in subjects.items()}
    others = [name for name in outputs if name != "ours"]
    if prepared.reference is not None:
        reference, source = prepared.reference(), "NumPy in float64"
    elif others:
        reference, source = outputs[others[0]], others[0]
    else:
        return {"compared_with": None}
    errors = {
        name: error_of(found, reference) for name, found in outputs.items() if name != source
    }
    wrong = not errors["ours"] <= row.tolerance
    return {
        "compared_with": source, "errors": errors, "tolerance": row.tolerance, "wrong": wrong,
    }


def _record_times(times: Mapping[str, Times], names: Sequence[str]) -> dict[str, Any]:
    """Return times, and the ratios to each peer; the first peer's is the row's."""
    ours = times["ours"]
    record: dict[str, Any] = {
        "rounds": len(ours.rounds),
        "times": {name: times[name].record() for name in names},
    }
    peers = {}
    for number, name in enumerate(names[1:]):
        spread = ratios(times[name], ours)
        peers[name] = {"ratio": spread.median, "spread": spread.record()}
        if not number:
            record |= {"peer": name, "ratio": spread.median, "spread": spread.record()}
    return record | {"peers": peers}


def _share_record(
    row: Row, share: Spread, times: Mapping[str, Times], probe: CopyProbe, effort: Effort
) -> dict[str, Any]:
    """Return the record of the rate at which a row moves its bytes by the machine's copy rate."""
    return {
        "name": row.name + COPY_SHARE, "bar": None if effort.is_quick else COPY_BAR,
        "ratio": share.median,
        "spread": share.record(), "rounds": len(times["ours"].rounds),
        "times": {name: times[name].record() for name in ("ours", _COPY)},
        "copy_bytes_per_s": probe.moved / times[_COPY].median,
    }


def _is_missed(record: Mapping[str, Any]) -> bool:
    bar, ratio = record["bar"], record["ratio"]
    return bar is not None and ratio is not None and ratio < bar


def _line(record: Mapping[str, Any], width: int, against: Sequence[str]) -> str:
    """Return one record as a line of text."""
    name = f"{record['name']:<{width}}"
    if "failed" in record:
        return f"{name}  FAILED: {record['failed']}"
    if "skipped" in record:
        return f"{name}  not run: {record['skipped']}"
    parts = [name]
    if record["ratio"] is None:
        parts.append(f"no peer of {', '.join(against)} does this")
    else:
        spread = record["spread"]
        low, high = spread["quartile_low"], spread["quartile_high"]
        parts.append(f"{record['ratio']:6.2f} [{low:.2f}..{high:.2f}]")
        bar = record["bar"]
        verdict = "below" if _is_missed(record) else "held"
        parts.append("no bar         " if bar is None else f"bar {bar:.2f} {verdict:<5}")
    parts += [f"{who} {human_seconds(one['median_s'])}" for who, one in record["times"].items()]
    if record.get("wrong"):
        parts.append(f"WRONG: error {record['errors']['ours']:.1e}")
    if "note" in record:
        parts.append(f"({record['note']})")
    others = record.get("others_share")
    if others is not None and others > DISTURBED:
        parts.append(f"(other processes took {others:.0%} of the cores)")
    return "  ".join(parts)
