"""The text form of graphs, written and parsed.

In: nodes or text. Out: the other. Imports `core` and `protocol`.
"""
