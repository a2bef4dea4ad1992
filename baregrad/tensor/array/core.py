"""The core of a tensor: a view of a storage whose value is a node of the graph.

Values are functional: a write makes a new node and puts it into the storage, where every view of
the storage reads it. Nothing is computed before `realize`, or before somebody asks for numbers.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, Self

import numpy as np

from baregrad.base.errors import DTypeError, GradientError, ShapeError, user_frame
from baregrad.base.options import options
from baregrad.dtypes import DType
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.tensor.array import views
from baregrad.tensor.array.deferred import Asked, DeferredValue, key_of_one
from baregrad.tensor.array.grad_mode import grad_enabled
from baregrad.tensor.array.link import SessionLike, note_line, session
from baregrad.tensor.array.storage import Storage, buffer_node, handles_read_by, live_storages
from baregrad.tensor.array.views import Leaf, Step

# A realised storage is copied whole to read a part of it when that is not much more than the part.
_WHOLE_NBYTES = 1 << 16
_BUFFER = Ops.BUFFER


class Array:
    """What every tensor is: a storage and the steps by which it is viewed."""

    __slots__ = (
        "__weakref__", "_cached", "_gradient", "_layout", "_look", "_pairs", "_steps", "_storage",
    )  # fmt: skip
    # Whether the last axis of what is shown is pairs, each of which is one complex number.
    is_paired: ClassVar[bool] = False
    # Whether there are no values yet, as of a parameter whose layer has seen no input.
    is_unmade: ClassVar[bool] = False
    _storage: Storage
    _steps: tuple[Step, ...]
    _cached: tuple[Node, Node] | None
    _layout: tuple[views.Strides, Any] | None
    # Shape and dtype of a view that was not looked through yet.
    _look: tuple[tuple[int, ...], DType] | None
    _gradient: Any

    @classmethod
    def _on(cls, storage: Storage, steps: tuple[Step, ...] = ()) -> Self:
        """A tensor that shows a storage through `steps`."""
        self = object.__new__(cls)
        self._storage = storage
        self._steps = steps
        self._cached = None
        self._layout = None
        self._look = None
        self._gradient = None
        return self

    @classmethod
    def _holding(cls, node: Node, device: str, grad: bool, steps: tuple[Step, ...]) -> Self:
        """A tensor that shows a value through `steps`, for a call that is made again."""
        return cls._on(Storage(node, device, grad), steps)

    @classmethod
    def _make(cls, node: Node, device: str, grad: bool = False) -> Self:
        """A tensor with a storage of its own; `grad`: whether an operand requires gradients."""
        if options.notes_lines:
            note_line(node, str(user_frame()))
        if not grad or node.dtype.kind != "float":
            return cls._on(Storage(node, device))
        return cls._on(Storage(views.made_distinct(node), device, True))

    @classmethod
    def _real(cls) -> type[Self]:
        """The class of real tensors: this one, but of complex tensors that beside it."""
        return cls

    # --- the value --------------------------------------------------------------------------------

    def _value(self) -> Node:
        """The node of what the tensor shows now, whether or not gradients are recorded."""
        base = self._storage.node
        if not self._steps:
            return base
        cached = self._cached
        if cached is not None and cached[0] is base:
            return cached[1]
        value = base
        for step in self._present_steps():
            value = views.show(value, step)
        self._cached = (base, value)
        return value

    def _present_steps(self) -> tuple[Step, ...]:
        """The steps over what the storage holds now, whose extents are numbers once computed."""
        return views.bound(self._steps) if self._storage.settled else self._steps

    @property
    def node(self) -> Node:
        """The node that operations on this tensor read; under `no_grad` gradients stop at it."""
        value = self._value()
        if not grad_enabled() and value.mask & Ops.DETACH.bit:
            return Node(Ops.DETACH, value.dtype, (value,))
        return value

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents: ints, or index nodes where symbolic."""
        if self._look is not None:
            return self._look[0]
        deferred = self._storage.deferred
        if deferred is not None and (not self._steps or views.is_whole(self._steps)):
            return deferred.form.shape
        return self._value().shape

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        if self._look is not None:
            return self._look[1]
        deferred = self._storage.deferred
        if deferred is not None and (not self._steps or views.is_whole(self._steps)):
            return deferred.form.dtype
        return self._value().dtype

    @property
    def device(self) -> str:
        """The name of the device that holds the values."""
        return self._storage.device

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def _view(self, op: Op, arg: Any) -> Self:
        """The tensor that shows this one through one more step; it aliases this one."""
        added: tuple[Step, ...] = ((op, arg),)
        if not grad_enabled() and self.requires_grad:
            added = (*added, (Ops.DETACH, None))
        made = type(self)._on(self._storage, (*self._steps, *added))
        # Shown at once, so that what does not fit raises at the user's line.
        base, value = self._storage.node, self._value()
        for step in added:
            value = views.show(value, step)
        # Another thread may have changed it between the two.
        if self._storage.node is base:
            made._cached = (base, value)
        return made

    def _strides(self) -> tuple[views.Strides, Any]:
        """(strides, offset) in elements of the storage, as if the view were one of memory."""
        if self._layout is None:
            value = self._storage.node
            strides: views.Strides = views.row_major(value.shape)
            offset: Any = 0
            for step in self._present_steps():
                strides, offset = views.after(step, value, strides, offset)
                value = views.show(value, step)
            self._layout = (strides, offset)
        return self._layout

    # --- writing ----------------------------------------------------------------------------------

    def _write_whole(self, value: Array, since: int | None = None) -> bool:
        """Put what a tensor of this one's shape and dtype shows in place of all of the storage.

        That is done where the value is deferred: False where it is a node, or only a part is
        written. Raises what `_write` does.
        """
        deferred = value._storage.deferred
        if deferred is None or deferred.call is None:
            return False
        if value._steps or not views.is_whole(self._steps):
            return False
        form = deferred.form
        if (form.grad or self._storage.grad) and not grad_enabled():
            return False
        if self._storage.grad and self._steps:
            return False
        if form.shape != self.shape or form.dtype is not self.dtype or form.device != self.device:
            return False
        if 0 in form.shape:
            return False
        self._write(deferred, form.grad, since)
        return True

    def _write(
        self, value: Node | DeferredValue, grad: bool = False, since: int | None = None
    ) -> None:
        """Put `value`, of this tensor's shape and dtype, in place of what the tensor shows.

        A deferred value takes the place of all of the storage. since: as of `Storage.put`. Raises
        GradientError on a leaf that requires gradients, or a view of one, while gradients are
        recorded; ShapeError through a view that shows an element twice.
        """
        form = value if isinstance(value, Node) else value.form
        grad = grad and grad_enabled() and form.dtype.kind == "float"
        marks = [arg for op, arg in self._steps
                 if op is Ops.DETACH and arg.__class__ is not views.Hooks]
        if grad_enabled() and marks and marks[-1] is not None:
            raise GradientError(
                "a leaf that requires gradients, or a view of one, is changed in place",
                hint="do it inside `with Tensor.no_grad():`, or work on clone() or detach() of it",
            )
        if grad and marks:
            raise GradientError(
                "a value that requires gradients is written into a detached tensor",
                hint="write value.detach(), or write into a tensor that is not detached",
            )
        if any(extent.__class__ is int and extent == 0 for extent in form.shape):
            return
        storage = self._storage
        partial = any(op is Ops.SHRINK for op, _ in self._steps)

        def put(seen: int, node: Node) -> None:
            old = storage.node
            whole = views.write(old, self._present_steps(), node)
            if storage.grad and not (grad_enabled() and not marks):
                # Unrecorded: gradients go on to what was written over, as if it were not.
                storage.put(views.passed_on(whole, old), True, seen)
            else:
                storage.put(whole, grad or (partial and storage.grad), seen)

        if isinstance(value, DeferredValue):
            storage.put(value, grad or (partial and storage.grad), since)
        elif since is None:
            storage.update(lambda seen: put(seen, value))
        else:
            put(since, value)
        if marks and marks[-1] is not None:
            # A parameter: left lazy, its graph would grow by one update a step.
            session().watching.companions.append(weakref.ref(storage))

    # --- gradients --------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient can be had through this tensor; settable like `requires_grad_`."""
        for op, arg in reversed(self._steps):
            if op is Ops.DETACH and arg.__class__ is not views.Hooks:
                return arg is not None
        storage = self._storage
        return storage.grad and (storage.deferred is not None or storage.node.dtype.kind == "float")

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        self.requires_grad_(wanted)

    @property
    def is_leaf(self) -> bool:
        """Whether it is no result of operations that are recorded for gradients."""
        return self._leaf() is not None or not self.requires_grad

    def _leaf(self) -> Leaf | None:
        """The identity under which gradients are accumulated in this very tensor, if it has one."""
        if self._steps and self._steps[-1][0] is Ops.DETACH:
            leaf = self._steps[-1][1]
            if leaf.__class__ is Leaf and leaf.owner() is self:
                found: Leaf = leaf
                return found
        return None

    def requires_grad_(self, wanted: bool = True) -> Self:
        """Make it a leaf that gradients are accumulated in, or stop that; return it.

        Raises GradientError unless the dtype is floating, or when the tensor is a result of
        operations that are recorded for gradients.
        """
        leaf = self._leaf()
        if wanted == self.requires_grad:
            return self
        if not wanted:
            if leaf is None:
                raise GradientError(
                    "only a leaf can stop requiring gradients",
                    hint="use detach() to go on with the same values without gradients",
                )
            views.change_steps(self, self._steps[:-1])
            return self
        if self._value().dtype.kind != "float":
            raise GradientError(
                "only floating-point tensors can require gradients",
                found=f"dtype {self.dtype}",
                hint="cast it first, for example with float()",
            )
        views.change_steps(self, (*self._steps, (Ops.DETACH, Leaf(self))))
        return self

    def detach(self) -> Self:
        """Return a tensor of the same values, aliasing this one, at which gradients stop."""
        return type(self)._on(self._storage, views.stopped(self._steps))

    # --- realisation ------------------------------------------------------------------------------

    def realize(self, *others: Array) -> Self:
        """Compute the value now, together with those of `others`; return this tensor."""
        if others:
            realize_storages([self._storage, *(tensor._storage for tensor in others)])
        else:
            realize_storages((self._storage,))
        return self

    def _ref(self) -> BufferRef:
        """Where the storage's value lies, computed if need be."""
        return _computed(self._storage)[1]

    def _raw(self) -> np.ndarray[Any, Any]:
        """A fresh array of the raw elements (`dtype.storage`) that the tensor shows."""
        owner = session()
        while True:
            before = owner.overwrites
            found = _read(self)
            # Who writes over old memory without a replay counts no readers of other threads.
            if owner.overwrites == before:
                return found

    def _is_cheap_to_read_whole(self) -> bool:
        base = self._storage.node
        strides, offset = self._strides()
        sizes = (*base.shape, *self.shape, *strides, offset)
        if not all(isinstance(extent, int) for extent in sizes):
            return False
        nbytes: int = math.prod(base.shape) * base.dtype.itemsize
        return nbytes <= max(_WHOLE_NBYTES, 2 * math.prod(self.shape) * base.dtype.itemsize)


def _read(x: Array) -> np.ndarray[Any, Any]:
    """The raw elements that a tensor shows, unless a result takes their memory meanwhile."""
    if views.is_whole(x._steps):
        found = _computed(x._storage)
        return session().download(found[1], x.dtype)
    base = x._storage.node
    if base.op is Ops.BUFFER and x._is_cheap_to_read_whole():
        data = session().download(base.arg, base.dtype)
        strides, offset = x._strides()
        itemsize = x.dtype.itemsize
        flat = data.reshape(-1)
        if itemsize != data.itemsize:
            assert x.dtype.storage is not None
            whole = flat.nbytes // itemsize * itemsize
            flat = flat.view(np.uint8)[:whole].view(x.dtype.storage)
        flat = flat[offset:]
        if not math.prod(x.shape):
            return np.empty(x.shape, flat.dtype)
        steps = tuple(stride * itemsize for stride in strides)
        shown = np.lib.stride_tricks.as_strided(flat, x.shape, steps)
        return np.array(shown)
    value = x._value()
    (ref,) = session().realize([value], x.device)
    return session().download(ref, x.dtype)


def _computed(storage: Storage) -> tuple[Node | DeferredValue, BufferRef]:
    """A storage's value, computed if need be, and where it lies.

    As long as the caller has the value in hand, no replay writes over it there. What was computed
    is had at once, whatever else is being compiled or computed meanwhile.
    """
    while True:
        realize_storages((storage,))
        held: Node | DeferredValue | None = storage.deferred
        if held is None or (isinstance(held, DeferredValue) and held.call is None):
            held = storage.node
        if isinstance(held, Node) and held.op is _BUFFER:
            return held, held.arg
        ref = session().realised(held)
        if ref is not None:
            return held, ref
        # Another thread has changed it since, or written over where it lay.


def realize_storages(storages: Iterable[Storage]) -> None:
    """Compute the values of storages, those of one device together.

    A storage through which no gradient passes then holds its buffer alone, so that the graph below
    it is freed; another keeps its expression, whose value the session remembers. Storages whose
    gradients were taken are computed along, while what they share with the others is at hand.

    How they are asked for does not matter: what is computed together is computed in the order in
    which the program made it, so the same program gives the same kernels.
    """
    asked = []
    for storage in storages:
        deferred = storage.deferred
        if storage.node.op is not _BUFFER if deferred is None else deferred.call is not None:
            asked.append(storage)
    if not asked:
        return
    owner = session()
    # From the look at what else reads old memory to the last write nobody else computes.
    with owner.lock:
        if len(asked) == 1 and not owner.watching.companions:
            if _computed_alone(owner, asked[0]) or _computed_by_key(
                owner, asked[0].device, asked, ()
            ):
                return
        by_device: dict[str, dict[Storage, None]] = {}
        for storage in asked:
            by_device.setdefault(storage.device, {})[storage] = None
        _realize_together(owner, by_device)


def _realize_together(owner: SessionLike, by_device: dict[str, dict[Storage, None]]) -> None:
    companions = owner.watching.companions
    spent: list[Storage] = [held for ref in companions if (held := ref()) is not None]
    companions.clear()
    for storage in spent:
        if storage.device in by_device and not _is_computed(owner, storage):
            by_device[storage.device][storage] = None
    for device, asked in by_device.items():
        found = sorted(asked, key=_since)
        if _computed_by_key(owner, device, found, spent):
            continue
        # Other threads may change them meanwhile: what is computed is what they hold now.
        held = [
            (storage, value := storage.deferred, storage.node if value is None else value.node)
            for storage in found
        ]
        wanted = list(dict.fromkeys([node for _, _, node in held]))
        donate = _donations(held, wanted) if owner.watching.downloads else {}
        free = _unread(donate, found, spent)
        refs = dict(zip(wanted, owner.realize(wanted, device, donate, free), strict=True))
        for storage, value, node in held:
            storage.previous = None
            if value is not None and value.call is not None:
                value.is_noted = True
                owner.note(value, refs[node])
            if not storage.grad or storage in spent:
                storage.settled = storage.settled or not all(
                    extent.__class__ is int for extent in node.shape
                )
                storage.hold(buffer_node(refs[node], node.dtype), value or node)


_since = attrgetter("since")


def _is_computed(owner: SessionLike, storage: Storage) -> bool:
    """Whether the value of a storage was computed."""
    deferred = storage.deferred
    if storage.node.op is _BUFFER if deferred is None else deferred.call is None:
        return True
    return owner.realised(storage.node if deferred is None else deferred) is not None


def _computed_alone(owner: SessionLike, storage: Storage) -> bool:
    """Compute a storage that a call makes of arrays, which nothing else is known of; or do nothing.

    False is for all others: `_computed_by_key` does the same for them, and more.
    """
    watching, value = owner.watching, storage.deferred
    if value is None or value.is_noted or watching.observers or watching.downloads:
        return False
    call, form = value.call, value.form
    if call is None or form.grad or call.nodes is not None:
        return False
    found = key_of_one(value)
    if found is None:
        return False
    key, leaves = found
    storage.previous = None

    def write_out() -> list[Node]:
        return Asked({value: None}, owner).write_out()

    handles = owner.realize_by_key(key, storage.device, leaves, write_out)
    if handles is None:
        return False
    call.template.written_out = 0
    (handle,) = handles
    if not value.lie_at(handle):
        # The key was new, or another thread looked: the call was written out.
        ref = BufferRef(handle, form.shape, storage.device)
        _hold_computed(owner, {value: ref}, [storage], ())
    return True


def _computed_by_key(
    owner: SessionLike, device: str, found: Sequence[Storage], spent: Sequence[Storage]
) -> bool:
    """Compute storages that are calls' results by the key of these; False where that cannot be."""
    watching = owner.watching
    if watching.observers or watching.downloads:
        return False
    missing: dict[DeferredValue, None] = {}
    refs: dict[DeferredValue, BufferRef] = {}
    for storage in found:
        value = storage.deferred
        if value is None:
            return False
        storage.previous = None
        if value.is_noted and (ref := owner.realised(value)) is not None:
            refs[value] = ref
        elif value.call is not None:
            missing[value] = None
    if missing:
        asked = Asked(missing, owner)
        if asked.key is None:
            return False
        handles = owner.realize_by_key(asked.key, device, asked.leaves, asked.write_out)
        if handles is None:
            return False
        for made in asked.calls:
            # Worth putting off.
            made.template.written_out = 0
        following = iter(handles)
        for value in missing:
            handle = next(following)
            if value.form.grad or not value.lie_at(handle):
                refs[value] = BufferRef(handle, value.form.shape, device)
    if refs:
        _hold_computed(owner, refs, found, spent)
    return True


def _hold_computed(
    owner: SessionLike, refs: Mapping[DeferredValue, BufferRef], found: Sequence[Storage],
    spent: Sequence[Storage],
) -> None:
    """Let storages hold what was computed of values whose calls have nodes, or gradients."""
    for storage in found:
        value = storage.deferred
        ref = None if value is None else refs.get(value)
        if value is None or ref is None:
            continue
        if value.call is not None and value.call.nodes is not None:
            owner.note(value.call.nodes[value.position], ref)
        kept = storage.grad and storage not in spent
        if kept or value.is_read:
            value.is_noted = True
            owner.note(value, ref)
        if not kept:
            storage.hold(buffer_node(ref, value.form.dtype), value)


def _donations(
    held: Iterable[tuple[Storage, DeferredValue | None, Node]], wanted: list[Node]
) -> dict[int, Any]:
    """For positions in `wanted`: the memory of the old value, which a replay may write over."""
    return {
        wanted.index(node): previous.handle
        for storage, _, node in held
        if (previous := storage.previous) is not None
        and previous.shape == node.shape
        and not previous.handle.readonly
    }


def _unread(donate: Mapping[int, Any], mine: Iterable[Storage], spent: list[Storage]) -> list[int]:
    """The positions whose old memory nothing else can read any more.

    What every other storage's value is made of is looked through, so this is for the one call that
    a jit captures.
    """
    if not donate:
        return []
    mine = set(mine)
    others = [s for s in live_storages() if s not in mine]
    others.extend(s for s in mine if s.grad and s not in spent)
    read = handles_read_by(others)
    return [position for position, handle in donate.items() if id(handle) not in read]


def check_shape_is_int(shape: tuple[Any, ...], what: str) -> tuple[int, ...]:
    """`shape` where every extent is an int. Raises ShapeError where one is symbolic."""
    if not all(isinstance(extent, int) for extent in shape):
        raise ShapeError(
            f"{what} needs extents that are known now",
            found=str(list(shape)),
            hint="cut or pad to a size that is known first",
        )
    return shape


def check_float(dtype: DType, what: str) -> None:
    """Raise DTypeError unless `dtype` is a floating-point one."""
    if dtype.kind != "float":
        raise DTypeError(
            f"{what} is of floating-point tensors",
            found=f"dtype {dtype}",
            hint="cast it first, for example with float()",
        )
