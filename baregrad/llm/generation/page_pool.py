"""Which pages of a cache are whose: counts of owners, and prefixes that are found again.

A full page of a prompt is known by a hash of all tokens up to its end, chained from page to page. A
page that nobody owns keeps its hash until it is needed for something else, the longest unused one
first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

from baregrad.base.errors import ArgumentError
from baregrad.llm.generation.layer_pages import PAGE

EMPTY_PAGE = 0  # never owned: what tables name where a sequence has no page


def prefix_hashes(tokens: Sequence[int], salt: bytes = b"") -> list[bytes]:
    """Return the hash of each full page of tokens, each of all tokens up to its end."""
    found: list[bytes] = []
    last = hashlib.blake2b(salt, digest_size=16).digest()
    for end in range(PAGE, len(tokens) + 1, PAGE):
        page = np.array(tokens[end - PAGE : end], np.int32).tobytes()
        last = hashlib.blake2b(last + page, digest_size=16).digest()
        found.append(last)
    return found


class PagePool:
    """The pages of a cache, numbered from 1 to `count` - 1."""

    def __init__(self, count: int) -> None:
        if count < 2:
            raise ArgumentError("pages of a cache", found=count, wanted="2 or more")
        self.count = count
        self._owners = [0] * count
        self._hashes: list[bytes | None] = [None] * count
        self._pages: dict[bytes, int] = {}
        # Those without owners: first those used longest ago.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, count))

    @property
    def free(self) -> int:
        """Return how many pages can be taken."""
        return len(self._free)

    @property
    def known(self) -> int:
        """Return how many pages hold prefixes that can be found."""
        return len(self._pages)

    def take(self, count: int) -> list[int] | None:
        """Return `count` pages that nobody owns, now owned once; None where there are too few."""
        if count > len(self._free):
            return None
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for page in taken:
            self._forget(page)
            self._owners[page] = 1
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """Make each page owned once more."""
        for page in pages:
            self._free.pop(page, None)
            self._owners[page] += 1

    def give_back(self, pages: Sequence[int]) -> None:
        """End one ownership of each page. The last of a sequence are taken first again."""
        for page in reversed(pages):
            if self._owners[page] < 1:
                raise ArgumentError("a page that nobody owns", found=page)
            self._owners[page] -= 1
            if not self._owners[page]:
                self._free[page] = None
                if self._hashes[page] is None:
                    self._free.move_to_end(page, last=False)

    def publish(self, page: int, name: bytes) -> None:
        """Let a full page be found by the hash of its prefix; another of the same prefix stays."""
        if name not in self._pages and self._hashes[page] is None:
            self._pages[name] = page
            self._hashes[page] = name

    def found(self, hashes: Sequence[bytes]) -> list[int]:
        """Return the pages of the longest known prefix; they are not owned by this."""
        pages: list[int] = []
        for name in hashes:
            page = self._pages.get(name)
            if page is None:
                break
            pages.append(page)
        return pages

    def forget(self, pages: Iterable[int] | None = None) -> None:
        """Let pages, or all of them, be found no more."""
        for page in list(self._pages.values() if pages is None else pages):
            self._forget(page)

    def owners(self, page: int) -> int:
        """Return how often a page is owned."""
        return self._owners[page]

    def _forget(self, page: int) -> None:
        name = self._hashes[page]
        if name is not None:
            del self._pages[name]
            self._hashes[page] = None
