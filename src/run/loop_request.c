/* A request of a loop: checked, copied, its replies, and what they tell. */
#include <math.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "run/loop.h"
#include "run/sampler.h"

#define MAX_STOP     64
#define MAX_STOP_IDS 1000
#define MAX_LOGPROBS 1024
#define MOST_BORDERS 16 /* of a prompt at which steps end, about */

void tern_request_defaults(tern_request *r)
{
    *r = (tern_request){.max_tokens = -1, .n_choices = 1, .logprobs = -1, .prompt_logprobs = -1};
    tern_sampler_defaults(&r->sampler);
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static int check_count(const char *name, int v, int lo, int hi, tern_error *err)
{
    if (v >= lo && v <= hi)
        return 0;
    return tern_err_set(err, TERN_EINVAL, "%s = %d is outside %d..%d", name, v, lo, hi);
}

static int check_stop(const tern_request *r, tern_error *err)
{
    int rc = 0;
    TERN_TRY(check_count("number of stop strings", r->n_stop, 0, MAX_STOP, err));
    TERN_TRY(check_count("number of stop tokens", r->n_stop_ids, 0, MAX_STOP_IDS, err));
    TERN_TRY(tern_list_check("stop strings", r->stop, r->n_stop, err));
    TERN_TRY(tern_list_check("stop tokens", r->stop_ids, r->n_stop_ids, err));
    for (int i = 0; i < r->n_stop; i++)
        if (!r->stop[i] || !*r->stop[i])
            TERN_FAIL(err, TERN_EINVAL, "stop string %d is empty", i);
out:
    return rc;
}

static int check_embed(const tern_request *r, tern_error *err)
{
    if (r->embed == TERN_EMBED_NONE)
        return 0;
    if (r->embed != TERN_EMBED_LAST && r->embed != TERN_EMBED_MEAN)
        return tern_err_set(err, TERN_EINVAL, "embed = %d is no kind of embedding", (int)r->embed);
    if (r->max_tokens != 0)
        return tern_err_set(err, TERN_EINVAL, "max_tokens = %d: an embedding generates nothing", r->max_tokens);
    return 0;
}

static int check(const tern_loop *l, const tern_request *r, tern_error *err)
{
    int rc = 0, n_vocab = l->e->model->net->desc.n_vocab;
    TERN_TRY(check_count("plan", r->plan, 0, l->e->n_plans - 1, err));
    TERN_TRY(check_count("number of choices", r->n_choices, 0, l->p.max_choices, err));
    TERN_TRY(check_count("logprobs", r->logprobs, -1, l->p.max_logprobs, err));
    TERN_TRY(check_count("prompt logprobs", r->prompt_logprobs, -1, l->p.max_logprobs, err));
    TERN_TRY(check_count("n_bias", r->sampler.n_bias, 0, n_vocab, err));
    TERN_TRY(check_stop(r, err));
    TERN_TRY(check_embed(r, err));
    if (!(r->timeout_s >= 0))
        TERN_FAIL(err, TERN_EINVAL, "timeout = %g seconds is negative", r->timeout_s);
    if (r->n_prompt < 1 || !r->prompt)
        TERN_FAIL(err, TERN_EINVAL, "the prompt is empty");
    if (r->n_prompt > l->e->ctx)
        TERN_FAIL(err, TERN_ELIMIT, "the prompt has %d tokens and the context holds %d", r->n_prompt, l->e->ctx);
    for (int i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= n_vocab)
            TERN_FAIL(err, TERN_EINVAL, "token %d of the prompt is %d, outside the vocabulary of %d", i, r->prompt[i],
                      n_vocab);
    TERN_TRY(check_count("number of borders", r->n_borders, 0, r->n_prompt, err));
    TERN_TRY(tern_list_check("borders", r->borders, r->n_borders, err));
    for (int i = 0; i < r->n_borders; i++)
        if (r->borders[i] <= (i ? r->borders[i - 1] : 0) || r->borders[i] > r->n_prompt)
            TERN_FAIL(err, TERN_EINVAL,
                      "border %d after %d tokens is not between the one before it and the prompt's %d", i,
                      r->borders[i], r->n_prompt);
    if (r->reply && r->reply->on_event)
        TERN_FAIL(err, TERN_EINVAL, "reply: on_event is the loop's");
    if (r->one_call && !r->reply)
        TERN_FAIL(err, TERN_EINVAL, "one_call: without reply there are no calls");
    if (r->reply && !l->e->model->tok)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "reply: the model has no tokenizer");
    if ((r->n_stop || r->constraint.allow) && !l->e->model->tok && r->n_stop)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "stop strings: the model has no tokenizer");
    if (r->constraint.allow && (!r->constraint.accept || !r->constraint.fork || !r->constraint.free))
        TERN_FAIL(err, TERN_EINVAL, "constraint: a function is missing");
out:
    return rc;
}

/* ---- telling ----------------------------------------------------------------------------------------------------- */

void tern_request_fail(struct tern_request_run *q, int rc, const char *message)
{
    if (q->rc == 0)
        q->rc = tern_err_set(&q->err, rc, "%s", message);
}

void tern_request_tell(struct tern_request_run *q, const tern_event *e)
{
    tern_error err = {0};
    struct tern_event_node *n;
    tern_event copy = *e;
    copy.id = q->id;
    copy.user = q->user;
    if (q->mute)
        return;
    q->mute = tern_event_new(&n, &copy, &err) < 0;
    if (q->mute)
        tern_request_fail(q, TERN_ENOMEM, err.msg);
    else
        tern_events_push(q->events, n);
}

static int on_text(void *user, const char *text, size_t n)
{
    struct tern_choice *c = user;
    tern_request_tell(
        c->request,
        &(tern_event){
            .kind = TERN_EVENT_TEXT, .choice = c->index, .text = text, .n = n, .n_generated = c->gen.n_generated});
    return 0;
}

static int on_reply(void *user, const tern_reply_event *e)
{
    static const tern_event_kind kinds[] = {
        [TERN_REPLY_CONTENT] = TERN_EVENT_TEXT,          [TERN_REPLY_REASONING] = TERN_EVENT_REASONING,
        [TERN_REPLY_CALL_BEGIN] = TERN_EVENT_CALL_BEGIN, [TERN_REPLY_CALL_ARGUMENTS] = TERN_EVENT_CALL_ARGUMENTS,
        [TERN_REPLY_CALL_END] = TERN_EVENT_CALL_END,     [TERN_REPLY_NOTICE] = TERN_EVENT_NOTICE,
    };
    struct tern_choice *c = user;
    tern_event out = {.kind = kinds[e->kind],
                      .choice = c->index,
                      .text = e->text,
                      .n = e->n,
                      .call = e->index,
                      .n_generated = c->gen.n_generated};
    if (e->kind == TERN_REPLY_CALL_BEGIN) {
        out.text = NULL;
        out.n = 0;
        out.name = e->name;
        out.call_id = e->id;
    }
    c->thinking = c->thinking || e->kind == TERN_REPLY_REASONING;
    tern_request_tell(c->request, &out);
    const tern_request *r = &c->request->r;
    return r->one_call && e->kind == TERN_REPLY_CALL_END && c->gen.n_generated >= r->min_tokens;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static int copy(void *out, const void *from, size_t n, size_t size, tern_error *err)
{
    void *p;
    int rc = tern_alloc(&p, n, size, err);
    if (rc == 0 && n)
        memcpy(p, from, n * size);
    memcpy(out, &p, sizeof p);
    return rc;
}

/* Of the borders those that are far enough behind the one before, and the last; none where the cache makes nothing of
 * them. */
static int copy_borders(struct tern_request_run *q, const tern_request *r, tern_error *err)
{
    int32_t *to;
    const struct tern_prefix *p = &q->loop->prefix;
    int apart = p->apart ? p->apart(p->self, r->plan) : 0, n = apart ? r->n_borders : 0;
    apart = r->n_prompt / MOST_BORDERS > apart ? r->n_prompt / MOST_BORDERS : apart;
    while (n && r->borders[n - 1] == r->n_prompt)
        n--;
    int rc = tern_alloc(&to, (size_t)n, sizeof *to, err);
    q->r.borders = to;
    q->r.n_borders = 0;
    for (int i = 0, last = 0; rc == 0 && i < n; i++)
        if (r->borders[i] - last >= apart || i == n - 1)
            to[q->r.n_borders++] = last = r->borders[i];
    return rc;
}

/* The request's own arrays in place of the submitter's; what is not copied yet is NULL. */
static int copy_arrays(struct tern_request_run *q, const tern_request *r, tern_error *err)
{
    int rc = 0;
    char **stop = NULL;
    q->r.prompt = q->r.borders = NULL;
    q->r.stop = NULL;
    q->r.stop_ids = NULL;
    q->r.reply = NULL;
    q->r.sampler.bias_ids = NULL;
    q->r.sampler.bias_values = NULL;
    TERN_TRY(copy(&q->r.prompt, r->prompt, (size_t)r->n_prompt, sizeof *r->prompt, err));
    TERN_TRY(copy_borders(q, r, err));
    TERN_TRY(copy(&q->r.stop_ids, r->stop_ids, (size_t)r->n_stop_ids, sizeof *r->stop_ids, err));
    TERN_TRY(tern_alloc(&stop, (size_t)r->n_stop, sizeof *stop, err));
    q->r.stop = (const char *const *)stop;
    for (int i = 0; i < r->n_stop; i++)
        TERN_TRY(copy(&stop[i], r->stop[i], strlen(r->stop[i]) + 1, 1, err));
out:
    return rc;
}

static int open_choice(struct tern_choice *c, const tern_request *r, tern_error *err)
{
    int rc = 0;
    struct tern_request_run *q = c->request;
    const tern_model *m = q->loop->e->model;
    struct tern_gen_params p = {.sampler = r->sampler,
                                .max_tokens = r->max_tokens,
                                .min_tokens = r->min_tokens,
                                .ignore_eog = r->ignore_eos,
                                .continues = r->continues,
                                .stop = q->r.stop,
                                .n_stop = r->n_stop,
                                .stop_ids = q->r.stop_ids,
                                .n_stop_ids = r->n_stop_ids,
                                .keep_stop = r->keep_stop,
                                .show_control = r->show_control,
                                .on_text = on_text,
                                .user = c};
    p.sampler.seed += (uint64_t)c->index;
    if (r->reply) {
        tern_reply_params rp = *r->reply;
        rp.seed += (uint64_t)c->index;
        rp.on_event = on_reply;
        rp.user = c;
        TERN_TRY(tern_reply_new(&c->reply, m, &rp, err));
        p.reply = c->reply;
    }
    TERN_TRY(tern_gen_open(&c->gen, m, &p, q->r.prompt, r->n_prompt, err));
    tern_draft_open(&c->draft, q->loop->e->drafter, &c->gen);
    if (r->logprobs > 0)
        TERN_TRY(tern_alloc(&c->top, (size_t)r->logprobs, sizeof *c->top, err));
    if (!r->constraint.allow)
        goto out;
    TERN_TRY(tern_alloc(&c->mask, ((size_t)m->net->desc.n_vocab + 31) / 32, sizeof *c->mask, err));
    c->constraint = c->index ? r->constraint.fork(r->constraint.state) : r->constraint.state;
    if (!c->constraint && c->index)
        TERN_FAIL(err, TERN_ENOMEM, "constraint: no memory for choice %d", c->index);
out:
    return rc;
}

int tern_request_new(struct tern_request_run **out, tern_loop *l, const tern_request *r, tern_events *events,
                     void *user, tern_error *err)
{
    int rc = 0;
    struct tern_request_run *q = NULL;
    *out = NULL;
    TERN_TRY(check(l, r, err));
    TERN_TRY(tern_alloc(&q, 1, sizeof *q, err));
    q->loop = l;
    q->user = user;
    q->r = *r;
    q->r.n_choices = r->n_choices ? r->n_choices : 1;
    q->submitted = tern_now();
    TERN_TRY(copy_arrays(q, r, err));
    TERN_TRY(tern_event_new_end(&q->end, err));
    if (r->embed != TERN_EMBED_NONE) {
        TERN_TRY(tern_alloc(&q->vector, (size_t)l->e->model->net->desc.n_embd, sizeof *q->vector, err));
        TERN_TRY(tern_alloc(&q->sum, (size_t)l->e->model->net->desc.n_embd, sizeof *q->sum, err));
    }
    TERN_TRY(tern_alloc(&q->choices, (size_t)q->r.n_choices, sizeof *q->choices, err));
    for (int i = 0; i < q->r.n_choices; i++) {
        q->choices[i].request = q;
        q->choices[i].index = i;
        TERN_TRY(open_choice(&q->choices[i], r, err));
    }
    tern_events_ref(events);
    q->events = events;
    *out = q;
    q = NULL;
out:
    tern_request_free(q, true);
    return rc;
}

void tern_request_free(struct tern_request_run *q, bool keep_constraint)
{
    if (!q)
        return;
    for (int i = 0; q->choices && i < q->r.n_choices; i++) {
        struct tern_choice *c = &q->choices[i];
        if (c->constraint && !(keep_constraint && i == 0))
            q->r.constraint.free(c->constraint);
        tern_seq_free(c->seq);
        tern_draft_close(&c->draft);
        tern_gen_close(&c->gen);
        tern_reply_free(c->reply);
        tern_free(c->mask);
        tern_free(c->top);
        tern_free(c->again);
    }
    tern_free(q->choices);
    for (int i = 0; q->r.stop && i < q->r.n_stop; i++)
        tern_free((void *)q->r.stop[i]);
    tern_free((void *)q->r.stop);
    tern_free((void *)q->r.stop_ids);
    tern_free((void *)q->r.prompt);
    tern_free((void *)q->r.borders);
    tern_free(q->end);
    tern_free(q->vector);
    tern_free(q->sum);
    if (q->events)
        tern_events_unref(q->events);
    tern_free(q);
}

/* ---- ending ------------------------------------------------------------------------------------------------------ */

void tern_choice_end(struct tern_choice *c, tern_finish finish)
{
    tern_error err = {0};
    struct tern_request_run *q = c->request;
    if (c->over)
        return;
    bool complete = finish == c->gen.finish;
    if (complete && tern_gen_finish(&c->gen, &err) < 0) {
        tern_request_fail(q, err.code, err.msg);
        complete = false;
        finish = TERN_FINISH_ERROR;
    }
    c->over = true;
    tern_request_tell(q, &(tern_event){.kind = TERN_EVENT_CHOICE,
                                       .choice = c->index,
                                       .finish = finish,
                                       .stop = complete ? c->gen.stop : -1,
                                       .last = complete ? c->gen.last : -1,
                                       .n_generated = c->n_generated,
                                       .n_reasoning = c->n_thought,
                                       .n_drafted = c->draft.n_drafted,
                                       .n_accepted = c->draft.n_accepted,
                                       .logprob = q->r.logprobs >= 0 ? c->logprob : NAN});
    tern_draft_close(&c->draft);
    tern_seq_free(c->seq);
    c->seq = NULL;
}

bool tern_request_over(const struct tern_request_run *q)
{
    for (int i = 0; i < q->r.n_choices; i++)
        if (!q->choices[i].over)
            return false;
    return true;
}

void tern_request_end(struct tern_request_run *q, double now)
{
    tern_event *e = tern_event_of(q->end);
    tern_finish why = q->rc == TERN_ECANCELLED ? TERN_FINISH_CANCELLED
                      : q->rc == TERN_ELIMIT   ? TERN_FINISH_TIMEOUT
                                               : TERN_FINISH_ERROR;
    for (int i = 0; q->started > 0 && i < q->r.n_choices; i++)
        tern_choice_end(&q->choices[i], why);
    e->id = q->id;
    e->user = q->user;
    e->rc = q->rc;
    if (q->rc < 0)
        memcpy((char *)e->message, q->err.msg, sizeof q->err.msg);
    else
        e->message = NULL;
    for (int i = 0; i < q->r.n_choices; i++) {
        e->n_generated += q->choices[i].n_generated;
        e->n_reasoning += q->choices[i].n_thought;
        e->n_drafted += q->choices[i].draft.n_drafted;
        e->n_accepted += q->choices[i].draft.n_accepted;
    }
    e->n_prompt = q->r.n_prompt;
    e->n_cached = q->n_cached;
    e->queue_s = (q->started > 0 ? q->started : now) - q->submitted;
    e->prompt_s = q->started > 0 ? (q->prompted > 0 ? q->prompted : now) - q->started : 0;
    e->first_s = q->first > 0 ? q->first - q->submitted : 0;
    e->decode_s = q->first > 0 ? now - q->first : 0;
    tern_events_push(q->events, q->end);
    q->end = NULL;
}
