"""Complex tensors: pairs of floats that every op, device and gradient sees as such.

In come calls of operations with complex operands, out go real operations on their pairs. Imports
`array`, `ops` and the class `Tensor`.
"""
