"""What is computed where it is read, and what is stored, in which form and order.

In: a SINK of tensor values. Out: a `Fusion` of drafts and decisions. Imports `facts`, `drafts` and
`plan`.
"""
