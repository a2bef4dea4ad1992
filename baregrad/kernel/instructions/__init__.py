"""Instructions that multiply and add many numbers at once, each a row of data.

AMX tiles, dot products of words, `mma.sync`, `wgmma`: what each adds up, what it wants of axes,
and what it becomes. In: the table of axes and sums. Out: nodes. Imports `language`, `facts` and
`loops`.
"""
