/* Case mapping by Python's rules, marks kept. */
#include "text/jinja/jinja.h"

#include <string.h>
#include <utf8proc.h>

static const struct jcase_special *special(uint32_t cp)
{
    size_t lo = 0, hi = tern_jcase_n_special;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (tern_jcase_special[mid].cp == cp)
            return &tern_jcase_special[mid];
        if (tern_jcase_special[mid].cp < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

/* Lu, Ll, Lt and the letters that only have a case property; good enough to find the parts of a word. */
static bool cased(uint32_t cp)
{
    if (cp < 0x80)
        return (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z');
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

static bool case_ignorable(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return cp == '\'' || cp == '.' || cp == ':' || cp == '^' || cp == '`' || cp == 0xAD || cp == 0xB7 || cp == 0x2019 ||
           c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK;
}

/* A capital sigma at the end of a word becomes the final form. */
static bool final_sigma(const struct jstr *s, size_t at)
{
    uint32_t cp = 0;
    bool before = false;
    for (size_t i = at, steps = 0; i > 0 && steps < 64; steps++) {
        size_t k = tern_jutf8_prev(s->p, i);
        (void)tern_jutf8_next(s->p + i - k, k, &cp);
        i -= k;
        if (!case_ignorable(cp)) {
            before = cased(cp);
            break;
        }
    }
    for (size_t i = at + 2, steps = 0; before && i < s->len && steps < 64; steps++) {
        i += tern_jutf8_next(s->p + i, s->len - i, &cp);
        if (!case_ignorable(cp))
            return !cased(cp);
    }
    return before;
}

static size_t lower(const struct jstr *s, size_t at, uint32_t cp, char *to)
{
    if (cp == 0x130) { /* capital I with dot: i and a combining dot */
        memcpy(to, "i\xcc\x87", 3);
        return 3;
    }
    if (cp == 0x3A3)
        return tern_jutf8_put(final_sigma(s, at) ? 0x3C2 : 0x3C3, to);
    return tern_jutf8_put((uint32_t)utf8proc_tolower((utf8proc_int32_t)cp), to);
}

static size_t upper(uint32_t cp, bool title, char *to)
{
    const struct jcase_special *x = special(cp);
    if (x) {
        const char *text = title ? x->title : x->upper;
        size_t n = strlen(text);
        memcpy(to, text, n);
        return n;
    }
    utf8proc_int32_t c = (utf8proc_int32_t)cp;
    return tern_jutf8_put((uint32_t)(title ? utf8proc_totitle(c) : utf8proc_toupper(c)), to);
}

static bool word_separator(uint32_t cp)
{
    return cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<' || tern_jutf8_space(cp);
}

/* The case mapping of one character; returns its length in `to`. */
static size_t map_char(const struct jstr *s, size_t at, uint32_t cp, bool down, bool title, char to[16])
{
    if (cp < 0x80) {
        bool letter = (cp | 0x20) >= 'a' && (cp | 0x20) <= 'z';
        to[0] = (char)(letter ? (down ? cp | 0x20 : cp & ~0x20u) : cp);
        return 1;
    }
    return down ? lower(s, at, cp, to) : upper(cp, title, to);
}

int tern_jstr_case(struct jrun *r, const struct jstr *s, enum jcase how, struct jval *out)
{
    struct jbuild b = {0};
    char text[256];
    size_t n = 0;
    uint32_t before = ' ';
    bool mark = s->user, title = how == JCASE_TITLE || how == JCASE_CAPITALIZE;
    JTRY(tern_jrun_charge(r, s->len / 8));
    for (size_t i = 0; i < s->len;) {
        uint32_t cp;
        size_t k = tern_jutf8_next(s->p + i, s->len - i, &cp);
        bool down = how == JCASE_LOWER || (how == JCASE_CAPITALIZE && i > 0) || (how == JCASE_TITLE && cased(before)) ||
                    (how == JCASE_WORDS && !word_separator(before));
        if (n + 16 > sizeof text || (s->m && (bool)s->m[i] != mark)) {
            JTRY(tern_jbuild_add(r, &b, text, NULL, mark, n));
            n = 0;
        }
        mark = s->m ? s->m[i] : s->user;
        if (k == 1 && (unsigned char)s->p[i] >= 0x80)
            text[n++] = s->p[i];
        else
            n += map_char(s, i, cp, down, title, text + n);
        before = cp;
        i += k;
    }
    JTRY(tern_jbuild_add(r, &b, text, NULL, mark, n));
    return tern_jbuild_done(r, &b, out);
}
