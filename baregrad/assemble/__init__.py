"""Program text to bytes, through each language's compiler, behind a disk cache."""

from __future__ import annotations

from baregrad.assemble.cache import DiskCache
from baregrad.base.options import options


def default_cache() -> DiskCache | None:
    """Return the cache that the options ask for, None where they turn it off."""
    return DiskCache(options.cache_dir) if options.cache else None
