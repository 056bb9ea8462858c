/* Normalizers: one text becomes another, step by step. */
#include "text/tok/tok.h"

#include <string.h>

#include <utf8proc.h>

bool tern_tok_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == ' ' || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F ||
           cp == 0x3000;
}

bool tern_tok_is_word(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        /* Joiners; letters in circles and squares. */
        return cp == 0x200C || cp == 0x200D || (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) ||
               (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189);
    }
}

static int add_char(struct tern_buf *out, utf8proc_int32_t cp, tern_error *err)
{
    utf8proc_uint8_t utf8[4];
    return tern_buf_add(out, utf8, (size_t)utf8proc_encode_char(cp, utf8), err);
}

/* Each character on its own, as Rust's char::to_lowercase: a capital I with a dot is two characters. */
static int lowercase(const char *p, size_t n, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += (size_t)tern_utf8_decode(p + i, n - i, &cp);
        if (cp == 0x130)
            TERN_TRY(tern_buf_add(out, "i\xCC\x87", 3, err));
        else
            TERN_TRY(add_char(out, utf8proc_tolower((utf8proc_int32_t)cp), err));
    }
out:
    return rc;
}

static bool is_mark(uint32_t cp)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)cp);
    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
}

static int strip_accents(const char *p, size_t n, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = (size_t)tern_utf8_decode(p + i, n - i, &cp);
        if (!is_mark(cp))
            TERN_TRY(tern_buf_add(out, p + i, len, err));
        i += len;
    }
out:
    return rc;
}

static int strip(const struct tern_tok_step *step, const char *p, size_t n, struct tern_buf *out, tern_error *err)
{
    size_t begin = 0, end = 0;
    bool inside = !step->left;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = (size_t)tern_utf8_decode(p + i, n - i, &cp);
        bool space = tern_tok_is_space(cp);
        if (!inside && !space) {
            begin = i;
            inside = true;
        }
        i += len;
        if (!space || !step->right)
            end = i;
    }
    if (!inside || end < begin)
        begin = end = 0;
    return tern_buf_add(out, p + begin, end - begin, err);
}

static int replace(const struct tern_tok_step *step, struct tern_tok_regex_run *run, const char *p, size_t n,
                   struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    size_t done = 0;
    struct tern_tok_walk walk = {0};
    for (;;) {
        struct tern_tok_range m;
        TERN_TRY(tern_tok_regex_walk(step->re, run, p, n, &walk, &m, err));
        if (rc == 0)
            break;
        TERN_TRY(tern_buf_add(out, p + done, m.begin - done, err));
        TERN_TRY(tern_buf_add(out, step->text.p, step->text.len, err));
        done = m.end;
    }
    TERN_TRY(tern_buf_add(out, p + done, n - done, err));
out:
    return rc < 0 ? rc : 0;
}

static int apply(const struct tern_tok_step *step, struct tern_tok_regex_run *run, bool behind_broken, const char *p,
                 size_t n, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    switch (step->kind) {
    case TERN_TOK_NFC:
    case TERN_TOK_NFD:
    case TERN_TOK_NFKC:
    case TERN_TOK_NFKD:
        return tern_normal_form(step->kind, p, n, out, err);
    case TERN_TOK_LOWERCASE:
        return lowercase(p, n, out, err);
    case TERN_TOK_STRIP_ACCENTS:
        return strip_accents(p, n, out, err);
    case TERN_TOK_STRIP:
        return strip(step, p, n, out, err);
    case TERN_TOK_CHARSMAP:
        return tern_tok_charsmap_apply(step->map, p, n, out, err);
    case TERN_TOK_REPLACE:
        return replace(step, run, p, n, out, err);
    case TERN_TOK_PREPEND:
        if (n > 0 && !behind_broken)
            TERN_TRY(tern_buf_add(out, step->text.p, step->text.len, err));
        return tern_buf_add(out, p, n, err);
    default:
        TERN_ASSERT(false);
    }
out:
    return rc;
}

int tern_tok_normalize(const struct tern_tok_steps *steps, struct tern_tok_regex_run *run, bool behind_broken,
                       const char *p, size_t n, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    struct tern_buf scratch[2] = {{.max = TERN_TOK_MAX_TEXT}, {.max = TERN_TOK_MAX_TEXT}};
    for (int i = 0; i < steps->n; i++) {
        struct tern_buf *to = i == steps->n - 1 ? out : &scratch[i & 1];
        if (to != out)
            tern_buf_reset(to);
        TERN_TRY(apply(&steps->step[i], run, behind_broken, p, n, to, err));
        if (to->len > TERN_TOK_MAX_TEXT)
            TERN_FAIL(err, TERN_ELIMIT, "normalizing made a text of more than %d bytes", TERN_TOK_MAX_TEXT);
        p = to->p ? to->p : "";
        n = to->len;
    }
out:
    tern_buf_clear(&scratch[0]);
    tern_buf_clear(&scratch[1]);
    return rc;
}
