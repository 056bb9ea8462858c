/* The metadata of the new file: that of a GGUF file as it stands, or what a directory's configuration and tokenizer say
 * in GGUF's words. */
#include "convert/convert_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/model.h"
#include "text/text.h"

/* Numbers to GGUF that a configuration may write as integers. */
static const char *const numbers[] = {"attention.layer_norm_rms_epsilon",
                                      "attention.scale",
                                      "attention.temperature_scale",
                                      "attn_logit_softcapping",
                                      "expert_weights_scale",
                                      "final_logit_softcapping",
                                      "rope.freq_base",
                                      "rope.freq_base_swa",
                                      "rope.scaling.factor",
                                      "rope.scaling.attn_factor",
                                      "rope.scaling.yarn_beta_fast",
                                      "rope.scaling.yarn_beta_slow",
                                      "rope.scaling.yarn_log_multiplier"};

static const char *arch_key(char *buf, size_t n, const struct plan *p, const char *name)
{
    return tern_arch_key(buf, n, p->arch, name);
}

static bool is_number(const struct plan *p, const char *key)
{
    char full[160];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(key, arch_key(full, sizeof full, p, numbers[i])) == 0)
            return true;
    return false;
}

static bool has_llama3(const struct plan *p)
{
    char key[160];
    const struct tern_meta *m = tern_file_meta(p->f, arch_key(key, sizeof key, p, "rope.scaling.type"));
    return tern_file_kind(p->f) == TERN_FILE_HF && m && m->type == TERN_META_STRING && m->s.n == 6 &&
           memcmp(m->s.p, "llama3", 6) == 0;
}

/* Elements that a head rotates. */
static int rotated(const struct plan *p, int64_t *out, tern_error *err)
{
    int rc = 0;
    char key[160];
    int64_t embd, heads, dim;
    TERN_TRY(tern_file_need_int(p->f, arch_key(key, sizeof key, p, "embedding_length"), 1, 1 << 24, &embd, err));
    TERN_TRY(tern_file_need_int(p->f, arch_key(key, sizeof key, p, "attention.head_count"), 1, 65536, &heads, err));
    TERN_TRY(tern_file_get_int(p->f, arch_key(key, sizeof key, p, "attention.key_length"), embd / heads, 1, 65536, &dim,
                               err));
    TERN_TRY(tern_file_get_int(p->f, arch_key(key, sizeof key, p, "rope.dimension_count"), dim, 1, dim, out, err));
out:
    return rc;
}

/* What GGUF numbers the mixtures of types with (general.file_type). */
static int put_file_type(struct plan *p, tern_error *err)
{
    static const uint32_t numbered[CONVERT_N_TYPES] = {[CONVERT_F32] = 0,  [CONVERT_F16] = 1,  [CONVERT_BF16] = 32,
                                                       [CONVERT_Q8_0] = 7, [CONVERT_Q4_0] = 2, [CONVERT_Q4_K] = 15};
    int rc = 0;
    uint32_t n = numbered[p->type];
    if (p->type == CONVERT_KEEP) {
        const struct tern_tensor *t = tern_file_tensor(p->f, "token_embd.weight");
        n = !t || t->type == TERN_F32 ? 0 : t->type == TERN_F16 ? 1 : 32;
    }
    TERN_TRY(tern_gguf_put_u32(&p->head, "general.file_type", n, err));
    TERN_TRY(tern_gguf_put_u32(&p->head, "general.quantization_version", 2, err));
out:
    return rc;
}

/* ---- from GGUF --------------------------------------------------------------------------------------------------- */

static bool is_own(const struct plan *p, const char *key)
{
    if (strcmp(key, "general.alignment") == 0 || strncmp(key, "split.", 6) == 0)
        return true;
    return p->type != CONVERT_KEEP &&
           (strcmp(key, "general.file_type") == 0 || strcmp(key, "general.quantization_version") == 0);
}

static int copy_metadata(struct plan *p, const tern_convert_params *params, tern_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < tern_file_n_meta(p->f); i++) {
        const struct tern_meta *m = tern_file_meta_at(p->f, i);
        if (!is_own(p, m->key) && !(params->no_tokenizer && strncmp(m->key, "tokenizer.", 10) == 0))
            TERN_TRY(tern_gguf_put_meta(&p->head, m, false, err));
    }
    if (params->no_tokenizer)
        TERN_TRY(tern_gguf_put_str(&p->head, "tokenizer.ggml.model", "none", 4, err));
    if (p->type != CONVERT_KEEP)
        TERN_TRY(put_file_type(p, err));
out:
    return rc;
}

/* ---- from a directory -------------------------------------------------------------------------------------------- */

static int put_configuration(struct plan *p, tern_error *err)
{
    int rc = 0;
    char key[160], scaling[160];
    int64_t n_rot;
    const bool llama3 = has_llama3(p);
    const struct tern_tensor *embd = tern_file_tensor(p->f, "token_embd.weight");
    (void)arch_key(scaling, sizeof scaling, p, "rope.scaling.");
    for (size_t i = 0; i < tern_file_n_meta(p->f); i++) {
        const struct tern_meta *m = tern_file_meta_at(p->f, i);
        if (p->latent && strcmp(m->key, arch_key(key, sizeof key, p, "rope.interleaved")) == 0) /* order.c */
            continue;
        if (strncmp(m->key, "config.", 7) != 0 && !(llama3 && strncmp(m->key, scaling, strlen(scaling)) == 0))
            TERN_TRY(tern_gguf_put_meta(&p->head, m, is_number(p, m->key), err));
    }
    TERN_TRY(rotated(p, &n_rot, err));
    if (!tern_file_meta(p->f, arch_key(key, sizeof key, p, "rope.dimension_count")))
        TERN_TRY(tern_gguf_put_u32(&p->head, key, (uint32_t)n_rot, err));
    if (embd)
        TERN_TRY(tern_gguf_put_u32(&p->head, arch_key(key, sizeof key, p, "vocab_size"), (uint32_t)embd->dims[1], err));
    TERN_TRY(put_file_type(p, err));
out:
    return rc;
}

static int put_text(struct plan *p, const tern_convert_params *params, tern_error *err)
{
    int rc = 0;
    struct tern_texts texts = {0};
    struct tern_buf tmpl = {0};
    char name[512];
    bool found;
    const struct tern_tensor *embd = tern_file_tensor(p->f, "token_embd.weight");
    TERN_TRY(tern_texts_read(&texts, p->f, err));
    TERN_TRY(tern_convert_sampling(p, texts.generation.p, texts.generation.len, err));
    if (!texts.tokenizer.p || params->no_tokenizer) {
        TERN_TRY(tern_gguf_put_str(&p->head, "tokenizer.ggml.model", "none", 4, err));
        goto out;
    }
    (void)snprintf(name, sizeof name, "%s/tokenizer.json", tern_path_show(tern_file_path(p->f)));
    if (!embd || embd->dims[1] > INT32_MAX)
        TERN_FAIL(err, TERN_EFORMAT, "%s: there is no embedding for the tokens of tokenizer.json",
                  tern_path_show(tern_file_path(p->f)));
    const struct tern_tokenizer_json files = tern_texts_tokenizer(&texts, name);
    tern_error why = {0};
    if ((rc = tern_tokenizer_to_gguf(&p->head, &files, (int)embd->dims[1], &why)) < 0)
        TERN_FAIL(err, rc, "%s%s", why.msg, rc == TERN_EUNSUPPORTED ? " (--no-tokenizer leaves it out)" : "");
    for (int tools = 0; tools < 2; tools++) {
        const char *key = tools ? "tokenizer.chat_template.tool_use" : "tokenizer.chat_template";
        tmpl.len = 0;
        TERN_TRY(tern_texts_template(&texts, tools, name, &tmpl, &found, err));
        if (found)
            TERN_TRY(tern_gguf_put_str(&p->head, key, tmpl.p ? tmpl.p : "", tmpl.len, err));
    }
out:
    tern_texts_clear(&texts);
    tern_buf_clear(&tmpl);
    return rc;
}

int tern_convert_metadata(struct plan *p, const tern_convert_params *params, tern_error *err)
{
    int rc = 0;
    if (tern_file_kind(p->f) == TERN_FILE_GGUF)
        return copy_metadata(p, params, err);
    TERN_TRY(put_configuration(p, err));
    TERN_TRY(put_text(p, params, err));
out:
    return rc;
}

/* ---- frequencies ------------------------------------------------------------------------------------------------- */

/* What makes `scaled` of `plain`, to the last bit where one of the numbers near the quotient does. */
static float divisor(double plain, float scaled)
{
    const float middle = (float)(plain / (double)scaled);
    float v = nextafterf(middle, 0);
    for (int i = 0; i < 3; i++, v = nextafterf(v, INFINITY))
        if ((float)(plain / (double)v) == scaled)
            return v;
    return middle;
}

int tern_convert_divisors(struct plan *p, tern_error *err)
{
    int rc = 0;
    int64_t n_rot;
    struct tern_rope r = {0};
    if (!has_llama3(p))
        return 0;
    if (!p->divided)
        return tern_err_set(err, TERN_EUNSUPPORTED, "%s: RoPE scaling \"llama3\" has no words in GGUF for %s",
                            tern_path_show(tern_file_path(p->f)), p->arch);
    TERN_TRY(rotated(p, &n_rot, err));
    TERN_TRY(tern_rope_read(&r, p->f, p->arch, (int)n_rot, err));
    TERN_TRY(tern_rope_make(&r, NULL, NULL, err));
    TERN_TRY(tern_alloc(&p->divisor_values, (size_t)n_rot / 2, sizeof(float), err));
    for (int i = 0; i < n_rot / 2; i++)
        p->divisor_values[i] = divisor(pow((double)r.theta, -2.0 * i / (double)n_rot), r.freq[i]);
    p->divisors = (struct tern_tensor){.name = "rope_freqs.weight",
                                       .source = "rope_scaling",
                                       .type = TERN_F32,
                                       .n_dims = 1,
                                       .dims = {n_rot / 2, 1, 1, 1},
                                       .data = p->divisor_values,
                                       .n_bytes = (size_t)n_rot / 2 * sizeof(float)};
out:
    tern_free(r.freq);
    return rc;
}
