/* Runs a fuzz target without a fuzzer: every file of the given folders (and every given file) is one input.
 *
 * Beside each input, sixteen beginnings of it are run, because most of what goes wrong in a reader goes wrong at the
 * end of its input.  An input lies in a block of exactly its size, so that a sanitizer sees the first byte read beyond
 * it. The name of the input in hand is on stderr before it runs: the last one named is the one that failed. */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_BYTES ((size_t)1 << 26)
#define CUTS      16

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int n_inputs;

static void run_copy(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) {
        perror("replay");
        exit(1);
    }
    memcpy(copy, data, size);
    (void)LLVMFuzzerTestOneInput(size ? copy : copy + 1, size);
    free(copy);
}

static void run_file(const char *path, size_t size)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = malloc(size ? size : 1);
    if (!f || !data || fread(data, 1, size, f) != size) {
        (void)fprintf(stderr, "replay: %s: %s\n", path, strerror(errno));
        exit(1);
    }
    (void)fclose(f);
    (void)fprintf(stderr, "%s\n", path);
    run_copy(data, size);
    for (size_t i = 0; i < CUTS && size >= CUTS; i++)
        run_copy(data, size * i / CUTS);
    free(data);
    n_inputs++;
}

static void run_path(const char *path, int depth)
{
    struct stat st;
    if (stat(path, &st) < 0) {
        (void)fprintf(stderr, "replay: %s: %s\n", path, strerror(errno));
        exit(1);
    }
    if (S_ISREG(st.st_mode)) {
        if ((size_t)st.st_size <= MAX_BYTES)
            run_file(path, (size_t)st.st_size);
        return;
    }
    struct dirent **names = NULL;
    int n = depth < 2 ? scandir(path, &names, NULL, alphasort) : 0;
    for (int i = 0; i < n; i++) {
        char child[4096];
        if (names[i]->d_name[0] != '.' &&
            snprintf(child, sizeof child, "%s/%s", path, names[i]->d_name) < (int)sizeof child)
            run_path(child, depth + 1);
        free(names[i]);
    }
    free(names);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        run_path(argv[i], 0);
    if (n_inputs == 0) {
        (void)fprintf(stderr, "replay: no inputs found\n");
        return 1;
    }
    run_copy((const uint8_t *)"", 0);
    printf("%d inputs, each with %d beginnings of it\n", n_inputs, CUTS);
    return 0;
}
