/* From ids to text, at once or as a stream. */
#include "text/tok/encode.h"

const char *tern_tok_view(const struct tern_tokenizer *t, int32_t id, bool special, size_t *n)
{
    const char *p = tern_tok_string(&t->bytes, id, n);
    if (!special && tern_tok_is_control_type(t->type[id]))
        *n = 0;
    return p;
}

static int check_id(const struct tern_tokenizer *t, int32_t id, tern_error *err)
{
    if (id >= 0 && id < t->n_vocab)
        return 0;
    return tern_err_set(err, TERN_EINVAL, "token id %d is outside the vocabulary of %d", (int)id, t->n_vocab);
}

int tern_token_bytes(const struct tern_tokenizer *t, int32_t id, bool special, struct tern_buf *out, tern_error *err)
{
    int rc = check_id(t, id, err);
    if (rc < 0)
        return rc;
    size_t n;
    const char *p = tern_tok_view(t, id, special, &n);
    return tern_buf_add(out, p, n, err);
}

/* The view of a token within a text: without the prefix space when it is the first that is not a control token. */
static const char *view_in_text(const struct tern_tokenizer *t, int32_t id, bool special, bool *started, size_t *n)
{
    const char *p = tern_tok_view(t, id, special, n);
    if (*started || tern_tok_is_control_type(t->type[id]))
        return p;
    *started = true;
    if (t->drop_space && t->type[id] == TERN_TOK_NORMAL && *n > 0 && p[0] == ' ') {
        p++;
        --*n;
    }
    return p;
}

int tern_detokenize(const struct tern_tokenizer *t, const int32_t *ids, size_t n, bool special, struct tern_buf *out,
                    tern_error *err)
{
    int rc = 0;
    bool started = false;
    for (size_t i = 0; i < n; i++) {
        size_t len;
        TERN_TRY(check_id(t, ids[i], err));
        const char *p = view_in_text(t, ids[i], special, &started, &len);
        TERN_TRY(tern_buf_add(out, p, len, err));
    }
out:
    return rc;
}

void tern_detok_init(struct tern_detok *d, const struct tern_tokenizer *t, bool special)
{
    *d = (struct tern_detok){.t = t, .special = special};
}

static const char replacement[] = "\xEF\xBF\xBD";

static int push_byte(struct tern_detok *d, char byte, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    d->pending[d->n_pending++] = byte;
    int missing = tern_utf8_missing(d->pending, d->n_pending);
    if (missing < 0 && d->n_pending > 1) {
        /* What was held back ends here; the new byte may begin a character of its own. */
        d->n_pending = 0;
        TERN_TRY(tern_buf_add(out, replacement, 3, err));
        d->pending[d->n_pending++] = byte;
        missing = tern_utf8_missing(d->pending, 1);
    }
    if (missing > 0)
        return 0;
    int n = d->n_pending;
    d->n_pending = 0;
    if (missing < 0)
        TERN_TRY(tern_buf_add(out, replacement, 3, err));
    else
        TERN_TRY(tern_buf_add(out, d->pending, (size_t)n, err));
out:
    return rc;
}

int tern_detok_push(struct tern_detok *d, int32_t id, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    size_t n;
    TERN_TRY(check_id(d->t, id, err));
    const char *p = view_in_text(d->t, id, d->special, &d->started, &n);
    for (size_t i = 0; i < n;) {
        size_t whole = d->n_pending == 0 ? tern_utf8_valid(p + i, n - i) : 0;
        TERN_TRY(tern_buf_add(out, p + i, whole, err));
        i += whole;
        if (i < n)
            TERN_TRY(push_byte(d, p[i++], out, err));
    }
out:
    return rc;
}

int tern_detok_finish(struct tern_detok *d, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    bool left = d->n_pending > 0;
    d->n_pending = 0;
    if (left)
        TERN_TRY(tern_buf_add(out, replacement, 3, err));
out:
    return rc;
}
