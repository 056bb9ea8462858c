/* Who is next: requests wait until a sequence per choice is free and there is room for the pages of their prompt and of
 * the beginning of their replies.  The highest priority goes first; of those who ask alike, whoever runs
 * least, then whose turn is longest ago; of one who asks, the oldest.  Nobody overtakes the one whose turn it is, so
 * that a large request is not starved by small ones. */
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "run/loop.h"

/* ---- room -------------------------------------------------------------------------------------------------------
 *
 * Room: a request is let in when there is room for the pages of its prompt and of the first tokens of its reply, and
 * gets more as it grows, a page at a time.  When pages run out, the youngest of the lowest priority gives up its own,
 * waits for room before all others, and computes its rows again; the oldest is never the one.  So whatever is let in
 * comes to its end, nothing fails in a step, and nobody holds room for tokens that may never come. */

/* Most bytes of a group's pages that n tokens take. */
static size_t page_bytes(const struct tern_kv_cache *c, int group, int n_tokens)
{
    int pages = n_tokens / TERN_PAGE, most = c->seqs[0].table[group].cap;
    return c->pool[group].takes * (size_t)(pages < most ? pages : most);
}

/* Bytes of a request whose replies have so many tokens each. */
static size_t bytes_for(const tern_loop *l, const tern_request *r, int more)
{
    const struct tern_kv_cache *c = &l->e->caches[r->plan];
    size_t own = c->tiles.takes, shared = 0;
    own += c->layout->sink_bytes ? c->sinks.takes : 0;
    own += c->layout->state_bytes ? c->states.takes * (size_t)(TERN_KV_KEPT_STATES + 1 + c->layout->drafts) : 0;
    for (int g = 0; g < c->layout->n_groups; g++) {
        /* Choices share what closed in the prompt, until a window leaves it. */
        size_t both = c->layout->groups[g].reach.window ? 0 : page_bytes(c, g, r->n_prompt);
        shared += both;
        own += page_bytes(c, g, r->n_prompt + more) - both;
    }
    return shared + (size_t)r->n_choices * own;
}

/* Tokens that a reply can have at most. */
static int most_of(const struct tern_request_run *q)
{
    int most = q->fits - q->r.n_prompt;
    return q->r.max_tokens < 0 || q->r.max_tokens > most ? most : q->r.max_tokens;
}

static void set_room(const tern_loop *l, struct tern_request_run *q, int room)
{
    int most = most_of(q);
    q->room = room < most ? room : most;
    q->reserve = bytes_for(l, &q->r, q->room);
}

void tern_room_of_new(const tern_loop *l, struct tern_request_run *q)
{
    int lo = 0, hi = l->e->ctx - q->r.n_prompt; /* tokens of a reply: lo fit, more than hi do not */
    while (l->p.kv_bytes && lo < hi) {
        int mid = lo + (hi - lo + 1) / 2;
        bool fits = bytes_for(l, &q->r, mid) <= l->p.kv_bytes;
        lo = fits ? mid : lo;
        hi = fits ? hi : mid - 1;
    }
    q->fits = q->r.n_prompt + hi;
    set_room(l, q, l->p.reply_tokens);
}

/* Tokens of the longest of its replies, with the row that comes next. */
static int grown(const struct tern_request_run *q)
{
    int most = 0;
    for (int i = 0; i < q->r.n_choices; i++) {
        const struct tern_choice *c = &q->choices[i];
        int has = q->again ? c->n_again : c->seq ? tern_seq_length(c->seq) - q->r.n_prompt : 0;
        if (c->gen.phase == TERN_GEN_APPEND && has + 1 > most)
            most = has + 1;
    }
    return most;
}

/* The oldest whose next row has no room yet. */
static struct tern_request_run *next_to_grow(const tern_loop *l)
{
    struct tern_request_run *q = NULL;
    for (int i = 0; i < l->n_running; i++) {
        struct tern_request_run *o = l->running[i];
        if (o->rc == 0 && !o->again && grown(o) > o->room && (!q || o->id < q->id))
            q = o;
    }
    return q;
}

/* Rows of a prompt that somebody gets to see are computed once. */
bool tern_room_may_go(const struct tern_request_run *q)
{
    bool seen = q->r.prompt_logprobs >= 0 || q->r.embed != TERN_EMBED_NONE;
    return q->rc == 0 && !tern_request_over(q) && !(seen && q->choices[0].gen.phase == TERN_GEN_PROMPT);
}

/* Who gives up room for q: the youngest of the lowest priority; q itself where none is younger. */
static struct tern_request_run *who_goes(const tern_loop *l, struct tern_request_run *q)
{
    struct tern_request_run *best = q;
    for (int i = 0; i < l->n_running; i++) {
        struct tern_request_run *o = l->running[i];
        if (tern_room_may_go(o) &&
            (o->r.priority != best->r.priority ? o->r.priority < best->r.priority : o->id > best->id))
            best = o;
    }
    return best;
}

/* Back into the queue, with room for what it had. */
static void give_up(tern_loop *l, struct tern_request_run *q, int *n)
{
    const int had = grown(q);
    tern_loop_requeue(l, q);
    set_room(l, q, had + l->p.reply_tokens);
    l->given_up[(*n)++] = q;
}

int tern_room_grow(tern_loop *l)
{
    int n = 0;
    struct tern_request_run *q;
    for (int i = l->n_running - 1; i >= 0; i--) {
        q = l->running[i];
        if (!q->torn || q->rc < 0)
            continue;
        q->torn = false;
        q->torn_once = true;
        give_up(l, q, &n);
    }
    while ((q = next_to_grow(l)) != NULL) {
        const int room = q->room;
        size_t before = q->reserve, others = l->reserved - before;
        set_room(l, q, grown(q) + TERN_PAGE);
        if (!l->p.kv_bytes || others + q->reserve <= l->p.kv_bytes) {
            l->reserved = others + q->reserve;
            continue;
        }
        struct tern_request_run *out = who_goes(l, q);
        q->reserve = before;
        q->room = room;
        give_up(l, out, &n);
        l->stats.preempted++;
    }
    return n;
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

static struct tern_fair *find_fair(tern_loop *l, uint64_t key)
{
    struct tern_fair *f = l->fairs;
    while (f && f->key != key)
        f = f->next;
    return f;
}

static int need_fair(tern_loop *l, uint64_t key, struct tern_fair **out, tern_error *err)
{
    *out = find_fair(l, key);
    if (*out)
        return 0;
    int rc = tern_alloc(out, 1, sizeof **out, err);
    if (rc < 0)
        return rc;
    **out = (struct tern_fair){.next = l->fairs, .key = key};
    l->fairs = *out;
    return 0;
}

static void drop_fair(tern_loop *l, struct tern_fair *f)
{
    struct tern_fair **at = &l->fairs;
    if (f->n_waiting || f->n_running)
        return;
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    tern_free(f);
}

int tern_loop_enqueue(tern_loop *l, struct tern_request_run *q, tern_error *err)
{
    int rc = 0;
    struct tern_fair *f = find_fair(l, q->r.fair_key);
    if (l->closing || l->draining)
        TERN_FAIL(err, TERN_ECAPACITY, "no further requests are taken: the engine is about to stop");
    if (l->p.kv_bytes && q->reserve > l->p.kv_bytes)
        TERN_FAIL(err, TERN_ELIMIT,
                  "the prompt takes %zu bytes of keys and values (%d choices of %d tokens), the limit is %zu",
                  q->reserve, q->r.n_choices, q->r.n_prompt, l->p.kv_bytes);
    /* Who can begin at once does not wait. */
    const int begin = l->e->max_seqs > l->n_running ? l->e->max_seqs - l->n_running : 0;
    if (l->n_waiting >= l->p.max_waiting + begin)
        TERN_FAIL(err, TERN_ECAPACITY, "%d requests are waiting, which is the limit", l->n_waiting);
    if (f && f->n_waiting >= l->p.max_waiting_per_key + begin)
        TERN_FAIL(err, TERN_ECAPACITY, "%d of your requests are waiting, which is the limit for one who asks",
                  f->n_waiting);
    TERN_TRY(need_fair(l, q->r.fair_key, &q->fair, err));
    q->fair->n_waiting++;
    q->id = ++l->next_id;
    l->waiting[l->n_waiting++] = q;
out:
    return rc;
}

static void take_out(tern_loop *l, int at)
{
    l->waiting[at]->fair->n_waiting--;
    l->n_waiting--;
    memmove(l->waiting + at, l->waiting + at + 1, (size_t)(l->n_waiting - at) * sizeof *l->waiting);
}

void tern_loop_dequeue(tern_loop *l, int at)
{
    struct tern_fair *f = l->waiting[at]->fair;
    take_out(l, at);
    drop_fair(l, f);
}

/* Does a go before b?  Neither: the older one. */
static bool goes_before(const struct tern_request_run *a, const struct tern_request_run *b)
{
    if (a->r.priority != b->r.priority)
        return a->r.priority > b->r.priority;
    if (a->preempted != b->preempted)
        return a->preempted;
    if (a->fair->n_running != b->fair->n_running)
        return a->fair->n_running < b->fair->n_running;
    return a->fair->turn < b->fair->turn;
}

struct tern_request_run *tern_loop_next(tern_loop *l)
{
    int best = 0;
    if (!l->n_waiting)
        return NULL;
    for (int i = 1; i < l->n_waiting; i++)
        if (goes_before(l->waiting[i], l->waiting[best]))
            best = i;
    struct tern_request_run *q = l->waiting[best];
    if (l->seqs_reserved + q->r.n_choices > l->e->max_seqs ||
        (l->p.kv_bytes && l->reserved + q->reserve > l->p.kv_bytes))
        return NULL;
    take_out(l, best);
    q->fair->n_running++;
    q->fair->turn = ++l->turn;
    l->reserved += q->reserve;
    l->seqs_reserved += q->r.n_choices;
    l->running[l->n_running++] = q;
    return q;
}

void tern_loop_release(tern_loop *l, struct tern_request_run *q)
{
    int at = 0;
    while (l->running[at] != q)
        at++;
    l->running[at] = l->running[--l->n_running];
    l->reserved -= q->reserve;
    l->seqs_reserved -= q->r.n_choices;
    q->fair->n_running--;
    drop_fair(l, q->fair);
}

void tern_loop_requeue(tern_loop *l, struct tern_request_run *q)
{
    int at = l->n_waiting++;
    q->fair->n_waiting++;
    tern_loop_release(l, q);
    for (; at > 0 && l->waiting[at - 1]->id > q->id; at--)
        l->waiting[at] = l->waiting[at - 1];
    l->waiting[at] = q;
    q->preempted = true;
}

/* How many of his own wait before q. */
static int rank_of(const tern_loop *l, const struct tern_request_run *q)
{
    int n = 0;
    for (int i = 0; l->waiting[i] != q; i++)
        n += l->waiting[i]->fair == q->fair && l->waiting[i]->r.priority == q->r.priority;
    return n;
}

int tern_loop_place(const tern_loop *l, const struct tern_request_run *q)
{
    int place = 0, rank = rank_of(l, q);
    for (int i = 0; i < l->n_waiting; i++) {
        const struct tern_request_run *o = l->waiting[i];
        int other = rank_of(l, o);
        if (o->r.priority != q->r.priority)
            place += o->r.priority > q->r.priority;
        else if (o->fair == q->fair || other != rank)
            place += other < rank;
        else
            place += goes_before(o, q) || (o->id < q->id && !goes_before(q, o));
    }
    return place;
}
