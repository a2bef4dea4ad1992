"""`jit`: a function's work captured and replayed.

Imports `array`, `ops` and the class `Tensor`.
"""
