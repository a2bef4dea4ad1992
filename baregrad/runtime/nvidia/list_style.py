"""How a command list's kernels are handed to the GPU: choices that differ in time only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from baregrad.base.errors import ArgumentError
from baregrad.runtime.nvidia.abi.methods import (
    PCAS_INVALIDATE_COPY_SCHEDULE,
    PCAS_INVALIDATE_PREFETCH_COPY_SCHEDULE,
    PCAS_PREFETCH_SCHEDULE,
)
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
    early. With `early`, the next one of a chain begins before the one before is done, where its
    code waits (`GpuLaunch.waits`); with `late_drop` too, such a one drops caches when it has waited
    and not when it begins as well. With `progress`, every kernel writes its number when it is done,
    for reports of faults.

    `forget`: constants are dropped once, as a list begins; else each launch has to (`banks`).
    `release_barrier`: what tells the timeline waits for the whole machine to see all writes; the
    memory of buffers is the GPU's own, so that its own view is enough. `action`: how launches are
    handed over, of PCAS_ACTION.
    """

    chained: bool = True
    between: Manners = THOROUGH
    last: Manners = THOROUGH
    prefetch: bool = True
    released: bool = False
    chain_prefetch: bool = True
    early: bool = False
    late_drop: bool = False
    progress: bool = True
    forget: bool = True
    release_barrier: bool = True
    action: int = PCAS_INVALIDATE_COPY_SCHEDULE


_THOROUGH = ListStyle()
_LEAN = Manners(textures=False, banks=False, barrier=BARRIER_GPU)
_LEAN_LAST = dataclasses.replace(_LEAN, barrier=BARRIER_SYSTEM)
_chain = dataclasses.replace(_THOROUGH, between=_LEAN, last=_LEAN_LAST, progress=False)
_idle = dataclasses.replace(_chain, chained=False)
_bare = dataclasses.replace(_LEAN, barrier=BARRIER_NONE)
_early = dataclasses.replace(_chain, early=True)
_own = dataclasses.replace(_LEAN, banks=True)
# For one launch and its end: nothing waits for more than the GPU's own memory.
_light = dataclasses.replace(_chain, last=_LEAN)
_told = dataclasses.replace(_light, released=True, release_barrier=False)

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
    "early": _early,
    "early-progress": dataclasses.replace(_early, progress=True),
    "early-thorough": dataclasses.replace(_THOROUGH, early=True),
    "early-released": dataclasses.replace(_early, released=True),
    "early-late-drop": dataclasses.replace(_early, late_drop=True),
    "early-late-drop-progress": dataclasses.replace(_early, late_drop=True, progress=True),
    "early-no-prefetch": dataclasses.replace(_early, prefetch=False),
    "early-light": dataclasses.replace(_early, late_drop=True, last=_LEAN),
    "light": _light,
    "light-progress": dataclasses.replace(_light, progress=True),
    "light-banks": dataclasses.replace(_light, between=_own, last=_own, forget=False),
    "light-ahead": dataclasses.replace(_light, action=PCAS_INVALIDATE_PREFETCH_COPY_SCHEDULE),
    "light-kept": dataclasses.replace(_light, action=PCAS_PREFETCH_SCHEDULE),
    "light-told": _told,
    "light-told-progress": dataclasses.replace(_told, progress=True),
    "light-told-banks": dataclasses.replace(_told, between=_own, last=_own, forget=False),
    "light-told-ahead": dataclasses.replace(_told, action=PCAS_INVALIDATE_PREFETCH_COPY_SCHEDULE),
    "light-told-early": dataclasses.replace(_told, early=True, late_drop=True),
})  # fmt: skip

# The one in use where none is asked for: of those that the hardware checks found right and that
# name the kernel of every fault (`progress`), the fastest. Another is one word here, or the option
# `nv_style`.
DEFAULT_STYLE = "thorough"


def style_of(name: str) -> ListStyle:
    """Return the style of a name, the default one for none; raise ArgumentError for no style's."""
    found = STYLES.get(name or DEFAULT_STYLE)
    if found is None:
        raise ArgumentError(
            "there is no such style of command lists (BAREGRAD_NV_STYLE)",
            found=name,
            wanted=", ".join(STYLES),
        )
    return found
