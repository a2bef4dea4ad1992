"""Special functions: gamma and zeta, the normal distribution's, Bessel's.

In come tensors, out go tensors, by operations with gradients. Imports `array` and `ops`.
"""
