/* support/hf_model.h - the committed models of tests/data/hf, as they are and with changes in a scratch directory.
 * Header-only; any failure fails the running cmocka test. */
#ifndef TERN_TEST_HF_MODEL_H
#define TERN_TEST_HF_MODEL_H

#include "scratch.h"
#include "tiny.h"

/* The path of a model, or of a file of one; good for two of them at once. */
static inline const char *data_path(const char *name)
{
    static char path[2][512];
    static int turn;
    turn = !turn;
    (void)snprintf(path[turn], sizeof path[turn], "%s/hf/%s", TERN_TEST_DATA, name);
    return path[turn];
}

/* Opens `path` with the prompt and the logits of `name`.  packed: a file, or NULL. */
static inline void open_packed(struct tiny *t, const char *path, const char *name, const char *packed)
{
    char base[64];
    tern_error err = {0};
    memset(t, 0, sizeof *t);
    tiny_ok(tern_model_open(&t->model, path, &(tern_model_params){.n_threads = 2, .packed = packed}, &err), &err);
    (void)snprintf(base, sizeof base, "../hf/%s", name);
    tiny_read_ids(t, base);
    tiny_read_ref(t, base);
    assert_int_equal(t->n_vocab, tern_model_get_info(t->model)->n_vocab);
}

static inline void open_model(struct tiny *t, const char *path, const char *name)
{
    open_packed(t, path, name, NULL);
}

struct bytes {
    char p[200000];
    size_t n;
};

/* A file of a committed model. */
static inline void read_file(struct bytes *out, const char *model, const char *name)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", model, name);
    FILE *f = fopen(data_path(path), "rb");
    if (!f)
        fail_msg("cannot open %s", data_path(path));
    out->n = fread(out->p, 1, sizeof out->p, f);
    assert_true(out->n > 0 && out->n < sizeof out->p);
    (void)fclose(f);
}

static inline void write_file(const char *name, const struct bytes *b)
{
    (void)unlink(in_dir(name)); /* may be a link to a committed one */
    write_bytes(name, b->p, b->n);
}

/* Puts `to` where `from` stands for the first time behind `after`. */
static inline void replace(struct bytes *b, const char *after, const char *from, const char *to)
{
    char *at = memmem(b->p, b->n, after, strlen(after));
    assert_non_null(at);
    at = memmem(at, b->n - (size_t)(at - b->p), from, strlen(from));
    assert_non_null(at);
    size_t rest = b->n - (size_t)(at - b->p) - strlen(from);
    assert_true(b->n + strlen(to) <= sizeof b->p);
    memmove(at + strlen(to), at + strlen(from), rest);
    memcpy(at, to, strlen(to));
    b->n += strlen(to) - strlen(from);
}

/* The weights of a committed directory under a configuration written here. */
static inline void place(const char *model, const char *config)
{
    char from[600];
    (void)snprintf(from, sizeof from, "%s/model.safetensors", data_path(model));
    (void)unlink(in_dir("model.safetensors"));
    (void)unlink(in_dir("config.json")); /* may be a link to a committed one */
    assert_int_equal(symlink(from, in_dir("model.safetensors")), 0);
    write_text("config.json", config);
}

/* Places a committed directory in which some bytes of the weights' file read otherwise. */
static inline void place_changed(const char *model, const char *from, const char *to)
{
    static struct bytes b;
    char path[600];
    assert_int_equal(strlen(from), strlen(to));
    read_file(&b, model, "model.safetensors");
    replace(&b, "", from, to);
    write_file("model.safetensors", &b);
    (void)snprintf(path, sizeof path, "%s/config.json", data_path(model));
    (void)unlink(in_dir("config.json"));
    assert_int_equal(symlink(path, in_dir("config.json")), 0);
}

/* What is placed must not open, for a reason that names the directory, in one line. */
static inline void refused(const char *want)
{
    tern_model *m;
    tern_error err = {0};
    assert_true(tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1}, &err) < 0);
    print_message("%s\n", err.msg);
    assert_null(m);
    assert_non_null(strstr(err.msg, want));
    assert_non_null(strstr(err.msg, dir));
    assert_null(strchr(err.msg, '\n'));
}

/* The committed llama's configuration and what it says of RoPE. */
#define LLAMA(more)                                                                                                \
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 1, \"hidden_size\": 64, \"intermediate_size\": 96, "       \
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 48, \"max_position_embeddings\": 256, " \
    "\"rms_norm_eps\": 1e-5, \"vocab_size\": 192, \"hidden_act\": \"silu\"" more "}"
#define ROPE                                                                                                          \
    ", \"rope_theta\": 500000, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, " \
    "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 32}"

#endif
