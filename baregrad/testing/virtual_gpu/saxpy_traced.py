"""y = a x + y on a GPU that is not there, with every call of the driver and every word printed.

    python -m baregrad.testing.virtual_gpu.saxpy_traced

Read from the top it is a tour of a GPU driver: objects are made (`ioctl`), memory is mapped for
both sides (`mmap`, `UVM_...`), words are put into a ring, a `doorbell` is rung, and the GPU takes
them (`fetch`): methods for its host unit, its copy engine and its compute engine, which starts the
kernel that a launch descriptor names.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from baregrad.assemble.virtual_cubin import VirtualAssembler
from baregrad.runtime.nvidia.driver.client import Client
from baregrad.runtime.nvidia.driver.objects import Gpu
from baregrad.runtime.nvidia.lists.launch import GpuModule
from baregrad.runtime.nvidia.queue.channel import Channel
from baregrad.runtime.nvidia.queue.channel_group import ChannelGroup
from baregrad.runtime.nvidia.queue.pushbuffer import PushBuffer
from baregrad.testing.virtual_gpu.virtual_port import VirtualPort

SAXPY = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry saxpy(.param .u64 y, .param .u64 x, .param .f32 a)
{
    .reg .b32 %r;
    .reg .b64 %x, %y, %i;
    .reg .f32 %a, %u, %v;
    ld.param.u64 %y, [y];
    ld.param.u64 %x, [x];
    ld.param.f32 %a, [a];
    mov.u32 %r, %tid.x;
    mul.wide.u32 %i, %r, 4;
    add.u64 %x, %x, %i;
    add.u64 %y, %y, %i;
    ld.global.f32 %u, [%x];
    ld.global.f32 %v, [%y];
    fma.rn.f32 %v, %a, %u, %v;
    st.global.f32 [%y], %v;
    ret;
}
"""
COUNT = 32


def main(tell: Callable[[str], None] = print) -> list[float]:
    """Run the kernel over 32 elements, tell each step, and return what it computed."""
    port = VirtualPort(trace=tell, lag=False)
    with Client(port) as client, Gpu(client) as gpu:
        tell("# Channels: one computes, one copies.")
        group = ChannelGroup(gpu)
        compute, copies = Channel(group), Channel(group, copies=True)
        group.schedule()
        tell("# Memory: pinned pages that both see, and the GPU's own.")
        host, device = gpu.memory.pinned(4 * COUNT), gpu.memory.device(4 * COUNT)
        host.view[: 4 * COUNT] = array("f", range(COUNT)).tobytes()
        tell("# A copy to the GPU.")
        push = PushBuffer()
        push.copy(device.gpu_va, host.gpu_va, 4 * COUNT)
        copies.wait(copies.submit(push), timeout_s=5)
        tell("# The kernel: y += 2.5 x.")
        kernel = GpuModule(gpu, VirtualAssembler().assemble(SAXPY)).kernel("saxpy")
        done = kernel.launch(compute, (1, 1, 1), (COUNT, 1, 1), (host, device, 2.5))
        compute.wait(done, timeout_s=5)
        found = [float(value) for value in host.view[: 4 * COUNT].cast("f")]
        tell("# The end: what was made last is freed first.")
    tell(f"# y = {found[:4]}..., and left of all this is {port.held()}")
    return found


if __name__ == "__main__":
    main()
