"""Linear level to LLVM IR, one rule per op.

In: a PROGRAM. Out: text.
"""
