/* How many guesses a step verifies, and what came of them. */
#include "run/draft/draft.h"

#include <string.h>
#include "base/mem.h"

#define USUAL      15   /* guesses of one reply in a step, with its own token a multiple of what kernels take at once */
#define USUAL_KEPT 4    /* where each costs a recurrent state */
#define USUAL_OWN  7    /* where each is computed by a model */
#define GAIN       1.05 /* drafts have to promise so many times the tokens per second */
#define FORGET     .97  /* of what was seen of a class of matches, with each guess that turns out */

struct tern_drafter {
    tern_engine *e;
    int most;
    bool always; /* else as many guesses as pay */
    struct tern_price price;
    struct tern_draft_model *model; /* NULL: none guesses */
    struct tern_chain *mtp;         /* NULL: nor does a layer of the model's own */
    struct tern_chain *chain;       /* whichever of both there is; NULL: guesses are looked up */
    bool looks_up;                  /* beside the layer, too */
    int *order;                     /* [chunk] whose guess is the next best one */
    tern_draft_source *source;
    void *user;
};

/* ---- parameters -------------------------------------------------------------------------------------------------- */

/* 0: no drafts. */
static int read_mode(const tern_engine_params *p, bool *always, tern_error *err)
{
    const char *draft = p->draft;
    *always = false;
    if (p->draft_model && draft)
        return tern_err_set(err, TERN_EINVAL, "draft = \"%.40s\" and a draft model exclude each other", draft);
    if (p->draft_model)
        return 1;
    if (!draft || strcmp(draft, "off") == 0)
        return 0;
    *always = strcmp(draft, "auto") != 0;
    if (!*always || strcmp(draft, "ngram") == 0 || strcmp(draft, "mtp") == 0)
        return 1;
    return tern_err_set(err, TERN_EINVAL, "draft = \"%.40s\" is none of off, auto, ngram, mtp", draft);
}

static int most_guesses(const tern_engine_params *p, bool recurrent)
{
    const int usual = recurrent ? USUAL_KEPT : p->draft_model ? USUAL_OWN : USUAL;
    const int most = p->draft_most ? p->draft_most : usual;
    return recurrent && most > TERN_KV_MAX_DRAFTS ? TERN_KV_MAX_DRAFTS : most;
}

int tern_draft_rows(const tern_engine_params *p, bool recurrent, int *drafts, tern_error *err)
{
    bool always;
    const int mode = read_mode(p, &always, err);
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
    rc = read_mode(p, &always, err);
    if (rc <= 0)
        return rc;
    for (int i = 0; i < e->n_caches; i++)
        recurrent |= e->caches[i].layout->state_bytes > 0;
    TERN_TRY(tern_alloc(&x, 1, sizeof *x, err));
    x->e = e;
    x->always = always;
    x->most = most_guesses(p, recurrent);
    TERN_TRY(tern_alloc(&x->order, (size_t)e->chunk, sizeof *x->order, err));
    x->looks_up = !p->draft_model && !(e->mtp && always);
    if (p->draft_model) {
        TERN_TRY(tern_draft_model_open(&x->model, e, p->draft_model, x->most, err));
        x->chain = tern_draft_model_chain(x->model);
    } else if (e->mtp) {
        TERN_TRY(tern_draft_mtp_open(&x->mtp, e, err));
        x->chain = x->mtp;
    }
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
    tern_draft_model_close(x->model);
    tern_draft_mtp_close(x->mtp);
    tern_free(x->order);
    tern_free(x);
}

void tern_drafter_set_source(struct tern_drafter *x, tern_draft_source *source, void *user)
{
    x->source = source;
    x->user = user;
    x->always = true;
}

/* ---- what becomes of guesses ------------------------------------------------------------------------------------- */

/* Matches of 2, 3, 4, 5-6, 7-8, 9-12, 13-20 and more tokens. */
static int kind_of(int match)
{
    static const int last[TERN_DRAFT_CLASSES - 1] = {2, 3, 4, 6, 8, 12, 20};
    int c = 0;
    while (c < TERN_DRAFT_CLASSES - 1 && match > last[c])
        c++;
    return c;
}

/* Before much is known, as texts usually have it; but a longer match, or a wider margin, is no worse than smaller ones
 * have turned out to be. */
double tern_draft_chance(const struct tern_draft *d, int guess)
{
    static const double looked_up[TERN_DRAFT_CLASSES] = {.1, .2, .3, .45, .6, .7, .8, .9},
                        computed[TERN_DRAFT_CLASSES] = {.25, .35, .45, .55, .65, .75, .85, .95};
    const int c = d->kind[guess], least = c < TERN_DRAFT_CLASSES ? 0 : TERN_DRAFT_CLASSES;
    const double weight = 3, *usual = least ? computed : looked_up;
    double best = (d->right[c] + weight * usual[c - least]) / (d->seen[c] + weight);
    for (int i = least; i < c; i++) {
        const double p = d->right[i] / (d->seen[i] + weight);
        best = p > best ? p : best;
    }
    return best;
}

static void count(struct tern_draft *d, int guess, bool right)
{
    const int c = d->kind[guess];
    if (d->by->chain && c >= TERN_DRAFT_CLASSES)
        tern_chain_learn(d->by->chain, right);
    d->seen[c] = FORGET * d->seen[c] + 1;
    d->right[c] = FORGET * d->right[c] + right;
}

/* ---- planning ---------------------------------------------------------------------------------------------------- */

void tern_draft_open(struct tern_draft *d, struct tern_drafter *x, struct tern_gen *g)
{
    *d = (struct tern_draft){.by = x, .gen = g};
}

void tern_draft_close(struct tern_draft *d)
{
    tern_lookup_clear(&d->lookup);
    tern_seq_free(d->own);
    d->own = NULL;
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
    most = most < d->by->e->chunk - 1 ? most : d->by->e->chunk - 1;
    return tern_seq_recode_room(d->seq, most + 1) - 1; /* rows of a step are of one plan */
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
    int match, got = tern_lookup_guess(l, d->rows + 1, most, &match);
    for (int i = 1; i <= got; i++)
        d->kind[i] = (uint8_t)kind_of(match + i - 1);
    return got;
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
    d->rows[0] = d->gen->picked;
    d->n = 1;
    d->at = d->n_guesses = 0;
    d->most = d->by ? room_for(d) : 0;
    if (d->most < 1)
        return;
    if (d->by->source)
        d->n_guesses = ask_source(d, d->most);
    else if (d->by->looks_up)
        d->n_guesses = look_up(d, d->most);
    /* Where the layer is right as often it guesses the rest of the text, too. */
    if (d->by->chain && d->by->looks_up && d->n_guesses && tern_draft_chance(d, 1) <= d->by->chain->rate)
        d->n_guesses = 0;
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
        const int64_t bytes = (int64_t)c->states.takes, pages = e->chunk / TERN_PAGE + n + 1;
        if (!c->layout->state_bytes)
            continue;
        int64_t more = (int64_t)c->sinks.takes, room = (int64_t)(b->limit > used ? b->limit - used : 0);
        for (int g = 0; g < c->layout->n_groups; g++)
            more += pages * (int64_t)c->pool[g].takes;
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
    if (x->chain && !x->source)
        tern_chain_guess(x->chain, d, n, x->always ? NULL : &x->price);
    for (int i = 0; i < n; i++)
        d[i]->chance = d[i]->n_guesses ? tern_draft_chance(d[i], 1) : 0;
    const int left = states_left(x->e, n);
    room = left < room - n ? n + left : room;
    best = GAIN * tokens / tern_price_of(&x->price, rows);
    for (int i; rows < room && (i = likeliest(d, n)) >= 0; rows++) {
        x->order[rows] = i;
        tokens += d[i]->chance;
        d[i]->n++;
        d[i]->chance *= d[i]->n <= d[i]->n_guesses ? tern_draft_chance(d[i], d[i]->n) : 0;
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

/* ---- verifying --------------------------------------------------------------------------------------------------- */

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
    count(d, i, right);
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

size_t tern_drafter_bytes(const struct tern_drafter *x)
{
    tern_memory m = {0};
    if (x && x->model)
        tern_engine_memory(tern_draft_model_engine(x->model), &m);
    return m.kv_bytes + m.state_bytes + m.scratch_bytes;
}

void tern_drafter_learn(struct tern_drafter *x, int rows, double seconds)
{
    if (x)
        tern_price_learn(&x->price, rows, seconds);
}
