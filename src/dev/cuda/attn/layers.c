/* Layers as kernels see them, and the constants that they point to: signs, conditioning, angles. */
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "dev/cuda/attn/state.h"

/* Constants are laid out twice: first to learn how much there is, then for good. */
struct writer {
    uint8_t *host; /* NULL: only measuring */
    tern_cu_address base;
    size_t used;
    float *freq; /* [n_freq] frequencies of pairs, each once */
    int n_freq, max_pages;
    tern_cu_address steps, angles;
};

static tern_cu_address put(struct writer *w, const void *from, size_t bytes)
{
    const size_t at = w->used;
    w->used = tern_round_up(at + bytes, 64);
    if (w->host && from)
        memcpy(w->host + at, from, bytes);
    return w->base + at;
}

static int freq_number(const struct writer *w, float freq)
{
    int i = 0;
    while (i < w->n_freq && w->freq[i] != freq)
        i++;
    return i;
}

/* cos and sin as kv_cond.c computes them, for encoders that must write the same bytes. */
static void put_angles(struct writer *w)
{
    const size_t n = (size_t)w->n_freq, pages = (size_t)w->max_pages;
    double *steps, *at;
    w->steps = put(w, NULL, n * 2 * sizeof *steps);
    w->angles = put(w, NULL, n * pages * 2 * sizeof *at);
    if (!w->host)
        return;
    steps = (double *)(void *)(w->host + (w->steps - w->base));
    at = (double *)(void *)(w->host + (w->angles - w->base));
    for (size_t i = 0; i < n; i++) {
        const double freq = (double)w->freq[i];
        steps[2 * i] = cos(freq);
        steps[2 * i + 1] = sin(freq);
        for (size_t p = 0; p < pages; p++) {
            *at++ = cos(freq * (int)(p * TERN_PAGE));
            *at++ = sin(freq * (int)(p * TERN_PAGE));
        }
    }
}

static tern_cu_address put_cond(struct writer *w, const struct tern_kv_cond *cond, int n_heads, int dim)
{
    const size_t bytes = (size_t)dim * sizeof(float);
    const tern_cu_address to = put(w, NULL, (size_t)n_heads * sizeof(struct tern_cuda_cond));
    for (int h = 0; h < n_heads; h++) {
        const struct tern_kv_cond *from = &cond[h];
        struct tern_cuda_cond c = {.n_pairs = from->n_pairs};
        c.mean = put(w, from->mean, bytes);
        c.scale = put(w, from->scale, bytes);
        c.unscale = put(w, from->unscale, bytes);
        c.turns = put(w, from->turns, 2 * (size_t)from->n_pairs * sizeof from->turns[0]);
        for (int i = 0; i < from->n_pairs; i++) {
            const struct tern_kv_pair *p = &from->pairs[i];
            c.pairs[i].a = p->a;
            c.pairs[i].b = p->b;
            c.pairs[i].freq = freq_number(w, p->freq);
            c.pairs[i].re = p->re;
            c.pairs[i].im = p->im;
        }
        if (w->host)
            memcpy(w->host + (to - w->base) + (size_t)h * sizeof c, &c, sizeof c);
    }
    return to;
}

static int form_of(const struct tern_kv_codec *c)
{
    if (c->raw)
        return c->bits == 32 ? TERN_CUDA_F32 : strcmp(c->name, "bf16") == 0 ? TERN_CUDA_BF16 : TERN_CUDA_F16;
    if (c == tern_kv_codec_fp4() || c == tern_kv_codec_find("fp8", 3))
        return TERN_CUDA_FLOATS;
    return tern_kv_table(c) ? TERN_CUDA_CODES : c->rotated ? TERN_CUDA_LEVELS : TERN_CUDA_AFFINE;
}

static void put_tables(struct tern_cuda_side *to, const struct tern_kv_codec *codec)
{
    const struct tern_kvq_table *tab = tern_kv_table(codec);
    const int n = codec->bits < 8 ? 1 << codec->bits : 0;
    if (tab) {
        to->trellis = tab->trellis;
        to->n_prescale = tab->n_prescale;
        to->unit = tab->unit;
        memcpy(to->entry, tab->entry, sizeof to->entry);
        memcpy(to->b, tab->b, sizeof to->b);
        memcpy(to->c, tab->c, sizeof to->c);
        for (int k = 0; k + 1 < n && !tab->trellis; k++)
            to->mid[k] = 0.5f * (float)(tab->entry[k] + tab->entry[k + 1]) * tab->unit;
    }
    for (int k = 0; k < n && to->form == TERN_CUDA_LEVELS; k++) {
        to->level[k] = TERN_KV_LEVELS(codec->bits)[k];
        to->mid[k] = k + 1 < n ? (TERN_KV_LEVELS(codec->bits)[k] + TERN_KV_LEVELS(codec->bits)[k + 1]) * 0.5f : 0;
    }
}

/* The matrix across the runs of a rotation, [parts][parts] as its columns come out of the rotation itself: of 16 dims
 * a run, whose transform of 4 * (1, 0, 0 ..) is all 1. */
static tern_cu_address put_across(struct writer *w, int parts)
{
    enum { RUN = 16, MOST = 7 };
    float x[RUN * MOST] __attribute__((aligned(64))), sign[RUN * MOST] __attribute__((aligned(64))), m[MOST * MOST];
    for (int r = 0; r < parts; r++) {
        for (int i = 0; i < RUN * parts; i++) {
            x[i] = i == RUN * r ? 4.0f : 0.0f;
            sign[i] = 1;
        }
        tern_k.kvq.rotate(x, sign, RUN * parts, 0);
        for (int f = 0; f < parts; f++)
            m[f * parts + r] = x[RUN * f];
    }
    return put(w, m, (size_t)(parts * parts) * sizeof *m);
}

static struct tern_cuda_side side_of(struct writer *w, const struct tern_kv_side *from, int n_heads)
{
    struct tern_cuda_side to;
    memset(&to, 0, sizeof to);
    const int run = from->dim & -from->dim, parts = run ? from->dim / run : 0;
    to.form = form_of(from->codec);
    to.bits = from->codec->bits;
    to.dim = from->dim;
    to.key = from->key;
    to.raw32 = from->raw32;
    to.rotated = from->codec->rotated;
    to.run = run;
    to.parts = parts;
    to.norm = run ? (float)(1.0 / sqrt((double)run)) : 0;
    put_tables(&to, from->codec);
    if (to.rotated && run) {
        to.sign = put(w, from->sign, (size_t)from->dim * sizeof(float));
        if (parts > 1)
            to.across = put_across(w, parts);
    }
    if (from->cond && to.form == TERN_CUDA_CODES)
        to.cond = put_cond(w, from->cond, n_heads, from->dim);
    to.steps = w->steps;
    to.angles = w->angles;
    to.max_pages = w->max_pages;
    return to;
}

static struct tern_cuda_layer layer_of(struct writer *w, const struct tern_kv_layer *from, int group)
{
    struct tern_cuda_layer to;
    memset(&to, 0, sizeof to);
    to.k = side_of(w, &from->k, from->n_heads);
    to.v = side_of(w, &from->v, from->n_heads);
    to.n_heads = from->n_heads;
    to.latent = from->latent;
    to.window = from->reach.window;
    to.chunked = from->reach.chunked;
    to.first = from->first;
    to.recent = from->recent;
    to.ring = from->ring;
    to.group = group;
    to.k_head_off = from->k_head_off;
    to.v_head_off = from->v_head_off;
    to.k_off = from->k_off;
    to.v_off = from->v_off;
    to.head_bytes = from->head_bytes;
    to.layer_off = from->layer_off;
    to.tile_v_off = from->tile_v_off;
    to.tile_bytes = from->tile_bytes;
    to.tile_layer_off = from->tile_layer_off;
    to.sink_v_off = from->sink_v_off;
    to.sink_bytes = from->sink_bytes;
    to.sink_layer_off = from->sink_layer_off;
    return to;
}

static void lay_out(struct tern_cuda_attn *t, struct writer *w, const struct tern_dev_limits *l)
{
    w->used = 0;
    put_angles(w);
    for (int c = 0; c < t->n_caches; c++)
        for (int i = 0; i < t->n_spans; i++)
            if (l->caches[c].group_of[i] >= 0)
                t->layers[c * t->n_spans + i] = layer_of(w, &l->caches[c].layers[i], l->caches[c].group_of[i]);
}

/* Heads share frequencies, and layers too. */
static int find_freqs(struct writer *w, const struct tern_dev_limits *l, tern_error *err)
{
    int rc = 0;
    size_t cap = 0;
    for (int c = 0; c < l->n_caches; c++)
        for (int i = 0; i < l->caches[c].n_layers; i++) {
            const struct tern_kv_layer *kv = &l->caches[c].layers[i];
            for (int h = 0; l->caches[c].group_of[i] >= 0 && kv->k.cond && h < kv->n_heads; h++)
                for (int p = 0; p < kv->k.cond[h].n_pairs; p++) {
                    const float freq = kv->k.cond[h].pairs[p].freq;
                    if (freq_number(w, freq) < w->n_freq)
                        continue;
                    TERN_TRY(tern_grow(&w->freq, &cap, (size_t)w->n_freq + 1, sizeof *w->freq, err));
                    w->freq[w->n_freq++] = freq;
                }
        }
out:
    return rc;
}

int tern_cuda_attn_layers(struct tern_cuda *d, const struct tern_dev_limits *l, tern_error *err)
{
    int rc = 0;
    struct tern_cuda_attn *t = d->attn;
    struct writer w = {.max_pages = l->max_pages};
    TERN_TRY(find_freqs(&w, l, err));
    lay_out(t, &w, l);
    if (!w.used)
        goto out;
    TERN_TRY(tern_cuda_take(d, &t->constants, w.used, err));
    TERN_TRY(tern_alloc(&w.host, w.used, 1, err));
    w.base = t->constants;
    lay_out(t, &w, l);
    TERN_TRY(tern_cu_error(tern_cu.cuMemcpyHtoDAsync_v2(t->constants, w.host, w.used, d->stream), "copying to the card",
                           err));
    TERN_TRY(tern_cu_error(tern_cu.cuStreamSynchronize(d->stream), "copying to the card", err));
out:
    tern_free(w.host);
    tern_free(w.freq);
    return rc;
}
