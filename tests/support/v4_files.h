/* support/v4_files.h - a small DeepSeek-V4 with random weights, written as its makers publish it, as MLX converts it
 * and as GGUF.  All hold the same numbers: a tensor in codes is made of random ones, and who has it plain gets what
 * they mean.  Header-only; any failure fails the running cmocka test. */
#ifndef TERN_TEST_V4_FILES_H
#define TERN_TEST_V4_FILES_H

#include "base/fp16.h"
#include "base/rng.h"
#include "codec/codec.h"
#include "file/file.h"
#include "gguf_writer.h"
#include "scratch.h"
#include "tiny.h"

/* Rows of embedding and expert are whole blocks of 256. */
enum {
    V4_VOCAB = 48,
    V4_EMBD = 256,
    V4_FF = 512,
    V4_LAYERS = 2,
    V4_HEADS = 4,
    V4_DIM = 64,
    V4_ROT = 16,
    V4_Q = 64,
    V4_GROUPS = 2,
    V4_O = 96,
    V4_IH = 12,
    V4_ID = 32,
    V4_EXPERTS = 3,
    V4_STREAMS = 4,
    V4_MIX = V4_STREAMS * (V4_STREAMS + 2),
    V4_MAX = 128
};

/* What a matrix lies in.  PLAIN: F32; the next are MLX's; below 0: minus a type of GGUF. */
enum v4_form { V4_PLAIN, V4_AFFINE, V4_MXFP4, V4_MXFP8 };

struct v4_tensor {
    char name[64]; /* as published */
    int rows, cols, stack;
    bool matrix, ids; /* of a vector cols is 1 */
    int form, bits, group;
    float *v;              /* what it means */
    uint8_t *codes;        /* in its form */
    uint16_t *scale, *off; /* of a group: affine BF16, else a byte's exponent in scale */
    size_t n_codes;
};

struct v4_model {
    struct v4_tensor t[V4_MAX];
    int n;
    struct tern_rng rng;
};

static inline int v4_inputs(const struct v4_tensor *t)
{
    return t->cols;
}

static inline size_t v4_count(const struct v4_tensor *t)
{
    return (size_t)t->rows * (size_t)t->cols * (size_t)t->stack;
}

static inline float v4_float(struct tern_rng *r, float half)
{
    return ((float)(tern_rng_u64(r) >> 40) / 8388608.0F - 1) * half;
}

static inline struct v4_tensor *v4_add(struct v4_model *m, const char *name, int rows, int cols)
{
    struct v4_tensor *t = &m->t[m->n++];
    assert_true(m->n <= V4_MAX);
    *t = (struct v4_tensor){.rows = rows, .cols = cols, .stack = 1};
    (void)snprintf(t->name, sizeof t->name, "%s", name);
    t->v = calloc(v4_count(t), sizeof *t->v);
    assert_non_null(t->v);
    const bool norm = strstr(name, "norm") != NULL, scale = strstr(name, "_scale") != NULL;
    for (size_t i = 0; i < v4_count(t); i++)
        t->v[i] = norm || scale ? 1 + v4_float(&m->rng, .3F) : v4_float(&m->rng, cols > 1 ? 1.7F / sqrtf(cols) : .3F);
    return t;
}

static inline void v4_matrix(struct v4_model *m, const char *name, int rows, int cols)
{
    v4_add(m, name, rows, cols)->matrix = true;
}

static inline const char *v4_in(int layer, const char *name)
{
    static char out[96];
    (void)snprintf(out, sizeof out, "layers.%d.%s", layer, name);
    return out;
}

static inline void v4_layer(struct v4_model *m, int i)
{
    static const char *const halves[] = {"attn", "ffn"};
    char name[64];
    const int rate = i ? 8 : 4, channels = V4_DIM * (rate == 4 ? 2 : 1);
    for (int h = 0; h < 2; h++) {
        (void)snprintf(name, sizeof name, "hc_%s_fn", halves[h]);
        v4_add(m, v4_in(i, name), V4_MIX, V4_STREAMS * V4_EMBD);
        (void)snprintf(name, sizeof name, "hc_%s_base", halves[h]);
        v4_add(m, v4_in(i, name), V4_MIX, 1);
        (void)snprintf(name, sizeof name, "hc_%s_scale", halves[h]);
        v4_add(m, v4_in(i, name), 3, 1);
        (void)snprintf(name, sizeof name, "%s_norm.weight", halves[h]);
        v4_add(m, v4_in(i, name), V4_EMBD, 1);
    }
    v4_matrix(m, v4_in(i, "attn.wq_a.weight"), V4_Q, V4_EMBD);
    v4_add(m, v4_in(i, "attn.q_norm.weight"), V4_Q, 1);
    v4_matrix(m, v4_in(i, "attn.wq_b.weight"), V4_HEADS * V4_DIM, V4_Q);
    v4_matrix(m, v4_in(i, "attn.wkv.weight"), V4_DIM, V4_EMBD);
    v4_add(m, v4_in(i, "attn.kv_norm.weight"), V4_DIM, 1);
    v4_add(m, v4_in(i, "attn.attn_sink"), V4_HEADS, 1);
    v4_matrix(m, v4_in(i, "attn.wo_a.weight"), V4_GROUPS * V4_O, V4_HEADS / V4_GROUPS * V4_DIM);
    v4_matrix(m, v4_in(i, "attn.wo_b.weight"), V4_EMBD, V4_GROUPS * V4_O);
    v4_matrix(m, v4_in(i, "attn.compressor.wkv.weight"), channels, V4_EMBD);
    v4_matrix(m, v4_in(i, "attn.compressor.wgate.weight"), channels, V4_EMBD);
    v4_add(m, v4_in(i, "attn.compressor.ape"), rate, channels);
    v4_add(m, v4_in(i, "attn.compressor.norm.weight"), V4_DIM, 1);
    if (rate == 4) {
        v4_matrix(m, v4_in(i, "attn.indexer.wq_b.weight"), V4_IH * V4_ID, V4_Q);
        v4_matrix(m, v4_in(i, "attn.indexer.weights_proj.weight"), V4_IH, V4_EMBD);
        v4_matrix(m, v4_in(i, "attn.indexer.compressor.wkv.weight"), 2 * V4_ID, V4_EMBD);
        v4_matrix(m, v4_in(i, "attn.indexer.compressor.wgate.weight"), 2 * V4_ID, V4_EMBD);
        v4_add(m, v4_in(i, "attn.indexer.compressor.ape"), rate, 2 * V4_ID);
        v4_add(m, v4_in(i, "attn.indexer.compressor.norm.weight"), V4_ID, 1);
    }
    v4_add(m, v4_in(i, "ffn.gate.weight"), V4_EXPERTS, V4_EMBD);
    if (i) {
        v4_add(m, v4_in(i, "ffn.gate.bias"), V4_EXPERTS, 1);
    } else {
        struct v4_tensor *table = v4_add(m, v4_in(i, "ffn.gate.tid2eid"), V4_VOCAB, 2);
        table->ids = true;
        for (int k = 0; k < V4_VOCAB; k++) {
            table->v[2 * k] = (float)(k % V4_EXPERTS);
            table->v[2 * k + 1] = (float)((k + 1 + k / V4_EXPERTS % 2) % V4_EXPERTS);
        }
    }
    for (int e = 0; e <= V4_EXPERTS; e++)
        for (int w = 1; w <= 3; w++) {
            if (e < V4_EXPERTS)
                (void)snprintf(name, sizeof name, "ffn.experts.%d.w%d.weight", e, w);
            else
                (void)snprintf(name, sizeof name, "ffn.shared_experts.w%d.weight", w);
            v4_matrix(m, v4_in(i, name), w == 2 ? V4_EMBD : V4_FF, w == 2 ? V4_FF : V4_EMBD);
        }
}

static inline void v4_make(struct v4_model *m)
{
    memset(m, 0, sizeof *m);
    m->rng = (struct tern_rng){11};
    v4_matrix(m, "embed.weight", V4_VOCAB, V4_EMBD);
    v4_matrix(m, "head.weight", V4_VOCAB, V4_EMBD);
    v4_add(m, "norm.weight", V4_EMBD, 1);
    v4_add(m, "hc_head_fn", V4_STREAMS, V4_STREAMS * V4_EMBD);
    v4_add(m, "hc_head_base", V4_STREAMS, 1);
    v4_add(m, "hc_head_scale", 1, 1);
    for (int i = 0; i < V4_LAYERS; i++)
        v4_layer(m, i);
}

static inline void v4_free(struct v4_model *m)
{
    for (int i = 0; i < m->n; i++) {
        free(m->t[i].v);
        free(m->t[i].codes);
        free(m->t[i].scale);
        free(m->t[i].off);
    }
}

static inline struct v4_tensor *v4_find(struct v4_model *m, const char *name)
{
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->t[i].name, name) == 0)
            return &m->t[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

/* ---- codes ------------------------------------------------------------------------------------------------------- */

static inline void v4_put_code(uint8_t *row, int k, int bits, unsigned code)
{
    for (int b = 0; b < bits; b++)
        if (code >> b & 1) {
            const int at = k * bits + b;
            row[at / 8] |= (uint8_t)(1U << at % 8);
        }
}

/* Random codes of MLX about as large as the weights were; v becomes what they mean. */
static inline void v4_encode(struct v4_model *m, struct v4_tensor *t, enum v4_form form, int bits, int group)
{
    static const float e2m1[] = {0, .5F, 1, 1.5F, 2, 3, 4, 6};
    const int cols = t->cols, groups = cols / group;
    const size_t row_bytes = (size_t)cols * (size_t)bits / 8, rows = (size_t)t->rows;
    const int e = -(int)lrintf(log2f(sqrtf((float)cols))); /* 2^e: about the size of a weight */
    assert_true(t->matrix && cols % group == 0);
    t->form = (int)form;
    t->bits = bits;
    t->group = group;
    t->n_codes = rows * row_bytes;
    t->codes = calloc(t->n_codes, 1);
    t->scale = calloc(rows * (size_t)groups, sizeof *t->scale);
    t->off = calloc(rows * (size_t)groups, sizeof *t->off);
    assert_true(t->codes && t->scale && t->off);
    for (size_t i = 0; i < rows * (size_t)cols; i++) {
        const size_t r = i / (size_t)cols, at = r * (size_t)groups + i % (size_t)cols / (size_t)group;
        const int k = (int)(i % (size_t)cols), top = 1 << bits;
        unsigned code = (unsigned)(tern_rng_u64(&m->rng) >> 20) % (unsigned)top;
        if (k % group == 0) {
            const int more = (int)(tern_rng_u64(&m->rng) >> 20) % 3 - 1;
            if (form == V4_AFFINE) { /* a scale of three bits, whole steps below 0: sums are exact */
                const float s = ldexpf(1 + .25F * (float)(tern_rng_u64(&m->rng) >> 20 & 3), e + more - bits);
                t->scale[at] = tern_f32_to_bf16(s);
                t->off[at] = tern_f32_to_bf16(-s * (float)(top / 2));
            } else {
                t->scale[at] = (uint16_t)(127 + e + more - (form == V4_MXFP4 ? 3 : 8));
            }
        }
        if (form == V4_MXFP8) {
            code = (code & 0x7F) > 0x7E ? 0x38 : code;
            t->v[i] = ldexpf(tern_e4m3_to_f32((uint8_t)code), t->scale[at] - 127);
        } else if (form == V4_MXFP4) {
            t->v[i] = ldexpf(code & 8 ? -e2m1[code & 7] : e2m1[code & 7], t->scale[at] - 127);
        } else {
            t->v[i] = tern_bf16_to_f32(t->scale[at]) * (float)code + tern_bf16_to_f32(t->off[at]);
        }
        v4_put_code(t->codes + r * row_bytes, k, bits, code);
    }
}

/* Random blocks of a type of GGUF; v becomes what they mean. */
static inline void v4_block(struct v4_model *m, struct v4_tensor *t, int type)
{
    /* where a block has its factors, F16 */
    static const struct {
        int type, at[2];
    } factors[] = {{TERN_Q4_0, {0, -1}},    {TERN_Q8_0, {0, -1}},  {TERN_Q2_K, {80, 82}},  {TERN_Q3_K, {108, -1}},
                   {TERN_Q4_K, {0, 2}},     {TERN_Q5_K, {0, 2}},   {TERN_Q6_K, {208, -1}}, {TERN_IQ2_XXS, {0, -1}},
                   {TERN_IQ3_XXS, {0, -1}}, {TERN_IQ4_XS, {0, -1}}};
    const size_t elems = (size_t)tern_type_elems(type), bytes = (size_t)tern_type_bytes(type);
    const size_t n = v4_count(t) / elems;
    tern_error err = {0};
    assert_true(t->cols % (int)elems == 0);
    t->form = -type;
    t->n_codes = n * bytes;
    t->codes = malloc(t->n_codes);
    assert_non_null(t->codes);
    for (size_t i = 0; i < t->n_codes; i++)
        t->codes[i] = (uint8_t)(tern_rng_u64(&m->rng) >> 30);
    for (size_t b = 0; b < n; b++) {
        if (type == TERN_MXFP4) {
            t->codes[b * bytes] = (uint8_t)(120 + (t->codes[b * bytes] & 3));
            continue;
        }
        if (type == TERN_F16) {
            const uint16_t h = tern_f32_to_f16(t->v[b]);
            memcpy(t->codes + b * bytes, &h, sizeof h);
            continue;
        }
        for (size_t f = 0; f < sizeof factors / sizeof *factors; f++)
            for (int k = 0; factors[f].type == type && k < 2 && factors[f].at[k] >= 0; k++) {
                const float wide = type == TERN_Q8_0 ? 127 : type == TERN_Q4_0 ? 8 : 400;
                const uint16_t h = tern_f32_to_f16((1 + v4_float(&m->rng, .3F)) * .8F / wide / sqrtf((float)t->cols));
                memcpy(t->codes + b * bytes + factors[f].at[k], &h, sizeof h);
            }
    }
    tiny_ok(tern_dequantize(t->v, type, t->codes, v4_count(t), &err), &err);
}

/* ---- safetensors ------------------------------------------------------------------------------------------------- */

struct v4_st {
    struct gw_bytes head, data;
};

static inline void v4_st_add(struct v4_st *s, const char *name, const char *dtype, const int *dims, int n_dims,
                             const void *p, size_t n)
{
    char text[256], shape[64] = "";
    size_t used = 0;
    for (int i = 0; i < n_dims; i++)
        used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%d", i ? "," : "", dims[i]);
    const int len = snprintf(text, sizeof text, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                             s->head.n ? "," : "{", name, dtype, shape, s->data.n, s->data.n + n);
    gw_put(&s->head, text, (size_t)len);
    gw_put(&s->data, p, n);
}

static inline void v4_st_save(struct v4_st *s)
{
    struct gw_bytes file = {0};
    gw_put(&s->head, "}", 1);
    gw_put_u64(&file, s->head.n);
    gw_put(&file, s->head.p, s->head.n);
    gw_put(&file, s->data.p, s->data.n);
    write_bytes("model.safetensors", file.p, file.n);
    free(file.p);
    free(s->head.p);
    free(s->data.p);
}

static inline void v4_st_plain(struct v4_st *s, const struct v4_tensor *t, const char *name)
{
    const int dims[] = {t->rows, t->cols};
    const size_t n = v4_count(t);
    if (!t->ids) {
        v4_st_add(s, name, "F32", dims, t->cols > 1 ? 2 : 1, t->v, n * sizeof *t->v);
        return;
    }
    int64_t *ids = calloc(n, sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int64_t)t->v[i];
    v4_st_add(s, name, "I64", dims, 2, ids, n * sizeof *ids);
    free(ids);
}

/* What a configuration of the published directory says, but for its end. */
#define V4_CONFIG                                                                                                     \
    "{\"model_type\":\"deepseek_v4\",\"vocab_size\":48,\"hidden_size\":256,\"moe_intermediate_size\":512,"            \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":1,\"head_dim\":64,"                    \
    "\"qk_rope_head_dim\":16,\"q_lora_rank\":64,\"o_lora_rank\":96,\"o_groups\":2,\"sliding_window\":24,"             \
    "\"compress_ratios\":[4,8],\"rope_theta\":1000.0,\"compress_rope_theta\":16000.0,\"rope_scaling\":{"              \
    "\"type\":\"yarn\",\"factor\":16,\"original_max_position_embeddings\":64,\"beta_fast\":32,\"beta_slow\":1},"      \
    "\"max_position_embeddings\":1024,\"index_n_heads\":12,\"index_head_dim\":32,\"index_topk\":5,\"hc_mult\":4,"     \
    "\"hc_sinkhorn_iters\":20,\"hc_eps\":1e-6,\"n_routed_experts\":3,\"n_shared_experts\":1,"                         \
    "\"num_experts_per_tok\":2,\"num_hash_layers\":1,\"scoring_func\":\"sqrtsoftplus\",\"topk_method\":\"noaux_tc\"," \
    "\"norm_topk_prob\":true,\"routed_scaling_factor\":1.5,\"swiglu_limit\":1.5,\"rms_norm_eps\":1e-6,"               \
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false"

/* The published layout, everything in F32. */
static inline void v4_write_plain(struct v4_model *m)
{
    struct v4_st s = {0};
    for (int i = 0; i < m->n; i++)
        v4_st_plain(&s, &m->t[i], m->t[i].name);
    v4_st_save(&s);
    write_text("config.json", V4_CONFIG "}");
}

/* ---- MLX --------------------------------------------------------------------------------------------------------- */

struct v4_swap {
    const char *from, *to;
};

/* The first of the pairs that a name has in it is put in place. */
static inline void v4_swap(char *name, size_t size, const struct v4_swap *pairs)
{
    char rest[128];
    for (; pairs->from; pairs++) {
        char *at = strstr(name, pairs->from);
        if (!at)
            continue;
        (void)snprintf(rest, sizeof rest, "%s", at + strlen(pairs->from));
        (void)snprintf(at, size - (size_t)(at - name), "%s%s", pairs->to, rest);
        return;
    }
}

enum v4_names { V4_MLX_VLM, V4_MLX_LM, V4_MLX_OLD }; /* the last: what its makers call things, experts stacked */

/* The module and its ending; of experts without their number. */
static inline void v4_mlx_name(char *out, size_t size, const struct v4_tensor *t, enum v4_names names)
{
    static const struct v4_swap stacks[] = {
        {".w1.", ".gate_proj."}, {".w2.", ".down_proj."}, {".w3.", ".up_proj."}, {0}};
    static const struct v4_swap mixers[] = {{"hc_attn_", "attn_hc."},
                                            {"hc_ffn_", "ffn_hc."},
                                            {"hc_head_", "hc_head."},
                                            {"gate.bias", "gate.e_score_correction_bias"},
                                            {0}};
    static const struct v4_swap tops[] = {{"embed.", "model.embed_tokens."}, {"head.weight", "lm_head.weight"}, {0}};
    char name[128];
    const char *experts = strstr(t->name, ".experts.");
    if (experts)
        (void)snprintf(name, sizeof name, "%.*s.switch_mlp%s", (int)(experts - t->name), t->name,
                       strchr(experts + 9, '.'));
    else
        (void)snprintf(name, sizeof name, "%s", t->name);
    if (experts || names != V4_MLX_OLD)
        v4_swap(name, sizeof name, stacks);
    if (names != V4_MLX_OLD) {
        v4_swap(name, sizeof name, mixers);
        v4_swap(name, sizeof name, tops);
    }
    const bool inner = names != V4_MLX_OLD && strncmp(name, "model.", 6) != 0 && strncmp(name, "lm_head", 7) != 0;
    (void)snprintf(out, size, "%s%s%s", names == V4_MLX_VLM ? "language_model." : "", inner ? "model." : "", name);
}

/* One tensor of n that belong together (the experts of a layer), of which each has `bytes` at at(i). */
static inline void *v4_together(const struct v4_tensor *const *t, int n, size_t bytes,
                                const void *(*at)(const struct v4_tensor *t))
{
    char *all = malloc(bytes * (size_t)n);
    assert_non_null(all);
    for (int i = 0; i < n; i++)
        memcpy(all + bytes * (size_t)i, at(t[i]), bytes);
    return all;
}

static inline const void *v4_codes_of(const struct v4_tensor *t)
{
    return t->codes;
}

static inline const void *v4_values_of(const struct v4_tensor *t)
{
    return t->v;
}

static inline const void *v4_scales_of(const struct v4_tensor *t)
{
    return t->scale;
}

static inline const void *v4_offs_of(const struct v4_tensor *t)
{
    return t->off;
}

/* Scales of MX forms are bytes. */
static inline void v4_narrow(void *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t wide;
        memcpy(&wide, (uint8_t *)p + 2 * i, sizeof wide);
        ((uint8_t *)p)[i] = (uint8_t)wide;
    }
}

/* n matrices as one tensor; groups: of wo_a, whose rows stand apart. */
static inline void v4_mlx_matrix(struct v4_st *s, const char *name, const struct v4_tensor *const *t, int n, int groups)
{
    const struct v4_tensor *a = t[0];
    const int apart = n > 1 ? n : groups, rows = n > 1 ? a->rows : a->rows / groups, first = apart > 1 ? 0 : 1;
    const size_t scales = a->form > 0 ? (size_t)a->rows * (size_t)(a->cols / a->group) : 0;
    char other[160];
    if (a->form == V4_PLAIN) {
        const int dims[] = {apart, rows, a->cols};
        void *all = v4_together(t, n, v4_count(a) * sizeof *a->v, v4_values_of);
        v4_st_add(s, name, "F32", dims + first, 3 - first, all, v4_count(a) * sizeof *a->v * (size_t)n);
        free(all);
        return;
    }
    const int dims[] = {apart, rows, a->cols * a->bits / 32}, per[] = {apart, rows, a->cols / a->group};
    const size_t base = strlen(name) - strlen("weight");
    void *codes = v4_together(t, n, a->n_codes, v4_codes_of), *scale = v4_together(t, n, scales * 2, v4_scales_of);
    void *off = v4_together(t, n, scales * 2, v4_offs_of);
    v4_st_add(s, name, "U32", dims + first, 3 - first, codes, a->n_codes * (size_t)n);
    (void)snprintf(other, sizeof other, "%.*sscales", (int)base, name);
    if (a->form != V4_AFFINE)
        v4_narrow(scale, scales * (size_t)n);
    v4_st_add(s, other, a->form == V4_AFFINE ? "BF16" : "U8", per + first, 3 - first, scale,
              scales * (size_t)n * (a->form == V4_AFFINE ? 2 : 1));
    (void)snprintf(other, sizeof other, "%.*sbiases", (int)base, name);
    if (a->form == V4_AFFINE)
        v4_st_add(s, other, "BF16", per + first, 3 - first, off, scales * (size_t)n * 2);
    free(codes);
    free(scale);
    free(off);
}

static inline void v4_mlx_ids(struct v4_st *s, const char *name, const struct v4_tensor *t)
{
    const int dims[] = {t->rows, t->cols};
    int32_t *ids = calloc(v4_count(t), sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < v4_count(t); i++)
        ids[i] = (int32_t)t->v[i];
    v4_st_add(s, name, "I32", dims, 2, ids, v4_count(t) * sizeof *ids);
    free(ids);
}

/* Every tensor in its form; the configuration says of each module what it is. */
static inline void v4_write_mlx(struct v4_model *m, enum v4_names names)
{
    static const char *const modes[] = {"", "affine", "mxfp4", "mxfp8"};
    static char config[1 << 15];
    struct v4_st s = {0};
    size_t used = (size_t)snprintf(config, sizeof config,
                                   V4_CONFIG ",\"quantization\":{\"group_size\":64,\"bits\":8,\"mode\":\"affine\"");
    for (int i = 0; i < m->n; i++) {
        const struct v4_tensor *t = &m->t[i], *all[V4_EXPERTS];
        char name[160];
        const bool experts = strstr(t->name, ".experts.") != NULL;
        int n = 1;
        all[0] = t;
        if (experts && !strstr(t->name, ".experts.0."))
            continue;
        for (; experts && n < V4_EXPERTS; n++)
            all[n] = &m->t[i + 3 * n];
        v4_mlx_name(name, sizeof name, t, names);
        if (t->ids)
            v4_mlx_ids(&s, name, t);
        else if (t->matrix)
            v4_mlx_matrix(&s, name, all, n, names != V4_MLX_OLD && strstr(name, "wo_a") ? V4_GROUPS : 1);
        else
            v4_st_plain(&s, t, name);
        if (!t->matrix)
            continue;
        used += (size_t)snprintf(config + used, sizeof config - used, ",\"%.*s\":", (int)(strlen(name) - 7), name);
        if (t->form > 0)
            used +=
                (size_t)snprintf(config + used, sizeof config - used, "{\"group_size\":%d,\"bits\":%d,\"mode\":\"%s\"}",
                                 t->group, t->bits, modes[t->form]);
        else
            used += (size_t)snprintf(config + used, sizeof config - used, "false");
        assert_true(used < sizeof config - 512);
    }
    (void)snprintf(config + used, sizeof config - used, "}}");
    v4_st_save(&s);
    write_text("config.json", config);
}

/* ---- GGUF -------------------------------------------------------------------------------------------------------- */

static inline void v4_gguf_name(char *out, size_t size, const struct v4_tensor *t)
{
    static const struct v4_swap words[] = {{"embed.", "token_embd."},
                                           {"hc_head_", "output_hc_"},
                                           {"hc_head", "output_hc"},
                                           {"head.", "output."},
                                           {"attn.compressor.wkv", "attn_compressor_kv"},
                                           {"attn.compressor.wgate", "attn_compressor_gate"},
                                           {"attn.compressor.", "attn_compressor_"},
                                           {"attn.indexer.wq_b", "indexer.attn_q_b"},
                                           {"attn.indexer.weights_proj", "indexer.proj"},
                                           {"attn.indexer.compressor.wkv", "indexer_compressor_kv"},
                                           {"attn.indexer.compressor.wgate", "indexer_compressor_gate"},
                                           {"attn.indexer.compressor.", "indexer_compressor_"},
                                           {"attn.wq_a", "attn_q_a"},
                                           {"attn.wq_b", "attn_q_b"},
                                           {"attn.q_norm", "attn_q_a_norm"},
                                           {"attn.wkv", "attn_kv"},
                                           {"attn.kv_norm", "attn_kv_a_norm"},
                                           {"attn.attn_sink", "attn_sinks"},
                                           {"attn.wo_a", "attn_output_a"},
                                           {"attn.wo_b", "attn_output_b"},
                                           {"ffn.gate.weight", "ffn_gate_inp.weight"},
                                           {"ffn.gate.bias", "exp_probs_b.bias"},
                                           {"ffn.gate.tid2eid", "ffn_gate_tid2eid"},
                                           {"ffn.shared_experts.w1", "ffn_gate_shexp"},
                                           {"ffn.shared_experts.w2", "ffn_down_shexp"},
                                           {"ffn.shared_experts.w3", "ffn_up_shexp"},
                                           {"ffn.experts.0.w1", "ffn_gate_exps"},
                                           {"ffn.experts.0.w2", "ffn_down_exps"},
                                           {"ffn.experts.0.w3", "ffn_up_exps"},
                                           {0}};
    char name[128];
    (void)snprintf(name, sizeof name, "%s", strcmp(t->name, "norm.weight") == 0 ? "output_norm.weight" : t->name);
    v4_swap(name, sizeof name, words);
    v4_swap(name, sizeof name, (const struct v4_swap[]){{"layers.", "blk."}, {0}});
    const char *end = strrchr(name, '.');
    const bool ended = end && (strcmp(end, ".weight") == 0 || strcmp(end, ".bias") == 0);
    (void)snprintf(out, size, "%s%s", name, ended ? "" : ".weight");
}

/* The keys that ds4's reader asks for, and no more. */
static inline void v4_gguf_keys(struct gguf_writer *w)
{
    static const struct {
        const char *key;
        uint32_t v;
    } numbers[] = {{"block_count", V4_LAYERS},
                   {"context_length", 1024},
                   {"embedding_length", V4_EMBD},
                   {"vocab_size", V4_VOCAB},
                   {"attention.head_count", V4_HEADS},
                   {"attention.head_count_kv", 1},
                   {"attention.key_length", V4_DIM},
                   {"attention.value_length", V4_DIM},
                   {"rope.dimension_count", V4_ROT},
                   {"attention.q_lora_rank", V4_Q},
                   {"attention.output_lora_rank", V4_O},
                   {"attention.output_group_count", V4_GROUPS},
                   {"expert_count", V4_EXPERTS},
                   {"expert_used_count", 2},
                   {"expert_feed_forward_length", V4_FF},
                   {"expert_shared_count", 1},
                   {"hash_layer_count", 1},
                   {"attention.sliding_window", 24},
                   {"attention.indexer.head_count", V4_IH},
                   {"attention.indexer.key_length", V4_ID},
                   {"attention.indexer.top_k", 5},
                   {"hyper_connection.count", V4_STREAMS},
                   {"hyper_connection.sinkhorn_iterations", 20}};
    static const struct {
        const char *key;
        float v;
    } floats[] = {{"rope.freq_base", 1000},
                  {"rope.scaling.factor", 16},
                  {"rope.scaling.yarn_beta_fast", 32},
                  {"rope.scaling.yarn_beta_slow", 1},
                  {"attention.compress_rope_freq_base", 16000},
                  {"expert_weights_scale", 1.5F},
                  {"attention.layer_norm_rms_epsilon", 1e-6F},
                  {"hyper_connection.epsilon", 1e-6F}};
    char key[96];
#define V4_KEY(name) ((void)snprintf(key, sizeof key, "deepseek4.%s", name), key)
    gw_str(w, "general.architecture", "deepseek4");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        gw_u32(w, V4_KEY(numbers[i].key), numbers[i].v);
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        gw_f32(w, V4_KEY(floats[i].key), floats[i].v);
    gw_u64(w, V4_KEY("rope.scaling.original_context_length"), 64);
    gw_str(w, V4_KEY("rope.scaling.type"), "yarn");
    gw_bool(w, V4_KEY("expert_weights_norm"), 1);
    gw_array(w, V4_KEY("attention.compress_ratios"), GW_I32, (int32_t[]){4, 8}, 2);
    gw_array(w, V4_KEY("swiglu_clamp_exp"), GW_F32, (float[]){1.5F, 1.5F}, 2);
#undef V4_KEY
}

/* Every tensor in its type of GGUF; without one, in F32. */
static inline void v4_gguf_tensors(struct gguf_writer *w, struct v4_model *m)
{
    for (int i = 0; i < m->n; i++) {
        const struct v4_tensor *t = &m->t[i], *all[V4_EXPERTS];
        char name[160];
        const bool experts = strstr(t->name, ".experts.") != NULL, flat = t->cols == 1;
        int n = 1;
        all[0] = t;
        if (experts && !strstr(t->name, ".experts.0."))
            continue;
        for (; experts && n < V4_EXPERTS; n++)
            all[n] = &m->t[i + 3 * n];
        const uint64_t dims[] = {(uint64_t)(flat ? t->rows : t->cols), (uint64_t)t->rows, (uint64_t)n};
        const size_t bytes = t->form ? t->n_codes : v4_count(t) * sizeof *t->v;
        void *p = v4_together(all, n, bytes, t->form ? v4_codes_of : v4_values_of);
        for (size_t k = 0; t->ids && k < v4_count(t); k++)
            ((int32_t *)p)[k] = (int32_t)t->v[k];
        v4_gguf_name(name, sizeof name, t);
        gw_tensor(w, name, t->ids ? (uint32_t)TERN_I32 : (uint32_t)-t->form,
                  flat      ? 1
                  : experts ? 3
                            : 2,
                  dims, p, bytes * (size_t)n);
        free(p);
    }
}

#endif
