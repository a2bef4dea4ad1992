"""Linear level to PTX, the code of one thread.

In: a PROGRAM. Out: text.
"""
