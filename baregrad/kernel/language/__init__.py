"""Schedules as values: they print, parse, hash and are mutated.

In: text. Out: `Schedule`. Imports no other part of `kernel`.
"""
