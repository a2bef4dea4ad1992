from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from baregrad.assemble.cuda_toolkit import find_program
from baregrad.assemble.machine_code import machine_lines, read_listing
from baregrad.base.errors import MissingDependency

# What nvdisasm prints of three instructions: a read of a register of the system that sets counter
# 0 and waits for nothing, and an addition that waits for counter 0.
LISTING = """\
reduce:
\t//## File ".nv_debug_ptx_txt", line 17
        /*0010*/                   S2R R0, SR_TID.X ;      /* 0x0000000000007919 */
                                                           /* 0x000e220000002100 */
\t//## File ".nv_debug_ptx_txt", line 21
        /*0050*/                   LEA R3, R3, R0, 0x7 ;   /* 0x0000000003037211 */
                                                           /* 0x001fc800078e38ff */
        /*0060*/                   EXIT ;                  /* 0x000000000000794d */
                                                           /* 0x000fea0003800000 */
other:
        /*0000*/                   EXIT ;                  /* 0x000000000000794d */
                                                           /* 0x000fea0003800000 */
""".splitlines()
KERNEL = """\
.version 8.0
.target sm_80
.address_size 64
.visible .entry doubled(
  .param .u64 p0
)
{
  .reg .b32 %r<3>;
  .reg .b64 %rd<4>;
  .reg .f32 %f<3>;
  ld.param.u64 %rd1, [p0];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r1, %tid.x;
  mad.wide.s32 %rd2, %r1, 4, %rd1;
  ld.global.f32 %f1, [%rd2];
  add.rn.f32 %f2, %f1, %f1;
  st.global.f32 [%rd2], %f2;
  ret;
}
"""


def _has(name: str) -> bool:
    try:
        find_program(name, name)
    except MissingDependency:
        return False
    return True


def test_a_listing_is_read_with_lines_registers_and_waits() -> None:
    first, second, third = read_listing(LISTING, {0x10: 2, 0x50: 3})
    assert (first.address, first.text, first.line) == (0x10, "S2R R0, SR_TID.X", 17)
    assert (first.live, first.stall, first.sets, first.awaits) == (2, 1, (0,), ())
    assert (second.line, second.live, second.stall, second.awaits) == (21, 3, 4, (0x10,))
    assert (third.text, third.line, third.stall, third.sets) == ("EXIT", 21, 5, ())


@pytest.mark.skipif(
    not (_has("nvdisasm") and _has("ptxas")), reason="nvdisasm or ptxas is not installed"
)
def test_instructions_are_joined_to_the_lines_that_say_so() -> None:
    lines, cubin = machine_lines(KERNEL, "sm_80")
    assert cubin[:4] == b"\x7fELF"
    said = {"LDG": "ld.global", "STG": "st.global", "FADD": "add.rn", "EXIT": "ret"}
    rows = KERNEL.splitlines()
    found = {one.text.split()[0].split(".")[0]: one for one in lines}
    for instruction, ptx in said.items():
        assert rows[found[instruction].line - 1].strip().startswith(ptx)
    assert found["FADD"].awaits == (found["LDG"].address,)
    assert all(one.live <= 8 and one.stall <= 15 for one in lines)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    if _has("nvdisasm"):
        pytest.skip("nvdisasm lies in a folder that is looked at whatever PATH says")
    with pytest.raises(MissingDependency, match="nvidia-cuda-nvdisasm"):
        machine_lines(KERNEL, "sm_80")
