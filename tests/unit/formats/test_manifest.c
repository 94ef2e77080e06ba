// Whole checkpoints: what the manifest reads must be what the gguf and safetensors packages read (listings made by
// scripts/golden_formats.py); every hostile file must end in its status with its words.
#include "manifest_dump.h"

#include "../../fuzz/manifest_walk.h"
#include "base/clock.h"
#include "base/file_map.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define FORMATS TEST_DATA_DIR "/formats/"
#define CORPUS  TEST_DATA_DIR "/../fuzz/corpus/"

static manifest *open_ok(const char *path) {
    manifest *m = NULL;
    error_ctx err;
    error_clear(&err);
    if (manifest_open(path, &m, &err) != STATUS_OK) {
        char text[1024];
        fail_msg("%s: %s", path, error_text(&err, text, sizeof text));
    }
    return m;
}

// First line in which two texts differ, for the message.
static void assert_same_text(const char *what, const char *got, const char *want) {
    while (*got || *want) {
        size_t got_len = strcspn(got, "\n"), want_len = strcspn(want, "\n");
        if (got_len != want_len || memcmp(got, want, got_len) != 0) {
            fail_msg("%s:\n got %.*s\nwant %.*s", what, (int)got_len, got, (int)want_len, want);
        }
        got += got_len + (got[got_len] == '\n');
        want += want_len + (want[want_len] == '\n');
    }
}

static void check_listing(const char *path, const char *listing, bool with_data) {
    manifest *m = open_ok(path);
    strbuf got = {0};
    manifest_dump(m, with_data, &got);
    assert_false(got.oom);
    char *want;
    size_t want_len;
    assert_int_equal(file_read_all(listing, 1 << 20, &want, &want_len, NULL), STATUS_OK);
    assert_same_text(path, got.ptr, want);
    walk_manifest(m);
    free(want);
    strbuf_free(&got);
    manifest_close(m);
}

static void test_gguf_as_gguf_package(void **state) {
    (void)state;
    check_listing(FORMATS "gguf/everything.gguf", FORMATS "gguf/everything.txt", true);
    check_listing(FORMATS "gguf/aligned.gguf", FORMATS "gguf/aligned.txt", true);
    check_listing(FORMATS "gguf/version2.gguf", FORMATS "gguf/version2.txt", true);
}

static void test_gguf_split_from_any_part(void **state) {
    (void)state;
    check_listing(FORMATS "gguf/parts-00001-of-00003.gguf", FORMATS "gguf/parts.txt", true);
    check_listing(FORMATS "gguf/parts-00002-of-00003.gguf", FORMATS "gguf/parts.txt", true);
    check_listing(FORMATS "gguf/parts-00003-of-00003.gguf", FORMATS "gguf/parts.txt", true);
    // The first part holds metadata and no tensor.
    check_listing(FORMATS "gguf/late-00001-of-00004.gguf", FORMATS "gguf/late.txt", true);
    check_listing(FORMATS "gguf/late-00004-of-00004.gguf", FORMATS "gguf/late.txt", true);
}

static void test_hf_as_safetensors_package(void **state) {
    (void)state;
    check_listing(FORMATS "hf/single", FORMATS "hf/single/listing.txt", true);
    check_listing(FORMATS "hf/single/model.safetensors", FORMATS "hf/lone.txt", true);
    check_listing(FORMATS "hf/sharded", FORMATS "hf/sharded/listing.txt", true);
    check_listing(FORMATS "hf/sharded/model.safetensors.index.json", FORMATS "hf/sharded/listing.txt", true);
}

static void check_model(const char *name) {
    char path[512], listing[512];
    snprintf(path, sizeof path, TEST_MODEL_DIR "/%s.gguf", name);
    snprintf(listing, sizeof listing, FORMATS "models/%s.txt", name);
    if (access(path, R_OK) != 0) {
        print_message("%s is not here: skipped\n", path);
        skip();
    }
    check_listing(path, listing, false);
}

static void test_smollm2(void **state) {
    (void)state;
    check_model("smollm2-135m-instruct-q4_1");
}

static void test_gemma3(void **state) {
    (void)state;
    check_model("gemma-3-270m-q4_k_m");
}

static void test_side_files(void **state) {
    (void)state;
    manifest *m = open_ok(FORMATS "hf/single");
    str data, again;
    error_ctx err;
    error_clear(&err);
    assert_int_equal(manifest_side_file(m, "chat_template.jinja", &data, &err), STATUS_OK);
    assert_true(str_equal_c(data, "{{ messages }}"));
    assert_int_equal(data.ptr[data.len], 0);
    assert_int_equal(manifest_side_file(m, "chat_template.jinja", &again, &err), STATUS_OK);
    assert_ptr_equal(data.ptr, again.ptr);
    assert_int_equal(manifest_side_file(m, "tokenizer.json", &data, &err), STATUS_NOT_FOUND);
    error_clear(&err);
    static const char *const bad[] = {"", ".", "..", "../sharded/config.json", "/etc/passwd"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        error_clear(&err);
        assert_int_equal(manifest_side_file(m, bad[i], &data, &err), STATUS_INVALID);
    }
    manifest_close(m);
    m = open_ok(FORMATS "gguf/aligned.gguf");
    assert_int_equal(manifest_side_file(m, "aligned.txt", &data, NULL), STATUS_NOT_FOUND);
    manifest_close(m);
}

static void test_many_dimensions_merge(void **state) {
    (void)state;
    manifest *m = open_ok(FORMATS "hf/single");
    const manifest_tensor *t = manifest_tensor_find(m, "conv3d.weight");
    assert_non_null(t);
    assert_int_equal(t->n_dims, 5);
    weight w;
    manifest_tensor_weight(m, t, &w);
    assert_int_equal(w.n_dims, 4);
    assert_int_equal(w.shape[0], 6); // 2 x 3
    assert_int_equal(w.shape[3], 2);
    t = manifest_tensor_find(m, "scalar");
    assert_non_null(t);
    assert_int_equal(t->n_dims, 0);
    manifest_close(m);
    assert_null(manifest_tensor_find(m = open_ok(FORMATS "hf/sharded"), "absent"));
    manifest_close(m);
    manifest_close(NULL);
}

// ---- refusals ----

// One line "name \t status \t words" of a case list.
typedef struct bad_case {
    char name[256], status[32], words[256];
} bad_case;

static bool next_case(FILE *f, bad_case *c) {
    char line[640];
    if (!fgets(line, sizeof line, f)) {
        return false;
    }
    line[strcspn(line, "\n")] = '\0';
    c->words[0] = '\0';
    int n = sscanf(line, "%255[^\t]\t%31[^\t]\t%255[^\n]", c->name, c->status, c->words);
    assert_true(n >= 2);
    return true;
}

static void check_case(const bad_case *c, status_code code, manifest *m, const error_ctx *err) {
    char text[1024] = "";
    if (code != STATUS_OK) {
        error_text(err, text, sizeof text);
        walk_error(code, m, err);
    }
    if (strcmp(status_name(code), c->status) != 0 || !strstr(text, c->words)) {
        fail_msg("%s ends in %s: %s\nwant %s with \"%s\"", c->name, status_name(code), text, c->status, c->words);
    }
    if (code == STATUS_OK) {
        walk_manifest(m);
        manifest_close(m);
    }
}

typedef status_code (*open_memory_fn)(const char *name, const void *data, size_t bytes, manifest **out, error_ctx *err);

static open_memory_fn opener_of(const char *name) {
    return strstr(name, ".safetensors") ? manifest_open_safetensors_memory : manifest_open_gguf_memory;
}

static void test_corpus_statuses(void **state) {
    (void)state;
    FILE *f = fopen(FORMATS "corpus.tsv", "r");
    assert_non_null(f);
    bad_case c;
    int n = 0;
    for (; next_case(f, &c); n++) {
        char path[1024];
        snprintf(path, sizeof path, CORPUS "%s", c.name);
        char *data;
        size_t len;
        assert_int_equal(file_read_all(path, 1 << 20, &data, &len, NULL), STATUS_OK);
        uint8_t *exact = malloc(len ? len : 1); // without the terminator that file_read_all adds
        assert_non_null(exact);
        memcpy(exact, data, len);
        manifest *m;
        error_ctx err;
        error_clear(&err);
        status_code code = opener_of(c.name)(c.name, exact, len, &m, &err);
        check_case(&c, code, m, &err);
        free(exact);
        free(data);
    }
    fclose(f);
    assert_true(n > 100);
}

static void test_bad_folders(void **state) {
    (void)state;
    FILE *f = fopen(FORMATS "bad/cases.tsv", "r");
    assert_non_null(f);
    bad_case c;
    int n = 0;
    for (; next_case(f, &c); n++) {
        char path[1024];
        snprintf(path, sizeof path, FORMATS "bad/%s", c.name);
        manifest *m;
        error_ctx err;
        error_clear(&err);
        status_code code = manifest_open(path, &m, &err);
        check_case(&c, code, m, &err);
    }
    fclose(f);
    assert_true(n > 25);
    manifest *m;
    error_ctx err;
    error_clear(&err);
    assert_int_equal(manifest_open(FORMATS "no such thing", &m, &err), STATUS_NOT_FOUND);
    assert_non_null(strstr(err.object, "no such thing"));
    error_clear(&err);
    assert_int_equal(manifest_open("/dev/zero", &m, &err), STATUS_INVALID);
}

// A file cut at any length within its header, and a header with any byte changed, gives an error or a manifest whose
// every promise holds. Each attempt has heap memory of exactly its size, so that AddressSanitizer sees any overrun.
static void mutate(const char *path, size_t most_bytes) {
    char *data;
    size_t len;
    assert_int_equal(file_read_all(path, 1 << 20, &data, &len, NULL), STATUS_OK);
    size_t n = len < most_bytes ? len : most_bytes;
    open_memory_fn open_memory = opener_of(path);
    static const uint8_t changes[] = {0x01, 0x80, 0xff, 0x20, 0x07};
    for (size_t i = 0; i < n; i++) {
        uint8_t *cut = malloc(i ? i : 1);
        assert_non_null(cut);
        memcpy(cut, data, i);
        manifest *m;
        error_ctx err;
        error_clear(&err);
        status_code code = open_memory("cut", cut, i, &m, &err);
        if (code == STATUS_OK) {
            fail_msg("%s cut to %zu of %zu bytes opens", path, i, len);
        }
        walk_error(code, m, &err);
        free(cut);
        for (size_t k = 0; k < sizeof changes + 2; k++) {
            uint8_t *changed = malloc(len);
            assert_non_null(changed);
            memcpy(changed, data, len);
            changed[i] = k < sizeof changes ? changed[i] ^ changes[k] : k == sizeof changes ? 0 : 0xff;
            error_clear(&err);
            code = open_memory("changed", changed, len, &m, &err);
            if (code == STATUS_OK) {
                walk_manifest(m);
                manifest_close(m);
            } else {
                walk_error(code, m, &err);
            }
            free(changed);
        }
    }
    free(data);
}

static void test_mutated_gguf(void **state) {
    (void)state;
    mutate(CORPUS "gguf/valid_arrays.gguf", 150);
    mutate(CORPUS "gguf/valid_alignment_64.gguf", 272);
    mutate(FORMATS "gguf/everything.gguf", 2600); // to the end of its tensor table and beyond
}

static void test_mutated_safetensors(void **state) {
    (void)state;
    mutate(CORPUS "safetensors/valid_metadata.safetensors", 200);
    mutate(FORMATS "hf/single/model.safetensors", 1200);
}

// A model of a terabyte opens at once: a sparse file whose header is real and whose data nobody ever wrote.
static void test_data_is_not_touched(void **state) {
    (void)state;
    char path[] = "/tmp/plumb-sparse-XXXXXX.gguf";
    int fd = mkstemps(path, 5);
    assert_true(fd >= 0);
    struct {
        char magic[4];
        uint32_t version;
        uint64_t n_tensors, n_kv, name_len;
        char name[4];
        uint32_t n_dims;
        uint64_t dims[2];
        uint32_t type;
        uint64_t offset;
    } __attribute__((packed)) head = {.magic = "GGUF",
                                      .version = 3,
                                      .n_tensors = 1,
                                      .name_len = 4,
                                      .name = "huge",
                                      .n_dims = 2,
                                      .dims = {1 << 20, 1 << 18}};
    assert_int_equal(write(fd, &head, sizeof head), sizeof head);
    off_t bytes = ((off_t)sizeof head + 31) / 32 * 32 + ((off_t)1 << 40);
    if (ftruncate(fd, bytes) != 0) {
        close(fd);
        unlink(path);
        print_message("this file system has no large sparse files: skipped\n");
        skip();
    }
    close(fd);
    uint64_t start = clock_monotonic_ns();
    manifest *m = open_ok(path);
    uint64_t elapsed = clock_monotonic_ns() - start;
    assert_int_equal(manifest_tensor_find(m, "huge")->bytes, 1ull << 40);
    manifest_close(m);
    unlink(path);
    assert_true(elapsed < 1000000000); // reading a terabyte takes minutes; opening takes microseconds
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf_as_gguf_package),
        cmocka_unit_test(test_gguf_split_from_any_part),
        cmocka_unit_test(test_hf_as_safetensors_package),
        cmocka_unit_test(test_smollm2),
        cmocka_unit_test(test_gemma3),
        cmocka_unit_test(test_side_files),
        cmocka_unit_test(test_many_dimensions_merge),
        cmocka_unit_test(test_corpus_statuses),
        cmocka_unit_test(test_bad_folders),
        cmocka_unit_test(test_mutated_gguf),
        cmocka_unit_test(test_mutated_safetensors),
        cmocka_unit_test(test_data_is_not_touched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
