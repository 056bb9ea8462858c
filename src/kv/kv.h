/* kv/kv.h - where the KV cache lives: layout, page pools, sequences, snapshots.  Bookkeeping only; bytes are opaque.
 *
 *        sequence ── table of group 0 (full attention) ──> page 0, page 1, page 2 ...   closed, immutable, ref-counted
 *                 ── table of group 1 (window 512)      ──>          page 1, page 2 ...   older ones given back
 *                 ── tile block                           newest tokens, raw, private to the sequence
 *                 ── sink block                           first tokens, raw, ref-counted with page 0
 *
 *                 ── state block                          of layers that keep no tokens but what they made of them
 *                 ── kept states                          the same at page boundaries before, ref-counted, a few
 *
 * A page is 64 consecutive tokens of all layers of one group; a group is the set of layers that keep tokens equally
 * long. Fork copies tables (references) and the tile; trim drops references.  Page index = position / 64, absolute.
 *
 * Layout (seam 2): the model declares its layers, a --kv text says what is wanted, tern_kv_layout_new decides per layer
 * and remembers the reason wherever the two differ.
 *
 * Memory: pools reserve address space for their whole capacity and touch it page by page, so the resident set grows
 * with the codes.  Nothing allocates in a step: tern_kv_begin reserves, and is the only call that can run out. Thread:
 * the engine's. */
#ifndef TERN_KV_H
#define TERN_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/err.h"
#include "codec/codec.h"

/* ---- what is asked for ---------------------------------------------------------------------------------------- */

#define TERN_KV_MAX_RULES 256

/* A parsed --kv text. */
struct tern_kv_spec {
    const struct tern_kv_codec *k, *v;
    int first;  /* raw tokens at the start, 0..64 */
    int recent; /* newest tokens that stay raw, the open page's among them: a multiple of 64 */
    int edge;   /* this many first and last layers use edge_k / edge_v */
    const struct tern_kv_codec *edge_k, *edge_v;
    struct {
        int from, to; /* layers, inclusive */
        const struct tern_kv_codec *k, *v;
    } rules[TERN_KV_MAX_RULES];
    int n_rules;
    enum tern_kv_cond_from { TERN_COND_AUTO, TERN_COND_OFF, TERN_COND_NORMS, TERN_COND_BIAS, TERN_COND_FILE } cond;
    char cond_path[256];
    bool in_plan; /* while a plan file is read */
};

/* Grammar: SCHEME | k=SCHEME,v=SCHEME, options first=N, recent=N, edge=N:SCHEME, layers=A-B:SCHEME, plan=FILE, in any
 * order, comma separated; after edge and layers SCHEME may be KEYS/VALUES; a plan file holds the same items, one per
 * line; cond=off|norms|bias|FILE says where key conditioning comes from (not said: the sidecar beside the model, else
 * the norm weights, else a bias of the keys, else none).  Errors name the item and list what would have been
 * understood. */
int tern_kv_spec_parse(struct tern_kv_spec *out, const char *text, tern_error *err);

/* ---- layout --------------------------------------------------------------------------------------------------- */

/* What the model declares for one layer. */
struct tern_kv_decl {
    int n_heads; /* KV heads; 0: this layer keeps no KV */
    int dim_k, dim_v;
    bool latent; /* the values are the first part of the keys, dim_k is what follows them: cached once */
    struct tern_kv_reach reach;
    size_t state_bytes; /* what the layer carries from token to token instead, all 0 in the beginning; 0: nothing */
    /* The rotary embedding of the keys: pair i turns by freq[i] per position. */
    int n_rot; /* rotated dims; 0: none */
    bool interleaved;
    const float *freq;     /* [n_rot/2] */
    const char *hard_keys; /* why codes of less than 8 bits do not hold these keys, or NULL */
};

struct tern_kv_group {
    struct tern_kv_reach reach; /* of all its layers */
    size_t page_bytes;          /* 64 tokens of all its layers */
};

#define TERN_KV_MAX_GROUPS 4

struct tern_kv_layout {
    int n_layers;
    struct tern_kv_layer *layers; /* [n_layers], owned */
    int *group_of;                /* [n_layers], -1 where a layer keeps no KV */
    struct tern_kv_group groups[TERN_KV_MAX_GROUPS];
    int n_groups;
    size_t *state_off;       /* [n_layers], owned: where a layer's state lies in the sequence's state block */
    size_t state_bytes;      /* one sequence's states, all layers; 0 where no layer has one */
    size_t tile_bytes;       /* one sequence's raw tiles, all layers */
    int recent;              /* most pages that any layer sees raw, the open one included */
    size_t sink_bytes;       /* one sequence's raw first tokens, all layers; 0 when nothing is coded */
    size_t stage_tile_bytes; /* largest tile of one layer, all heads: unit of staging */
    float *signs;            /* owned: the rotation signs that sides point into */
    char text[256];          /* the --kv text as given */
    struct tern_kv_spec spec;
    uint64_t digest; /* of everything that decides page bytes: equal digests, exchangeable pages */
};

/* strict: a layer that cannot have what was asked is an error instead of a reason. */
int tern_kv_layout_new(struct tern_kv_layout **out, const struct tern_kv_decl *decl, int n_layers, const char *spec,
                       bool strict, tern_error *err);
void tern_kv_layout_free(struct tern_kv_layout *l);

/* Bytes of closed pages per token in one layer, and what f16 would take. */
double tern_kv_layer_bytes(const struct tern_kv_layer *l);
double tern_kv_layer_f16_bytes(const struct tern_kv_layer *l);
/* Bytes of one sequence's state in one layer. */
size_t tern_kv_layer_state(const struct tern_kv_layout *l, int layer);

/* ---- key conditioning -------------------------------------------------------------------------------------------- */

/* Constants of all layers (codec.h, struct tern_kv_cond), fixed before the first page is coded. */
struct tern_kv_cond_set {
    int n_layers;
    struct tern_kv_cond **layers; /* [n_layers] -> [n_heads]; NULL where a layer keeps no KV */
    struct tern_kv_cond *conds;   /* owned, and memory too */
    float *memory;
    size_t n_floats;
    int n_tokens; /* of the text that was measured; 0: no text */
};

/* Means 0, scales 1, no pairs. */
int tern_kv_cond_new(struct tern_kv_cond_set **out, const struct tern_kv_decl *decl, int n_layers, tern_error *err);
void tern_kv_cond_free(struct tern_kv_cond_set *s);
/* The vectors behind s->layers[layer][head], writable: mean[dim], scale[dim]; tern_kv_cond_seal derives the rest. */
float *tern_kv_cond_vectors(struct tern_kv_cond_set *s, int layer, int head);
void tern_kv_cond_seal(struct tern_kv_cond_set *s, const struct tern_kv_decl *decl);
/* The pair `index` of a layer's embedding. */
struct tern_kv_pair tern_kv_cond_pair(const struct tern_kv_decl *d, int index, float re, float im);

/* A sidecar (docs/kv-cache.md).  Loading fails with one sentence when the file is damaged, of another model or of
 * another shape: nothing is used of it then. */
int tern_kv_cond_save(const struct tern_kv_cond_set *s, const struct tern_kv_decl *decl, uint64_t model_digest,
                      const char *path, tern_error *err);
int tern_kv_cond_load(struct tern_kv_cond_set **out, const struct tern_kv_decl *decl, int n_layers,
                      uint64_t model_digest, const char *path, tern_error *err);

/* Coded keys of l use s from now on; s must outlive l.  Before any page exists: the digest changes with it. */
void tern_kv_layout_condition(struct tern_kv_layout *l, const struct tern_kv_cond_set *s);

/* ---- pages ------------------------------------------------------------------------------------------------------ */

/* A pool of equally large ref-counted blocks in one reserved range. */
struct tern_kv_pool {
    uint8_t *base;
    size_t block_bytes;
    uint32_t n_blocks, n_used, n_fresh; /* blocks from n_fresh on were never touched */
    uint32_t *refs;                     /* [n_blocks] */
    uint32_t *free_list;                /* stack of released blocks */
    uint32_t n_free;
};
int tern_kv_pool_init(struct tern_kv_pool *p, size_t block_bytes, size_t n_blocks, tern_error *err);
void tern_kv_pool_clear(struct tern_kv_pool *p);
uint8_t *tern_kv_pool_get(struct tern_kv_pool *p); /* NULL when exhausted; refs 1; bytes unspecified */
void tern_kv_pool_ref(struct tern_kv_pool *p, uint8_t *block);
void tern_kv_pool_unref(struct tern_kv_pool *p, uint8_t *block); /* NULL is legal */

/* ---- cache and sequences ----------------------------------------------------------------------------------------- */

struct tern_kv_table {
    uint8_t **pages; /* [cap], pages[i] is page index first + i */
    int first, n, cap;
};

/* A state cannot go back by itself, so some are kept: of page boundaries, because there keys and values can be cut. */
#define TERN_KV_KEPT_STATES  4
#define TERN_KV_STATE_STRIDE 512 /* tokens between those of decoding, 64 with recent=N; every prompt step keeps one */

struct tern_kv_kept_state {
    int at; /* tokens before it, a multiple of 64 */
    uint8_t *p;
};

struct tern_kv_seq {
    bool live;
    int n_tokens;
    struct tern_kv_table table[TERN_KV_MAX_GROUPS];
    uint8_t *tile; /* layout->tile_bytes */
    uint8_t *sink; /* NULL until page 0 closes */
    /* Only where the layout has states: */
    uint8_t *state;                                      /* layout->state_bytes, after all n_tokens */
    struct tern_kv_kept_state kept[TERN_KV_KEPT_STATES]; /* ascending */
    int n_kept;
    bool marked; /* the step in hand writes the last of them */
};

struct tern_kv_cache {
    const struct tern_kv_layout *layout; /* borrowed for the cache's life */
    struct tern_kv_pool pool[TERN_KV_MAX_GROUPS];
    struct tern_kv_pool sinks, tiles, states;
    struct tern_kv_seq *seqs; /* [max_seqs] */
    int max_seqs, max_tokens, max_step;
};

/* Room for max_seqs sequences of max_tokens tokens, stepped by at most max_step tokens at once. */
int tern_kv_cache_init(struct tern_kv_cache *c, const struct tern_kv_layout *l, int max_seqs, int max_tokens,
                       int max_step, tern_error *err);
void tern_kv_cache_clear(struct tern_kv_cache *c);

/* An empty sequence; TERN_ECAPACITY when all are in use. */
int tern_kv_seq_new(struct tern_kv_cache *c, struct tern_kv_seq **out, tern_error *err);
void tern_kv_seq_free(struct tern_kv_cache *c, struct tern_kv_seq *s);
int tern_kv_seq_fork(struct tern_kv_cache *c, struct tern_kv_seq **out, const struct tern_kv_seq *s, tern_error *err);

/* Appending n tokens: begin reserves the pages that will close (they are in the tables from then on), commit makes the
 * tokens count and gives back window pages; abort undoes begin. */
int tern_kv_begin(struct tern_kv_cache *c, struct tern_kv_seq *s, int n, tern_error *err);
void tern_kv_commit(struct tern_kv_cache *c, struct tern_kv_seq *s, int n);
/* Between begin and commit, where there are states: the step shall keep that of its last page boundary (decoding: its
 * last multiple of the stride), which is the caller's to write.  NULL: not in this step.  Never runs out: of too
 * many the least useful is dropped. */
const struct tern_kv_kept_state *tern_kv_mark(struct tern_kv_cache *c, struct tern_kv_seq *s, int n, bool prompt);
void tern_kv_abort(struct tern_kv_cache *c, struct tern_kv_seq *s);

/* Index of the first page that a query at position p still reads. */
static inline int tern_kv_first_needed(struct tern_kv_reach r, int p)
{
    return tern_kv_oldest(r, p) / TERN_PAGE;
}

/* Cuts back to n tokens, n <= n_tokens.  A closed page cannot be reopened (its originals are gone), so the sequence
 * ends up with *kept <= n tokens: n itself inside the open tile, else the page boundary below n, or 0 when pages before
 * that would have to be seen raw and no longer are; with states, back to one that was kept, or to 0.  The caller runs
 * the rest again. TERN_EUNSUPPORTED, nothing changed,
 * when a window group no longer holds what a query at *kept needs. */
int tern_kv_trim(struct tern_kv_cache *c, struct tern_kv_seq *s, int n, int *kept, tern_error *err);

/* The states of `from`, a sequence of as many tokens in another cache of the same model, become those of `to`. */
void tern_kv_move_states(struct tern_kv_cache *c, struct tern_kv_seq *to, const struct tern_kv_seq *from);

/* Bytes in use by all live sequences (shared blocks counted once): keys and values, and what they would take in 16
 * bits; states. */
size_t tern_kv_used_bytes(const struct tern_kv_cache *c);
size_t tern_kv_state_bytes(const struct tern_kv_cache *c);
size_t tern_kv_f16_bytes(const struct tern_kv_cache *c);

/* ---- snapshots --------------------------------------------------------------------------------------------------- */

/* A sequence in a file: header, tokens, pages, tile, sinks; XXH3-64 over every section (docs/session-format.md). */
struct tern_kv_snapshot_info {
    uint64_t model_digest; /* of the weights and the architecture */
    const int32_t *tokens; /* [n_tokens] */
    const uint8_t *roles;  /* [n_tokens] 1 = decode row */
};
int tern_kv_save(const struct tern_kv_cache *c, const struct tern_kv_seq *s, const struct tern_kv_snapshot_info *info,
                 const char *path, tern_error *err);
/* Fills a new sequence; tokens and roles arrive in *tokens, *roles (owned by the caller, tern_free). */
int tern_kv_load(struct tern_kv_cache *c, struct tern_kv_seq **out, uint64_t model_digest, int n_vocab,
                 const char *path, int32_t **tokens, uint8_t **roles, tern_error *err);

#endif
