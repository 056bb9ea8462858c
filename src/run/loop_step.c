/* One step of all that runs: decode rows first, then as many prompt rows as the pace of the streams allows. */
#include <limits.h>
#include <math.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "run/loop.h"

#define KEPT_ROWS     16 /* of a full step, for prompts */
#define OLDEST_EVERY  4  /* prompts: the shortest rest goes first, each so many steps the oldest */
#define SCORED_ROWS   TERN_EVAL_ROWS
#define MEMORY_PERIOD 0.1       /* seconds */
#define ALONE_STEPS   TERN_PAGE /* more rows than the step that failed had of a reply */

const double tern_times_bounds[TERN_TIMES_BUCKETS - 1] = {.001, .002, .005, .01, .02, .05, .1, .2,
                                                          .5,   1,    2,    5,   10,  30,  120};

void tern_times_add(tern_times *t, double seconds)
{
    int i = 0;
    while (i < TERN_TIMES_BUCKETS - 1 && seconds > tern_times_bounds[i])
        i++;
    t->bucket[i]++;
    t->count++;
    t->sum += seconds;
}

/* ---- the batch --------------------------------------------------------------------------------------------------- */

struct batch {
    int n_items, n_streams, n_decode, n_prompt; /* items; streams; rows that they go on by, and all others */
};

static bool runs(const struct tern_request_run *q)
{
    return q->rc == 0 && !q->fetch && !q->stalled && !tern_request_over(q);
}

/* Is it one of those that the step in hand is for? */
static bool goes(const tern_loop *l, const struct tern_request_run *q)
{
    return runs(q) && (l->only ? q == l->only : !q->alone);
}

/* Requests beside which steps failed twice take turns with all others, so that only whose rows fail ends. */
static void choose(tern_loop *l)
{
    int n_alone = 0, n_others = 0, at = 0;
    l->only = NULL;
    for (int i = 0; i < l->n_running; i++) {
        n_alone += runs(l->running[i]) && l->running[i]->alone;
        n_others += runs(l->running[i]) && !l->running[i]->alone;
    }
    l->turn_alone = n_alone ? (l->turn_alone + 1) % (n_alone + (n_others > 0)) : 0;
    for (int i = 0; n_alone && i < l->n_running; i++)
        if (runs(l->running[i]) && l->running[i]->alone && at++ == l->turn_alone)
            l->only = l->running[i];
}

/* Whether it has gone far enough alone. */
static void went_alone(const tern_loop *l)
{
    struct tern_request_run *q = l->only;
    if (q && q->rc == 0 && !q->torn && !q->again && q->prompted > 0)
        q->alone--;
}

static void add_item(tern_loop *l, struct batch *b, struct tern_choice *c, const tern_step_item *item)
{
    l->of[b->n_items] = c;
    l->items[b->n_items++] = *item;
}

/* More streams than a step has rows take turns.  Where there are rows to spare, guesses go along. */
static void add_decode(tern_loop *l, struct batch *b, bool prompts)
{
    int n = 0, most = prompts && l->e->chunk > 2 * KEPT_ROWS ? l->e->chunk - KEPT_ROWS : l->e->chunk;
    for (int i = 0; i < l->n_running; i++)
        for (int k = 0; goes(l, l->running[i]) && k < l->running[i]->r.n_choices; k++)
            if (!l->running[i]->again && l->running[i]->choices[k].gen.phase == TERN_GEN_APPEND)
                l->picks[n++] = &l->running[i]->choices[k];
    TERN_ASSERT(most > 0);
    int from = n > most ? l->turn_decode % n : 0, n_now = n < most ? n : most;
    for (int i = 0; i < n_now; i++) {
        struct tern_choice *c = l->picks[(from + i) % n];
        c->draft.seq = c->seq;
        l->drafts[i] = &c->draft;
    }
    tern_drafts_plan(l->e->drafter, l->drafts, n_now, most);
    for (int i = 0; i < n_now; i++) {
        const struct tern_draft *d = l->drafts[i];
        const tern_step_item it = {
            .seq = d->seq, .tokens = d->rows, .n_tokens = d->n, .decode = true, .logits = TERN_LOGITS_ALL};
        add_item(l, b, l->picks[(from + i) % n], &it);
        b->n_streams++;
        b->n_decode += d->n;
    }
    l->turn_decode = from + most;
}

/* Rows that it needs before its replies begin or go on. */
static int rest_of(const tern_loop *l, const struct tern_request_run *q)
{
    const struct tern_gen *g = &q->choices[0].gen;
    if (!goes(l, q))
        return 0;
    return q->again ? tern_again_rest(q) : g->phase == TERN_GEN_PROMPT ? g->n_prompt - g->done : 0;
}

/* The prompt that goes next and is not in the batch: the shortest rest, or the oldest. */
static struct tern_request_run *next_prompt(const tern_loop *l, bool oldest)
{
    struct tern_request_run *best = NULL;
    int least = 0;
    for (int i = 0; i < l->n_running; i++) {
        struct tern_request_run *q = l->running[i];
        int rest = q->step == l->n_steps ? 0 : rest_of(l, q);
        if (!rest || (best && (oldest ? q->id > best->id : rest >= least)))
            continue;
        best = q;
        least = rest;
    }
    return best;
}

/* Of n rows those up to the next border.  *border: the step ends there. */
static int to_border(const struct tern_request_run *q, int n, bool *border)
{
    const int done = q->choices[0].gen.done;
    *border = false;
    for (int i = 0; i < q->r.n_borders; i++)
        if (q->r.borders[i] > done && q->r.borders[i] <= done + n) {
            *border = true;
            return q->r.borders[i] - done;
        }
    return n;
}

/* As many as room rows of a prompt; returns how many.  *scored: rows with all their logits that a step may still have.
 */
static int add_prompt(tern_loop *l, struct batch *b, struct tern_request_run *q, int room, int *scored)
{
    struct tern_choice *c = &q->choices[0];
    bool scores = q->r.prompt_logprobs >= 0;
    int left = rest_of(l, q), n = left < room ? left : room;
    n = to_border(q, scores && n > *scored ? *scored : n, &q->at_border);
    if (!n)
        return 0;
    bool last = n == left && q->r.max_tokens != 0;
    int logits = scores ? TERN_LOGITS_ALL : last ? TERN_LOGITS_LAST : TERN_LOGITS_NONE;
    logits |= q->r.embed == TERN_EMBED_MEAN ? TERN_HIDDEN_ALL : 0;
    logits |= q->r.embed == TERN_EMBED_LAST && n == left ? TERN_HIDDEN_LAST : 0;
    add_item(l, b, c,
             &(tern_step_item){.seq = c->seq, .tokens = c->gen.prompt + c->gen.done, .n_tokens = n, .logits = logits});
    q->step = l->n_steps;
    *scored -= scores ? n : 0;
    return n;
}

static int add_again(tern_loop *l, struct batch *b, struct tern_request_run *q, int room)
{
    int n = 0;
    tern_step_item item = {.decode = true};
    while (n < room && b->n_items < l->e->max_seqs && item.decode) {
        struct tern_choice *c = tern_again_next(l, q, room - n, &item);
        if (!c)
            break;
        add_item(l, b, c, &item);
        n += item.n_tokens;
    }
    return n;
}

static void add_prompts(tern_loop *l, struct batch *b)
{
    int n_prompts = 0, wanted = 0, scored = SCORED_ROWS;
    for (int i = 0; i < l->n_running; i++) {
        int rest = rest_of(l, l->running[i]);
        n_prompts += rest > 0;
        wanted = rest < INT_MAX - wanted ? wanted + rest : INT_MAX;
    }
    if (!n_prompts)
        return;
    int room = tern_pace_rows(&l->pace, b->n_decode, n_prompts, wanted, l->e->chunk - b->n_decode);
    bool oldest = l->n_steps % OLDEST_EVERY == 0;
    while (room > 0 && b->n_items < l->e->max_seqs) {
        struct tern_request_run *q = next_prompt(l, oldest);
        int n = !q ? 0 : q->again ? add_again(l, b, q, room) : add_prompt(l, b, q, room, &scored);
        if (!n)
            return;
        b->n_prompt += n;
        room -= n;
        oldest = false;
    }
}

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

/* The prompt is complete: its choices part.  logits: of its last token, NULL where nobody asked. */
static void part(tern_loop *l, struct tern_request_run *q, const float *logits)
{
    tern_error err = {0};
    q->prompted = tern_now();
    for (int i = 0; i < q->r.n_choices; i++) {
        struct tern_choice *c = &q->choices[i];
        if (i && q->r.max_tokens != 0 && tern_loop_fork(l, &c->seq, q->choices[0].seq, &err) < 0) {
            tern_request_fail(q, err.code, err.msg);
            return;
        }
        if (i)
            tern_gen_prompted(&c->gen, c->gen.n_prompt);
        c->seen = (struct tern_seen){.x = logits, .n = l->e->model->net->desc.n_vocab};
    }
    if (l->prefix.offer)
        l->prefix.offer(l->prefix.self, q->choices[0].seq, logits, false);
}

struct scoring {
    const tern_loop *l;
    const struct tern_request_run *q;
    int from; /* position of the first row */
    const float *logits;
    tern_token_score *out;
    tern_logprob *top;
};

static void score_row(void *ctx, int row, int worker)
{
    const struct scoring *s = ctx;
    size_t n_vocab = (size_t)s->l->e->model->net->desc.n_vocab, n_top = (size_t)s->q->r.prompt_logprobs;
    (void)worker;
    tern_score_token(s->logits + (size_t)row * n_vocab, (int)n_vocab, s->q->r.prompt[s->from + row + 1], (int)n_top,
                     s->top + (size_t)row * n_top, &s->out[row + 1]);
}

/* Rows [from, from + n) of the prompt tell the tokens after them. */
static void tell_scores(tern_loop *l, struct tern_request_run *q, int from, int n, const float *logits)
{
    int rows = from + n < q->r.n_prompt ? n : n - 1, first = from == 0 ? 0 : 1, rc = 0;
    tern_error err = {0};
    struct scoring s = {.l = l, .q = q, .from = from, .logits = logits};
    TERN_TRY(tern_alloc(&s.out, (size_t)rows + 1, sizeof *s.out, &err));
    TERN_TRY(tern_alloc(&s.top, (size_t)rows * (size_t)q->r.prompt_logprobs, sizeof *s.top, &err));
    s.out[0] = (tern_token_score){.id = q->r.prompt[0], .logprob = NAN};
    tern_pool_run(l->e->pool, score_row, &s, rows);
    if (rows + 1 - first > 0)
        tern_request_tell(q, &(tern_event){.kind = TERN_EVENT_SCORES,
                                           .tokens = s.out + first,
                                           .n_tokens = rows + 1 - first,
                                           .done = from + first});
out:
    if (rc < 0)
        tern_request_fail(q, rc, err.msg);
    tern_free(s.out);
    tern_free(s.top);
}

/* Sums in the order of the tokens, so that the mean is the same however the prompt was cut. */
static void take_hidden(const tern_loop *l, struct tern_request_run *q, const tern_step_item *it, const float *hidden)
{
    int n_embd = l->e->model->net->desc.n_embd, rows = tern_item_hidden(it);
    bool over = q->choices[0].gen.done == q->r.n_prompt;
    TERN_ASSERT(hidden); /* rows of them were asked for */
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < n_embd; i++)
            q->sum[i] += (double)hidden[(size_t)r * (size_t)n_embd + (size_t)i];
    if (!over)
        return;
    for (int i = 0; i < n_embd; i++)
        q->vector[i] = (float)(q->sum[i] / (q->r.embed == TERN_EMBED_MEAN ? q->r.n_prompt : 1));
    tern_request_tell(q, &(tern_event){.kind = TERN_EVENT_EMBEDDING, .vector = q->vector, .n_vector = n_embd});
}

/* What a step has made of a prompt's rows. */
static void take_prompt(tern_loop *l, struct tern_choice *c, const tern_step_item *it, const float *logits,
                        const float *hidden)
{
    struct tern_request_run *q = c->request;
    size_t n_vocab = (size_t)l->e->model->net->desc.n_vocab;
    int from = c->gen.done, n_rows = tern_item_logits(it);
    tern_gen_prompted(&c->gen, it->n_tokens);
    if (c->gen.done > q->n_told) {
        q->n_told = c->gen.done;
        tern_request_tell(q, &(tern_event){.kind = TERN_EVENT_PROMPT, .done = q->n_told, .n_prompt = q->r.n_prompt});
    }
    if (tern_item_hidden(it))
        take_hidden(l, q, it, hidden);
    if (it->logits & TERN_LOGITS_ALL)
        tell_scores(l, q, from, it->n_tokens, logits);
    if (c->gen.done == c->gen.n_prompt)
        part(l, q, n_rows ? logits + (size_t)(n_rows - 1) * n_vocab : NULL);
    else if (l->prefix.passed)
        l->prefix.passed(l->prefix.self, c->seq, from, q->at_border);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

static void pick_one(void *ctx, int task, int worker)
{
    tern_loop *l = ctx;
    struct tern_choice *c = l->picks[task];
    const tern_request *r = &c->request->r;
    int n_vocab = l->e->model->net->desc.n_vocab;
    (void)worker;
    tern_constraint limits = r->constraint;
    limits.state = c->constraint;
    c->rc = tern_gen_pick_within(&c->gen, c->seen, c->mask ? &limits : NULL, c->mask, &c->err);
    if (c->rc == 0 && r->logprobs >= 0)
        tern_score_token(c->seen.x, n_vocab, c->gen.picked, r->logprobs, c->top, &c->score);
}

/* A picked token becomes text, and its sequence's next row or its last word. */
static void take_token(tern_loop *l, struct tern_choice *c, double now)
{
    tern_error err = {0};
    struct tern_request_run *q = c->request;
    int room = q->fits - tern_seq_length(c->seq);
    if (c->rc < 0) {
        tern_request_fail(q, c->rc, c->err.msg);
        return;
    }
    if (tern_gen_counts(&c->gen, room)) {
        if (c->constraint && q->r.constraint.accept(c->constraint, c->gen.picked, &err) < 0) {
            tern_request_fail(q, err.code ? err.code : TERN_EINVAL, err.msg);
            return;
        }
        c->n_generated++;
        l->fresh.generated_tokens++;
        if (c->last_token > 0)
            tern_times_add(&l->fresh.gap, now - c->last_token);
        else if (q->first <= 0)
            tern_times_add(&l->fresh.first, now - q->submitted);
        c->last_token = now;
        q->first = q->first > 0 ? q->first : now;
        if (q->r.logprobs >= 0) {
            c->logprob += c->score.logprob;
            tern_request_tell(
                q, &(tern_event){.kind = TERN_EVENT_TOKEN, .choice = c->index, .tokens = &c->score, .n_tokens = 1});
        }
    }
    c->thinking = false;
    if (tern_gen_take(&c->gen, room, &err) < 0)
        tern_request_fail(q, err.code, err.msg);
    c->n_thought += c->thinking || (c->reply && tern_reply_reasons(c->reply));
}

/* All choices that have something to pick from go on by a token.  False: there are none. */
static bool take_round(tern_loop *l)
{
    int n = 0;
    for (int i = 0; i < l->n_running; i++)
        for (int k = 0; runs(l->running[i]) && k < l->running[i]->r.n_choices; k++) {
            struct tern_choice *c = &l->running[i]->choices[k];
            if (c->seen.x && c->gen.phase == TERN_GEN_PICK)
                l->picks[n++] = c;
        }
    if (n)
        tern_pool_run(l->e->pool, pick_one, l, n);
    double now = tern_now();
    for (int i = 0; i < n; i++) {
        struct tern_choice *c = l->picks[i];
        const struct tern_seen seen = c->seen;
        c->seen.x = NULL;
        if (c->request->rc == 0)
            take_token(l, c, now);
        if (c->request->rc == 0 && tern_draft_next(&c->draft))
            c->seen = tern_seen_next(seen);
    }
    return n > 0;
}

/* What was guessed wrong leaves the sequence, also that of a request which has just failed. */
static void settle(tern_loop *l, struct tern_choice *c)
{
    tern_error err = {0};
    struct tern_draft *d = &c->draft;
    if (!c->seq || d->n < 2)
        return;
    const int n = tern_seq_length(c->seq), before = n - 1 - d->at;
    l->fresh.drafted_tokens += (uint64_t)(d->n - 1);
    l->fresh.accepted_tokens += (uint64_t)d->at;
    d->n = 1;
    if (tern_draft_settle(d, &err) < 0)
        tern_request_fail(c->request, err.code, err.msg);
    else if (l->prefix.offer && n / TERN_PAGE > before / TERN_PAGE && !c->seq->torn)
        l->prefix.offer(l->prefix.self, c->seq, NULL, false);
}

/* As far as the logits of a step lead. */
static void take_tokens(tern_loop *l)
{
    while (take_round(l))
        ;
    for (int i = 0; i < l->n_running; i++)
        for (int k = 0; k < l->running[i]->r.n_choices; k++)
            settle(l, &l->running[i]->choices[k]);
    for (int i = 0; i < l->n_running; i++)
        for (int k = 0; runs(l->running[i]) && k < l->running[i]->r.n_choices; k++) {
            struct tern_choice *c = &l->running[i]->choices[k];
            if (c->gen.phase != TERN_GEN_LAST && c->gen.phase != TERN_GEN_OVER)
                continue;
            if (l->prefix.offer && c->seq)
                l->prefix.offer(l->prefix.self, c->seq, NULL, true);
            tern_choice_end(c, c->gen.finish);
        }
}

/* Does this request ask the cache?  What wants figures of every row of its prompt computes it. */
static bool asks_cache(const struct tern_request_run *q)
{
    return q->r.prompt_logprobs < 0 && q->r.embed == TERN_EMBED_NONE;
}

/* A sequence for its first choice, with as much of the prompt as is known; *logits: of its last token, if all is. */
static int start(tern_loop *l, struct tern_request_run *q, struct tern_choice *c, const float **logits)
{
    tern_error err = {0};
    *logits = NULL;
    int rc = tern_seq_new_plan(&c->seq, l->e, q->r.plan, &err);
    while (rc == TERN_ECAPACITY && l->prefix.shrink && l->prefix.shrink(l->prefix.self))
        rc = tern_seq_new_plan(&c->seq, l->e, q->r.plan, &err);
    if (rc < 0) {
        tern_request_fail(q, err.code, err.msg);
        return rc;
    }
    if (!l->prefix.lookup || !asks_cache(q))
        return 0;
    return l->prefix.lookup(l->prefix.self, c->seq, q->r.prompt, q->r.n_prompt, logits);
}

static void begin(tern_loop *l, struct tern_request_run *q)
{
    struct tern_choice *c = tern_again_first(q);
    const float *logits;
    q->stalled = false; /* what is picked now must not wait for the next look at its receiver */
    int found = start(l, q, c, &logits);
    if (found < 0)
        return;
    l->fresh.cached_tokens += (uint64_t)found;
    if (q->again) {
        tern_again_begin(l, q);
        return;
    }
    if (!q->begun) {
        q->begun = true;
        q->n_cached = found;
        tern_request_tell(q, &(tern_event){.kind = TERN_EVENT_START, .n_prompt = q->r.n_prompt, .n_cached = found});
    }
    tern_gen_prompted(&c->gen, found);
    if (found == q->r.n_prompt) {
        part(l, q, logits);
        take_tokens(l);
    }
}

void tern_loop_admit(tern_loop *l, struct tern_request_run *q)
{
    q->started = q->started > 0 ? q->started : tern_now();
    if (l->prefix.fetch && asks_cache(q))
        q->fetch = l->prefix.fetch(l->prefix.self, q->r.plan, q->r.prompt, q->r.n_prompt);
    if (!q->fetch)
        begin(l, q);
}

void tern_loop_begin(tern_loop *l)
{
    for (int i = 0; i < l->n_running; i++) {
        struct tern_request_run *q = l->running[i];
        if (q->fetch && q->rc == 0 && l->prefix.fetched(l->prefix.self, q->fetch)) {
            q->fetch = NULL;
            begin(l, q);
        }
    }
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

/* How many of the best of its rows are enough for an item of a reply; 0: others look at their logits as well. */
static int enough(const tern_loop *l, const struct tern_choice *c, const tern_step_item *it)
{
    if (!l->e->asks_best || !it->decode || c->mask || c->request->r.logprobs >= 0)
        return 0;
    return tern_gen_enough(&c->gen);
}

/* Steps items [from, to) and hands out what it tells of their rows. */
static int step_items(tern_loop *l, int from, int to, tern_error *err)
{
    size_t n_embd = (size_t)l->e->model->net->desc.n_embd;
    for (int i = from; i < to; i++)
        l->best[i] = enough(l, l->of[i], &l->items[i]);
    int rc = tern_step_seen(l->e, l->items + from, to - from, l->best + from, l->seen + from, err);
    const float *hidden = tern_engine_hidden(l->e);
    for (int i = from; rc == 0 && i < to; i++) {
        const tern_step_item *it = &l->items[i];
        struct tern_choice *c = l->of[i];
        if (c->request->again) {
            tern_again_take(l, c, it);
        } else if (it->decode) {
            tern_draft_stepped(&c->draft);
            c->seen = l->seen[i];
            if (l->prefix.offer && it->n_tokens == 1 && tern_seq_length(c->seq) % TERN_PAGE == 0)
                l->prefix.offer(l->prefix.self, c->seq, c->seen.ids ? NULL : c->seen.x, false);
        } else {
            take_prompt(l, c, it, l->seen[i].x, hidden);
        }
        if (hidden)
            hidden += (size_t)tern_item_hidden(it) * n_embd;
    }
    return rc;
}

static void forget_guesses(tern_loop *l, int n_items)
{
    for (int i = 0; i < n_items; i++) {
        if (l->of[i]->request->again || !l->items[i].decode || l->items[i].n_tokens == 1)
            continue;
        tern_draft_forget(&l->of[i]->draft);
        l->items[i].n_tokens = 1;
    }
}

/* Its sequence was torn: the request computes its rows again, where nobody has seen them, and after the second time
 * without others, whose fault it may have been.  shared: with some of them in the step. */
static void mend(struct tern_choice *c, bool shared, int rc, const tern_error *err)
{
    struct tern_request_run *q = c->request;
    tern_draft_forget(&c->draft);
    if ((q->torn_once && !shared) || !tern_room_may_go(q)) {
        tern_request_fail(q, rc, err->msg);
        return;
    }
    q->torn = true;
    if (q->torn_once)
        q->alone = ALONE_STEPS;
}

static bool of_several(const tern_loop *l, int n_items)
{
    for (int i = 1; i < n_items; i++)
        if (l->of[i]->request != l->of[0]->request)
            return true;
    return false;
}

/* Items [from, to), and what is cached gives way to them. */
static int step_in_room(tern_loop *l, int from, int to, tern_error *err)
{
    int rc = step_items(l, from, to, err);
    while (rc == TERN_ECAPACITY && l->prefix.shrink && l->prefix.shrink(l->prefix.self))
        rc = step_items(l, from, to, err);
    return rc;
}

/* Nothing has changed when a step fails, or sequences are torn.  In the first case it does without guesses, and pages
 * are given back; at last each item that is not torn goes by itself, and only whose item cannot go is told so. */
static void step_batch(tern_loop *l, int n_items)
{
    tern_error err = {0}, own = {0};
    int rc = step_items(l, 0, n_items, &err);
    if (rc == TERN_ECAPACITY) {
        forget_guesses(l, n_items);
        rc = step_in_room(l, 0, n_items, &err);
    }
    if (rc == 0) {
        take_tokens(l);
        return;
    }
    const bool shared = of_several(l, n_items);
    forget_guesses(l, n_items); /* whose items have not gone yet when others are settled */
    for (int i = 0; i < n_items; i++) {
        struct tern_choice *c = l->of[i];
        if (!runs(c->request))
            continue;
        if (c->seq->torn) {
            mend(c, shared, rc, &err);
            continue;
        }
        const int own_rc = step_in_room(l, i, i + 1, &own);
        if (c->seq->torn)
            mend(c, false, own_rc, &own);
        else if (own_rc < 0)
            tern_request_fail(c->request, own_rc, own.msg);
        else
            take_tokens(l);
    }
}

static void add_times(tern_times *to, const tern_times *from)
{
    to->count += from->count;
    to->sum += from->sum;
    for (int i = 0; i < TERN_TIMES_BUCKETS; i++)
        to->bucket[i] += from->bucket[i];
}

bool tern_loop_step(tern_loop *l)
{
    struct batch b = {0};
    bool prompts = false;
    double start = tern_now();
    choose(l);
    for (int i = 0; i < l->n_running; i++)
        prompts |= rest_of(l, l->running[i]) > 0;
    l->n_steps++;
    add_decode(l, &b, prompts);
    if (prompts)
        add_prompts(l, &b);
    if (b.n_items)
        step_batch(l, b.n_items);
    went_alone(l);
    double now = tern_now();
    if (b.n_items)
        tern_pace_learn(&l->pace, b.n_decode, b.n_prompt, now - start);
    if (b.n_decode && !b.n_prompt)
        tern_drafter_learn(l->e->drafter, b.n_decode, now - start);
    if (now - l->memory_at > MEMORY_PERIOD) {
        tern_engine_memory(l->e, &l->memory);
        l->memory_at = now;
    }
    (void)pthread_mutex_lock(&l->lock);
    l->stats.memory = l->memory;
    if (l->cache)
        tern_prefix_get_stats(l->cache, &l->stats.cache);
    l->stats.steps += b.n_items > 0;
    l->stats.prompt_tokens += (uint64_t)b.n_prompt;
    l->stats.cached_tokens += l->fresh.cached_tokens;
    l->stats.generated_tokens += l->fresh.generated_tokens;
    l->stats.drafted_tokens += l->fresh.drafted_tokens;
    l->stats.accepted_tokens += l->fresh.accepted_tokens;
    l->stats.decoding = b.n_streams;
    if (b.n_items)
        tern_times_add(&l->stats.step, now - start);
    add_times(&l->stats.gap, &l->fresh.gap);
    add_times(&l->stats.first, &l->fresh.first);
    (void)pthread_mutex_unlock(&l->lock);
    l->fresh = (tern_loop_stats){0};
    for (int i = 0; i < l->n_running && !b.n_items; i++) /* found as a whole, and complete */
        b.n_items += l->running[i]->rc < 0 || tern_request_over(l->running[i]);
    return b.n_items > 0;
}
