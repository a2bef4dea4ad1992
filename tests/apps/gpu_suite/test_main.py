"""`baregrad bench --suite gpu`: its rows at tiny sizes, what it asks for, and what it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from baregrad.apps import bench
from baregrad.apps.gpu_suite import main as suite
from baregrad.apps.gpu_suite.row import COMPILED, COPY, PYTORCH
from baregrad.apps.gpu_suite.rows import ROWS
from baregrad.base.errors import ArgumentError, MissingDependency
from baregrad.base.options import options

# What must hold, as it was asked for: a part of rows' names, how many there are, and the bar.
WANTED = (
    ("matmul 1024", 1, 0.9), ("matmul 2048", 1, 0.97), ("matmul 4096", 4, 0.97),
    ("matmul 8192", 1, 0.97), ("matmul 8192x", 1, 0.95), ("linear", 3, 0.95), ("gelu", 1, 1.15),
    ("matmul 16x", 1, 0.85), ("matmul 1x", 1, 0.95), ("matmul int8", 1, 0.9),
    ("matmul 64 of", 1, 0.7), ("fp32", 1, 0.8), ("matmul tf32", 1, 0.93),
    ("matmul fp16 4096", 1, 0.95), ("matmul fp8 8192", 2, 0.93),
    ("conv 3x3 64x256x56x56", 6, 0.85), ("conv 3x3", 9, 0.4), ("conv 1x1", 6, 0.4),
    ("conv 7x7", 3, 0.4), ("depthwise", 3, 1.0), ("attention", 5, 0.9), ("attention", 5, 0.8),
    ("of 2^28", 4, 0.97), ("column sum", 1, 0.97), ("16384x8192", 3, 0.92), ("transpose", 1, 0.92),
    ("gradient", 3, 1.2), ("randn", 1, 0.3), ("argmax", 1, 1.0), ("topk", 1, 1.0),
    ("cumsum", 1, 1.0), ("sort", 1, 0.4), ("embedding gradient", 1, 1.0), ("scatter-add", 1, 1.0),
    ("AdamW", 2, 1.0), ("chain of 1000", 1, 1.0), ("Llama", 1, 1.0), ("GPT-2", 1, 0.45),
    ("ResNet-50 training", 1, 0.4), ("matvec 14336x4096", 2, 0.92), ("matvec 14336x4096", 3, 0.85),
    ("8192 rows by 8 experts", 2, 0.9), ("compiled", 3, 0.9),
)
QUICK = (
    "matmul 4096 TN", "matmul 64 of*", "conv 3x3 stride 2*filter", "softmax 16384x8192",
    "cross entropy*", "argmax*", "randn*", "chain of 1000*", "AdamW*fp32", "Llama*512",
    "matvec*Q4_K", "*experts*Q4_K", "Llama 8B block*",
)
# And with the matrix products of single warps, which older GPUs have.
WANTED_BY_WARPS = (
    ("matmul 1024", 1, 0.5), ("matmul 2048", 1, 0.5), ("matmul 4096", 4, 0.5),
    ("matmul 8192", 2, 0.5), ("linear", 4, 0.45), ("matmul fp16", 1, 0.5), ("conv 3x3", 15, 0.4),
    ("conv 1x1", 6, 0.4), ("conv 7x7", 3, 0.4), ("attention", 5, 0.35), ("attention", 5, 0.3),
)
VIRTUAL = ("matmul 4096 NT", "rmsnorm*", "column sum*", "embedding*")


def run(words: list[str], folder: Path) -> list[dict[str, Any]]:
    path = folder / "figures.json"
    status = bench.main(["--suite", "gpu", "--tiny", "--json", str(path), *words])
    records: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    wrong = [one for one in records if one["wrong"] or "failed" in one or "peer_failed" in one]
    assert not wrong
    assert status == 0
    assert all(one["ours_s"] > 0 and one["torch_s"] > 0 and "error" in one for one in records)
    return records


def test_the_suite_is_what_was_asked_for() -> None:
    for wanted, target in ((WANTED, "sm_90a"), (WANTED_BY_WARPS, "sm_90a:sm_90")):
        for part, count, bar in wanted:
            found = [row for row in ROWS if part in row.name and row.bar_on(target) == bar]
            assert len(found) >= count, (part, target)
    copied = next(row for row in ROWS if row.against == COPY)
    assert copied.bar_on("sm_90a") == copied.bar_on("sm_80") == copied.bar
    assert {row.name for row in ROWS if row.against == COPY} == {
        "x+1 of 2^28", "copy of 2^28", "sum of 2^28", "column sum of 2^14x2^14",
        "chain of five of 2^28", "softmax 16384x8192", "rmsnorm 16384x8192",
        "layernorm 16384x8192", "transpose of 8192x8192",
        *[f"attention decode 64 of 8192 keys, 32 heads of 8 d128, {dtype}"
          for dtype in ("bf16", "fp8")],
        *[f"matvec 14336x4096 {kind}" for kind in ("bf16", "fp8", "Q8_0", "Q4_K", "Q6_K")],
    }  # fmt: skip
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_rows_of_every_family_are_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    records = run(["--device", "CPU", "--rows", ",".join(QUICK)], tmp_path)
    assert len(records) == len(QUICK)
    shares = {one["name"]: one["ratio"] for one in records if one["against"] == COPY}
    assert all(shares.values())
    told = capsys.readouterr().out
    assert "softmax 16384x8192" in told
    assert f"{len(QUICK)} rows: 0 hold their bar, 0 do not, 0 failed" in told


# Both sides compile a training step of ResNet-50.
@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_every_row_is_right(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    records = run(["--device", "CPU", "--rows", "*,*"], tmp_path)
    assert len(records) == len(ROWS)


@pytest.mark.slow
def test_rows_are_right_on_a_virtual_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    # The worker takes it from its environment.
    monkeypatch.setenv("BAREGRAD_NV_PORT", "virtual")
    with options.override(nv_port="virtual"):
        run(["--device", "NV", "--rows", ",".join(VIRTUAL)], tmp_path)


def record(**more: Any) -> dict[str, Any]:
    return {"name": "x", "wrong": False, "ours_s": 2e-3, "torch_s": 1e-3} | more


def test_a_ratio_is_pytorchs_time_by_ours_or_our_rate_by_a_copys() -> None:
    row, share = (next(one for one in ROWS if one.against == what) for what in (PYTORCH, COPY))
    found = suite._judged(row, record(), 0.5)
    assert (found["ratio"], found["verdict"]) == (0.5, "PASS")
    assert suite._judged(row, record(torch_s=9e-4), 0.5)["verdict"] == "MISS"
    # 100 bytes in 2 ms are 50 kB/s.
    copied = record(traffic=100, copy_bytes_per_s=100e3)
    found = suite._judged(share, copied, share.bar)
    assert (found["ratio"], found["torch_ratio"], found["verdict"]) == (0.5, 0.5, "MISS")


def test_what_failed_has_no_bar_to_hold() -> None:
    row = ROWS[0]
    found = suite._judged(row, {"name": "x", "failed": "took more than 20 s"}, row.bar)
    assert (found["ratio"], found["verdict"]) == (None, "FAILED")
    assert suite._judged(row, record(wrong=True), row.bar)["verdict"] == "WRONG"
    assert suite._judged(row, {"name": "x", "ours_s": 1.0}, row.bar)["verdict"] == "no peer"
    line = suite._line({"name": "x", "failed": "no\n luck"} | found, 5)
    assert line.endswith("no luck")


def test_rows_are_listed_and_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--suite=gpu", "--list", "--rows", "Llama 1B*,argmax*"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  (bar")[0] for line in lines] == [
        "argmax of 64x128256", "Llama 1B decode at 512", "Llama 1B decode at 512, fixed position",
    ]
    chosen = suite._chosen_rows(["*"])
    assert {row.name for row in ROWS if row not in chosen} == {
        row.name for row in ROWS if row.against == COMPILED
    }
    assert suite._chosen_rows(["*"], COMPILED) == suite._chosen_rows(["*compiled"])
    with pytest.raises(ArgumentError, match="no row of the suite gpu is called 'moon'"):
        bench.main(["--suite", "gpu", "--rows", "moon"])


def test_without_pytorch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependency, match=r"'torch' is needed.*pip install torch"):
        bench.main(["--suite", "gpu", "--tiny"])


def test_a_row_is_timed_by_turns_and_briefly_only_where_it_is_tiny() -> None:
    row = ROWS[0]
    assert suite.task_of(row, False).turns > 1
    assert not suite.task_of(row, False).is_brief
    assert suite.task_of(row, True).is_brief
    assert suite.task_of(row, False).pause_s == 0
    assert suite.task_of(row, False, suite.REST_S).pause_s == suite.REST_S > 0


def test_pytorch_may_take_minutes_where_it_compiles() -> None:
    slow, others = ([row for row in ROWS if (row.against == COMPILED) is told]
                    for told in (True, False))  # fmt: skip
    assert min(suite.task_of(row, False).peer_limit_s for row in slow) >= 180
    assert max(suite.task_of(row, False).peer_limit_s for row in others) <= 90


def test_a_row_waits_for_its_search() -> None:
    alone = suite.task_of(ROWS[0], False).limit_s
    with options.override(beam=4, beam_seconds=100):
        assert suite.task_of(ROWS[0], False).limit_s == alone + 100
    with options.override(beam=0, beam_seconds=100):
        assert suite.task_of(ROWS[0], False).limit_s == alone
