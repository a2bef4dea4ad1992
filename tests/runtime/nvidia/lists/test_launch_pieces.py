"""From a cubin to a launch descriptor: the pieces fit each other, per generation."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import pytest

from baregrad.base.errors import ArgumentError
from baregrad.runtime.nvidia.code.constant_bank import (
    BANK_AMPERE,
    BANK_BLACKWELL,
    BANK_HOPPER,
    BANK_TURING,
    BankFacts,
    BankLayout,
    fill,
    write_parameters,
)
from baregrad.runtime.nvidia.code.cubin import read_cubin
from baregrad.runtime.nvidia.code.cubin_image import link
from baregrad.runtime.nvidia.code.descriptor_fields import descriptor_layout
from baregrad.runtime.nvidia.code.launch_descriptor import (
    Bank,
    GridLaunch,
    choose_shared_config,
    decode,
    encode,
)
from baregrad.runtime.nvidia.code.local_memory import LocalPool, local_pool, thread_nbytes

pytest.importorskip("elftools")

DATA = Path(__file__).parents[1] / "data"
CODE_AT, BANK_AT = 0x20_0000_0000, 0x10_0000_4000


@dataclass(frozen=True)
class Generation:
    file: str
    version: int
    bank: BankLayout
    reserved: int
    counted: bool
    sizes_kib: tuple[int, ...]


GENERATIONS = (
    Generation("parts.sm_75.cuda13", 2, BANK_TURING, 0, False, (32, 64)),
    Generation("parts.sm_89.cuda13", 3, BANK_AMPERE, 1024, False, (8, 16, 32, 64, 100)),
    Generation("parts.sm_90a.cuda13", 4, BANK_HOPPER, 1024, True, (8, 16, 32, 64, 100, 228)),
    Generation("parts.sm_90a.cuda12", 4, BANK_HOPPER, 1024, True, (8, 16, 32, 64, 100, 228)),
    Generation("parts.sm_120a.cuda13", 5, BANK_BLACKWELL, 1024, True, (8, 16, 32, 64, 100)),
)


@pytest.mark.parametrize("one", GENERATIONS, ids=lambda one: one.file)
def test_a_kernel_becomes_a_launch(one: Generation) -> None:
    cubin = read_cubin((DATA / f"{one.file}.cubin").read_bytes())
    image = link(cubin, CODE_AT)
    kernel = cubin.kernel("deep")
    shared = kernel.shared_total(8192, one.reserved, one.counted)
    facts = BankFacts(
        BANK_AT, (5, 1, 1), (64, 1, 1), 0x7294_0000_0000, 0x7293_0000_0000,
        dynamic_shared_nbytes=8192, reserved_shared_nbytes=one.reserved,
    )  # fmt: skip
    bank = fill(kernel, one.bank, facts)
    pair = struct.pack("<ixxxxd", 3, 2.5)
    write_parameters(bank, kernel, [0x30_0000_0000, pair, -7])
    begin = one.bank.parameter_base
    assert bank[begin:] == struct.pack("<Q", 0x30_0000_0000) + pair + b"\xf9"
    banks = [Bank(0, BANK_AT, len(bank))]
    for number, section in kernel.banks.items():
        nbytes = cubin.sections[section].nbytes
        banks.append(Bank(number, image.bank_address(kernel, number), nbytes))
    launch = GridLaunch(
        program_address=image.entry(kernel),
        grid=facts.grid,
        block=facts.block,
        register_count=kernel.register_count,
        shared_nbytes=shared,
        shared_config=choose_shared_config(shared, one.sizes_kib),
        instruction_set=cubin.capability // 10 << 4 | cubin.capability % 10,
        banks=tuple(banks),
        barrier_count=kernel.barrier_count,
        local_nbytes=kernel.local_nbytes,
    )
    layout = descriptor_layout(one.version)
    again = decode(encode(launch, layout), layout)
    assert again.program_address == CODE_AT + image.offsets[kernel.code]
    assert (again.register_count, again.barrier_count) == (kernel.register_count, 1)
    assert again.shared_nbytes == 8192 + one.reserved
    assert again.shared_config.least_kib == (32 if one.version == 2 else 16)
    assert again.local_nbytes == 832
    assert [bank.number for bank in again.banks] == [0, 3, 4]
    assert again.banks[0].nbytes == -(-len(bank) // 16) * 16


def test_the_pool_of_local_memory() -> None:
    """By hand for 132 of 144 multiprocessors, of which the die's own counts are what matters."""
    made = local_pool(832, warps_per_unit=64, units_per_tpc=2, tpcs_per_gpc=9, gpcs=8)
    # 832 * 32 = 26624 is a multiple of 512; 26624 * 128 = 3407872 of 32768.
    assert made == LocalPool(832, 3407872, 3407872 * 72)
    small = local_pool(576, warps_per_unit=32, units_per_tpc=1, tpcs_per_gpc=1, gpcs=1)
    assert small == LocalPool(576, 589824, 655360)


def test_stacks_end_somewhere() -> None:
    assert [thread_nbytes(n) for n in (0, 1, 32, 256)] == [576, 608, 608, 832]
    assert thread_nbytes((16 << 20) - 0x240) == 16 << 20
    with pytest.raises(ArgumentError, match="more stack"):
        thread_nbytes((16 << 20) - 0x240 + 1)
