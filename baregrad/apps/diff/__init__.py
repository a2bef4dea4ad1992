"""`baregrad diff`: where a program first computes something else, or something that is not finite.

In comes a program's file and what it is compared with: a device, PyTorch, a recording. Out come the
operation, the user's line, and a script that shows it. Imports `engine` and below.
"""
