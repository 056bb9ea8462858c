/* From logits to a token.  Order: bias, penalties, temperature, top-k, top-p, min-p, one draw.
 *
 * Everything is a pure function of the logits, the accepted tokens and the seed: candidates are ordered by (logit
 * descending, id ascending) and all sums run in that order, so the same seed gives the same text on any thread count.
 */
#include "run/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/rng.h"

#define DEFAULT_LAST 64

struct candidate {
    float logit;
    int32_t id;
};

struct tern_sampler {
    tern_sampler_params p;
    int n_vocab;
    struct tern_rng rng;
    int32_t *bias_ids;
    float *bias_values;
    int32_t *history; /* ring of the last `window` accepted ids; grows for window < 0 */
    size_t n_history, cap_history, window;
    int32_t *counts;        /* [n_vocab] occurrences inside the window */
    float *work;            /* [n_vocab] adjusted logits */
    struct candidate *cand; /* [n_vocab] */
};

void tern_sampler_defaults(tern_sampler_params *p)
{
    *p = (tern_sampler_params){.top_p = 1, .repetition_penalty = 1};
}

static int check_range(const char *name, double v, double lo, double hi, tern_error *err)
{
    if (v >= lo && v <= hi)
        return 0;
    return tern_err_set(err, TERN_EINVAL, "%s = %g is outside %g..%g", name, v, lo, hi);
}

static int check_params(const tern_sampler_params *p, int n_vocab, tern_error *err)
{
    int rc = 0;
    TERN_TRY(check_range("temperature", p->temperature, 0, 100, err));
    TERN_TRY(check_range("top-k", p->top_k, 0, INT32_MAX, err));
    TERN_TRY(check_range("top-p", p->top_p, 0, 1, err));
    TERN_TRY(check_range("min-p", p->min_p, 0, 1, err));
    TERN_TRY(check_range("repetition penalty", p->repetition_penalty, 0.01, 100, err));
    TERN_TRY(check_range("presence penalty", p->presence_penalty, -100, 100, err));
    TERN_TRY(check_range("frequency penalty", p->frequency_penalty, -100, 100, err));
    TERN_TRY(check_range("penalty window", p->penalty_last, -1, INT32_MAX, err));
    for (int i = 0; i < p->n_bias; i++) {
        if (p->bias_ids[i] < 0 || p->bias_ids[i] >= n_vocab)
            TERN_FAIL(err, TERN_EINVAL, "logit bias: token %d is outside the vocabulary of %d", p->bias_ids[i],
                      n_vocab);
        if (isnan(p->bias_values[i]))
            TERN_FAIL(err, TERN_EINVAL, "logit bias: the value for token %d is not a number", p->bias_ids[i]);
    }
out:
    return rc;
}

int tern_sampler_new(tern_sampler **out, int n_vocab, const tern_sampler_params *p, tern_error *err)
{
    int rc = 0;
    tern_sampler *s = NULL;
    size_t n_bias = p->n_bias > 0 ? (size_t)p->n_bias : 0;
    *out = NULL;
    TERN_TRY(check_params(p, n_vocab, err));
    TERN_TRY(tern_alloc(&s, 1, sizeof *s, err));
    s->p = *p;
    s->n_vocab = n_vocab;
    s->rng.state = p->seed;
    s->window = p->penalty_last < 0 ? SIZE_MAX : p->penalty_last ? (size_t)p->penalty_last : DEFAULT_LAST;
    TERN_TRY(tern_alloc(&s->bias_ids, n_bias, sizeof *s->bias_ids, err));
    TERN_TRY(tern_alloc(&s->bias_values, n_bias, sizeof *s->bias_values, err));
    if (n_bias) {
        memcpy(s->bias_ids, p->bias_ids, n_bias * sizeof *s->bias_ids);
        memcpy(s->bias_values, p->bias_values, n_bias * sizeof *s->bias_values);
    }
    TERN_TRY(tern_alloc(&s->counts, (size_t)n_vocab, sizeof *s->counts, err));
    TERN_TRY(tern_alloc(&s->work, (size_t)n_vocab, sizeof *s->work, err));
    TERN_TRY(tern_alloc(&s->cand, (size_t)n_vocab, sizeof *s->cand, err));
    *out = s;
    s = NULL;
out:
    tern_sampler_free(s);
    return rc;
}

void tern_sampler_free(tern_sampler *s)
{
    if (!s)
        return;
    tern_free(s->bias_ids);
    tern_free(s->bias_values);
    tern_free(s->history);
    tern_free(s->counts);
    tern_free(s->work);
    tern_free(s->cand);
    tern_free(s);
}

static bool penalised(const tern_sampler *s)
{
    return s->p.repetition_penalty != 1.0f || s->p.presence_penalty != 0.0f || s->p.frequency_penalty != 0.0f;
}

void tern_sampler_accept(tern_sampler *s, int32_t id)
{
    if (!penalised(s) || id < 0 || id >= s->n_vocab)
        return;
    if (s->n_history < s->window) {
        /* Out of memory here only means that the window stops growing: the oldest tokens are forgotten earlier. */
        if (tern_grow(&s->history, &s->cap_history, s->n_history + 1, sizeof *s->history, NULL) < 0)
            s->window = s->n_history;
    }
    if (s->window == 0)
        return;
    if (s->n_history >= s->window)
        s->counts[s->history[s->n_history % s->window]]--;
    s->history[s->n_history % s->window] = id;
    s->n_history++;
    s->counts[id]++;
}

static void apply_penalties(tern_sampler *s)
{
    size_t n = s->n_history < s->window ? s->n_history : s->window;
    for (size_t i = 0; i < n; i++) {
        int32_t id = s->history[i];
        int32_t c = s->counts[id];
        if (c <= 0)
            continue; /* done: negated below */
        float x = s->work[id];
        x = x > 0 ? x / s->p.repetition_penalty : x * s->p.repetition_penalty;
        s->work[id] = x - s->p.presence_penalty - s->p.frequency_penalty * (float)c;
        s->counts[id] = -c;
    }
    for (size_t i = 0; i < n; i++)
        if (s->counts[s->history[i]] < 0)
            s->counts[s->history[i]] = -s->counts[s->history[i]];
}

static const float *adjust(tern_sampler *s, const float *logits)
{
    if (!penalised(s) && s->p.n_bias <= 0)
        return logits;
    memcpy(s->work, logits, (size_t)s->n_vocab * sizeof *logits);
    for (int i = 0; i < s->p.n_bias; i++)
        s->work[s->bias_ids[i]] += s->bias_values[i];
    if (penalised(s))
        apply_penalties(s);
    return s->work;
}

static int32_t argmax(const float *x, int n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best] || isnan(x[best]))
            best = i;
    return best;
}

static int by_logit(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Candidates whose logit is at least `floor`, sorted. */
static int collect(tern_sampler *s, const float *x, float floor)
{
    int n = 0;
    for (int32_t i = 0; i < s->n_vocab; i++)
        if (x[i] >= floor)
            s->cand[n++] = (struct candidate){x[i], i};
    qsort(s->cand, (size_t)n, sizeof *s->cand, by_logit);
    return n;
}

static double weight(const tern_sampler *s, float logit, float max)
{
    return exp(((double)logit - (double)max) / (double)s->p.temperature);
}

/* The sorted candidates that the cut-offs can reach.  A full sort of a large vocabulary would cost more than the decode
 * step, so the floor is lowered until what lies above it satisfies top-k or top-p. */
static int shortlist(tern_sampler *s, const float *x, float max, double total)
{
    double need = s->p.top_p < 1.0f ? (double)s->p.top_p * total : total;
    int k = s->p.top_k > 0 && s->p.top_k < s->n_vocab ? s->p.top_k : s->n_vocab;
    for (float drop = 4.0f * s->p.temperature;; drop *= 2) {
        int n = collect(s, x, max - drop);
        double sum = 0;
        for (int i = 0; i < n; i++)
            sum += weight(s, s->cand[i].logit, max);
        bool min_p_done = s->p.min_p > 0 && exp(-(double)drop / (double)s->p.temperature) < (double)s->p.min_p;
        if (n >= k || n == s->n_vocab || (s->p.top_p < 1.0f && sum >= need) || min_p_done || drop > 1e6f)
            return n < k ? n : k;
    }
}

static int32_t draw_all(tern_sampler *s, const float *x, float max, double total)
{
    double u = tern_rng_f64(&s->rng) * total;
    int32_t last = argmax(x, s->n_vocab);
    for (int32_t i = 0; i < s->n_vocab; i++) {
        double w = weight(s, x[i], max);
        if (!(w > 0))
            continue;
        last = i;
        if ((u -= w) < 0)
            break;
    }
    return last;
}

int32_t tern_sampler_pick(tern_sampler *s, const float *logits)
{
    const float *x = adjust(s, logits);
    int32_t best = argmax(x, s->n_vocab);
    float max = x[best];
    if (s->p.temperature == 0.0f || !isfinite(max))
        return best;
    double total = 0;
    for (int i = 0; i < s->n_vocab; i++)
        total += isnan(x[i]) ? 0 : weight(s, x[i], max);
    if (s->p.top_k == 0 && s->p.top_p >= 1.0f && s->p.min_p == 0.0f)
        return draw_all(s, x, max, total);
    int n = shortlist(s, x, max, total);
    double kept = 0, limit = 0;
    for (int i = 0; i < n; i++)
        limit += weight(s, s->cand[i].logit, max);
    /* top-p is measured on what top-k left; the first candidate always stays. */
    double mass = (s->p.top_k > 0 ? limit : total) * (double)s->p.top_p;
    int m = 0;
    while (m < n) {
        double w = weight(s, s->cand[m].logit, max);
        if (m > 0 && (w < (double)s->p.min_p || (s->p.top_p < 1.0f && kept >= mass)))
            break;
        kept += w;
        m++;
    }
    double u = tern_rng_f64(&s->rng) * kept;
    for (int i = 0; i < m - 1; i++)
        if ((u -= weight(s, s->cand[i].logit, max)) < 0)
            return s->cand[i].id;
    return s->cand[m - 1].id;
}
