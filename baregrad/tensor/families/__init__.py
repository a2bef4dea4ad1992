"""The methods of `Tensor` by family, each a name of a function of the family's module in `ops`.

In come functions of tensors; out come classes that `Tensor` inherits. Imports `array` and `ops`.
"""
