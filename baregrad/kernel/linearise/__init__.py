"""Loop level to linear level: a flat list of instructions on virtual registers.

Imports `loops`, `legalise` and `instructions`.
"""
