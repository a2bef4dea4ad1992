"""The engines of a GPU that is not there: host, compute, copies.

Imports `ptx`.
"""
