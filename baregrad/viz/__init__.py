"""A local page that shows what became of a program: lines, kernels, and the graph at every pass.

`recording` runs a program and keeps what the compiler made of it, `documents` turns that into JSON,
`server` hands the JSON and the page in `page/` to a browser on this machine.
"""
