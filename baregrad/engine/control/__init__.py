"""Loops, choices and kernels of text: bodies planned once, and run as often as there are steps."""
