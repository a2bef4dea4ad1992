"""A tensor made of NumPy alone, in float64: the independent answer that programs are held to.

Takes expressions written for `Tensor` and gives arrays with dtypes. Imports nothing of the stack
but `dtypes`. It has the methods that random programs use most, with the meaning that PyTorch's
documentation gives them; any other raises Uncovered. Integers wrap as their dtype does; floats are
rounded to theirs only where a whole statement is compared. Everything is a copy: a write in place
changes one twin alone.
"""
