"""Gradients: a table of rules keyed by op, and the walks that apply it.

Imports `array`.
"""
