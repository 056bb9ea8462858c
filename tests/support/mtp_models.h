/* support/mtp_models.h - tiny models with a layer for multi-token prediction: one of tests/data/tiny or tests/data/hf,
 * and the layer of tests/data/mtp, put together in a new file or folder (tools/make_mtp_models.py).
 *
 * mm_good makes the layer say what the text says: what the text's layers add becomes next to nothing, so what follows a
 * token is a function of that token, which is what the layer is given to read. */
#ifndef TERN_TEST_MTP_MODELS_H
#define TERN_TEST_MTP_MODELS_H

#include <sys/stat.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/fp16.h"
#include "file/file.h"
#include "file/gguf_write.h"
#include "tiny.h"

static inline bool mm_ends(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static inline void mm_path(char path[512], const char *folder, const char *name, const char *end)
{
    (void)snprintf(path, 512, "%s/%s/%s%s", TERN_TEST_DATA, folder, name, end);
}

static inline void mm_read(struct tern_buf *out, const char *path)
{
    char part[4096];
    tern_error err = {0};
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("cannot open %s", path);
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;)
        tiny_ok(tern_buf_add(out, part, n, &err), &err);
    (void)fclose(f);
}

static inline void mm_write(const char *path, const struct tern_buf *b)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b->p, 1, b->len, f), b->len);
    assert_int_equal(fclose(f), 0);
}

/* Data of a tensor as the new file has it; in a good one factors of Q8_0 are scaled, and norms are 1. */
static inline void mm_tensor(struct tern_buf *data, const struct tern_tensor *t, bool good, bool of_layer)
{
    tern_error err = {0};
    const size_t from = data->len;
    tiny_ok(tern_buf_add(data, t->data, t->n_bytes, &err), &err);
    uint8_t *p = (uint8_t *)data->p + from;
    const bool adds = mm_ends(t->name, "ssm_out.weight") || mm_ends(t->name, "attn_output.weight") ||
                      mm_ends(t->name, "ffn_down.weight");
    for (size_t i = 0; good && adds && i < t->n_bytes; i += 34) {
        uint16_t d;
        memcpy(&d, p + i, sizeof d);
        d = of_layer ? 0 : tern_f32_to_f16(tern_f16_to_f32(d) * .002f);
        memcpy(p + i, &d, sizeof d);
    }
    for (size_t i = 0; good && mm_ends(t->name, ".enorm.weight") && i < t->n_bytes; i += sizeof(float))
        memcpy(p + i, &(float){1}, sizeof(float));
    while (data->len % TERN_GGUF_ALIGN)
        tiny_ok(tern_buf_add(data, "", 1, &err), &err);
}

/* What joins both halves takes the embedding alone. */
static inline void mm_identity(struct tern_gguf *g, struct tern_buf *data, const struct tern_tensor *t)
{
    tern_error err = {0};
    uint64_t at, n;
    tiny_ok(tern_gguf_tensor(g, t->name, TERN_F32, 2, t->dims, &at, &n, &err), &err);
    for (int64_t r = 0; r < t->dims[1]; r++)
        for (int64_t c = 0; c < t->dims[0]; c++)
            tiny_ok(tern_buf_add(data, &(float){r == c}, sizeof(float), &err), &err);
}

/* name: of tests/data/mtp and of tests/data/tiny.  path: a template of mkstemp, which becomes the file's. */
static inline void mm_gguf(char *path, const char *name, bool good)
{
    char from[512], key[128], arch[64];
    tern_error err = {0};
    struct tern_file *files[2];
    struct tern_gguf g = {0};
    struct tern_buf out = {0}, data = {0};
    uint64_t at, n;
    for (int i = 0; i < 2; i++) {
        mm_path(from, i ? "mtp" : "tiny", name, ".gguf");
        tiny_ok(tern_file_open(&files[i], from, &err), &err);
    }
    const struct tern_tensor *norm = tern_file_tensor(files[0], "output_norm.weight");
    struct tern_str s;
    tiny_ok(tern_file_get_str(files[0], "general.architecture", &s, &err), &err);
    (void)snprintf(arch, sizeof arch, "%.*s", (int)s.n, s.p);
    for (size_t i = 0; i < tern_file_n_meta(files[0]); i++) {
        const struct tern_meta *m = tern_file_meta_at(files[0], i);
        if (mm_ends(m->key, ".block_count"))
            tiny_ok(tern_gguf_put_u32(&g, m->key, (uint32_t)m->i + 1, &err), &err);
        else
            tiny_ok(tern_gguf_put_meta(&g, m, false, &err), &err);
    }
    (void)snprintf(key, sizeof key, "%s.nextn_predict_layers", arch);
    tiny_ok(tern_gguf_put_u32(&g, key, 1, &err), &err);
    for (int i = 0; i < 2; i++)
        for (size_t k = 0; k < tern_file_n_tensors(files[i]); k++) {
            const struct tern_tensor *t = tern_file_tensor_at(files[i], k), *of = t;
            if (good && i && mm_ends(t->name, ".shared_head_norm.weight"))
                of = norm;
            if (good && mm_ends(t->name, ".eh_proj.weight")) {
                mm_identity(&g, &data, t);
                continue;
            }
            tiny_ok(tern_gguf_tensor(&g, t->name, t->type, t->n_dims, t->dims, &at, &n, &err), &err);
            assert_true(at == data.len && n == t->n_bytes && of->n_bytes == n);
            struct tern_tensor copy = *of;
            copy.name = t->name;
            mm_tensor(&data, &copy, good, i == 1);
        }
    tiny_ok(tern_gguf_head(&g, &out, &err), &err);
    tiny_ok(tern_buf_add(&out, data.p, data.len, &err), &err);
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && close(fd) == 0);
    mm_write(path, &out);
    tern_gguf_clear(&g);
    tern_buf_clear(&out);
    tern_buf_clear(&data);
    tern_file_close(&files[0]);
    tern_file_close(&files[1]);
}

/* The same of a directory of tests/data/hf; path: a template of mkdtemp. */
static inline void mm_directory(char *path, const char *name)
{
    char from[512], to[512];
    tern_error err = {0};
    struct tern_buf config = {0}, base = {0}, head = {0}, more = {0}, out = {0};
    uint64_t n;
    assert_non_null(mkdtemp(path));
    mm_path(from, "hf", name, "/config.json");
    mm_read(&config, from);
    tiny_ok(tern_buf_addf(&out, &err, "{\"mtp_num_hidden_layers\": 1, %s", strchr(config.p, '{') + 1), &err);
    (void)snprintf(to, sizeof to, "%s/config.json", path);
    mm_write(to, &out);
    mm_path(from, "hf", name, "/model.safetensors");
    mm_read(&base, from);
    mm_path(from, "mtp", name, ".json");
    mm_read(&head, from);
    mm_path(from, "mtp", name, ".bin");
    mm_read(&more, from);
    memcpy(&n, base.p, sizeof n);
    size_t end = sizeof n + n; /* of the entries: what follows the last brace is padding */
    while (base.p[end - 1] != '}')
        end--;
    out.len = 0;
    tiny_ok(tern_buf_add(&out, &n, sizeof n, &err), &err);
    tiny_ok(tern_buf_addf(&out, &err, "%.*s,%.*s}", (int)(end - 1 - sizeof n), base.p + sizeof n, (int)(head.len - 1),
                          head.p),
            &err);
    while (out.len % 8)
        tiny_ok(tern_buf_add(&out, " ", 1, &err), &err);
    const uint64_t length = out.len - sizeof n;
    memcpy(out.p, &length, sizeof length);
    tiny_ok(tern_buf_add(&out, base.p + sizeof n + n, base.len - sizeof n - n, &err), &err);
    tiny_ok(tern_buf_add(&out, more.p, more.len, &err), &err);
    (void)snprintf(to, sizeof to, "%s/model.safetensors", path);
    mm_write(to, &out);
    tern_buf_clear(&config);
    tern_buf_clear(&base);
    tern_buf_clear(&head);
    tern_buf_clear(&more);
    tern_buf_clear(&out);
}

static inline void mm_remove_directory(const char *path)
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    char name[512];
    for (int i = 0; i < 2; i++) {
        (void)snprintf(name, sizeof name, "%s/%s", path, files[i]);
        assert_int_equal(unlink(name), 0);
    }
    assert_int_equal(rmdir(path), 0);
}

/* A model at a path, with ids and the text's logits of `base` ("tiny/qwen35" as "qwen35"). */
static inline void mm_open(struct tiny *t, const char *path, const char *base)
{
    tern_error err = {0};
    memset(t, 0, sizeof *t);
    tiny_ok(tern_model_open(&t->model, path, &(tern_model_params){.n_threads = 2, .packed = "off"}, &err), &err);
    tiny_read_ids(t, base);
    tiny_read_ref(t, base);
    assert_int_equal(t->n_vocab, tern_model_get_info(t->model)->n_vocab);
}

#endif
