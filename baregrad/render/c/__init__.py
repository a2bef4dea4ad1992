"""Linear level to C with GNU builtins, and to CUDA C, which shares its rules.

In: a PROGRAM. Out: text.
"""
