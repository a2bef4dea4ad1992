"""Pages have owners and names; what is found again is what was published and not taken since."""

from __future__ import annotations

import random

import pytest

from baregrad.base.errors import ArgumentError
from baregrad.llm.generation.page_pool import EMPTY_PAGE, PagePool, prefix_hashes


def test_hashes_are_of_all_that_comes_before() -> None:
    first, second = list(range(40)), [7, *range(1, 40)]
    assert len(prefix_hashes(first)) == 2
    assert prefix_hashes(first)[0] == prefix_hashes(first[:16])[0]
    assert not set(prefix_hashes(first)) & set(prefix_hashes(second))
    assert prefix_hashes(first) != prefix_hashes(first, b"salt")


def test_pages_are_taken_shared_and_given_back() -> None:
    pool = PagePool(5)
    pages = pool.take(3)
    assert pages is not None
    assert EMPTY_PAGE not in pages
    assert pool.take(2) is None
    pool.share(pages[:1])
    pool.give_back(pages)
    assert pool.free == 3
    pool.give_back(pages[:1])
    assert pool.free == 4
    with pytest.raises(ArgumentError, match="nobody owns"):
        pool.give_back(pages[:1])
    with pytest.raises(ArgumentError):
        PagePool(1)


def test_a_prefix_is_found_until_its_page_is_needed() -> None:
    pool = PagePool(4)
    names = prefix_hashes(list(range(32)))
    pages = pool.take(2)
    assert pages is not None
    for page, name in zip(pages, names, strict=True):
        pool.publish(page, name)
    pool.give_back(pages)
    assert pool.found(names) == pages
    assert pool.free == 3
    # A page without a name goes first, then the later page of the prefix.
    taken = pool.take(2)
    assert taken is not None
    assert pool.found(names) == pages[:1]
    assert pages[1] in taken
    pool.share(pages[:1])
    assert pool.take(1) is None
    assert pool.known == 1
    assert pool.owners(pages[0]) == 1
    pool.forget()
    assert not pool.found(names)


def test_random_use_against_a_plain_count() -> None:
    """Owners are counted in a plain table beside the pool; nothing is lost, nothing given twice."""
    rng, pool = random.Random(0), PagePool(12)
    owners = [0] * 12
    held: list[list[int]] = []
    for _ in range(3000):
        action = rng.random()
        if action < 0.4:
            count = rng.randrange(1, 4)
            pages = pool.take(count)
            assert (pages is None) == (sum(not n for n in owners[1:]) < count)
            if pages is not None:
                assert all(owners[page] == 0 for page in pages)
                held.append(pages)
                for page in pages:
                    owners[page] += 1
                    pool.publish(page, bytes([rng.randrange(40)]))
        elif action < 0.6:
            found = pool.found([bytes([rng.randrange(40)])])
            pool.share(found)
            held.append(found)
            for page in found:
                owners[page] += 1
        elif held:
            pages = held.pop(rng.randrange(len(held)))
            pool.give_back(pages)
            for page in pages:
                owners[page] -= 1
        assert pool.free == sum(not n for n in owners[1:])
