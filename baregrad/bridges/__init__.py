"""Other frameworks' programs on our compiler: PyTorch's graphs as its tracer gives them, einops.

`torch_backend` is what `torch.compile(model, backend="baregrad")` finds, `torch_graph` runs one
traced graph, `torch_memory` lends tensors to each side without copies, `aten` has a function of
ours for each of PyTorch's operators. `einops` has einops know our tensors.
"""
