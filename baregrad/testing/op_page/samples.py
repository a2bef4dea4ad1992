"""One sound call of each operation, as a text that our tensors and PyTorch's both run.

Names: `x` and `y` are of floats (2, 3), `m` (3, 4), `v` (3,), `p` of shares from 0 to 1 (2, 3), `s`
square (3, 3), `n` and `k` of integers (2, 3), `b` of bools (2, 3), `i` of places (2,), `img` (1, 2,
6, 6), `line` (1, 2, 6), `cube` (1, 2, 4, 4, 4), `w1`, `w2`, `w3` weights (3, 2, 3, ...) of
convolutions, `ids` of classes (2,), `T` the class of tensors.
"""

from __future__ import annotations

import inspect
from types import MappingProxyType
from typing import Any

from baregrad.tensor import Tensor

# What waits, reads, or changes what is not a tensor, and what is no operation.
_NO_OPERATION = frozenset((
    "backward", "gradient", "requires_grad_", "zero_grad", "realize", "manual_seed", "no_grad",
    "enable_grad", "set_grad_enabled", "is_grad_enabled", "register_hook", "retain_grad",
    "from_numpy", "from_dlpack", "detach", "numpy", "tolist", "item", "dim", "size", "stride",
    "numel", "nelement", "element_size", "is_contiguous", "is_floating_point", "is_complex",
))  # fmt: skip
# Arguments behind the first, where it is `x` and there are some, or the whole call.
_ARGUMENTS = MappingProxyType({
    "atan2": "y", "arctan2": "y", "copysign": "y", "hypot": "y", "xlogy": "y", "lerp": "y, 0.25",
    "addcmul": "y, y", "addcdiv": "y, y", "pow": "2", "heaviside": "y", "fma": "y, y",
    "expand": "2, 3", "broadcast_to": "(2, 3)", "flip": "(0,)", "permute": "1, 0", "repeat": "2, 1",
    "reshape": "3, 2", "view": "3, 2", "tile": "(2, 1)", "unflatten": "1, (3, 1)",
    "unfold": "1, 2, 1", "unsqueeze": "0", "narrow": "1, 0, 2", "select": "1, 0", "split": "1",
    "chunk": "2", "tensor_split": "2", "roll": "1", "movedim": "0, 1", "moveaxis": "0, 1",
    "repeat_interleave": "2", "swapaxes": "0, 1", "swapdims": "0, 1", "transpose": "0, 1",
    "pad": "(1, 1)", "kthvalue": "1", "topk": "2", "quantile": "0.5", "cummax": "1", "cummin": "1",
    "cumprod": "1", "cumsum": "1", "logcumsumexp": "1", "logsumexp": "1", "softmax": "1",
    "log_softmax": "1", "softmin": "1", "threshold": "0.1, 2.0", "full_like": "2.0",
    "fill_": "2.0", "copy_": "y", "assign": "y", "lerp_": "y, 0.25", "addcmul_": "y, y",
    "addcdiv_": "y, y", "pow_": "2", "masked_fill": "b, 1.0", "masked_fill_": "b, 1.0",
    "masked_select": "b", "gather": "1, n", "scatter": "1, n, 1.0", "scatter_": "1, n, 1.0",
    "scatter_add": "1, n, y", "scatter_add_": "1, n, y", "scatter_reduce": "1, n, y, 'sum'",
    "scatter_reduce_": "1, n, y, 'sum'", "index_select": "0, i", "index_add": "0, i, y",
    "index_add_": "0, i, y", "index_copy": "0, i, y", "index_copy_": "0, i, y",
    "apply_": "lambda v: v * 2", "map_": "y, lambda v, w: v + w", "histogram": "4",
    "new_empty_strided": "(2, 3), (3, 1)", "record_stream": "None", "resize_": "4",
    "index_fill": "0, i, 1.0", "index_fill_": "0, i, 1.0", "index_put": "(i,), y",
    "index_put_": "(i,), y", "take": "n", "take_along_dim": "n, 1", "bitwise_and": "k",
    "outer": "y", "type_as": "y", "new_full": "(2,), 1.0", "new_tensor": "[1.0]",
    "new_zeros": "2, 3", "new_ones": "2, 3", "new_empty": "2, 3", "multinomial": "2",
    "mse_loss": "y", "l1_loss": "y", "smooth_l1_loss": "y", "huber_loss": "y", "kl_div": "p",
    "binary_cross_entropy_with_logits": "p", "poisson_nll_loss": "p", "soft_margin_loss": "y",
    "gaussian_nll_loss": "y, p", "cross_entropy": "ids", "nll_loss": "ids",
    "hinge_embedding_loss": "y.sign()", "margin_ranking_loss": "y, y.sign()",
    "triplet_margin_loss": "y, p", "cosine_embedding_loss": "y, ids.float() * 2 - 1",
    "layer_norm": "(3,)", "rms_norm": "(3,)", "prelu": "v[:1]", "where": "", "cdist": "y",
    "is_same_size": "y", "dist": "y", "movedim_": "0, 1", "renorm": "2.0, 0, 1.0",
    "mvlgamma": "2", "polygamma": "1", "select_scatter": "v, 0, 0", "ldexp": "n", "gcd": "k",
    "slice_scatter": "y[:1], 0, 0, 1", "masked_scatter": "b, y", "masked_scatter_": "b, y",
    "narrow_copy": "1, 0, 2", "unsafe_chunk": "2", "unsafe_split": "1", "new": "2, 3",
    "unsafe_split_with_sizes": "[1, 1]",
    "split_with_sizes": "[1, 1]", "hsplit": "3", "vsplit": "2", "sum_to_size": "(1, 3)",
    "unsqueeze_": "0", "float_power": "2", "clamp_min": "0.0", "clamp_max": "0.0",
    "clamp_min_": "0.0", "clamp_max_": "0.0", "fill_diagonal_": "1.0", "nanquantile": "0.5",
    "index_reduce": "0, i, y, 'amax'", "index_reduce_": "0, i, y, 'amax'",
    "put": "i, v[:2]", "put_": "i, v[:2]", "random_": "0, 5",
    "cauchy_": "", "exponential_": "", "geometric_": "0.5", "log_normal_": "",
    "cumsum_": "1", "cumprod_": "1", "swapaxes_": "0, 1", "swapdims_": "0, 1",
    "transpose_": "0, 1", "copysign_": "y", "hypot_": "y", "atan2_": "y", "arctan2_": "y",
    "xlogy_": "y", "heaviside_": "y", "histc": "4",
    "float_power_": "2", "ldexp_": "n", "nonzero_static": "size=4", "renorm_": "2.0, 0, 1.0",
    "isin": "y", "tensordot": "m, 1", "bucketize": "v.sort()[0]",
})  # fmt: skip
_CALLS = MappingProxyType({
    "where": "x.where(b, y)", "linear": "x.linear(m.T)", "matmul": "x.matmul(m)", "mm": "x.mm(m)",
    "mv": "x.mv(v)", "bmm": "x.unsqueeze(0).bmm(m.unsqueeze(0))", "dot": "v.dot(v)",
    "outer": "v.outer(v)", "kron": "x.kron(y)", "addmm": "s.addmm(s, s)",
    "baddbmm": "s.unsqueeze(0).baddbmm(s.unsqueeze(0), s.unsqueeze(0))",
    "clamp": "x.clamp(-1.0, 1.0)", "clip": "x.clip(-1.0, 1.0)", "clamp_": "x.clamp_(-1.0, 1.0)",
    "clip_": "x.clip_(-1.0, 1.0)", "uniform_": "x.uniform_(0.0, 1.0)", "normal_":
    "x.normal_(0.0, 1.0)",
    "einsum": "T.einsum('ij,jk->ik', x, m)", "trace": "s.trace()", "tril": "x.tril()",
    "embedding": "x.embedding(i)", "one_hot": "n.one_hot(4)", "bincount": "n.flatten().bincount()",
    "binary_cross_entropy": "p.binary_cross_entropy(p.detach())", "logit": "p.logit()",
    "acos": "(p * 0.9).acos()", "arccos": "(p * 0.9).arccos()", "asin": "(p * 0.9).asin()",
    "arcsin": "(p * 0.9).arcsin()", "atanh": "(p * 0.9).atanh()", "log": "p.log()",
    "arctanh": "(p * 0.9).arctanh()", "acosh": "(p + 1.5).acosh()", "log2": "p.log2()",
    "arccosh": "(p + 1.5).arccosh()", "log10": "p.log10()", "sqrt": "p.sqrt()",
    "rsqrt": "p.rsqrt()", "bernoulli": "p.bernoulli()", "multinomial": "p.multinomial(2)",
    "adaptive_avg_pool1d": "line.adaptive_avg_pool1d(2)",
    "adaptive_avg_pool2d": "img.adaptive_avg_pool2d(2)",
    "adaptive_max_pool2d": "img.adaptive_max_pool2d(2)", "avg_pool1d": "line.avg_pool1d(2)",
    "avg_pool2d": "img.avg_pool2d(2)", "avg_pool3d": "cube.avg_pool3d(2)",
    "max_pool1d": "line.max_pool1d(2)", "max_pool2d": "img.max_pool2d(2)",
    "max_pool3d": "cube.max_pool3d(2)", "interpolate": "img.interpolate(scale_factor=2)",
    "conv1d": "line.conv1d(w1)", "conv2d": "img.conv2d(w2)", "conv3d": "cube.conv3d(w3)",
    "conv_transpose1d": "line.conv_transpose1d(w1.transpose(0, 1))",
    "conv_transpose2d": "img.conv_transpose2d(w2.transpose(0, 1))",
    "conv_transpose3d": "cube.conv_transpose3d(w3.transpose(0, 1))", "im2col": "img.im2col(2)",
    "col2im": "img.reshape(1, 8, 9).col2im((4, 4), 2)",
    "pixel_shuffle": "cube[:, :, 0].repeat(1, 2, 1, 1).pixel_shuffle(2)",
    "batch_norm": "img.batch_norm(v[:2].detach(), v[:2].detach().abs())",
    "group_norm": "img.group_norm(2)", "instance_norm": "img.instance_norm()",
    "normalize": "x.normalize()", "glu": "m.glu()",
    "scaled_dot_product_attention": "line.scaled_dot_product_attention(line, line)",
    "meshgrid": "T.meshgrid(v, v)", "unique": "n.unique()", "diag_embed": "x.diag_embed()",
    "bitcast": "x.bitcast('int32')", "cast": "x.cast('float64')", "type": "x.type('float64')",
    "to_device": "x.to_device('CPU')", "to": "x.to('float64')", "arange": "T.arange(5)",
    "linspace": "T.linspace(0, 1, 5)", "eye": "T.eye(3)", "full": "T.full((2, 3), 1.0)",
    "zeros": "T.zeros(2, 3)", "ones": "T.ones(2, 3)", "empty": "T.empty(2, 3)",
    "rand": "T.rand(2, 3)", "randn": "T.randn(2, 3)", "uniform": "T.uniform(2, 3)",
    "normal": "T.normal(0.0, 1.0, (2, 3))", "randint": "T.randint(0, 5, (2, 3))",
    "randperm": "T.randperm(5)", "cat": "T.cat([x, y])", "concat": "T.concat([x, y])",
    "concatenate": "T.concatenate([x, y])", "stack": "T.stack([x, y])", "t": "x.t()",
    "hstack": "T.hstack([x, y])", "vstack": "T.vstack([x, y])", "dot_bytes":
    "n.to('uint8').dot_bytes(n.T.to('int8'))", "complex": "x.complex(y)", "polar": "p.polar(y)",
    "view_as_real": "x.complex(y).view_as_real()", "conj": "x.complex(y).conj()",
    "view_as_complex": "x.reshape(3, 2).view_as_complex()",
    "det": "s.det()", "inverse": "s.inverse()", "logdet": "(s @ s.T).logdet()",
    "slogdet": "s.slogdet()", "cholesky": "(s @ s.T + T.eye(3)).cholesky()",
    "matrix_power": "s.matrix_power(2)", "pinverse": "s.pinverse()", "qr": "s.qr()",
    "svd": "s.svd()[1]", "matrix_exp": "s.matrix_exp()", "addmv": "v.addmv(s, v)",
    "addr": "s.addr(v, v)", "addbmm": "s.addbmm(s.unsqueeze(0), s.unsqueeze(0))",
    "inner": "v.inner(v)", "vdot": "v.vdot(v)", "cross": "x.cross(y, 1)", "ger": "v.ger(v)",
    "erfinv": "(p * 0.9).erfinv()", "polygamma": "p.polygamma(1)",
    "lgamma": "p.lgamma()", "digamma": "p.digamma()",
    "gcd": "n.gcd(k)", "lcm": "n.lcm(k)", "gcd_": "n.gcd_(k)", "lcm_": "n.lcm_(k)",
    "dsplit": "cube[0].dsplit(2)", "unique_consecutive": "n.unique_consecutive()",
    "diagonal_scatter": "s.diagonal_scatter(v)", "masked_scatter": "x.masked_scatter(b, y)",
    "sinc_": "x.sinc_()", "diagflat": "v.diagflat()", "cov": "x.cov()",
    "as_strided_scatter": "x.contiguous().as_strided_scatter(y[:2, :2], (2, 2), (1, 2))",
    "as_strided": "x.contiguous().as_strided((2, 2), (1, 2), 1)", "lgamma_": "(p * 1).lgamma_()",
    "digamma_": "(p * 1).digamma_()", "polygamma_": "(p * 1).polygamma_(1)",
    "mvlgamma_": "(p + 2).mvlgamma_(2)", "erfinv_": "(p * 0.9).erfinv_()",
    "searchsorted": "x.sort(1)[0].searchsorted(y)", "unravel_index": "n.unravel_index((2, 3))",
    "combinations": "v.combinations(2)", "trapezoid": "x.trapezoid()", "trapz": "x.trapz()",
    "cumulative_trapezoid": "x.cumulative_trapezoid()", "fill_diagonal_": "x.fill_diagonal_(1.0)",
    "cholesky_inverse": "(s @ s.T + T.eye(3)).cholesky().cholesky_inverse()",
    "geqrf": "x.detach().geqrf()", "orgqr": "s.orgqr(v)", "ormqr": "m[:, :3].ormqr(v, s)",
    "lu_solve": "s.lu_solve(s + 2 * T.eye(3), T.arange(1, 4).int())",
    "cholesky_solve": "s.cholesky_solve((s @ s.T + T.eye(3)).cholesky())",
    "triangular_solve": "s.triangular_solve(s)", "mode": "n.mode()",
    "istft": "line[0].stft(4, return_complex=True).istft(4)", "geometric_": "p.geometric_(0.5)",
    "nextafter": "x.detach().nextafter(y.detach())",
    "corrcoef": "x.corrcoef()", "stft": "line[0].stft(4, return_complex=True)",
})  # fmt: skip


def operations() -> list[str]:
    """The names of methods that are operations on tensors, in order."""
    found = []
    for name in sorted(dir(Tensor)):
        member = inspect.getattr_static(Tensor, name)
        if name.startswith("_") or name in _NO_OPERATION or isinstance(member, property):
            continue
        if callable(getattr(Tensor, name)) and _is_ours(getattr(Tensor, name)):
            found.append(name)
    return found


def _is_ours(member: Any) -> bool:
    rooms = ("baregrad.tensor.ops", "baregrad.tensor.special", "baregrad.tensor.composed")
    return str(getattr(member, "__module__", "")).startswith(rooms)


def call_of(name: str) -> str:
    """The sound call of an operation."""
    if name in _CALLS:
        return _CALLS[name]
    if name in _ARGUMENTS:
        return f"x.{name}({_ARGUMENTS[name]})"
    plain = name.removesuffix("_")
    if name != plain and plain in _CALLS and "." in _CALLS[plain]:
        # The twin that writes over its operand, of a copy that is no leaf.
        return _in_place(_CALLS[plain], plain)
    parameters = list(inspect.signature(getattr(Tensor, name)).parameters.values())
    needed = [one.name for one in parameters if one.default is one.empty
              and one.kind is one.POSITIONAL_OR_KEYWORD][1:]  # fmt: skip
    if any(word in name for word in ("bitwise", "logical", "gcd", "lcm")):
        return f"n.{name}({'k' if needed else ''})"
    return f"x.{name}({', '.join('y' for _ in needed)})"


def _in_place(call: str, plain: str) -> str:
    before, _, after = call.rpartition(f".{plain}(")
    return f"({before}).clone().{plain}_({after}"


# How an operation differs from PyTorch's of the same name, or what it is called there.
DIFFERENCES = MappingProxyType({
    "assign": "`copy_`", "bitcast": "`view(dtype)`", "cast": "`to(dtype)`",
    "col2im": "`functional.fold`", "im2col": "`functional.unfold`",
    "cdist": "gradients at equal rows are 0", "dot_bytes": "ours alone: products of bytes",
    "fma": "ours alone: multiplied and added, rounded once", "one_hot": "-1 gives zeros",
    "uniform": "ours alone", "to_device": "of the array API", "embedding":
    "a method of the table; PyTorch's order in `nn.functional`", "empty": "zeros",
    "new_empty": "zeros", "new": "zeros, of sizes",
    "empty_like": "zeros", "nanmean": "without `dtype`",
    "byte": "floats beyond its numbers saturate", "char": "floats beyond its numbers saturate",
    "short": "floats beyond its numbers saturate", "int": "floats beyond its numbers saturate",
    "long": "floats beyond its numbers saturate", "all": "bools of uint8 as well",
    "any": "bools of uint8 as well",
    "gelu": "at infinity the limits", "hardswish": "at infinity the limits",
    "binary_cross_entropy_with_logits": "at infinity the limits",
    "threshold": "floats of integers", "kthvalue": "of equals the first one's place",
    "where": "of bools it is the condition",
    "swish": "`functional.silu`", "rand": "other numbers for a seed",
    "randn": "other numbers for a seed", "randint": "other numbers for a seed",
    "randperm": "other numbers for a seed", "normal": "other numbers for a seed",
    "bernoulli": "other numbers for a seed", "multinomial": "other numbers for a seed",
    "dropout": "other numbers for a seed", "rand_like": "other numbers for a seed",
    "randn_like": "other numbers for a seed", "uniform_": "other numbers for a seed",
    "normal_": "other numbers for a seed", "bernoulli_": "other numbers for a seed",
    **dict.fromkeys(
        ("exponential_", "geometric_", "cauchy_", "log_normal_", "random_"),
        "other numbers for a seed",
    ),
    **dict.fromkeys(("data_ptr", "const_data_ptr"), "a number of the memory, no address"),
    "is_shared": "always false", "set_": "of tensors",
    "as_strided_scatter": "gradients of what stays",
    **dict.fromkeys(("storage", "untyped_storage"), "what there is to ask of it"),
    "new_empty_strided": "zeros, in row-major order", "resize_": "zeros behind, memory of its own",
    "svd": "signs of vectors, and phases, are any", "nextafter": "without gradients",
    "qr": "of complex numbers the diagonal is positive", "histc": "16-bit floats as float32",
    "searchsorted": "NaN is the greatest number", "addcmul": "the product is rounded",
    "layer_norm": "squares of large numbers may be infinite", "geqrf": "at infinity NaN",
    **dict.fromkeys(("trapz", "trapezoid", "var_mean", "std_mean"), "at infinity the limits"),
})  # fmt: skip
