/* Saved sessions: tern_kv_load on arbitrary bytes.
 *
 * Input byte 0: bit 0 = repair the header's checksum, bit 1 = repair the token list's, so that the fuzzer gets behind
 * them. The rest is the file. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/mem.h"
#include "kv/kv.h"

#define HEADER_BYTES 360
#define HASH_AT      (HEADER_BYTES - 8)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tern_kv_layout *layout;
static struct tern_kv_cache cache;

static void open_cache(void)
{
    static const struct tern_kv_decl decl[3] = {
        {.n_heads = 1, .dim_k = 32, .dim_v = 32},
        {.n_heads = 1, .dim_k = 32, .dim_v = 16, .reach = {70, false}},
        {.state_bytes = 100, .more = {{TERN_KV_ROWS, 2, 1, 16}}, .n_more = 1},
    };
    tern_kernels_init(~0u);
    if (tern_kv_layout_new(&layout, decl, 3, "l4,recent=128", false, NULL) < 0 ||
        tern_kv_cache_init(&cache, layout, &(struct tern_kv_room){1, 256, 256, NULL, NULL}, NULL) < 0)
        abort();
}

static void repair(uint8_t *file, size_t n, unsigned flags)
{
    if (n < HEADER_BYTES)
        return;
    uint64_t h = layout->digest;
    uint32_t n_tokens;
    memcpy(file + 24, &h, sizeof h); /* the layout digest is not what is to be found by chance */
    if (flags & 1) {
        h = XXH3_64bits(file, HASH_AT);
        memcpy(file + HASH_AT, &h, sizeof h);
    }
    memcpy(&n_tokens, file + 32, sizeof n_tokens);
    size_t end = HEADER_BYTES + (size_t)n_tokens * 4;
    if (flags & 2 && n_tokens < 4096 && end + 8 <= n) {
        h = XXH3_64bits(file + HEADER_BYTES, (size_t)n_tokens * 4);
        memcpy(file + end, &h, sizeof h);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tern_kv_seq *s;
    int32_t *tokens;
    uint8_t *roles;
    tern_error err;
    char path[64];
    if (!layout)
        open_cache();
    if (size < 1)
        return 0;
    uint8_t *file = malloc(size);
    memcpy(file, data + 1, size - 1);
    repair(file, size - 1, data[0]);
    int fd = memfd_create("session", MFD_CLOEXEC);
    if (fd < 0 || write(fd, file, size - 1) != (ssize_t)(size - 1))
        abort();
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (tern_kv_load(&cache, &s, 5, 50, path, &tokens, &roles, &err) == 0) {
        for (int i = 0; i < s->n_tokens; i++)
            if (tokens[i] < 0 || tokens[i] >= 50)
                abort();
        tern_kv_seq_free(&cache, s);
        tern_free(tokens);
        tern_free(roles);
    }
    if (tern_kv_used_bytes(&cache) || tern_kv_state_bytes(&cache))
        abort();
    (void)close(fd);
    free(file);
    return 0;
}
