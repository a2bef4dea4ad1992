"""ResNet-18, forward, backward and update, as one tensor-level graph made by hand."""

from __future__ import annotations

from collections.abc import Callable

from baregrad.ir.core.node import Node
from tests.schedule.graphs import F32, I64, A, iota, param, sink, value

Back = Callable[[A], tuple[A, A]]


def convolve(x: A, k: A, pad: int = 1, stride: int = 1, dilation: int = 1) -> A:
    """(N, C, H, W), (O, C, K, L) -> (N, O, H', W')."""
    n, c = x.shape[:2]
    o, _, kh, kw = k.shape
    slid = _windows(x, pad, kh, kw, stride, dilation)
    oh, ow = slid.shape[2:4]
    return (slid.reshape(n, 1, c, oh, ow, kh, kw) * k.reshape(1, o, c, 1, 1, kh, kw)).sum(2, 5, 6)


def _windows(x: A, pad: int, kh: int, kw: int, stride: int, dilation: int) -> A:
    padded = x.pad((0, 0), (0, 0), (pad, pad), (pad, pad)) if pad else x
    return padded.window(2, kh, stride, dilation).window(3, kw, stride, dilation)


def input_gradient(x: A, k: A, dy: A, pad: int = 1, stride: int = 1, dilation: int = 1) -> A:
    n, c, h, w = x.shape
    o, _, kh, kw = k.shape
    oh, ow = dy.shape[2:]
    columns = (dy.reshape(n, o, 1, oh, ow, 1, 1) * k.reshape(1, o, c, 1, 1, kh, kw)).sum(1)
    folded = columns.fold(3, w + 2 * pad, stride, dilation).fold(2, h + 2 * pad, stride, dilation)
    return folded.shrink((0, n), (0, c), (pad, pad + h), (pad, pad + w)) if pad else folded


def weight_gradient(x: A, k: A, dy: A, pad: int = 1, stride: int = 1, dilation: int = 1) -> A:
    n, c = x.shape[:2]
    o, _, kh, kw = k.shape
    oh, ow = dy.shape[2:]
    slid = _windows(x, pad, kh, kw, stride, dilation).shrink(
        (0, n), (0, c), (0, oh), (0, ow), (0, kh), (0, kw)
    )
    return (dy.reshape(n, o, 1, oh, ow, 1, 1) * slid.reshape(n, 1, c, oh, ow, kh, kw)).sum(0, 3, 4)


def batch_norm(x: A, g: A, b: A) -> tuple[A, tuple[A, A, A, A]]:
    c = x.shape[1]
    mean = x.mean(0, 2, 3, keep=True)
    away = x - mean
    var = (away * away).mean(0, 2, 3, keep=True)
    rate = (var + 1e-5).sqrt().reciprocal()
    normal = away * rate
    return normal * g.reshape(1, c, 1, 1) + b.reshape(1, c, 1, 1), (normal, rate, mean, var)


def batch_norm_back(saved: tuple[A, A, A, A], g: A, dy: A) -> tuple[A, A, A]:
    normal, rate = saved[:2]
    c = dy.shape[1]
    count = dy.shape[0] * dy.shape[2] * dy.shape[3]
    db, dg = dy.sum(0, 2, 3), (dy * normal).sum(0, 2, 3)
    rest = db.reshape(1, c, 1, 1) * (1 / count) + normal * (dg.reshape(1, c, 1, 1) * (1 / count))
    return (dy - rest) * (rate * g.reshape(1, c, 1, 1)), dg, db


class Network:
    """Collects parameters and what each step writes."""

    def __init__(self) -> None:
        self.count = 0
        self.updates: list[A] = []

    def parameter(self, *shape: int) -> A:
        self.count += 1
        return param(self.count - 1, *shape)

    def update(self, parameter: A, gradient: A) -> None:
        """Momentum."""
        momentum = self.parameter(*parameter.shape) * 0.9 + gradient
        self.updates += [momentum, parameter - momentum * 0.01]

    def layer(
        self, x: A, o: int, k: int, stride: int, relu: bool = True, skip: A | None = None
    ) -> tuple[A, Back]:
        """Convolution, batch norm, residual, relu; and its backward pass."""
        w, g, b = self.parameter(o, x.shape[1], k, k), self.parameter(o), self.parameter(o)
        y = convolve(x, w, k // 2, stride)
        z, saved = batch_norm(y, g, b)
        self.updates.append(self.parameter(o) * 0.9 + saved[2].reshape(o) * 0.1)
        self.updates.append(self.parameter(o) * 0.9 + saved[3].reshape(o) * 0.1)
        z = z + skip if skip is not None else z
        out = z.relu() if relu else z

        def back(dout: A) -> tuple[A, A]:
            d = (value(0).to(out.shape) < out).where(dout, 0) if relu else dout
            dy, dg, db = batch_norm_back(saved, g, d)
            self.update(w, weight_gradient(x, w, dy, k // 2, stride))
            self.update(g, dg)
            self.update(b, db)
            return input_gradient(x, w, dy, k // 2, stride), d

        return out, back


def resnet(
    batch: int = 4,
    size: int = 64,
    blocks: tuple[int, ...] = (2, 2, 2, 2),
    width: int = 64,
    classes: int = 1000,
) -> Node:
    """One training step: the loss, then every updated array."""
    net = Network()
    h, first = net.layer(net.parameter(batch, 3, size, size), width, 7, 2)
    tape: list[tuple[Back, Back, Back | None]] = []
    for stage, count in enumerate(blocks):
        o = width * 2**stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            inner, back1 = net.layer(h, o, 3, stride)
            skip, back_skip = h, None
            if stride != 1 or h.shape[1] != o:
                skip, back_skip = net.layer(h, o, 1, stride, relu=False)
            h, back2 = net.layer(inner, o, 3, 1, skip=skip)
            tape.append((back1, back2, back_skip))
    loss, d = _head(net, h, batch, classes)
    for back1, back2, back_skip in reversed(tape):
        d_inner, d_skip = back2(d)
        d_main, _ = back1(d_inner)
        d = d_main + (d_skip if back_skip is None else back_skip(d_skip)[0])
    first(d)
    return sink(loss, *net.updates)


def _head(net: Network, h: A, batch: int, classes: int) -> tuple[A, A]:
    """Average pool, classifier, cross entropy; and the gradient of what came in."""
    pooled = h.mean(2, 3)
    w, b = net.parameter(pooled.shape[1], classes), net.parameter(classes)
    logits = pooled @ w + b
    net.count += 1
    labels = param(net.count - 1, batch, dtype=I64)
    away = logits - logits.max(1, keep=True)
    exponentials = away.exp()
    total = exponentials.sum(1, keep=True)
    loss = (away - total.log()).gather(iota(batch), labels).mean() * -1.0
    hot = labels.reshape(batch, 1).eq(iota(classes).reshape(1, classes)).cast(F32)
    d = (exponentials / total - hot) * (1.0 / batch)
    net.updates += [w - (pooled.permute(1, 0) @ d) * 0.01, b - d.sum(0) * 0.01]
    d = d @ w.permute(1, 0)
    area = h.shape[2] * h.shape[3]
    return loss, (d.reshape(*d.shape, 1, 1) * (1.0 / area)).to(h.shape)
