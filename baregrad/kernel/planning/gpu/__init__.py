"""Planning for a GPU: blocks, threads, shared memory and the matrix unit.

In and out as in `planning`.
"""
