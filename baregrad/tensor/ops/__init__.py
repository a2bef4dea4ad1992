"""Operations on tensors by family; each is a method of `Tensor`.

Imports `array` and `autograd`.
"""
