// Writes a manifest as the text that scripts/golden_formats.py makes with the gguf and safetensors packages.
#ifndef TESTS_MANIFEST_DUMP_H
#define TESTS_MANIFEST_DUMP_H

#include "../tensor/crc32.h"
#include "formats/manifest.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static void dump_float(strbuf *out, double x) {
    if (isnan(x)) {
        strbuf_append_c(out, "nan");
    } else {
        strbuf_printf(out, "%.17g", x);
    }
}

static void dump_array(strbuf *out, const meta_value *v) {
    strbuf items = {0};
    int64_t n = meta_array_len(v);
    meta_type type = meta_array_type(v);
    for (int64_t i = 0; i < n; i++) {
        int64_t whole;
        double real;
        bool flag;
        str text;
        if (meta_array_str(v, i, &text)) {
            strbuf_printf(&items, "%zu:", text.len);
            strbuf_append_str(&items, text);
        } else if (meta_array_bool(v, i, &flag)) {
            strbuf_append_c(&items, flag ? "true" : "false");
        } else if (type == META_FLOAT && meta_array_float(v, i, &real)) {
            dump_float(&items, real);
        } else if (meta_array_int(v, i, &whole)) {
            strbuf_printf(&items, "%" PRId64, whole);
        } else {
            strbuf_append_c(&items, "18446744073709551615"); // the only number of the test files beyond int64
        }
        strbuf_append_char(&items, '\n');
    }
    strbuf_printf(out, "array %s %" PRId64 " %08x", meta_type_name(type), n, crc32_update(0, items.ptr, items.len));
    strbuf_free(&items);
}

static void dump_value(strbuf *out, const meta_value *v) {
    int64_t whole;
    double real;
    bool flag;
    str text;
    if (meta_value_type(v) == META_ARRAY) {
        dump_array(out, v);
        return;
    }
    strbuf_printf(out, "%s ", meta_type_name(meta_value_type(v)));
    if (meta_value_str(v, &text)) {
        strbuf_printf(out, "%zu %08x", text.len, crc32_update(0, text.ptr, text.len));
    } else if (meta_value_bool(v, &flag)) {
        strbuf_append_c(out, flag ? "true" : "false");
    } else if (meta_value_type(v) == META_FLOAT && meta_value_float(v, &real)) {
        dump_float(out, real);
    } else if (meta_value_int(v, &whole)) {
        strbuf_printf(out, "%" PRId64, whole);
    } else {
        strbuf_append_c(out, "18446744073709551615");
    }
}

static void dump_tensor(strbuf *out, const manifest *m, const manifest_tensor *t, bool with_data) {
    const dtype_info *info = dtype_get(t->type);
    strbuf_printf(out, "tensor %s %s [", t->name, info->name);
    for (int d = 0; d < t->n_dims; d++) {
        strbuf_printf(out, "%s%" PRId64, d ? ", " : "", t->shape[d]);
    }
    strbuf_printf(out, "] %d %" PRIu64 " %" PRIu64, t->file_index, t->offset, t->bytes);
    if (with_data) {
        strbuf_printf(out, " %08x", crc32_update(0, manifest_tensor_data(m, t), t->bytes));
    } else {
        strbuf_append_c(out, " -");
    }
    weight w;
    manifest_tensor_weight(m, t, &w);
    size_t row_bytes = (size_t)weight_columns(&w) * sizeof(float);
    float *row = info->decode && t->bytes ? malloc(row_bytes) : NULL;
    if (row) {
        weight_decode_row(&w, 0, row);
        strbuf_printf(out, " %08x", crc32_update(0, row, row_bytes));
        free(row);
    } else {
        strbuf_append_c(out, " -");
    }
    strbuf_append_char(out, '\n');
}

static void manifest_dump(const manifest *m, bool with_data, strbuf *out) {
    if (manifest_get_format(m) == MANIFEST_GGUF) {
        strbuf_printf(out, "format gguf %d\n", manifest_gguf_version(m));
    } else {
        strbuf_append_c(out, "format hf\n");
    }
    for (int i = 0; i < manifest_file_count(m); i++) {
        const char *slash = strrchr(manifest_file_path(m, i), '/');
        strbuf_printf(out, "file %s %" PRIu64 "\n", slash ? slash + 1 : manifest_file_path(m, i),
                      manifest_file_bytes(m, i));
    }
    const meta *keys = manifest_meta(m);
    for (int64_t i = 0; i < meta_count(keys); i++) {
        const char *key;
        const meta_value *v = meta_at(keys, i, &key);
        strbuf_printf(out, "kv %s ", key);
        dump_value(out, v);
        strbuf_append_char(out, '\n');
    }
    for (int64_t i = 0; i < manifest_tensor_count(m); i++) {
        dump_tensor(out, m, manifest_tensor_at(m, i), with_data);
    }
}

#endif
