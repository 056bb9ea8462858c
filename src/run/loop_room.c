/* Room: a request is let in when there is room for the pages of its prompt and of the first tokens of its reply, and
 * gets more as it grows, a page at a time.  When pages run out, the youngest of the lowest priority gives up its own,
 * waits for room before all others, and computes its rows again; the oldest is never the one.  So whatever is let in
 * comes to its end, nothing fails in a step, and nobody holds room for tokens that may never come. */
#include "run/loop.h"

/* Most bytes of a group's pages that n tokens take. */
static size_t page_bytes(const struct tern_kv_cache *c, int group, int n_tokens)
{
    int pages = n_tokens / TERN_PAGE, most = c->seqs[0].table[group].cap;
    return c->pool[group].mem.bytes * (size_t)(pages < most ? pages : most);
}

/* Bytes of a request whose replies have so many tokens each. */
static size_t bytes_for(const tern_loop *l, const tern_request *r, int more)
{
    const struct tern_kv_cache *c = &l->e->caches[r->plan];
    size_t own = c->tiles.mem.bytes, shared = 0;
    own += c->layout->sink_bytes ? c->sinks.mem.bytes : 0;
    own += c->layout->state_bytes ? c->states.mem.bytes * (TERN_KV_KEPT_STATES + 1) : 0;
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
static bool may_go(const struct tern_request_run *q)
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
        if (may_go(o) && (o->r.priority != best->r.priority ? o->r.priority < best->r.priority : o->id > best->id))
            best = o;
    }
    return best;
}

int tern_room_grow(tern_loop *l)
{
    int n = 0;
    struct tern_request_run *q;
    while ((q = next_to_grow(l)) != NULL) {
        const int room = q->room;
        size_t before = q->reserve, others = l->reserved - before;
        set_room(l, q, grown(q) + TERN_PAGE);
        if (!l->p.kv_bytes || others + q->reserve <= l->p.kv_bytes) {
            l->reserved = others + q->reserve;
            continue;
        }
        struct tern_request_run *out = who_goes(l, q);
        int had = grown(out);
        q->reserve = before;
        q->room = room;
        tern_loop_requeue(l, out);
        set_room(l, out, had + l->p.reply_tokens);
        l->given_up[n++] = out;
        l->stats.preempted++;
    }
    return n;
}
