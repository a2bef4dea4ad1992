"""Where instructions go: nested scopes, each a list of code, with hoisting and reuse of values.

A pure instruction is emitted once, in the outermost open scope in which all its operands are
defined: behind what that scope has so far, which is just before the inner loop that is being
written. What reads a register or memory that the kernel writes (a *momentary* value) stays in the
current scope and is forgotten when its statement ends.

A load stays inside a condition, and is forgotten with it. What is emitted again further out then
takes the place of the copies that the open scopes hold: where a block ends, the definitions in it
end as well, so none may hide one that goes on.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, const, instruction, make_node
from baregrad.ir.core.op import Op, Ops

ZERO = const(0, dtypes.int64)
END = make_node(Ops.END, dtypes.token)
# The depth of momentary values: deeper than any scope.
MOMENT = 1 << 30


@lru_cache(1 << 12)
def number(value: int) -> Node:
    """A constant offset: those of kernels are alike."""
    return const(value, dtypes.int64)


class CodeScope:
    """The code of one loop or condition being written.

    `opening` is the instruction that opens it; `floor` is the outermost scope that a load found
    here may be hoisted to, and `pin` that for any instruction; `values` and `keys` are what to
    forget when it closes.
    """

    __slots__ = ("code", "floor", "keys", "opening", "pin", "values")

    def __init__(self, opening: Node | None, floor: int, pin: int) -> None:
        self.opening = opening
        self.floor = floor
        self.pin = pin
        self.code: list[Node] = []
        self.values: list[Node] = []
        self.keys: list[Any] = []


class Scopes:
    """The stack of open scopes, and the values that are known in them.

    `depth` is the scope of each value that is known, MOMENT for momentary ones and registers;
    leaves are not in it. `forgotten` has what was known in a scope and is not. `memo` maps an
    expression of the loop level (with the point it was evaluated at) to its linear value. `masked`
    is the outermost scope that keeps such a value: that of the statements under a mask, if there is
    one, since a constant that stands for what the mask leaves out is right under it alone.
    """

    def __init__(self) -> None:
        self.stack = [CodeScope(None, 0, 0)]
        self.innermost = self.stack[0]
        self.depth: dict[Node, int] = {}
        self.forgotten: set[Node] = set()
        self.memo: dict[Any, Any] = {}
        self.masked = 0
        self.momentary: list[Node] = []
        self.momentary_keys: list[Any] = []

    def open(self, opening: Node, speculative: bool, lazy: bool = False) -> None:
        """Enter a loop or condition.

        speculative: its body may not run at all. lazy: so rarely that nothing is to leave it.
        """
        depth = len(self.stack)
        outer = self.innermost
        floor = depth if speculative else outer.floor
        self.innermost = CodeScope(opening, floor, depth if lazy else outer.pin)
        self.stack.append(self.innermost)
        self.depth[opening] = depth
        self.innermost.values.append(opening)

    def close(self) -> None:
        """Leave the innermost scope; its code goes to the one around it, unless it is empty."""
        scope = self.stack.pop()
        self.innermost = self.stack[-1]
        self._forget(scope.values, scope.keys)
        self.forgotten.update(scope.values)
        if scope.code and scope.opening is not None:
            self.innermost.code += [scope.opening, *scope.code, END]

    def append(self, instruction: Node) -> None:
        """Add an instruction with an effect to the current scope."""
        self.innermost.code.append(instruction)

    def emit(
        self,
        op: Op,
        dtype: DType,
        src: tuple[Node, ...] = (),
        arg: Any = None,
        floor: int = 0,
        lanes: int = 0,
    ) -> Node:
        """The value of an instruction, emitted where it belongs unless it is there already.

        floor: the outermost scope that it may go to, MOMENT if it is momentary. lanes: of the
        value, where the caller has them at hand and they do not follow from the operands.
        """
        if lanes:
            node = instruction(op, dtype, src, arg, (lanes,) if lanes > 1 else ())
        else:
            node = make_node(op, dtype, src, arg)
        return self.place(node, floor)

    def place(self, node: Node, floor: int = 0) -> Node:
        """Emit an instruction that was made, as `emit` does."""
        depth = self.depth
        if node in depth:
            return node
        self.put(node, max(floor, self.innermost.pin, *[depth.get(c, 0) for c in node.src]))
        return node

    def place_at(self, node: Node, at: int) -> Node:
        """`place` of an instruction whose operands are known to be defined at depth `at`."""
        if node not in self.depth:
            pin = self.innermost.pin
            self.put(node, at if at > pin else pin)
        return node

    def put(self, node: Node, place: int) -> None:
        """Add an instruction to the code of the scope `place`; to the current one for MOMENT."""
        self.depth[node] = place
        scope = self.innermost
        if place == MOMENT:
            self.momentary.append(node)
        else:
            home = self.stack[place]
            if home is not scope:
                scope = home
                if node in self.forgotten:
                    for inner in self.stack[place + 1 :]:
                        if node in inner.code:
                            inner.code = [other for other in inner.code if other is not node]
            scope.values.append(node)
        scope.code.append(node)

    def settle(self, value: Node) -> None:
        """Let a register or momentary value that is not set again last as long as the scope."""
        if value in self.momentary:
            self.momentary.remove(value)
        self.depth[value] = len(self.stack) - 1
        self.innermost.values.append(value)

    def remember(self, key: Any, value: Any) -> None:
        """Keep `value`, a node or a tuple of them, for `key` as long as it is right."""
        self.memo[key] = value
        depth = self.depth
        if value.__class__ is tuple:
            place = max(depth.get(part, 0) for part in value)
        else:
            place = depth.get(value, 0)
        if place == MOMENT:
            self.momentary_keys.append(key)
        else:
            self.stack[max(place, self.masked)].keys.append(key)

    def mark(self) -> tuple[int, int]:
        """A moment that `forget_since` can go back to."""
        return len(self.momentary), len(self.momentary_keys)

    def mask(self) -> tuple[int, int, int]:
        """Begin statements under a mask; the place that `unmask` goes back to."""
        before, self.masked = self.masked, len(self.stack) - 1
        return before, len(self.innermost.values), len(self.innermost.keys)

    def unmask(self, place: tuple[int, int, int]) -> None:
        """Forget what the current scope found since `place`: it was read under a mask."""
        scope = self.innermost
        self.masked, values, keys = place
        self._forget(scope.values[values:], scope.keys[keys:])
        self.forgotten.update(scope.values[values:])
        del scope.values[values:]
        del scope.keys[keys:]

    def end_statement(self) -> None:
        """Forget all momentary values: what they read may have changed."""
        if self.momentary or self.momentary_keys:
            self._forget(self.momentary, self.momentary_keys)
            self.forgotten.update(self.momentary)
            self.momentary, self.momentary_keys = [], []

    def forget_since(self, mark: tuple[int, int]) -> None:
        """Forget the momentary values found since `mark`."""
        nodes, keys = mark
        if len(self.momentary) > nodes or len(self.momentary_keys) > keys:
            self._forget(self.momentary[nodes:], self.momentary_keys[keys:])
            self.forgotten.update(self.momentary[nodes:])
            del self.momentary[nodes:]
            del self.momentary_keys[keys:]

    def _forget(self, values: list[Node], keys: list[Any]) -> None:
        forget = self.depth.pop
        for value in values:
            forget(value, None)
        for key in keys:
            self.memo.pop(key, None)
