"""`baregrad bench --suite sweep`: random work beside PyTorch's, in search of cliffs.

Each row is one op or a few, of random sizes, dtypes and layouts, forward or with gradients, eager
or replayed (PyTorch's as a CUDA graph). Values are compared with PyTorch's in float64, and where
those are far, with what one more rounding in each of PyTorch's steps does; then both are timed by
turns. A ratio is PyTorch's time by ours, so more is better; a row that fails counts
as 0, one for which we launch nothing, as a view, has none. Each side is a process of its own. A row
is the same for the same seed, number and --largest.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from baregrad.apps.bench_rows import peer_module
from baregrad.apps.beside.sides import SideFailed
from baregrad.apps.beside.two_sides import PEER_LIMIT_S, RowTask, TwoSides
from baregrad.apps.sweep.cases import LARGEST, SweepCase, sweep_case
from baregrad.apps.sweep.plans import least_seconds
from baregrad.base.bits import human_seconds
from baregrad.base.options import options
from baregrad.base.progress import ProgressBar

# What is copied, and the products, whose rates bound every kernel: on a GPU and on a CPU.
_PROBES = ((1 << 27, 4096), (1 << 24, 1024))


def main(argv: Sequence[str]) -> int:
    """Run the rows; 1 where one failed or was wrong."""
    parser = _parser()
    chosen = parser.parse_args(argv)
    seed, rows = chosen.seed, range(chosen.rows)
    if chosen.only:
        try:
            seed, row = (int(part) for part in chosen.only.split("/"))
        except ValueError:
            parser.error("--only takes SEED/ROW: two whole numbers")
        rows = range(row, row + 1)
    if chosen.list:
        for row in rows:
            print(f"{seed}/{row}  {sweep_case(seed, row, chosen.largest).text}")
        return 0
    peer_module("torch")
    is_gpu = chosen.device.startswith(("NV", "CUDA"))
    peer_device = "cuda" if is_gpu and options.nv_port != "virtual" else "cpu"
    with TwoSides(chosen.device, peer_device, chosen.threads) as sides:
        sweep = _Sweep(sides, seed, chosen.largest, is_gpu, chosen.limit, chosen.brief)
        records = sweep.run(rows, chosen.within)
        worst = sorted(
            (one for one in records if one["ratio"] is not None), key=lambda one: one["ratio"]
        )[: chosen.worst]
        sweep.explain(worst)
        worst.sort(key=lambda one: one["ratio"] or 0.0)
        told = {"ours": sides.ours.facts, "torch": sides.peer.facts}
    print(_summary(records, worst, f"--device {chosen.device}" + (
        f" --largest {chosen.largest}" if chosen.largest != LARGEST else ""
    )))
    if chosen.json is not None:
        found = {"suite": "sweep", "seed": seed, "largest": chosen.largest, "sides": told}
        chosen.json.write_text(json.dumps(found | {"rows": records}, indent=1) + "\n")
    return 1 if any(one["ratio"] == 0 for one in records) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="baregrad bench --suite sweep", description=__doc__)
    parser.add_argument("--device", default=options.device or "CPU", help="default: CPU")
    parser.add_argument(
        "--seed", default=0, type=int, metavar="N", help="which rows are drawn; default: 0"
    )
    parser.add_argument("--rows", default=100, help="how many; default: 100", type=int, metavar="N")
    parser.add_argument("--only", metavar="SEED/ROW", help="one row, as the list of worst says")
    parser.add_argument(
        "--largest", default=LARGEST, type=int, metavar="N",
        help=f"elements of an array; default: {LARGEST}",
    )
    parser.add_argument(
        "--threads", default=0, type=int, metavar="N", help="of both sides; default: all cores"
    )
    parser.add_argument(
        "--worst", default=10, type=int, metavar="N", help="ratios told in full; default: 10"
    )
    parser.add_argument(
        "--limit", type=float, default=30.0, metavar="SECONDS", help="of our side for a row"
    )
    parser.add_argument(
        "--within", type=float, metavar="SECONDS", help="begin no row after so long"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all figures")
    parser.add_argument("--brief", action="store_true", help="one run each: see that all is right")
    parser.add_argument("--list", action="store_true", help="name the rows and stop")
    return parser


class _Sweep:
    """Rows of one seed on two sides, and the rates that bound them."""

    def __init__(
        self, sides: TwoSides, seed: int, largest: int, is_gpu: bool, limit_s: float,
        is_brief: bool,
    ) -> None:
        self.sides = sides
        self.is_brief = is_brief
        self.limit_s = limit_s
        self.seed = seed
        self.largest = largest
        self.is_gpu = is_gpu
        self._rates: dict[str, float] = {}

    def run(self, rows: Sequence[int], within_s: float | None) -> list[dict[str, Any]]:
        """Run the rows, printing each."""
        begin = time.monotonic()
        found = []
        with ProgressBar(len(rows), "rows") as bar:
            for row in rows:
                if within_s is not None and time.monotonic() - begin > within_s:
                    print(f"no time left for rows from {row} on")
                    break
                case = sweep_case(self.seed, row, self.largest, self.is_gpu)
                bar.advance(0, note=case.text)
                record = self._one(row, case, turns=1)
                bar.close()
                print(_line(record), flush=True)
                bar.advance()
                found.append(record)
        return found

    def _one(self, row: int, case: SweepCase, turns: int, **more: Any) -> dict[str, Any]:
        question = {
            "module": "baregrad.apps.sweep.cases", "seed": self.seed, "row": row,
            "largest": self.largest, "is_gpu": self.is_gpu, **more,
        }
        task = RowTask(
            case.text, question, case.tolerance, limit_s=self.limit_s, turns=turns,
            is_brief=self.is_brief,
        )
        record = self.sides.run(task)
        record |= {"row": f"{self.seed}/{row}", "is_eager": case.is_eager}
        ours, theirs = record.get("ours_s"), record.get("torch_s")
        record["ratio"] = theirs / ours if ours and theirs else None
        if record["wrong"] or "failed" in record:
            record["ratio"] = 0.0
        elif record.get("kernels") == []:
            # An empty replay beside PyTorch's is no measure of anything.
            record |= {"ratio": None, "is_idle": True}
        return record

    def explain(self, records: Sequence[dict[str, Any]]) -> None:
        """Time the rows again, longer, with their plans and their shares of the roofline."""
        for record in records:
            if not record.get("ours_s"):
                continue
            row = int(record["row"].partition("/")[2])
            again = self._one(
                row, sweep_case(self.seed, row, self.largest, self.is_gpu), turns=3, plans=True
            )
            record |= again
            if not again["ratio"]:
                continue
            try:
                rates = self._rate("copy"), self._rate(record["name"])
            except SideFailed as error:
                record["peer_failed"] = str(error)
                continue
            for kernel in record["kernels"]:
                kernel["least_s"] = least_seconds(kernel, *rates)
            whole = sum(one["launches"] * one["least_s"] for one in record["kernels"])
            record["roofline"] = whole / record["runs"] / record["ours_s"]

    def _rate(self, name: str) -> float:
        """Return the rate of a copy, or of a product of the dtype that a row's text names."""
        # PyTorch's products of narrow floats on a CPU are no measure of the machine.
        narrow = ("bfloat16", "float16") if self.is_gpu else ()
        dtype = next((one for one in narrow if one in name), "float32")
        key = "copy" if name == "copy" else dtype
        if key not in self._rates:
            count, size = _PROBES[0 if self.sides.peer.device == "cuda" else 1]
            peer = self.sides.peer
            if key == "copy":
                answer = peer.ask(PEER_LIMIT_S, what="copy", count=count)
                self._rates[key] = answer["bytes_per_s"]
            else:
                answer = peer.ask(PEER_LIMIT_S, what="product", size=size, dtype=dtype)
                self._rates[key] = answer["flops_per_s"]
        return self._rates[key]


def _line(record: Mapping[str, Any]) -> str:
    """Return one row as a line of text."""
    ratio = record["ratio"]
    parts = [f"{record['row']:>8}", "    -  " if ratio is None else f"{ratio:7.3f}"]
    for who, label in (("ours", "ours"), ("torch", "PyTorch")):
        if record.get(f"{who}_s"):
            parts.append(f"{label} {human_seconds(record[f'{who}_s'])}")
    parts.append(record["name"])
    if record.get("uncaptured"):
        parts.append("(PyTorch's eager: it cannot be captured)")
    if record.get("is_idle"):
        parts.append("(ours launches nothing: no ratio)")
    if record["wrong"]:
        parts.append(f"WRONG: error {record['error']:.1e}")
    elif "rounding_error" in record:
        parts.append(f"(error {record['error']:.1e}, of roundings {record['rounding_error']:.1e})")
    for key, label in (("failed", "FAILED: "), ("peer_failed", "PyTorch: ")):
        if key in record:
            parts.append(f"{label}{' '.join(record[key].split())[:300]}")
    return "  ".join(parts)


def _summary(
    records: Sequence[Mapping[str, Any]], worst: Sequence[Mapping[str, Any]], words: str
) -> str:
    """Return the worst rows with their kernels, those as a table, and means.

    Means are of all rows, of replayed and of eager ones.
    """
    lines = ["", f"the worst {len(worst)}:"]
    for record in worst:
        again = f"baregrad bench --suite sweep --only {record['row']} {words}"
        lines += ["", _line(record), f"    {again}", *_kernel_lines(record)]
    lines += ["", f"{'row':>14}  {'ratio':>6}  {'roofline':>8}  {'kernels':>7}"]
    lines += [*map(_cells, worst), ""]
    for what, is_meant in (("eager", (True,)), ("jit", (False,)), ("all", (False, True))):
        meant = [one for one in records if one["is_eager"] in is_meant]
        if meant:
            lines.append(f"{what}: {_mean_text(meant)}")
    return "\n".join(lines)


def _cells(record: Mapping[str, Any]) -> str:
    """Return one of the worst rows as a line of the table."""
    share = f"{record['roofline']:.0%}" if "roofline" in record else "-"
    launches = sum(kernel["launches"] for kernel in record.get("kernels", ()))
    ratio = record["ratio"] or 0.0
    return f"{record['row']:>14}  {ratio:6.3f}  {share:>8}  {launches:7d}  {record['name']}"


def _mean_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the geometric mean of rows that were timed, the worst of all, and what failed."""
    ratios = [one["ratio"] for one in records if one["ratio"]]
    failed = sum(one["ratio"] == 0 for one in records)
    mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else 0.0
    least = min((one["ratio"] for one in records if one["ratio"] is not None), default=0.0)
    idle = sum(one.get("is_idle", False) for one in records)
    skipped = len(records) - len(ratios) - failed - idle
    return (
        f"{len(records)} rows, geometric mean {mean:.3f}, worst {least:.3f}; {failed} failed or "
        f"were wrong, {skipped} PyTorch cannot do, {idle} launch nothing"
    )


def _kernel_lines(record: Mapping[str, Any]) -> list[str]:
    """Return what is known of a row's kernels."""
    if "roofline" not in record:
        return []
    lines = [f"    {record['roofline']:.0%} of what copies and products of this machine allow"]
    for kernel in record["kernels"]:
        least = ""
        if "least_s" in kernel:
            least = f", at least {human_seconds(kernel['least_s'])}"
        lines.append(
            f"    {kernel['name']}: {kernel['launches']} launches, {kernel['nbytes']} bytes, "
            f"{kernel['operations']} operations each{least}"
        )
        lines += [f"      {line}" for line in kernel.get("plan", ())]
    return lines

