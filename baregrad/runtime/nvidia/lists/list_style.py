"""How a command list's kernels are handed to the GPU: choices that differ in time only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from baregrad.base.errors import ArgumentError
from baregrad.runtime.nvidia.abi.methods import (
    PCAS_INVALIDATE_COPY_SCHEDULE,
    PCAS_PREFETCH_SCHEDULE,
)
from baregrad.runtime.nvidia.code.launch_descriptor import (
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
    With `early`, the next one of a chain begins before the one before is done, where its code
    waits (`GpuLaunch.waits`); with `late_drop` too, such a one drops caches when it has waited and
    not when it begins as well. With `progress`, every kernel writes its number when it is done, for
    reports of faults.

    `released`: the last kernel releases the timeline itself, where the list ends with a chain: all
    other kernels have ended when the head of a chain begins, and those of the chain one after the
    other. What is submitted next waits for idleness. `release_barrier`: that release waits for the
    whole machine to see all writes; the memory of buffers is the GPU's own, so that its own view is
    enough.

    `keeps`: constants and descriptors that did not change since the list was last submitted stay in
    the GPU's caches; else constants are dropped each time. `refetched`: `action` has the GPU fetch
    the descriptor that it launches, so that it need not drop that one as well.
    `action`: how launches are handed over, of PCAS_ACTION.
    """

    chained: bool = True
    between: Manners = THOROUGH
    last: Manners = THOROUGH
    early: bool = False
    late_drop: bool = False
    progress: bool = True
    released: bool = False
    release_barrier: bool = True
    keeps: bool = False
    refetched: bool = False
    action: int = PCAS_INVALIDATE_COPY_SCHEDULE


_THOROUGH = ListStyle()
_LEAN = Manners(textures=False, banks=False, barrier=BARRIER_GPU)
_LEAN_LAST = dataclasses.replace(_LEAN, barrier=BARRIER_SYSTEM)
_chain = dataclasses.replace(_THOROUGH, between=_LEAN, last=_LEAN_LAST, progress=False)
_bare = dataclasses.replace(_LEAN, barrier=BARRIER_NONE)
_early = dataclasses.replace(_chain, early=True)
# For one launch and its end: nothing waits for more than the GPU's own memory.
_light = dataclasses.replace(_chain, last=_LEAN)
_released = dataclasses.replace(_light, progress=True, released=True, release_barrier=False)
_early_released = dataclasses.replace(_released, early=True, keeps=True, refetched=True)

# What the hardware check times side by side. `thorough` drops every cache and waits for the whole
# machine after each kernel. There is none whose kernels keep what their multiprocessor has cached
# (`Manners.data`): that is older than what the host, a copy or another kernel has written since,
# and kernels on an H200 did compute with it.
STYLES: Mapping[str, ListStyle] = MappingProxyType({
    "thorough": _THOROUGH,
    "chain": _chain,
    "chain-no-barrier": dataclasses.replace(_chain, between=_bare),
    "idle": dataclasses.replace(_chain, chained=False, progress=True),
    "early-thorough": dataclasses.replace(_THOROUGH, early=True),
    "early-progress": dataclasses.replace(_early, progress=True),
    "early-light": dataclasses.replace(_early, late_drop=True, last=_LEAN),
    "light": _light,
    "light-told-progress": _released,
    "early-told-progress": _early_released,
    "early-told-drops": dataclasses.replace(_early_released, keeps=False),
    "early-told-forgets": dataclasses.replace(_early_released, refetched=False),
    "early-told-kept": dataclasses.replace(
        _early_released, refetched=False, action=PCAS_PREFETCH_SCHEDULE
    ),
})  # fmt: skip

# The one in use where none is asked for: of those that name the kernel of every fault (`progress`),
# the fastest. Another is one word here, or the option `nv_style`.
DEFAULT_STYLE = "early-told-progress"


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
