/* Unigram: of all ways to write a word as pieces, the one with the greatest sum of scores.  One pass over the
 * characters keeps the best way to every position; among equals the piece that was tried first, so the one that begins
 * first, wins. */
#include "text/tok/encode.h"

static void offer(struct tern_tok_best *to, double score, size_t begin, int32_t id)
{
    if (to->id != -1 && score <= to->score)
        return;
    *to = (struct tern_tok_best){.score = score, .begin = (uint32_t)begin, .id = id};
}

/* Offers every piece that begins at `at`; a character that is none is offered as unknown. */
static void offer_pieces(const struct tern_tokenizer *t, struct tern_tok_best *best, const char *word, size_t n,
                         size_t at, size_t n_char)
{
    bool single = false;
    int32_t node = t->pieces.first[(uint8_t)word[at]];
    for (size_t end = at + 1; node != 0; end++) {
        int32_t id = t->pieces.node[node].id;
        if (id >= 0) {
            offer(&best[end], best[at].score + t->score[id], at, id);
            single = single || end - at == n_char;
        }
        if (end == n)
            break;
        node = t->pieces.node[node].child;
        while (node != 0 && t->pieces.node[node].byte != (uint8_t)word[end])
            node = t->pieces.node[node].sibling;
    }
    if (!single)
        offer(&best[at + n_char], best[at].score + t->unknown_score, at, TERN_TOK_NO_TOKEN);
}

int tern_tok_unigram(struct tern_tok_work *w, const char *word, size_t n, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_grow(&w->best, &w->cap_best, n + 1, sizeof *w->best, err));
    struct tern_tok_best *best = w->best;
    for (size_t i = 0; i <= n; i++)
        best[i] = (struct tern_tok_best){.id = -1};
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int len = tern_utf8_decode(word + i, n - i, &cp);
        size_t n_char = len == 0 ? 1 : (size_t)len;
        offer_pieces(w->t, best, word, n, i, n_char);
        i += n_char;
    }
    for (size_t end = n; end > 0; end = best[end].begin)
        best[best[end].begin].next = (uint32_t)end;
    for (size_t i = 0, end; i < n; i = end) {
        end = best[i].next;
        int32_t id = best[end].id;
        if (id < 0) {
            TERN_TRY(tern_tok_emit_unknown(w, word + i, end - i, err));
            continue;
        }
        w->after_unknown = false;
        TERN_TRY(tern_ids_add(w->ids, id, err));
    }
out:
    return rc;
}
