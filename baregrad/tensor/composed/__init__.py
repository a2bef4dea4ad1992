"""Operations that are short compositions of others, by PyTorch's names, and forms in place.

In come tensors and numbers; out come tensors of the same class. Imports `array` and `ops`.
"""
