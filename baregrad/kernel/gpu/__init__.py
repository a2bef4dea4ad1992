"""What the threads of a GPU block share.

Copies in shared memory, their layouts and pipelines, barriers, and the code of one thread. In and
out: the loop level.
"""
