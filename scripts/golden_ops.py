#!/usr/bin/env python3
"""Golden values for the op definitions (tests/unit/backend/test_ref.c).

Independent float64 numpy versions of each primitive op, on inputs that the test can rebuild: x[i] is the i-th value of
the generator below. One record of float64 results per op, in the order of the test.

    python3 scripts/golden_ops.py tests/data/backend/ops.f64

Needs numpy only.
"""
import sys

import numpy as np


class Stream:
    """The generator of the test: 32-bit LCG, upper 24 bits to [-1, 1)."""

    def __init__(self, seed):
        self.state = seed

    def take(self, *shape):
        n = int(np.prod(shape))
        out = np.empty(n, dtype=np.float32)
        for i in range(n):
            self.state = (self.state * 1664525 + 1013904223) % 2**32
            out[i] = np.float32(self.state >> 8) * np.float32(2.0**-23) - np.float32(1)
        return out.reshape(shape).astype(np.float64)


def rms_norm(x, w, group, eps, offset):
    y = x.reshape(x.shape[0], -1, group)
    y = y / np.sqrt(np.mean(np.square(y), axis=-1, keepdims=True) + eps)
    return (y * (offset + w)).reshape(x.shape)


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x):
    from math import erf

    return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def rope(x, positions, inv_freq, head_dim, interleaved, scale):
    """As complex rotation; angles are float32 products."""
    angle = (positions[:, None].astype(np.float32) * inv_freq.astype(np.float32)).astype(np.float64)
    turn = scale * np.exp(1j * angle)[:, None, :]
    heads = x.reshape(x.shape[0], -1, head_dim).copy()
    n = inv_freq.size
    if interleaved:
        pairs = heads[..., 0 : 2 * n : 2] + 1j * heads[..., 1 : 2 * n : 2]
        turned = pairs * turn
        heads[..., 0 : 2 * n : 2], heads[..., 1 : 2 * n : 2] = turned.real, turned.imag
    else:
        pairs = heads[..., :n] + 1j * heads[..., n : 2 * n]
        turned = pairs * turn
        heads[..., :n], heads[..., n : 2 * n] = turned.real, turned.imag
    return heads.reshape(x.shape)


def attention(q, k, v, window, scale):
    """q [T, H, d], k [T, Hk, d], v [T, Hk, dv]: causal, all positions in one array."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("thd,shd->hts", q, k) * scale
    t, s = np.indices(scores.shape[1:])
    hidden = (s > t) | ((window > 0) & (t - s >= window))
    scores = np.where(hidden, -np.inf, scores)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return np.einsum("hts,shd->thd", p, v).reshape(q.shape[0], -1)


def main():
    records = []
    s = Stream(1)
    x, w, bias = s.take(5, 24), s.take(7, 24), s.take(7)
    records += [x @ w.T + bias]
    s = Stream(2)
    x, w = s.take(5, 24), s.take(8)
    eps = float(np.float32(1e-3))
    records += [rms_norm(x, w, 8, eps, 0.0), rms_norm(x, w, 8, eps, 1.0)]
    s = Stream(3)
    gate, up = 8 * s.take(5, 24), s.take(5, 24)
    records += [gate / (1 + np.exp(-gate)) * up, gelu_tanh(gate) * up, gelu_erf(gate) * up]
    s = Stream(4)
    x, inv_freq = s.take(5, 24), np.abs(s.take(5))
    positions = np.array([0, 1, 2, 8190, 262143])
    scale = float(np.float32(1.25))
    records += [rope(x, positions, inv_freq, 12, False, scale), rope(x, positions, inv_freq, 12, True, scale)]
    s = Stream(5)
    q, k, v = 4 * s.take(150, 6, 8), s.take(150, 2, 8), s.take(150, 2, 5)
    records += [attention(q, k, v, 0, 0.5)[-4:], attention(q, k, v, 70, 0.5)[-4:]]
    np.concatenate([r.ravel() for r in records]).astype("<f8").tofile(sys.argv[1])


if __name__ == "__main__":
    main()
