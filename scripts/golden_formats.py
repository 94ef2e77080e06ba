#!/usr/bin/env python3
"""Test files for src/formats: valid checkpoints with what the gguf and safetensors packages read from them, and hostile
files with the status and words each must end in.

Run:  python3 scripts/golden_formats.py tests/data/formats tests/fuzz/corpus [MODEL.gguf ...]
Needs the pip packages numpy, gguf, safetensors and torch. Output is the same on every run. For each MODEL a listing
goes to tests/data/formats/models/NAME.txt; the model itself is only read.

A listing is text, one fact a line; tests/unit/formats/manifest_dump.h writes the same from a manifest:
    format gguf VERSION | format hf
    file NAME BYTES
    kv KEY TYPE VALUE                    strings: LENGTH CRC32; arrays: ELEMENT_TYPE LENGTH CRC32 of their elements'
                                         text, one line each (strings as LENGTH:BYTES)
    tensor NAME DTYPE [SHAPE] FILE OFFSET BYTES DATA_CRC32 ROW0_CRC32
ROW0 is the first row decoded to f32, "-" for integers and empty tensors; DATA_CRC32 is "-" for large models.
"""
import json
import math
import shutil
import struct
import sys
import zlib
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from safetensors import safe_open
from safetensors.torch import save_file

Q = gguf.GGMLQuantizationType
V = gguf.GGUFValueType
UNSIGNED = {V.UINT8, V.UINT16, V.UINT32, V.UINT64}
SIGNED = {V.INT8, V.INT16, V.INT32, V.INT64}


def crc(data):
    return f"{zlib.crc32(data):08x}"


def number_text(x):
    if isinstance(x, (bool, np.bool_)):
        return "true" if x else "false"
    if isinstance(x, (int, np.integer)):
        return str(int(x))
    return "nan" if math.isnan(x) else f"{float(x):.17g}"


def array_text(kind, items):
    lines = [b"%d:%s\n" % (len(i), i) if isinstance(i, bytes) else (number_text(i) + "\n").encode() for i in items]
    return f"array {kind} {len(lines)} {crc(b''.join(lines))}"


# ---- listings of GGUF files, by gguf.GGUFReader ----

def kind_name(value_type):
    if value_type in UNSIGNED:
        return "uint"
    if value_type in SIGNED:
        return "int"
    return {V.BOOL: "bool", V.STRING: "string"}.get(value_type, "float")


def gguf_value_text(field):
    if field.types[0] == V.ARRAY:
        element = V(int(field.parts[3][0]))
        items = [field.parts[i] for i in field.data]
        return array_text(kind_name(element), [bytes(i) if element == V.STRING else i[0] for i in items])
    if field.types[0] == V.STRING:
        data = bytes(field.parts[-1])
        return f"string {len(data)} {crc(data)}"
    return f"{kind_name(field.types[0])} {number_text(field.parts[-1][0])}"


def first_row_crc(data, qtype, columns):
    block, size = gguf.GGML_QUANT_SIZES[qtype]
    row = np.frombuffer(data, np.uint8, columns // block * size)
    if row.size == 0 or qtype.name.startswith("I") and qtype.name[1:].isdigit():
        return "-"
    values = row.view(np.float64).astype(np.float32) if qtype == Q.F64 else dequantize(row.reshape(1, -1), qtype)
    return crc(np.ascontiguousarray(values, "<f4").tobytes())


def gguf_listing(paths, with_data):
    readers = [gguf.GGUFReader(p) for p in paths]
    lines = [f"format gguf {readers[0].fields['GGUF.version'].parts[0][0]}"]
    lines += [f"file {p.name} {p.stat().st_size}" for p in paths]
    for key, field in readers[0].fields.items():
        if not key.startswith("GGUF."):
            lines.append(f"kv {key} {gguf_value_text(field)}")
    for index, reader in enumerate(readers):
        for t in reader.tensors:
            shape = [int(n) for n in reversed(t.shape)]
            data = t.data.tobytes()
            row = first_row_crc(data, t.tensor_type, shape[-1] if shape else 1)
            lines.append(f"tensor {t.name} {t.tensor_type.name} {shape} {index} {t.data_offset} {t.n_bytes} "
                         f"{crc(data) if with_data else '-'} {row}")
    return "\n".join(lines) + "\n"


# ---- listings of Hugging Face folders: json for the configs, the safetensors package for the tensors ----

def flatten(value, key, lines):
    if isinstance(value, dict):
        for name, inner in value.items():
            flatten(inner, f"{key}.{name}" if key else name, lines)
    elif isinstance(value, list):
        kinds = {type(i) for i in value}
        if kinds <= {int, float} and kinds:
            is_real = float in kinds
            items = [float(i) if is_real else i for i in value]
            lines.append(f"kv {key} {array_text('float' if is_real else 'int', items)}")
        elif kinds == {bool}:
            lines.append(f"kv {key} {array_text('bool', value)}")
        elif kinds == {str}:
            lines.append(f"kv {key} {array_text('string', [i.encode() for i in value])}")
        elif not kinds:
            lines.append(f"kv {key} {array_text('none', [])}")
        else:
            lines.append(f"kv {key}.# int {len(value)}")
            for i, inner in enumerate(value):
                flatten(inner, f"{key}.{i}", lines)
    elif isinstance(value, str):
        lines.append(f"kv {key} string {len(value.encode())} {crc(value.encode())}")
    elif isinstance(value, bool):
        lines.append(f"kv {key} bool {number_text(value)}")
    elif isinstance(value, int) and not -2**63 <= value < 2**63:
        lines.append(f"kv {key} float {number_text(float(value))}")
    elif value is not None:
        lines.append(f"kv {key} {'int' if isinstance(value, int) else 'float'} {number_text(value)}")


FLOATS = {torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2,
          torch.float8_e8m0fnu, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}


def safetensors_lines(path, index):
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    order = sorted(header, key=lambda n: (header[n]["data_offsets"], n))
    with safe_open(path, "pt") as f:
        assert sorted(f.keys()) == sorted(order)
        for name in order:
            tensor = f.get_tensor(name)
            begin, end = header[name]["data_offsets"]
            data = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
            columns = tensor.shape[-1] if tensor.dim() else 1
            row = "-"
            if tensor.dtype in FLOATS and tensor.numel():
                row = crc(tensor.contiguous().view(-1)[:columns].to(torch.float32).numpy().tobytes())
            yield (f"tensor {name} {header[name]['dtype']} {list(tensor.shape)} {index} {8 + size + begin} "
                   f"{end - begin} {crc(data)} {row}")


def hf_listing(folder, shards):
    lines = ["format hf"] + [f"file {s.name} {s.stat().st_size}" for s in shards]
    for name, prefix in [("config.json", ""), ("generation_config.json", "generation_config"),
                         ("tokenizer_config.json", "tokenizer_config")]:
        if folder and (folder / name).exists():
            flatten(json.loads((folder / name).read_text()), prefix, lines)
    for index, shard in enumerate(shards):
        lines += safetensors_lines(shard, index)
    return "\n".join(lines) + "\n"


# ---- valid checkpoints ----

def random_quant(rng, qtype, rows, columns):
    block, size = gguf.GGML_QUANT_SIZES[qtype]
    scale = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    data = rng.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    for at in {Q.Q2_K: (80, 82), Q.Q3_K: (108,), Q.Q6_K: (208,), Q.Q8_0: (0,), Q.Q4_0: (0,), Q.IQ4_NL: (0,),
               Q.IQ4_XS: (0,)}.get(qtype, (0, 2)):
        data[:, :, at:at + 2] = scale
    return data.reshape(rows, -1)


def add_metadata(w):
    w.add_uint8("t.u8", 255)
    w.add_int8("t.i8", -128)
    w.add_uint16("t.u16", 65535)
    w.add_int16("t.i16", -32768)
    w.add_uint32("t.u32", 2**32 - 1)
    w.add_int32("t.i32", -2**31)
    w.add_uint64("t.u64", 2**64 - 1)
    w.add_int64("t.i64", -2**63)
    w.add_float32("t.f32", 0.1)
    w.add_float64("t.f64", 0.1)
    w.add_float32("t.inf", float("inf"))
    w.add_float32("t.nan", float("nan"))
    w.add_bool("t.true", True)
    w.add_bool("t.false", False)
    w.add_string("t.empty", "")
    w.add_string("t.text", "süß 水 \U0001f600\n")
    w.add_string("schlüssel.ключ", "keys may hold any text")
    w.add_array("t.a_int", [1, -2, 3])
    w.add_array("t.a_float", [0.5, -1e30, 0.1])
    w.add_array("t.a_bool", [True, False, True])
    w.add_array("t.a_string", ["", "a", "bb", "日本", "x" * 300])
    w.add_key_value("t.a_u8", [0, 200, 255], V.ARRAY, sub_type=V.UINT8)
    w.add_key_value("t.a_i16", [-300, 300], V.ARRAY, sub_type=V.INT16)
    w.add_key_value("t.a_u64", [2**64 - 1, 5], V.ARRAY, sub_type=V.UINT64)
    w.add_key_value("t.a_f64", [1e300, 2.0**-1074], V.ARRAY, sub_type=V.FLOAT64)


def add_tensors(w, rng):
    w.add_tensor("f32.matrix", rng.normal(size=(3, 5)).astype(np.float32))
    w.add_tensor("f32.vector", rng.normal(size=7).astype(np.float32))
    w.add_tensor("f16.cube", rng.normal(size=(2, 3, 4)).astype(np.float16))
    w.add_tensor("f64.four", rng.normal(size=(2, 1, 2, 3)))
    w.add_tensor("i8", np.arange(-4, 5, dtype=np.int8))
    w.add_tensor("i16", np.arange(4, dtype=np.int16))
    w.add_tensor("i32", np.arange(4, dtype=np.int32))
    w.add_tensor("i64", np.arange(4, dtype=np.int64))
    w.add_tensor("bf16", rng.integers(0, 127, (2, 16), dtype=np.uint8), raw_dtype=Q.BF16)
    for qtype in (Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.IQ4_NL):
        w.add_tensor(f"{qtype.name}.weight", random_quant(rng, qtype, 2, 64), raw_dtype=qtype)
    for qtype in (Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.IQ4_XS):
        w.add_tensor(f"{qtype.name}.weight", random_quant(rng, qtype, 2, 256), raw_dtype=qtype)


def write_gguf(path, fill, **options):
    w = gguf.GGUFWriter(path, "test", **options)
    fill(w)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def make_gguf(folder, rng):
    folder.mkdir(parents=True)

    def everything(w):
        add_metadata(w)
        add_tensors(w, rng)

    def aligned(w):
        w.add_custom_alignment(64)
        for i in range(3):
            w.add_tensor(f"t{i}", rng.normal(size=(i + 1, 3)).astype(np.float32))

    def parts(w):
        w.add_string("general.name", "in parts")
        for i in range(5):
            w.add_tensor(f"t{i}", rng.normal(size=(2, i + 1)).astype(np.float32))

    write_gguf(folder / "everything.gguf", everything)
    write_gguf(folder / "aligned.gguf", aligned)
    write_gguf(folder / "parts.gguf", parts, split_max_tensors=2)
    write_gguf(folder / "late.gguf", parts, split_max_tensors=2, small_first_shard=True)
    v2 = bytearray((folder / "aligned.gguf").read_bytes())
    v2[4] = 2
    (folder / "version2.gguf").write_bytes(v2)
    for name, paths in [("everything", ["everything.gguf"]), ("aligned", ["aligned.gguf"]),
                        ("version2", ["version2.gguf"]), ("parts", sorted(p.name for p in folder.glob("parts-*"))),
                        ("late", sorted(p.name for p in folder.glob("late-*")))]:
        (folder / f"{name}.txt").write_text(gguf_listing([folder / p for p in paths], True))


CONFIG = {
    "architectures": ["TestForCausalLM"], "hidden_size": 64, "rope_theta": 1000000.0, "tie_word_embeddings": False,
    "nothing": None, "empty": [], "rope_parameters": {"full_attention": {"rope_theta": 5e5, "factor": 8}},
    "layer_types": ["a", "b"], "flags": [True, False], "mixed_numbers": [1, 2.5], "with_null": [1, None, "x"],
    "quantization_config": {"targets": [{"name": "Linear", "bits": [4, 8]}, {"name": "re:.*"}]},
    "time_step_limit": [0.0, float("inf")], "low": -float("inf"), "big": -2**63, "most": 2**63 - 1,
    "text_config": {"vocab_size": 10, "deep": {"er": {"est": "Infinity stays a word"}}},
    "escaped": "a \"quoted Infinity\\\" 12345678901234567890123 \u00e9\u0000z",
}
TOKENIZER_CONFIG = {"model_max_length": 1000000000000000019884624838656, "bos_token": "<s>", "over": 93 * 10**17,
                    "under": -2 * 10**19, "added_tokens_decoder": {"0": {"content": "<s>", "special": True}},
                    "chat_template": [{"name": "default", "template": "{{ x }}"}]}


def make_hf(folder, rng):
    def tensor(*shape):
        return torch.from_numpy(rng.normal(size=shape).astype(np.float32))

    kinds = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64,
             "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e8m0": torch.float8_e8m0fnu,
             "e4m3fnuz": torch.float8_e4m3fnuz, "e5m2fnuz": torch.float8_e5m2fnuz}
    single = folder / "single"
    single.mkdir(parents=True)
    tensors = {f"{name}.weight": tensor(3, 5).abs().to(kind) for name, kind in kinds.items()}
    for name, kind in {"u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
                       "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64}.items():
        tensors[f"{name}.data"] = torch.arange(6).reshape(2, 3).to(kind)
    tensors |= {"bool.data": torch.tensor([True, False, True]), "scalar": torch.tensor(1.5), "empty": tensor(0, 4),
                "conv3d.weight": tensor(2, 3, 2, 2, 2), "name with spaces \u00e9": tensor(1)}
    save_file(tensors, single / "model.safetensors", metadata={"format": "pt"})
    (single / "config.json").write_text(json.dumps(CONFIG, indent=1))
    (single / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2], "temperature": 0.6}))
    (single / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG, ensure_ascii=False))
    (single / "chat_template.jinja").write_text("{{ messages }}")
    (single / "model.safetensors.index.json").write_text('{"weight_map": {"stale": "model-9.safetensors"}}')
    (single / "listing.txt").write_text(hf_listing(single, [single / "model.safetensors"]))
    (folder / "lone.txt").write_text(hf_listing(None, [single / "model.safetensors"]))

    sharded = folder / "sharded"
    sharded.mkdir()
    names = [f"model-{i:05d}-of-00002.safetensors" for i in (1, 2)]
    save_file({"b": tensor(4, 4), "a": tensor(2)}, sharded / names[0])
    odd = b"\x07\x80\x3f\x00\x40"  # a BF16 tensor at an odd offset behind one byte, an empty one between
    header = json.dumps({"odd": {"dtype": "BF16", "shape": [2], "data_offsets": [1, 5]},
                         "none": {"dtype": "F32", "shape": [3, 0], "data_offsets": [1, 1]},
                         "byte": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode() + b"   "
    (sharded / names[1]).write_bytes(struct.pack("<Q", len(header)) + header + odd)
    (sharded / "extra.safetensors").write_bytes(b"not named by the index, never opened")
    (sharded / "config.json").write_text('{"model_type": "test"}')
    weight_map = {"odd": names[1], "none": names[1], "a": names[0], "b": names[0]}  # "byte" is not mapped
    (sharded / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    (sharded / "listing.txt").write_text(hf_listing(sharded, [sharded / n for n in names]))


# ---- hostile and seed files ----

def s(text):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def kv(key, kind, payload):
    return s(key) + struct.pack("<I", kind) + payload


def tensor_entry(name="t", dims=(4,), kind=0, offset=0):
    return s(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *[d % 2**64 for d in dims]) + struct.pack(
        "<IQ", kind, offset)


def gguf_bytes(pairs=(), tensors=(), data=b"", version=3, magic=b"GGUF", n_tensors=None, n_kv=None, align=32):
    out = magic + struct.pack("<IQQ", version, len(tensors) if n_tensors is None else n_tensors,
                              len(pairs) if n_kv is None else n_kv) + b"".join(pairs) + b"".join(tensors)
    return out + b"\0" * (-len(out) % align) + data


U32, STR, ARR = 4, 8, 9
ARCH = kv("general.architecture", STR, s("test"))
D16 = bytes(range(16))


def array(kind, count, payload):
    return struct.pack("<IQ", kind, count) + payload


GGUF_SEEDS = {
    "valid_minimal": gguf_bytes([ARCH], [tensor_entry()], D16),
    "valid_no_tensors": gguf_bytes([ARCH]),
    "valid_scalar": gguf_bytes([ARCH], [tensor_entry(dims=(), kind=0)], b"\0\0\x80\x3f"),
    "valid_empty_dim": gguf_bytes([ARCH], [tensor_entry("a", (0, 3)), tensor_entry("b")], D16),
    "valid_q8_0": gguf_bytes([ARCH], [tensor_entry(dims=(32, 2), kind=8)], b"\0\x3c" + bytes(32) + b"\0\x3c" + D16 * 2),
    "valid_q4_k": gguf_bytes([ARCH], [tensor_entry(dims=(256,), kind=12)], b"\0\x2c\0\x28" + bytes(range(140))),
    "valid_arrays": gguf_bytes([kv("a", ARR, array(STR, 3, s("") + s("x") + s("yy"))),
                                kv("b", ARR, array(6, 2, struct.pack("<2f", 1, 2))),
                                kv("c", ARR, array(7, 2, b"\1\0")), kv("d", ARR, array(U32, 0, b""))]),
    "valid_alignment_64": gguf_bytes([kv("general.alignment", U32, struct.pack("<I", 64))],
                                     [tensor_entry("a"), tensor_entry("b", (4,), 0, 64)], D16 + bytes(48) + D16, align=64),
}

# name -> (status, words of the message, bytes)
GGUF_HOSTILE = {
    "empty": ("corrupt", "the magic", b""),
    "short_magic": ("corrupt", "the magic", b"GG"),
    "bad_magic": ("corrupt", "not a GGUF file", gguf_bytes([ARCH], magic=b"GGML")),
    "version_1": ("unsupported", "GGUF version 1", gguf_bytes([ARCH], version=1)),
    "version_4": ("unsupported", "GGUF version 4", gguf_bytes([ARCH], version=4)),
    "big_endian": ("unsupported", "big-endian", gguf_bytes([ARCH], version=0x03000000)),
    "many_tensors": ("corrupt", "18446744073709551615 tensors do not fit", gguf_bytes([ARCH], n_tensors=2**64 - 1)),
    "many_pairs": ("corrupt", "9223372036854775808 metadata pairs do not fit", gguf_bytes([ARCH], n_kv=2**63)),
    "one_pair_more": ("corrupt", "the file ends within", gguf_bytes([ARCH], n_kv=2, align=1)),
    "key_len_2_63": ("corrupt", "the file ends within metadata key",
                     gguf_bytes([struct.pack("<Q", 2**63) + b"key" + bytes(20)])),
    "key_len_max": ("corrupt", "the file ends within metadata key",
                    gguf_bytes([struct.pack("<Q", 2**64 - 1) + b"key" + bytes(20)])),
    "key_empty": ("corrupt", "metadata key number 0 is empty", gguf_bytes([kv("", U32, bytes(4))])),
    "key_zero_byte": ("corrupt", "metadata key number 1 holds a zero byte", gguf_bytes([ARCH, kv("a\0b", U32, bytes(4))])),
    "key_control": ("corrupt", "holds a control character", gguf_bytes([kv("a\x1b[2Jb", U32, bytes(4))])),
    "key_bad_utf8": ("corrupt", "is not valid UTF-8", gguf_bytes([kv(b"a\xc0\xafb", U32, bytes(4))])),
    "key_too_long": ("corrupt", "is too long", gguf_bytes([kv("k" * 65536, U32, bytes(4))])),
    "key_twice": ("corrupt", "metadata key a.b occurs twice (at byte ",
                  gguf_bytes([kv("a.b", U32, bytes(4)), ARCH, kv("a.b", U32, bytes(4))])),
    "value_type_13": ("corrupt", "key k: value type 13 is unknown", gguf_bytes([kv("k", 13, bytes(8))])),
    "value_type_max": ("corrupt", "key k: value type 4294967295", gguf_bytes([kv("k", 2**32 - 1, bytes(8))])),
    "array_nested": ("corrupt", "key k: array elements of type 9 (arrays cannot nest)",
                     gguf_bytes([kv("k", ARR, array(ARR, 1, array(U32, 1, bytes(4))))])),
    "array_type_99": ("corrupt", "key k: array elements of type 99 (unknown)",
                      gguf_bytes([kv("k", ARR, array(99, 1, bytes(8)))])),
    "array_huge": ("corrupt", "key k: an array of 1099511627776 elements does not fit",
                   gguf_bytes([kv("k", ARR, array(U32, 2**40, bytes(16)))])),
    "array_overflow": ("corrupt", "key k: an array of 2305843009213693953 elements does not fit",
                       gguf_bytes([kv("k", ARR, array(10, 2**61 + 1, bytes(16)))])),
    "array_string_long": ("corrupt", "key k: the file ends within a string of an array",
                          gguf_bytes([kv("k", ARR, array(STR, 2, s("ok") + struct.pack("<Q", 2**63) + bytes(16)))])),
    "string_2_63": ("corrupt", "key k: the file ends within a string value",
                    gguf_bytes([kv("k", STR, struct.pack("<Q", 2**63) + b"abc")])),
    "alignment_zero": ("corrupt", "key general.alignment: the alignment must be a power of two",
                       gguf_bytes([kv("general.alignment", U32, bytes(4))], [tensor_entry()], D16)),
    "alignment_three": ("corrupt", "key general.alignment", gguf_bytes(
        [kv("general.alignment", U32, struct.pack("<I", 3))], [tensor_entry()], D16)),
    "alignment_text": ("corrupt", "key general.alignment", gguf_bytes([kv("general.alignment", STR, s("32"))],
                                                                      [tensor_entry()], D16)),
    "alignment_2_31": ("corrupt", "tensor t: 16 bytes at data offset 0 (section starts at 2147483648)", gguf_bytes(
        [kv("general.alignment", U32, struct.pack("<I", 2**31))], [tensor_entry()], D16)),
    "name_empty": ("corrupt", "tensor name number 0 is empty", gguf_bytes([ARCH], [tensor_entry("")], D16)),
    "name_zero_byte": ("corrupt", "tensor name number 0 holds a zero byte", gguf_bytes([ARCH], [tensor_entry("a\0")], D16)),
    "name_bad_utf8": ("corrupt", "tensor name number 0 is not valid UTF-8",
                      gguf_bytes([ARCH], [tensor_entry(b"\xed\xa0\x80")], D16)),
    "name_too_long": ("corrupt", "tensor name number 0 is too long", gguf_bytes([ARCH], [tensor_entry("n" * 1025)], D16)),
    "name_len_max": ("corrupt", "the file ends within tensor name", gguf_bytes(
        [ARCH], [struct.pack("<Q", 2**64 - 8) + bytes(40)], D16)),
    "tensor_twice": ("corrupt", "tensor t occurs twice (at byte ", gguf_bytes(
        [ARCH], [tensor_entry("t"), tensor_entry("t", offset=32)], D16 + bytes(16) + D16)),
    "dims_5": ("corrupt", "tensor t: 5 dimensions", gguf_bytes([ARCH], [tensor_entry(dims=(1, 1, 1, 1, 1))], D16)),
    "dims_max": ("corrupt", "tensor t: 4294967295 dimensions", gguf_bytes(
        [ARCH], [s("t") + struct.pack("<I", 2**32 - 1) + bytes(64)], D16)),
    "dim_negative": ("corrupt", "tensor t: dimension 1 is negative (-4)", gguf_bytes([ARCH], [tensor_entry(dims=(4, -4))], D16)),
    "dims_overflow": ("corrupt", "tensor t: the product of the dimensions overflows",
                      gguf_bytes([ARCH], [tensor_entry(dims=(2**32, 2**32))], D16)),
    "dims_overflow_zero": ("corrupt", "tensor t: the product of the dimensions overflows",
                           gguf_bytes([ARCH], [tensor_entry(dims=(2**40, 2**40, 0))], D16)),
    "bytes_overflow": ("corrupt", "tensor t: the product of the dimensions overflows",
                       gguf_bytes([ARCH], [tensor_entry(dims=(2**62,), kind=27)], D16)),
    "block_partial": ("corrupt", "tensor t: rows of 48 elements are not a multiple of the 32 of a Q8_0 block",
                      gguf_bytes([ARCH], [tensor_entry(dims=(48, 2), kind=8)], bytes(102))),
    "type_99": ("unsupported", "tensor t: type number 99 is unknown (at byte ", gguf_bytes([ARCH], [tensor_entry(kind=99)], D16)),
    "type_iq2_xs": ("unsupported", "tensor t: type IQ2_XS (17) is not supported by this build (at byte ",
                    gguf_bytes([ARCH], [tensor_entry(dims=(256,), kind=17)], bytes(74))),
    "type_retired": ("unsupported", "tensor t: type Q4_2 (4)", gguf_bytes([ARCH], [tensor_entry(kind=4)], D16)),
    "type_minus_one": ("unsupported", "tensor t: type number 4294967295 is unknown",
                       gguf_bytes([ARCH], [tensor_entry(kind=2**32 - 1)], D16)),
    "offset_unaligned": ("corrupt", "tensor t: data offset 4 is not aligned", gguf_bytes([ARCH], [tensor_entry(offset=4)], D16 * 2)),
    "offset_overlap": ("corrupt", "tensor u: data offset 0 overlaps", gguf_bytes(
        [ARCH], [tensor_entry("t"), tensor_entry("u")], D16 * 4)),
    "offset_hole": ("corrupt", "tensor u: data offset 64 leaves a hole", gguf_bytes(
        [ARCH], [tensor_entry("t"), tensor_entry("u", offset=64)], D16 * 8)),
    "offset_max": ("corrupt", "tensor t: data offset 18446744073709551584", gguf_bytes(
        [ARCH], [tensor_entry(offset=2**64 - 32)], D16)),
    "data_short": ("corrupt", "tensor t: 16 bytes at data offset 0", gguf_bytes([ARCH], [tensor_entry()], D16[:15])),
    "data_absent": ("corrupt", "tensor t: 400 bytes at data offset 0", gguf_bytes([ARCH], [tensor_entry(dims=(100,))], b"")),
    "split_alone": ("invalid", "one of 2 parts of a split file", gguf_bytes(
        [kv("split.no", 2, b"\0\0"), kv("split.count", 2, b"\2\0")])),
}


def st(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(begin=0, end=16, dtype="F32", shape=(4,), **extra):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end], **extra}


ST_SEEDS = {
    "valid_minimal": st({"t": entry()}, D16),
    "valid_none": st({}),
    "valid_metadata": st({"__metadata__": {"format": "pt"}, "t": entry()}, D16),
    "valid_padded": st(json.dumps({"t": entry()}).encode() + b"   ", D16),
    "valid_scalar": st({"t": entry(0, 4, "F32", ())}, b"\0\0\x80\x3f"),
    "valid_empty_dim": st({"a": entry(0, 0, "F32", (0, 3)), "b": entry()}, D16),
    "valid_f8": st({"a": entry(0, 8, "F8_E4M3", (2, 4)), "b": entry(8, 16, "BF16", (4,))}, D16),
    "valid_eight_dims": st({"t": entry(0, 16, "U8", (2, 1, 2, 1, 2, 1, 2, 1))}, D16),
    "valid_escaped_name": st(b'{"\\u0074\\u00e9":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', D16),
}

ST_HOSTILE = {
    "empty": ("corrupt", "the file has 0 bytes", b""),
    "seven_bytes": ("corrupt", "the file has 7 bytes", bytes(7)),
    "length_zero": ("corrupt", "does not begin with '{'", bytes(8)),
    "length_2_63": ("corrupt", "a header of 9223372036854775808 bytes does not fit", st({"t": entry()}, D16, 2**63)),
    "length_max": ("corrupt", "a header of 18446744073709551615 bytes", st({"t": entry()}, D16, 2**64 - 1)),
    "length_beyond": ("corrupt", "does not fit into a file", st({"t": entry()}, D16, 100000)),
    "length_short": ("corrupt", "JSON line 1", st({"t": entry()}, D16, 20)),
    "not_json": ("corrupt", "JSON line 1", st(b"{tensor}", D16)),
    "array_top": ("corrupt", "does not begin with '{'", st(b"[1, 2]", D16)),
    "trailing_bytes": ("corrupt", "JSON line 1", st(b"{} x")),
    "deep": ("corrupt", "JSON line 1", st(b'{"a":' + b"[" * 3000 + b"]" * 3000 + b"}")),
    "bad_utf8_name": ("corrupt", "JSON line 1", st(b'{"\xc0\xaf":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', D16)),
    "lone_surrogate": ("corrupt", "JSON line 1", st(b'{"\\ud800":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', D16)),
    "name_empty": ("corrupt", "a tensor name of 0 bytes is empty", st({"": entry()}, D16)),
    "name_zero_byte": ("corrupt", "JSON line 1", st({"a\0b": entry()}, D16)),
    "name_control": ("corrupt", "holds a control character", st({"a\x1bb": entry()}, D16)),
    "name_too_long": ("corrupt", "a tensor name of 1025 bytes is too long", st({"n" * 1025: entry()}, D16)),
    "name_twice": ("corrupt", 'duplicate object key near \'"t"\'', st(
        b'{"t":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"t":{"dtype":"F32","shape":[4],"data_offsets":[16,32]}}',
        D16 * 2)),
    "field_twice": ("corrupt", "duplicate object key", st(
        b'{"t":{"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]}}', D16)),
    "entry_number": ("corrupt", "tensor t: the entry is not an object", st({"t": 5}, D16)),
    "metadata_number": ("corrupt", "__metadata__", st({"__metadata__": {"a": 1}, "t": entry()}, D16)),
    "metadata_list": ("corrupt", "__metadata__", st({"__metadata__": [], "t": entry()}, D16)),
    "dtype_absent": ("corrupt", "tensor t: dtype is missing", st({"t": {"shape": [4], "data_offsets": [0, 16]}}, D16)),
    "dtype_unknown": ("unsupported", 'tensor t: dtype "F128" is unknown (at byte 9)', st({"t": entry(dtype="F128")}, D16)),
    "dtype_f4": ("unsupported", "tensor t: dtype F4 is not supported", st({"t": entry(dtype="F4")}, D16)),
    "dtype_gguf": ("unsupported", 'tensor t: dtype "Q8_0" is unknown', st({"t": entry(dtype="Q8_0")}, D16)),
    "dtype_case": ("unsupported", 'tensor t: dtype "f32" is unknown', st({"t": entry(dtype="f32")}, D16)),
    "dtype_control": ("unsupported", 'tensor t: dtype "?" is unknown', st({"t": entry(dtype="\x1b[2J")}, D16)),
    "shape_absent": ("corrupt", "tensor t: shape is missing", st({"t": {"dtype": "F32", "data_offsets": [0, 16]}}, D16)),
    "shape_negative": ("corrupt", "tensor t: a dimension is negative", st({"t": entry(shape=(-4,))}, D16)),
    "shape_real": ("corrupt", "tensor t: a dimension is negative or not an integer", st({"t": entry(shape=(4.0,))}, D16)),
    "shape_2_64": ("corrupt", "JSON line 1", st({"t": entry(shape=(2**64,))}, D16)),
    "shape_nine_dims": ("limit", "tensor t: 9 dimensions", st({"t": entry(0, 4, shape=(1,) * 9)}, D16[:4])),
    "shape_overflow": ("corrupt", "tensor t: the product of the dimensions overflows", st({"t": entry(shape=(2**40, 2**40))}, D16)),
    "shape_bytes_overflow": ("corrupt", "tensor t: the product", st({"t": entry(shape=(2**62,), dtype="F64")}, D16)),
    "offsets_absent": ("corrupt", "tensor t: data_offsets is missing", st({"t": {"dtype": "F32", "shape": [4]}}, D16)),
    "offsets_three": ("corrupt", "tensor t: data_offsets", st({"t": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16, 16]}}, D16)),
    "offsets_text": ("corrupt", "tensor t: data_offsets", st({"t": {"dtype": "F32", "shape": [4], "data_offsets": ["0", 16]}}, D16)),
    "offsets_negative": ("corrupt", "tensor t: data_offsets [-16, 0)", st({"t": entry(-16, 0)}, D16)),
    "offsets_reversed": ("corrupt", "tensor t: data_offsets [16, 0)", st({"t": entry(16, 0)}, D16)),
    "offsets_beyond": ("corrupt", "tensor t: data_offsets [0, 16) in a buffer of 15 bytes", st({"t": entry()}, D16[:15])),
    "offsets_2_63": ("corrupt", "tensor t: data_offsets [9223372036854775791, 9223372036854775807)",
                     st({"t": entry(2**63 - 17, 2**63 - 1)}, D16)),
    "offsets_size": ("corrupt", "dtype and shape need 12 bytes", st({"t": entry(shape=(3,))}, D16)),
    "overlap": ("corrupt", "overlaps another tensor", st({"a": entry(0, 16), "b": entry(12, 28)}, D16 * 2)),
    "overlap_same": ("corrupt", "overlaps another tensor", st({"a": entry(0, 16), "b": entry(0, 16)}, D16)),
    "hole": ("corrupt", "tensor b: data begins at 20 of the buffer, which leaves a hole", st(
        {"a": entry(0, 16), "b": entry(20, 36)}, bytes(36))),
    "hole_first": ("corrupt", "leaves a hole", st({"a": entry(4, 20)}, bytes(20))),
    "tail": ("corrupt", "3 bytes follow the last tensor", st({"t": entry()}, D16 + b"abc")),
}


def write_corpus(data, corpus):
    rows = []
    for kind, seeds, hostile, suffix in [("gguf", GGUF_SEEDS, GGUF_HOSTILE, ".gguf"),
                                         ("safetensors", ST_SEEDS, ST_HOSTILE, ".safetensors")]:
        folder = corpus / kind
        folder.mkdir(parents=True, exist_ok=True)
        for old in list(folder.glob("valid_*")) + list(folder.glob("bad_*")):
            old.unlink()
        for name, content in seeds.items():
            (folder / (name + suffix)).write_bytes(content)
            rows.append(f"{kind}/{name}{suffix}\tok\t")
        for name, (status, words, content) in hostile.items():
            (folder / f"bad_{name}{suffix}").write_bytes(content)
            rows.append(f"{kind}/bad_{name}{suffix}\t{status}\t{words}")
    (data / "corpus.tsv").write_text("\n".join(rows) + "\n")


def write_bad_folders(folder):
    """Folders that must be refused: name -> (status, words, path inside to open, files)."""
    one = st({"a": entry()}, D16)
    two = st({"b": entry()}, D16)
    config = b'{"model_type": "test"}'

    def index(weight_map):
        return json.dumps({"weight_map": weight_map}).encode()

    deep = b'{"a":' * 100 + b"1" + b"}" * 100
    cases = {
        "no_config": ("not_found", "config.json: cannot open", "", {"model.safetensors": one}),
        "no_weights": ("not_found", "neither model.safetensors nor", "", {"config.json": config}),
        "config_list": ("corrupt", "config.json: the JSON text is not an object", "", {"config.json": b"[]"}),
        "config_syntax": ("corrupt", "config.json: JSON line 2, column ", "", {"config.json": b'{"a": 1,\n"b": NaN}'}),
        "config_twice": ("corrupt", "duplicate object key", "", {"config.json": b'{"a": 1, "a": 2}'}),
        "config_dots_twice": ("corrupt", "metadata key a.b occurs twice", "", {"config.json": b'{"a": {"b": 1}, "a.b": 2}'}),
        "config_deep": ("limit", "nested deeper than 64 levels", "", {"config.json": deep}),
        "config_long_key": ("corrupt", "is too long", "", {"config.json": json.dumps({"k" * 5000: 1}).encode()}),
        "config_control_key": ("corrupt", "holds a control character", "", {"config.json": b'{"a\\u001b": 1}'}),
        "config_real_overflow": ("corrupt", "JSON line 1", "", {"config.json": b'{"a": 1e999}'}),
        "config_huge_integer": ("corrupt", "JSON line 1", "", {"config.json": b'{"a": 1' + b"0" * 400 + b"}"}),
        "index_no_map": ("corrupt", "weight_map is missing", "", {"config.json": config, "model.safetensors.index.json": b"{}"}),
        "index_parent": ("corrupt", "no plain .safetensors file for tensor a", "",
                         {"config.json": config, "model.safetensors.index.json": index({"a": "../single/model.safetensors"})}),
        "index_number": ("corrupt", "no plain .safetensors file for tensor a", "",
                         {"config.json": config, "model.safetensors.index.json": index({"a": 5})}),
        "index_other_kind": ("corrupt", "no plain .safetensors file for tensor a", "",
                             {"config.json": config, "model.safetensors.index.json": index({"a": "config.json"})}),
        "shard_absent": ("not_found", "model-2.safetensors: cannot open", "",
                         {"config.json": config, "model-1.safetensors": one,
                          "model.safetensors.index.json": index({"a": "model-1.safetensors", "b": "model-2.safetensors"})}),
        "shard_swapped": ("corrupt", "tensor a: the index says that this tensor is in model-2.safetensors", "",
                          {"config.json": config, "model-1.safetensors": one, "model-2.safetensors": two,
                           "model.safetensors.index.json": index({"a": "model-2.safetensors", "b": "model-1.safetensors"})}),
        "shard_lacks": ("corrupt", "tensor c is not in model-1.safetensors", "",
                        {"config.json": config, "model-1.safetensors": one,
                         "model.safetensors.index.json": index({"a": "model-1.safetensors", "c": "model-1.safetensors"})}),
        "shard_twice": ("corrupt", "tensor a occurs twice", "",
                        {"config.json": config, "model-1.safetensors": one, "model-2.safetensors":
                         st({"a": entry(), "b": entry(16, 32)}, D16 * 2), "model-3.safetensors": one,
                         "model.safetensors.index.json": index({"b": "model-2.safetensors", "x": "model-3.safetensors"})}),
        "shard_corrupt": ("corrupt", "model-1.safetensors", "",
                          {"config.json": config, "model-1.safetensors": one[:-1],
                           "model.safetensors.index.json": index({"a": "model-1.safetensors"})}),
        "empty_file": ("corrupt", "the file is empty", "model.safetensors", {"model.safetensors": b""}),
        "text_file": ("corrupt", "not a GGUF file", "README.md", {"README.md": b"# a model card\n"}),
    }

    def part(no, count, total, name, version=3):
        pairs = [kv("split.no", 2, struct.pack("<H", no)), kv("split.count", 2, struct.pack("<H", count)),
                 kv("split.tensors.count", 5, struct.pack("<i", total))]
        return gguf_bytes(pairs, [tensor_entry(name)], D16, version=version)

    names = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    cases |= {
        "split_renamed": ("invalid", "one of 2 parts of a split file", "m.gguf", {"m.gguf": part(0, 2, 2, "a")}),
        "split_absent": ("not_found", "m-00002-of-00002.gguf: cannot open", names[0], {names[0]: part(0, 2, 2, "a")}),
        "split_first_absent": ("not_found", "m-00001-of-00002.gguf: cannot open", names[1], {names[1]: part(1, 2, 2, "a")}),
        "split_swapped": ("corrupt", "split.no 1 of split.count 2 where 0 of 2 was expected", names[0],
                          {names[0]: part(1, 2, 2, "a"), names[1]: part(0, 2, 2, "b")}),
        "split_twice": ("corrupt", "tensor a occurs twice", names[0],
                        {names[0]: part(0, 2, 2, "a"), names[1]: part(1, 2, 2, "a")}),
        "split_total": ("corrupt", "3 tensors are announced, the parts hold 2", names[1],
                        {names[0]: part(0, 2, 3, "a"), names[1]: part(1, 2, 3, "b")}),
        "split_foreign": ("corrupt", "split.no -1 of split.count -1", names[0],
                          {names[0]: part(0, 2, 2, "a"), names[1]: gguf_bytes([ARCH], [tensor_entry("b")], D16)}),
        "split_versions": ("corrupt", "GGUF version 2, but the first part has version 3", names[0],
                           {names[0]: part(0, 2, 2, "a"), names[1]: part(1, 2, 2, "b", version=2)}),
    }
    rows = []
    for name, (status, words, inside, files) in cases.items():
        (folder / name).mkdir(parents=True)
        for file_name, content in files.items():
            (folder / name / file_name).write_bytes(content)
        rows.append(f"{name}/{inside}\t{status}\t{words}")
    (folder / "cases.tsv").write_text("\n".join(rows) + "\n")


def main():
    data, corpus = Path(sys.argv[1]), Path(sys.argv[2])
    rng = np.random.default_rng(20260102)
    for name in ("gguf", "hf", "bad"):
        shutil.rmtree(data / name, ignore_errors=True)
    make_gguf(data / "gguf", rng)
    make_hf(data / "hf", rng)
    write_bad_folders(data / "bad")
    write_corpus(data, corpus)
    for model in map(Path, sys.argv[3:]):
        (data / "models").mkdir(exist_ok=True)
        (data / "models" / (model.stem + ".txt")).write_text(gguf_listing([model], False))


if __name__ == "__main__":
    main()
