// opcheck: one case list that tests every op of a backend against `ref`, measures it, and writes the support table.
//
// A case is a program of one op whose inputs are imports and whose outputs are exports, so only the backend contract
// is used. What is checked for each case and each level of the backend is listed at the top of opcheck.c.
#ifndef BACKEND_OPCHECK_H
#define BACKEND_OPCHECK_H

#include <stdbool.h>
#include <stdint.h>

typedef enum opcheck_mode {
    OPCHECK_TEST = 0, // run the cases
    OPCHECK_LIST,     // print the cases, run nothing
    OPCHECK_BENCH,    // time ops at real sizes
    OPCHECK_SUPPORT   // print the op x dtype x level table (Markdown, docs/ops.md)
} opcheck_mode;

typedef struct opcheck_options {
    opcheck_mode mode;
    const char *backend; // NULL: "cpu"
    const char *level;   // one level only, by name; NULL: every level this machine has (bench: the best)
    const char *op;      // only this op kind, by its name in ops.def; NULL: all
    const char *dtype;   // only cases whose weight or state has this dtype; NULL: all
    uint64_t seed;       // of all test data; 0: a fixed default
    int n_threads;       // bench only; 0: all CPUs
    bool quick;          // the small subset that ctest runs
    bool verbose;        // a line for each case, not only for failures and sums
} opcheck_options;

typedef struct opcheck_summary {
    int n_cases;  // case x level pairs run
    int n_failed; // pairs with at least one failed check
} opcheck_summary;

// Receives one line without its newline.
typedef void (*opcheck_print_fn)(void *context, const char *line);

// 0: all passed (or mode is not TEST); 1: something failed; 2: could not run (unknown backend, level, op or dtype, out
// of memory), said in the last line. summary may be NULL.
int opcheck_run(const opcheck_options *options, opcheck_print_fn print, void *context, opcheck_summary *summary);

#endif
