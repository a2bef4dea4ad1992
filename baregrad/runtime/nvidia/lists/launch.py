"""Modules and kernels: a cubin placed in a GPU's memory, and launches of what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType

from baregrad.base.bits import round_up
from baregrad.base.errors import ArgumentError, UnsupportedError
from baregrad.runtime.nvidia.code.constant_bank import (
    BANK_AMPERE,
    BANK_BLACKWELL,
    BANK_HOPPER,
    BANK_TURING,
    BankFacts,
    BankLayout,
    fill,
    write_parameters,
    write_place,
)
from baregrad.runtime.nvidia.code.cubin import VARIABLES, CubinKernel, read_cubin
from baregrad.runtime.nvidia.code.cubin_image import ALIGNMENT, image_nbytes, link
from baregrad.runtime.nvidia.code.descriptor_fields import descriptor_layout
from baregrad.runtime.nvidia.code.launch_descriptor import (
    MAX_THREADS,
    THOROUGH,
    Bank,
    GridLaunch,
    Manners,
    choose_shared_config,
)
from baregrad.runtime.nvidia.driver.memory import Allocation
from baregrad.runtime.nvidia.driver.objects import Gpu
from baregrad.runtime.nvidia.queue.batch import Batch, LaunchForm
from baregrad.runtime.nvidia.queue.channel import LOCAL_WINDOW, SHARED_WINDOW, Channel

Triple = tuple[int, int, int]
Argument = int | float | bytes | bytearray | memoryview | Allocation

_ONE: Triple = (1, 1, 1)
_BANKS = MappingProxyType({2: BANK_TURING, 3: BANK_AMPERE, 4: BANK_HOPPER, 5: BANK_BLACKWELL})
_REGISTERS_PER_UNIT = 65536
_REGISTER_GRAIN = 8
_WARP_LANES = 32
_WARP_GRAIN = 4
_MAX_CLUSTER = 16
_MAX_BLOCKS_PER_UNIT = 32
# GPUs of compute capability 12.0 may give the number of their architecture instead.
_ALIASES = MappingProxyType({0xA04: 0xC00})


class GpuModule:
    """A cubin in a GPU's memory: code, constants and global variables.

    Code is where the host can write it; it stays until `close`, or until the GPU is closed.
    """

    def __init__(self, gpu: Gpu, data: bytes) -> None:
        self.gpu = gpu
        self.cubin = read_cubin(data)
        self._check_capability()
        sections = self.cubin.sections.values()
        alignment = max((section.alignment for section in sections), default=1)
        nbytes = image_nbytes(self.cubin)
        self._piece = gpu.pieces.take(nbytes, round_up(max(alignment, ALIGNMENT), ALIGNMENT))
        try:
            self.image = link(self.cubin, self._piece.gpu_va)
            self._piece.write(0, bytes(nbytes))
            for offset, part in self.image.parts:
                self._piece.write(offset, part)
        except BaseException:
            self._piece.close()
            raise
        self._kernels: dict[str, GpuKernel] = {}
        self._closed = False

    def _check_capability(self) -> None:
        """Code runs on GPUs of its own major capability whose minor one is not below."""
        version = _ALIASES.get(self.gpu.sm_version, self.gpu.sm_version)
        major, minor = divmod(self.cubin.capability, 10)
        if major != version >> 8 or minor > version & 0xFF:
            raise UnsupportedError(
                "a cubin was compiled for another GPU",
                found=f"sm_{self.cubin.capability}",
                wanted=f"sm_{(version >> 8) * 10 + (version & 0xFF)}",
            )

    def kernel(self, name: str) -> GpuKernel:
        """Return a kernel by name; raise FileFormatError where there is none."""
        found = self._kernels.get(name)
        if found is None:
            found = self._kernels[name] = GpuKernel(self, self.cubin.kernel(name))
        return found

    def reset_variables(self) -> None:
        """Give global variables the values that they began with; none of the kernels may run.

        What one that was stopped has left there is nothing for the next launch to go on from.
        """
        if self._closed:
            return
        parts = dict(self.image.parts)
        for number, section in self.cubin.sections.items():
            if section.name in VARIABLES:
                offset = self.image.offsets[number]
                self._piece.write(offset, parts.get(offset) or bytes(section.nbytes))

    def close(self) -> None:
        """Free the memory; none of the kernels may be running any more, or be launched again."""
        self._closed = True
        self._piece.close()


@dataclass(frozen=True, slots=True)
class _Shape:
    """What launches that have the same form have in common."""

    grid: Triple
    block: Triple
    shared_nbytes: int
    cluster: Triple
    manners: Manners
    shared_kib: int = 0


class GpuKernel:
    """A kernel of a module, ready to be launched."""

    def __init__(self, module: GpuModule, facts: CubinKernel) -> None:
        self.module = module
        self.name = facts.name
        self.facts = facts
        self._row = module.gpu.generation
        self._layout = descriptor_layout(self._row.launch_descriptor[0])
        self._bank = _BANKS[self._row.launch_descriptor[0]]
        self._local_nbytes = facts.local_nbytes if facts.stack_nbytes else 0
        self._forms: dict[_Shape, LaunchForm] = {}

    def launch(
        self,
        target: Channel | Batch,
        grid: Triple,
        block: Triple,
        arguments: Sequence[Argument] = (),
        *,
        shared_nbytes: int = 0,
        cluster: Triple = _ONE,
    ) -> int:
        """Launch `grid` blocks of `block` threads, after all that the target was given before.

        On a channel, it is submitted at once, and the value returned is what the channel's timeline
        has when the kernel is done; a batch returns 0, and the value when it is submitted.

        An argument is a number, bytes of the parameter's size, or memory, whose address is passed.
        `shared_nbytes` is the dynamic shared memory of a block. A `cluster` of one block means what
        the kernel was compiled for. Raises ArgumentError for what does not fit the kernel.
        """
        batch = Batch(target) if isinstance(target, Channel) else target
        form = self.form(grid, block, shared_nbytes=shared_nbytes, cluster=cluster)
        item = batch.item(form)
        bank = memoryview(item.data)[form.bank_offset :]
        write_place(bank, self._bank, item.bank_va)
        write_parameters(bank, self.facts, [_value(one) for one in arguments])
        batch.launch(item)
        return batch.submit() if batch is not target else 0

    def form(
        self,
        grid: Triple,
        block: Triple,
        *,
        shared_nbytes: int = 0,
        cluster: Triple = _ONE,
        manners: Manners = THOROUGH,
        shared_kib: int = 0,
    ) -> LaunchForm:
        """Return the form of launches of a shape; raise ArgumentError if it does not fit.

        `shared_kib` is what a multiprocessor is set up with at least, where it may be.
        """
        shape = _Shape(grid, block, shared_nbytes, cluster, manners, shared_kib)
        found = self._forms.get(shape)
        if found is None:
            found = self._forms[shape] = self._make_form(shape)
        return found

    @property
    def local_nbytes(self) -> int:
        """Bytes of local memory that a thread needs, 0 for none."""
        return self._local_nbytes

    @property
    def address(self) -> int:
        """Where its code begins in the GPU's memory."""
        return self.module.image.entry(self.facts)

    @property
    def bank_layout(self) -> BankLayout:
        """Where the GPU's generation has the fields of constant bank 0."""
        return self._bank

    def _make_form(self, shape: _Shape) -> LaunchForm:
        """Return the form of launches of a shape, which is checked here, once."""
        facts, gpu = self.facts, self.module.gpu
        cluster = shape.cluster
        if cluster == _ONE and facts.cluster is not None:
            cluster = facts.cluster
        self._check(shape, cluster)
        reserved = self._row.shared_reserved_nbytes
        bank = fill(facts, self._bank, BankFacts(
            address=0,
            grid=shape.grid,
            block=shape.block,
            shared_window=SHARED_WINDOW,
            local_window=LOCAL_WINDOW,
            cluster=None if cluster == _ONE else cluster,
            dynamic_shared_nbytes=shape.shared_nbytes,
            reserved_shared_nbytes=reserved,
            unit_count=gpu.counts.units,
        ))  # fmt: skip
        capability = self.module.cubin.capability
        shared = facts.shared_total(shape.shared_nbytes, reserved, self._row.counts_reserved)
        code = self.module.cubin.sections[facts.code]
        resident = self._resident(shape.block)
        config = choose_shared_config(
            shared, self._row.shared_sizes_kib, resident,
            least=-(-prod(shape.grid) // gpu.counts.units),
        )  # fmt: skip
        target = max(config.target_kib, min(shape.shared_kib, config.most_kib))
        launch = GridLaunch(
            program_address=self.module.image.entry(facts),
            grid=shape.grid,
            block=shape.block,
            register_count=facts.register_count,
            shared_nbytes=shared,
            shared_config=replace(config, target_kib=target),
            instruction_set=capability // 10 << 4 | capability % 10,
            banks=(Bank(0, 0, len(bank)), *self._banks()),
            barrier_count=facts.barrier_count,
            cluster=cluster,
            program_nbytes=code.nbytes,
            manners=shape.manners,
        )
        return LaunchForm(self.name, launch, self._layout, bytes(bank), self._local_nbytes)

    def _banks(self) -> tuple[Bank, ...]:
        """Return the banks that stay the same: constants, addresses of globals."""
        module = self.module
        return tuple(
            Bank(number, module.image.bank_address(self.facts, number),
                 module.cubin.sections[section].nbytes)
            for number, section in self.facts.banks.items()
        )  # fmt: skip

    def _warps_by_registers(self) -> int:
        """How many warps have registers on one multiprocessor."""
        registers = round_up(max(self.facts.register_count, 1), _REGISTER_GRAIN)
        warps = _REGISTERS_PER_UNIT // (registers * _WARP_LANES)
        return warps // _WARP_GRAIN * _WARP_GRAIN

    def _resident(self, block: Triple) -> int:
        """How many blocks one multiprocessor has room for, shared memory aside."""
        warps = min(self._warps_by_registers(), self.module.gpu.counts.warps_per_unit)
        per_block = round_up(prod(block), _WARP_LANES) // _WARP_LANES
        return max(1, min(warps // per_block, _MAX_BLOCKS_PER_UNIT))

    def _check(self, shape: _Shape, cluster: Triple) -> None:
        facts, threads = self.facts, prod(shape.block)
        if facts.exact_threads is not None and shape.block != facts.exact_threads:
            raise ArgumentError(
                f"the kernel {self.name!r} was compiled for one shape of blocks",
                found=shape.block,
                wanted=facts.exact_threads,
            )
        bound = min(
            facts.max_threads or MAX_THREADS, self._warps_by_registers() * _WARP_LANES, MAX_THREADS
        )
        if threads > bound:
            raise ArgumentError(
                f"a block of the kernel {self.name!r} has too many threads",
                found=threads,
                wanted=f"at most {bound}",
            )
        if prod(cluster) > _MAX_CLUSTER:
            raise ArgumentError(
                f"a cluster of the kernel {self.name!r} has too many blocks",
                found=cluster,
                wanted=f"at most {_MAX_CLUSTER}",
            )
        if shape.shared_nbytes < 0:
            raise ArgumentError("shared memory has a size", found=shape.shared_nbytes)


def _value(argument: Argument) -> int | float | bytes:
    if isinstance(argument, (int, float, bytes)):
        return argument
    if isinstance(argument, Allocation):
        return argument.gpu_va
    return bytes(argument)
