"""Planning for a CPU: vectors, registers, caches and the thread pool.

In and out as in `planning`.
"""
