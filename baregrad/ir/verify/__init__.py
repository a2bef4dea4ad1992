"""The verifier: the grammar of each level, checked node by node.

Imports `core`, `analysis`, `text`, `protocol` and, for traces, `evaluate`.
"""
