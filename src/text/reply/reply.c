/* A reply, byte by byte: text, reasoning, calls.  Because every byte is one step, pieces do not matter. */
#include "text/reply/call.h"

#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"

enum state { IN_CONTENT, IN_REASONING, IN_CALL };

struct tern_reply {
    const struct tern_calls_format *calls;         /* NULL: none are looked for */
    const struct tern_reasoning_format *reasoning; /* the same */
    json_t *tools;
    uint64_t seed;
    tern_reply_fn *on_event;
    void *user;
    enum state state;
    bool stopped;
    bool said;            /* the answer has begun: a bare object is none any more */
    bool drop_newlines;   /* just behind a mark of reasoning or a list of calls */
    bool after_call;      /* blank text waits in gap: more may follow */
    const char *skip;     /* what is left of the text to skip */
    struct tern_buf held; /* may become a mark */
    struct tern_buf gap;
    struct tern_buf text; /* to be handed out as `kind` */
    tern_reply_kind kind;
    int n_calls;
    /* The call being read. */
    struct tern_buf body; /* its marks included */
    size_t inside;        /* where the text behind the opening mark begins */
    int depth;
    bool named, begun, escaped, promising;
    char quoted; /* by which sign; 0: not inside a string */
};

/* ---- events ---------------------------------------------------------------------------------------------------- */

static void hand_out(tern_reply *r, const tern_reply_event *e)
{
    if (!r->stopped && r->on_event && r->on_event(r->user, e))
        r->stopped = true;
}

/* Bytes at the end of p[0..n) that begin a character and do not finish it. */
static size_t unfinished(const char *p, size_t n)
{
    for (size_t k = 1; k <= 3 && k <= n; k++)
        if (((unsigned char)p[n - k] & 0xC0) != 0x80)
            return tern_utf8_missing(p + n - k, (int)k) > 0 ? k : 0;
    return 0;
}

static void flush(tern_reply *r, bool all)
{
    size_t keep = all || !r->text.len ? 0 : unfinished(r->text.p, r->text.len), n = r->text.len - keep;
    if (n)
        hand_out(r, &(tern_reply_event){.kind = r->kind, .text = r->text.p, .n = n});
    if (n && keep)
        memmove(r->text.p, r->text.p + n, keep);
    r->text.len = keep;
}

static int put(tern_reply *r, tern_reply_kind kind, const char *p, size_t n, tern_error *err)
{
    if (kind != r->kind)
        flush(r, true);
    r->kind = kind;
    return tern_buf_add(&r->text, p, n, err);
}

/* One byte of content or reasoning, by the state; blank text in places where none belongs is dropped or waits. */
static int say(tern_reply *r, char c, tern_error *err)
{
    int rc = 0;
    if (r->drop_newlines && c == '\n')
        return 0;
    r->drop_newlines = false;
    if (r->state == IN_REASONING)
        return put(r, TERN_REPLY_REASONING, &c, 1, err);
    if (r->after_call && tern_call_blank(c))
        return tern_buf_addc(&r->gap, c, err);
    if (r->after_call)
        TERN_TRY(put(r, TERN_REPLY_CONTENT, r->gap.p ? r->gap.p : "", r->gap.len, err));
    r->after_call = false;
    tern_buf_reset(&r->gap);
    r->said |= !tern_call_blank(c);
    TERN_TRY(put(r, TERN_REPLY_CONTENT, &c, 1, err));
out:
    return rc;
}

static int say_all(tern_reply *r, const char *p, size_t n, tern_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = say(r, p[i], err);
    return rc;
}

/* ---- calls ----------------------------------------------------------------------------------------------------- */

static void announce(tern_reply *r, const struct tern_call *c)
{
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    char made[10] = {0};
    uint64_t h = tern_hash64(tern_hash64(r->seed) + (uint64_t)r->n_calls);
    for (int i = 0; i < 9; i++, h /= 62)
        made[i] = letters[h % 62];
    tern_reply_event e = {.index = r->n_calls++, .name = c->name.p, .id = c->id.len ? c->id.p : made};
    e.kind = TERN_REPLY_CALL_BEGIN;
    hand_out(r, &e);
    e.kind = TERN_REPLY_CALL_ARGUMENTS;
    e.text = c->args.p;
    e.n = c->args.len;
    hand_out(r, &e);
    e.kind = TERN_REPLY_CALL_END;
    e.text = NULL;
    e.n = 0;
    hand_out(r, &e);
}

/* The text of the call is no call. */
static int give_back(tern_reply *r, const char *why, tern_error *err)
{
    r->state = IN_CONTENT;
    if (r->inside) { /* what had no mark needs no excuse */
        flush(r, true);
        hand_out(r, &(tern_reply_event){.kind = TERN_REPLY_NOTICE, .text = why, .n = strlen(why)});
    }
    return say_all(r, r->body.p, r->body.len, err);
}

static bool all_known(const tern_reply *r, const struct tern_call_list *l)
{
    for (size_t i = 0; i < l->n && r->tools; i++)
        if (!tern_call_tool(r->tools, l->v[i].name.p))
            return false;
    return true;
}

/* The call is complete: its text is body[inside..end). */
static int end_call(tern_reply *r, size_t end, tern_error *err)
{
    int rc = 0;
    struct tern_call_list list = {.tools = r->tools};
    tern_error why = {0};
    rc = r->calls->parse(&list, r->body.p + r->inside, end - r->inside, &why);
    if (rc == TERN_ENOMEM) {
        (void)tern_err_set(err, rc, "%s", why.msg);
    } else if (rc < 0 || (!r->inside && !all_known(r, &list))) {
        rc = give_back(r, why.msg, err);
    } else {
        flush(r, true);
        for (size_t i = 0; i < list.n; i++)
            announce(r, &list.v[i]);
        r->state = IN_CONTENT;
        r->after_call = true;
        tern_buf_reset(&r->gap);
    }
    tern_call_list_reset(&list);
    return rc;
}

static int begin_call(tern_reply *r, const char *mark, tern_error *err)
{
    r->state = IN_CALL;
    r->depth = 0;
    r->named = r->begun = r->escaped = r->promising = false;
    r->quoted = 0;
    r->drop_newlines = false;
    r->inside = strlen(mark);
    tern_buf_reset(&r->body);
    return tern_buf_add(&r->body, mark, r->inside, err);
}

/* Follows strings and brackets; true when the value is complete.  A newline ends a string: it cannot be part of one,
 * and a quote that is never closed must not swallow the rest of a reply. */
static bool follow(tern_reply *r, char c)
{
    if (r->quoted) {
        if (c == '\n' || (c == r->quoted && !r->escaped))
            r->quoted = 0;
        r->escaped = c == '\\' && !r->escaped;
        return false;
    }
    bool round = strchr(r->calls->quotes, '\'') != NULL; /* Python */
    bool opens = c == '{' || c == '[' || (round && c == '(');
    if (!r->begun) { /* before it a name may stand, with marks in brackets */
        r->begun = c == '{' || (c == '[' && !r->named);
        r->named |= !tern_call_blank(c);
        r->depth = r->begun;
        return false;
    }
    if (c && strchr(r->calls->quotes, c)) {
        r->quoted = c;
        r->escaped = false;
    }
    r->depth += opens - (c == '}' || c == ']' || (round && c == ')'));
    return r->depth <= 0;
}

/* Is body, an object without a mark, not going to be a call?  Its first bytes tell. */
static bool hopeless_object(const tern_reply *r)
{
    if (r->body.len > 32)
        return false;
    static const char *const keys[] = {"\"name\"", "\"type\""};
    struct tern_str s = tern_call_trim(r->body.p + 1, r->body.len - 1);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        size_t n = strlen(keys[i]);
        if (memcmp(s.p, keys[i], s.n < n ? s.n : n) == 0)
            return false;
    }
    return true;
}

/* The same for a list, which must begin with the name of a tool and a bracket. */
static bool hopeless_list(tern_reply *r, char c)
{
    if (r->promising || r->body.len == 1)
        return false;
    if (c != '(')
        return r->body.len > TERN_CALL_MAX_NAME || (!tern_call_blank(c) && !tern_call_python_name(c));
    char name[TERN_CALL_MAX_NAME + 2];
    struct tern_str s = tern_call_trim(r->body.p + 1, r->body.len - 2);
    memcpy(name, s.p, s.n);
    name[s.n] = 0;
    r->promising = s.n && (!r->tools || tern_call_tool(r->tools, name));
    return !r->promising;
}

static int step_call(tern_reply *r, char c, tern_error *err)
{
    int rc = 0;
    const struct tern_calls_format *f = r->calls;
    TERN_TRY(tern_buf_addc(&r->body, c, err));
    size_t len = r->body.len, close = f->close ? strlen(f->close) : 0;
    bool whole = f->quotes && follow(r, c);
    if (f->close) {
        if (!r->quoted && len >= r->inside + close && memcmp(r->body.p + len - close, f->close, close) == 0)
            return end_call(r, len - close, err);
    } else if (whole) {
        return end_call(r, len, err);
    } else if (!r->begun && len > r->inside + 2 * TERN_CALL_MAX_NAME) {
        return give_back(r, "a call has no arguments", err);
    }
    if (!r->inside && (f->bare == '{' ? hopeless_object(r) : hopeless_list(r, c)))
        return give_back(r, "", err);
    if (len >= TERN_CALL_MAX_BYTES)
        return give_back(r, "a call is longer than 1 MiB", err);
out:
    return rc;
}

/* ---- text ------------------------------------------------------------------------------------------------------ */

enum mark { NO_MARK, OPENS_CALL, FRAME, FRAME_BARE, FRAME_END, OPENS_REASONING, CLOSES_REASONING, N_MARKS };

/* The marks that count in this state. */
static const char *mark_text(const tern_reply *r, enum mark m)
{
    bool content = r->state == IN_CONTENT;
    switch (m) {
    case OPENS_CALL:
        return content && r->calls ? r->calls->open : NULL;
    case FRAME:
    case FRAME_END:
        return content && r->calls ? r->calls->frame[m == FRAME_END] : NULL;
    case FRAME_BARE: /* without the newlines that belong to it */
        return content && r->calls && r->calls->frame[0] && *r->calls->frame[0] == '\n'
                   ? r->calls->frame[0] + strspn(r->calls->frame[0], "\n")
                   : NULL;
    case OPENS_REASONING:
        return content && r->reasoning ? r->reasoning->open : NULL;
    case CLOSES_REASONING:
        return !content ? r->reasoning->close : NULL;
    default:
        return NULL;
    }
}

/* The mark that p[0..n) is, or with `part` begins. */
static enum mark find_mark(const tern_reply *r, const char *p, size_t n, bool part)
{
    for (enum mark m = OPENS_CALL; m < N_MARKS; m++) {
        const char *text = mark_text(r, m);
        if (text && (part ? strlen(text) > n : strlen(text) == n) && memcmp(text, p, n) == 0)
            return m;
    }
    return NO_MARK;
}

static int take_mark(tern_reply *r, enum mark m, tern_error *err)
{
    switch (m) {
    case OPENS_CALL:
        return begin_call(r, r->calls->open, err);
    case OPENS_REASONING:
        r->state = IN_REASONING;
        r->skip = r->reasoning->skip;
        r->drop_newlines = true;
        return 0;
    case CLOSES_REASONING:
        r->state = IN_CONTENT;
        r->drop_newlines = true;
        return 0;
    case FRAME:
    case FRAME_BARE:
        r->drop_newlines = true;
        return 0;
    default:
        return 0;
    }
}

/* Behind the mark that opened the reasoning: true while c belongs to the text that is skipped. */
static bool skips(tern_reply *r, char c, size_t *n_skipped)
{
    *n_skipped = 0;
    if (!r->skip)
        return false;
    if (*r->skip == c) {
        r->skip = r->skip[1] ? r->skip + 1 : NULL;
        return true;
    }
    *n_skipped = (size_t)(r->skip - r->reasoning->skip);
    r->skip = NULL;
    return false;
}

static int step_text(tern_reply *r, char c, tern_error *err)
{
    int rc = 0;
    size_t skipped;
    if (r->state == IN_REASONING && skips(r, c, &skipped))
        return 0;
    if (r->state == IN_REASONING && skipped)
        TERN_TRY(say_all(r, r->reasoning->skip, skipped, err));
    if (r->state == IN_CONTENT && r->calls && r->calls->bare == c && c && !r->said && !r->held.len) {
        TERN_TRY(begin_call(r, "", err));
        return step_call(r, c, err);
    }
    TERN_TRY(tern_buf_addc(&r->held, c, err));
    while (r->held.len) {
        enum mark m = find_mark(r, r->held.p, r->held.len, false);
        if (m) {
            tern_buf_reset(&r->held);
            return take_mark(r, m, err);
        }
        if (find_mark(r, r->held.p, r->held.len, true))
            return 0;
        TERN_TRY(say(r, r->held.p[0], err));
        memmove(r->held.p, r->held.p + 1, --r->held.len);
    }
out:
    return rc;
}

/* What waited for more will not get it. */
static int release_held(tern_reply *r, tern_error *err)
{
    int rc = 0;
    size_t skipped = r->skip ? (size_t)(r->skip - r->reasoning->skip) : 0;
    r->skip = NULL;
    TERN_TRY(say_all(r, skipped ? r->reasoning->skip : "", skipped, err));
    TERN_TRY(say_all(r, r->held.p, r->held.len, err));
    tern_buf_reset(&r->held);
out:
    return rc;
}

static int step(tern_reply *r, char c, tern_error *err)
{
    return r->state == IN_CALL ? step_call(r, c, err) : step_text(r, c, err);
}

/* Is a control token's text the next part of a mark that has begun?  A vocabulary may have one for part of a mark. */
static bool goes_on(const tern_reply *r, const char *text, size_t n)
{
    char all[64];
    if (!r->held.len || r->held.len + n > sizeof all)
        return false;
    memcpy(all, r->held.p, r->held.len);
    memcpy(all + r->held.len, text, n);
    return find_mark(r, all, r->held.len + n, false) || find_mark(r, all, r->held.len + n, true);
}

int tern_reply_push(tern_reply *r, const char *text, size_t n, bool control, tern_error *err)
{
    int rc = 0;
    if (control && r->state != IN_CALL && !goes_on(r, text, n)) {
        TERN_TRY(release_held(r, err));
        TERN_TRY(take_mark(r, find_mark(r, text, n, false), err));
        n = 0;
    }
    for (size_t i = 0; i < n && !r->stopped; i++)
        TERN_TRY(step(r, text[i], err));
    flush(r, false);
out:
    return rc < 0 ? rc : r->stopped;
}

/* Is the call complete but for its closing mark, of which there may be a part?  *end: of its text.  In formats whose
 * arguments simply follow one another only the mark tells that there are no more. */
static bool lacks_mark_only(const tern_reply *r, size_t *end)
{
    const struct tern_calls_format *f = r->calls;
    if (!f->close || f->parse == tern_call_glm || f->parse == tern_call_dsml)
        return false;
    size_t part = strlen(f->close) - 1, len = r->body.len;
    while (part && (part > len - r->inside || memcmp(r->body.p + len - part, f->close, part) != 0))
        part--;
    *end = len - part;
    if (f->quotes)
        return r->depth == 0 && r->begun;
    struct tern_call_list list = {.tools = r->tools};
    const int rc = f->parse(&list, r->body.p + r->inside, *end - r->inside, NULL);
    tern_call_list_reset(&list);
    return rc == 0;
}

int tern_reply_finish(tern_reply *r, tern_error *err)
{
    int rc = 0;
    size_t end;
    if (r->state == IN_CALL && lacks_mark_only(r, &end))
        TERN_TRY(end_call(r, end, err));
    if (r->state == IN_CALL)
        TERN_TRY(give_back(r, "the reply ends inside a call", err));
    TERN_TRY(release_held(r, err));
    flush(r, true);
out:
    return rc < 0 ? rc : r->stopped;
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

static int choose_formats(tern_reply *r, const struct tern_template *t, const tern_reply_params *p, tern_error *err)
{
    if (!p->calls)
        r->calls = t ? tern_template_calls(t) : NULL;
    else if (strcmp(p->calls, "off") != 0 && !(r->calls = tern_calls_named(p->calls)))
        return tern_err_set(err, TERN_EINVAL, "\"%.80s\" is no format of tool calls", p->calls);
    if (!p->reasoning)
        r->reasoning = t ? tern_template_reasoning(t) : NULL;
    else if (strcmp(p->reasoning, "off") != 0 && !(r->reasoning = tern_reasoning_named(p->reasoning)))
        return tern_err_set(err, TERN_EINVAL, "\"%.80s\" is no format of reasoning", p->reasoning);
    return 0;
}

int tern_reply_make(tern_reply **out, const struct tern_template *t, const tern_reply_params *p, tern_error *err)
{
    int rc = 0;
    json_error_t where;
    tern_reply *r = NULL;
    *out = NULL;
    TERN_TRY(tern_alloc(&r, 1, sizeof *r, err));
    r->seed = p->seed;
    r->on_event = p->on_event;
    r->user = p->user;
    TERN_TRY(choose_formats(r, t, p, err));
    if (p->begun && r->reasoning && tern_reasoning_open_in(r->reasoning, p->begun))
        r->state = IN_REASONING;
    if (p->tools) {
        r->tools = json_loads(p->tools, JSON_REJECT_DUPLICATES, &where);
        if (!json_is_array(r->tools))
            TERN_FAIL(err, TERN_EINVAL, "the tools are no JSON array%s%s", r->tools ? "" : ": ",
                      r->tools ? "" : where.text);
    }
    *out = r;
    r = NULL;
out:
    tern_reply_free(r);
    return rc;
}

void tern_reply_prompt(tern_reply *r, const char *text, size_t n)
{
    if (r->reasoning && tern_reasoning_begun(r->reasoning, text, n)) {
        r->state = IN_REASONING;
        r->drop_newlines = true;
    }
}

bool tern_reply_reasons(const tern_reply *r)
{
    return r->state == IN_REASONING;
}

void tern_reply_free(tern_reply *r)
{
    if (!r)
        return;
    tern_buf_clear(&r->held);
    tern_buf_clear(&r->gap);
    tern_buf_clear(&r->text);
    tern_buf_clear(&r->body);
    json_decref(r->tools);
    tern_free(r);
}
