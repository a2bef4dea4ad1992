"""What fusion asks of a graph, found once: what is read how often, what a value costs.

In: a SINK of tensor values. Out: a `Survey`, bytes that move, and sums and factors to store.
Imports nothing of the room.
"""
