"""Eigenvalues and singular values: batches of matrices (B, m, n) in, values and vectors out.

Matrices are made tridiagonal or bidiagonal by reflections, divided into small ones that rotations
make diagonal, and joined again by the zeros of rational functions. It imports the blocks, factors
and reflections of the room that holds it.
"""
