/* Models that must not open, each with one sentence that names the thing; sessions on a full disk; templates that loop.
 * The malformed containers themselves are test_gguf_bad.c's. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>
#include "gguf_writer.h"
#include "tern/tern.h"

enum { EMBD = 32, FF = 128, HEADS = 2, KV_HEADS = 1, HEAD = 16, VOCAB = 260, F32 = 0, NVFP4 = 40 };

/* What to do differently from a good model. */
struct lie {
    const char *want; /* a word of the message */
    int code;
    const char *arch;    /* other architecture */
    const char *skip;    /* leave this tensor or key out */
    const char *reshape; /* this tensor gets one row more */
    const char *nan;     /* one element of this tensor is NaN */
    const char *extra;   /* a tensor that no architecture knows */
    const char *key;     /* this key has value `value`; more: the good model has no such key */
    uint32_t value;
    bool more;
    int n_tokens;         /* size of the vocabulary in the tokenizer; 0 = VOCAB */
    const char *template; /* chat template */
    int nvfp4;            /* ffn_down is NVFP4: 1 as it is, 2 with scales twice as large and a factor of one half */
    int n_factors;        /* elements of the factor's tensor; 0 = 1 */
};

static const char *path_of(void)
{
    static char path[64];
    (void)snprintf(path, sizeof path, "/tmp/tern-load-%ld.gguf", (long)getpid());
    return path;
}

static void tensor(struct gguf_writer *w, const struct lie *l, const char *name, uint64_t n_in, uint64_t n_out)
{
    static float data[(FF + 1) * (VOCAB + 1)];
    if (l->skip && strcmp(l->skip, name) == 0)
        return;
    if (l->reshape && strcmp(l->reshape, name) == 0) {
        n_in += n_out == 1;
        n_out += n_out > 1;
    }
    uint64_t n = n_in * n_out;
    for (uint64_t i = 0; i < n; i++)
        data[i] = n_out == 1 ? 1.0f : 0.2f * sinf((float)i * 0.37f + (float)strlen(name));
    if (l->nan && strcmp(l->nan, name) == 0)
        data[n / 2] = NAN;
    gw_tensor(w, name, F32, n_out == 1 ? 1 : 2, (uint64_t[]){n_in, n_out}, data, n * sizeof *data);
}

static void key_u32(struct gguf_writer *w, const struct lie *l, const char *key, uint32_t value)
{
    if (l->skip && strcmp(l->skip, key) == 0)
        return;
    gw_u32(w, key, l->key && strcmp(l->key, key) == 0 ? l->value : value);
}

/* 256 bytes, then <|im_start|>, <|im_end|> and two spare control tokens. */
static void tokenizer(struct gguf_writer *w, const struct lie *l)
{
    static char text[VOCAB + 64][16];
    const char *tokens[VOCAB + 64], *merges[1] = {"a b"};
    int32_t types[VOCAB + 64];
    int n = l->n_tokens ? l->n_tokens : VOCAB, next = 256;
    for (int b = 0; b < 256; b++) {
        int plain = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF),
            c = plain ? b : next++;
        if (c < 0x80)
            (void)snprintf(text[b], sizeof text[b], "%c", c);
        else
            (void)snprintf(text[b], sizeof text[b], "%c%c", 0xC0 | (c >> 6), 0x80 | (c & 0x3F));
    }
    for (int i = 256; i < n; i++)
        (void)snprintf(text[i], sizeof text[i], i == 256 ? "<|im_start|>" : i == 257 ? "<|im_end|>" : "<|%d|>", i);
    for (int i = 0; i < n; i++) {
        tokens[i] = text[i];
        types[i] = i < 256 ? 1 : 3;
    }
    gw_str(w, "tokenizer.ggml.model", "gpt2");
    gw_str(w, "tokenizer.ggml.pre", "gpt-2");
    gw_str_array(w, "tokenizer.ggml.tokens", tokens, (size_t)n);
    gw_array(w, "tokenizer.ggml.token_type", GW_I32, types, (size_t)n);
    gw_str_array(w, "tokenizer.ggml.merges", merges, 0);
    gw_u32(w, "tokenizer.ggml.eos_token_id", 257);
    if (l->template)
        gw_str(w, "tokenizer.chat_template", l->template);
}

/* Scales between 1/8 and 8. */
static void nvfp4_down(struct gguf_writer *w, const struct lie *l)
{
    static uint8_t blocks[EMBD * FF / 64 * 36];
    const float factors[2] = {l->nvfp4 == 2 ? 0.5f : 1.0f, 0}, input = 3;
    for (size_t i = 0; i < sizeof blocks; i++)
        blocks[i] = (uint8_t)(i % 36 < 4 ? 0x20 + (i * 5 & 31) + (l->nvfp4 == 2 ? 8 : 0) : i * i * 7 >> 3);
    gw_tensor(w, "blk.0.ffn_down.weight", NVFP4, 2, (uint64_t[]){FF, EMBD}, blocks, sizeof blocks);
    uint64_t n = l->n_factors ? (uint64_t)l->n_factors : 1;
    if (l->nvfp4 == 2)
        gw_tensor(w, "blk.0.ffn_down.scale", F32, 1, &n, factors, n * sizeof *factors);
    gw_tensor(w, "blk.0.ffn_down.input_scale", F32, 1, (uint64_t[]){1}, &input, sizeof input);
}

static void write_model(const struct lie *l)
{
    struct gguf_writer w;
    gw_init(&w);
    gw_str(&w, "general.architecture", l->arch ? l->arch : "llama");
    key_u32(&w, l, "llama.block_count", 1);
    key_u32(&w, l, "llama.context_length", 256);
    key_u32(&w, l, "llama.embedding_length", EMBD);
    key_u32(&w, l, "llama.feed_forward_length", FF);
    key_u32(&w, l, "llama.attention.head_count", HEADS);
    key_u32(&w, l, "llama.attention.head_count_kv", KV_HEADS);
    if (l->key && l->more) /* a key that the good model does without */
        gw_u32(&w, l->key, l->value);
    tokenizer(&w, l);
    tensor(&w, l, "token_embd.weight", EMBD, VOCAB);
    tensor(&w, l, "output_norm.weight", EMBD, 1);
    tensor(&w, l, "blk.0.attn_norm.weight", EMBD, 1);
    tensor(&w, l, "blk.0.ffn_norm.weight", EMBD, 1);
    tensor(&w, l, "blk.0.attn_q.weight", EMBD, HEADS * HEAD);
    tensor(&w, l, "blk.0.attn_k.weight", EMBD, KV_HEADS * HEAD);
    tensor(&w, l, "blk.0.attn_v.weight", EMBD, KV_HEADS * HEAD);
    tensor(&w, l, "blk.0.attn_output.weight", HEADS * HEAD, EMBD);
    tensor(&w, l, "blk.0.ffn_gate.weight", EMBD, FF);
    tensor(&w, l, "blk.0.ffn_up.weight", EMBD, FF);
    if (l->nvfp4)
        nvfp4_down(&w, l);
    else
        tensor(&w, l, "blk.0.ffn_down.weight", FF, EMBD);
    if (l->extra)
        tensor(&w, l, l->extra, EMBD, 8);
    assert_true(gw_save(&w, path_of()) >= 0);
    gw_clear(&w);
}

static tern_model *open_one(const struct lie *l)
{
    tern_model *m;
    tern_error err = {0};
    write_model(l);
    if (tern_model_open(&m, path_of(), &(tern_model_params){.n_threads = 1}, &err) < 0)
        fail_msg("%s", err.msg);
    return m;
}

static tern_model *open_good(const char *template)
{
    return open_one(&(struct lie){.template = template});
}

static const struct lie lies[] = {
    {"mamba", TERN_EUNSUPPORTED, .arch = "mamba"},
    {"blk.0.attn_q.weight", TERN_EFORMAT, .skip = "blk.0.attn_q.weight"},
    {"output_norm.weight", TERN_EFORMAT, .skip = "output_norm.weight"},
    {"token_embd.weight", TERN_EFORMAT, .skip = "token_embd.weight"},
    {"llama.block_count", TERN_EFORMAT, .skip = "llama.block_count"},
    {"blk.0.ffn_down.weight", TERN_EFORMAT, .reshape = "blk.0.ffn_down.weight"},
    {"blk.0.attn_norm.weight", TERN_EFORMAT, .reshape = "blk.0.attn_norm.weight"},
    {"vocabulary", TERN_EFORMAT, .n_tokens = VOCAB + 5},
    {"blk.0.ffn_up.weight", TERN_EFORMAT, .nan = "blk.0.ffn_up.weight"},
    {"blk.0.ffn_norm.weight", TERN_EFORMAT, .nan = "blk.0.ffn_norm.weight"},
    {"blk.0.attn_sinks.weight", TERN_EUNSUPPORTED, .extra = "blk.0.attn_sinks.weight"},
    {"llama.attention.head_count", TERN_EFORMAT, .key = "llama.attention.head_count", .value = 0},
    {"llama.attention.head_count_kv", TERN_EFORMAT, .key = "llama.attention.head_count_kv", .value = 3},
    {"llama.embedding_length", TERN_EFORMAT, .key = "llama.embedding_length", .value = 0x7FFFFFFF},
    {"llama.block_count", TERN_EFORMAT, .key = "llama.block_count", .value = 100000},
    {"blk.1.attn_norm.weight", TERN_EFORMAT, .key = "llama.block_count", .value = 2},
    {"llama.expert_used_count", TERN_EFORMAT, .key = "llama.expert_count", .value = 8, .more = true},
    {"llama.expert_count", TERN_EFORMAT, .key = "llama.expert_count", .value = 100000, .more = true},
    {"llama.attention.key_length", TERN_EFORMAT, .key = "llama.attention.key_length", .value = 0, .more = true},
    {"llama.attention.key_length", TERN_EFORMAT, .key = "llama.attention.key_length", .value = 1u << 31, .more = true},
    {"llama.attention.value_length", TERN_EFORMAT, .key = "llama.attention.value_length", .value = 0, .more = true},
    {"llama.rope.dimension_count", TERN_EFORMAT, .key = "llama.rope.dimension_count", .value = 7, .more = true},
    {"llama.rope.dimension_count", TERN_EFORMAT, .key = "llama.rope.dimension_count", .value = 1000, .more = true},
    {"llama.context_length", TERN_EFORMAT, .key = "llama.context_length", .value = 0},
    {"llama.feed_forward_length", TERN_EFORMAT, .key = "llama.feed_forward_length", .value = 0},
    {"chat template", TERN_EFORMAT, .template = "{% for %}"},
    {"blk.0.ffn_down.scale", TERN_EFORMAT, .nvfp4 = 2, .n_factors = 2},
    {"blk.0.ffn_up.scale", TERN_EUNSUPPORTED, .extra = "blk.0.ffn_up.scale"},
};

static void test_models_that_must_not_open(void **state)
{
    (void)state;
    tern_model *good = open_good(NULL);
    assert_int_equal(tern_model_get_info(good)->n_vocab, VOCAB);
    tern_model_close(&good);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        tern_model *m = (void *)1;
        tern_error err = {0};
        write_model(&lies[i]);
        int rc = tern_model_open(&m, path_of(), &(tern_model_params){.n_threads = 1}, &err);
        if (rc == 0)
            fail_msg("case %zu (%s) opened", i, lies[i].want);
        assert_null(m);
        if (!strstr(err.msg, lies[i].want) || strchr(err.msg, '\n'))
            fail_msg("case %zu: \"%s\" does not name \"%s\"", i, err.msg, lies[i].want);
        if (!strstr(err.msg, path_of()))
            fail_msg("case %zu: \"%s\" does not name the file", i, err.msg);
        if (lies[i].code == TERN_EUNSUPPORTED)
            assert_int_equal(rc, TERN_EUNSUPPORTED);
    }
    (void)unlink(path_of());
}

/* Logits of the last of 40 tokens, 20 of them as a prompt. */
static void last_logits(float out[VOCAB], const struct lie *l)
{
    tern_engine *e;
    tern_seq *s;
    const float *logits;
    int32_t ids[40];
    tern_error err = {0};
    tern_model *m = open_one(l);
    for (int i = 0; i < 40; i++)
        ids[i] = i * 11 % VOCAB;
    assert_int_equal(tern_engine_open(&e, m, &(tern_engine_params){.kv = "f16"}, &err), 0);
    assert_int_equal(tern_seq_new(&s, e, &err), 0);
    assert_int_equal(tern_prefill(e, s, ids, 20, &logits, NULL, NULL, &err), 0);
    for (int i = 20; i < 40; i++) {
        tern_step_item item = {s, ids + i, 1, true, TERN_LOGITS_LAST};
        assert_int_equal(tern_step(e, &item, 1, &logits, &err), 0);
    }
    memcpy(out, logits, VOCAB * sizeof *out);
    tern_seq_free(s);
    tern_engine_close(&e);
    tern_model_close(&m);
}

/* The factor counts: twice the scales and half the factor are the same weights; other weights are not. */
static void test_factors_of_tensors(void **state)
{
    float one[VOCAB], two[VOCAB], other[VOCAB];
    (void)state;
    last_logits(one, &(struct lie){.nvfp4 = 1});
    last_logits(two, &(struct lie){.nvfp4 = 2});
    last_logits(other, &(struct lie){0});
    assert_memory_equal(one, two, sizeof one);
    assert_memory_not_equal(one, other, sizeof one);
    (void)unlink(path_of());
}

static void test_endless_templates(void **state)
{
    static const char *const bad[] = {
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor "
        "%}{{ ns.s }}",
    };
    tern_chat_turn turn = {"user", "hello"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tern_model *m = open_good(bad[i]);
        tern_tokens ids = {0};
        tern_error err = {0};
        assert_int_equal(tern_model_chat_tokens(m, &turn, 1, 0, true, &ids, &err), TERN_ELIMIT);
        assert_true(err.msg[0] && !strchr(err.msg, '\n'));
        assert_int_equal(ids.len, 0);
        tern_tokens_clear(&ids);
        tern_model_close(&m);
    }
    (void)unlink(path_of());
}

/* The kernel's limit on file size stands in for a full disk: write fails in the middle of the file. */
static void test_save_on_full_disk(void **state)
{
    struct rlimit old, small;
    char session[96], prefix[128], list[256];
    int32_t ids[200];
    tern_engine *e;
    tern_seq *s, *back;
    tern_error err = {0};
    tern_engine_params p = {.kv = "l4"};
    (void)state;
    tern_model *m = open_good(NULL);
    (void)snprintf(session, sizeof session, "%s.session", path_of());
    for (int i = 0; i < 200; i++)
        ids[i] = i;
    assert_int_equal(tern_engine_open(&e, m, &p, &err), 0);
    assert_int_equal(tern_seq_new(&s, e, &err), 0);
    assert_int_equal(tern_prefill(e, s, ids, 150, NULL, NULL, NULL, &err), 0);
    assert_int_equal(tern_seq_save(s, session, &err), 0);
    assert_int_equal(tern_prefill(e, s, ids, 20, NULL, NULL, NULL, &err), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    small = (struct rlimit){.rlim_cur = 5000, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = tern_seq_save(s, session, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(rc, TERN_EIO);
    assert_non_null(strstr(err.msg, session));
    /* The session that was there is still whole, and nothing half-written lies beside it. */
    tern_seq_free(s);
    if (tern_seq_load(&back, e, session, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(tern_seq_length(back), 150);
    (void)snprintf(prefix, sizeof prefix, "ls %s.tmp* 2>/dev/null", session);
    FILE *f = popen(prefix, "r");
    assert_non_null(f);
    assert_null(fgets(list, sizeof list, f));
    (void)pclose(f);
    tern_engine_close(&e);
    tern_model_close(&m);
    (void)unlink(session);
    (void)unlink(path_of());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models_that_must_not_open),
        cmocka_unit_test(test_factors_of_tensors),
        cmocka_unit_test(test_endless_templates),
        cmocka_unit_test(test_save_on_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
