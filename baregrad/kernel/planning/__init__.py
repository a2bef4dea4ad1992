"""The first schedule of a kernel, chosen without measuring.

In: facts and a target. Out: a `Schedule` with its reasons. Imports `language`, `facts`, `loops`,
`instructions` and `gpu`.
"""
