/* kv/layout.h - what is kept of a token and where its bytes lie: the --kv text, the layout, key conditioning.
 *
 * Layout (seam 2): the model declares its layers, a --kv text says what is wanted, tern_kv_layout_new decides per layer
 * and remembers the reason wherever the two differ.  Others include kv.h. */
#ifndef TERN_KV_LAYOUT_H
#define TERN_KV_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "codec/codec.h"

/* ---- what is asked for ---------------------------------------------------------------------------------------- */

#define TERN_KV_MAX_RULES 256
#define TERN_KV_MAX_ITEMS 4 /* that name schemes; of more, the later ones are not remembered */
#define TERN_KV_MAX_NOTES 6
#define TERN_KV_FIRST     4 /* raw tokens at the start, if nothing is said */

/* A parsed --kv text. */
struct tern_kv_spec {
    const struct tern_kv_codec *k, *v;
    int first;  /* raw tokens at the start, 0..64 */
    int recent; /* newest tokens that stay raw, the open page's among them: a multiple of 64 */
    int max;    /* tokens that layers without a window keep, the first ones among them; 0: all */
    int edge;   /* this many first and last layers use edge_k / edge_v */
    const struct tern_kv_codec *edge_k, *edge_v;
    struct {
        int from, to; /* layers, inclusive */
        const struct tern_kv_codec *k, *v;
    } rules[TERN_KV_MAX_RULES];
    int n_rules;
    enum tern_kv_cond_from { TERN_COND_AUTO, TERN_COND_OFF, TERN_COND_NORMS, TERN_COND_BIAS, TERN_COND_FILE } cond;
    char cond_path[256];
    bool position;  /* of compressed rows in codes the rotated dims stay in 16 bits */
    bool in_plan;   /* while a plan file is read */
    bool from_file; /* a plan file was */
    bool has_first; /* first=N stands there */
    /* Which of the items that name a scheme for keys or values is in effect for each; the first ones' texts. */
    int n_items, k_item, v_item;
    char item[TERN_KV_MAX_ITEMS][24];
};

/* Grammar: SCHEME | k=SCHEME,v=SCHEME, options first=N, recent=N, max=N, edge=N:SCHEME, layers=A-B:SCHEME, plan=FILE,
 * in any order, comma separated; after edge and layers SCHEME may be KEYS/VALUES; a plan file holds the same items, one
 * per line; position=f16 keeps the rotated dims of compressed rows out of their codes; cond=off|norms|bias|FILE says
 * where key conditioning comes from (not said: the sidecar beside the model, else the norm weights, else a bias of the
 * keys, else none).  Errors name the item and list what would have been understood. */
int tern_kv_spec_parse(struct tern_kv_spec *out, const char *text, tern_error *err);

/* ---- layout --------------------------------------------------------------------------------------------------- */

/* What a layer caches besides keys and values of single tokens: a row for every `rate` tokens, which is there from the
 * last of them on and stays. */
enum tern_kv_role {
    TERN_KV_TOKENS, /* keys and values of tokens: every layer's first span */
    TERN_KV_ROWS,   /* compressed rows, keys and values in one: coded as values are.  Where their rotated dims, the last
                       ones, stay apart, these are the span's keys, in 16 bits, and what is before them its values */
    TERN_KV_INDEX   /* keys alone, which only choose rows: kept in 16 bits, or in 32 where the plan keeps keys so; in 4
                       beside coded rows if that is their grid */
};

struct tern_kv_more {
    enum tern_kv_role role;
    int rate; /* 2..128 */
    int n_heads, dim;
    bool grid; /* what it is given lies on the model's grid: E4M3 but for the layer's rotated dims, or E2M1 of keys */
};

#define TERN_KV_MAX_MORE 2

/* Where layers have states, windows and raw rows hold what it takes to go back to those kept in the newest tokens. */
#define TERN_KV_STATE_REACH 640

/* What the model declares for one layer. */
struct tern_kv_decl {
    int n_heads; /* KV heads; 0: this layer keeps no KV */
    int dim_k, dim_v;
    bool latent; /* the values are the first part of the keys, dim_k is what follows them: cached once */
    struct tern_kv_reach reach;
    size_t state_bytes; /* what the layer carries from token to token instead, all 0 in the beginning; 0: nothing */
    struct tern_kv_more more[TERN_KV_MAX_MORE]; /* [n_more] */
    int n_more;
    /* The rotary embedding of the keys: pair i turns by freq[i] per position. */
    int n_rot; /* rotated dims; 0: none */
    bool interleaved;
    const float *freq; /* [n_rot/2] */
    bool guesses;      /* not a layer of the text: behind all others, in no count of layers that a --kv text makes */
    const char *hard_keys; /* why codes of less than 8 bits do not hold these keys, or NULL */
};

/* Spans of one reach and rate, which have pages together. */
struct tern_kv_group {
    struct tern_kv_reach reach; /* of all its layers */
    int rate;                   /* a row stands for so many tokens */
    size_t page_bytes;          /* 64 rows of all its layers */
    int ring;                   /* raw tiles that each of its layers has at least */
    int recent, seen_ring;      /* most pages that one of them sees raw, and the raw tiles of those that do */
};

#define TERN_KV_MAX_GROUPS 4
#define TERN_KV_MAX_DRAFTS 16

/* Tokens that a page of the group stands for; pages that n tokens close; rows of the open page after n tokens. */
static inline int tern_kv_page_tokens(const struct tern_kv_group *g)
{
    return TERN_PAGE * g->rate;
}

static inline int tern_kv_closed(const struct tern_kv_group *g, int n)
{
    return n / tern_kv_page_tokens(g);
}

static inline int tern_kv_open_rows(const struct tern_kv_group *g, int n)
{
    return n / g->rate % TERN_PAGE;
}

/* A span is one thing that one layer caches at one rate.  Span i < n_layers is layer i's keys and values of tokens;
 * further spans follow, in order of layers.  In blocks of tiles spans stand in order of layers too. */
struct tern_kv_layout {
    int n_layers, n_spans;
    int n_text;                   /* layers before those that guess */
    struct tern_kv_layer *layers; /* [n_spans], owned: where the bytes of a span lie */
    int *group_of;                /* [n_spans], -1 where a layer keeps no KV */
    int *span_layer;              /* [n_spans], owned: whose it is */
    enum tern_kv_role *roles;     /* [n_spans], owned */
    struct tern_kv_group groups[TERN_KV_MAX_GROUPS];
    int n_groups;
    size_t *state_off;                 /* [n_layers], owned: where a layer's state lies in the sequence's state block */
    size_t state_bytes;                /* one sequence's states, all layers; 0 where no layer has one */
    size_t tile_bytes;                 /* one sequence's raw tiles, all layers */
    int drafts;                        /* rows of a step that can be taken back at no cost */
    bool windows;                      /* some group forgets pages */
    int recent;                        /* most pages that any layer sees raw, the open one included */
    size_t sink_bytes;                 /* one sequence's raw first tokens, all layers; 0 when nothing is coded */
    size_t stage_tile_bytes;           /* largest tile of one layer, all heads: unit of staging */
    float *signs;                      /* owned: the rotation signs that sides point into */
    char text[256];                    /* the --kv text as given */
    char keys[64];                     /* what conditions coded keys, for messages; "": nothing could */
    char note[TERN_KV_MAX_NOTES][160]; /* items of the text that change nothing, each a sentence without its end */
    int n_notes;
    struct tern_kv_spec spec;
    uint64_t digest; /* of everything that decides page bytes: equal digests, exchangeable pages */
};

/* strict: a layer that cannot have what was asked is an error instead of a reason, an item that changes nothing one
 * instead of a note. */
int tern_kv_layout_new(struct tern_kv_layout **out, const struct tern_kv_decl *decl, int n_layers, const char *spec,
                       bool strict, tern_error *err);
/* Makes room for going back by so many rows after a step at no cost.  Before the layout is in use; pages and the digest
 * do not change. */
void tern_kv_layout_spare(struct tern_kv_layout *l, int drafts);
void tern_kv_layout_free(struct tern_kv_layout *l);

/* Bytes of closed pages per token in one span, and what f16 would take; the same of all spans of a layer. */
double tern_kv_layer_bytes(const struct tern_kv_layer *l);
double tern_kv_layer_f16_bytes(const struct tern_kv_layer *l);
double tern_kv_spans_bytes(const struct tern_kv_layout *l, int layer);
double tern_kv_spans_f16_bytes(const struct tern_kv_layout *l, int layer);
/* The span of a layer that has this role; -1: none. */
int tern_kv_span_of(const struct tern_kv_layout *l, int layer, enum tern_kv_role role);
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

/* Coded keys of l use s, which `source` tells of, from now on; s must outlive l.  Before any page exists: the digest
 * changes with it. */
void tern_kv_layout_condition(struct tern_kv_layout *l, const struct tern_kv_cond_set *s, const char *source);
bool tern_kv_layout_codes_keys(const struct tern_kv_layout *l); /* in a scheme that conditioning serves */
/* "t4 (keys calibrated, 1a2b3c4d)": the plan in full, for messages. */
void tern_kv_layout_describe(const struct tern_kv_layout *l, char *out, size_t n);

#endif
