"""The scalar rules as one rule set: laws whose right side is always better.

`simplify` is what other rooms call. Every law holds bit for bit for the dtypes that its rule
matches, NaNs counting as one value; a fuzzer compares both sides in the reference evaluator.
"""

from __future__ import annotations

from baregrad.ir.algebra.casts import CAST_RULES
from baregrad.ir.algebra.constants import CONSTANT_RULES
from baregrad.ir.algebra.floats import FLOAT_RULES
from baregrad.ir.algebra.logic import LOGIC_RULES
from baregrad.ir.algebra.positions import INDEX_RULES
from baregrad.ir.algebra.rewrite import RuleSet
from baregrad.ir.algebra.wrapping import INTEGER_RULES
from baregrad.ir.core.node import Node

ALGEBRA = RuleSet(
    "algebra",
    (
        *CONSTANT_RULES,
        *LOGIC_RULES,
        *INTEGER_RULES,
        *FLOAT_RULES,
        *CAST_RULES,
        *INDEX_RULES,
    ),
)


def simplify(node: Node) -> Node:
    """`node` with the scalar rules applied in one walk; shape, dtype and value stay the same."""
    return ALGEBRA.rewrite(node)
