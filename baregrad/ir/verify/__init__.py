"""The verifier: the grammar of each level, checked node by node.

Imports `core`.
"""
