/* tests/support/loop_case.h - requests of a loop and what came of them. */
#ifndef TERN_TEST_LOOP_CASE_H
#define TERN_TEST_LOOP_CASE_H

#include <stdatomic.h>
#include "base/rng.h"
#include "tern/loop.h"
#include "tiny.h"

enum { LC_CHOICES = 4, LC_TOKENS = 600, LC_TEXT = 8192 };

static atomic_int lc_turns;

struct lc_choice {
    int32_t ids[LC_TOKENS];
    double logprob[LC_TOKENS];
    int n;
    char text[LC_TEXT], thought[LC_TEXT], calls[LC_TEXT];
    size_t n_text, n_thought, n_calls;
    bool over;
    tern_event end; /* its views are dead */
};

struct lc_request { /* `user` of its events */
    uint64_t id;
    struct lc_choice c[LC_CHOICES];
    double score[LC_TOKENS]; /* of the prompt */
    int turn;                /* of its start among all */
    int n_scores, done, n_vector, starts, ends, rc;
    float vector[512];
    char message[400];
    tern_event end;
};

static inline void lc_add(char *buf, size_t *n, const char *text, size_t len)
{
    assert_true(*n + len < LC_TEXT);
    memcpy(buf + *n, text, len);
    *n += len;
    buf[*n] = 0;
}

static inline void lc_call(struct lc_choice *c, const tern_event *e)
{
    if (e->kind == TERN_EVENT_CALL_BEGIN)
        lc_add(c->calls, &c->n_calls, e->name, strlen(e->name));
    else if (e->kind == TERN_EVENT_CALL_ARGUMENTS)
        lc_add(c->calls, &c->n_calls, e->text, e->n);
    else
        lc_add(c->calls, &c->n_calls, ";", 1);
}

/* Notes one event; checks that it may come now. */
static inline void lc_note(const tern_event *e)
{
    struct lc_request *r = e->user;
    struct lc_choice *c = &r->c[e->choice];
    assert_int_equal(r->ends, 0);
    assert_false(c->over && e->kind != TERN_EVENT_END);
    r->id = r->id ? r->id : e->id;
    assert_true(r->id == e->id);
    switch (e->kind) {
    case TERN_EVENT_START:
        r->starts++;
        r->turn = atomic_fetch_add(&lc_turns, 1);
        break;
    case TERN_EVENT_PROMPT:
        assert_true(e->done > r->done && e->done <= e->n_prompt);
        r->done = e->done;
        break;
    case TERN_EVENT_SCORES:
        assert_int_equal(e->done, r->n_scores);
        for (int i = 0; i < e->n_tokens; i++)
            r->score[r->n_scores++] = e->tokens[i].logprob;
        break;
    case TERN_EVENT_EMBEDDING:
        r->n_vector = e->n_vector;
        memcpy(r->vector, e->vector, (size_t)e->n_vector * sizeof *e->vector);
        break;
    case TERN_EVENT_TOKEN:
        assert_int_equal(e->n_tokens, 1);
        c->logprob[c->n] = e->tokens[0].logprob;
        c->ids[c->n++] = e->tokens[0].id;
        break;
    case TERN_EVENT_TEXT:
        lc_add(c->text, &c->n_text, e->text, e->n);
        break;
    case TERN_EVENT_REASONING:
        lc_add(c->thought, &c->n_thought, e->text, e->n);
        break;
    case TERN_EVENT_CALL_BEGIN:
    case TERN_EVENT_CALL_ARGUMENTS:
    case TERN_EVENT_CALL_END:
        lc_call(c, e);
        break;
    case TERN_EVENT_NOTICE:
        break;
    case TERN_EVENT_CHOICE:
        c->over = true;
        c->end = *e;
        break;
    case TERN_EVENT_END:
        r->ends++;
        r->rc = e->rc;
        r->end = *e;
        (void)snprintf(r->message, sizeof r->message, "%s", e->message ? e->message : "");
        break;
    }
}

/* Receives until `n` requests have ended. */
static inline void lc_wait(tern_events *q, struct lc_request *const *r, int n)
{
    for (int i = 0; i < n; i++)
        while (!r[i]->ends) {
            tern_event e;
            if (!tern_events_next(q, &e, 60000))
                fail_msg("no event for a minute");
            lc_note(&e);
        }
}

static inline struct lc_request *lc_new(void)
{
    struct lc_request *r = calloc(1, sizeof *r);
    assert_non_null(r);
    return r;
}

static inline void lc_random_ids(int32_t *ids, int n, uint64_t seed, int n_vocab)
{
    struct tern_rng g = {seed};
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)(tern_rng_u64(&g) % (uint64_t)n_vocab);
}

/* A greedy reply of max_tokens, with the probabilities of its tokens. */
static inline tern_request lc_greedy(const int32_t *ids, int n, int max_tokens)
{
    tern_request r;
    tern_request_defaults(&r);
    r.prompt = ids;
    r.n_prompt = n;
    r.max_tokens = max_tokens;
    r.logprobs = 0;
    r.ignore_eos = true;
    return r;
}

/* *id: NULL where nobody asks. */
static inline struct lc_request *lc_submit(tern_loop *l, tern_events *q, const tern_request *r, uint64_t *id)
{
    tern_error err = {0};
    struct lc_request *rec = lc_new();
    uint64_t any;
    tiny_ok(tern_loop_submit(l, r, q, rec, id ? id : &any, &err), &err);
    return rec;
}

static inline struct lc_request *lc_ask(tern_loop *l, tern_events *q, const tern_request *r)
{
    struct lc_request *rec = lc_submit(l, q, r, NULL);
    lc_wait(q, &rec, 1);
    assert_int_equal(rec->rc, 0);
    return rec;
}

/* Closes an engine whose loop is closed: everything has been given back. */
static inline void lc_close_engine(tern_engine **e)
{
    tern_memory mem;
    tern_engine_memory(*e, &mem);
    assert_int_equal(mem.kv_bytes, 0);
    assert_int_equal(mem.state_bytes, 0);
    tern_engine_close(e);
}

/* The choice's tokens by itself, in an engine of its own: *out [n] as many as it generates. */
static inline int lc_alone(tern_engine *e, const tern_request *r, int choice, int32_t *out)
{
    tern_error err = {0};
    tern_seq *s;
    tern_generate_result result;
    tern_generate_params p = {.sampler = r->sampler, .max_tokens = r->max_tokens, .ignore_eog = r->ignore_eos};
    p.sampler.seed += (uint64_t)choice;
    p.stop = r->stop;
    p.n_stop = r->n_stop;
    tiny_ok(tern_seq_new_plan(&s, e, r->plan, &err), &err);
    tiny_ok(tern_generate(e, s, r->prompt, r->n_prompt, &p, &result, &err), &err);
    memcpy(out, tern_seq_tokens(s) + r->n_prompt, (size_t)result.n_generated * sizeof *out);
    tern_seq_free(s);
    return result.n_generated;
}

#endif
