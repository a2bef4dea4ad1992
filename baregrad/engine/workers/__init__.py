"""Processes of our own that work for this one: started by themselves, asked by messages.

They compile what this process would compile by itself, beside each other, or run what may crash.
"""
