/* What llama.cpp computes otherwise: settings of the model for which it has constants, and does not look into the file.
 * tern reads them, so they are written as they are, and the report says which. */
#include "convert/convert_impl.h"

#include <math.h>
#include <stdio.h>

#include "model/model.h"

struct finding {
    const struct tern_file *f;
    const char *arch;
    char *out; /* the sentence */
    size_t n, used;
};

static const struct tern_meta *find(const struct finding *w, const char *name)
{
    char key[160];
    return tern_file_meta(w->f, tern_arch_key(key, sizeof key, w->arch, name));
}

static double number(const struct finding *w, const char *name, double def)
{
    const struct tern_meta *m = find(w, name);
    return !m || m->odd ? def : m->type == TERN_META_BOOL || m->type == TERN_META_INT ? (double)m->i : m->f;
}

static void add(struct finding *w, const char *name)
{
    const int n = snprintf(w->out + w->used, w->n - w->used, "%s%s.%s", w->used ? ", " : "llama.cpp does not go by ",
                           w->arch, name);
    w->used += n > 0 && (size_t)n < w->n - w->used ? (size_t)n : 0;
}

/* The file says this key, and another number than llama.cpp's. */
static void expect(struct finding *w, const char *name, double theirs)
{
    if (find(w, name) && fabs(number(w, name, theirs) - theirs) > 1e-6 * fabs(theirs))
        add(w, name);
}

/* The scale of scores: one over the root of the size of a head, or in the model of `wide` layers of a head's share of
 * the embedding. */
static void check_gemma(struct finding *w, int wide)
{
    const int64_t embd = (int64_t)number(w, "embedding_length", 0),
                  heads = (int64_t)number(w, "attention.head_count", 0);
    if (embd < 1 || heads < 1)
        return;
    const int64_t share = embd / heads;
    const double head = number(w, "attention.key_length", (double)share);
    expect(w, "attention.scale", 1 / sqrt((int)number(w, "block_count", 0) == wide ? (double)share : head));
}

static void check_llama4(struct finding *w)
{
    expect(w, "attention.chunk_size", 8192);
    expect(w, "attention.temperature_length", 8192);
    expect(w, "attention.temperature_scale", 0.1);
    expect(w, "attention.qk_norm", (int)number(w, "expert_count", 0) != 128);
}

/* Growth of cos and sin beside that of the scores, of which it takes the first for the second too. */
static void check_latent(struct finding *w)
{
    if (number(w, "rope.scaling.yarn_log_multiplier", 0) > 0)
        expect(w, "rope.scaling.attn_factor", 1);
}

void tern_convert_differs(const struct plan *p, char *out, size_t n)
{
    static const char *const windowless[] = {"llama", "mistral3", "qwen2", "qwen3", "qwen3moe", "smollm3"};
    struct finding w = {.f = p->f, .arch = p->arch, .out = out, .n = n};
    *out = 0;
    if (strcmp(p->arch, "gemma2") == 0 || strcmp(p->arch, "gemma3") == 0)
        check_gemma(&w, p->arch[5] == '2' ? 46 : 62);
    if (strcmp(p->arch, "llama4") == 0)
        check_llama4(&w);
    if (strcmp(p->arch, "deepseek2") == 0)
        check_latent(&w);
    if (strcmp(p->arch, "qwen3moe") == 0) {
        expect(&w, "interleave_moe_layer_step", 1);
        expect(&w, "expert_weights_norm", 1);
    }
    for (size_t i = 0; i < sizeof windowless / sizeof *windowless; i++)
        if (strcmp(p->arch, windowless[i]) == 0 && number(&w, "attention.sliding_window", 0) > 0)
            add(&w, "attention.sliding_window");
    if (w.used)
        (void)snprintf(out + w.used, n - w.used, ", so it computes something else with this file");
}
