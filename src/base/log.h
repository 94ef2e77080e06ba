// Process-wide log with a replaceable sink. The library itself never prints:
// without a sink, records are dropped. Thread-safe. Not for the step path.
#ifndef BASE_LOG_H
#define BASE_LOG_H

typedef enum log_level { LOG_ERROR = 0, LOG_WARN, LOG_INFO, LOG_DEBUG } log_level;

// Called with one line without newline. May run on any thread, one call at a time.
typedef void (*log_sink_fn)(void *context, log_level level, const char *line);

void log_set_sink(log_sink_fn sink, void *context);
void log_set_level(log_level level); // records above it are dropped; default LOG_INFO
log_level log_get_level(void);
void log_write(log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)

#endif
