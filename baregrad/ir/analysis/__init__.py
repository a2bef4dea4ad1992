"""What is asked of graphs and found without changing them: liveness, outlines, runs of axes.

Imports `core`.
"""
