/* The scores that stand for a list of merges.
 *
 * GGUF's "llama" merges whatever two neighbours make a token, best score first, where a tokenizer.json lists the pairs
 * in their order.  Both are the same when every pair that makes a token is listed, and the pairs of one token stand
 * together: then the place of the first of them, counted downwards, is the token's score.  That is how the lists came
 * about, from vocabularies of SentencePiece. */
#include <stdlib.h>
#include <string.h>

#include "text/tok/tok.h"

struct place {
    uint32_t first, last;
    int32_t id;
};

static bool is_listed(const struct tern_tokenizer *t, int32_t left, int32_t right)
{
    for (size_t at = tern_tok_rule_slot(t, left, right); t->rules[at].left >= 0; at = (at + 1) & t->rule_mask)
        if (t->rules[at].left == left && t->rules[at].right == right)
            return true;
    return false;
}

/* Is every pair of normal tokens that makes this one listed? */
static bool is_complete(const struct tern_tokenizer *t, int32_t id)
{
    size_t n;
    uint32_t cp;
    const char *p = tern_tok_string(&t->piece, id, &n);
    for (size_t k = 0; k < n;) {
        const int len = tern_utf8_decode(p + k, n - k, &cp);
        k += len > 0 ? (size_t)len : 1;
        const int32_t left = k < n ? tern_tok_map_get(&t->by_piece, &t->piece, p, k) : -1;
        const int32_t right = left >= 0 ? tern_tok_map_get(&t->by_piece, &t->piece, p + k, n - k) : -1;
        if (right >= 0 && t->type[left] == TERN_TOK_NORMAL && t->type[right] == TERN_TOK_NORMAL &&
            !is_listed(t, left, right))
            return false;
    }
    return true;
}

static int by_first(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

int tern_tok_scores(const struct tern_tokenizer *t, float *scores, bool *same, tern_error *err)
{
    int rc = 0;
    struct place *places = NULL;
    size_t n = 0;
    *same = t->rules != NULL;
    TERN_TRY(tern_alloc(&places, (size_t)t->n_vocab, sizeof *places, err));
    for (int32_t i = 0; i < t->n_vocab; i++) {
        places[i] = (struct place){UINT32_MAX, 0, i};
        scores[i] = 0;
        *same = *same && (t->type[i] != TERN_TOK_NORMAL || is_complete(t, i));
    }
    for (size_t i = 0; *same && i <= t->rule_mask; i++) {
        const struct tern_tok_merge_rule *r = &t->rules[i];
        if (r->left < 0)
            continue;
        struct place *p = &places[r->id];
        p->first = r->rank < p->first ? r->rank : p->first;
        p->last = r->rank > p->last ? r->rank : p->last;
    }
    qsort(places, (size_t)t->n_vocab, sizeof *places, by_first);
    while (*same && n < (size_t)t->n_vocab && places[n].first != UINT32_MAX) {
        *same = n == 0 || places[n - 1].last < places[n].first;
        scores[places[n].id] = -(float)n; /* exact below 2^24, the most tokens there can be */
        n++;
    }
out:
    tern_free(places);
    return rc;
}
