#include "text/tok/tok.h"

#include <utf8proc.h>

/* Normalization touches only stretches around characters that can change.  A character is "inert" when it has combining
 * class 0, no canonical decomposition and no part in any composition; nothing normalizes across the gap in front of an
 * inert character.  (Forms other than NFC, which are rare, take only ASCII as inert.)  Characters below U+0300 count as
 * inert too: they can be the first half of a composition but never the second, so a stretch reaches one character back.
 *
 * utf8proc's own reordering is quadratic in the length of a run of combining marks, hence the counting sort here. */

enum { LONGEST_DECOMPOSITION = 18 };

static bool is_inert(enum tern_tok_step_kind form, uint32_t cp)
{
    if (form != TERN_TOK_NFC)
        return cp < 0x80;
    if (cp < 0x300)
        return true;
    if (cp >= 0x1100 && cp < 0x1200) /* Hangul jamo compose by arithmetic, not by table */
        return false;
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)cp);
    bool decomposes = p->decomp_seqindex != UINT16_MAX && p->decomp_type == 0;
    return p->combining_class == 0 && !decomposes && p->comb_index == UINT16_MAX;
}

bool tern_nfc_quick(const char *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        if ((uint8_t)p[i] < 0xCC) { /* below U+0300 */
            i += (uint8_t)p[i] < 0x80 ? 1 : 2;
            continue;
        }
        uint32_t cp = 0;
        i += (size_t)tern_utf8_decode(p + i, n - i, &cp);
        if (!is_inert(TERN_TOK_NFC, cp))
            return false;
    }
    return true;
}

struct stretch {
    enum tern_tok_step_kind form;
    utf8proc_int32_t *cp;
    size_t n, cap;
    utf8proc_int32_t *sorted; /* as long as the longest run of marks */
    size_t cap_sorted;
};

static int decompose(struct stretch *s, const char *p, size_t n, tern_error *err)
{
    bool compatible = s->form == TERN_TOK_NFKC || s->form == TERN_TOK_NFKD;
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
    s->n = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        i += (size_t)tern_utf8_decode(p + i, n - i, &cp);
        int rc = tern_grow(&s->cp, &s->cap, s->n + LONGEST_DECOMPOSITION, sizeof *s->cp, err);
        if (rc < 0)
            return rc;
        int boundary = 0;
        utf8proc_ssize_t got =
            utf8proc_decompose_char((utf8proc_int32_t)cp, s->cp + s->n, LONGEST_DECOMPOSITION, options, &boundary);
        if (got < 0 || got > LONGEST_DECOMPOSITION)
            return tern_err_set(err, TERN_EUNSUPPORTED, "cannot normalize U+%04X", (unsigned)cp);
        s->n += (size_t)got;
    }
    return 0;
}

static int combining_class(utf8proc_int32_t cp)
{
    return utf8proc_get_property(cp)->combining_class;
}

/* Stable order of cp[0..n) by combining class, in O(n + 256). */
static int sort_run(struct stretch *s, utf8proc_int32_t *cp, size_t n, tern_error *err)
{
    size_t start[257] = {0};
    int rc = tern_grow(&s->sorted, &s->cap_sorted, n, sizeof *s->sorted, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < n; i++)
        start[(combining_class(cp[i]) & 255) + 1]++;
    for (int i = 0; i < 256; i++)
        start[i + 1] += start[i];
    for (size_t i = 0; i < n; i++)
        s->sorted[start[combining_class(cp[i]) & 255]++] = cp[i];
    for (size_t i = 0; i < n; i++)
        cp[i] = s->sorted[i];
    return 0;
}

static int reorder(struct stretch *s, tern_error *err)
{
    for (size_t i = 0; i < s->n;) {
        size_t end = i;
        bool ordered = true;
        int last = 0;
        for (; end < s->n; end++) {
            int c = combining_class(s->cp[end]);
            if (c == 0)
                break;
            ordered = ordered && c >= last;
            last = c;
        }
        if (!ordered) {
            int rc = sort_run(s, s->cp + i, end - i, err);
            if (rc < 0)
                return rc;
        }
        i = end + 1;
    }
    return 0;
}

static int normalize_stretch(struct stretch *s, const char *p, size_t n, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    TERN_TRY(decompose(s, p, n, err));
    TERN_TRY(reorder(s, err));
    utf8proc_ssize_t len = (utf8proc_ssize_t)s->n;
    if (s->form == TERN_TOK_NFC || s->form == TERN_TOK_NFKC)
        len = utf8proc_normalize_utf32(s->cp, len, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (len < 0)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "cannot normalize a text: %s", utf8proc_errmsg(len));
    for (utf8proc_ssize_t i = 0; i < len; i++) {
        utf8proc_uint8_t utf8[4];
        utf8proc_ssize_t k = utf8proc_encode_char(s->cp[i], utf8);
        TERN_TRY(tern_buf_add(out, utf8, (size_t)k, err));
    }
out:
    return rc;
}

int tern_nfc(const char *p, size_t n, struct tern_buf *out, tern_error *err)
{
    return tern_normal_form(TERN_TOK_NFC, p, n, out, err);
}

int tern_normal_form(enum tern_tok_step_kind form, const char *p, size_t n, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    struct stretch s = {.form = form};
    size_t done = 0; /* everything before is in out */
    size_t last = 0; /* where the latest character began */
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        size_t at = i;
        i += (size_t)tern_utf8_decode(p + i, n - i, &cp);
        if (is_inert(form, cp)) {
            last = at;
            continue;
        }
        TERN_TRY(tern_buf_add(out, p + done, last - done, err));
        size_t end = i;
        while (end < n) {
            size_t len = (size_t)tern_utf8_decode(p + end, n - end, &cp);
            if (is_inert(form, cp))
                break;
            end += len;
        }
        TERN_TRY(normalize_stretch(&s, p + last, end - last, out, err));
        done = last = i = end;
    }
    TERN_TRY(tern_buf_add(out, p + done, n - done, err));
out:
    tern_free(s.cp);
    tern_free(s.sorted);
    return rc;
}
