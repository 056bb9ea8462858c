/* From logits to a token.  Order: bias, penalties, what may not be picked, temperature, top-k, top-p, min-p, XTC, one
 * draw.
 *
 * Everything is a pure function of the logits, the accepted tokens and the seed: candidates are ordered by (logit
 * descending, id ascending) and all sums run in that order, so the same seed gives the same text on any thread count.
 *
 * A vocabulary is large and its probabilities are steep, so exponentials are computed of the likely tokens alone.  What
 * all others weigh together is bounded from above without any, one vector pass over the vocabulary; a draw or a cut
 * that this bound leaves open is made again with more tokens.  The result is that of computing all of them.
 *
 * Greedy picks, and what top-k comes first in, need the best alone, which a device may find (tern_sampler_enough). */
#include "run/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/fp16.h"
#include "base/mem.h"
#include "base/rng.h"

#define DEFAULT_LAST 64
#define FIRST_ROOM   4096 /* tokens of the window that are allocated from the beginning */

#define XTC_THRESHOLD 0.1f

#define BLOCK 64 /* entries of the vocabulary whose largest logit is known */
#define LANES 16

struct candidate {
    double weight;
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
    int32_t *counts;   /* [n_vocab] occurrences inside the window; NULL where nothing looks back */
    int32_t *said;     /* [n_vocab] occurrences in the reply; NULL where nothing looks at it alone */
    int32_t *distinct; /* [n_distinct] ids that occur there; room for n_vocab, touched as far as there are */
    int n_distinct;
    float *work;            /* [n_vocab] adjusted logits; touched only where something is adjusted */
    float *block_max;       /* [n_vocab / BLOCK, rounded up] */
    struct candidate *cand; /* [n_vocab], touched as far as there are candidates */
};

void tern_sampler_defaults(tern_sampler_params *p)
{
    *p = (tern_sampler_params){.top_p = 1, .xtc_threshold = XTC_THRESHOLD, .repetition_penalty = 1};
}

int tern_list_check(const char *name, const void *list, int n, tern_error *err)
{
    return list || n <= 0 ? 0 : tern_err_set(err, TERN_EINVAL, "%s: there are %d, and no list of them", name, n);
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
    TERN_TRY(check_range("xtc probability", p->xtc_probability, 0, 1, err));
    TERN_TRY(check_range("xtc threshold", p->xtc_threshold, 0, 1, err));
    TERN_TRY(check_range("repetition penalty", p->repetition_penalty, 0.01, 100, err));
    TERN_TRY(check_range("presence penalty", p->presence_penalty, -100, 100, err));
    TERN_TRY(check_range("frequency penalty", p->frequency_penalty, -100, 100, err));
    TERN_TRY(check_range("penalty window", p->penalty_last, -1, INT32_MAX, err));
    TERN_TRY(tern_list_check("logit bias", p->bias_ids, p->n_bias, err));
    TERN_TRY(tern_list_check("logit bias", p->bias_values, p->n_bias, err));
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

/* Do penalties look at the reply alone? */
static bool counts_reply(const tern_sampler *s)
{
    return s->p.penalise_reply && (s->p.presence_penalty != 0.0f || s->p.frequency_penalty != 0.0f);
}

/* At the last tokens? */
static bool looks_back(const tern_sampler *s)
{
    return s->p.repetition_penalty != 1.0f ||
           (!s->p.penalise_reply && (s->p.presence_penalty != 0.0f || s->p.frequency_penalty != 0.0f));
}

static bool penalised(const tern_sampler *s)
{
    return looks_back(s) || counts_reply(s);
}

int tern_sampler_new(tern_sampler **out, int n_vocab, const tern_sampler_params *p, tern_error *err)
{
    int rc = 0;
    tern_sampler *s = NULL;
    size_t n_bias = p->n_bias > 0 ? (size_t)p->n_bias : 0;
    *out = NULL;
    if (n_vocab < 1)
        TERN_FAIL(err, TERN_EINVAL, "a vocabulary of %d tokens has none to pick", n_vocab);
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
    if (counts_reply(s)) {
        TERN_TRY(tern_alloc(&s->said, (size_t)n_vocab, sizeof *s->said, err));
        TERN_TRY(tern_alloc(&s->distinct, (size_t)n_vocab, sizeof *s->distinct, err));
    }
    if (looks_back(s)) {
        TERN_TRY(tern_alloc(&s->counts, (size_t)n_vocab, sizeof *s->counts, err));
        TERN_TRY(tern_grow(&s->history, &s->cap_history, s->window < FIRST_ROOM ? s->window : FIRST_ROOM,
                           sizeof *s->history, err));
    }
    TERN_TRY(tern_alloc(&s->block_max, ((size_t)n_vocab + BLOCK - 1) / BLOCK, sizeof *s->block_max, err));
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
    tern_free(s->said);
    tern_free(s->distinct);
    tern_free(s->work);
    tern_free(s->block_max);
    tern_free(s->cand);
    tern_free(s);
}

void tern_sampler_prompt(tern_sampler *s, int32_t id)
{
    if (!s->counts || id < 0 || id >= s->n_vocab)
        return;
    if (s->n_history < s->window) {
        /* Beyond FIRST_ROOM, out of memory means that the window stops growing: the oldest tokens are forgotten
         * earlier. */
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

void tern_sampler_accept(tern_sampler *s, int32_t id)
{
    tern_sampler_prompt(s, id); /* what looks back sees no difference */
    if (!s->said || id < 0 || id >= s->n_vocab)
        return;
    if (!s->said[id])
        s->distinct[s->n_distinct++] = id;
    s->said[id]++;
}

static void penalise_last(tern_sampler *s)
{
    const float presence = s->said ? 0 : s->p.presence_penalty, frequency = s->said ? 0 : s->p.frequency_penalty;
    size_t n = s->n_history < s->window ? s->n_history : s->window;
    for (size_t i = 0; i < n; i++) {
        int32_t id = s->history[i];
        int32_t c = s->counts[id];
        if (c <= 0)
            continue; /* done: negated below */
        float x = s->work[id];
        x = x > 0 ? x / s->p.repetition_penalty : x * s->p.repetition_penalty;
        s->work[id] = x - presence - frequency * (float)c;
        s->counts[id] = -c;
    }
    for (size_t i = 0; i < n; i++)
        if (s->counts[s->history[i]] < 0)
            s->counts[s->history[i]] = -s->counts[s->history[i]];
}

static void penalise_reply(tern_sampler *s)
{
    for (int i = 0; i < s->n_distinct; i++) {
        const int32_t id = s->distinct[i];
        s->work[id] -= s->p.presence_penalty + s->p.frequency_penalty * (float)s->said[id];
    }
}

/* Ids that may not be picked: those that the mask lacks, those that are named. */
static void forbid(tern_sampler *s, const struct tern_choice_limits *l)
{
    for (int32_t i = 0; l->mask && i < s->n_vocab; i++)
        if (!(l->mask[i / 32] >> (i % 32) & 1))
            s->work[i] = -INFINITY;
    for (int i = 0; i < l->n_never; i++)
        s->work[l->never[i]] = -INFINITY;
}

static const float *adjust(tern_sampler *s, const float *logits, const struct tern_choice_limits *l)
{
    bool limited = l && (l->mask || l->n_never);
    if (!penalised(s) && s->p.n_bias <= 0 && !limited)
        return logits;
    memcpy(s->work, logits, (size_t)s->n_vocab * sizeof *logits);
    for (int i = 0; i < s->p.n_bias; i++)
        s->work[s->bias_ids[i]] += s->bias_values[i];
    if (s->counts)
        penalise_last(s);
    if (s->said)
        penalise_reply(s);
    if (limited)
        forbid(s, l);
    return s->work;
}

/* ---- likely tokens ----------------------------------------------------------------------------------------------- */

/* A block of logits; what the last one lacks is no candidate. */
static const float *block_at(const tern_sampler *s, const float *x, int block, float *spare)
{
    int n = s->n_vocab - block * BLOCK;
    if (n >= BLOCK)
        return x + block * BLOCK;
    for (int i = 0; i < BLOCK; i++)
        spare[i] = i < n ? x[block * BLOCK + i] : -INFINITY;
    return spare;
}

/* Largest of a block; what is no number does not count. */
static float largest(const float *x)
{
    float m[LANES];
    for (int j = 0; j < LANES; j++)
        m[j] = -INFINITY;
    for (int i = 0; i < BLOCK; i += LANES)
        for (int j = 0; j < LANES; j++)
            m[j] = x[i + j] > m[j] ? x[i + j] : m[j];
    float best = m[0];
    for (int j = 1; j < LANES; j++)
        best = m[j] > best ? m[j] : best;
    return best;
}

static int n_blocks(const tern_sampler *s)
{
    return (s->n_vocab + BLOCK - 1) / BLOCK;
}

/* The lowest id of the largest logit; fills block_max. */
static int32_t argmax(tern_sampler *s, const float *x)
{
    int best = 0;
    float spare[BLOCK];
    for (int b = 0; b < n_blocks(s); b++) {
        s->block_max[b] = largest(block_at(s, x, b, spare));
        if (s->block_max[b] > s->block_max[best])
            best = b;
    }
    for (int32_t i = best * BLOCK; i < s->n_vocab; i++)
        if (x[i] == s->block_max[best])
            return i;
    return s->n_vocab - 1; /* no number at all */
}

/* A token's weight beside the likeliest one. */
static double weight_of(const tern_sampler *s, float x, float max)
{
    return exp(((double)x - (double)max) / (double)s->p.temperature);
}

/* Candidates whose logit is at least `floor`, in the order of their ids; *sum: of their weights. */
static int collect(tern_sampler *s, const float *x, float floor, float max, double *sum)
{
    int n = 0;
    *sum = 0;
    for (int b = 0; b < n_blocks(s); b++) {
        if (!(s->block_max[b] >= floor))
            continue;
        for (int32_t i = b * BLOCK; i < s->n_vocab && i < (b + 1) * BLOCK; i++)
            if (x[i] >= floor) {
                const double w = weight_of(s, x[i], max);
                s->cand[n++] = (struct candidate){w, x[i], i};
                *sum += w;
            }
    }
    return n;
}

/* What a block's tokens below `floor` weigh, or up to 6.2 % more.  The bits of a float are a logarithm: reading 127 - y
 * as exponent and fraction gives 2^floor(-y) * (1 + fraction), never less than 2^-y.  Comparisons are those of
 * integers, which a compiler makes vectors of. */
static float block_below(const float *x, float floor, float max, float scale)
{
    const int32_t most = 0x42FC0000; /* 126 */
    float sum[LANES] = {0}, all = 0;
    for (int i = 0; i < BLOCK; i += LANES)
        for (int j = 0; j < LANES; j++) {
            int32_t y = (int32_t)(tern_f32_bits((max - x[i + j]) * scale) & INT32_MAX);
            y = y < most ? y : most;
            int32_t below = (int32_t)tern_f32_bits(x[i + j] - floor) >> 31;
            sum[j] += tern_bits_f32((uint32_t)(below & (int32_t)((127.0f - tern_bits_f32((uint32_t)y)) * 0x1p23f)));
        }
    for (int j = 0; j < LANES; j++)
        all += sum[j];
    return all;
}

struct bounds {
    double low, high;
};

static struct bounds weight_below(const tern_sampler *s, const float *x, float floor, float max)
{
    struct bounds w = {0, 0};
    float scale = 1.4426950f / s->p.temperature, spare[BLOCK];
    for (int b = 0; b < n_blocks(s); b++) {
        if (s->block_max[b] < floor && (s->block_max[b] - max) * scale < -50.0f)
            w.high += 0x1p-50 * BLOCK;
        else
            w.low += (double)block_below(block_at(s, x, b, spare), floor, max, scale);
    }
    w.high += w.low * 1.001; /* roundings */
    w.low = w.low > 1e-30 ? w.low * 0.94 : 0;
    return w;
}

/* How far below the largest logit candidates begin, in units of the temperature: first, and when that was too few. */
#define FIRST_DROP 8.0f
#define MOST_DROP  1024.0f /* what is further away weighs exactly 0 */

/* The tokens down to there, and how much all others weigh. */
static int likely(tern_sampler *s, const float *x, float max, float drop, double *sum, struct bounds *rest)
{
    float floor = drop < MOST_DROP ? max - drop * s->p.temperature : -INFINITY;
    int n = collect(s, x, floor, max, sum);
    *rest = n < s->n_vocab && drop < MOST_DROP ? weight_below(s, x, floor, max) : (struct bounds){0, 0};
    return n;
}

/* ---- draws ------------------------------------------------------------------------------------------------------- */

/* One draw among all tokens in the order of their ids.  Unlikely ones lie between the candidates, nobody looks where:
 * the candidate counts that is hit wherever they lie. */
static int32_t draw_all(tern_sampler *s, const float *x, float max)
{
    double u = tern_rng_f64(&s->rng);
    for (float drop = FIRST_DROP;; drop *= 2) {
        double sum, before = 0;
        struct bounds rest;
        int n = likely(s, x, max, drop, &sum, &rest), i = 0;
        double low = u * (sum + rest.low), high = u * (sum + rest.high);
        while (i < n - 1 && high >= before + s->cand[i].weight)
            before += s->cand[i++].weight;
        if ((high < before + s->cand[i].weight && before + rest.high <= low) || rest.high == 0) {
            while (i > 0 && !(s->cand[i].weight > 0))
                i--;
            return s->cand[i].id;
        }
    }
}

static bool before(const struct candidate *a, const struct candidate *b)
{
    return a->logit != b->logit ? a->logit > b->logit : a->id < b->id;
}

static void sink(struct candidate *heap, int n, int i)
{
    struct candidate c = heap[i];
    for (int child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && before(&heap[child + 1], &heap[child]);
        if (!before(&heap[child], &c))
            break;
        heap[i] = heap[child];
    }
    heap[i] = c;
}

/* Candidates in order of likelihood, sorted no further than somebody looks: a heap in front, what was taken at the end.
 */
struct ranking {
    struct candidate *cand;
    int n, taken;
};

static struct ranking rank_candidates(struct candidate *cand, int n)
{
    for (int i = n / 2 - 1; i >= 0; i--)
        sink(cand, n, i);
    return (struct ranking){.cand = cand, .n = n};
}

/* The r-th likeliest, r < n. */
static const struct candidate *ranked(struct ranking *k, int r)
{
    while (k->taken <= r) {
        int last = k->n - 1 - k->taken++;
        struct candidate top = k->cand[0];
        k->cand[0] = k->cand[last];
        k->cand[last] = top;
        sink(k->cand, last, 0);
    }
    return &k->cand[k->n - 1 - r];
}

/* How many of the likeliest n stay: top-p of a mass between low and high, min-p.  -1: it depends on the mass, or more
 * than n might stay. */
static int count_kept(const tern_sampler *s, struct ranking *k, int n, bool all, double low, double high, double *kept)
{
    *kept = 0;
    for (int m = 0; m < n; m++) {
        double w = ranked(k, m)->weight;
        if (m > 0 && w < (double)s->p.min_p)
            return m;
        if (m > 0 && s->p.top_p < 1.0f && *kept >= (double)s->p.top_p * low)
            return *kept >= (double)s->p.top_p * high ? m : -1;
        *kept += w;
    }
    return all ? n : -1;
}

/* Is it a top choice?  What cannot be picked is none, whatever the threshold. */
static bool at_least(const struct candidate *c, double weight)
{
    return c->weight > 0 && c->weight >= weight;
}

/* XTC: how many of the likeliest m, which weigh `kept` together, go. */
static int count_excluded(const tern_sampler *s, struct ranking *k, int m, double kept)
{
    int n = 0;
    while (n < m && at_least(ranked(k, n), (double)s->p.xtc_threshold * kept))
        n++;
    return n > 1 ? n - 1 : 0;
}

/* One of the likeliest [from, m). */
static int32_t draw_ranked(tern_sampler *s, struct ranking *k, int from, int m, double kept)
{
    for (int i = 0; i < from; i++)
        kept -= ranked(k, i)->weight;
    double u = tern_rng_f64(&s->rng) * kept;
    for (int i = from; i < m - 1; i++)
        if ((u -= ranked(k, i)->weight) < 0)
            return ranked(k, i)->id;
    return ranked(k, m - 1)->id;
}

/* After top-k, which leaves n: a function of those alone, in the order of likelihood. */
static int32_t draw_top(tern_sampler *s, struct ranking *r, int n, bool exclude)
{
    double sum = 0, kept;
    for (int i = 0; i < n; i++)
        sum += ranked(r, i)->weight;
    const int m = count_kept(s, r, n, true, sum, sum, &kept);
    return draw_ranked(s, r, exclude ? count_excluded(s, r, m, kept) : 0, m, kept);
}

/* A floor under the likeliest k, at or above the one given.  Each block that reaches a logit has a token that does, so
 * the largest logits of blocks bound those of tokens from below. */
static float raise_floor(tern_sampler *s, float floor, int k)
{
    int n = 0;
    for (int b = 0; b < n_blocks(s); b++)
        if (s->block_max[b] >= floor)
            s->cand[n++] = (struct candidate){.logit = s->block_max[b], .id = b};
    if (n < k)
        return floor;
    struct ranking r = rank_candidates(s->cand, n);
    return ranked(&r, k - 1)->logit;
}

/* With cut-offs.  top-p is measured on what top-k left; the first candidate always stays. */
static int32_t draw_cut(tern_sampler *s, const float *x, float max, bool exclude)
{
    int k = s->p.top_k > 0 && s->p.top_k < s->n_vocab ? s->p.top_k : 0;
    for (float drop = FIRST_DROP;; drop *= 2) {
        double sum, kept;
        struct bounds rest = {0, 0};
        float floor = drop < MOST_DROP ? max - drop * s->p.temperature : -INFINITY;
        if (k)
            floor = raise_floor(s, floor, k);
        int n = s->p.top_p < 1.0f && !k ? likely(s, x, max, drop, &sum, &rest) : collect(s, x, floor, max, &sum);
        bool all = n == s->n_vocab || drop >= MOST_DROP;
        if (n < k && !all)
            continue;
        struct ranking r = rank_candidates(s->cand, n);
        if (k)
            return draw_top(s, &r, n < k ? n : k, exclude);
        int m = count_kept(s, &r, n, all, sum + rest.low, sum + rest.high, &kept);
        if (m > 0)
            return draw_ranked(s, &r, exclude ? count_excluded(s, &r, m, kept) : 0, m, kept);
    }
}

/* XTC without cut-offs: the logits less those that go, and their largest. */
static const float *without_top(tern_sampler *s, const float *x, float *max)
{
    for (float drop = FIRST_DROP;; drop *= 2) {
        double sum;
        struct bounds rest;
        int n = likely(s, x, *max, drop, &sum, &rest), n_sure = 0, n_may = 0;
        const double low = (double)s->p.xtc_threshold * (sum + rest.low);
        const double high = (double)s->p.xtc_threshold * (sum + rest.high);
        const struct candidate *last = NULL; /* stays */
        for (int i = 0; i < n; i++) {
            n_sure += at_least(&s->cand[i], high);
            n_may += at_least(&s->cand[i], low);
            if (at_least(&s->cand[i], high) && (!last || before(last, &s->cand[i])))
                last = &s->cand[i];
        }
        if (rest.high > 0 && (n_sure != n_may || exp(-(double)drop) >= low))
            continue; /* it depends on what the others weigh, or one of them belongs to these */
        if (n_sure < 2)
            return x;
        if (x != s->work)
            memcpy(s->work, x, (size_t)s->n_vocab * sizeof *x);
        for (int i = 0; i < n; i++)
            if (at_least(&s->cand[i], high) && &s->cand[i] != last)
                s->work[s->cand[i].id] = -INFINITY;
        *max = s->work[argmax(s, s->work)];
        return s->work;
    }
}

/* XTC: this time?  The first number of a pick, if it asks for one. */
static bool excludes(tern_sampler *s)
{
    return s->p.xtc_probability > 0 && tern_rng_f64(&s->rng) < (double)s->p.xtc_probability;
}

int32_t tern_sampler_pick_within(tern_sampler *s, const float *logits, const struct tern_choice_limits *limits)
{
    const float *x = adjust(s, logits, limits);
    int32_t best = argmax(s, x);
    float max = x[best];
    if (s->p.temperature == 0.0f || !isfinite(max))
        return best;
    const bool exclude = excludes(s);
    if (s->p.top_k != 0 || s->p.top_p < 1.0f || s->p.min_p != 0.0f)
        return draw_cut(s, x, max, exclude);
    if (exclude)
        x = without_top(s, x, &max);
    return draw_all(s, x, max);
}

int32_t tern_sampler_pick(tern_sampler *s, const float *logits)
{
    return tern_sampler_pick_within(s, logits, NULL);
}

/* ---- the best alone ---------------------------------------------------------------------------------------------- */

int tern_sampler_enough(const tern_sampler *s)
{
    if (penalised(s) || s->p.n_bias > 0)
        return 0;
    if (s->p.temperature == 0.0f)
        return 1;
    return s->p.top_k <= TERN_BEST && s->p.top_k < s->n_vocab ? s->p.top_k : 0;
}

int32_t tern_sampler_pick_best(tern_sampler *s, const float *best, const int32_t *ids, int n)
{
    while (n > 0 && ids[n - 1] < 0)
        n--;
    if (!n)
        return s->n_vocab - 1; /* no number at all */
    if (s->p.temperature == 0.0f || !isfinite(best[0]))
        return ids[0];
    const bool exclude = excludes(s);
    n = n < s->p.top_k ? n : s->p.top_k;
    for (int i = 0; i < n; i++)
        s->cand[n - 1 - i] = (struct candidate){weight_of(s, best[i], best[0]), best[i], ids[i]};
    return draw_top(s, &(struct ranking){.cand = s->cand, .n = n, .taken = n}, n, exclude);
}
