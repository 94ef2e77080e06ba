#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>

static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static log_sink_fn sink;
static void *sink_context;
static atomic_int level_limit = LOG_INFO;

void log_set_sink(log_sink_fn new_sink, void *context) {
    pthread_mutex_lock(&sink_lock);
    sink = new_sink;
    sink_context = context;
    pthread_mutex_unlock(&sink_lock);
}

void log_set_level(log_level level) {
    atomic_store(&level_limit, level);
}

log_level log_get_level(void) {
    return (log_level)atomic_load(&level_limit);
}

void log_write(log_level level, const char *format, ...) {
    if ((int)level > atomic_load(&level_limit)) {
        return;
    }
    char line[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    pthread_mutex_lock(&sink_lock);
    if (sink) {
        sink(sink_context, level, line);
    }
    pthread_mutex_unlock(&sink_lock);
}
