#!/usr/bin/env python3
"""Golden data for tests/unit/tensor: what other people's decoders and encoders make of the same bytes.

Run:  python3 scripts/golden_tensor.py tests/data/tensor
Needs the pip packages numpy, gguf and (for the 8-bit floats) torch. Output is the same on every run.

codecs.bin is a run of records, little-endian:
    kind u32 (1 decode, 2 encode) | name 16 bytes, zero-padded | n_elements u32 | n_bytes u32 |
    encoded bytes [n_bytes] | f32 [n_elements]
For a decode record the f32 values are the oracle's output, for an encode record the bytes are.
"""
import struct
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize

Q = gguf.GGMLQuantizationType
SPECIAL_F16 = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE01]

# type -> (places of f16 fields in a block, number of random blocks)
BLOCKS = {
    Q.Q4_0: ([0], 96), Q.Q4_1: ([0, 2], 96), Q.Q5_0: ([0], 96), Q.Q5_1: ([0, 2], 96), Q.Q8_0: ([0], 96),
    Q.Q2_K: ([80, 82], 24), Q.Q3_K: ([108], 24), Q.Q4_K: ([0, 2], 24), Q.Q5_K: ([0, 2], 24), Q.Q6_K: ([208], 24),
    Q.IQ4_NL: ([0], 96), Q.IQ4_XS: ([0], 24),
}


def record(kind, name, encoded, values):
    values = np.ascontiguousarray(values, dtype="<f4")
    return (struct.pack("<I16sII", kind, name.encode(), values.size, len(encoded)) + bytes(encoded) + values.tobytes())


def random_blocks(rng, qtype):
    """Random bytes; first blocks get every special f16 in each scale field, the others sane random scales."""
    fields, count = BLOCKS[qtype]
    _, size = gguf.GGML_QUANT_SIZES[qtype]
    specials = [(field, bits) for field in fields for bits in SPECIAL_F16]
    blocks = rng.integers(0, 256, (count + len(specials), size), dtype=np.uint8)
    for i in range(len(blocks)):
        for field in fields:
            scale = np.float16(rng.normal() * 10.0 ** rng.uniform(-4, 2))
            blocks[i, field:field + 2] = np.frombuffer(scale.tobytes(), np.uint8)
    for i, (field, bits) in enumerate(specials):
        blocks[i, field:field + 2] = np.frombuffer(struct.pack("<H", bits), np.uint8)
    return blocks


def decode_records(rng):
    for qtype in BLOCKS:
        blocks = random_blocks(rng, qtype)
        yield record(1, qtype.name, blocks.tobytes(), dequantize(blocks, qtype).ravel())
    f64 = np.concatenate([rng.normal(size=40) * 10.0 ** rng.uniform(-50, 39, 40),
                          [0.0, -0.0, np.inf, -np.inf, np.nan, 1e300, -1e300, 5e-324, 1 + 2.0**-24, 1 + 3 * 2.0**-24]])
    yield record(1, "F64", f64.astype("<f8").tobytes(), f64.astype(np.float32))
    codes = torch.arange(256, dtype=torch.uint8)
    for name, kind in [("F8_E4M3", torch.float8_e4m3fn), ("F8_E5M2", torch.float8_e5m2), ("F8_E8M0", torch.float8_e8m0fnu),
                       ("F8_E4M3FNUZ", torch.float8_e4m3fnuz), ("F8_E5M2FNUZ", torch.float8_e5m2fnuz)]:
        yield record(1, name, codes.numpy().tobytes(), codes.view(kind).to(torch.float32).numpy())
    every = np.arange(65536, dtype="<u2")
    bf16 = np.concatenate([every[::97], every[-200:]])
    yield record(1, "BF16", bf16.tobytes(), dequantize(bf16.view(np.uint8).reshape(1, -1), Q.BF16).ravel())
    f16 = np.concatenate([every[::97], every[:40], np.array(SPECIAL_F16, "<u2")])
    yield record(1, "F16", f16.tobytes(), f16.view(np.float16).astype(np.float32))


def encode_rows(rng):
    """Rows of 32 as weights look, then the awkward ones: ties, constants, zeros, outliers, scales at f16's edges."""
    rows = [rng.normal(size=32) * 10.0 ** rng.uniform(-6, 3) for _ in range(64)]
    rows += [rng.standard_t(2, size=32) for _ in range(16)]
    rows += [np.zeros(32), -np.zeros(32), np.full(32, 0.7), np.full(32, -0.7), np.arange(32) - 16.0, 16.0 - np.arange(32)]
    rows += [(np.arange(32) % 17 - 8) * 0.5, (np.arange(32) % 9 - 4) + 0.5, np.where(np.arange(32) == 31, -1.0, 1.0)]
    rows += [np.where(np.arange(32) == 5, 1000.0, 0.01), np.where(np.arange(32) == 5, -1000.0, 0.01)]
    rows += [rng.normal(size=32) * scale for scale in (1e-9, 1e-7, 6e5, 1e7, 1e30)]
    rows += [np.linspace(-127, 127, 32) / 127, np.array([127.0] + [k + 0.5 for k in range(31)])]
    return np.array(rows, dtype=np.float32)


def encode_records(rng):
    rows = encode_rows(rng)
    for qtype in (Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0):
        with np.errstate(over="ignore"):
            yield record(2, qtype.name, quantize(rows, qtype).tobytes(), rows.ravel())
    bits = rng.integers(0, 2**32, 2000, dtype=np.uint64).astype("<u4").view(np.float32)
    small = (rng.normal(size=2000) * 10.0 ** rng.uniform(-9, 6, 2000)).astype(np.float32)
    edge = np.array([65503.99, 65519.99, 65520.0, 65536.0, 2.0**-24, 2.0**-25, 3 * 2.0**-25, 2.0**-14, 0.0, -0.0, np.inf,
                     -np.inf], np.float32)
    plain = np.concatenate([bits, small, edge])
    with np.errstate(over="ignore"):
        finite = plain[~np.isnan(plain)]
        yield record(2, "F16", finite.astype(np.float16).tobytes(), finite)
    even = plain[:len(plain) // 2 * 2]
    yield record(2, "BF16", quantize(even.reshape(1, -1), Q.BF16).tobytes(), even)


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20260101)
    with np.errstate(all="ignore"):
        records = list(decode_records(rng)) + list(encode_records(rng))
    (folder / "codecs.bin").write_bytes(b"".join(records))
    print(f"{len(records)} records, {sum(map(len, records))} bytes")


if __name__ == "__main__":
    main()
