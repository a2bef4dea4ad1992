"""What every tensor is: a storage, the steps by which it is viewed, and the builders of nodes.

Imports no other part of `tensor`.
"""
