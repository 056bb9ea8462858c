/* Files of packed weights: tern_net_load with arbitrary ones.
 *
 * The fuzzer changes a file that fits the model.  Input byte 0: bit 0 = repair the checksum of header and table, bit 1
 * = those of the tensors, bit 2 = the stamp.  Then edits of 12 bytes: u32 where, u64 what; the first edit with a place
 * beyond the file cuts it off at its value. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>
#include "model/model.h"

#define HEADER  64
#define RECORD  64
#define HASH_AT 48
#define EDIT    12

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tern_file *model;
static struct tern_pool *pool;
static uint8_t *good;
static size_t n_good;

static struct tern_net *load(const char *path, bool write)
{
    struct tern_net *net;
    struct tern_packed_file kept = {.path = path, .write = write};
    if (tern_net_load(&net, model, tern_dev_at(0), -1, pool, &kept, NULL, NULL) < 0)
        abort();
    return net;
}

static void start(void)
{
    char path[64];
    tern_kernels_init(~0u);
    (void)snprintf(path, sizeof path, "/tmp/tern-fuzz-packed-%ld", (long)getpid());
    if (tern_file_open(&model, TERN_TEST_DATA "/tiny/llama-b32-q4_0.gguf", NULL) < 0 ||
        tern_pool_new(&pool, 1, 0, NULL) < 0)
        abort();
    tern_net_free(load(path, true));
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) < 0)
        abort();
    n_good = (size_t)ftell(f);
    rewind(f);
    good = malloc(n_good);
    if (!good || fread(good, 1, n_good, f) != n_good)
        abort();
    (void)fclose(f);
    (void)unlink(path);
}

static uint64_t get(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static size_t edit(uint8_t *file, const uint8_t *edits, size_t n)
{
    for (; n >= EDIT; edits += EDIT, n -= EDIT) {
        uint32_t at;
        memcpy(&at, edits, sizeof at);
        if (at >= n_good)
            return (size_t)(get(edits + 4) % (n_good + 1));
        memcpy(file + at, edits + 4, n_good - at < 8 ? n_good - at : 8);
    }
    return n_good;
}

static void repair(uint8_t *file, size_t n, unsigned flags)
{
    uint64_t h, at;
    if (n < HEADER)
        return;
    at = get(file + 32);
    if (at < HEADER || at > n)
        return;
    for (uint8_t *r = file + HEADER; flags & 2 && r + RECORD <= file + at; r += RECORD) {
        uint64_t offset = get(r + 24), bytes = get(r + 32);
        if (offset <= n - at && bytes <= n - at - offset) {
            h = XXH3_64bits(file + at + offset, bytes);
            memcpy(r + 16, &h, sizeof h);
        }
    }
    if (flags & 1) {
        h = XXH3_64bits_withSeed(file + HEADER, at - HEADER, XXH3_64bits(file, HASH_AT));
        memcpy(file + HASH_AT, &h, sizeof h);
    }
    if (flags & 4) {
        h = tern_file_stamp(model, get(file + HASH_AT));
        memcpy(file + HASH_AT + 8, &h, sizeof h);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    if (!model)
        start();
    if (size < 1)
        return 0;
    uint8_t *file = malloc(n_good);
    memcpy(file, good, n_good);
    size_t n = edit(file, data + 1, size - 1);
    repair(file, n, data[0]);
    int fd = memfd_create("packed", MFD_CLOEXEC);
    if (fd < 0 || write(fd, file, n) != (ssize_t)n)
        abort();
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct tern_net *net = load(path, false);
    /* What was taken holds a whole block; without repaired checksums it is the block that was written. */
    if (net->packed.p && (n != n_good || (!(data[0] & 2) && memcmp(file + n - net->memory_bytes,
                                                                   good + n - net->memory_bytes, net->memory_bytes))))
        abort();
    if (!net->packed.p && !net->notice[0])
        abort();
    tern_net_free(net);
    (void)close(fd);
    free(file);
    return 0;
}
