"""Special functions: gamma and zeta, the normal distribution's, Bessel's; parts of complex numbers.

In come tensors, out go tensors, by operations with gradients. Imports `array` and `ops`.
"""
