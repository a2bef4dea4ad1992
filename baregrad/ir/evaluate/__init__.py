"""Reference evaluators: what the nodes of each level mean, on NumPy arrays.

Imports `core`, `analysis` and `protocol`.
"""
