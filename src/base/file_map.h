// Read-only memory mapping of a whole regular file.
#ifndef BASE_FILE_MAP_H
#define BASE_FILE_MAP_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct file_map {
    const uint8_t *data; // NULL when the file is empty
    size_t bytes;
    int fd; // kept open so that the file's identity cannot change under the map
} file_map;

// The map is owned by *out until file_map_close. Errors name the path. A file that
// shrinks while mapped makes later reads fault; the loader checks sizes before use.
status_code file_map_open(const char *path, file_map *out, error_ctx *err);
void file_map_close(file_map *map); // zeroes the struct; a zeroed struct is legal

// Read a small whole file (at most limit_bytes) into malloc'd, 0-terminated memory.
status_code file_read_all(const char *path, size_t limit_bytes, char **out, size_t *out_len, error_ctx *err);

#endif
