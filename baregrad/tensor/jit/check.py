"""`BAREGRAD_JIT_CHECK=1`: every replay against the eager function, bit for bit."""

from __future__ import annotations

from typing import Any

from baregrad.base.errors import JitError
from baregrad.engine.capture import is_plain
from baregrad.engine.session import current_session
from baregrad.tensor.array.storage import Storage, buffer_node, leaf_of
from baregrad.tensor.array.views import is_whole
from baregrad.tensor.jit.entry import Entry
from baregrad.tensor.jit.parts import Call
from baregrad.tensor.jit.trees import leaves, map_tree
from baregrad.tensor.tensor import Tensor


def run_checked(entry: Entry, call: Call) -> Any:
    """Replay, then run the function from the same state; return its result.

    What is replayed is what would be without the check: the look at the state leaves it as it is.
    Raises JitError when a result, a changed state or a gradient differs in any bit.
    """
    storages = _state(entry, call)
    before = [_bytes_of(storage) for storage in storages]
    symbolic = {each: each.node for each in storages if not is_plain(each.node.shape)}
    tensors = [*entry.surroundings.tensors, *call.tensors[: call.given]]
    gradients = [(tensor, tensor.grad) for tensor in tensors]
    replayed = _result_bytes(entry.play(call, call.handles()))
    after = [_bytes_of(storage) for storage in storages]
    made = _gradient_bytes(tensors)
    for storage, data in zip(storages, before, strict=True):
        if storage in symbolic:
            # Computed, its extents are numbers.
            storage.put(symbolic[storage], storage.grad)
        else:
            _restore(storage, data)
    for tensor, gradient in gradients:
        tensor.grad = gradient
    result = _eager(entry, call)
    _compare("result", replayed, _result_bytes(result))
    _compare("state", after, [_bytes_of(storage) for storage in storages])
    _compare("gradient", made, _gradient_bytes(tensors))
    return result


def _eager(entry: Entry, call: Call) -> Any:
    """Run the function on what a replay is handed: arrays, also in the place of views.

    The order of a sum may depend on how an operand lies in memory.
    """
    arrays: dict[int, Tensor] = {}
    views: dict[int, Tensor] = {}
    for tensor in call.tensors[: call.given]:
        stays = is_whole(tensor._steps) or tensor.requires_grad or tensor.grad is not None
        if not stays and is_plain(tensor.shape) and id(tensor) not in arrays:
            made = arrays[id(tensor)] = tensor.contiguous().realize()
            views[id(made)] = tensor
    if not arrays:
        return entry.run(call, [])
    args, kwargs = map_tree(call.tree, lambda leaf: arrays.get(id(leaf), leaf))
    result = entry.run(Call(args, kwargs), [])
    return map_tree(result, lambda leaf: views.get(id(leaf), leaf))


def _state(entry: Entry, call: Call) -> list[Storage]:
    held = [one.look() for one in entry.state.every]
    found = [storage for storage in held if storage is not None]
    found.extend(tensor._storage for tensor in call.tensors)
    return list(dict.fromkeys(found))


def _bytes_of(storage: Storage) -> bytes:
    """What a storage holds; it stays uncomputed if it was, and so does all else."""
    session = current_session()
    node = storage.node
    ref = leaf_of(node) or session.realised(node)
    with session.watching.nobody():
        if ref is None:
            with session.isolated(kept=False):
                (ref,) = session.realize([node], storage.device)
        return session.download(ref, node.dtype).tobytes()


def _restore(storage: Storage, data: bytes) -> None:
    import numpy as np

    node = storage.node
    raw = np.frombuffer(data, node.dtype.storage).reshape(node.shape)
    ref = current_session().upload(raw, node.dtype, node.shape, storage.device)
    storage.put(buffer_node(ref, node.dtype))


def _result_bytes(result: Any) -> list[bytes]:
    return [leaf._raw().tobytes() for leaf in leaves(result) if isinstance(leaf, Tensor)]


def _gradient_bytes(tensors: list[Tensor]) -> list[bytes]:
    return [b"" if t.grad is None else t.grad._raw().tobytes() for t in tensors]


def _compare(what: str, replayed: list[bytes], eager: list[bytes]) -> None:
    for position, (ours, theirs) in enumerate(zip(replayed, eager, strict=True)):
        if ours != theirs:
            raise JitError(
                f"{what} {position} of a replay differs from the eager function's",
                found=f"{_first_difference(ours, theirs)}",
                hint="it depends on something that capture cannot see; pass that as an argument",
            )


def _first_difference(ours: bytes, theirs: bytes) -> str:
    if len(ours) != len(theirs):
        return f"{len(ours)} bytes against {len(theirs)}"
    place = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
    return f"byte {place} is {ours[place]:#04x}, eager has {theirs[place]:#04x}"
