"""What a GPU kernel asks memory for ahead of what it waits for.

Other threads' parts of a sum, or the kernel in front. In and out: the linear level.
"""
