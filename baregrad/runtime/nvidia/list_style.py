"""How a command list's kernels are handed to the GPU: choices that differ in time only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from baregrad.runtime.nvidia.launch_descriptor import (
    BARRIER_GPU,
    BARRIER_NONE,
    BARRIER_SYSTEM,
    THOROUGH,
    Manners,
)


@dataclass(frozen=True, slots=True)
class ListStyle:
    """How kernels follow each other.

    With `chained`, a kernel that has to wait for the one before is named by its descriptor, and the
    GPU goes on by itself; else the channel waits for idleness between them. `between` are the
    manners of kernels that others of the list follow, `last` of those that end it or a run of it.
    `prefetch`: code is fetched with the descriptor. `released`: the last kernel tells the timeline
    itself, where it is the only one that runs. `chain_prefetch`: a descriptor fetches the next one
    early. With `early`, the next one of a chain begins before the one before is done: its code has
    to wait (`write_latch`). With `progress`, every kernel writes its number when it is done, for
    reports of faults.
    """

    chained: bool = True
    between: Manners = THOROUGH
    last: Manners = THOROUGH
    prefetch: bool = True
    released: bool = False
    chain_prefetch: bool = True
    early: bool = False
    progress: bool = True


_THOROUGH = ListStyle()
_LEAN = Manners(textures=False, banks=False, barrier=BARRIER_GPU)
_LEAN_LAST = dataclasses.replace(_LEAN, barrier=BARRIER_SYSTEM)
_chain = dataclasses.replace(_THOROUGH, between=_LEAN, last=_LEAN_LAST, progress=False)
_idle = dataclasses.replace(_chain, chained=False)
_bare = dataclasses.replace(_LEAN, barrier=BARRIER_NONE)

# What the hardware check times side by side. `thorough` drops every cache and waits for the whole
# machine after each kernel.
STYLES: Mapping[str, ListStyle] = MappingProxyType({
    "thorough": _THOROUGH,
    "thorough-idle": dataclasses.replace(_THOROUGH, chained=False),
    "thorough-no-progress": dataclasses.replace(_THOROUGH, progress=False),
    "chain": _chain,
    "chain-progress": dataclasses.replace(_chain, progress=True),
    "chain-released": dataclasses.replace(_chain, released=True),
    "chain-chasing": dataclasses.replace(
        _chain, between=dataclasses.replace(_LEAN, chasing=True)
    ),
    "chain-no-prefetch": dataclasses.replace(_chain, prefetch=False),
    "chain-late": dataclasses.replace(_chain, chain_prefetch=False),
    "chain-system": dataclasses.replace(_chain, between=_LEAN_LAST),
    "chain-no-barrier": dataclasses.replace(_chain, between=_bare),
    "chain-keeps-data": dataclasses.replace(
        _chain, between=dataclasses.replace(_LEAN, data=False)
    ),
    "chain-keeps-fetched": dataclasses.replace(
        _chain, between=dataclasses.replace(_LEAN, fetched=False)
    ),
    "chain-banks": dataclasses.replace(
        _chain,
        between=dataclasses.replace(_LEAN, banks=True),
        last=dataclasses.replace(_LEAN_LAST, banks=True),
    ),
    "idle": _idle,
    "idle-progress": dataclasses.replace(_idle, progress=True),
    "idle-released": dataclasses.replace(_idle, released=True),
    "idle-no-prefetch": dataclasses.replace(_idle, prefetch=False),
    "idle-system": dataclasses.replace(_idle, between=_LEAN_LAST),
    "idle-no-barrier": dataclasses.replace(_idle, between=_bare, last=_LEAN_LAST),
    "idle-keeps-data": dataclasses.replace(
        _idle, between=dataclasses.replace(_LEAN, data=False)
    ),
})  # fmt: skip

# For kernels that wait by themselves.
EARLY_STYLE = dataclasses.replace(_chain, early=True)

# The careful one, until the others are measured.
DEFAULT_STYLE = "thorough"
