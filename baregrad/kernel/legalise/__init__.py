"""What the machine lacks becomes what it has: dtypes, functions, divisions.

In and out: the loop level. Imports `loops`.
"""
