#include "text/tok_impl.h"

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
    while (k + 1 < s->n_spans && !s->spans[k + 1].user)
        k++;
    s->limit = s->spans[k].end;
}

struct tern_tok_match tern_tok_scan_next(struct tern_tok_scan *s, size_t from)
{
    const struct tern_tok_trie *trie = &s->t->added;
    for (size_t i = from; i < s->n; i++) {
        int32_t at = trie->first[(uint8_t)s->text[i]];
        if (at == 0)
            continue;
        advance_limit(s, i);
        struct tern_tok_match best = {.begin = i, .end = i, .id = -1};
        size_t k = i + 1;
        for (;;) {
            int32_t id = trie->node[at].id;
            if (id >= 0 && (k <= s->limit || !tern_tok_is_control_type(s->t->type[id]))) {
                best.end = k;
                best.id = id;
            }
            if (k == s->n)
                break;
            uint8_t byte = (uint8_t)s->text[k++];
            for (at = trie->node[at].child; at != 0 && trie->node[at].byte != byte;)
                at = trie->node[at].sibling;
            if (at == 0)
                break;
        }
        if (best.id >= 0)
            return best;
    }
    return (struct tern_tok_match){.begin = s->n, .end = s->n, .id = -1};
}
