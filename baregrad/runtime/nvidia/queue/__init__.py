"""Channels: rings of work that a GPU takes, and the words in them.

Imports `driver` and `code`.
"""
