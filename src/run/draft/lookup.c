/* Guesses from the sequence itself: a chain of earlier places for each hash of two tokens, as compressors of text keep
 * (Ziv and Lempel, 1977), walked for the longest match. */
#include "run/draft/draft.h"

#include <string.h>
#include "base/mem.h"

#define LEAST_SIZE 256
#define MOST_SIZE  (1 << 18)
#define MOST_TRIES 128 /* places that are compared */

void tern_lookup_clear(struct tern_lookup *l)
{
    tern_free(l->tokens);
    tern_free(l->before);
    tern_free(l->newest);
    memset(l, 0, sizeof *l);
}

/* Place i joins the chain of its last two tokens. */
static void chain(struct tern_lookup *l, int i)
{
    uint64_t two = (uint64_t)(uint32_t)l->tokens[i - 1] << 32 | (uint32_t)l->tokens[i];
    two *= UINT64_C(0x9E3779B97F4A7C15);
    int32_t *newest = &l->newest[(two >> 40) & (uint64_t)(l->size - 1)];
    l->before[i] = *newest;
    *newest = i + 1;
}

/* As many hashes as tokens, so that chains are those of equal tokens. */
static int widen(struct tern_lookup *l, int n, tern_error *err)
{
    int rc = 0, size = l->size ? l->size : LEAST_SIZE;
    int32_t *newest;
    while (size < n && size < MOST_SIZE)
        size *= 2;
    if (size == l->size)
        return 0;
    TERN_TRY(tern_alloc(&newest, (size_t)size, sizeof *newest, err));
    tern_free(l->newest);
    l->newest = newest;
    l->size = size;
    for (int i = 1; i < l->n; i++)
        chain(l, i);
out:
    return rc;
}

int tern_lookup_add(struct tern_lookup *l, const int32_t *tokens, int n, tern_error *err)
{
    int rc = 0;
    const size_t all = (size_t)l->n + (size_t)n;
    TERN_TRY(tern_grow(&l->tokens, &l->cap_tokens, all, sizeof *l->tokens, err));
    TERN_TRY(tern_grow(&l->before, &l->cap_before, all, sizeof *l->before, err));
    TERN_TRY(widen(l, (int)all, err));
    for (int i = 0; i < n; i++) {
        l->tokens[l->n] = tokens[i];
        if (l->n)
            chain(l, l->n);
        l->n++;
    }
out:
    return rc;
}

static int match_length(const struct tern_lookup *l, int place)
{
    int n = 0;
    while (n < TERN_LOOKUP_LONG && place - n >= 0 && l->tokens[place - n] == l->tokens[l->n - 1 - n])
        n++;
    return n;
}

int tern_lookup_guess(const struct tern_lookup *l, int32_t *out, int most, int *match)
{
    int from = 0;
    *match = 0;
    for (int i = l->n > 1 ? l->before[l->n - 1] : 0, tries = 0; i && tries < MOST_TRIES;
         i = l->before[i - 1], tries++) {
        int n = match_length(l, i - 1);
        if (n > *match) {
            *match = n;
            from = i;
        }
        if (n == TERN_LOOKUP_LONG)
            break;
    }
    if (*match < TERN_LOOKUP_LEAST)
        return 0;
    for (int i = 0; i < most; i++)
        out[i] = from + i < l->n ? l->tokens[from + i] : out[from + i - l->n];
    return most;
}
