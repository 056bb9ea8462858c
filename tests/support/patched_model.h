/* support/patched_model.h - copies of the committed tiny models with another number in their metadata: a longer
 * context, a wider window.  Header-only; any failure fails the running cmocka test. */
#ifndef TERN_TEST_PATCHED_MODEL_H
#define TERN_TEST_PATCHED_MODEL_H

#include "scratch.h"
#include "tiny.h"

/* Sets the 32-bit number under the key that ends in `key`, once in the bytes of a GGUF file. */
static inline void patch_u32(uint8_t *file, size_t n, const char *key, uint32_t value)
{
    const size_t len = strlen(key);
    for (size_t i = 0; i + len + 8 <= n; i++) {
        uint32_t type;
        memcpy(&type, file + i + len, sizeof type);
        if (memcmp(file + i, key, len) != 0 || (type != 4 && type != 5)) /* uint32, int32 */
            continue;
        memcpy(file + i + len + 4, &value, sizeof value);
        return;
    }
    fail_msg("no number %s", key);
}

/* Opens the tiny model with a context of `ctx` tokens; window: 0 leaves it as it is.  It goes through a file of the
 * scratch directory.  t->ids is not filled. */
static inline void patched_open(struct tiny *t, const char *name, int ctx, int window)
{
    static uint8_t file[4 << 20];
    char path[512];
    tern_error err = {0};
    memset(t, 0, sizeof *t);
    (void)snprintf(path, sizeof path, "%s/tiny/%s.gguf", TERN_TEST_DATA, name);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("cannot open %s", path);
    size_t n = fread(file, 1, sizeof file, f);
    assert_true(n > 0 && n < sizeof file);
    (void)fclose(f);
    patch_u32(file, n, ".context_length", (uint32_t)ctx);
    if (window)
        patch_u32(file, n, ".attention.sliding_window", (uint32_t)window);
    write_bytes("patched.gguf", file, n);
    tiny_ok(tern_model_open(&t->model, in_dir("patched.gguf"), &(tern_model_params){.n_threads = 1}, &err), &err);
    t->n_vocab = tern_model_get_info(t->model)->n_vocab;
}

#endif
