/* Cache files, records and their names: arbitrary bytes are refused or are what they say.
 *
 * Input byte 0: 0 = a file name; 1 = a record; 2 = a checkpoint's bytes; else a cache file, of which bit 2 repairs the
 * head's checksum, bit 3 that of the tokens, bit 4 those of the first record.  The rest is the input. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/mem.h"
#include "kv/kv.h"
#include "tern/cache.h"
#include "tier/tier.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEAD 256

static void file_name(const uint8_t *data, size_t n)
{
    char text[200] = "", back[TERN_RECORD_NAME];
    struct tern_record_name name;
    memcpy(text, data, n < sizeof text - 1 ? n : sizeof text - 1);
    if (!tern_record_name_parse(&name, text))
        return;
    tern_record_name_text(&name, back);
    if (strcmp(back, text) != 0)
        abort();
}

static void record(const uint8_t *data, size_t n)
{
    tern_error err;
    void *p;
    if (tern_alloc(&p, n ? n : 1, 1, &err) < 0)
        abort();
    memcpy(p, data, n);
    if (tern_record_check(p, n, NULL, NULL, &err) == 0) {
        struct tern_record_name name = tern_record_name_of(p);
        if (tern_record_check(p, n, &name, &((struct tern_record *)p)->origin, &err) < 0)
            abort();
    }
    tern_free(p);
}

static void checkpoint(const uint8_t *data, size_t n)
{
    static struct tern_kv_layout *layout;
    static struct tern_kv_cache cache;
    static const struct tern_kv_decl decl[2] = {{.n_heads = 1, .dim_k = 32, .dim_v = 32}, {.state_bytes = 40}};
    struct tern_kv_checkpoint *p;
    tern_error err;
    if (!layout) {
        tern_kernels_init(~0u);
        if (tern_kv_layout_new(&layout, decl, 2, "l4", false, NULL) < 0 ||
            tern_kv_cache_init(&cache, layout, &(struct tern_kv_room){1, 256, 256, NULL, NULL}, NULL) < 0)
            abort();
    }
    if (tern_kv_checkpoint_unpack(&cache, data, n, &p, &err) == 0) {
        if (p->at < 0 || p->at > 256 || tern_kv_checkpoint_packed_bytes(p) != n)
            abort();
        tern_kv_checkpoint_drop(p);
    }
    if (tern_kv_used_bytes(&cache) || tern_kv_state_bytes(&cache))
        abort();
}

static void put_hash(uint8_t *at, const void *p, size_t n)
{
    const uint64_t h = XXH3_64bits(p, n);
    memcpy(at, &h, sizeof h);
}

static void repair(uint8_t *p, size_t n, unsigned flags)
{
    uint32_t n_tokens;
    const uint64_t bytes = n;
    if (n < HEAD)
        return;
    memcpy(&n_tokens, p + 16, sizeof n_tokens);
    const size_t at = HEAD + (size_t)n_tokens * 4;
    if (flags & 8 && n_tokens < 4096 && at <= n)
        put_hash(p + 32, p + HEAD, (size_t)n_tokens * 4);
    if (flags & 16 && n_tokens < 4096 && at + sizeof(struct tern_record) <= n)
        put_hash(p + at + sizeof(struct tern_record) - 8, p + at, sizeof(struct tern_record) - 8);
    if (flags & 4) {
        memcpy(p + 24, &bytes, sizeof bytes);
        put_hash(p + HEAD - 8, p, HEAD - 8);
    }
}

static void cache_file(const uint8_t *data, size_t n, unsigned flags)
{
    char path[64];
    tern_error err;
    tern_cache_file info;
    uint8_t *p = malloc(n ? n : 1);
    if (!p)
        abort();
    memcpy(p, data, n);
    repair(p, n, flags);
    const int fd = memfd_create("cache", MFD_CLOEXEC);
    if (fd < 0 || write(fd, p, n) != (ssize_t)n)
        abort();
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (tern_cache_check(path, &info, &err) == 0 && (info.n_tokens < 64 || info.bytes != n))
        abort();
    (void)close(fd);
    free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    if (data[0] == 0)
        file_name(data + 1, size - 1);
    else if (data[0] == 1)
        record(data + 1, size - 1);
    else if (data[0] == 2)
        checkpoint(data + 1, size - 1);
    else
        cache_file(data + 1, size - 1, data[0]);
    return 0;
}
