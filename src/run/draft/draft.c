/* How many guesses a step verifies, and what came of them. */
#include "run/draft/draft.h"

#include <string.h>
#include "base/mem.h"

#define USUAL      15   /* guesses of one reply in a step, with its own token a multiple of what kernels take at once */
#define USUAL_KEPT 4    /* where each costs a recurrent state */
#define GAIN       1.05 /* drafts have to promise so many times the tokens per second */
#define FORGET     .97  /* of what was seen of a class of matches, with each guess that turns out */

struct tern_drafter {
    tern_engine *e;
    int most;
    bool always; /* else as many guesses as pay */
    struct tern_price price;
    int *order; /* [chunk] whose guess is the next best one */
    tern_draft_source *source;
    void *user;
};

/* ---- parameters ---------------------------------------------------------------------------------------------------
 */

/* 0: no drafts. */
static int read_mode(const char *draft, bool *always, tern_error *err)
{
    if (!draft || strcmp(draft, "off") == 0)
        return 0;
    *always = strcmp(draft, "ngram") == 0;
    if (*always || strcmp(draft, "auto") == 0)
        return 1;
    return tern_err_set(err, TERN_EINVAL, "draft = \"%.40s\" is none of off, auto, ngram", draft);
}

static int most_guesses(const tern_engine_params *p, bool recurrent)
{
    const int most = p->draft_most ? p->draft_most : recurrent ? USUAL_KEPT : USUAL;
    return recurrent && most > TERN_KV_MAX_DRAFTS ? TERN_KV_MAX_DRAFTS : most;
}

int tern_draft_rows(const tern_engine_params *p, bool recurrent, int *drafts, tern_error *err)
{
    bool always;
    const int mode = read_mode(p->draft, &always, err);
    *drafts = p->drafts;
    if (mode < 0)
        return mode;
    if (p->draft_most < 0 || p->draft_most > TERN_DRAFT_MOST)
        return tern_err_set(err, TERN_EINVAL, "guesses per step = %d is outside 1..%d", p->draft_most, TERN_DRAFT_MOST);
    int n = mode ? most_guesses(p, recurrent) : 0;
    n = n < TERN_KV_MAX_DRAFTS ? n : TERN_KV_MAX_DRAFTS;
    *drafts = n > p->drafts ? n : p->drafts;
    return 0;
}

int tern_drafter_open(struct tern_drafter **out, tern_engine *e, const tern_engine_params *p, tern_error *err)
{
    int rc = 0;
    struct tern_drafter *x = NULL;
    bool always, recurrent = false;
    *out = NULL;
    rc = read_mode(p->draft, &always, err);
    if (rc <= 0)
        return rc;
    for (int i = 0; i < e->n_caches; i++)
        recurrent |= e->caches[i].layout->state_bytes > 0;
    TERN_TRY(tern_alloc(&x, 1, sizeof *x, err));
    x->e = e;
    x->always = always;
    x->most = most_guesses(p, recurrent);
    TERN_TRY(tern_alloc(&x->order, (size_t)e->chunk, sizeof *x->order, err));
    *out = x;
    x = NULL;
    rc = 0;
out:
    tern_drafter_close(x);
    return rc;
}

void tern_drafter_close(struct tern_drafter *x)
{
    if (!x)
        return;
    tern_free(x->order);
    tern_free(x);
}

void tern_drafter_set_source(struct tern_drafter *x, tern_draft_source *source, void *user)
{
    x->source = source;
    x->user = user;
    x->always = true;
}

/* ---- what becomes of guesses --------------------------------------------------------------------------------------
 */

/* Matches of 2, 3, 4, 5-6, 7-8, 9-12, 13-20 and more tokens. */
static int class_of(int match)
{
    static const int last[TERN_DRAFT_CLASSES - 1] = {2, 3, 4, 6, 8, 12, 20};
    int c = 0;
    while (c < TERN_DRAFT_CLASSES - 1 && match > last[c])
        c++;
    return c;
}

/* Is the guess behind so long a match right?  Before much is known, as texts usually have it; but a longer match is no
 * worse than shorter ones have turned out to be. */
static double chance_of(const struct tern_draft *d, int match)
{
    static const double usual[TERN_DRAFT_CLASSES] = {.1, .2, .3, .45, .6, .7, .8, .9};
    const double weight = 3;
    const int c = class_of(match);
    double best = (d->right[c] + weight * usual[c]) / (d->seen[c] + weight);
    for (int i = 0; i < c; i++) {
        const double p = d->right[i] / (d->seen[i] + weight);
        best = p > best ? p : best;
    }
    return best;
}

static void count(struct tern_draft *d, int match, bool right)
{
    const int c = class_of(match);
    d->seen[c] = FORGET * d->seen[c] + 1;
    d->right[c] = FORGET * d->right[c] + right;
}

/* ---- planning -----------------------------------------------------------------------------------------------------
 */

void tern_draft_open(struct tern_draft *d, struct tern_drafter *x, struct tern_gen *g)
{
    *d = (struct tern_draft){.by = x, .gen = g};
}

void tern_draft_close(struct tern_draft *d)
{
    tern_lookup_clear(&d->lookup);
}

/* Guesses that a step may verify: the reply's last token is picked from a row, the context has to hold all of them, and
 * a page of rows is taken back for nothing. */
static int room_for(const struct tern_draft *d)
{
    const struct tern_gen *g = d->gen;
    int most = d->by->most, ctx = d->by->e->ctx - tern_seq_length(d->seq) - 1;
    if (g->phase != TERN_GEN_APPEND)
        return 0;
    most = ctx < most ? ctx : most;
    if (g->p.max_tokens >= 0 && g->p.max_tokens - g->n_generated - 1 < most)
        most = g->p.max_tokens - g->n_generated - 1;
    return most < d->by->e->chunk - 1 ? most : d->by->e->chunk - 1;
}

/* Without memory for the tables nothing is guessed. */
static int look_up(struct tern_draft *d, int most)
{
    struct tern_lookup *l = &d->lookup;
    const int32_t *tokens = tern_seq_tokens(d->seq);
    const int n = tern_seq_length(d->seq);
    if (l->n < n && tern_lookup_add(l, tokens + l->n, n - l->n, NULL) < 0)
        return 0;
    if (l->n == n && tern_lookup_add(l, d->rows, 1, NULL) < 0)
        return 0;
    return tern_lookup_guess(l, d->rows + 1, most, &d->match);
}

static int ask_source(struct tern_draft *d, int most)
{
    struct tern_drafter *x = d->by;
    int32_t *tokens;
    const int n = tern_seq_length(d->seq);
    if (tern_alloc(&tokens, (size_t)n + 1, sizeof *tokens, NULL) < 0)
        return 0;
    memcpy(tokens, tern_seq_tokens(d->seq), (size_t)n * sizeof *tokens);
    tokens[n] = d->rows[0];
    const int got = x->source(x->user, tokens, n + 1, d->rows + 1, most);
    tern_free(tokens);
    return got;
}

static void guess(struct tern_draft *d)
{
    const int most = d->by ? room_for(d) : 0;
    d->rows[0] = d->gen->picked;
    d->n = 1;
    d->at = d->n_guesses = d->match = 0;
    if (most > 0)
        d->n_guesses = d->by->source ? ask_source(d, most) : look_up(d, most);
    d->chance = d->n_guesses ? chance_of(d, d->match) : 0;
}

/* The reply whose next guess is the likeliest to count; -1: there are no more. */
static int likeliest(struct tern_draft *const *d, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (d[i]->n <= d[i]->n_guesses && (best < 0 || d[i]->chance > d[best]->chance))
            best = i;
    return best;
}

/* Each guess of a recurrent model needs a state to go back to; without memory for it much would be computed again. What
 * else a step takes comes first: pages, a state of each sequence. */
static int states_left(const struct tern_engine *e, int n)
{
    int64_t left = INT32_MAX;
    const struct tern_kv_budget *b = &e->kv_budget;
    const size_t used = atomic_load_explicit(&b->used, memory_order_relaxed);
    for (int i = 0; i < e->n_caches; i++) {
        const struct tern_kv_cache *c = &e->caches[i];
        const int64_t bytes = (int64_t)c->states.mem.bytes, pages = e->chunk / TERN_PAGE + n + 1;
        if (!c->layout->state_bytes)
            continue;
        int64_t more = (int64_t)c->sinks.mem.bytes, room = (int64_t)(b->limit > used ? b->limit - used : 0);
        for (int g = 0; g < c->layout->n_groups; g++)
            more += pages * (int64_t)c->pool[g].mem.bytes;
        room = b->limit == SIZE_MAX ? INT32_MAX : (room - more) / bytes;
        const int64_t blocks =
            (int64_t)c->states.n_blocks - (int64_t)atomic_load_explicit(&c->states.n_used, memory_order_relaxed);
        room = (blocks < room ? blocks : room) - n - 1;
        left = room < left ? room : left;
    }
    return left > 0 ? (int)left : 0;
}

/* Guesses in the order of their chances, and then the first ones of them that give most tokens per second.  One that is
 * less likely than others may still pay together with those behind it. */
void tern_drafts_plan(struct tern_drafter *x, struct tern_draft *const *d, int n, int room)
{
    int rows = n, best_rows = n;
    double tokens = n, best = 0;
    for (int i = 0; i < n; i++)
        guess(d[i]);
    if (!x)
        return;
    const int left = states_left(x->e, n);
    room = left < room - n ? n + left : room;
    best = GAIN * tokens / tern_price_of(&x->price, rows);
    for (int i; rows < room && (i = likeliest(d, n)) >= 0; rows++) {
        x->order[rows] = i;
        tokens += d[i]->chance;
        d[i]->chance *= chance_of(d[i], d[i]->match + d[i]->n);
        d[i]->n++;
        const double pace = tokens / tern_price_of(&x->price, rows + 1);
        if (x->always || pace > best) {
            best = pace;
            best_rows = rows + 1;
        }
    }
    while (rows > best_rows)
        d[x->order[--rows]]->n--;
}

void tern_draft_forget(struct tern_draft *d)
{
    d->n = 1;
    d->n_guesses = 0;
}

/* ---- verifying ----------------------------------------------------------------------------------------------------
 */

void tern_draft_stepped(struct tern_draft *d)
{
    d->seq->ahead = d->n - 1;
    d->n_drafted += d->n - 1;
    tern_gen_appended(d->gen);
}

bool tern_draft_next(struct tern_draft *d)
{
    const struct tern_gen *g = d->gen;
    const int i = d->at + 1; /* the guess of the token that was taken */
    if (i > d->n_guesses || (g->phase != TERN_GEN_APPEND && g->phase != TERN_GEN_LAST))
        return false;
    const bool right = g->picked == d->rows[i];
    count(d, d->match + i - 1, right);
    if (!right || i >= d->n)
        return false;
    d->at = i;
    d->n_accepted++;
    d->seq->ahead--;
    tern_gen_appended(d->gen);
    return d->gen->phase == TERN_GEN_PICK;
}

int tern_draft_settle(struct tern_draft *d, tern_error *err)
{
    const int n = d->seq ? tern_seq_length(d->seq) : 0;
    if (!d->seq || !d->seq->ahead)
        return 0;
    d->seq->ahead = 0;
    return tern_seq_trim(d->seq, n, err);
}

void tern_drafter_learn(struct tern_drafter *x, int rows, double seconds)
{
    if (x)
        tern_price_learn(&x->price, rows, seconds);
}
