"""What to tell of a fault: the kernel, the address, and the buffer nearest to it."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

from baregrad.base.bits import human_bytes
from baregrad.base.errors import DriverError

if TYPE_CHECKING:
    from baregrad.runtime.nvidia.device import NvDevice


def report(device: NvDevice, error: DriverError) -> DriverError:
    """Return the one exception that tells of a fault of a device, whose channel is dead."""
    dead = next(channel for channel in device.channels if channel.group.dead is not None)
    return DriverError(
        f"{device.name}: {error.message}",
        found=error.found or dead.group.dead,
        hint="results of work that was submitted and not waited for may be missing",
    )


def nearest(device: NvDevice, address: int) -> str:
    """Say which live buffer an address lies in or next to."""
    blocks = device.allocator.live_blocks()
    place = bisect.bisect([block.address for block in blocks], address)
    found = []
    for block in blocks[max(0, place - 1) : place + 1]:
        end = block.address + block.nbytes
        distance = max(block.address - address, address - end + 1, 0)
        found.append((distance, block))
    if not found:
        return "no buffer is live"
    distance, block = min(found, key=lambda pair: pair[0])
    what = f"the buffer of {human_bytes(block.nbytes)} at {block.address:#x}"
    if not distance:
        return f"{address - block.address} bytes into {what}"
    side = "behind" if address > block.address else "before"
    return f"{distance} bytes {side} {what}"
