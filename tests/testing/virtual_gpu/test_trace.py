"""The trace: lines for people, in the order of what happens."""

from __future__ import annotations

import re

import pytest

from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.driver.client import Client
from baregrad.runtime.nvidia.driver.objects import Gpu
from baregrad.testing.virtual_gpu import saxpy_traced
from baregrad.testing.virtual_gpu.machine.trace import method_line
from baregrad.testing.virtual_gpu.virtual_port import VirtualPort


def test_the_example_tells_all_of_a_saxpy() -> None:
    told: list[str] = []
    found = saxpy_traced.main(told.append)
    # y and x: the second half of the arguments is the copy of the first.
    assert found == [3.5 * i for i in range(saxpy_traced.COUNT)]
    text = "\n".join(told)
    wanted = (
        "open /dev/nvidiactl", "NV_ESC_RM_ALLOC NV01_ROOT_CLIENT", "UVM_INITIALIZE",
        "NV_ESC_RM_ALLOC HOPPER_COMPUTE_A", "NVA06C_CTRL_CMD_GPFIFO_SCHEDULE", "doorbell",
        "compute: SET_OBJECT 0xcbc0 HOPPER_COMPUTE_A", "copy: LAUNCH_DMA 0x182",
        "SEND_SIGNALING_PCAS2_B 0x3", "launch of saxpy: grid (1, 1, 1), block (32, 1, 1)",
        "UVM_UNREGISTER_GPU", "left of all this is []",
    )  # fmt: skip
    places = [text.find(one) for one in wanted]
    assert -1 not in places and places == sorted(places), dict(zip(wanted, places, strict=True))
    # Every descriptor that is opened is closed.
    opened = re.findall(r"^open \S+ = (\d+)", text, re.MULTILINE)
    assert sorted(opened) == sorted(re.findall(r"^close (\d+)", text, re.MULTILINE))


def test_a_refusal_is_told_with_its_reason() -> None:
    told: list[str] = []
    with Client(VirtualPort(trace=told.append)) as client, Gpu(client) as gpu:
        with pytest.raises(DriverError):
            client.allocate(gpu.device, 0xBEEF, None)
        assert told[-1].endswith("NV_ERR_INVALID_CLASS (0x22): INVALID_CLASS: "
                                 "no GPU here has the class 0xbeef")


@pytest.mark.parametrize("subchannel,method,data,is_compute,text", [
    (0, 0x6C, 0x1100003, False, "host: SEM_EXECUTE 0x1100003 (OPERATION=0x3 RELEASE_WFI=0x1 "
                                "PAYLOAD_SIZE=0x1)"),
    (4, 0x418, 128, False, "copy: LINE_LENGTH_IN 0x80"),
    (1, 0x2B4, 5, True, "compute: SEND_PCAS_A 0x5"),
    (1, 0xF00, 5, True, "compute: method 0xf00 0x5"),
    (6, 0x6C0, 5, False, "6: method 0x6c0 0x5"),
])
def test_methods(subchannel: int, method: int, data: int, is_compute: bool, text: str) -> None:
    assert method_line(subchannel, method, data, is_compute).strip() == text
