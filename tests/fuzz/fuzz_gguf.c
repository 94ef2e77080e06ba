// Opens the input as a GGUF file and reads all that the public API gives.
#include "manifest_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    manifest *m;
    error_ctx err;
    error_clear(&err);
    status_code code = manifest_open_gguf_memory("fuzz.gguf", data, bytes, &m, &err);
    if (code == STATUS_OK) {
        volatile uint64_t sum = walk_manifest(m);
        (void)sum;
        manifest_close(m);
    } else {
        walk_error(code, m, &err);
    }
    return 0;
}
