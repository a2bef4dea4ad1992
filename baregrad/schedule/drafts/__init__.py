"""Kernels as they are written: indices through views, drafts, and the nodes made of them.

In: requests for values at places. Out: expressions and their settled axes. Imports nothing of the
room.
"""
