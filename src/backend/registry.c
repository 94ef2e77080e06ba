// One line a backend. The list is the only place that knows them all.
#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"

#include <string.h>

const backend_type *const *backend_registry(void) {
    static const backend_type *const list[] = {&cpu_backend_type, &ref_backend_type, NULL};
    return list;
}

const backend_type *backend_find(const char *name) {
    for (const backend_type *const *b = backend_registry(); *b; b++) {
        if (strcmp((*b)->name, name) == 0) {
            return *b;
        }
    }
    return NULL;
}

const char *backend_cpu_level(void) { return cpu_best_level(); }
