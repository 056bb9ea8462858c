#include "text/tok/encode.h"

#include <string.h>

int tern_tok_trie_add(struct tern_tok_trie *trie, const char *p, size_t n, int32_t id, tern_error *err)
{
    int rc = 0;
    int32_t at = 0;
    if (trie->n == 0) {
        TERN_TRY(tern_grow(&trie->node, &trie->cap, 1, sizeof *trie->node, err));
        trie->node[0] = (struct tern_tok_node){.id = -1};
        trie->n = 1;
    }
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = (uint8_t)p[i];
        int32_t next = i == 0 ? trie->first[byte] : trie->node[at].child;
        while (i > 0 && next != 0 && trie->node[next].byte != byte)
            next = trie->node[next].sibling;
        if (next == 0) {
            TERN_TRY(tern_grow(&trie->node, &trie->cap, trie->n + 1, sizeof *trie->node, err));
            next = (int32_t)trie->n++;
            trie->node[next] = (struct tern_tok_node){.id = -1, .byte = byte};
            if (i == 0) {
                trie->first[byte] = next;
            } else {
                trie->node[next].sibling = trie->node[at].child;
                trie->node[at].child = next;
            }
        }
        at = next;
    }
    if (n > 0 && trie->node[at].id < 0)
        trie->node[at].id = id;
out:
    return rc;
}

void tern_tok_trie_clear(struct tern_tok_trie *trie)
{
    tern_free(trie->node);
    *trie = (struct tern_tok_trie){0};
}

/* Moves s->limit on for a look at position i >= all earlier ones. */
static void advance_limit(struct tern_tok_scan *s, size_t i)
{
    while (s->span < s->n_spans && s->spans[s->span].end <= i)
        s->span++;
    if (s->span == s->n_spans || s->spans[s->span].user || s->limit > i)
        return;
    size_t k = s->span;
    while (k + 1 < s->n_spans && (!s->spans[k + 1].user || s->spans[k + 1].begin == s->spans[k + 1].end))
        k++;
    s->limit = s->spans[k].end;
}

/* The byte at position i as the trie sees it, and how many bytes it takes.  To score BPE a literal U+2581 is a space
 * here as everywhere else (tok.h). */
static inline uint8_t unit(const struct tern_tok_scan *s, size_t i, size_t *n)
{
    uint8_t byte = (uint8_t)s->text[i];
    *n = 1;
    if (byte == 0xE2 && s->t->algo == TERN_TOK_SCORE_BPE && s->n - i >= 3 &&
        memcmp(s->text + i, "\xE2\x96\x81", 3) == 0) {
        *n = 3;
        return ' ';
    }
    return byte;
}

/* The longest token that begins at `at` of the text, whose first unit leads to trie node `node`. */
static struct tern_tok_match longest(const struct tern_tok_scan *s, size_t at, size_t n_unit, int32_t node)
{
    const struct tern_tok_trie *trie = s->trie;
    struct tern_tok_match best = {.begin = at, .end = at, .id = -1};
    size_t end = at + n_unit;
    for (;;) {
        int32_t id = trie->node[node].id;
        if (id >= 0 && (end <= s->limit || !tern_tok_is_control_type(s->t->type[id]))) {
            best.end = end;
            best.id = id;
        }
        if (end == s->n)
            return best;
        uint8_t byte = unit(s, end, &n_unit);
        end += n_unit;
        for (node = trie->node[node].child; node != 0 && trie->node[node].byte != byte;)
            node = trie->node[node].sibling;
        if (node == 0)
            return best;
    }
}

/* The start of the character before position i > 0; a byte that is part of none counts as one. */
static size_t before(const struct tern_tok_scan *s, size_t i, uint32_t *cp)
{
    for (size_t k = 1; k <= 4 && k <= i; k++)
        if ((size_t)tern_utf8_decode(s->text + i - k, k, cp) == k)
            return i - k;
    *cp = 0xFFFD;
    return i - 1;
}

static bool stands_alone(const struct tern_tok_scan *s, const struct tern_tok_match *m)
{
    uint32_t cp;
    if (m->begin > 0) {
        (void)before(s, m->begin, &cp);
        if (tern_tok_is_word(cp))
            return false;
    }
    return m->end == s->n || tern_utf8_decode(s->text + m->end, s->n - m->end, &cp) == 0 || !tern_tok_is_word(cp);
}

/* Widens the match by white space; on the left not beyond `from`. */
static void take_spaces(const struct tern_tok_scan *s, struct tern_tok_match *m, size_t from, uint8_t find)
{
    uint32_t cp;
    while ((find & TERN_TOK_LSTRIP) && m->begin > from) {
        size_t at = before(s, m->begin, &cp);
        if (at < from || !tern_tok_is_space(cp))
            break;
        m->begin = at;
    }
    if ((find & TERN_TOK_LSTRIP) && m->begin < from) /* what the last token took is not its own */
        m->begin = from;
    while ((find & TERN_TOK_RSTRIP) && m->end < s->n) {
        int len = tern_utf8_decode(s->text + m->end, s->n - m->end, &cp);
        if (len == 0 || !tern_tok_is_space(cp))
            break;
        m->end += (size_t)len;
    }
}

struct tern_tok_match tern_tok_scan_next(struct tern_tok_scan *s, size_t from)
{
    size_t n_unit;
    for (size_t i = s->next; i < s->n; i += n_unit) {
        int32_t node = s->trie->first[unit(s, i, &n_unit)];
        if (node == 0)
            continue;
        advance_limit(s, i);
        struct tern_tok_match m = longest(s, i, n_unit, node);
        if (m.id < 0)
            continue;
        uint8_t find = s->t->find ? s->t->find[m.id] : 0;
        n_unit = m.end - i;
        if (!(find & TERN_TOK_WORD) || stands_alone(s, &m)) {
            s->next = m.end;
            take_spaces(s, &m, from, find);
            if (m.begin < m.end)
                return m;
        }
    }
    s->next = s->n;
    return (struct tern_tok_match){.begin = s->n, .end = s->n, .id = -1};
}
