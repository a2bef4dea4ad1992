"""`baregrad bench --suite gpu`: every row beside PyTorch on the same GPU in the same run.

A row's values are compared with PyTorch's in float64 or float32 first. Then both are timed by
turns, replayed: ours by `jit`, PyTorch's as a CUDA graph, over sets of inputs that no cache holds.
Under lasting work a large product runs at the clock that the GPU's power allows, on either side;
with `--bursts` both rest between blocks of some 20 ms, which then have nearly full clocks.
Training steps are beside PyTorch's eager ones; where they are asked for by name, or by
`--against torch.compile`, beside what its compiler makes, which takes it minutes. A ratio is
PyTorch's time by ours, or our rate by that of a copy; more is better. Each side is a process of its
own: a row that fails or takes too long ends that row alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from baregrad.apps.bench_rows import peer_module
from baregrad.apps.beside.two_sides import RowTask, TwoSides
from baregrad.apps.gpu_suite.row import COMPILED, COPY, PYTORCH, GpuRow
from baregrad.apps.gpu_suite.rows import ROWS
from baregrad.base.bits import human_seconds
from baregrad.base.errors import ArgumentError
from baregrad.base.options import options
from baregrad.base.progress import ProgressBar

# Numbers whose copy is the measure of bandwidth.
COPIED, COPIED_TINY = 1 << 28, 1 << 12
# Seconds between bursts.
REST_S = 0.1
# So much longer a row may take that is tiny, since any machine may run it.
PATIENCE = 10.0


def main(argv: Sequence[str]) -> int:
    """Run the rows; 1 where a result was wrong or a row failed, or with --check a bar missed."""
    chosen = _parser().parse_args(argv)
    names = [part for text in chosen.rows or ["*"] for part in text.split(",")]
    rows = _chosen_rows(names, chosen.against)
    if chosen.list:
        print("\n".join(_listed(row) for row in rows))
        return 0
    # Whether PyTorch is there is known before anything is begun.
    peer_module("torch")
    peer_device = "cpu" if not chosen.device.startswith(("NV", "CUDA")) else "cuda"
    if options.nv_port == "virtual":
        peer_device = "cpu"
    rest_s = REST_S if chosen.bursts else 0.0
    records = _run(rows, chosen.device, peer_device, chosen.tiny, chosen.within, rest_s)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(records, indent=1) + "\n")
    found = records["rows"]
    failed = [one["name"] for one in found if one["verdict"] in ("WRONG", "FAILED")]
    missed = [one["name"] for one in found if one["verdict"] == "MISS"]
    held = sum(one["verdict"] == "PASS" for one in found)
    print(f"{len(found)} rows: {held} hold their bar, {len(missed)} do not, {len(failed)} failed")
    if failed:
        print(f"failed: {'; '.join(failed)}", file=sys.stderr)
    return 1 if failed or (chosen.check and missed) else 0


def _listed(row: GpuRow) -> str:
    """Return a row's name, its bar, and that of `mma.sync` where it is another one."""
    by_warps = "" if row.by_warps in (None, row.bar) else f"; by single warps {row.by_warps}"
    return f"{row.name}  (bar {row.bar}, of {row.against}{by_warps})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="baregrad bench --suite gpu", description=__doc__)
    parser.add_argument("--device", default=options.device or "NV", help="NV, CUDA or CPU")
    parser.add_argument(
        "--rows", action="append", metavar="GLOB,...", help="rows whose names match one of these"
    )
    parser.add_argument(
        "--against", choices=(PYTORCH, COMPILED, COPY), help="rows with bars of this alone"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all figures")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny sizes, on any device: see that all is right"
    )
    parser.add_argument(
        "--within", type=float, metavar="SECONDS", help="begin no row after so long"
    )
    parser.add_argument(
        "--bursts", action="store_true", help="let both sides rest between what is timed"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bar is missed")
    parser.add_argument("--list", action="store_true", help="name the rows and stop")
    return parser


def _chosen_rows(names: Sequence[str], against: str | None = None) -> list[GpuRow]:
    """The rows that match one of the names, each of which matches some.

    Those beside PyTorch's compiler match no name that matches everything, unless they are asked
    for by `against`.
    """
    for name in names:
        if not any(fnmatch(row.name, name) for row in ROWS):
            raise ArgumentError(
                f"no row of the suite gpu is called {name!r}",
                wanted=", ".join(row.name for row in ROWS),
            )
    rows = [row for row in ROWS if against in (None, row.against)]
    if against is None:
        rows = [row for row in rows if row.against != COMPILED or names != ["*"]]
    return [row for row in rows if any(fnmatch(row.name, name) for name in names)]


def _run(
    rows: Sequence[GpuRow], device: str, peer_device: str, is_tiny: bool, within_s: float | None,
    rest_s: float = 0.0,
) -> dict[str, Any]:
    """Run the rows, printing each; return the record of all."""
    width = max(len(row.name) for row in rows)
    begin = time.monotonic()
    found = []
    with TwoSides(device, peer_device) as contest, ProgressBar(len(rows), "benchmarks") as bar:
        for row in rows:
            bar.advance(0, note=row.name)
            if within_s is not None and time.monotonic() - begin > within_s:
                record: dict[str, Any] = {"name": row.name, "failed": "not begun: no time left"}
            else:
                record = contest.run(task_of(row, is_tiny, rest_s))
            target = contest.ours.facts.get("target", "")
            record |= _judged(row, record, None if is_tiny else row.bar_on(target))
            record["ended_s"] = time.monotonic() - begin
            found.append(record)
            bar.close()
            print(_line(record, width), flush=True)
            bar.advance()
        facts = {"ours": contest.ours.facts, "torch": contest.peer.facts}
    print(f"ours on {facts['ours']}, PyTorch on {facts['torch']}")
    return {"suite": "gpu", "tiny": is_tiny, "rest_s": rest_s, "sides": facts, "rows": found}


def task_of(row: GpuRow, is_tiny: bool, rest_s: float = 0.0) -> RowTask:
    """What both sides are asked for a row, with seconds of rest before each timed block."""
    question = {"module": "baregrad.apps.gpu_suite.rows", "row": row.name, "tiny": is_tiny}
    copied = (COPIED_TINY if is_tiny else COPIED) if row.against == COPY else 0
    limit_s = row.limit_s * (PATIENCE if is_tiny else 1.0)
    if options.beam:
        # A search takes its time before a row is timed; one without a limit gets an hour.
        limit_s += options.beam_seconds or 3600
    return RowTask(
        row.name, question, row.tolerance, limit_s=limit_s, peer_limit_s=row.peer_limit_s,
        copied=copied, is_brief=is_tiny, pause_s=rest_s,
    )


def _judged(row: GpuRow, record: Mapping[str, Any], bar: float | None) -> dict[str, Any]:
    """Return the ratio that has the bar, PyTorch's, and what they come to."""
    ours, theirs = record.get("ours_s"), record.get("torch_s")
    ratio = peer_ratio = theirs / ours if ours and theirs else None
    if row.against == COPY:
        rate = record.get("copy_bytes_per_s")
        ratio = record["traffic"] / ours / rate if ours and rate else None
    if record.get("wrong"):
        verdict = "WRONG"
    elif "failed" in record:
        verdict = "FAILED"
    elif bar is None or ratio is None:
        verdict = "no bar" if ratio is not None else "no peer"
    else:
        verdict = "PASS" if ratio >= bar else "MISS"
    return {
        "against": row.against, "bar": bar, "ratio": ratio, "torch_ratio": peer_ratio,
        "verdict": verdict,
    }


def _line(record: Mapping[str, Any], width: int) -> str:
    """Return one record as a line of text."""
    ratio = record["ratio"]
    parts = [
        f"{record['name']:<{width}}", "   -  " if ratio is None else f"{ratio:6.3f}",
        f"{record['verdict']:<6}", " -  " if record["bar"] is None else f"{record['bar']:.2f}",
    ]
    for who, label in (("ours", "ours"), ("torch", "PyTorch")):
        seconds = record.get(f"{who}_s")
        if seconds:
            parts.append(f"{label} {human_seconds(seconds)}{_rate(record, seconds)}")
    if record["against"] == COPY and record["torch_ratio"] is not None:
        parts.append(f"of PyTorch's {record['torch_ratio']:.2f}")
    if "error" in record:
        parts.append(f"error {record['error']:.1e}")
    if record.get("uncaptured"):
        parts.append("PyTorch's eager: it cannot be captured")
    if record.get("compile_s", 0.0) > 3.0:
        parts.append(f"first calls {record['compile_s']:.1f} s")
    for key, label in (("failed", ""), ("peer_failed", "PyTorch: ")):
        if key in record:
            parts.append(f"{label}{' '.join(record[key].split())[:300]}")
    return "  ".join(parts)


def _rate(record: Mapping[str, Any], seconds: float) -> str:
    """Return operations or else bytes of one call as a rate."""
    if record.get("flops"):
        return f" ({record['flops'] / seconds / 1e12:.1f} TFLOP/s)"
    if record.get("traffic"):
        return f" ({record['traffic'] / seconds / 1e9:.0f} GB/s)"
    return ""
