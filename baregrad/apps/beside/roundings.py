"""What rounding alone may do to a function of PyTorch's: its ops with one more rounding each.

A result that is far from the exact one is no error where the function magnifies what each of its
steps rounds off: 1 - y * y near y = 1, or a sum whose terms cancel. The model of that: whatever an
op gives, forward and backward, is off by as much as half a unit in the last place of its dtype
once more, up or down at random. An op that is a formula of others is taken apart into them, as
PyTorch's own decompositions say: 1 + erf(x) cancels inside of gelu for negative x.
"""

from __future__ import annotations

from typing import Any

# Ops that PyTorch has decompositions of, in which something may cancel: activations, losses, norms.
FORMULAS = frozenset({
    "_log_softmax", "_log_softmax_backward_data", "_softmax", "_softmax_backward_data",
    "binary_cross_entropy", "binary_cross_entropy_backward", "binary_cross_entropy_with_logits",
    "celu", "elu", "elu_backward", "gelu", "gelu_backward", "glu", "glu_backward", "hardsigmoid",
    "hardsigmoid_backward", "hardswish", "hardswish_backward", "huber_loss", "huber_loss_backward",
    "log_sigmoid_backward", "log_sigmoid_forward", "logit", "logit_backward", "logsumexp", "mish",
    "mish_backward", "mse_loss", "mse_loss_backward", "native_group_norm",
    "native_group_norm_backward", "native_layer_norm", "native_layer_norm_backward", "selu",
    "sigmoid_backward", "silu", "silu_backward", "smooth_l1_loss", "smooth_l1_loss_backward",
    "softplus", "softplus_backward", "std", "tanh_backward", "var", "var_mean",
})


def rounding_mode(torch: Any, device: str, seed: int) -> Any:
    """A context in which PyTorch's ops on a device round once more, as `seed` decides."""
    from torch._decomp import decomposition_table
    from torch.utils._python_dispatch import TorchDispatchMode

    generator = torch.Generator(device).manual_seed(seed)

    def rounded(value: Any, returned: Any) -> Any:
        # What an op changes in place, or shows of another, is that other's memory.
        if not isinstance(value, torch.Tensor) or returned.alias_info is not None:
            return value
        if not value.is_floating_point() or value.device.type != generator.device.type:
            return value
        half = torch.finfo(value.dtype).eps / 2
        off = torch.rand(value.shape, generator=generator, dtype=torch.float64, device=device)
        return (value.double() * (1 + half * (2 * off - 1))).to(value.dtype)

    class Roundings(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        """Ops of PyTorch's, each of whose results of floats is rounded again."""

        def __torch_dispatch__(
            self, op: Any, types: Any, inputs: Any = (), options: Any = None
        ) -> Any:
            steps = decomposition_table.get(op) if op.__name__.split(".")[0] in FORMULAS else None
            if steps is not None:
                with self:
                    return steps(*inputs, **(options or {}))
            found = op(*inputs, **(options or {}))
            returns = op._schema.returns
            if isinstance(found, tuple | list) and len(found) == len(returns):
                return type(found)(map(rounded, found, returns))
            return rounded(found, returns[0]) if len(returns) == 1 else found

    return Roundings()
