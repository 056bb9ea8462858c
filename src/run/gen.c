/* One reply in the making: pick - accept - show, until something ends it. */
#include "run/gen.h"

#include <string.h>
#include "base/mem.h"
#include "run/sampler.h"

/* ---- text: what might be the beginning of a stop string waits ---------------------------------------------------- */

static int show(struct tern_gen *g, const char *text, size_t n, bool control, tern_error *err)
{
    int rc = 0;
    if (!n || g->refused)
        return 0;
    if (g->p.reply)
        rc = tern_reply_push(g->p.reply, text, n, control, err);
    else if (!control && g->p.on_text)
        rc = g->p.on_text(g->p.user, text, n) != 0;
    g->refused = rc > 0;
    return rc < 0 ? rc : 0;
}

/* Do stop strings count yet? */
static int n_stop(const struct tern_gen *g)
{
    return g->n_generated > g->p.min_tokens ? g->p.n_stop : 0;
}

/* Byte offset of the first stop string in the held text, or its length. */
static size_t find_stop(struct tern_gen *g)
{
    size_t first = g->held.len;
    for (int i = 0; i < n_stop(g); i++) {
        size_t n = strlen(g->p.stop[i]);
        const char *at = n && g->held.p ? memmem(g->held.p, g->held.len, g->p.stop[i], n) : NULL;
        if (at && (size_t)(at - g->held.p) < first) {
            first = (size_t)(at - g->held.p);
            g->stop = i;
        }
    }
    return first;
}

/* Length of the longest end of the held text that a stop string begins with. */
static size_t longest_prefix(const struct tern_gen *g)
{
    size_t best = 0;
    for (int i = 0; i < n_stop(g); i++) {
        size_t n = strlen(g->p.stop[i]);
        for (size_t k = n ? n - 1 : 0; k > best; k--)
            if (k <= g->held.len && memcmp(g->held.p + g->held.len - k, g->p.stop[i], k) == 0)
                best = k;
    }
    return best;
}

static int push_text(struct tern_gen *g, const char *text, size_t n, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_buf_add(&g->held, text, n, err));
    size_t at = find_stop(g);
    if (at < g->held.len) {
        at += g->p.keep_stop ? strlen(g->p.stop[g->stop]) : 0;
        TERN_TRY(show(g, g->held.p, at, false, err));
        tern_buf_reset(&g->held);
        return 0;
    }
    size_t keep = longest_prefix(g), shown = g->held.len - keep;
    TERN_TRY(show(g, g->held.p, shown, false, err));
    if (shown && keep)
        memmove(g->held.p, g->held.p + shown, keep);
    g->held.len = keep;
out:
    return rc;
}

/* Nothing can complete a stop string any more. */
static int release(struct tern_gen *g, tern_error *err)
{
    int rc = show(g, g->held.p, g->held.len, false, err);
    tern_buf_reset(&g->held);
    return rc;
}

/* A token's text through the stop strings.  For a reply control tokens are text too, which no stop string is part of.
 */
static int push_token(struct tern_gen *g, int32_t id, tern_error *err)
{
    int rc = 0;
    const char *text;
    size_t n;
    struct tern_buf control = {0};
    bool mark = g->p.reply && !g->p.show_control && tern_tokenizer_is_control(g->model->tok, id);
    TERN_TRY(mark ? tern_stream_finish(g->stream, &text, &n, err) : tern_stream_push(g->stream, id, &text, &n, err));
    TERN_TRY(push_text(g, text, n, err));
    if (mark && g->stop < 0) {
        TERN_TRY(release(g, err));
        TERN_TRY(tern_token_bytes(g->model->tok, id, true, &control, err));
        TERN_TRY(show(g, control.p, control.len, true, err));
    }
out:
    tern_buf_clear(&control);
    return rc;
}

/* Tells the reply how the prompt ends: its last tokens, as text. */
static int tell_prompt(const struct tern_gen *g, tern_error *err)
{
    const int last = 32; /* more than any mark has */
    struct tern_buf text = {0};
    int from = g->n_prompt > last ? g->n_prompt - last : 0;
    int rc = tern_detokenize(g->model->tok, g->prompt + from, (size_t)(g->n_prompt - from), true, &text, err);
    if (rc == 0)
        tern_reply_prompt(g->p.reply, text.p ? text.p : "", text.len);
    tern_buf_clear(&text);
    return rc;
}

/* ---- the machine ------------------------------------------------------------------------------------------------- */

static bool is_stop_id(const struct tern_gen *g, int32_t id)
{
    for (int i = 0; i < g->p.n_stop_ids; i++)
        if (g->p.stop_ids[i] == id)
            return true;
    return false;
}

static bool is_end(const struct tern_gen *g, int32_t id)
{
    return !g->p.ignore_eog && tern_model_is_eog(g->model, id);
}

/* What must not be picked before min_tokens. */
static int list_never(struct tern_gen *g, tern_error *err)
{
    int rc = 0, n_vocab = g->model->net->desc.n_vocab;
    size_t cap = 0;
    for (int32_t id = 0; g->p.min_tokens > 0 && id < n_vocab; id++)
        if (is_end(g, id) || is_stop_id(g, id)) {
            TERN_TRY(tern_grow(&g->never, &cap, (size_t)g->n_never + 1, sizeof *g->never, err));
            g->never[g->n_never++] = id;
        }
out:
    return rc;
}

static int check(const struct tern_gen *g, tern_error *err)
{
    int n_vocab = g->model->net->desc.n_vocab;
    if (g->n_prompt < 1 || !g->prompt)
        return tern_err_set(err, TERN_EINVAL, "the prompt is empty");
    if (g->p.max_tokens < -1)
        return tern_err_set(err, TERN_EINVAL, "number of tokens = %d is negative", g->p.max_tokens);
    if (g->p.min_tokens < 0)
        return tern_err_set(err, TERN_EINVAL, "least number of tokens = %d is negative", g->p.min_tokens);
    for (int i = 0; i < g->p.n_stop; i++)
        if (!g->p.stop || !g->p.stop[i])
            return tern_err_set(err, TERN_EINVAL, "stop string %d is missing", i);
    int rc = tern_list_check("stop tokens", g->p.stop_ids, g->p.n_stop_ids, err);
    for (int i = 0; rc == 0 && i < g->p.n_stop_ids; i++)
        if (g->p.stop_ids[i] < 0 || g->p.stop_ids[i] >= n_vocab)
            return tern_err_set(err, TERN_EINVAL, "stop token %d is outside the vocabulary of %d", g->p.stop_ids[i],
                                n_vocab);
    return rc;
}

int tern_gen_open(struct tern_gen *g, const tern_model *m, const struct tern_gen_params *p, const int32_t *prompt,
                  int n_prompt, tern_error *err)
{
    int rc = 0;
    *g = (struct tern_gen){.model = m,
                           .p = *p,
                           .prompt = prompt,
                           .n_prompt = n_prompt,
                           .stop = -1,
                           .finish = TERN_FINISH_LENGTH,
                           .last = -1};
    TERN_TRY(check(g, err));
    TERN_TRY(tern_sampler_new(&g->sampler, m->net->desc.n_vocab, &p->sampler, err));
    TERN_TRY(list_never(g, err));
    if (m->tok)
        TERN_TRY(tern_stream_new(&g->stream, m, p->show_control, err));
    if (m->tok && p->continues)
        TERN_TRY(tern_stream_behind(g->stream, prompt[n_prompt - 1], err));
    if (p->reply && m->tok)
        TERN_TRY(tell_prompt(g, err));
    return 0;
out:
    tern_gen_close(g);
    return rc;
}

void tern_gen_close(struct tern_gen *g)
{
    tern_sampler_free(g->sampler);
    tern_stream_free(g->stream);
    tern_buf_clear(&g->held);
    tern_free(g->never);
    *g = (struct tern_gen){.phase = TERN_GEN_OVER};
}

void tern_gen_prompted(struct tern_gen *g, int n)
{
    g->done += n;
    if (g->done < g->n_prompt)
        return;
    for (int i = 0; i < g->n_prompt; i++)
        tern_sampler_prompt(g->sampler, g->prompt[i]);
    g->phase = g->p.max_tokens == 0 ? TERN_GEN_OVER : TERN_GEN_PICK;
}

/* Of ids that may not be picked. */
static int n_never(const struct tern_gen *g)
{
    return g->n_generated < g->p.min_tokens ? g->n_never : 0;
}

int tern_gen_enough(const struct tern_gen *g)
{
    return n_never(g) ? 0 : tern_sampler_enough(g->sampler);
}

void tern_gen_pick(struct tern_gen *g, struct tern_seen seen, const uint32_t *mask)
{
    const struct tern_choice_limits l = {.mask = mask, .never = g->never, .n_never = n_never(g)};
    if (!seen.ids) {
        g->picked = tern_sampler_pick_within(g->sampler, seen.x, &l);
        return;
    }
    TERN_ASSERT(!l.mask && !l.n_never);
    g->picked = tern_sampler_pick_best(g->sampler, seen.x, seen.ids, seen.n);
}

int tern_gen_pick_within(struct tern_gen *g, struct tern_seen seen, const tern_constraint *c, uint32_t *mask,
                         tern_error *err)
{
    int rc = 0;
    if (!c) {
        tern_gen_pick(g, seen, NULL);
        return 0;
    }
    memset(mask, 0, ((size_t)g->model->net->desc.n_vocab + 31) / 32 * sizeof *mask);
    TERN_TRY(c->allow(c->state, mask, err));
    tern_gen_pick(g, seen, mask);
    if (!(mask[g->picked / 32] >> (g->picked % 32) & 1))
        TERN_FAIL(err, TERN_EINVAL, "the constraint allows no token that the model can pick");
out:
    return rc;
}

bool tern_gen_counts(const struct tern_gen *g, int room)
{
    return room >= 1 || is_end(g, g->picked) || is_stop_id(g, g->picked);
}

int tern_gen_take(struct tern_gen *g, int room, tern_error *err)
{
    int32_t id = g->picked;
    bool end = is_end(g, id), stop = is_stop_id(g, id);
    if (end || stop || room < 1) {
        g->finish = end ? TERN_FINISH_EOG : stop ? TERN_FINISH_STOP : TERN_FINISH_CONTEXT;
        g->last = end || stop ? id : -1;
        g->phase = TERN_GEN_OVER;
        const bool told = end ? g->p.show_control : stop;
        return told && g->p.keep_stop && g->stream ? push_token(g, id, err) : 0;
    }
    tern_sampler_accept(g->sampler, id);
    g->n_generated++;
    int rc = g->stream ? push_token(g, id, err) : 0;
    if (rc < 0)
        return rc;
    g->phase = TERN_GEN_APPEND;
    if (g->stop >= 0 || g->refused) {
        g->finish = g->stop >= 0 ? TERN_FINISH_STOP : TERN_FINISH_CALLBACK;
        g->last = id;
        g->phase = TERN_GEN_LAST;
    } else if (g->n_generated == g->p.max_tokens) {
        g->phase = TERN_GEN_LAST;
    }
    return 0;
}

void tern_gen_appended(struct tern_gen *g)
{
    g->phase = g->phase == TERN_GEN_LAST ? TERN_GEN_OVER : TERN_GEN_PICK;
}

int tern_gen_finish(struct tern_gen *g, tern_error *err)
{
    int rc = 0;
    const char *text;
    size_t n;
    if (g->stream && g->stop < 0) {
        TERN_TRY(tern_stream_finish(g->stream, &text, &n, err));
        TERN_TRY(push_text(g, text, n, err));
    }
    if (g->stop < 0)
        TERN_TRY(release(g, err));
    if (g->p.reply)
        TERN_TRY(tern_reply_finish(g->p.reply, err));
    rc = 0;
out:
    return rc;
}
