"""Rewriting: patterns, named laws of scalars, and passes as objects.

In and out: nodes. Imports `core` and, to fold constants, `evaluate`.
"""
