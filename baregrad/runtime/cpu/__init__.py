"""The CPU device: an ELF loader, a native executor of command lists and its thread pool."""

from __future__ import annotations


def host_features() -> frozenset[str]:
    """Return what the processor that we run on can do, in the system's own words."""
    from baregrad.runtime.cpu.host import detect_host

    return detect_host().features
