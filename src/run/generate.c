/* One reply: prefill, then pick - accept - show - step until something ends it. */
#include "run/run.h"

#include <string.h>
#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"

/* Text between the stream and the caller: what might be the beginning of a stop string waits here. */
struct outlet {
    const tern_generate_params *p;
    struct tern_buf held;
    bool stopped; /* a stop string was found */
    bool refused; /* the callback asked to end */
};

static int show(struct outlet *o, const char *text, size_t n, bool control, tern_error *err)
{
    int rc = 0;
    if (!n || o->refused)
        return 0;
    if (o->p->reply)
        rc = tern_reply_push(o->p->reply, text, n, control, err);
    else if (!control && o->p->on_text)
        rc = o->p->on_text(o->p->user, text, n) != 0;
    o->refused = rc > 0;
    return rc < 0 ? rc : 0;
}

/* Byte offset of the first stop string in the held text, or its length. */
static size_t find_stop(const struct outlet *o)
{
    size_t first = o->held.len;
    for (int i = 0; i < o->p->n_stop; i++) {
        size_t n = strlen(o->p->stop[i]);
        const char *at = n && o->held.p ? memmem(o->held.p, o->held.len, o->p->stop[i], n) : NULL;
        if (at && (size_t)(at - o->held.p) < first)
            first = (size_t)(at - o->held.p);
    }
    return first;
}

/* Length of the longest end of the held text that a stop string begins with. */
static size_t longest_prefix(const struct outlet *o)
{
    size_t best = 0;
    for (int i = 0; i < o->p->n_stop; i++) {
        size_t n = strlen(o->p->stop[i]);
        for (size_t k = n ? n - 1 : 0; k > best; k--)
            if (k <= o->held.len && memcmp(o->held.p + o->held.len - k, o->p->stop[i], k) == 0)
                best = k;
    }
    return best;
}

static int outlet_push(struct outlet *o, const char *text, size_t n, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_buf_add(&o->held, text, n, err));
    size_t at = find_stop(o);
    if (at < o->held.len) {
        o->stopped = true;
        TERN_TRY(show(o, o->held.p, at, false, err));
        tern_buf_reset(&o->held);
        return 0;
    }
    size_t keep = longest_prefix(o), shown = o->held.len - keep;
    TERN_TRY(show(o, o->held.p, shown, false, err));
    if (shown && keep)
        memmove(o->held.p, o->held.p + shown, keep);
    o->held.len = keep;
out:
    return rc;
}

/* Nothing can complete a stop string any more. */
static int outlet_release(struct outlet *o, tern_error *err)
{
    int rc = show(o, o->held.p, o->held.len, false, err);
    tern_buf_reset(&o->held);
    return rc;
}

/* A token's text through the stop strings.  For a reply control tokens are text too, which no stop string is part of.
 */
static int outlet_token(struct outlet *o, const tern_model *m, tern_stream *stream, int32_t id, tern_error *err)
{
    int rc = 0;
    const char *text;
    size_t n;
    struct tern_buf control = {0};
    bool mark = o->p->reply && tern_tokenizer_is_control(m->tok, id);
    TERN_TRY(mark ? tern_stream_finish(stream, &text, &n, err) : tern_stream_push(stream, id, &text, &n, err));
    TERN_TRY(outlet_push(o, text, n, err));
    if (mark && !o->stopped) {
        TERN_TRY(outlet_release(o, err));
        TERN_TRY(tern_token_bytes(m->tok, id, true, &control, err));
        TERN_TRY(show(o, control.p, control.len, true, err));
    }
out:
    tern_buf_clear(&control);
    return rc;
}

/* Tells the reply how the prompt ends: its last tokens, as text. */
static int tell_prompt(const struct outlet *o, const tern_model *m, const int32_t *ids, int n, tern_error *err)
{
    const int last = 32; /* more than any mark has */
    struct tern_buf text = {0};
    int from = n > last ? n - last : 0;
    int rc = tern_detokenize(m->tok, ids + from, (size_t)(n - from), true, &text, err);
    if (rc == 0)
        tern_reply_prompt(o->p->reply, text.p ? text.p : "", text.len);
    tern_buf_clear(&text);
    return rc;
}

/* The end of the reply: what is still held back. */
static int outlet_finish(struct outlet *o, tern_stream *stream, tern_error *err)
{
    int rc = 0;
    const char *text;
    size_t n;
    if (stream && !o->stopped) {
        TERN_TRY(tern_stream_finish(stream, &text, &n, err));
        TERN_TRY(outlet_push(o, text, n, err));
    }
    if (!o->stopped)
        TERN_TRY(outlet_release(o, err));
    if (o->p->reply)
        TERN_TRY(tern_reply_finish(o->p->reply, err));
    rc = 0;
out:
    return rc;
}

static int check_generate(const tern_engine *e, const tern_seq *s, int n_prompt, const tern_generate_params *p,
                          tern_error *err)
{
    if (n_prompt < 1)
        return tern_err_set(err, TERN_EINVAL, "the prompt is empty");
    if (p->max_tokens < -1)
        return tern_err_set(err, TERN_EINVAL, "number of tokens = %d is negative", p->max_tokens);
    if (n_prompt > e->ctx - tern_seq_length(s))
        return tern_err_set(err, TERN_ECAPACITY,
                            "a prompt of %d tokens does not fit: the context is %d tokens, %d are in use", n_prompt,
                            e->ctx, tern_seq_length(s));
    return 0;
}

/* The token loop.  logits: of the last prompt token. */
static int decode(tern_engine *e, tern_seq *s, tern_sampler *sampler, tern_stream *stream, struct outlet *o,
                  const float *logits, tern_generate_result *r, tern_error *err)
{
    int rc = 0;
    const tern_generate_params *p = o->p;
    while (p->max_tokens < 0 || r->n_generated < p->max_tokens) {
        if (atomic_exchange_explicit(&e->cancel, 0, memory_order_relaxed))
            TERN_FAIL(err, TERN_ECANCELLED, "cancelled after %d tokens", r->n_generated);
        int32_t id = tern_sampler_pick(sampler, logits);
        if (!p->ignore_eog && tern_model_is_eog(e->model, id)) {
            r->finish = TERN_FINISH_EOG;
            r->last = id;
            break;
        }
        if (tern_seq_length(s) == e->ctx) {
            r->finish = TERN_FINISH_CONTEXT;
            break;
        }
        tern_sampler_accept(sampler, id);
        r->n_generated++;
        if (stream)
            TERN_TRY(outlet_token(o, e->model, stream, id, err));
        bool last = o->stopped || o->refused || r->n_generated == p->max_tokens;
        tern_step_item it = {.seq = s,
                             .tokens = &id,
                             .n_tokens = 1,
                             .decode = true,
                             .logits = last ? TERN_LOGITS_NONE : TERN_LOGITS_LAST};
        TERN_TRY(tern_step(e, &it, 1, &logits, err));
        if (o->stopped || o->refused) {
            r->finish = o->stopped ? TERN_FINISH_STOP : TERN_FINISH_CALLBACK;
            r->last = id;
            break;
        }
    }
out:
    return rc;
}

int tern_generate(tern_engine *e, tern_seq *s, const int32_t *prompt, int n_prompt, const tern_generate_params *p,
                  tern_generate_result *result, tern_error *err)
{
    int rc = 0;
    tern_sampler *sampler = NULL;
    tern_stream *stream = NULL;
    struct outlet o = {.p = p};
    const float *logits;
    tern_generate_result r = {.finish = TERN_FINISH_LENGTH, .n_prompt = n_prompt, .last = -1};
    double start = tern_now(), mid = start;
    tern_cancel_clear(e);
    TERN_TRY(check_generate(e, s, n_prompt, p, err));
    TERN_TRY(tern_sampler_new(&sampler, e->model->net->desc.n_vocab, &p->sampler, err));
    if (e->model->tok)
        TERN_TRY(tern_stream_new(&stream, e->model, false, err));
    if (p->reply && stream)
        TERN_TRY(tell_prompt(&o, e->model, prompt, n_prompt, err));
    TERN_TRY(tern_prefill_steps(e, s, prompt, n_prompt, &logits, p->on_prefill, p->user, err));
    for (int i = 0; i < n_prompt; i++)
        tern_sampler_accept(sampler, prompt[i]);
    mid = tern_now();
    TERN_TRY(decode(e, s, sampler, stream, &o, logits, &r, err));
    TERN_TRY(outlet_finish(&o, stream, err));
out:
    r.prompt_s = (rc < 0 && mid == start ? tern_now() : mid) - start;
    r.decode_s = rc < 0 && mid == start ? 0 : tern_now() - mid;
    if (result)
        *result = r;
    tern_buf_clear(&o.held);
    tern_stream_free(stream);
    tern_sampler_free(sampler);
    return rc;
}
