#include "base/file_map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// Open a regular file for reading. Directories and devices are refused here, so that no later read can block.
static status_code open_regular(const char *path, int *out_fd, size_t *out_bytes, error_ctx *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        int cause = errno;
        error_object(err, "%s", path);
        return error_set(err, cause == ENOENT || cause == ENOTDIR ? STATUS_NOT_FOUND : STATUS_IO, "cannot open: %s",
                         strerror(cause));
    }
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        error_object(err, "%s", path);
        return error_set(err, STATUS_INVALID, "not a regular file");
    }
    *out_fd = fd;
    *out_bytes = (size_t)info.st_size;
    return STATUS_OK;
}

status_code file_map_open(const char *path, file_map *out, error_ctx *err) {
    *out = (file_map){.fd = -1};
    int fd;
    size_t bytes;
    RETURN_IF_ERROR(open_regular(path, &fd, &bytes, err));
    void *data = NULL;
    if (bytes > 0) {
        data = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            int cause = errno;
            close(fd);
            error_object(err, "%s", path);
            return error_set(err, STATUS_IO, "cannot map %zu bytes: %s", bytes, strerror(cause));
        }
    }
    *out = (file_map){.data = data, .bytes = bytes, .fd = fd};
    return STATUS_OK;
}

void file_map_close(file_map *map) {
    if (map->data) {
        munmap((void *)map->data, map->bytes);
        close(map->fd);
    } else if (map->fd > 0) {
        close(map->fd);
    }
    *map = (file_map){0};
}

status_code file_read_all(const char *path, size_t limit_bytes, char **out, size_t *out_len, error_ctx *err) {
    int fd;
    size_t bytes;
    RETURN_IF_ERROR(open_regular(path, &fd, &bytes, err));
    if (bytes > limit_bytes) {
        close(fd);
        error_object(err, "%s", path);
        return error_set(err, STATUS_LIMIT, "file has %zu bytes, at most %zu are read", bytes, limit_bytes);
    }
    char *text = malloc(bytes + 1);
    if (!text) {
        close(fd);
        return error_no_memory(err, path);
    }
    size_t have = 0;
    while (have < bytes) {
        ssize_t got = read(fd, text + have, bytes - have);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            int cause = got < 0 ? errno : EIO;
            free(text);
            close(fd);
            error_object(err, "%s", path);
            return error_set(err, STATUS_IO, "cannot read: %s", strerror(cause));
        }
        have += (size_t)got;
    }
    close(fd);
    text[bytes] = '\0';
    *out = text;
    *out_len = bytes;
    return STATUS_OK;
}
