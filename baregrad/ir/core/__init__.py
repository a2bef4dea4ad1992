"""The graph itself: nodes, the op table, typed attributes, shapes, bounds and index arithmetic.

Imports no other part of `ir`.
"""
