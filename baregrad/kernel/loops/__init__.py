"""Pieces of the loop level, and rewrites of it.

Accesses, guards, blocks of statements, stores that wait. Imports `facts`.
"""
