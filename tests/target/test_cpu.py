from __future__ import annotations

import dataclasses

import pytest

from baregrad.base.errors import UnsupportedDevice
from baregrad.ir.analysis.words import PRODUCTS
from baregrad.kernel.language.schedule import DOT_INSTRUCTIONS
from baregrad.target.cpu import CPU_ROWS, cpu_row, cpu_row_named

WIDEST = cpu_row_named("x86-64-avx512")
TILES = frozenset(("amx-tile", "amx-bf16", "amx-int8"))
V4 = frozenset(WIDEST.needs + WIDEST.extras) - {"avx512vnni", "avx512bf16", "avx512fp16"} - TILES


def test_the_widest_row_that_fits_is_chosen() -> None:
    assert cpu_row(V4 | {"aes", "sha"}).name == "x86-64-avx512"
    assert cpu_row(V4 - {"avx512dq"}).name == "x86-64-avx2"
    assert cpu_row(V4 - {"fma"}).name == "x86-64-sse2"
    assert cpu_row(frozenset({"fp-armv8", "neon", "crc"})).name == "arm64-neon"


def test_linux_spellings_are_understood() -> None:
    linux = V4 - {"sse3", "sse4.1", "sse4.2", "lzcnt", "bmi"}
    linux |= {"pni", "sse4_1", "sse4_2", "abm", "bmi1"}
    assert cpu_row(linux).name == "x86-64-avx512"
    assert cpu_row(linux) == cpu_row(V4)
    assert cpu_row(frozenset({"fp", "asimd", "asimddp"})).features[-1] == "dotprod"


def test_extras_are_named_and_change_the_key() -> None:
    row = cpu_row(V4 | {"avx512vnni", "aes"})
    assert row.features[-1] == "avx512vnni"
    assert "aes" not in row.features
    assert row.converted_floats == ("float16",)
    assert not cpu_row(V4 - {"f16c"}).converted_floats
    assert row.key != cpu_row(V4).key


def test_tiles_are_multiplied_by_what_the_features_say() -> None:
    assert cpu_row(V4).tile_instructions == ()
    assert cpu_row(V4 | {"amx_tile"}).tile_instructions == ()
    assert cpu_row(V4 | {"amx_bf16", "amx_int8"}).tile_instructions == ()
    assert cpu_row(V4 | {"amx_tile", "amx_bf16"}).tile_instructions == ("tdpbf16ps",)
    every = cpu_row(V4 | {"amx_tile", "amx_bf16", "amx_int8"})
    assert every == cpu_row(V4 | TILES)
    assert set(every.tile_instructions) == set(PRODUCTS)
    assert every.key != cpu_row(V4).key


def test_lanes_add_products_as_the_features_say() -> None:
    plain = V4 - {"avxvnni"}
    assert cpu_row(plain).dot_instructions == ()
    assert cpu_row(plain | {"avx512_bf16"}).dot_instructions == ("dot2",)
    assert cpu_row(plain | {"avx512_vnni", "avx_vnni"}).dot_instructions == ("dot4",)
    every = cpu_row(plain | {"avx512_vnni", "avx512_bf16"})
    assert set(every.dot_instructions) == set(DOT_INSTRUCTIONS)
    assert cpu_row(V4 - {"avx512f"} | {"avx512_bf16"}).dot_instructions == ("dot4",)


def test_what_underflow_costs_changes_the_key() -> None:
    found = {cpu_row(V4, vendor).key for vendor in ("", "GenuineIntel", "AuthenticAMD")}
    assert len(found) == 2


def test_cores_and_caches_do_not_change_the_key() -> None:
    row = cpu_row(V4)
    assert dataclasses.replace(row, cores=96, l2_bytes=1).key == row.key


@pytest.mark.parametrize("features", [frozenset(), frozenset({"sve"})])
def test_an_unknown_machine_is_refused(features: frozenset[str]) -> None:
    with pytest.raises(UnsupportedDevice, match="REF"):
        cpu_row(features)
    with pytest.raises(UnsupportedDevice, match="x86-64-sse2"):
        cpu_row_named("z80")


def test_rows_say_what_instructions_take() -> None:
    wide, avx, sse, arm = CPU_ROWS
    assert wide.ldexp_bits == (512, 256, 128) and avx.ldexp_bits == ()
    assert [row.saturates for row in CPU_ROWS] == [False, False, False, True]
    assert [row.fences_streams for row in CPU_ROWS] == [True, True, True, False]
    assert wide.masks_loads(1) and avx.masks_loads(4)
    assert not (avx.masks_loads(2) or sse.masks_loads(8) or arm.masks_loads(8))
    # AVX-VNNI has registers of 32 bytes at most.
    assert cpu_row(V4 - {"avx512f"}).dot_lanes("dot4") == (4, 8)
    assert cpu_row(V4 | {"avx512_vnni"}).dot_lanes("dot4") == (4, 8, 16)


def test_rows_are_plausible() -> None:
    for one in CPU_ROWS:
        assert one.lanes(4) * 4 == one.vector_bytes in (16, 32, 64)
        assert one.vector_registers in (16, 32)
        assert one.l1_bytes < one.l2_bytes < one.l3_bytes
        assert one.masks <= (one.vector_bytes == 64)
        assert one.fma == ("fma" in one.needs or one.architecture == "aarch64")
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.cores = 2  # type: ignore[misc]


def test_this_machine_has_a_row() -> None:
    binding = pytest.importorskip("llvmlite.binding")
    found = binding.get_host_cpu_features()
    row = cpu_row(frozenset(name for name, present in found.items() if present))
    assert row.architecture in binding.get_process_triple().replace("arm64", "aarch64")
