"""Command lists: launches recorded once, patched and submitted.

Imports `queue` and `code`.
"""
