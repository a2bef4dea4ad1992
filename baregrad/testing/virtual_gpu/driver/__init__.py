"""The kernel driver of a GPU that is not there: ioctls, objects, memory.

Imports `machine`.
"""
