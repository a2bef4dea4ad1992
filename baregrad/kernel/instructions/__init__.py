"""Instructions that multiply and add many numbers at once.

AMX tiles, dot products of words, `mma.sync`: what each wants of axes, and what it becomes.
"""
