"""What the driver refuses, and what kernels do wrong: one clear error, nothing leaked, a retry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import BaregradError, DriverError, OutOfMemory, UnsupportedDevice
from baregrad.base.options import options
from baregrad.runtime.commands import Slot
from baregrad.runtime.cuda import context
from baregrad.runtime.cuda.device import CudaDevice
from baregrad.runtime.cuda.driver import Driver, load_functions
from baregrad.runtime.cuda.list_runner import GRAPH_AFTER
from tests.runtime.cuda.fake_driver import FakeCuda
from tests.runtime.cuda.kernels import HANG, STEP, WILD, cuda, get, one_thread, put, scale
from tests.runtime.pretended_clock import PretendedClock


def test_no_driver() -> None:
    with pytest.raises(DriverError, match="was not found.*wanted libnothing.so.9.*install NVIDIA"):
        load_functions("libnothing.so.9")


def test_an_old_driver() -> None:
    # A library that has none of the functions, as an old driver has not all.
    with pytest.raises(DriverError, match="too old.*cuInit.*wanted CUDA 12.0.*release 525"):
        load_functions("libc.so.6")
    with pytest.raises(DriverError, match=r"too old: found CUDA 11\.4, wanted CUDA 12\.0"):
        Driver(FakeCuda(version=11040).functions)


def test_no_gpu() -> None:
    fake = FakeCuda(gpus=0)
    with pytest.raises(UnsupportedDevice, match="found no GPU.*CUDA_VISIBLE_DEVICES"):
        CudaDevice(functions=fake.functions)
    fake.fail_name["cuInit"] = 100
    with pytest.raises(DriverError, match="cuInit gave CUDA_ERROR_NO_DEVICE.*nvidia-smi"):
        CudaDevice(functions=fake.functions)


# Faults of kernels.


def lose(device: CudaDevice, use: Callable[[], Any], told: str) -> None:
    """The first wait tells what happened, later uses that the device is lost."""
    with pytest.raises(DriverError, match=told) as caught:
        use()
    assert "start the program again" in str(caught.value)
    for again in (use, device.synchronize, lambda: device.allocate(8)):
        with pytest.raises(DriverError, match="the device CUDA is lost: .*"):
            again()


def test_a_store_outside_every_buffer_names_its_kernel() -> None:
    with cuda() as device:
        counter = put(device, [0])
        commands = device.command_list()
        names = [("step", STEP), ("wild", WILD), ("step", STEP)]
        for name, text in names:
            commands.exec(device.load(one_thread(name, text)), [counter])
        device.submit(commands)
        lose(
            device, lambda: get(device, counter),
            "the kernel 'wild' read or wrote memory outside every buffer: "
            r"cuEventQuery gave CUDA_ERROR_ILLEGAL_ADDRESS \(700\)",
        )


@pytest.mark.parametrize("before", [0, 2 * GRAPH_AFTER])
def test_lists_timed_beside_a_fault_say_so_whenever_they_are_asked(before: int) -> None:
    with cuda() as device:
        counter = put(device, [0])
        step, wild = (device.load(one_thread(*one)) for one in (("step", STEP), ("wild", WILD)))
        good, bad = device.command_list(), device.command_list()
        for kernel in (step, step, step):
            good.exec(kernel, [counter])
        for kernel in (step, wild, step):
            bad.exec(kernel, [counter])
        for _ in range(before):
            device.start_timed(good).timeline()
        first, second, third = (device.start_timed(one) for one in (good, bad, good))
        assert first.timeline().labels == ("step",) * 3
        lose(device, second.timeline, "the kernel 'wild' read or wrote memory outside")
        for _ in range(2):
            with pytest.raises(DriverError, match="the device CUDA is lost"):
                third.timeline()


def test_a_label_with_a_line_is_told() -> None:
    with cuda() as device:
        counter = put(device, [0])
        commands = device.command_list()
        wild = device.load(one_thread("wild", WILD))
        commands.exec(wild, [counter], label="sum at train.py:12")
        device.submit(commands)
        with pytest.raises(DriverError, match=r"'wild' \(sum at train.py:12\) read") as caught:
            device.synchronize()
        assert caught.value.at == "train.py:12"


def wild_in_a_graph(device: CudaDevice) -> Any:
    """A list that is replayed as a graph, of which `wild` is the fourth kernel."""
    counter = put(device, [0])
    kernels = [device.load(scale()), device.load(one_thread("wild", WILD))]
    commands = device.command_list()
    for _ in range(3):
        commands.exec(kernels[0], [counter, counter], {"n": 1})
    # Slot 0 is 1 TiB below the counter at first, where `wild` writes what is there.
    commands.exec(kernels[1], [Slot(0)])
    return commands, counter


def test_a_fault_in_a_graph_names_what_it_may_have_been() -> None:
    with cuda() as device:
        commands, counter = wild_in_a_graph(device)
        shifted = counter.view(0, 8)
        shifted.address -= 1 << 40
        for k in range(GRAPH_AFTER + 1):
            device.submit(commands, [shifted], {"k": k})
        device.synchronize()
        assert "cuGraphLaunch" in device.fake.calls
        device.submit(commands, [counter], {"k": 1})
        lose(device, device.synchronize, r"one of 2 kernels \('scale', 'wild'\).*CUDA_BLOCKING=1")
    with cuda() as device, options.override(cuda_blocking=True):
        commands, counter = wild_in_a_graph(device)
        with pytest.raises(DriverError, match="the kernel 'wild' read or wrote"):
            for _ in range(GRAPH_AFTER + 2):
                device.submit(commands, [counter], {"k": 1})


def test_without_memory_operations_all_under_way_are_suspects() -> None:
    fake = FakeCuda()
    fake.memory_operations = False
    with cuda(fake) as device:
        counter = put(device, [0])
        device.run(device.load(one_thread("step", STEP)), [counter])
        assert get(device, counter) == [1]
        commands = device.command_list()
        commands.exec(device.load(scale()), [counter, counter], {"n": 1, "k": 0})
        commands.exec(device.load(one_thread("wild", WILD)), [counter])
        device.submit(commands)
        lose(device, device.synchronize, r"one of 2 kernels \('scale', 'wild'\)")


def test_an_endless_loop_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = PretendedClock(monkeypatch, context)
    clock.look_s = 0.1
    with cuda(timeout_s=10) as device:
        counter = put(device, [0])
        for name, text in (("step", STEP), ("hang", HANG), ("step", STEP)):
            device.run(device.load(one_thread(name, text)), [counter])
        with pytest.raises(DriverError, match="the kernel 'hang' does not end: found no progress "
                           "in 10 s; BAREGRAD_GPU_TIMEOUT"):
            get(device, counter)
        assert 10 <= clock.now_s < 11
        with pytest.raises(DriverError, match="lost: the kernel 'hang' does not end"):
            device.synchronize()
        fake, count = device.fake, len(device.fake.calls)
        # Frees would wait for the kernel, so nothing is freed before the process ends.
        device.close()
        assert len(fake.calls) == count
        for gpu in fake.gpus:
            gpu.context = None
            for base in list(gpu.memory.allocations):
                gpu.memory.free(base)
        fake.pinned.clear()


def test_progress_puts_the_deadline_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that takes longer than the deadline is waited for as long as kernels get done."""
    fake, clock = FakeCuda(), PretendedClock(monkeypatch, context)
    with cuda(fake, timeout_s=1) as device:
        counter = put(device, [0])
        kernel = device.load(one_thread("step", STEP))
        for _ in range(30):
            device.run(kernel, [counter])
        step, fake.pace = fake.step, 1
        begin_s = clock.now_s

        def slowly(stream: Any) -> None:
            # As if each command took so long: two a launch, the kernel and its mark.
            clock.sleep(0.3)
            step(stream)

        fake.step = slowly  # type: ignore[method-assign]
        device.synchronize()
        assert clock.now_s - begin_s >= 2 * 30 * 0.3
        assert get(device, counter) == [30]


# Every call fails once.


COUNT = 40


class Scenario:
    """Steps that may be done again; each leaves what the next ones need."""

    def __init__(self, fake: FakeCuda) -> None:
        self.fake = fake
        self.device: CudaDevice | None = None
        self.data = np.arange(COUNT)
        self.big = np.random.default_rng(0).integers(0, 256, (4 << 20) + 300_003, np.uint8)

    def open(self) -> None:
        self.device = CudaDevice(functions=self.fake.functions, threads=1)

    def allocate(self) -> None:
        assert self.device is not None
        self.source = self.device.allocate(8 * COUNT)
        self.target = self.device.allocate(8 * COUNT)
        self.large = self.device.allocate(self.big.nbytes)

    def load(self) -> None:
        assert self.device is not None
        self.scale = self.device.load(scale())
        self.shared = self.device.load(one_thread("step", STEP, 100 << 10, cluster=9))

    def copy(self) -> None:
        assert self.device is not None
        self.device.copy_in(self.source, self.data)
        self.device.copy_in(self.large, self.big)

    def pinned(self) -> None:
        assert self.device is not None
        array = self.device.pinned(8 * COUNT)
        array[:] = self.data.view(np.uint8)
        self.device.copy_in(self.source, array)
        self.device.copy_out(self.source, array)

    def record(self) -> None:
        assert self.device is not None
        self.commands = self.device.command_list()
        for _ in range(2):
            self.commands.exec(self.scale, [Slot(1), Slot(0)])
        self.commands.copy(Slot(1, 4 * COUNT), Slot(1), 4 * COUNT)
        self.commands.fill(Slot(1, 4 * COUNT), 8, 0)
        self.commands.exec(self.shared, [Slot(1, 4 * COUNT)])

    def run(self) -> None:
        assert self.device is not None
        self.device.submit(self.commands, [self.source, self.target], {"n": COUNT, "k": 1})

    def run_other(self) -> None:
        assert self.device is not None
        self.device.submit(self.commands, [self.source, self.target], {"n": COUNT // 2, "k": 2})

    def timed(self) -> None:
        assert self.device is not None
        values = {"n": COUNT - 2, "k": 3}
        self.device.submit(self.commands, [self.source, self.target], values, timed=True)

    def check(self) -> None:
        assert self.device is not None
        got = np.empty(COUNT, np.int64)
        self.device.copy_out(self.target, got)
        wanted = 2 * self.data + 3
        half = COUNT // 2
        wanted[half:] = wanted[:half]
        # Zeroed, and raised by each block of the cluster.
        wanted[half] = 9
        assert np.array_equal(got, wanted)
        back = np.empty_like(self.big)
        self.device.copy_out(self.large, back)
        assert np.array_equal(back, self.big)

    def close(self) -> None:
        assert self.device is not None
        self.device.close()

    STEPS = (
        open, allocate, load, copy, pinned, record, *(run,) * (GRAPH_AFTER + 1), run_other, timed,
        check, close,
    )  # fmt: skip


def calls_of_a_scenario() -> list[str]:
    fake = FakeCuda()
    scenario = Scenario(fake)
    for step in Scenario.STEPS:
        step(scenario)
    assert not fake.alive() and not fake.complaints and not fake.left_behind
    return list(fake.calls)


def places(names: list[str], each: int) -> list[int]:
    """The first `each` calls of each function."""
    seen: dict[str, int] = {}
    found = []
    for place, name in enumerate(names):
        seen[name] = seen.get(name, 0) + 1
        if seen[name] <= each:
            found.append(place)
    return found


@pytest.mark.parametrize("code,each", [
    (999, 1), (2, 1), pytest.param(999, 1000, marks=pytest.mark.slow),
])
def test_every_call_fails_once(code: int, each: int) -> None:
    names = calls_of_a_scenario()
    for place in places(names, each):
        name = names[place]
        if code == 2 and not any(part in name for part in ("Alloc", "Load", "Instantiate")):
            continue
        fake = FakeCuda()
        fake.fail_at[place] = code
        scenario = Scenario(fake)
        errors = []
        for step in Scenario.STEPS:
            try:
                step(scenario)
            except BaregradError as error:
                errors.append(error)
                if step is not Scenario.close:
                    step(scenario)
        where = f"{name}, call {place}"
        assert not fake.complaints, (where, fake.complaints[0])
        # A query that fails in passing may be asked again; the others are told, once.
        assert len(errors) == 1 or (name in QUIET and not errors), (where, errors)
        for error in errors:
            assert name.partition("_")[0] in str(error), (where, str(error))
            assert isinstance(error, OutOfMemory if code == 2 else DriverError), where
        left = fake.alive()
        if name == "cuCtxPopCurrent_v2":
            left = [one for one in left if one != "a current context"]
        if name in RELEASES:
            # What the driver would not take back stays with it, and nothing else.
            left = [one for one in left if one != "Function"]
            fake.left_behind = [one for one in fake.left_behind if one != "Function"]
            assert len(left) + len(fake.left_behind) <= 1, (where, left, fake.left_behind)
        else:
            assert not left and not fake.left_behind, (where, left, fake.left_behind)


QUIET = {"cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuEventQuery"}
RELEASES = {
    "cuDevicePrimaryCtxRelease_v2", "cuStreamDestroy_v2", "cuEventDestroy_v2", "cuMemFree_v2",
    "cuMemFreeHost", "cuModuleUnload", "cuGraphDestroy", "cuGraphExecDestroy",
    "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
}
