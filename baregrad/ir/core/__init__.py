"""The graph itself: nodes, the op table, typed attributes, shapes, bounds and index arithmetic.

Imports no other part of `ir`.
"""

# Nodes need these rules and are made without: the rules are made of nodes.
from baregrad.ir.core import shape as shape
