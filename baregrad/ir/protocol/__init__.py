"""What runs at the same time on a GPU: roles, pipes, barriers, checked before a kernel exists.

Imports `core`.
"""
