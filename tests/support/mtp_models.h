/* support/mtp_models.h - tiny models with a layer for multi-token prediction: one of tests/data/tiny or tests/data/hf,
 * and the layer of tests/data/mtp, or one made of copies of the model's own tensors, put together in a new file or
 * folder (tools/make_mtp_models.py).
 *
 * mm_good makes the layer say what the text says: what the text's layers add becomes next to nothing, so what follows a
 * token is a function of that token, which is what the layer is given to read. */
#ifndef TERN_TEST_MTP_MODELS_H
#define TERN_TEST_MTP_MODELS_H

#include <jansson.h>
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
                      mm_ends(t->name, "ffn_down.weight") || mm_ends(t->name, "ffn_down_exps.weight") ||
                      mm_ends(t->name, "ffn_down_shexp.weight");
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

/* A tensor of the new file: what it is called, whose data it has. */
struct mm_part {
    char name[96];
    const struct tern_tensor *t;
    bool of_layer;
};

static inline void mm_add(struct mm_part *parts, int *n, const char *name, const struct tern_tensor *t, bool of_layer)
{
    assert_true(*n < 256 && t);
    (void)snprintf(parts[*n].name, sizeof parts->name, "%s", name);
    parts[*n].of_layer = of_layer;
    parts[(*n)++].t = t;
}

/* The rest of a layer that a model has a part of: attention of layer 3, experts of layer 2, other norms. */
static inline void mm_rest(struct mm_part *parts, int *n, const struct tern_file *f)
{
    static const char *const norms[][2] = {{"post_attention_norm", "blk.2.post_attention_norm"},
                                           {"nextn.hnorm", "blk.0.attn_norm"},
                                           {"nextn.shared_head_norm", "blk.1.attn_norm"}};
    char name[96];
    for (size_t i = 0; i < tern_file_n_tensors(f); i++) {
        const struct tern_tensor *t = tern_file_tensor_at(f, i);
        (void)snprintf(name, sizeof name, "blk.4.%s", t->name + strlen("blk.3."));
        if (strncmp(t->name, "blk.2.ffn_", 10) == 0 ||
            (strncmp(t->name, "blk.3.attn_", 11) == 0 && !mm_ends(t->name, "attn_norm.weight")))
            mm_add(parts, n, name, t, true);
    }
    for (int i = 0; i < 3; i++) {
        char of[96];
        (void)snprintf(name, sizeof name, "blk.4.%s.weight", norms[i][0]);
        (void)snprintf(of, sizeof of, "%s.weight", norms[i][1]);
        mm_add(parts, n, name, tern_file_tensor(f, of), true);
    }
}

/* The configuration of f with a layer more.  True: it counts one already. */
static inline bool mm_meta(struct tern_gguf *g, const struct tern_file *f)
{
    char key[128];
    struct tern_str s;
    tern_error err = {0};
    tiny_ok(tern_file_get_str(f, "general.architecture", &s, &err), &err);
    (void)snprintf(key, sizeof key, "%.*s.nextn_predict_layers", (int)s.n, s.p);
    const bool counted = tern_file_meta(f, key) != NULL;
    for (size_t i = 0; i < tern_file_n_meta(f); i++) {
        const struct tern_meta *m = tern_file_meta_at(f, i);
        if (mm_ends(m->key, ".block_count") && !counted)
            tiny_ok(tern_gguf_put_u32(g, m->key, (uint32_t)m->i + 1, &err), &err);
        else
            tiny_ok(tern_gguf_put_meta(g, m, false, &err), &err);
    }
    if (!counted)
        tiny_ok(tern_gguf_put_u32(g, key, 1, &err), &err);
    return counted;
}

/* name: of tests/data/tiny and of tests/data/mtp, or of a model with a part of such a layer.  path: a template of
 * mkstemp, which becomes the file's. */
static inline void mm_gguf(char *path, const char *name, bool good)
{
    static struct mm_part parts[256];
    char from[512];
    tern_error err = {0};
    struct tern_file *files[2] = {NULL};
    struct tern_gguf g = {0};
    struct tern_buf out = {0}, data = {0};
    uint64_t at, n;
    int n_parts = 0;
    mm_path(from, "tiny", name, ".gguf");
    tiny_ok(tern_file_open(&files[0], from, &err), &err);
    const bool counted = mm_meta(&g, files[0]);
    mm_path(from, "mtp", name, ".gguf");
    if (!counted)
        tiny_ok(tern_file_open(&files[1], from, &err), &err);
    for (int i = 0; i < 2 && files[i]; i++)
        for (size_t k = 0; k < tern_file_n_tensors(files[i]); k++) {
            const struct tern_tensor *t = tern_file_tensor_at(files[i], k);
            mm_add(parts, &n_parts, t->name, t, i == 1);
        }
    if (counted)
        mm_rest(parts, &n_parts, files[0]);
    for (int i = 0; i < n_parts; i++) {
        struct tern_tensor t = *parts[i].t;
        t.name = parts[i].name;
        if (good && mm_ends(t.name, ".eh_proj.weight")) {
            mm_identity(&g, &data, &t);
            continue;
        }
        if (good && mm_ends(t.name, ".shared_head_norm.weight"))
            t.data = tern_file_tensor(files[0], "output_norm.weight")->data;
        tiny_ok(tern_gguf_tensor(&g, t.name, t.type, t.n_dims, t.dims, &at, &n, &err), &err);
        assert_true(at == data.len && n == t.n_bytes);
        mm_tensor(&data, &t, good, parts[i].of_layer);
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
    if (files[1])
        tern_file_close(&files[1]);
}

static inline void mm_replace(struct tern_buf *b, const char *from, const char *to)
{
    struct tern_buf out = {0};
    tern_error err = {0};
    const char *p = b->p, *end = b->p + b->len;
    for (const char *at; (at = memmem(p, (size_t)(end - p), from, strlen(from))) != NULL; p = at + strlen(from))
        tiny_ok(tern_buf_addf(&out, &err, "%.*s%s", (int)(at - p), p, to), &err);
    tiny_ok(tern_buf_add(&out, p, (size_t)(end - p), &err), &err);
    tern_buf_clear(b);
    *b = out;
}

/* config.json of the base, said as DeepSeek says it with `published`. */
static inline void mm_config(const char *path, const char *name, bool published)
{
    char file[512];
    struct tern_buf text = {0};
    mm_path(file, "hf", name, "/config.json");
    mm_read(&text, file);
    json_t *c = json_loadb(text.p, text.len, 0, NULL);
    assert_non_null(c);
    if (strcmp(name, "qwen3_5") == 0)
        assert_int_equal(json_object_set_new(c, "mtp_num_hidden_layers", json_integer(1)), 0);
    if (published) {
        const json_t *said = json_object_get(json_object_get(c, "rope_parameters"), "compress");
        static const char *const kept[] = {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow"};
        json_t *rope = json_pack("{ss}", "type", "yarn");
        for (int i = 0; i < 4; i++)
            assert_int_equal(json_object_set(rope, kept[i], json_object_get(said, kept[i])), 0);
        assert_int_equal(json_object_set_new(c, "rope_scaling", rope), 0);
        assert_int_equal(json_object_set_new(c, "compress_ratios", json_pack("[iii]", 4, 16, 0)), 0);
        assert_int_equal(json_object_set_new(c, "num_hash_layers", json_integer(1)), 0);
        static const char *const others[] = {"layer_types", "mlp_layer_types", "compress_rates", "rope_parameters"};
        for (int i = 0; i < 4; i++)
            assert_int_equal(json_object_del(c, others[i]), 0);
    }
    (void)snprintf(file, sizeof file, "%s/config.json", path);
    assert_int_equal(json_dump_file(c, file, 0), 0);
    json_decref(c);
    tern_buf_clear(&text);
}

/* A copy of the first rows (0: all) of a tensor under another name. */
static inline void mm_copy(json_t *head, struct tern_buf *more, const struct tern_buf *base, size_t data,
                           const json_t *entries, const char *to, const char *of, int rows)
{
    tern_error err = {0};
    json_t *e = json_deep_copy(json_object_get(entries, of)), *shape = json_object_get(e, "shape"),
           *place = json_object_get(e, "data_offsets");
    assert_non_null(e);
    const size_t from = (size_t)json_integer_value(json_array_get(place, 0));
    size_t n = (size_t)json_integer_value(json_array_get(place, 1)) - from;
    if (rows) {
        n = n / (size_t)json_integer_value(json_array_get(shape, 0)) * (size_t)rows;
        assert_int_equal(json_array_set_new(shape, 0, json_integer(rows)), 0);
    }
    const size_t at = base->len - data + more->len;
    assert_int_equal(json_object_set_new(e, "data_offsets", json_pack("[II]", (json_int_t)at, (json_int_t)(at + n))),
                     0);
    assert_int_equal(json_object_set_new(head, to, e), 0);
    tiny_ok(tern_buf_add(more, base->p + data + from, n, &err), &err);
}

/* DeepSeek-V4's layer, of tensors that are there: attention of layer 0, experts of layer 1. */
static inline void mm_copies(struct tern_buf *out, struct tern_buf *more, const struct tern_buf *base)
{
    static const char *const parts[][2] = {{"model.layers.0.attn", "attn"},
                                           {"model.layers.0.hc_attn_", "hc_attn_"},
                                           {"model.layers.1.ffn", "ffn"},
                                           {"model.layers.1.hc_ffn_", "hc_ffn_"}};
    static const struct {
        const char *to, *of;
        int rows;
    } single[] = {{"mtp.0.e_proj.weight", "model.layers.0.attn.wq_a.weight", 0},
                  {"mtp.0.h_proj.weight", "model.layers.1.attn.wq_a.weight", 0},
                  {"mtp.0.enorm.weight", "model.layers.0.ffn_norm.weight", 0},
                  {"mtp.0.hnorm.weight", "model.layers.1.attn_norm.weight", 0},
                  {"mtp.0.norm.weight", "model.layers.1.attn.q_norm.weight", 0},
                  {"mtp.0.hc_head_fn", "model.layers.0.hc_attn_fn", 3},
                  {"mtp.0.hc_head_base", "model.layers.0.hc_attn_base", 3},
                  {"mtp.0.hc_head_scale", "model.layers.0.hc_attn_scale", 1}};
    tern_error err = {0};
    uint64_t n;
    memcpy(&n, base->p, sizeof n);
    json_t *entries = json_loadb(base->p + sizeof n, n, 0, NULL), *head = json_object(), *e;
    assert_non_null(entries);
    const char *name;
    json_object_foreach(entries, name, e) for (int i = 0; i < 4; i++)
    {
        char to[128];
        (void)snprintf(to, sizeof to, "mtp.0.%s%s", parts[i][1],
                       strlen(name) > strlen(parts[i][0]) ? name + strlen(parts[i][0]) : "");
        if (strncmp(name, parts[i][0], strlen(parts[i][0])) == 0 && !strstr(name, "compressor") &&
            !strstr(name, "indexer"))
            mm_copy(head, more, base, sizeof n + n, entries, to, name, 0);
    }
    for (size_t i = 0; i < sizeof single / sizeof *single; i++)
        mm_copy(head, more, base, sizeof n + n, entries, single[i].to, single[i].of, single[i].rows);
    char *text = json_dumps(head, JSON_COMPACT);
    assert_non_null(text);
    tiny_ok(tern_buf_addf(out, &err, "%.*s\n", (int)strlen(text) - 2, text + 1), &err);
    free(text);
    json_decref(head);
    json_decref(entries);
}

/* The same of a directory of tests/data/hf; path: a template of mkdtemp.  published: DeepSeek-V4 under its own names,
 * not those that transformers give it. */
static inline void mm_directory(char *path, const char *name, bool published)
{
    static const char *const names[][2] = {{"\"model.layers.", "\"layers."},
                                           {"\"model.embed_tokens.", "\"embed."},
                                           {"\"model.norm.", "\"norm."},
                                           {"\"model.hc_head.hc_", "\"hc_head_"},
                                           {".attn.norm.weight", ".attn.kv_norm.weight"}};
    char from[512], to[512];
    tern_error err = {0};
    struct tern_buf base = {0}, head = {0}, more = {0}, out = {0};
    uint64_t n;
    assert_non_null(mkdtemp(path));
    mm_config(path, name, published);
    mm_path(from, "hf", name, "/model.safetensors");
    mm_read(&base, from);
    mm_path(from, "mtp", name, ".json");
    if (access(from, F_OK) != 0) {
        mm_copies(&head, &more, &base);
    } else {
        mm_read(&head, from);
        mm_path(from, "mtp", name, ".bin");
        mm_read(&more, from);
    }
    memcpy(&n, base.p, sizeof n);
    size_t end = sizeof n + n; /* of the entries: what follows the last brace is padding */
    while (base.p[end - 1] != '}')
        end--;
    tiny_ok(tern_buf_addf(&out, &err, "%.*s,%.*s}", (int)(end - 1 - sizeof n), base.p + sizeof n, (int)(head.len - 1),
                          head.p),
            &err);
    for (int i = 0; i < 5 && published; i++)
        mm_replace(&out, names[i][0], names[i][1]);
    while (out.len % 8)
        tiny_ok(tern_buf_add(&out, " ", 1, &err), &err);
    const uint64_t length = out.len;
    head.len = 0;
    tiny_ok(tern_buf_add(&head, &length, sizeof length, &err), &err);
    tiny_ok(tern_buf_add(&head, out.p, out.len, &err), &err);
    tiny_ok(tern_buf_add(&head, base.p + sizeof n + n, base.len - sizeof n - n, &err), &err);
    tiny_ok(tern_buf_add(&head, more.p, more.len, &err), &err);
    (void)snprintf(to, sizeof to, "%s/model.safetensors", path);
    mm_write(to, &head);
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
