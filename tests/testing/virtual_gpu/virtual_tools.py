"""What tests of the virtual GPU share: an opened one, kernels, copies through the runtime."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from baregrad.assemble.virtual_cubin import VirtualAssembler
from baregrad.runtime.nvidia.driver.client import Client
from baregrad.runtime.nvidia.driver.memory import Allocation
from baregrad.runtime.nvidia.driver.objects import Gpu
from baregrad.runtime.nvidia.lists.launch import GpuKernel, GpuModule
from baregrad.runtime.nvidia.queue.batch import Batch
from baregrad.runtime.nvidia.queue.channel import Channel
from baregrad.runtime.nvidia.queue.channel_group import ChannelGroup
from baregrad.runtime.nvidia.queue.pushbuffer import PushBuffer
from baregrad.testing.virtual_gpu.virtual_port import VirtualPort

RELEASES = ("535.54.03", "550.54.14", "570.86.15", "580.159.04", "595.45.04")
DATA = Path(__file__).parents[2] / "runtime" / "nvidia" / "data"
Words = npt.NDArray[np.uint32]
# For what is sure to end: on a busy machine it may take long.
LIMIT_S = 60.0


def cubin_of(text: str, architecture: str = "sm_90") -> bytes:
    """Pack a PTX text for an architecture, whichever it names."""
    return VirtualAssembler().assemble(text.replace(".target sm_90", f".target {architecture}"))


def data_cubin(name: str, architecture: str = "sm_90") -> bytes:
    """Pack the PTX of data/NAME.cu."""
    return cubin_of((DATA / f"{name}.sm_90.ptx").read_text(), architecture)


def kernel_text(body: str, name: str = "one") -> str:
    """A kernel of one address `p0` and one number `p1`, which `body` finds in %a and %n."""
    return f"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry {name}(.param .u64 p0, .param .u64 p1)
{{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %a, %n, %d<16>;
    ld.param.u64 %a, [p0];
    ld.param.u64 %n, [p1];
    {body}
    ret;
}}
"""


# state[thread] = state[thread] * 1664525 + number: neither order nor count may change.
LINK_BODY = """
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %d0, %r0, 4;
    add.u64 %a, %a, %d0;
    ld.global.u32 %r1, [%a];
    cvt.u32.u64 %r2, %n;
    mad.lo.u32 %r1, %r1, 1664525, %r2;
    st.global.u32 [%a], %r1;
"""
LINK = kernel_text(LINK_BODY, "link")


def linked(state: Words, numbers: Sequence[int]) -> Words:
    """What LINK makes of a state, number by number."""
    for number in numbers:
        state = state * np.uint32(1664525) + np.uint32(number)
    return state


@dataclass
class Opened:
    """An opened GPU with a channel that computes and one that copies, of one group."""

    port: VirtualPort
    client: Client
    gpu: Gpu
    compute: Channel
    copies: Channel

    def kernel(self, text: str, name: str) -> GpuKernel:
        """Place a text's module and return one of its kernels."""
        architecture = f"sm_{self.gpu.sm_version >> 8}{self.gpu.sm_version & 0xFF}"
        return GpuModule(self.gpu, cubin_of(text, architecture)).kernel(name)

    def put(self, data: npt.NDArray[Any]) -> Allocation:
        """Copy an array into memory of the GPU."""
        host = self.gpu.memory.pinned(data.nbytes)
        host.view[: data.nbytes] = data.tobytes()
        made = self.gpu.memory.device(data.nbytes)
        push = PushBuffer()
        push.copy(made.gpu_va, host.gpu_va, data.nbytes)
        self.copies.wait(self.copies.submit(push), timeout_s=LIMIT_S)
        host.close()
        return made

    def get(self, memory: Allocation, dtype: npt.DTypeLike, count: int) -> npt.NDArray[Any]:
        """Copy an array out of memory of the GPU."""
        nbytes = count * np.dtype(dtype).itemsize
        host = self.gpu.memory.pinned(nbytes)
        push = PushBuffer()
        push.copy(host.gpu_va, memory.gpu_va, nbytes)
        self.copies.wait(self.copies.submit(push), timeout_s=LIMIT_S)
        found = np.frombuffer(bytes(host.view[:nbytes]), dtype)
        host.close()
        return found

    def run(self, kernel: GpuKernel, *arguments: Any, blocks: int = 1, threads: int = 32) -> None:
        """Launch a kernel and wait for it."""
        value = kernel.launch(self.compute, (blocks, 1, 1), (threads, 1, 1), arguments)
        self.compute.wait(value, timeout_s=LIMIT_S)

    def batch(self) -> Batch:
        """Return an empty batch."""
        return Batch(self.compute)


@contextlib.contextmanager
def opened(port: VirtualPort) -> Iterator[Opened]:
    """Yield an opened GPU; nothing of it may be left afterwards."""
    with Client(port) as client, Gpu(client) as gpu:
        group = ChannelGroup(gpu)
        compute, copies = Channel(group), Channel(group, copies=True)
        group.schedule()
        yield Opened(port, client, gpu, compute, copies)
    assert port.held() == []
