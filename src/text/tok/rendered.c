#include "text/tok/encode.h"

/* Ordinary text runs on across the border of two spans, as when other programs tokenize the finished prompt: a message
 * that begins with a newline meets the template's own newline in one token.  Only control tokens care about borders
 * (tern_tok_scan_next): they are found where they lie wholly in template text. */
int tern_tokenize_turns(const struct tern_tokenizer *t, const struct tern_rendered *r, struct tern_ids *ids,
                        struct tern_ids *borders, tern_error *err)
{
    int rc = 0;
    size_t first = ids->len, first_border = borders ? borders->len : 0;
    size_t at = 0;
    for (size_t i = 0; i < r->n_spans; i++) {
        if (r->spans[i].begin != at || r->spans[i].end < at)
            TERN_FAIL(err, TERN_EINVAL, "span %zu of a rendered prompt begins at byte %zu instead of %zu", i,
                      r->spans[i].begin, at);
        at = r->spans[i].end;
    }
    if (at != r->text.len)
        TERN_FAIL(err, TERN_EINVAL, "the spans of a rendered prompt cover %zu of %zu bytes", at, r->text.len);
    TERN_TRY(tern_tok_encode(t, r->text.p ? r->text.p : "", r->text.len, r->spans, r->n_spans, ids, borders, err));
    const size_t len = ids->len;
    TERN_TRY(tern_tok_add_bos(t, ids, first, err));
    for (size_t i = first_border; borders && i < borders->len; i++)
        borders->p[i] += (int32_t)(ids->len - len);
out:
    if (rc < 0)
        ids->len = first;
    if (rc < 0 && borders)
        borders->len = first_border;
    return rc;
}

int tern_tokenize_rendered(const struct tern_tokenizer *t, const struct tern_rendered *r, struct tern_ids *ids,
                           tern_error *err)
{
    return tern_tokenize_turns(t, r, ids, NULL, err);
}
