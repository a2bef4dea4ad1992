"""Calls of the rooms beside tensors' methods, as texts that run here and in PyTorch.

Names: `t`, `F`, `nn`, `linalg`, `fft`, `special` are the namespaces of a side. `x`, `y` are of
floats (a, b, c), of drawn sizes, `m` (b, c), `v` (c,), `s` (b, b), `p` positive (a, b, c), `u` from
0 to 1, `n` of integers and `k` of bools (a, b, c), `ids` (a, b) of places below 3, `img`
(a, 4, h, w), `line` (a, 4, w). `held(module)` has parameters that both sides share; `trained(class,
**settings)` is a parameter after three steps of an optimiser.
"""

from __future__ import annotations

_F = (
    "F.relu(x)", "F.relu6(x)", "F.elu(x, 0.7)", "F.selu(x)", "F.celu(x, 1.3)", "F.gelu(x)",
    "F.gelu(x, approximate='tanh')", "F.silu(x)", "F.mish(x)", "F.softplus(x, 2.0)",
    "F.leaky_relu(x, 0.2)", "F.hardtanh(x, -0.5, 0.7)", "F.hardswish(x)", "F.hardsigmoid(x)",
    "F.logsigmoid(x)", "F.softsign(x)", "F.tanhshrink(x)", "F.softshrink(x, 0.3)",
    "F.hardshrink(x, 0.3)", "F.threshold(x, 0.25, -2.0)", "F.glu(t.cat([x, y], -1), -1)",
    "F.prelu(img, m.new_full((4,), 0.3))", "F.softmax(x, dim=1)", "F.log_softmax(x, dim=0)",
    "F.softmin(x, dim=-1)", "F.normalize(x, p=2.0, dim=1)", "F.normalize(x, p=1.0, dim=-1)",
    "F.layer_norm(x, x.shape[-1:], v, v)", "F.layer_norm(x, x.shape[-2:])",
    "F.rms_norm(x, x.shape[-1:], v)", "F.group_norm(img, 2)", "F.instance_norm(img)",
    "F.batch_norm(img, None, None, training=True)", "F.local_response_norm(img, 3)",
    "F.linear(x, m, m[:, 0])", "F.bilinear(x, y, x.new_ones(2, x.shape[-1], y.shape[-1]))",
    "F.conv1d(line, m.new_ones(3, 4, 2) * 0.3)", "F.conv1d(line, m.new_ones(4, 1, 3), groups=4)",
    "F.conv2d(img, m.new_ones(3, 4, 2, 2) * 0.3, padding=1)",
    "F.conv2d(img, m.new_ones(2, 4, 3, 1) * 0.3, stride=2, dilation=(1, 2))",
    "F.conv_transpose2d(img, m.new_ones(4, 2, 2, 2) * 0.3, stride=2)",
    "F.conv_transpose1d(line, m.new_ones(4, 2, 3) * 0.3, padding=1)",
    "F.max_pool2d(img, 2, padding=1)", "F.max_pool1d(line, 2, 1)", "F.avg_pool2d(img, 2, 1)",
    "F.avg_pool1d(line, 3, 2, 1, count_include_pad=False)", "F.adaptive_avg_pool2d(img, (2, 1))",
    "F.adaptive_max_pool2d(img, (2, 1))", "F.lp_pool2d(img.abs() + 0.1, 2.0, 2)",
    "F.interpolate(img, scale_factor=2)", "F.interpolate(img, size=(5, 3), mode='bilinear')",
    "F.interpolate(img, size=(3, 5), mode='bicubic', align_corners=True)",
    "F.interpolate(img, size=(3, 2), mode='area')", "F.interpolate(line, size=5, mode='linear')",
    "F.pad(x, (1, 2))", "F.pad(x, (1, 0, 0, 2), value=1.5)", "F.pad(img, (1, 1), mode='circular')",
    "F.pad(img, (1, 1, 1, 1), mode='reflect')", "F.pad(img, (2, 1, 0, 3), mode='replicate')",
    "F.pixel_shuffle(img, 2)", "F.pixel_unshuffle(F.interpolate(img, scale_factor=2), 2)",
    "F.unfold(img, 2)", "F.grid_sample(img, u[:1, :, :2].expand(img.shape[0], -1, -1)[:, None])",
    "F.embedding(ids, m.new_ones(3, 4) * 0.5)", "F.one_hot(ids, 4)",
    "F.scaled_dot_product_attention(x, y, y)",
    "F.scaled_dot_product_attention(x, x, x, is_causal=True)", "F.cosine_similarity(x, y, dim=-1)",
    "F.pairwise_distance(x, y)", "t.cdist(x, y)", "F.pdist(m)",
    "F.mse_loss(x, y)", "F.l1_loss(x, y, reduction='sum')", "F.smooth_l1_loss(x, y, beta=0.5)",
    "F.huber_loss(x, y, delta=0.7)", "F.binary_cross_entropy_with_logits(x, u)",
    "F.binary_cross_entropy(u, p / (1 + p))", "F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1))",
    "F.poisson_nll_loss(x, p)", "F.gaussian_nll_loss(x, y, p)", "F.soft_margin_loss(x, y.sign())",
    "F.cross_entropy(x[..., :1].expand(-1, -1, 3).reshape(-1, 3), ids.reshape(-1))",
    "F.cross_entropy(t.cat([x, y, x], -1)[..., :3].reshape(-1, 3), ids.reshape(-1), "
    "label_smoothing=0.1)",
    "F.nll_loss(F.log_softmax(t.cat([x, y, x], -1)[..., :3].reshape(-1, 3), -1), ids.reshape(-1))",
    "F.triplet_margin_loss(x, y, p)", "F.cosine_embedding_loss(m, m * 2, m[:, 0].sign())",
    "F.hinge_embedding_loss(x, y.sign())", "F.margin_ranking_loss(x, y, p.sign())",
)
_MODULES = (
    "held(nn.Linear(x.shape[-1], 3))(x)", "held(nn.Conv2d(4, 3, 2, padding=1))(img)",
    "held(nn.Conv1d(4, 4, 3, groups=2, padding='same'))(line)",
    "held(nn.ConvTranspose2d(4, 2, 2, 2))(img)", "held(nn.BatchNorm2d(4))(img)",
    "held(nn.BatchNorm1d(4).eval())(line)", "held(nn.LayerNorm(x.shape[-1]))(x)",
    "held(nn.RMSNorm(x.shape[-1]))(x)", "held(nn.GroupNorm(2, 4))(img)",
    "held(nn.Embedding(3, 5))(ids)", "held(nn.GRU(x.shape[-1], 3))(x)",
    "held(nn.LSTM(x.shape[-1], 2, batch_first=True, bidirectional=True))(x)",
    "held(nn.RNN(x.shape[-1], 3, num_layers=2))(x)",
    "held(nn.MultiheadAttention(4, 2, batch_first=True))(*[line.transpose(1, 2)] * 3)",
    "held(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True))"
    "(line.transpose(1, 2))",
    "held(nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0, batch_first=True, norm_first=True))"
    "(line.transpose(1, 2), line.transpose(1, 2))",
    "held(nn.PReLU(4))(img)", "held(nn.Bilinear(x.shape[-1], x.shape[-1], 2))(x, y)",
    "held(nn.LSTMCell(x.shape[-1], 3))(x[0])", "held(nn.GRUCell(x.shape[-1], 3))(x[0])",
    "nn.Flatten()(img)", "nn.Unflatten(1, (2, 2))(img)", "nn.PixelShuffle(2)(img)",
    "nn.Upsample(scale_factor=2, mode='nearest')(img)", "nn.ZeroPad2d(1)(img)",
    "held(nn.LazyLinear(3))(x)",
    "held(nn.LazyConv2d(3, 1))(img)",
)
_LINALG = (
    "linalg.norm(m)", "linalg.vector_norm(x, 3.0, dim=-1)", "linalg.matrix_norm(x)",
    "linalg.matrix_norm(x, 1)", "linalg.det(s)", "linalg.slogdet(s)[1]", "linalg.inv(s + 3 * e)",
    "linalg.solve(s + 3 * e, m)", "linalg.svdvals(x)", "linalg.eigvalsh(s + s.mT)",
    "linalg.cholesky(s @ s.mT + e)", "linalg.qr(m)[1].abs()", "linalg.pinv(m)",
    "linalg.matrix_power(s, 3)", "linalg.multi_dot([s, s, m])",
    "linalg.matrix_exp(s * 0.3)", "linalg.vecdot(x, y)",
    "linalg.solve_triangular(s.triu() + 3 * e, m, upper=True)", "linalg.diagonal(x)",
    "linalg.solve_ex(s + 3 * e, m)[0]", "linalg.tensorsolve(s + 3 * e, m[:, 0])",
    "linalg.tensorinv(s + 3 * e, 1)", "linalg.eigvals(s).abs().sum()",
    "linalg.ldl_solve(*linalg.ldl_factor((s + s.mT + 9 * e).detach()), m)",
    "linalg.householder_product(s, v[:1] * s[0, :1])", "t.geqrf(m.detach())[1]",
    "linalg.vander(v)", "t.logdet(s @ s.mT + e)", "t.tensordot(x, y, 3)", "t.kron(m, s)",
    "t.einsum('abc,abd->acd', x, y)", "t.einsum('abc,c->ba', x, v)", "t.trace(s)", "t.outer(v, v)",
    "t.bmm(x, y.mT)", "t.addmm(m, s, m, beta=0.5, alpha=2.0)",
    "t.matmul(x, v)",
)
_FFT = (
    "fft.fft(x)", "fft.ifft(x, n=5)", "fft.rfft(x, dim=1)", "fft.irfft(x, n=6)", "fft.fft2(x)",
    "fft.rfftn(x)", "fft.hfft(x)", "fft.ihfft(x)", "fft.fftshift(x)", "fft.rfft(x, norm='ortho')",
    "fft.irfft2(x, s=(4, 5))", "fft.fftn(x, dim=(0, 2), norm='forward')",
)
_SPECIAL = (
    "special.erf(x)", "special.erfc(x)", "special.erfcx(x)", "special.erfinv(u * 1.6 - 0.8)",
    "special.digamma(p)", "special.gammaln(p)", "special.polygamma(1, p)", "special.i0(x)",
    "special.i0e(x)", "special.i1(x)", "special.i1e(x)", "special.ndtr(x)", "special.ndtri(u)",
    "special.log_ndtr(x)", "special.entr(p)", "special.expit(x)", "special.logit(u)",
    "special.xlogy(x, p)", "special.xlog1py(x, p)", "special.zeta(p + 1.5, p)", "special.sinc(x)",
    "special.expm1(x)", "special.exp2(x)", "special.log1p(p)", "special.multigammaln(p + 2, 2)",
    "special.logsumexp(x, dim=1)",
)
_FUNCTIONS = (
    "x[0]", "x[..., -1]", "x[:, ::2]", "x[1:, :-1]", "x[k]", "x[ids[:, 0] * 0]",
    "x[None, ..., None]",
    "x.flip(1)[:, 1:]", "x.mT.reshape(-1)", "x.movedim(0, -1).flatten(0, 1)",
    "x.expand(2, -1, -1, -1)",
    "t.roll(x, (1, 2), (0, 2))", "t.cat([x, y], dim=-1)", "t.stack([x, y, x], dim=1)",
    "t.where(k, x, y)",
    "x.masked_fill(k, -1.0)", "x.masked_select(k)", "x.gather(2, n.clamp(0, 0))",
    "x.sort(dim=1)[0]",
    "x.topk(1, dim=-1)[0]", "x.cumsum(1)", "x.cumprod(-1)", "x.logcumsumexp(0)", "x.cummax(1)[0]",
    "x.prod(1)", "x.var(dim=(0, 2))", "x.std(dim=-1, keepdim=True)", "x.amax((0, 1))",
    "x.norm(3.0, 1)",
    "x.logsumexp((0, 1))", "x.median(dim=1)[0]", "x.quantile(0.3, dim=1)", "x.argmax(1)",
    "x.argsort(-1)",
    "t.searchsorted(v.sort()[0], x)", "t.bucketize(x, v.sort()[0])", "t.isin(n, n[0, 0])",
    "t.unique(n)", "t.unique_consecutive(n)", "t.bincount(n.abs().reshape(-1))", "t.diff(x, dim=1)",
    "t.histc(x, 5, -2, 2)", "t.trapezoid(x, dim=1)", "t.cumulative_trapezoid(x, dim=-1)",
    "t.repeat_interleave(x, 2, dim=1)", "t.repeat_interleave(m, n[0, :, 0].abs(), dim=0)",
    "t.tril(x, 1)", "t.diagonal(x, 1, 1, 2)", "t.diag_embed(m)",
    "t.meshgrid(v, m[:, 0], indexing='ij')",
    "t.index_select(x, 1, ids[0] * 0)", "x.index_add(0, ids[:, 0] * 0, y)", "x.unfold(2, 1, 1)",
    "x.scatter(2, n.clamp(0, 0), y)", "x.scatter_reduce(1, n.clamp(0, 0), y, 'amax')",
    "t.nan_to_num(x / x.round())", "t.fmod(x, 0.7)", "t.remainder(x, -0.7)", "t.atan2(x, y)",
    "t.hypot(x, y)", "t.lerp(x, y, 0.3)", "t.addcmul(x, y, y, value=0.5)",
    "t.nextafter(x.detach(), y.detach())",
    "t.gcd(n, n + 2)", "t.lcm(n, n + 2)", "n // (n.abs() + 1)", "n % 3", "n << 2", "~k",
    "k ^ (x > 0)",
    "t.complex(x, y).abs()", "t.polar(p, x).real",
    "t.view_as_real(t.complex(x, y) * t.complex(y, x))",
    "t.exp(t.complex(x, y)).imag", "t.std_mean(x, dim=1)[1]", "t.aminmax(x, dim=1)[0]",
    "t.mode(n)[0]",
    "t.count_nonzero(n, dim=1)", "t.cov(m)", "t.nanmean(x)", "t.combinations(v)",
    "x.to(t.float64).sum()",
    "(x * 3).to(t.int32)", "x.half().float()", "t.tensor_split(x, 2, dim=1)[0]",
    "x.chunk(2, -1)[0]",
    "t.broadcast_to(v, (2, 3, v.shape[0]))", "t.rot90(m)", "t.take(x, n.clamp(0, 0))",
    "x.sum()", "t.allclose(x, x)", "t.equal(x, y)", "t.dist(x, y)",
)
_OPTIMISERS = tuple(
    f"trained(optim.{name})" for name in (
        "SGD, lr=0.1", "SGD, lr=0.1, momentum=0.9, nesterov=True", "SGD, lr=0.1, weight_decay=0.1",
        "Adam, lr=0.1", "Adam, lr=0.1, amsgrad=True", "AdamW, lr=0.1, weight_decay=0.1",
        "RMSprop, lr=0.05", "RMSprop, lr=0.05, centered=True, momentum=0.5", "Adagrad, lr=0.1",
        "Adadelta, lr=1.0", "Adamax, lr=0.1", "NAdam, lr=0.1", "RAdam, lr=0.1", "Rprop, lr=0.1",
        "Adafactor, lr=0.1",
    )
)
CALLS = (*_F, *_MODULES, *_LINALG, *_FFT, *_SPECIAL, *_FUNCTIONS, *_OPTIMISERS)
