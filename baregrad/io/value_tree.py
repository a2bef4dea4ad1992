"""Nested plain values from a file: checked once, so that whoever walks them meets no trap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from baregrad.base.errors import FileFormatError

# Deeper than any real checkpoint, shallow enough for readers that recurse.
MAX_DEPTH = 200
# Pickles can share one list at many places; a walk meets it at each of them.
MAX_WALK = 20_000_000
_COUNTLESS = 1 << 62


def check_tree(value: object, path: str) -> None:
    """Check that `value` has no cycles, modest depth, and a walk not much longer than itself.

    Takes time linear in the number of distinct objects. Raises FileFormatError naming `path`.
    """
    # For each container seen, how many values a walk of it meets and how deep it is; None while
    # the walk is still inside of it.
    known: dict[int, tuple[int, int] | None] = {}
    pending: list[tuple[object, bool]] = [(value, False)]
    distinct = 0
    while pending:
        item, inside = pending.pop()
        children = _children(item)
        if inside:
            facts = [known.get(id(child)) or (1, 0) for child in children]
            # Doublings upon doublings need no exact count.
            walk = min(1 + sum(fact[0] for fact in facts), _COUNTLESS)
            known[id(item)] = (walk, 1 + max(fact[1] for fact in facts))
            distinct += len(children)
            continue
        if not children or known.get(id(item)) is not None:
            continue
        if id(item) in known:
            raise _error(path, "a container inside of itself", "a tree")
        known[id(item)] = None
        pending.append((item, True))
        pending.extend((child, False) for child in children if _is_container(child))
    walk, depth = known.get(id(value)) or (1, 0)
    if depth > MAX_DEPTH:
        raise _error(path, f"{depth} levels of nesting", f"at most {MAX_DEPTH}")
    if walk > max(MAX_WALK, 4 * distinct):
        raise _error(path, f"{distinct} values that stand at {walk} places", f"<= {MAX_WALK}")


def named_leaves(value: object) -> Iterator[tuple[str, object]]:
    """Yield every leaf of a checked tree with its path, keys and positions joined by dots."""
    pending: list[tuple[str, object]] = [("", value)]
    while pending:
        name, item = pending.pop()
        if not _is_container(item):
            yield name, item
            continue
        prefix = f"{name}." if name else ""
        children = [(prefix + str(key), child) for key, child in _items(item)]
        pending.extend(reversed(children))


def _is_container(value: object) -> bool:
    # Sets hold keys alone, which are scalars.
    return isinstance(value, (dict, list, tuple))


def _children(value: object) -> list[object]:
    return [child for _, child in _items(value)]


def _items(value: object) -> Iterable[tuple[object, object]]:
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, (list, tuple)):
        return enumerate(value)
    return ()


def _error(path: str, found: str, wanted: str) -> FileFormatError:
    return FileFormatError(
        f"{path!r} holds values that cannot be walked",
        found=found,
        wanted=wanted,
        hint="the file is damaged or hostile: fetch or save it again",
    )
