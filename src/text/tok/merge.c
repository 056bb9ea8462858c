/* The merge loop: symbols of one word, joined lowest rank first, leftmost first among equal ranks.
 *
 * Short words (nearly all) live in small arrays that are searched for the minimum and closed up after each merge.
 * Longer ones (a line of Chinese, a megabyte of one letter) are a linked list with a heap of (rank, position); an entry
 * is stale when the pair that begins at its position no longer has its rank.  Both give the same ids. */
#include "text/tok/encode.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    SHORT_WORD = 24, /* symbols */
    MEMO_WORD = 48,  /* bytes of the longest word that is remembered */
    UNRESOLVED = -2, /* id of a character that was not looked up yet: most are merged away before anyone asks */
};

/* Rank of joining two neighbours whose text together is p[0..n), and the token that it makes. */
static inline uint32_t pair_rank(const struct tern_tokenizer *t, int32_t left, int32_t right, const char *p, size_t n,
                                 int32_t *id)
{
    if (t->algo == TERN_TOK_SCORE_BPE) {
        if (n > t->max_bytes)
            return TERN_TOK_NO_RANK;
        *id = tern_tok_map_get(&t->by_bytes, &t->bytes, p, n);
        return *id < 0 ? TERN_TOK_NO_RANK : t->rank[*id];
    }
    for (size_t i = tern_tok_rule_slot(t, left, right);; i = (i + 1) & t->rule_mask) {
        const struct tern_tok_merge_rule *r = &t->rules[i];
        if (r->left == left && r->right == right) {
            *id = r->id;
            return r->rank;
        }
        if (r->left < 0)
            return TERN_TOK_NO_RANK;
    }
}

/* Whether a character becomes bytes: of score BPE those that there are, of others all or none. */
static bool has_bytes(const struct tern_tokenizer *t, const char *p, size_t n)
{
    if (t->algo == TERN_TOK_SCORE_BPE)
        return true;
    for (size_t i = 0; i < n; i++)
        if (!t->byte_fallback || t->byte_id[(uint8_t)p[i]] < 0)
            return false;
    return true;
}

/* Length of the first symbol of p[0..n) and its id; -1 for what is left out, so that its neighbours meet: bytes of
 * byte-level BPE and characters without a token, where there is no unknown token either. */
static inline size_t first_symbol(const struct tern_tokenizer *t, const char *p, size_t n, int32_t *id)
{
    if (t->algo == TERN_TOK_BYTE_BPE) {
        *id = t->byte_id[(uint8_t)*p];
        if (*id < 0 && t->unknown >= 0 && t->fuse_unknown)
            *id = TERN_TOK_NO_TOKEN;
        return 1;
    }
    uint32_t cp;
    int len = tern_utf8_decode(p, n, &cp);
    size_t n_char = len == 0 ? 1 : (size_t)len;
    *id = UNRESOLVED;
    if (t->algo == TERN_TOK_CHAR_BPE) {
        *id = tern_tok_plain(t, p, n_char);
        if (*id < 0)
            *id = t->unknown >= 0 || has_bytes(t, p, n_char) ? TERN_TOK_NO_TOKEN : -1;
    }
    return n_char;
}

int32_t tern_tok_plain(const struct tern_tokenizer *t, const char *p, size_t n)
{
    if (t->algo == TERN_TOK_BYTE_BPE || t->algo == TERN_TOK_SCORE_BPE)
        return tern_tok_map_get(&t->by_bytes, &t->bytes, p, n);
    int32_t id = tern_tok_map_get(&t->by_piece, &t->piece, p, n);
    return id >= 0 && tern_tok_is_piece(t, id) ? id : -1;
}

/* The unknown token that is owed. */
static int pay_unknown(struct tern_tok_work *w, tern_error *err)
{
    w->owes_unknown = false;
    return tern_ids_add(w->ids, w->t->unknown, err);
}

/* Of BPE of characters it waits for the next plain token, or the end of the word: bytes of other characters go first,
 * as Hugging Face has it. */
static int emit_no_token(struct tern_tok_work *w, tern_error *err)
{
    int rc = 0;
    int32_t id = w->t->unknown;
    if (id >= 0 && w->t->algo == TERN_TOK_CHAR_BPE) {
        if (w->owes_unknown && !w->t->fuse_unknown)
            rc = pay_unknown(w, err);
        w->owes_unknown = true;
        return rc;
    }
    if (id < 0 || (w->after_unknown && w->ids->p[w->ids->len - 1] == id))
        return 0;
    w->after_unknown = w->t->fuse_unknown;
    return tern_ids_add(w->ids, id, err);
}

int tern_tok_emit_unknown(struct tern_tok_work *w, const char *p, size_t n, tern_error *err)
{
    int rc = 0;
    const struct tern_tokenizer *t = w->t;
    if (!has_bytes(t, p, n))
        return emit_no_token(w, err);
    for (size_t i = 0; i < n; i++) {
        int32_t id = t->byte_id[(uint8_t)p[i]];
        if (id < 0) {
            TERN_TRY(emit_no_token(w, err));
            continue;
        }
        w->after_unknown = false;
        TERN_TRY(tern_ids_add(w->ids, id, err));
    }
out:
    return rc;
}

static inline int emit(struct tern_tok_work *w, int32_t id, const char *p, size_t n, tern_error *err)
{
    if (id == UNRESOLVED)
        id = tern_tok_plain(w->t, p, n);
    if (id < 0) {
        /* One symbol; what was left out behind it belongs to none. */
        uint32_t cp;
        const int len = w->t->algo == TERN_TOK_CHAR_BPE ? tern_utf8_decode(p, n, &cp) : 0;
        return tern_tok_emit_unknown(w, p, len > 0 ? (size_t)len : n, err);
    }
    w->after_unknown = false;
    if (w->owes_unknown) {
        int rc = pay_unknown(w, err);
        if (rc < 0)
            return rc;
    }
    return tern_ids_add(w->ids, id, err);
}

/* ---- short words -------------------------------------------------------------------------------------------- */

struct short_word {
    int n;
    int32_t id[SHORT_WORD], pair_id[SHORT_WORD];
    uint32_t rank[SHORT_WORD]; /* of the pair with the right neighbour */
    uint32_t begin[SHORT_WORD + 1];
};

static inline void short_pair(const struct tern_tokenizer *t, struct short_word *s, const char *word, int i)
{
    s->rank[i] =
        pair_rank(t, s->id[i], s->id[i + 1], word + s->begin[i], s->begin[i + 2] - s->begin[i], &s->pair_id[i]);
}

static void merge_short(const struct tern_tokenizer *t, struct short_word *s, const char *word)
{
    for (int i = 0; i + 1 < s->n; i++)
        short_pair(t, s, word, i);
    while (s->n > 1) {
        int best = 0;
        for (int i = 1; i + 1 < s->n; i++)
            if (s->rank[i] < s->rank[best])
                best = i;
        if (s->rank[best] == TERN_TOK_NO_RANK)
            break;
        s->id[best] = s->pair_id[best];
        for (int i = best + 1; i + 1 < s->n; i++) {
            s->id[i] = s->id[i + 1];
            s->pair_id[i] = s->pair_id[i + 1];
            s->rank[i] = s->rank[i + 1];
            s->begin[i] = s->begin[i + 1];
        }
        s->n--;
        s->begin[s->n] = s->begin[s->n + 1];
        if (best > 0)
            short_pair(t, s, word, best - 1);
        if (best + 1 < s->n)
            short_pair(t, s, word, best);
    }
}

/* False when the word has too many symbols. */
static bool split_short(const struct tern_tokenizer *t, struct short_word *s, const char *word, size_t n)
{
    s->n = 0;
    for (size_t i = 0; i < n;) {
        if (s->n == SHORT_WORD)
            return false;
        s->begin[s->n] = (uint32_t)i;
        i += first_symbol(t, word + i, n - i, &s->id[s->n]);
        s->n += s->id[s->n] != -1;
    }
    s->begin[s->n] = (uint32_t)n;
    return true;
}

/* ---- long words --------------------------------------------------------------------------------------------- */

static void heap_sift(uint64_t *heap, size_t n, size_t i)
{
    uint64_t x = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= x)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = x;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t x)
{
    size_t i = (*n)++;
    while (i > 0 && heap[(i - 1) / 2] > x) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = x;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0];
    heap[0] = heap[--*n];
    if (*n > 1)
        heap_sift(heap, *n, 0);
    return top;
}

/* Looks up the pair that begins at symbol i; true when it can be joined. */
static bool long_pair(struct tern_tok_work *w, const char *word, size_t n, int32_t i)
{
    struct tern_tok_sym *s = &w->sym[i];
    s->pair_rank = TERN_TOK_NO_RANK;
    if (s->next < 0)
        return false;
    const struct tern_tok_sym *r = &w->sym[s->next];
    size_t end = r->next < 0 ? n : w->sym[r->next].begin;
    s->pair_rank = pair_rank(w->t, s->id, r->id, word + s->begin, end - s->begin, &s->pair_id);
    return s->pair_rank != TERN_TOK_NO_RANK;
}

static inline uint64_t heap_key(const struct tern_tok_work *w, int32_t i)
{
    return (uint64_t)w->sym[i].pair_rank << 32 | (uint32_t)i;
}

static int split_long(struct tern_tok_work *w, const char *word, size_t n, size_t *n_sym, tern_error *err)
{
    int rc = 0;
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        if (k == w->cap_sym)
            TERN_TRY(tern_grow(&w->sym, &w->cap_sym, k + 1, sizeof *w->sym, err));
        struct tern_tok_sym *s = &w->sym[k];
        *s = (struct tern_tok_sym){.prev = (int32_t)k - 1, .next = (int32_t)k + 1, .begin = (uint32_t)i};
        i += first_symbol(w->t, word + i, n - i, &s->id);
        k += s->id != -1;
    }
    if (k > 0)
        w->sym[k - 1].next = -1;
    /* Every merge takes one entry out and puts at most two in, so twice the symbols is enough. */
    TERN_TRY(tern_grow(&w->heap, &w->cap_heap, 2 * k, sizeof *w->heap, err));
    *n_sym = k;
out:
    return rc;
}

static void merge_long(struct tern_tok_work *w, const char *word, size_t n, size_t n_sym)
{
    size_t n_heap = 0;
    for (size_t i = 0; i < n_sym; i++)
        if (long_pair(w, word, n, (int32_t)i))
            w->heap[n_heap++] = heap_key(w, (int32_t)i);
    for (size_t i = n_heap / 2; i-- > 0;)
        heap_sift(w->heap, n_heap, i);
    while (n_heap > 0) {
        uint64_t top = heap_pop(w->heap, &n_heap);
        int32_t i = (int32_t)(uint32_t)top;
        struct tern_tok_sym *s = &w->sym[i];
        if (s->pair_rank != (uint32_t)(top >> 32))
            continue;
        struct tern_tok_sym *gone = &w->sym[s->next];
        s->id = s->pair_id;
        s->next = gone->next;
        if (gone->next >= 0)
            w->sym[gone->next].prev = i;
        gone->pair_rank = TERN_TOK_NO_RANK;
        TERN_DASSERT(n_heap + 2 <= w->cap_heap);
        if (long_pair(w, word, n, i))
            heap_push(w->heap, &n_heap, heap_key(w, i));
        if (s->prev >= 0 && long_pair(w, word, n, s->prev))
            heap_push(w->heap, &n_heap, heap_key(w, s->prev));
    }
}

/* ---- words -------------------------------------------------------------------------------------------------- */

static int merge_symbols(struct tern_tok_work *w, const char *word, size_t n, tern_error *err)
{
    int rc = 0;
    struct short_word s;
    if (split_short(w->t, &s, word, n)) {
        merge_short(w->t, &s, word);
        for (int i = 0; i < s.n; i++)
            TERN_TRY(emit(w, s.id[i], word + s.begin[i], s.begin[i + 1] - s.begin[i], err));
        return 0;
    }
    size_t n_sym;
    TERN_TRY(split_long(w, word, n, &n_sym, err));
    merge_long(w, word, n, n_sym);
    for (int32_t i = n_sym > 0 ? 0 : -1; i >= 0; i = w->sym[i].next) {
        const struct tern_tok_sym *sym = &w->sym[i];
        size_t end = sym->next < 0 ? n : w->sym[sym->next].begin;
        TERN_TRY(emit(w, sym->id, word + sym->begin, end - sym->begin, err));
    }
out:
    return rc;
}

static int merge_word(struct tern_tok_work *w, const char *word, size_t n, tern_error *err)
{
    if (w->t->algo == TERN_TOK_UNIGRAM)
        return tern_tok_unigram(w, word, n, err);
    int rc = merge_symbols(w, word, n, err);
    return rc == 0 && w->owes_unknown ? pay_unknown(w, err) : rc;
}

/* Repeats what the same word gave before; false when it is not remembered. */
static inline int recall(struct tern_tok_work *w, const struct tern_tok_memo *m, uint32_t hash, const char *word,
                         size_t n, bool *hit, tern_error *err)
{
    *hit = m->n_text == n && m->hash == hash && memcmp(tern_tok_source(w, m->source) + m->text, word, n) == 0;
    if (!*hit)
        return 0;
    struct tern_ids *ids = w->ids;
    if (ids->cap - ids->len < m->n_ids) {
        int rc = tern_grow(&ids->p, &ids->cap, ids->len + m->n_ids, sizeof *ids->p, err);
        if (rc < 0)
            return rc;
    }
    for (uint32_t i = 0; i < m->n_ids; i++)
        ids->p[ids->len + i] = ids->p[m->ids + i];
    ids->len += m->n_ids;
    return 0;
}

int tern_tok_word(struct tern_tok_work *w, int source, size_t at, size_t n, tern_error *err)
{
    int rc = 0;
    const struct tern_tokenizer *t = w->t;
    const char *word = tern_tok_source(w, source) + at;
    if (t->algo != TERN_TOK_SCORE_BPE)
        w->after_unknown = false; /* runs of unknown text end with the word */
    if (t->ignore_merges) {
        int32_t id = tern_tok_plain(t, word, n);
        if (id >= 0)
            return emit(w, id, word, n, err);
    }
    if (!w->memo || n > MEMO_WORD)
        return merge_word(w, word, n, err);

    uint64_t hash = XXH3_64bits(word, n);
    struct tern_tok_memo *m = &w->memo[hash & (TERN_TOK_MEMO_SIZE - 1)];
    bool hit;
    TERN_TRY(recall(w, m, (uint32_t)(hash >> 32), word, n, &hit, err));
    if (hit)
        return 0;
    size_t first = w->ids->len;
    TERN_TRY(merge_word(w, word, n, err));
    size_t made = w->ids->len - first;
    if (first <= UINT32_MAX && made <= UINT8_MAX)
        *m = (struct tern_tok_memo){.hash = (uint32_t)(hash >> 32),
                                    .text = (uint32_t)at,
                                    .ids = (uint32_t)first,
                                    .n_text = (uint8_t)n,
                                    .n_ids = (uint8_t)made,
                                    .source = (uint8_t)source};
out:
    return rc;
}
