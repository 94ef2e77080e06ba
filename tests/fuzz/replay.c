// Replays corpus files through a fuzz target in the ordinary test run.
// Usage: fuzz_x FOLDER_OR_FILE...   Fails when nothing was replayed: an empty corpus proves nothing.
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int replay_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        return -1;
    }
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    // An exact-size heap copy lets AddressSanitizer see a read one byte past the input.
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    if (!data || fread(data, 1, (size_t)size, f) != (size_t)size) {
        fprintf(stderr, "%s: cannot read\n", path);
        exit(1);
    }
    fclose(f);
    LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
    return 0;
}

static int replay_path(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0) {
        perror(path);
        return -1;
    }
    if (!S_ISDIR(info.st_mode)) {
        return replay_file(path) == 0 ? 1 : -1;
    }
    DIR *dir = opendir(path);
    if (!dir) {
        perror(path);
        return -1;
    }
    int n = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] == '.') {
            continue;
        }
        char child[4096];
        snprintf(child, sizeof child, "%s/%s", path, entry->d_name);
        if (replay_file(child) == 0) {
            n++;
        }
    }
    closedir(dir);
    return n;
}

int main(int argc, char **argv) {
    int n = 0;
    for (int i = 1; i < argc; i++) {
        int got = replay_path(argv[i]);
        if (got < 0) {
            return 1;
        }
        n += got;
    }
    printf("replayed %d inputs\n", n);
    return n > 0 ? 0 : 1;
}
