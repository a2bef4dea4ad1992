"""Program text to bytes, through each language's compiler, behind a disk cache."""

from __future__ import annotations

import warnings

from baregrad.assemble.cache import DiskCache, is_text_there
from baregrad.base.options import options


def default_cache() -> DiskCache | None:
    """Return the cache that the options ask for, None where they turn it off.

    None too, with a warning, where the text is missing that says what was made by which code.
    """
    if not options.cache:
        return None
    if not is_text_there():
        warnings.warn(
            "the package is no folder of Python's text, by which what is kept on disk is known: "
            "kernels are compiled anew in each process. Install it unpacked, or set "
            "BAREGRAD_CACHE=0",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return DiskCache(options.cache_dir)
