/* What a request gave up is computed again, row for row in the arithmetic that each had: the prompt, then the tokens of
 * its replies as decode rows, many in one step.  Nothing is told and nothing is picked until all are there; then the
 * replies go on as if nothing had been. */
#include <string.h>
#include "base/mem.h"
#include "run/loop.h"

int tern_loop_fork(tern_loop *l, tern_seq **out, tern_seq *from, tern_error *err)
{
    int rc = tern_seq_fork(out, from, err);
    while (rc == TERN_ECAPACITY && l->prefix.shrink && l->prefix.shrink(l->prefix.self))
        rc = tern_seq_fork(out, from, err);
    return rc;
}

void tern_again_give_up(struct tern_request_run *q)
{
    tern_error err = {0};
    for (int i = 0; i < q->r.n_choices; i++) {
        struct tern_choice *c = &q->choices[i];
        int n = c->seq ? tern_seq_length(c->seq) - q->r.n_prompt : 0;
        if (!c->seq)
            continue;
        if (c->gen.phase == TERN_GEN_PROMPT) {
            c->gen.done = 0;
        } else if (q->again) { /* it was not through with what it gave up before */
            c->again_done = 0;
        } else if (tern_alloc(&c->again, (size_t)n, sizeof *c->again, &err) < 0) {
            tern_request_fail(q, err.code, err.msg);
        } else {
            c->n_again = n;
            c->again_done = 0;
            memcpy(c->again, tern_seq_tokens(c->seq) + q->r.n_prompt, (size_t)n * sizeof *c->again);
        }
        tern_seq_free(c->seq);
        c->seq = NULL;
    }
    q->again = q->prompted > 0;
}

struct tern_choice *tern_again_first(struct tern_request_run *q)
{
    int i = 0;
    while (i < q->r.n_choices - 1 && q->choices[i].over)
        i++;
    return &q->choices[i];
}

static const struct tern_choice *first_of(const struct tern_request_run *q)
{
    return tern_again_first((struct tern_request_run *)q);
}

/* All is there again. */
static void go_on(struct tern_request_run *q)
{
    for (int i = 0; i < q->r.n_choices; i++) {
        tern_free(q->choices[i].again);
        q->choices[i].again = NULL;
        q->choices[i].n_again = q->choices[i].again_done = 0;
    }
    q->again = false;
}

/* The prompt is there again: its choices part as they did. */
static void part_again(tern_loop *l, struct tern_request_run *q)
{
    tern_error err = {0};
    struct tern_choice *first = tern_again_first(q);
    for (int i = 0; i < q->r.n_choices; i++) {
        struct tern_choice *c = &q->choices[i];
        if (c != first && !c->over && tern_loop_fork(l, &c->seq, first->seq, &err) < 0) {
            tern_request_fail(q, err.code, err.msg);
            return;
        }
    }
}

void tern_again_begin(tern_loop *l, struct tern_request_run *q)
{
    if (tern_seq_length(first_of(q)->seq) == q->r.n_prompt)
        part_again(l, q);
    if (tern_again_rest(q) == 0)
        go_on(q);
}

int tern_again_rest(const struct tern_request_run *q)
{
    int n = q->r.n_prompt - tern_seq_length(first_of(q)->seq);
    n = n > 0 ? n : 0;
    for (int i = 0; i < q->r.n_choices; i++)
        if (!q->choices[i].over)
            n += q->choices[i].n_again - q->choices[i].again_done;
    return n;
}

struct tern_choice *tern_again_next(tern_loop *l, struct tern_request_run *q, int room, tern_step_item *out)
{
    struct tern_choice *c = tern_again_first(q);
    int length = tern_seq_length(c->seq), left = q->r.n_prompt - length;
    if (left > 0) {
        q->step = l->n_steps;
        *out = (tern_step_item){.seq = c->seq, .tokens = q->r.prompt + length, .n_tokens = left < room ? left : room};
        return c;
    }
    q->again_at = q->step == l->n_steps ? q->again_at : 0;
    q->step = l->n_steps;
    while (q->again_at < q->r.n_choices) {
        c = &q->choices[q->again_at++];
        left = c->n_again - c->again_done;
        if (c->over || !left)
            continue;
        int most = tern_engine_max_decode(l->e);
        most = most < room ? most : room;
        *out = (tern_step_item){
            .seq = c->seq, .tokens = c->again + c->again_done, .n_tokens = left < most ? left : most, .decode = true};
        return c;
    }
    return NULL;
}

void tern_again_take(tern_loop *l, struct tern_choice *c, const tern_step_item *it)
{
    struct tern_request_run *q = c->request;
    if (it->decode)
        c->again_done += it->n_tokens;
    else if (tern_seq_length(c->seq) == q->r.n_prompt)
        part_again(l, q);
    if (q->rc == 0 && tern_again_rest(q) == 0)
        go_on(q);
}
