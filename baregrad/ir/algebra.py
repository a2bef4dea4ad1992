"""The scalar rules as one rule set: laws whose right side is always better.

`simplify` is what other rooms call. Every law holds bit for bit for the dtypes that its rule
matches, NaNs counting as one value; a fuzzer compares both sides in the reference evaluator.
"""

from __future__ import annotations

from baregrad.ir.algebra_casts import CAST_RULES
from baregrad.ir.algebra_constants import CONSTANT_RULES
from baregrad.ir.algebra_floats import FLOAT_RULES
from baregrad.ir.algebra_index import INDEX_RULES
from baregrad.ir.algebra_integers import INTEGER_RULES
from baregrad.ir.algebra_logic import LOGIC_RULES
from baregrad.ir.node import Node
from baregrad.ir.rewrite import RuleSet

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
