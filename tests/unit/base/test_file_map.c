#include "base/test_base.h"

#include "base/file_map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/plumb-file-map-XXXXXX";
static char path[64];

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

static const char *write_file(const char *name, const void *data, size_t bytes) {
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    fclose(f);
    return path;
}

static void maps_whole_files(void **state) {
    (void)state;
    static char data[10001];
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (char)(i * 7);
    }
    file_map map;
    assert_int_equal(file_map_open(write_file("data", data, sizeof data), &map, NULL), STATUS_OK);
    assert_int_equal(map.bytes, sizeof data);
    assert_memory_equal(map.data, data, sizeof data);
    unlink(path); // the map keeps the file
    assert_memory_equal(map.data, data, sizeof data);
    file_map_close(&map);
    assert_null(map.data);
    file_map_close(&map); // zeroed: legal
}

static void empty_files(void **state) {
    (void)state;
    file_map map;
    assert_int_equal(file_map_open(write_file("empty", "", 0), &map, NULL), STATUS_OK);
    assert_null(map.data);
    assert_int_equal(map.bytes, 0);
    int fd = map.fd;
    assert_true(fd >= 0);
    file_map_close(&map);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    assert_int_equal(errno, EBADF);
    char *text = NULL;
    size_t len = 9;
    assert_int_equal(file_read_all(path, 0, &text, &len, NULL), STATUS_OK);
    assert_string_equal(text, "");
    assert_int_equal(len, 0);
    free(text);
    unlink(path);
}

static void expect_error(const char *file, status_code want, const char *part) {
    error_ctx err;
    char text[1024];
    file_map map;
    error_clear(&err);
    assert_int_equal(file_map_open(file, &map, &err), want);
    assert_null(map.data);
    assert_non_null(strstr(error_text(&err, text, sizeof text), part));
    assert_non_null(strstr(text, file));
    error_clear(&err);
    char *content;
    size_t len;
    assert_int_equal(file_read_all(file, 100, &content, &len, &err), want);
}

static void errors_name_the_path(void **state) {
    (void)state;
    expect_error("/no/such/file", STATUS_NOT_FOUND, "No such file");
    expect_error(folder, STATUS_INVALID, "not a regular file");
    expect_error("/dev/null", STATUS_INVALID, "not a regular file");
    snprintf(path, sizeof path, "%s/fifo", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_error(path, STATUS_INVALID, "not a regular file"); // and does not wait for a writer
    unlink(path);
    write_file("under", "x", 1);
    char below[96];
    snprintf(below, sizeof below, "%s/child", path);
    expect_error(below, STATUS_NOT_FOUND, "Not a directory");
    unlink(path);
}

static void reading_has_a_limit(void **state) {
    (void)state;
    error_ctx err;
    char *text;
    size_t len;
    write_file("text", "ab\0cd", 5);
    error_clear(&err);
    assert_int_equal(file_read_all(path, 4, &text, &len, &err), STATUS_LIMIT);
    assert_non_null(strstr(err.message, "5 bytes"));
    assert_int_equal(file_read_all(path, 5, &text, &len, NULL), STATUS_OK);
    assert_int_equal(len, 5);
    assert_memory_equal(text, "ab\0cd", 6); // with its terminator
    free(text);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps_whole_files),
        cmocka_unit_test(empty_files),
        cmocka_unit_test(errors_name_the_path),
        cmocka_unit_test(reading_has_a_limit),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
