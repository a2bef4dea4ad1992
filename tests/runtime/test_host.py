"""What processor we run on, as the system's tables say: what it may use of it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from baregrad.cli import doctor
from baregrad.engine import backends
from baregrad.runtime.cpu import host
from baregrad.target.cpu import CPU_ROWS, cpu_row

WIDEST = CPU_ROWS[0]
FLAGS = " ".join((*WIDEST.needs, "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8"))


@pytest.fixture
def _tiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = tmp_path / "cpuinfo"
    table.write_text(f"processor : 0\nmodel name : Xeon\nflags : {FLAGS}\n\nprocessor : 1\n")
    monkeypatch.setattr(host, "_CPUINFO", table)


def _answer(monkeypatch: pytest.MonkeyPatch, answer: int) -> list[tuple[int, int]]:
    asked: list[tuple[int, int]] = []

    def call(code: int, argument: int) -> int:
        asked.append((code, argument))
        return answer

    monkeypatch.setattr(host, "_arch_prctl", call)
    return asked


@pytest.mark.usefixtures("_tiles")
def test_tiles_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _answer(monkeypatch, 0)
    found = host.detect_host()
    # ARCH_REQ_XCOMP_PERM of XFEATURE_XTILE_DATA: asm/prctl.h and asm/fpu/types.h of Linux.
    assert asked == [(0x1023, 18)]
    assert {"amx_tile", "amx_bf16", "amx_int8"} <= found.features and not found.refused
    assert "tdpbf16ps" in cpu_row(found.features).tile_instructions
    assert "tiles (AMX): tdpbf16ps" in str(doctor._cpu(found))


@pytest.mark.usefixtures("_tiles")
def test_without_leave_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    _answer(monkeypatch, -1)
    found = host.detect_host()
    assert found.refused == {"amx_tile", "amx_bf16", "amx_int8"}
    assert found.refused.isdisjoint(found.features) and "avx512_vnni" in found.features
    assert cpu_row(found.features).tile_instructions == ()
    assert "does not let us use them" in str(doctor._cpu(found))


@pytest.mark.parametrize(
    ("vendor", "rows", "ahead", "nbytes", "streamed", "slow"),
    (
        ("AuthenticAMD", 1, False, 32, 16, False),
        ("GenuineIntel", 4, True, 64, 32, True),
        (None, 4, True, 64, 32, True),
    ),
)
def test_the_vendor_tells_how_memory_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vendor: str | None, rows: int, ahead: bool,
    nbytes: int, streamed: int, slow: bool,
) -> None:
    named = f"vendor_id : {vendor}\n" if vendor else ""
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{named}flags : {FLAGS}\n\n")
    monkeypatch.setattr(host, "_CPUINFO", tmp_path / "cpuinfo")
    _answer(monkeypatch, 0)
    assert host.detect_host().vendor == (vendor or "")
    target = backends.host_target()
    assert (target.rows_from_memory, target.asks_ahead) == (rows, ahead)
    assert target.slow_underflow == slow
    assert target.vector_bytes_from_memory == nbytes
    assert (target.streamed_row_bytes, target.streamed_bytes) == (streamed << 20, 32 << 20)


def test_who_has_none_asks_for_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("flags : sse2 avx2\n\n")
    monkeypatch.setattr(host, "_CPUINFO", tmp_path / "cpuinfo")
    asked = _answer(monkeypatch, -1)
    assert host.detect_host().features == {"sse2", "avx2"}
    assert not asked


def test_the_system_answers() -> None:
    """The call itself: of a processor without tiles it fails, and no error comes of that."""
    tiles = not host.TILE_FEATURES.isdisjoint(host._cpuinfo().get("flags", "").split())
    assert tiles or not host.may_use_tiles()
