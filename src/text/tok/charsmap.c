/* The normalizer "Precompiled": sentencepiece's table of replacements, as `tokenizers` applies it.
 *
 * The table is base64 of: the size of a trie in bytes (32 bits, little endian), the trie, texts that each end in NUL.
 * The trie is a double array of 32-bit units: bits 0-7    the byte that leads here; bit 31 is set where that is none (a
 * value) bit 8       a key ends here: its value lies at the base of the unit's children bit 9       the base of the
 * children is 256 times as far bits 10-30  base of the children, relative to the unit's own place, by exclusive or A
 * value's low 31 bits say where its text begins. */
#include "text/tok/tok.h"

#include <string.h>

#include <utf8proc.h>

enum { MAX_REPLACED = 6 }; /* bytes of a grapheme from which on only its characters are looked up */

struct tern_tok_charsmap {
    struct tern_buf bytes; /* as decoded */
    size_t n_units;
    const char *texts;
    size_t n_texts;
};

static int digit(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

static int decode(const char *p, size_t n, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    uint32_t bits = 0;
    int n_bits = 0;
    size_t padding = n && p[n - 1] == '=' ? n > 1 && p[n - 2] == '=' ? 2 : 1 : 0;
    if (n % 4 != 0)
        TERN_FAIL(err, TERN_EFORMAT, "the table is no base64: it has %zu signs", n);
    for (size_t i = 0; i < n - padding; i++) {
        int d = digit(p[i]);
        if (d < 0)
            TERN_FAIL(err, TERN_EFORMAT, "the table is no base64 at byte %zu", i);
        bits = bits << 6 | (uint32_t)d;
        n_bits += 6;
        if (n_bits >= 8) {
            n_bits -= 8;
            TERN_TRY(tern_buf_addc(out, (char)(bits >> n_bits & 255), err));
        }
    }
out:
    return rc;
}

static uint32_t word_at(const char *at)
{
    const unsigned char *p = (const unsigned char *)at;
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint32_t unit_at(const struct tern_tok_charsmap *m, size_t i)
{
    return word_at(m->bytes.p + 4 + 4 * i);
}

int tern_tok_charsmap_new(struct tern_tok_charsmap **out, const char *base64, size_t n, tern_error *err)
{
    int rc = 0;
    struct tern_tok_charsmap *m = NULL;
    *out = NULL;
    TERN_TRY(tern_alloc(&m, 1, sizeof *m, err));
    TERN_TRY(decode(base64, n, &m->bytes, err));
    size_t len = m->bytes.len, trie = len >= 4 ? word_at(m->bytes.p) : 0;
    if (trie < 4 || trie % 4 != 0 || trie > len - 4)
        TERN_FAIL(err, TERN_EFORMAT, "the table has %zu bytes, and a trie of %zu bytes in them", len, trie);
    m->n_units = trie / 4;
    m->texts = m->bytes.p + 4 + trie;
    m->n_texts = len - 4 - trie;
    if (m->n_texts == 0 || m->texts[m->n_texts - 1] != 0)
        TERN_FAIL(err, TERN_EFORMAT, "the last text of the table has no end");
    size_t valid = tern_utf8_valid(m->texts, m->n_texts);
    if (valid < m->n_texts)
        TERN_FAIL(err, TERN_EFORMAT, "the texts of the table are not UTF-8 at byte %zu", valid);
    *out = m;
    m = NULL;
out:
    tern_tok_charsmap_free(m);
    return rc;
}

void tern_tok_charsmap_free(struct tern_tok_charsmap *m)
{
    if (!m)
        return;
    tern_buf_clear(&m->bytes);
    tern_free(m);
}

static size_t children(size_t at, uint32_t unit)
{
    return at ^ (size_t)(unit >> 10 & 0x1FFFFF) << (unit & 512 ? 8 : 0);
}

/* What stands for the shortest beginning of p[0..n) that is a key: `tokenizers` takes that for the whole.  NULL: none
 * is. Places outside of the table, which only a broken file has, are no keys. */
static const char *find(const struct tern_tok_charsmap *m, const char *p, size_t n)
{
    size_t at = children(0, unit_at(m, 0));
    for (size_t i = 0; i < n && p[i]; i++) {
        at ^= (unsigned char)p[i];
        if (at >= m->n_units)
            return NULL;
        uint32_t unit = unit_at(m, at);
        if ((unit & 0x800000FF) != (unsigned char)p[i])
            return NULL;
        at = children(at, unit);
        if (unit & 256) {
            size_t text = at < m->n_units ? unit_at(m, at) & 0x7FFFFFFF : m->n_texts;
            bool begins = text < m->n_texts && ((unsigned char)m->texts[text] & 0xC0) != 0x80;
            return begins ? m->texts + text : NULL;
        }
    }
    return NULL;
}

/* Bytes up to the end of the grapheme at p, n > 0. */
static size_t grapheme(const char *p, size_t n)
{
    uint32_t cp, next;
    utf8proc_int32_t state = 0;
    size_t len = (size_t)tern_utf8_decode(p, n, &cp);
    while (len < n) {
        size_t k = (size_t)tern_utf8_decode(p + len, n - len, &next);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)cp, (utf8proc_int32_t)next, &state))
            break;
        len += k;
        cp = next;
    }
    return len;
}

int tern_tok_charsmap_apply(const struct tern_tok_charsmap *m, const char *p, size_t n, struct tern_buf *out,
                            tern_error *err)
{
    int rc = 0;
    for (size_t i = 0, end = 0; i < n; i = end) {
        end = i + grapheme(p + i, n - i);
        const char *text = end - i < MAX_REPLACED ? find(m, p + i, end - i) : NULL;
        if (text)
            TERN_TRY(tern_buf_add(out, text, strlen(text), err));
        for (size_t k = i; k < end && !text;) {
            uint32_t cp;
            size_t len = (size_t)tern_utf8_decode(p + k, end - k, &cp);
            const char *other = find(m, p + k, len);
            TERN_TRY(tern_buf_add(out, other ? other : p + k, other ? strlen(other) : len, err));
            k += len;
        }
    }
out:
    return rc;
}
