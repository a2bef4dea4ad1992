"""A schedule applied: a KERNEL of the kernel level becomes loops and stores of the loop level.

Imports `language`, `facts`, `instructions`, `gpu` and `loops`.
"""
