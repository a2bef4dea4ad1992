"""The device CUDA over a pretended driver: memory, launches, graphs, copies, peers, the end."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import operator
import os
import random
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import (
    CompileError,
    DeviceError,
    DriverError,
    OutOfMemory,
    UnsupportedDevice,
)
from baregrad.base.options import options
from baregrad.program import Program
from baregrad.runtime import open_device
from baregrad.runtime.commands import Kernel, Slot
from baregrad.runtime.cuda import abi, event_cost, list_runner
from baregrad.runtime.cuda.device import CudaDevice
from baregrad.runtime.cuda.list_runner import GRAPH_AFTER
from tests.runtime.cuda.fake_driver import FakeCuda
from tests.runtime.cuda.kernels import STEP, cuda, get, make_list, one_thread, put, scale
from tests.runtime.nvidia import device_tools
from tests.runtime.nvidia.random_lists import random_lists
from tests.testing.virtual_gpu.virtual_tools import data_cubin

pytestmark = pytest.mark.usefixtures("earlier_objects_rest")


def test_structs_have_the_sizes_of_the_header() -> None:
    import ctypes

    for struct, nbytes in abi.STRUCT_NBYTES.items():
        assert ctypes.sizeof(struct) == nbytes, struct


def test_a_kernel_with_variables() -> None:
    with cuda() as device:
        assert device.architecture == "sm_90a"
        kernel = device.load(scale())
        source = put(device, list(range(200)))
        target = device.allocate(1600)
        device.run(kernel, [target, source], {"n": 200, "k": -5})
        assert get(device, target) == [2 * i - 5 for i in range(200)]
        # No blocks at all is no launch.
        device.run(kernel, [target, source], {"n": 0, "k": 0})
        assert get(device, target) == [2 * i - 5 for i in range(200)]
        assert device.fake.launches == [("scale", (4, 1, 1), (64, 1, 1), 0, 1)]


@pytest.mark.parametrize("version,name", [((7, 5), "sm_75"), ((8, 9), "sm_89"),
                                          ((10, 0), "sm_100a"), ((12, 0), "sm_120")])
def test_architectures(version: tuple[int, int], name: str) -> None:
    with cuda(FakeCuda(capability=version)) as device:
        assert device.architecture == name


def test_replays_become_a_graph_with_other_buffers_and_values() -> None:
    with cuda() as device:
        commands, model = make_list(device, 3)
        choose = random.Random(1)
        tables = [[put(device, [10 * t + i for i in range(8)]), device.allocate(64),
                   device.allocate(128)] for t in range(3)]
        for round_number in range(40):
            number = choose.randrange(3) if round_number % 3 else 0
            table, k = tables[number], choose.choice([1, 1, 2])
            device.submit(commands, table, {"k": k})
            wanted = model([10 * number + i for i in range(8)], k)
            assert (get(device, table[1]), get(device, table[2])) == wanted, round_number
        calls = device.fake.calls
        assert calls.count("cuGraphInstantiateWithFlags") == 1
        assert 20 < calls.count("cuGraphLaunch") <= 40 - GRAPH_AFTER
        # Other buffers change nodes; the same ones change none.
        assert calls.count("cuGraphExecKernelNodeSetParams_v2") > 0
        del calls[:]
        device.submit(commands, tables[0], {"k": 1})
        device.submit(commands, tables[0], {"k": 1})
        assert [name for name in calls if "SetParams" in name or "Launch" in name].count(
            "cuGraphLaunch") == 2
        assert len([name for name in calls if "SetParams" in name]) <= 12


def test_a_submit_with_the_same_buffers_makes_four_calls() -> None:
    with cuda() as device:
        commands, _ = make_list(device, 3)
        table = [put(device, list(range(8))), device.allocate(64), device.allocate(128)]
        for _ in range(GRAPH_AFTER + 2):
            device.submit(commands, table, {"k": 1})
        del device.fake.calls[:]
        device.submit(commands, table, {"k": 1})
        assert device.fake.calls == [
            "cuCtxPushCurrent_v2", "cuGraphLaunch", "cuStreamWriteValue32_v2",
            "cuCtxPopCurrent_v2",
        ]


@pytest.mark.parametrize("graphs", [True, False])
def test_random_lists_give_what_numpy_gives(
    graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # From the second submission on every list is a graph, however short; or none ever is.
    monkeypatch.setattr(list_runner, "GRAPH_AFTER", 1 if graphs else 100)
    if graphs:
        monkeypatch.setattr(list_runner, "GRAPH_US", 0.0)
        monkeypatch.setattr(list_runner, "SET_NODE_US", 0.0)
    code = data_cubin("device")
    with cuda() as device:
        def load(_: object, name: str) -> Kernel:
            return device.load(dataclasses.replace(device_tools.program(name), code=code))

        assert random_lists(device, 40, 5, load) > 40  # type: ignore[arg-type]
        assert ("cuGraphLaunch" in device.fake.calls) is graphs
        assert ("cuGraphExecMemcpyNodeSetParams" in device.fake.calls) is graphs
        assert ("cuGraphExecMemsetNodeSetParams" in device.fake.calls) is graphs


def test_a_launch_under_way_keeps_its_operands() -> None:
    with cuda() as device:
        kernel = device.load(one_thread("step", STEP))
        commands = device.command_list()
        for _ in range(10):
            commands.exec(kernel, [Slot(0)])
        counters = [put(device, [100 * i]) for i in range(5)]
        for i in range(30):
            # Nobody waits, so most of these are enqueued and not yet run.
            device.submit(commands, [counters[i % 5]])
        assert [get(device, one) for one in counters] == [[100 * i + 60] for i in range(5)]


def test_a_grid_without_blocks_is_left_out_of_a_graph() -> None:
    with cuda() as device:
        kernel = device.load(scale())
        commands = device.command_list()
        for _ in range(8):
            commands.exec(kernel, [Slot(1), Slot(0)])
        source, target = put(device, list(range(100))), put(device, [0] * 100)
        for n in [100, 3, 0, 50, 3, 0, 100, 1, 0, 7, 100, 64, 0, 65]:
            device.copy_in(target, np.zeros(100, np.int64))
            device.submit(commands, [source, target], {"n": n, "k": 1})
            assert get(device, target) == [2 * i + 1 if i < n else 0 for i in range(100)]
        assert "cuGraphLaunch" in device.fake.calls


def test_clusters_and_much_shared_memory() -> None:
    with cuda() as device:
        small = device.load(one_thread("step", STEP, 48 << 10))
        large = device.load(one_thread("step", STEP, 200 << 10, cluster=16))
        counter = put(device, [0])
        commands = device.command_list()
        for _ in range(4):
            commands.exec(small, [counter])
            commands.exec(large, [counter])
        for _ in range(GRAPH_AFTER + 2):
            device.submit(commands)
        assert get(device, counter) == [(GRAPH_AFTER + 2) * 4 * 17]
        assert "cuGraphLaunch" in device.fake.calls
        shapes = {(grid, shared, cluster) for _, grid, _, shared, cluster in device.fake.launches}
        assert shapes == {((1, 1, 1), 48 << 10, 1), ((16, 1, 1), 200 << 10, 16)}
        with pytest.raises(CompileError, match="more shared memory.*found 232449"):
            device.load(one_thread("step", STEP, (227 << 10) + 1))
    without = pytest.raises(UnsupportedDevice, match="no clusters")
    with cuda(FakeCuda(capability=(8, 0))) as device, without:
        device.load(one_thread("step", STEP, cluster=2))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("nbytes", [1, 255, 4096, 300_001, (9 << 20) + 5, 33 << 20])
def test_copies_of_ordinary_memory(nbytes: int, threads: int) -> None:
    with cuda(threads=threads) as device:
        data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
        buffers = [device.allocate(nbytes) for _ in range(2)]
        scratch = data.copy()
        device.copy_in(buffers[0], scratch)
        # The host's bytes are its own again at once.
        scratch[:] = 0
        device.copy_in(buffers[1], scratch)
        back = np.empty_like(data)
        device.copy_out(buffers[0], back)
        assert np.array_equal(back, data)
        device.copy_out(buffers[1], back)
        assert not back.any()


def test_many_small_copies_without_a_wait() -> None:
    with cuda() as device:
        buffer = device.allocate(8 * 1000)
        for i in range(1000):
            device.copy_in(buffer.view(8 * i, 8), np.array([i * i], np.int64))
        assert get(device, buffer) == [i * i for i in range(1000)]


def test_pinneds_are_copied_from_where_they_are() -> None:
    with cuda() as device:
        data = device.pinned(100_000)
        data[:] = np.arange(100_000) % 251
        buffer = device.allocate(100_000)
        device.copy_in(buffer, data)
        back = device.pinned(100_000)
        device.copy_out(buffer, back)
        assert np.array_equal(back, data)
        wide = data.view(np.int64)[10:20]
        device.copy_out(buffer.view(80, 80), wide)
        assert np.array_equal(back.view(np.int64)[10:20], wide)
        count = device.fake.calls.count("cuMemHostAlloc")
        del back, wide
        assert device.pinned(99_000).nbytes == 99_000
        assert device.fake.calls.count("cuMemHostAlloc") == count


def test_memory_is_used_again() -> None:
    with cuda() as device:
        sizes = random.Random(2)
        held = []
        for _ in range(3000):
            held.append(device.allocate(sizes.choice([8, 700, 5000, 300_000, 2_000_000])))
            if len(held) > 20:
                del held[sizes.randrange(20)]
        spans = sorted((one.address, one.address + one.nbytes) for one in held)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
        assert all(one.address % 512 == 0 for one in held)
        stats = device.memory_stats()
        assert stats.in_use_nbytes >= sum(one.nbytes for one in held)
        assert stats.peak_nbytes <= stats.reserved_nbytes <= 120 << 20
        del held[:]
        assert device.memory_stats().in_use_nbytes == 0
        device.trim()
        assert device.memory_stats().reserved_nbytes == 0


def test_out_of_memory_tries_what_is_not_used() -> None:
    with cuda() as device:
        held = device.allocate(200 << 20)
        with pytest.raises(OutOfMemory, match="no memory left.*CUDA_ERROR_OUT_OF_MEMORY"):
            device.allocate(100 << 20)
        del held
        assert device.allocate(100 << 20).nbytes == 100 << 20
        with pytest.raises(DeviceError, match="negative"):
            device.allocate(-1)


def test_kernels_and_graphs_go_when_nobody_refers_to_them() -> None:
    rounds = 12
    with cuda() as device:
        counter = put(device, [0])
        for _ in range(rounds):
            kernel = device.load(one_thread("step", STEP))
            commands = device.command_list()
            for _ in range(5):
                commands.exec(kernel, [counter])
            for _ in range(GRAPH_AFTER + 1):
                device.submit(commands)
        gc.collect()
        assert get(device, counter) == [rounds * 5 * (GRAPH_AFTER + 1)]
        device.load(one_thread("step", STEP))
        assert device.fake.calls.count("cuModuleUnload") >= rounds - 1
        assert device.fake.calls.count("cuGraphExecDestroy") >= rounds - 2


def test_timed() -> None:
    with cuda() as device:
        commands, model = make_list(device, 1)
        table = [put(device, list(range(8))), device.allocate(64), device.allocate(128)]
        timeline = device.submit(commands, table, {"k": 1}, timed=True)
        assert timeline is not None
        assert timeline.labels == ("scale", "copy", "scale", "fill")
        assert all(one > 0 for one in timeline.durations_ns())
        assert all(map(operator.le, timeline.end_ns[:-1], timeline.begin_ns[1:]))
        assert (get(device, table[1]), get(device, table[2])) == model(list(range(8)), 1)


def test_lists_that_were_started_give_their_times_in_order() -> None:
    with cuda() as device:
        commands, _ = make_list(device, 1)
        table = [put(device, list(range(8))), device.allocate(64), device.allocate(128)]
        started = [device.start_timed(commands, table, {"k": 1}) for _ in range(3)]
        last = started[-1].timeline()
        assert all(one.is_done for one in started)
        first, second = started[0].timeline(), started[1].timeline()
        for before, after in itertools.pairwise((first, second, last)):
            assert before.begin_ns[0] < before.end_ns[-1] <= after.begin_ns[0]


def test_lists_that_are_timed_as_graphs_run_and_give_their_times() -> None:
    with cuda() as device:
        commands, model = make_list(device, 1)
        values = list(range(8))
        before = -1
        for turn in range(3 * GRAPH_AFTER):
            # Other buffers each time, and runs without times between.
            table = [put(device, values), device.allocate(64), device.allocate(128)]
            if turn % 3 == 2:
                device.submit(commands, table, {"k": turn})
            else:
                runs = [device.start_timed(commands, table, {"k": turn}) for _ in range(3)]
                for run in reversed(runs) if turn % 2 else runs:
                    run.timeline()
                for run in runs:
                    timeline = run.timeline()
                    assert run.is_done and timeline.labels == ("scale", "copy", "scale", "fill")
                    assert before < timeline.begin_ns[0]
                    assert all(one > 0 for one in timeline.durations_ns())
                    edges = zip(timeline.end_ns, timeline.begin_ns[1:], strict=False)
                    assert all(itertools.starmap(operator.le, edges))
                    before = timeline.end_ns[-1]
            assert (get(device, table[1]), get(device, table[2])) == model(values, turn)
        # Beside those by which it was measured what an event takes.
        measured = 2 * (event_cost.STEPS + 1)
        assert device.fake.calls.count("cuGraphAddEventRecordNode") == 2 * 5 + measured
        # A list that goes leaves its events to the next, whether its last runs were read or not.
        made = []
        for is_read in (False, True, False, True):
            del commands
            runs.clear()
            run = None
            gc.collect()
            commands, _ = make_list(device, 1)
            for _ in range(2 * GRAPH_AFTER):
                run = device.start_timed(commands, table, {"k": 1})
                if is_read:
                    run.timeline()
            made.append(device.fake.calls.count("cuEventCreate"))
        assert made[1] == made[3]
        # Its graphs go with the next run of any list.
        del commands
        gc.collect()
        commands, _ = make_list(device, 1)
        device.start_timed(commands, table, {"k": 1}).timeline()
        counts = Counter(device.fake.calls)
        assert counts["cuGraphDestroy"] == counts["cuGraphCreate"]
    assert not device.fake.complaints and not device.fake.left_behind


def test_what_an_event_takes_is_told_apart_from_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with cuda() as device:
        fake = device.fake
        work_of = fake._node_work

        def slow(node: Any) -> Any:
            def run() -> bool:
                fake.ticks += 7
                return work()

            work = work_of(node)
            return run

        monkeypatch.setattr(fake, "_node_work", slow)
        device.context.entered()
        try:
            # An event is one tick, of a microsecond.
            assert event_cost.event_ns(device.context) == pytest.approx(1000, rel=1e-3)
        finally:
            device.context.left()
        # A graph's times say how much of them that came to, those of a whole list have none.
        commands, _ = make_list(device, 1)
        table = [put(device, list(range(8))), device.allocate(64), device.allocate(128)]
        for _ in range(8):
            closely = device.start_timed(commands, table, {"k": 1}).timeline()
        assert closely.own_ns == pytest.approx(1000 * len(closely.begin_ns), rel=1e-2)
        whole = device.start_timed(commands, table, {"k": 1}, whole=True).timeline()
        assert len(whole.begin_ns) == 1 and not whole.own_ns
    assert not fake.complaints and not fake.left_behind


def test_two_gpus_and_copies_between_them() -> None:
    fake = FakeCuda(gpus=2)
    first = CudaDevice("CUDA", 0, functions=fake.functions)
    second = CudaDevice("CUDA:1", 1, functions=fake.functions)
    kernel = first.load(one_thread("step", STEP))
    source, target = put(first, [5]), put(second, [0])
    for _ in range(3):
        first.run(kernel, [source])
        second.copy_peer(target, source)
        # Later work of the source's device must wait for the copy.
        first.copy_in(source, np.array([5], np.int64))
        assert get(second, target) == [6]
    assert get(second, second.duplicate(source)) == get(first, first.duplicate(source)) == [5]
    with pytest.raises(DeviceError, match="as many bytes"):
        second.copy_peer(target, first.allocate(16))
    with pytest.raises(DeviceError, match="two devices of CUDA"):
        first.copy_peer(target, source)
    with pytest.raises(DeviceError, match="another device"):
        first.copy_in(target, np.zeros(1))
    assert fake.gpus[0].peers == {1}
    second.close()
    first.close()
    assert not fake.alive() and not fake.complaints and not fake.left_behind
    with pytest.raises(UnsupportedDevice, match="no GPU for CUDA:2.*2 GPUs.*0 to 1"):
        CudaDevice("CUDA:2", 2, functions=fake.functions)
    assert not fake.alive()


def test_threads_share_a_device() -> None:
    with cuda() as device:
        kernel = device.load(one_thread("step", STEP))
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                counter = put(device, [number])
                commands = device.command_list()
                for _ in range(3):
                    commands.exec(kernel, [Slot(0)])
                for turn in range(1, 9):
                    device.submit(commands, [counter])
                    if turn % 4 == 0:
                        assert get(device, counter) == [number + 3 * turn]
            except BaseException as error:  # noqa: BLE001  told below
                failures.append(error)

        threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures[0]


def test_whose_context_was_current_stays_so() -> None:
    fake = FakeCuda(gpus=2)
    first = CudaDevice("CUDA", 0, functions=fake.functions)
    second = CudaDevice("CUDA:1", 1, functions=fake.functions)
    # As another library of the process does.
    first.context.entered()
    stack = list(fake.stacks[threading.get_ident()])
    kernel = second.load(one_thread("step", STEP))
    counter = put(second, [1])
    second.run(kernel, [counter])
    assert get(second, counter) == [2]
    second.copy_peer(counter, put(first, [7]))
    second.submit(second.command_list(), timed=True)
    second.synchronize()
    second.close()
    assert fake.stacks[threading.get_ident()] == stack
    first.context.left()
    first.close()
    assert not fake.alive() and not fake.complaints


def test_closed_is_closed() -> None:
    fake = FakeCuda()
    device = CudaDevice(functions=fake.functions)
    buffer = put(device, [1])
    kernel = device.load(one_thread("step", STEP))
    pinned = device.pinned(64)
    device.run(kernel, [buffer])
    device.close()
    device.close()
    assert not fake.alive() and not fake.left_behind and not fake.complaints
    count = len(fake.calls)
    for use in (
        lambda: device.allocate(8), lambda: get(device, buffer), lambda: device.load(scale()),
        lambda: device.run(kernel, [buffer]), device.synchronize, lambda: put(device, [1]),
    ):
        with pytest.raises(DeviceError, match="is closed"):
            use()
    held = [buffer, kernel, pinned]
    pinned = None
    held.clear()
    gc.collect()
    assert len(fake.calls) == count


def test_a_forgotten_device_is_closed() -> None:
    fake = FakeCuda()
    device = CudaDevice(functions=fake.functions)
    put(device, [1])
    del device
    gc.collect()
    assert not fake.alive()


def test_many_devices_leave_nothing() -> None:
    fake = FakeCuda()
    program = one_thread("step", STEP)
    for i in range(1000):
        with cuda(fake) as device:
            if i % 250 == 0:
                counter = put(device, [i])
                device.run(device.load(program), [counter])
                assert get(device, counter) == [i + 1]
    assert not fake.alive()


def test_a_forked_child_is_told() -> None:
    with cuda() as device:
        buffer = put(device, [1])
        child = os.fork()
        if not child:
            # In the child nothing of the parent's may be called or freed.
            code = 1
            try:
                count = len(device.fake.calls)
                try:
                    get(device, buffer)
                except DriverError as error:
                    code = 0 if "fork" in str(error) else 2
                del buffer
                device.close()
                gc.collect()
                code = code if len(device.fake.calls) == count else 3
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert get(device, buffer) == [1]


def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from baregrad.runtime.cuda import driver

    fake = FakeCuda(gpus=2)
    monkeypatch.setattr(driver, "load_functions", lambda: fake.functions)
    for name, ordinal in (("CUDA", 0), ("CUDA:0", 0), ("CUDA:1", 1)):
        device = open_device(name)
        assert device.name == name
        assert fake.gpus[ordinal].context is not None
        assert fake.gpus[1 - ordinal].context is None
        device.close()
    for name in ("CUDA:x", "CUDA:-1", "CUDA:²"):
        with pytest.raises(DeviceError, match="number"):
            open_device(name)


@pytest.mark.parametrize("code", [b"", b"\x7fELF\x02\x01" + bytes(20), b"PTX" * 40])
def test_code_that_is_cut_short_is_not_given_to_the_driver(code: bytes) -> None:
    good = one_thread("step", STEP)
    with cuda() as device:
        for part in (code, good.code[:-1]):
            with pytest.raises(CompileError, match="no whole cubin"):
                device.load(replaced(good, code=part))
        assert "cuModuleLoadData" not in device.fake.calls
        with pytest.raises(CompileError, match="CUDA_ERROR_NOT_FOUND"):
            device.load(replaced(good, entry="steps"))


def replaced(program: Program, **changes: object) -> Program:
    return dataclasses.replace(program, **changes)  # type: ignore[arg-type]


def test_blocking_waits_after_each_kernel() -> None:
    with cuda() as device, options.override(cuda_blocking=True):
        commands, _ = make_list(device, 3)
        table = [put(device, list(range(8))), device.allocate(64), device.allocate(128)]
        for _ in range(GRAPH_AFTER + 2):
            device.submit(commands, table, {"k": 1})
        assert "cuGraphLaunch" not in device.fake.calls
