/* grammar/follow.h - a grammar at work: the states that texts lead to, met once and kept.
 *
 *   configuration   a frame and a node that eats a byte: where one reading of the text stands
 *   frame           a call or repetition that waits: what comes behind, and how many turns were made; frames form
 *                   trees, frame 0 is the bottom
 *   state           the set of configurations of a text; two texts with the same set may go on alike
 *
 * Masks belong to states whose counts are rounded: a repetition that no single token can bring to either of its bounds
 * is as good as any other such, so long strings of bounded length share one mask.
 *
 * Bound by bytes: when a follow has grown beyond its budget, matchers move to a new one, one by one. */
#ifndef TERN_GRAMMAR_FOLLOW_H
#define TERN_GRAMMAR_FOLLOW_H

#include "grammar/build.h"

#define TERN_GR_DEAD    0u /* no configuration is left */
#define TERN_GR_LOST    1u /* too many to go on with */
#define TERN_GR_UNKNOWN UINT32_MAX

struct tern_gr_frame_node {
    uint32_t parent, node, count, depth;
    uint32_t rounded; /* the same with rounded counts */
};

struct tern_gr_config {
    uint32_t frame, node;
};

struct tern_gr_state {
    size_t at; /* its configurations lie at configs[at..at + n) */
    uint32_t n;
    bool complete;
    uint32_t rounded;  /* UNKNOWN: not asked for */
    uint32_t *next;    /* [n_classes + n_marks]; NULL: none is known */
    uint32_t *mask[2]; /* [1]: at the beginning of a text; NULL: not computed */
};

struct tern_gr_table { /* of indices, by hash; open addressing */
    uint32_t *v;
    size_t size, used;
};

struct tern_gr_follow {
    const tern_grammar *g; /* kept by matchers */
    const struct tern_gr_vocab *vocab;
    atomic_int refs;
    atomic_bool full;     /* beyond its budget */
    pthread_mutex_t lock; /* of everything below */
    struct tern_gr_frame_node *frames;
    struct tern_gr_config *configs;
    struct tern_gr_state *states;
    size_t n_frames, n_configs, n_states, cap_frames, cap_configs, cap_states;
    struct tern_gr_table frame_table, state_table;
    uint32_t longest; /* bytes of a token */
    size_t bytes;     /* of all this, roughly */
    uint64_t work;    /* done since it was set to 0 */
    uint32_t start;
    /* Of the closure in hand. */
    struct tern_gr_item {
        uint32_t frame, node, fresh;
    } * items;
    size_t n_items, cap_items;
    struct tern_gr_config *found;
    size_t n_found, cap_found;
    struct tern_gr_seen {
        uint64_t key;
        uint32_t fresh, stamp;
    } * seen;
    size_t size_seen, n_seen;
    uint32_t stamp;
    bool complete, too_many;
};

int tern_gr_follow_new(struct tern_gr_follow **out, const tern_grammar *g, const struct tern_gr_vocab *v,
                       uint32_t longest, tern_error *err);
/* The state behind s and a symbol: a class of bytes, or n_classes + a mark. */
int tern_gr_step(struct tern_gr_follow *f, uint32_t s, uint32_t symbol, uint32_t *out, tern_error *err);
static inline int tern_gr_next(struct tern_gr_follow *f, uint32_t s, uint32_t symbol, uint32_t *out, tern_error *err)
{
    const uint32_t *next = f->states[s].next;
    if (next && next[symbol] != TERN_GR_UNKNOWN) {
        *out = next[symbol];
        return 0;
    }
    return tern_gr_step(f, s, symbol, out, err);
}
int tern_gr_rounded(struct tern_gr_follow *f, uint32_t s, uint32_t *out, tern_error *err);
/* The state of `from` that is s, in f. */
int tern_gr_move(struct tern_gr_follow *f, struct tern_gr_follow *from, uint32_t s, uint32_t *out, tern_error *err);

/* vocab.c */
uint32_t tern_gr_vocab_longest(const struct tern_gr_vocab *v);
/* The mask of state s (rounded), computed; begins: nothing of the text is there. */
int tern_gr_vocab_mask(const struct tern_gr_vocab *v, struct tern_gr_follow *f, uint32_t s, bool begins, uint32_t *mask,
                       tern_error *err);
size_t tern_gr_vocab_words(const struct tern_gr_vocab *v); /* of a mask */
/* What token id adds to a text: bytes, or a mark (index) of g; *n 0 and *mark -1: nothing that a text may have. */
void tern_gr_vocab_token(const struct tern_gr_vocab *v, const tern_grammar *g, int32_t id, bool begins, const char **p,
                         size_t *n, int *mark, bool *ends);

#endif
