"""Loops and choices of a graph: their bodies planned once, and run as often as there are steps."""
