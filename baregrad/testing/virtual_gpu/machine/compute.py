"""The compute engine of a channel: launch descriptors, constant bank 0, and kernels that are PTX.

Caches are kept as the hardware keeps them, for as long as nobody says otherwise: code, descriptors
and constants that were rewritten without an invalidation are run as they were. Sources:
open-gpu-doc `classes/compute/clcbc0.h` (methods) and the headers that `descriptor_fields.py` names.
"""

from __future__ import annotations

import struct
from math import prod
from types import MappingProxyType

from baregrad.assemble.virtual_cubin import HEAD_NBYTES, read_head
from baregrad.base.bits import round_up
from baregrad.base.errors import BaregradError, FileFormatError
from baregrad.runtime.nvidia.abi import methods as m
from baregrad.runtime.nvidia.code.constant_bank import BANK_LAYOUTS, BankLayout
from baregrad.runtime.nvidia.code.descriptor_fields import DescriptorLayout, descriptor_layout
from baregrad.runtime.nvidia.code.launch_descriptor import Bank, GridLaunch, decode
from baregrad.runtime.nvidia.code.local_memory import STACK_RESERVED
from baregrad.testing.virtual_gpu.machine.engine import EngineChannel, Steps, always
from baregrad.testing.virtual_gpu.machine.faults import (
    ENGINE_EXCEPTION,
    MMU_FAULT,
    TIMED_OUT,
    GpuFault,
)
from baregrad.testing.virtual_gpu.ptx.errors import (
    KernelFault,
    KernelHang,
    OutOfBoundsAccess,
    WindowOverrun,
)
from baregrad.testing.virtual_gpu.ptx.program import PtxKernel

_KNOWN = frozenset(one.address for one in m.COMPUTE.values())
_INVALIDATIONS = frozenset(
    m.COMPUTE[name].address
    for name in ("INVALIDATE_SHADER_CACHES", "INVALIDATE_SHADER_CACHES_NO_WFI")
)
_BANKS = MappingProxyType(dict(zip((2, 3, 4, 5), BANK_LAYOUTS, strict=True)))
_ACTIONS = (
    m.PCAS_INVALIDATE_COPY_SCHEDULE, m.PCAS_PREFETCH_SCHEDULE,
    m.PCAS_INVALIDATE_PREFETCH_COPY_SCHEDULE,
)  # fmt: skip
_CLIENT = "GRAPHICS GPC0 GPCCLIENT_T1_0"
_WARP = 32


class ComputeUnit:
    """The engine's registers as one channel set them, and the grids that it starts."""

    def __init__(self, channel: EngineChannel) -> None:
        self.channel = channel
        self._state: dict[int, int] = {}

    def method(self, address: int, data: int) -> Steps:
        """Take a method; a launch leaves work that is done later."""
        table, caches = m.COMPUTE, self.channel.gpu.caches
        if address not in _KNOWN:
            raise GpuFault(ENGINE_EXCEPTION, f"the compute engine has no method {address:#x}")
        self._state[address] = data
        if address == table["WAIT_FOR_IDLE"].address:
            yield self.channel.idle
        elif address in _INVALIDATIONS:
            if address == table["INVALIDATE_SHADER_CACHES"].address:
                yield self.channel.idle
            if table["INVALIDATE_SHADER_CACHES"].read(data, "INSTRUCTION"):
                caches.code.clear()
            if table["INVALIDATE_SHADER_CACHES"].read(data, "CONSTANT"):
                caches.constants.clear()
        elif address == table["INVALIDATE_SKED_CACHES"].address:
            caches.descriptors.clear()
        elif address in (
            table["SEND_SIGNALING_PCAS2_B"].address, table["SEND_SIGNALING_PCAS_B"].address
        ):  # fmt: skip
            self._send(address, data)
            yield always

    def _send(self, method: int, data: int) -> None:
        by_action = method == m.COMPUTE["SEND_SIGNALING_PCAS2_B"].address
        if by_action != self.channel.gpu.row.launch_by_action:
            raise GpuFault(ENGINE_EXCEPTION, f"this generation has no method {method:#x}")
        if by_action:
            action = m.COMPUTE["SEND_SIGNALING_PCAS2_B"].read(data, "PCAS_ACTION")
            if action not in _ACTIONS:
                raise GpuFault(ENGINE_EXCEPTION, f"a launch by an action not known here, {action}")
            fresh = action != m.PCAS_PREFETCH_SCHEDULE
        else:
            if not m.COMPUTE["SEND_SIGNALING_PCAS_B"].read(data, "SCHEDULE"):
                return
            fresh = bool(m.COMPUTE["SEND_SIGNALING_PCAS_B"].read(data, "INVALIDATE"))
        address = self._state.get(m.COMPUTE["SEND_PCAS_A"].address, 0) << 8
        if fresh:
            self.channel.gpu.caches.descriptors.pop(address, None)
        self.channel.outstanding.append(Grid(self, address))

    def pair(self, name: str) -> int:
        """Return the 64 bits that two methods, the upper half first, were given."""
        first = m.COMPUTE[name].address
        return self._state.get(first, 0) << 32 | self._state.get(first + 4, 0)


class Grid:
    """A launch, and those that its descriptor says follow it, one after the other."""

    # Nothing but a wait keeps a grid from beginning before the one in front of it has ended.
    ordered = False

    def __init__(self, unit: ComputeUnit, address: int) -> None:
        self.stuck = False
        self._unit = unit
        self._address = address
        # Whether the grid begins before the one in front has ended, and the latch that notifies it
        # of that end, None for none.
        self._early = False
        self._latch: int | None = None
        gpu = unit.channel.gpu
        self._layout: DescriptorLayout = descriptor_layout(gpu.row.launch_descriptor[0])

    def run(self) -> bool:
        """Run one grid; return whether no other follows."""
        channel = self._unit.channel
        caches, space = channel.gpu.caches, channel.space
        data = caches.descriptors.get(self._address)
        if data is None:
            data = space.read(self._address, self._layout.nbytes, "SKED descriptor")
            caches.descriptors[self._address] = data
        try:
            launch = decode(data, self._layout)
        except FileFormatError as error:
            raise GpuFault(ENGINE_EXCEPTION, f"SKED: {error}") from error
        self._check_latch(data)
        self._launch(launch, data)
        if self.stuck:
            return False
        self._early = bool(self._flag(data, "early_exit"))
        self._latch = (
            self._flag(data, "arrive_latch") if self._flag(data, "arrive_latch_valid") else None
        )
        for release in launch.releases:
            grain = 16 if release.timestamp else 8
            if release.address % grain:
                raise GpuFault(ENGINE_EXCEPTION, f"a release at {release.address:#x}")
            channel.release(
                release.address, release.value, wide=True, stamped=release.timestamp
            )
        self._address = launch.next_address
        return not self._address

    def _flag(self, data: bytes, name: str) -> int:
        return self._layout.read(data, name) if name in self._layout.fields else 0

    def _check_latch(self, data: bytes) -> None:
        """A grid that begins early waits at the latch at which the one in front arrives.

        What it computes with is not in the caches of its multiprocessor from before that.
        """
        if not self._early:
            return
        self._unit.channel.gpu.machine.begun_early += 1
        waits = bool(self._flag(data, "wait_latch_valid"))
        if not waits or self._latch is None or self._flag(data, "wait_latch") != self._latch:
            raise GpuFault(
                ENGINE_EXCEPTION,
                f"a grid begins early and waits at latch {self._flag(data, 'wait_latch')} (valid: "
                f"{waits}), the one in front arrives at {self._latch}",
            )
        for name in ("latch_drops_data", "latch_drops_fetched"):
            if not self._flag(data, name):
                raise GpuFault(ENGINE_EXCEPTION, f"a grid begins early without {name}")

    def _launch(self, launch: GridLaunch, data: bytes) -> None:
        channel = self._unit.channel
        machine = channel.gpu.machine
        kernel = self._kernel(launch.program_address)
        checks = LaunchChecks(self._unit, launch, kernel, _BANKS[self._layout.version[0]])
        bank = self._bank(launch, data)
        checks.all(bank)
        machine.launched.append(kernel.name)
        if machine.note is not None:
            machine.note(f"    launch of {kernel.name}: grid {launch.grid}, block {launch.block}")
        base = checks.layout.parameter_base
        try:
            kernel.launch(
                channel.space.memory, launch.grid, launch.block,
                bank[base : base + kernel.parameter_nbytes], checks.dynamic_shared(bank),
                step_limit=machine.step_limit, early=self._early, cluster=launch.cluster,
            )  # fmt: skip
        except GpuFault as fault:
            fault.kernel, fault.program = kernel.name, launch.program_address
            raise
        except KernelFault as fault:
            if isinstance(fault, KernelHang) and machine.stall:
                self.stuck = True
                return
            raise _translated(fault, kernel.name, launch.program_address) from fault
        except BaregradError as error:
            raise GpuFault(ENGINE_EXCEPTION, str(error), kernel=kernel.name) from error

    def _kernel(self, address: int) -> PtxKernel:
        """Return the kernel at an address, as it was when it was fetched."""
        channel = self._unit.channel
        caches, space = channel.gpu.caches, channel.space
        found = caches.code.get(address)
        if found is None:
            head = space.read(address, HEAD_NBYTES, f"{_CLIENT} code")
            try:
                code = space.read(address, read_head(head), f"{_CLIENT} code")
                found = caches.kernel(code)
            except GpuFault:
                raise
            except BaregradError as error:
                raise GpuFault(
                    ENGINE_EXCEPTION, f"Illegal Instruction Encoding at {address:#x}: {error}"
                ) from error
            caches.code[address] = found
        return found

    def _bank(self, launch: GridLaunch, data: bytes) -> bytes:
        bank = next((one for one in launch.banks if one.number == 0), None)
        if bank is None:
            raise GpuFault(ENGINE_EXCEPTION, "a launch without constant bank 0")
        constants = self._unit.channel.gpu.caches.constants
        key = (bank.address, bank.nbytes)
        if key not in constants or self._layout.read(data, "bank_invalidate", 0):
            constants[key] = self._read_bank(bank)
        return constants[key]

    def _read_bank(self, bank: Bank) -> bytes:
        return self._unit.channel.space.read(bank.address, bank.nbytes, f"{_CLIENT} constants")


def _translated(fault: KernelFault, name: str, program: int) -> GpuFault:
    """Return what the hardware would report of a kernel's fault, and more."""
    code = ENGINE_EXCEPTION
    if isinstance(fault, OutOfBoundsAccess) and not isinstance(fault, WindowOverrun):
        code = MMU_FAULT
        if fault.address is not None and fault.address >> 47:
            # Not an address at all: the unit that translates never sees it.
            code = ENGINE_EXCEPTION
    elif isinstance(fault, KernelHang):
        code = TIMED_OUT
    text = f"kernel {name}: {type(fault).__name__}: {fault}"
    at_address = code == MMU_FAULT
    return GpuFault(
        code, text, kernel=name, program=program,
        address=fault.address if at_address else None, kind="FAULT_PDE" if at_address else "",
    )  # fmt: skip


class LaunchChecks:
    """What of a launch must agree with its kernel, its GPU and its channel."""

    def __init__(
        self, unit: ComputeUnit, launch: GridLaunch, kernel: PtxKernel, layout: BankLayout
    ) -> None:
        self._unit = unit
        self._launch = launch
        self._kernel = kernel
        self.layout = layout

    def all(self, bank: bytes) -> None:
        """Raise GpuFault for the first thing that is wrong."""
        for check in (self._bank, self._shape, self._shared, self._local, self._target):
            message = check(bank)
            if message:
                raise GpuFault(
                    ENGINE_EXCEPTION, f"{message}, kernel {self._kernel.name}",
                    kernel=self._kernel.name,
                )  # fmt: skip

    def _word(self, bank: bytes, name: str, form: str = "<I") -> int:
        offset = self.layout.offsets.get(name)
        return 0 if offset is None else int(struct.unpack_from(form, bank, offset)[0])

    def _triple(self, bank: bytes, name: str) -> tuple[int, int, int]:
        x, y, z = struct.unpack_from("<III", bank, self.layout.offsets[name])
        return x, y, z

    def dynamic_shared(self, bank: bytes) -> int:
        """Return the bytes of dynamic shared memory that bank 0 states."""
        return self._word(bank, "dynamic_shared_nbytes")

    def _bank(self, bank: bytes) -> str:
        wanted = self.layout.parameter_base + self._kernel.parameter_nbytes
        if len(bank) < wanted:
            return f"constant bank 0 has {len(bank)} bytes of {wanted}"
        for name, stated in (("grid", self._launch.grid), ("block", self._launch.block)):
            if self._triple(bank, name) != stated:
                return f"bank 0 says {name} {self._triple(bank, name)}, the descriptor {stated}"
        for name, method in (
            ("shared_window", "SET_SHADER_SHARED_MEMORY_WINDOW_A"),
            ("local_window", "SET_SHADER_LOCAL_MEMORY_WINDOW_A"),
        ):
            here, there = self._word(bank, name, "<Q"), self._unit.pair(method)
            if here != there or not there:
                return f"the {name} of bank 0 is {here:#x}, the channel's {there:#x}"
        return ""

    def _shape(self, bank: bytes) -> str:
        launch = self._launch
        if launch.cluster != (1, 1, 1) and self._triple(bank, "cluster_shape") != launch.cluster:
            return (
                f"bank 0 says clusters of {self._triple(bank, 'cluster_shape')} blocks, the"
                f" descriptor {launch.cluster}"
            )
        if max(launch.grid[1:]) > 65535:
            return f"a grid of {launch.grid} has too many blocks along y or z"
        registers = round_up(max(launch.register_count, 1), 8)
        threads = round_up(prod(launch.block), _WARP)
        if launch.register_count > 255 or registers * threads > 65536:
            return f"{launch.register_count} registers for each of {threads} threads are too many"
        return ""

    def _shared(self, bank: bytes) -> str:
        launch, row = self._launch, self._unit.channel.gpu.row
        wanted = self._kernel.shared_nbytes + self.dynamic_shared(bank)
        wanted += row.shared_reserved_nbytes
        if launch.shared_nbytes < wanted:
            return f"a block has {launch.shared_nbytes} bytes of shared memory of {wanted}"
        config = launch.shared_config
        sizes = (config.least_kib, config.target_kib, config.most_kib)
        if any(size not in row.shared_sizes_kib for size in sizes):
            return f"no multiprocessor can be set up with shared memory of {sizes} KiB"
        if not config.least_kib <= config.target_kib <= config.most_kib:
            return f"shared memory from {config.least_kib} to {config.most_kib} KiB, not between"
        if launch.shared_nbytes > config.least_kib * 1024:
            return f"{launch.shared_nbytes} bytes of shared memory of {config.least_kib} KiB"
        return ""

    def _local(self, bank: bytes) -> str:
        needed = self._kernel.program.local_nbytes
        if not needed:
            return ""
        launch, unit = self._launch, self._unit
        if launch.local_nbytes < needed + STACK_RESERVED:
            return f"a thread has {launch.local_nbytes} bytes of local memory of {needed} and more"
        model = unit.channel.gpu.model
        base = unit.pair("SET_SHADER_LOCAL_MEMORY_A")
        each = unit.pair("SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_A")
        warps = model.warps_per_unit * model.units_per_tpc
        if each < launch.local_nbytes * _WARP * warps:
            return f"a TPC has {each} bytes of local memory, too few for {launch.local_nbytes} each"
        total = each * model.tpcs_per_gpc * model.gpcs
        for _ in unit.channel.space.pieces(base, total, f"{_CLIENT} local memory", write=True):
            pass
        return ""

    def _target(self, bank: bytes) -> str:
        major, minor = divmod(self._launch.instruction_set, 16)
        version = self._unit.channel.gpu.model.sm_version
        if major != version >> 8 or minor > version & 0xFF:
            return f"code of sm_{major}{minor} on a GPU of version {version:#x}"
        return ""
