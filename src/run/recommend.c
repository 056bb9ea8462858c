/* How the makers of a model want its tokens picked: generation_config.json of a directory, general.sampling.* of a GGUF
 * file.  Nothing in there makes a model unusable: what cannot be used is left out and named. */
#include "run/run.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/text.h"

/* Where a model says something: one of the two is NULL. */
struct source {
    const struct tern_file *gguf;
    const json_t *hf;
};

static const unsigned counts = TERN_SAID_TOP_K | TERN_SAID_LAST; /* these have no fractions */
struct setting {
    unsigned said; /* TERN_SAID_* */
    const char *gguf, *hf;
    double min, max;
};
static const struct setting settings[] = {
#define SETTING(name, gguf, hf, min, max) {TERN_SAID_##name, gguf, hf, min, max},
    TERN_SAMPLING_LIST(SETTING)
#undef SETTING
};

/* What this sampler does not do, and the value that switches it off. */
static const struct {
    const char *gguf, *hf;
    double off;
} others[] = {
    {NULL, "typical_p", 1},
    {NULL, "epsilon_cutoff", 0},
    {NULL, "eta_cutoff", 0},
    {NULL, "num_beams", 1},
    {NULL, "penalty_alpha", 0},
    {NULL, "no_repeat_ngram_size", 0},
    {NULL, "guidance_scale", 1},
    {NULL, "suppress_tokens", 0},
    {NULL, "begin_suppress_tokens", 0},
    {NULL, "bad_words_ids", 0},
    {NULL, "sequence_bias", 0},
    {"general.sampling.xtc_probability", NULL, 0},
    {"general.sampling.mirostat", NULL, 0},
    {"general.sampling.sequence", NULL, 0},
};

enum found { ABSENT, NUMBER, OTHER };

static enum found look_up(const struct source *s, const char *gguf, const char *hf, double *v)
{
    const struct tern_meta *m = s->gguf && gguf ? tern_file_meta(s->gguf, gguf) : NULL;
    const json_t *j = s->hf && hf ? json_object_get(s->hf, hf) : NULL;
    if (m) {
        *v = m->f;
        return (m->type == TERN_META_INT || m->type == TERN_META_FLOAT) && isfinite(m->f) ? NUMBER : OTHER;
    }
    if (!j || json_is_null(j) || (json_is_array(j) && json_array_size(j) == 0))
        return ABSENT;
    *v = json_number_value(j);
    return json_is_number(j) ? NUMBER : OTHER;
}

static void leave_out(tern_model *m, const char *name)
{
    size_t n = strlen(m->left_out);
    (void)snprintf(m->left_out + n, sizeof m->left_out - n, "%s%s", n ? ", " : "", name);
}

static void take(tern_sampler_params *p, unsigned which, double v)
{
    switch (which) {
    case TERN_SAID_TEMPERATURE:
        p->temperature = (float)v;
        break;
    case TERN_SAID_TOP_K:
        p->top_k = v > 0 ? (int)v : 0;
        break;
    case TERN_SAID_TOP_P:
        p->top_p = (float)v;
        break;
    case TERN_SAID_MIN_P:
        p->min_p = (float)v;
        break;
    case TERN_SAID_REPETITION:
        p->repetition_penalty = (float)v;
        break;
    default:
        p->penalty_last = (int)v;
    }
}

/* What follows from what is said, and from what is not. */
static void settle(tern_model *m, const struct source *s)
{
    tern_sampler_params *p = &m->recommended;
    const json_t *sample = s->hf ? json_object_get(s->hf, "do_sample") : NULL;
    const unsigned kept = TERN_SAID_TOP_K | TERN_SAID_TOP_P | TERN_SAID_MIN_P;
    if (json_is_false(sample)) { /* then the rest of sampling is nobody's */
        m->said = (m->said & ~kept) | TERN_SAID_TEMPERATURE;
        p->temperature = 0;
    } else if (!(m->said & TERN_SAID_TEMPERATURE) && (json_is_true(sample) || (m->said & kept))) {
        m->said |= TERN_SAID_TEMPERATURE; /* they say nothing about a likeliest token */
        p->temperature = 1;
    }
    if (s->hf && (m->said & TERN_SAID_REPETITION)) { /* there it has no window */
        m->said |= TERN_SAID_LAST;
        p->penalty_last = -1;
    }
    if ((m->said & TERN_SAID_LAST) &&
        p->penalty_last == 0) { /* a window of nothing; to the sampler 0 says something else */
        m->said = (m->said & ~(unsigned)TERN_SAID_LAST) | TERN_SAID_REPETITION;
        p->repetition_penalty = 1;
    }
}

static void read_settings(tern_model *m, const struct source *s)
{
    double v = 0;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const struct setting *x = &settings[i];
        enum found f = look_up(s, x->gguf, x->hf, &v);
        const bool inside = f == NUMBER && v >= x->min && v <= x->max && (!(x->said & counts) || v == floor(v));
        if (inside && (double)(float)v >= x->min) { /* the sampler gets floats: 0.01 becomes less */
            m->said |= x->said;
            take(&m->recommended, x->said, v);
        } else if (f != ABSENT) {
            leave_out(m, s->hf ? x->hf : x->gguf);
        }
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        enum found f = look_up(s, others[i].gguf, others[i].hf, &v);
        if (f == OTHER || (f == NUMBER && v != others[i].off))
            leave_out(m, s->hf ? others[i].hf : others[i].gguf);
    }
    settle(m, s);
}

int tern_model_load_recommended(tern_model *m, const struct tern_str *generation, tern_error *err)
{
    struct source s = {.gguf = tern_file_kind(m->file) == TERN_FILE_GGUF ? m->file : NULL};
    json_t *root = NULL;
    json_error_t e;
    tern_sampler_defaults(&m->recommended);
    if (!s.gguf && !generation->p)
        return 0;
    if (!s.gguf && (!(root = json_loadb(generation->p, generation->n, 0, &e)) || !json_is_object(root))) {
        json_decref(root);
        return tern_err_set(err, TERN_EFORMAT, "%s: generation_config.json is not a JSON object", m->path);
    }
    s.hf = root;
    read_settings(m, &s);
    json_decref(root);
    return 0;
}

unsigned tern_model_recommends(const tern_model *m, tern_sampler_params *p)
{
    const tern_sampler_params *r = &m->recommended;
    if (m->said & TERN_SAID_TEMPERATURE)
        p->temperature = r->temperature;
    if (m->said & TERN_SAID_TOP_K)
        p->top_k = r->top_k;
    if (m->said & TERN_SAID_TOP_P)
        p->top_p = r->top_p;
    if (m->said & TERN_SAID_MIN_P)
        p->min_p = r->min_p;
    if (m->said & TERN_SAID_REPETITION)
        p->repetition_penalty = r->repetition_penalty;
    if (m->said & TERN_SAID_LAST)
        p->penalty_last = r->penalty_last;
    return m->said;
}
