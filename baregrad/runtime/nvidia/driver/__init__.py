"""The kernel driver: files, ioctls, objects, memory, doorbells, recorded calls.

Imports `abi`.
"""
