"""Profiles: what ran is counted, timed, joined to lines and owners, and written."""

from __future__ import annotations

import contextvars
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import baregrad
from baregrad import Tensor
from baregrad.base.errors import ArgumentError
from baregrad.base.options import options, parse_environment
from baregrad.engine.session import Session, current_session, use_session
from baregrad.nn.float8 import float8_linear
from baregrad.profiling import trace_file
from baregrad.profiling.events import Events
from baregrad.profiling.limits import limits_of
from baregrad.profiling.records import ListRun
from baregrad.profiling.summary import utilisations
from baregrad.runtime.commands import Slot
from baregrad.runtime.cuda.device import CudaDevice
from baregrad.testing.virtual_gpu.machine.gpu_model import GpuModel
from baregrad.testing.virtual_gpu.virtual_port import VirtualPort
from tests.runtime.cuda.kernels import cuda, make_list, put
from tests.runtime.nvidia import device_tools as tools
from tests.runtime.nvidia.fake_port import FakePort

SIZE = 1 << 16


@pytest.fixture(autouse=True)
def session() -> Iterator[Session]:
    with use_session(Session()) as own:
        yield own
        own.close()


def step_and_input() -> tuple[Any, Tensor]:
    @baregrad.jit
    def step(x: Tensor) -> Tensor:
        return (x * 2 + 1).sum()

    return step, Tensor(np.ones(SIZE, np.float32))


def test_each_run_of_a_kernel_is_counted_with_its_work() -> None:
    step, x = step_and_input()
    with baregrad.profile() as profile:
        for _ in range(5):
            step(x)
    rows = profile.kernels()
    assert sum(row.calls for row in rows) == 5 * len({row.name for row in rows})
    # An element is read once each time, and little is written.
    read = sum(row.nbytes for row in rows)
    assert 5 * 4 * SIZE <= read <= 5 * 4 * SIZE * 1.1
    assert sum(row.flops for row in rows) >= 5 * 2 * SIZE
    assert all(row.total_ns > 0 for row in rows)
    (used,) = profile.utilisations()
    assert used.device == "CPU"
    assert used.covered_ns == sum(row.total_ns for row in rows) <= used.span_ns <= used.profile_ns
    assert used.between_ns >= 0 and used.idle_ns >= 0


def test_kernels_are_joined_to_the_lines_that_asked_for_them(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    with baregrad.profile(path, lines=True):
        step, x = step_and_input()
        for _ in range(3):
            step(x)
    source = Path(__file__).read_text().splitlines()
    (number,) = [at for at, line in enumerate(source, 1) if "return (x * 2 + 1).sum()" in line][:1]
    kernels = [row for row in json.loads(path.read_text())["traceEvents"]
               if row.get("cat") == "kernels"]
    assert kernels
    assert {row["args"]["line"] for row in kernels} == {f"{__file__}:{number}"}


def test_nothing_stands_in_front_of_a_device_that_is_not_profiled() -> None:
    step, x = step_and_input()
    step(x)
    device: Any = current_session().backend("CPU").device
    plain = set(vars(device))
    with baregrad.profile():
        assert "submit" in vars(device)
        step(x)
    assert set(vars(device)) == plain


def test_a_profile_within_another_leaves_it_all_there_was_to_see() -> None:
    step, x = step_and_input()
    step(x)
    device: Any = current_session().backend("CPU").device
    plain = set(vars(device))
    with baregrad.profile() as outer:
        step(x)
        with baregrad.profile() as inner, inner.span("inside"):
            for _ in range(3):
                step(x).item()
            held = Tensor(np.ones(2 * SIZE, np.float32)).realize()
        assert "submit" in vars(device)
        step(x)
    assert held.shape == (2 * SIZE,) and set(vars(device)) == plain
    calls = {row.name: row.calls for row in inner.kernels()}
    assert calls and set(calls.values()) == {3}
    assert {row.name: row.calls for row in outer.kernels()} == dict.fromkeys(calls, 5)
    for one in (outer, inner):
        assert [span.name for span in one._seen.recorder.spans].count("inside") == 1
        (peak,) = one._seen.memory.peaks()
        assert any(nbytes == 8 * SIZE and owner.endswith(" in inside")
                   for owner, nbytes, _ in peak.owners)
        assert [call.kind for call in one._seen.calls].count("copy out") == 3


def test_profiles_of_two_threads_may_overlap() -> None:
    step, x = step_and_input()
    step(x)
    device: Any = current_session().backend("CPU").device
    plain = set(vars(device))
    first, second = baregrad.profile(), baregrad.profile()
    first.__enter__()
    step(x)
    second.__enter__()
    step(x)
    first.__exit__(None, None, None)
    step(x)
    second.__exit__(None, None, None)
    assert {row.calls for row in first.kernels()} == {row.calls for row in second.kernels()} == {2}
    assert set(vars(device)) == plain
    with baregrad.profile() as third:
        step(x)
    assert {row.calls for row in third.kernels()} == {1}


def test_results_are_those_without_a_profile() -> None:
    step, x = step_and_input()
    wanted = step(x).item()
    with baregrad.profile():
        assert [step(x).item() for _ in range(3)] == [wanted] * 3


def test_the_peak_of_memory_is_told_by_owner() -> None:
    with baregrad.profile() as profile:
        kept = Tensor(np.ones(SIZE, np.float32)).realize()
        with profile.span("doubling"):
            more = [Tensor(np.ones(2 * SIZE, np.float32)).realize() for _ in range(3)]
        del more
        Tensor(np.ones(SIZE, np.float32)).realize()
    (peak,) = profile._seen.memory.peaks()
    assert peak.nbytes - peak.before == 4 * SIZE * 7
    owners = {owner.rpartition(" in ")[2]: rest for owner, *rest in peak.owners}
    assert owners["doubling"] == [4 * SIZE * 6, 3]
    assert kept.numpy().sum() == SIZE
    assert "7" not in owners and "at most" in profile.table()


def test_the_file_tells_memory_over_time_by_owner(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    with baregrad.profile(path) as profile:
        with profile.span("doubling"):
            more = [Tensor(np.ones(2 * SIZE, np.float32)).realize() for _ in range(3)]
        del more
        for line in range(40):
            with profile.span(f"small {line}"):
                Tensor(np.ones(line + 1, np.float32)).realize()
    rows = [row for row in json.loads(path.read_text())["traceEvents"] if row["ph"] == "C"]
    lanes: dict[str, list[int]] = {}
    for row in rows:
        lanes.setdefault(row["name"], []).append(row["args"]["bytes"])
    (largest,) = [lane for lane in lanes if lane.endswith(" in doubling")]
    assert max(lanes[largest]) == 3 * 8 * SIZE and lanes[largest][-1] == 0
    assert sum("memory of" in lane for lane in lanes) == 17
    assert "CPU memory of other owners" in lanes
    first, *_ = lanes["CPU memory"]
    ends = [values[-1] for lane, values in lanes.items() if "memory of" in lane]
    assert first + sum(ends) == lanes["CPU memory"][-1]


def test_spans_and_waits_of_every_thread_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    step, x = step_and_input()

    def work() -> None:
        with profile.span("in a thread"):
            step(x).item()

    with baregrad.profile(path) as profile:
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(work,), name="worker")
        thread.start()
        thread.join()
        with profile.span("in the main thread"):
            step(x)
    rows = json.loads(path.read_text())["traceEvents"]
    names = {row["tid"]: row["args"]["name"] for row in rows if row["name"] == "thread_name"}
    spans = {row["name"]: names[row["tid"]] for row in rows if row.get("cat") == "spans"}
    assert spans["in a thread"] == "worker"
    assert spans["in the main thread"] == "MainThread"
    calls = Counter(row["name"] for row in rows if row.get("cat") == "calls")
    assert calls["copy out"] == 1 and calls["run"] >= 2
    # What a span is about lies inside it.
    outer = next(row for row in rows if row["name"] == "in a thread")
    inner = next(row for row in rows if row["name"] == "copy out")
    assert outer["ts"] <= inner["ts"]
    assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


def test_processes_of_one_run_share_the_file(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import subprocess, sys\n"
        "import numpy as np\nfrom baregrad import Tensor\n"
        "if len(sys.argv) == 1:\n"
        "    subprocess.run([sys.executable, __file__, 'child'], check=True)\n"
        "(Tensor(np.ones(7, np.float32)) + 1).numpy()\n"
    )
    for name in ("p.json", "p.pftrace"):
        path = tmp_path / name
        path.write_bytes(b"something of another run")
        os.utime(path, (1, 1))
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, check=True,
            env={"PROFILE": str(path), "PATH": "", "BAREGRAD_CACHE_DIR": str(tmp_path / "cache"),
                 "PYTHONPATH": str(Path(baregrad.__file__).parents[1])},
        )  # fmt: skip
        assert done.stderr.count("written to") == 2 and f"{script}:6" in done.stderr
        if name == "p.json":
            whole = json.loads(path.read_text())
            kernels = {row["pid"] for row in whole["traceEvents"] if row.get("cat") == "kernels"}
            assert len(kernels) == 2 and whole["begunBy"] in kernels


def test_a_forked_child_joins_with_its_own_work(tmp_path: Path) -> None:
    script, path = tmp_path / "parent.py", tmp_path / "p.json"
    script.write_text(
        "import multiprocessing\nimport numpy as np\nfrom baregrad import Tensor\n"
        "def work(count):\n"
        "    (Tensor(np.ones(count, np.float32)) + 1).numpy()\n"
        "work(7)\n"
        "context = multiprocessing.get_context('fork')\n"
        "for function, words in ((work, (7,)), (print, ())):\n"
        "    child = context.Process(target=function, args=words)\n"
        "    child.start()\n"
        "    child.join()\n"
        "    assert child.exitcode == 0\n"
        "work(7)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True,
        env={"PROFILE": str(path), "PATH": "", "BAREGRAD_CACHE_DIR": str(tmp_path / "cache"),
             "PYTHONPATH": str(Path(baregrad.__file__).parents[1])},
    )  # fmt: skip
    # One that computes nothing is none of those who are told of.
    assert done.stderr.count("written to") == 2
    rows = json.loads(path.read_text())["traceEvents"]
    kernels = Counter(row["pid"] for row in rows if row.get("cat") == "kernels")
    assert sorted(kernels.values()) == [1, 2]


def test_a_child_forked_within_a_block_tells_its_own_work_alone(tmp_path: Path) -> None:
    script, path = tmp_path / "parent.py", tmp_path / "p.json"
    script.write_text(
        "import os, baregrad\nfrom baregrad import Tensor\n"
        "def work(count):\n"
        "    for _ in range(count): (Tensor([1.0] * 7) + 1).numpy()\n"
        "work(1)\n"
        f"with baregrad.profile({str(path)!r}) as profile:\n"
        "    with profile.span('both'):\n"
        "        work(3)\n"
        "        pid = os.fork()\n"
        "        work(1 if pid else 2)\n"
        "print(sum(one.calls for one in profile.kernels()), flush=True)\n"
        "if not pid: os._exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True,
        env={"PATH": "", "BAREGRAD_CACHE_DIR": str(tmp_path / "cache"),
             "PYTHONPATH": str(Path(baregrad.__file__).parents[1])},
    )  # fmt: skip
    assert sorted(done.stdout.split()) == ["2", "4"]
    rows = json.loads(path.read_text())["traceEvents"]
    kernels = Counter(row["pid"] for row in rows if row.get("cat") == "kernels")
    assert sorted(kernels.values()) == [2, 4]
    assert sum(row.get("name") == "both" for row in rows) == 2
    held = Counter(row["pid"] for row in rows if row["name"] == "CPU memory" and row["ph"] == "C")
    child, parent = sorted(kernels, key=lambda pid: kernels[pid])
    assert 0 < held[child] < held[parent]


def test_an_error_of_the_block_is_not_hidden_by_a_file_that_cannot_be_written(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    with pytest.raises(ZeroDivisionError) as found, baregrad.profile(folder / "p.json"):
        (folder / "p.json").unlink()
        folder.rmdir()
        _ = 1 / 0
    (note,) = found.value.__notes__
    assert "cannot be written" in note


def test_a_file_is_there_whole_or_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "p.json", tmp_path / "real.json"
    path.symlink_to(real)
    events = Events(1, "one", (), (), ())
    trace_file.begin_file(path)
    trace_file.join_file(path, events)
    before = real.read_bytes()
    assert path.is_symlink()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(trace_file.os, "fsync", full)
        with pytest.raises(ArgumentError, match="cannot be written"):
            trace_file.join_file(path, Events(2, "two", (), (), ()))
    assert real.read_bytes() == before and sorted(tmp_path.iterdir()) == [path, real]
    # Who waited for the lock of a file that was replaced takes the one that is there now.
    with trace_file._locked(real) as held:
        other = tmp_path / "other.json"
        other.write_bytes(before)
        waiting = threading.Thread(target=trace_file.join_file, args=(real, events))
        waiting.start()
        time.sleep(0.05)
        other.replace(real)
        assert os.fstat(held).st_nlink == 0
    waiting.join()
    assert len(trace_file.read_file(real)) == 1 and real.read_bytes() != before


def test_a_gpu_is_profiled_without_being_awaited(tmp_path: Path) -> None:
    from baregrad.runtime.nvidia.device import NvDevice

    device = NvDevice(port=FakePort(), timeout_s=5)
    try:
        kernel = device.load(tools.program("link64"))
        commands = device.command_list()
        for number in range(4):
            commands.exec(kernel, [Slot(0)], {"number": number}, label=f"link64 here.py:{number}")
        buffer = device.allocate(128)
        with baregrad.profile(tmp_path / "p.json") as profile:
            for _ in range(6):
                device.submit(commands, [buffer])
        rows = profile.kernels()
        assert {row.where: row.calls for row in rows} == {f"here.py:{n}": 6 for n in range(4)}
        (used,) = profile.utilisations()
        assert used.device == "NV" and 0 < used.covered_ns <= used.span_ns
    finally:
        device.close()


# Turing's launches write no times of their own: their lists run serially.
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90", "sm_120"])
def test_replays_on_gpus_of_each_generation_are_profiled(
    architecture: str, session: Session
) -> None:
    from baregrad.engine.backends import gpu_backend
    from baregrad.runtime.nvidia.device import NvDevice

    port = VirtualPort(models=(GpuModel(architecture),))
    with options.override(nv_port="virtual", device="NV"):
        session.adopt(gpu_backend("NV", NvDevice(port=port)))
        function = baregrad.jit(lambda x: (x * 2 + 1).sum(0))
        x = Tensor(np.ones((4, 32), np.float32))
        with baregrad.profile() as profile:
            results = [function(x).numpy() for _ in range(5)]
    assert all((one == 12).all() for one in results)
    (row,) = profile.kernels()
    assert row.calls == 5 and row.total_ns > 0


def test_the_table_compares_with_the_limits_of_the_machine() -> None:
    step, x = step_and_input()
    with baregrad.profile() as profile:
        step(x)
    head, *lines = profile.table().splitlines()
    assert head.split() == [
        "kernel", "calls", "total", "share", "GB/s", "TFLOP/s", "roofline", "line",
    ]
    assert any("%" in line and line.startswith("reduce") for line in lines)
    row = profile._seen.runs()[0]
    limits = limits_of("NV", "sm_90a")
    assert limits is not None
    flops, nbytes = row.facts[0].work({})
    # An H100 moves 3.35 TB/s (NVIDIA's datasheet).
    assert limits.least_ns(row.facts[0], {}) == pytest.approx(nbytes / 3350, rel=0.1)
    assert flops < nbytes


def test_the_command_runs_a_program_and_prints_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from baregrad.profiling.command import main

    script = tmp_path / "program.py"
    script.write_text(
        "import sys\nimport numpy as np\nfrom baregrad import Tensor\n"
        "print((Tensor(np.ones(9, np.float32)) * 3).numpy().sum(), sys.argv[1:])\n"
    )
    assert main(["-o", str(tmp_path / "p"), str(script), "--word"]) == 0
    out = capsys.readouterr().out
    assert "27.0 ['--word']" in out and f"{script}:4" in out
    assert "CPU: busy for" in out and f"written to {tmp_path / 'p'}" in out


def test_a_profile_is_made_once_and_where_it_can_be_written(tmp_path: Path) -> None:
    with baregrad.profile() as profile:
        pass
    with pytest.raises(ArgumentError, match="made once"), profile:
        pass
    with (
        pytest.raises(ArgumentError, match="cannot be written"),
        baregrad.profile(tmp_path / "nowhere" / "p.json"),
    ):
        pass


def test_kernels_of_gradients_have_the_line_of_their_value(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    weight = Tensor(np.ones((24, 40), np.float32), requires_grad=True)
    x = Tensor(np.ones((8, 24), np.float32))
    with baregrad.profile(path, lines=True):
        loss = (x @ weight).sin().sum()
        loss.backward()
        assert weight.grad is not None
        weight.grad.realize()
    source = Path(__file__).read_text().splitlines()
    (number,) = [at for at, line in enumerate(source, 1) if line.endswith("weight).sin().sum()")]
    kernels = [row for row in json.loads(path.read_text())["traceEvents"]
               if row.get("cat") == "kernels"]
    assert any("24x40" in row["name"] for row in kernels)
    assert {row["args"]["line"] for row in kernels} == {f"{__file__}:{number}"}


def test_gradients_by_a_rule_of_their_own_have_the_line_of_their_value(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    weight = Tensor(np.ones((16, 32), np.float32), requires_grad=True)
    x = Tensor(np.ones((8, 32), np.float32))
    with baregrad.profile(path, lines=True):
        loss = float8_linear(x, weight).sum()
        loss.backward()
        assert weight.grad is not None
        weight.grad.realize()
    source = Path(__file__).read_text().splitlines()
    (number,) = [at for at, line in enumerate(source, 1)
                 if line.endswith("        loss = float8_linear(x, weight).sum()")]
    kernels = [row for row in json.loads(path.read_text())["traceEvents"]
               if row.get("cat") == "kernels"]
    assert {row["args"]["line"] for row in kernels} == {f"{__file__}:{number}"}


def test_profile_asks_for_lines_unless_told_otherwise() -> None:
    assert parse_environment({"PROFILE": "x"})["lines"]
    assert not parse_environment({"PROFILE": "x", "BAREGRAD_LINES": "0"})["lines"]
    assert not parse_environment({})["lines"] and not options.notes_lines
    with options.override(lines=True):
        assert options.notes_lines


def test_a_device_clock_is_set_by_the_host_s() -> None:
    from baregrad.profiling.device_watch import DeviceClock

    class Drifting:
        name = "odd"

        def clock_ns(self) -> int:
            # Ten years ago, and a thousandth too fast.
            return round((time.perf_counter_ns() - origin) * 1.001) + 12345

    origin = time.perf_counter_ns() - 10**9
    device: Any = Drifting()
    clock = DeviceClock(device)
    time.sleep(0.05)
    there, here = device.clock_ns(), time.perf_counter_ns()
    time.sleep(0.05)
    clock.look_again(device)
    (found,) = clock.host_ns([there])
    assert abs(found - here) < 5_000_000


def test_a_profile_that_cannot_be_written_is_not_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from baregrad.profiling.command import main

    script = tmp_path / "program.py"
    script.write_text("from baregrad import Tensor\n(Tensor([1.0]) * 2).item()\n")
    with pytest.raises(ArgumentError, match="cannot be written"):
        main(["-o", str(tmp_path / "none" / "a.json"), str(script)])
    assert "written" not in capsys.readouterr().out
    assert main(["-o", str(tmp_path / "a.json"), str(script)]) == 0
    assert "written to" in capsys.readouterr().out


def test_a_list_is_timed_closely_now_and_then_and_else_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CudaDevice, "timed_every", 4)
    with cuda() as device:
        commands, _ = make_list(device, 1)
        table = [put(device, list(range(8))), device.allocate(64), device.allocate(128)]

        def profiled(runs: int) -> baregrad.Profile:
            with baregrad.profile() as profile:
                for _ in range(runs):
                    device.submit(commands, table, {"k": 1})
                    device.synchronize()
            return profile

        # As a graph from the fifth run on, which is the first that is timed as one.
        for count, closely in ((8, 6), (6, 3), (3, 2), (1, 1)):
            before = Counter(device.fake.calls)
            profile = profiled(count)
            calls = Counter(device.fake.calls) - before
            if count < 8:
                assert calls["cuGraphAddEventRecordNode"] == 0
            runs = profile._seen.runs()
            assert [run.measured for run in runs].count(True) == closely
            assert runs[0].measured
            # Each kernel is counted in each run, and lies within it, in order.
            assert {row.name: row.calls for row in profile.kernels()}["scale"] == 2 * count
            edges = [at for run in runs for pair in zip(run.begin_ns, run.end_ns, strict=True)
                     for at in pair]  # fmt: skip
            assert edges == sorted(edges)
            assert not any(run.own_ns for run in runs if not run.measured)
            said = f"CUDA: {closely} of {count} runs of lists timed command by command"
            assert (said in profile.table()) is (closely < count)
    assert not device.fake.complaints and not device.fake.left_behind


def test_time_is_between_the_commands_of_a_list_or_without_a_list() -> None:
    def run(*pieces: tuple[int, int]) -> ListRun:
        begins, ends = zip(*pieces, strict=True)
        return ListRun("GPU", (), {}, begins, ends, "here")

    # The second list begins while the first is under way; the third after 20 without any.
    runs = [run((100, 130), (140, 150), (160, 200)), run((152, 158), (205, 215)), run((235, 240))]
    (used,) = utilisations(runs, 500)
    assert (used.covered_ns, used.between_ns, used.span_ns) == (30 + 10 + 6 + 40 + 10 + 5, 19, 140)
    assert used.idle_ns == 20 and used.coverage == 101 / 140
    # What events of the profile took is not the device's.
    runs[0].own_ns, runs[2].own_ns = 8, 1
    (used,) = utilisations(runs, 500)
    assert (used.covered_ns, used.between_ns, used.own_ns, used.idle_ns) == (101, 10, 9, 20)
    assert used.coverage == 101 / 131


def test_what_a_table_measures_is_in_no_other_profile() -> None:
    step, x = step_and_input()
    step(x)
    with baregrad.profile() as outer:
        with baregrad.profile() as inner:
            step(x)
        assert "multiply_adds" not in inner.table()
    assert {row.name: row.calls for row in outer.kernels()} == {
        row.name: row.calls for row in inner.kernels()
    }
    assert not [call for call in outer._seen.calls if call.begin_ns > inner._seen.end_ns]
