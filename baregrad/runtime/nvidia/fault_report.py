"""What to say of a fault: the kernel, the address, and the buffer nearest to it."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from baregrad.base.bits import human_bytes
from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.abi.faults import ENGINE_EXCEPTION, fault_name
from baregrad.runtime.nvidia.channel_pair import ChannelPair
from baregrad.runtime.nvidia.lists.list_image import ListImage

if TYPE_CHECKING:
    from baregrad.runtime.nvidia.driver.device_memory import MemoryBlock
    from baregrad.runtime.nvidia.queue.channel import Channel, MmuFault

_SHOWN = 4
# Further away than that a buffer has nothing to do with an address.
_FAR = 1 << 30
_PLACE = re.compile(r"\S+:\d+")


def report(
    name: str, channels: ChannelPair, timeout_s: float, nearest_to: Callable[[int], str]
) -> DriverError:
    """Return the one exception that describes a fault of the device `name`.

    One of its channels is dead; `nearest_to` says which buffer lies at or next to an address.
    """
    dead = next(channel for channel in channels if channel.group.dead is not None)
    code = dead.error_code
    fault = dead.mmu_fault() if code else None
    suspects = _suspects(dead, fault)
    parts = [f"{name}: {_who(suspects, dead)}"]
    if code:
        parts.append(f"was stopped by {fault_name(code)}")
    else:
        parts.append(f"did not end in {timeout_s:g} s")
    if fault is not None and fault.address is not None:
        parts.append(f"at {fault.address:#x} ({fault.kind}), {nearest_to(fault.address)}")
    elif code == ENGINE_EXCEPTION:
        parts.append("(a trap or a refused instruction: the GPU reports no address for it)")
    places = [_PLACE.search(label) for _, label in suspects]
    at = places[0].group() if len(suspects) == 1 and places[0] else None
    return DriverError(
        " ".join(parts),
        found=None if code else channels.state(),
        hint="results of work that was submitted and not waited for may be missing",
        at=at,
    )


def _suspects(dead: Channel, fault: MmuFault | None) -> list[tuple[str, str]]:
    """Return name and label of the kernels that may be meant, most likely only one."""
    work = dead.unfinished()
    if isinstance(work, ListImage):
        found = work.suspects(fault.program if fault is not None else 0)
    else:
        found = [(name, name) for name in (work if isinstance(work, Sequence) else work.names)]
    return list(dict.fromkeys(found))


def _who(suspects: list[tuple[str, str]], dead: Channel) -> str:
    what = "copy" if dead.copies else "kernel"
    names = [
        repr(name) if label in (name, "") else f"{name!r} ({label})" for name, label in suspects
    ]
    if not names:
        return f"a {what}"
    if len(names) == 1:
        return f"the {what} {names[0]}"
    more = ", ..." if len(names) > _SHOWN else ""
    return f"one of the kernels {', '.join(names[:_SHOWN])}{more}"


def nearest(blocks: Sequence[MemoryBlock], address: int) -> str:
    """Say which of the live blocks, sorted by address, an address lies in or next to."""
    place = bisect.bisect([block.address for block in blocks], address)
    found = []
    for block in blocks[max(0, place - 1) : place + 1]:
        end = block.address + block.nbytes
        distance = max(block.address - address, address - end + 1, 0)
        found.append((distance, block))
    if not found:
        return "while no buffer is live"
    distance, block = min(found, key=lambda pair: pair[0])
    what = f"the buffer of {human_bytes(block.nbytes)} at {block.address:#x}"
    if not distance:
        return f"{address - block.address} bytes into {what}"
    if distance > _FAR:
        return f"far from every buffer: the nearest one is {human_bytes(distance)} away, {what}"
    side = "behind" if address > block.address else "before"
    return f"{distance} bytes {side} the nearest buffer, {what.removeprefix('the buffer ')}"
