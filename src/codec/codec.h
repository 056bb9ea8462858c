/* codec/codec.h - byte layouts with a meaning: weight formats and KV schemes.
 *
 * Two seams of the design live here.
 *   Weights: a file's block type -> struct tern_packed (kernel/gemm.h), packed panel by panel at load, losslessly.
 *   KV:      a scheme (f16, q8, l4 ...) says how 64 tokens of one KV head become bytes and how attention reads them.
 *            Rotation, signs, scales and bit order stay behind struct tern_kv_codec; attention, paging and disk code
 * see opaque bytes. Nothing here allocates in a step or starts threads; every function may be called from any thread.
 */
#ifndef TERN_CODEC_H
#define TERN_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "file/file.h"
#include "kernel/kernel.h"

/* ---- weights ------------------------------------------------------------------------------------------------ */

/* A weight matrix as its file holds it: one tensor or several that belong together.  Nothing is owned; no pointer needs
 * an alignment.  What a form does not name stays 0.  The trivial case: {.type = t->type, .data = t->data, .name =
 * t->name}.  The caller has checked that every tensor has the shape and element type that the form says. */
struct tern_weight_source {
    enum tern_weight_form form;
    int type;       /* PLAIN: enum tern_type */
    int scale_type; /* TERN_F16, TERN_BF16 or TERN_F32 */
    int bits;       /* AFFINE */
    int group;      /* inputs that share a scale */
    int group_rows; /* FP8: rows that share a scale */
    bool zero_plus_one;
    bool turned; /* FP8: data [k][n_stored], scales [k / group][n_stored / group_rows]; only whole */
    const void *data, *scales, *zeros;
    const void *factors; /* NVFP4 of either form: f32 that multiply the weights of factor_rows rows each; NULL: 1 */
    int factor_rows;     /* 0: one factor for all */
    int64_t row0;        /* GPTQ, AWQ: the matrix is the columns of data from here on, */
    int64_t
        n_stored; /* of so many (0: all columns, row0 is 0).  PLAIN numbers too, where this is not 0: [k][n_stored] */
    const char *name; /* of the tensor, for messages */
};

/* Describes the packed form of the [n, k] matrix `s` (codes, scales, zero, panel_bytes) with data NULL.  Looks at no
 * pointer of it.  TERN_EUNSUPPORTED when the shape does not fit the form. */
int tern_weight_plan(struct tern_packed *w, const struct tern_weight_source *s, int64_t n, int64_t k, tern_error *err);

/* Bytes of all panels, a multiple of 64 (64 readable bytes behind the last panel are included). */
size_t tern_weight_bytes(const struct tern_packed *w);

/* Matrix i of a stack: matrices of one shape, tern_weight_bytes apart.  w: the first, standing for all. */
struct tern_packed tern_weight_at(const struct tern_packed *w, int i);

/* The rows of `s` (k inputs each) from row0 on, as a source of their own; the rows of a stack count through.
 * TERN_EUNSUPPORTED where the form cannot be divided there. */
int tern_weight_rows(struct tern_weight_source *out, const struct tern_weight_source *s, int64_t row0, int64_t k,
                     tern_error *err);

/* Packs panels [panel0, panel1) of the matrix that w was planned for into dst (= the buffer that becomes w->data).
 * Lossless: `row` of the packed form equals the dequantised row bit for bit.  A non-finite scale, minimum or weight
 * fails with TERN_EFORMAT, naming the tensor, the row and the byte offset inside the tensor.  Panels are independent.
 */
int tern_weight_pack(const struct tern_packed *w, void *dst, const struct tern_weight_source *s, int panel0, int panel1,
                     tern_error *err);

/* Dequantises `n` elements (a multiple of the block size) of file bytes to f32: the reference every packed form must
 * reproduce, and the reader of vectors such as norm weights. */
int tern_dequantize(float *out, int type, const void *src, size_t n, tern_error *err);

/* Writes n elements (a multiple of the block size) as F32, F16, BF16, Q8_0, Q4_0, Q5_0, Q4_K or Q6_K; other types are
 * refused.  The bytes depend on each block's values alone.  Elements that are not finite, and blocks whose scale would
 * not be, fail, naming the element. */
int tern_quantize(void *dst, int type, const float *src, size_t n, tern_error *err);

/* ---- KV schemes --------------------------------------------------------------------------------------------- */

struct tern_kv_codec;

/* Key conditioning of one KV head: what is known about all its keys before the first one is coded (docs/kv-cache.md).
 * A key k of position p is coded as (k - R_p b - mean) * scale, a query is divided by scale, and the part of a score
 * that codes no longer hold, q.(R_p b) + q.mean, is added back from these constants.  R_p b: up to 8 pairs of a rotary
 * embedding whose own mean b, before the rotation, is large; the rest of a mean that survives the rotation is `mean`.
 * It costs no bytes per token; without pairs, no time per token either. */
#define TERN_KV_MAX_PAIRS 8

struct tern_kv_cond {
    const float *mean;    /* [dim] */
    const float *scale;   /* [dim], positive */
    const float *unscale; /* [dim] 1 / scale */
    int n_pairs;
    struct tern_kv_pair {
        int a, b;     /* the two dims; the rotation takes a towards b */
        float freq;   /* radians per position */
        float re, im; /* the mean before the rotation, and the embedding's magnitude in it */
    } pairs[TERN_KV_MAX_PAIRS];
    /* cos and sin of freq * j for the 64 tokens of a page, pair by pair (tern_kv_cond_turn) */
    float turns[2 * TERN_KV_MAX_PAIRS][TERN_PAGE] __attribute__((aligned(64)));
};

/* One side (keys or values) of one layer: a scheme applied to a head dimension. */
struct tern_kv_side {
    const struct tern_kv_codec *codec;
    const struct tern_kv_cond *cond; /* keys: [n_heads], NULL: none.  Functions of a codec see one head's */
    int dim;
    bool key;          /* keys or values: they differ in item order and in the scale rule */
    bool raw32;        /* the open tile holds f32 instead of f16 */
    const float *sign; /* [dim] +-1 for rotated schemes, owned by the KV layout; else NULL */
};

/* The side as one of its KV heads sees it. */
static inline struct tern_kv_side tern_kv_side_of(const struct tern_kv_side *side, int head)
{
    struct tern_kv_side s = *side;
    if (s.cond)
        s.cond += head;
    return s;
}

/* Prepared query heads of one KV head: room for n_q heads of `dim`. */
struct tern_kv_query {
    float *x;     /* [n_q][dim] in the codec's domain (rotated), softmax scale folded in; 64-byte aligned */
    int8_t *q;    /* [n_q][dim] */
    float *scale; /* [n_q][blocks of 128 dims], room for [n_q][4] */
    int32_t *sum; /* as scale */
};

/* A scheme.  A page side is `data_bytes` of data and `head_bytes` of headers for 64 tokens of one KV head; a raw scheme
 * has no headers and its data equals the open tile: keys [dim][64], values [64][dim]. */
struct tern_kv_codec {
    const char *name;   /* "l4": command line, file format, bench label */
    const char *about;  /* one line for --help and reports */
    int bits;           /* per value, without headers */
    bool raw;           /* f16, f32: attended as they are */
    bool rotated;       /* works in the rotated domain */
    bool unconditioned; /* codes keys as they are, as the engine that it comes from does */

    /* Can this scheme code head dimension `dim`?  If not, *why gets a static sentence part ("the head size is not
     * a multiple of 16"). */
    bool (*accepts)(int dim, const char **why);
    size_t (*data_bytes)(int dim); /* per 64 tokens, a multiple of 64 */
    size_t (*head_bytes)(int dim); /* per 64 tokens, a multiple of 64; 0 for raw */

    /* Encodes a full tile (64 tokens from position pos0 on; layout as above, f16 or f32 by side->raw32).  Bit-exact on
     * all levels.  scratch: TERN_KV_SCRATCH bytes, 64-byte aligned. */
    void (*encode)(const struct tern_kv_side *side, uint8_t *data, uint16_t *head, const void *tile, int pos0,
                   void *scratch);

    /* Keys.  x: [n_q][dim] f32 query heads, softmax scale folded in; divided by the conditioning's scale here.  Fills
     * out->x always, which x may be; out->q/scale/sum when `narrow`. */
    void (*prep)(const struct tern_kv_side *side, struct tern_kv_query *out, const float *x, int n_q, bool narrow);
    /* s[n_q][64]: narrow rows on the page as it is.  next: what will be read after data, or NULL: a hint. */
    void (*score)(const struct tern_kv_side *side, float *s, const struct tern_kv_query *q, const uint8_t *data,
                  const uint16_t *head, int n_q, const void *next);

    /* Values: o[n_q][dim] = o*shrink + p.V in the codec's domain, narrow rows; shrink NULL: 1; next: as for score. */
    void (*accum)(const struct tern_kv_side *side, float *o, const float *p, const uint8_t *data, const uint16_t *head,
                  const float *shrink, int n_q, const void *next);
    /* From the codec's domain to the model's, in place: once per row after the last page. */
    void (*finish)(const struct tern_kv_side *side, float *o, int n_q);
    /* To the codec's domain: x[n][dim], vectors of tokens from pos0 on, become what `encode` rounds, n <= 64.  NULL
     * where codec.raw. */
    void (*enter)(const struct tern_kv_side *side, float *x, int n, int pos0);

    /* Wide rows: the page in f32 in the codec's domain, keys [dim][64], values [64][dim]. */
    void (*decode)(const struct tern_kv_side *side, float *out, const uint8_t *data, const uint16_t *head);
    /* One token of a page of values, [dim], as decode has it; NULL: a page is decoded whole. */
    void (*decode_row)(const struct tern_kv_side *side, float *out, const uint8_t *data, const uint16_t *head, int row);
};

/* ---- conditioning: what attention adds to scores on conditioned codes.  c: of the KV head, not NULL. ---- */

/* out[n_q] = q.mean of q[n_q][dim], each one chain of fma over ascending dims. */
void tern_kv_cond_shifts(const struct tern_kv_cond *c, float *out, const float *q, int n_q, int dim);
/* s[n_q][64] += q.(R_p b) for the positions pos0 .. pos0+63.  q: [n_q][dim]. */
void tern_kv_cond_pairs(const struct tern_kv_cond *c, float *s, const float *q, int n_q, int dim, int pos0);
/* Fills turns from pairs: before any other use. */
void tern_kv_cond_turn(struct tern_kv_cond *c);
/* x[n][dim], keys of positions pos0 .. pos0+n-1, n <= 64, to what is coded; x[64][dim] and back. */
void tern_kv_cond_keys(const struct tern_kv_cond *c, float *x, int n, int dim, int pos0);
void tern_kv_cond_restore(const struct tern_kv_cond *c, float *x, int dim, int pos0);

/* x[64][dim] = the vectors that a page side holds, tokens from position pos0 on, as the model made them but for what
 * the scheme has rounded away: the inverse of encode.  side: of one KV head.  scratch: 64 * dim floats; both 64-byte
 * aligned. */
void tern_kv_values(const struct tern_kv_side *side, float *x, const uint8_t *data, const uint16_t *head, int pos0,
                    float *scratch);

#define TERN_KV_SCRATCH (TERN_PAGE * TERN_KVQ_MAX_DIM * 6 + TERN_KVQ_SCRATCH)

/* The registry, in the order of kv_codecs.def; NULL-terminated. */
extern const struct tern_kv_codec *const tern_kv_codecs[];
const struct tern_kv_codec *tern_kv_codec_find(const char *name, size_t n); /* NULL when unknown; knows aliases */
/* Keys on a grid of 4-bit floats, which it keeps as they are; in no registry. */
const struct tern_kv_codec *tern_kv_codec_fp4(void);

/* The tables of a scheme on the codes of kernel/kvq.h, for devices with kernels of their own and for prompt rows in
 * 16-bit integers (kernel/attn16.h); NULL for other schemes. */
const struct tern_kvq_table *tern_kv_table(const struct tern_kv_codec *c);

/* Lloyd-Max levels of the normal distribution with variance 1, for 1 to 4 bits: [2^bits], ascending. */
extern const float tern_kv_levels[30];
#define TERN_KV_LEVELS(bits) (tern_kv_levels + (1 << (bits)) - 2)

/* Signs of a rotated side: counter-based, from (layer, key or value), equal in every process.  out: [dim]. */
void tern_kv_signs(float *out, int dim, int layer, bool key);

/* What a query sees besides itself: everything before it, the newest tokens, or what shares its chunk. */
struct tern_kv_reach {
    int window;   /* 0: everything; else a query at p sees tokens > p - window */
    bool chunked; /* then it sees tokens from the last multiple of window on */
    int first;    /* and tokens 0..first-1, whatever the window; then they are raw, and page 0 once raw is seen whole */
};

static inline bool tern_kv_same_reach(struct tern_kv_reach a, struct tern_kv_reach b)
{
    return a.window == b.window && a.chunked == b.chunked && a.first == b.first;
}

/* The oldest token of its window that a query at pos sees. */
static inline int tern_kv_oldest(struct tern_kv_reach r, int pos)
{
    int oldest = r.chunked ? pos / r.window * r.window : pos - r.window + 1;
    return r.window && oldest > 0 ? oldest : 0;
}

/* Where everything lies inside one page of one layer.  Plain data: `kv` fills it, `dev` reads it. */
struct tern_kv_layer {
    int n_heads;              /* KV heads */
    struct tern_kv_side k, v; /* may have different dims */
    bool latent;              /* values are keys too: a key is the v.dim values of a token, then its k.dim keys */
    struct tern_kv_reach reach;
    int rate;            /* a row stands for so many tokens; 1: keys and values of tokens */
    int first;           /* tokens 0..first-1 are kept raw beside the pages (reach.first when both sides are raw) */
    int recent;          /* a row sees this many pages raw, its own included; >= 1 */
    int ring;            /* raw tiles that a sequence keeps: page p lies in tile p % ring; >= recent */
    const char *why_raw; /* reason when a requested scheme was not used here, else NULL */
    /* Byte offsets inside one KV head of a page; page base + layer_off + head * head_bytes is the head. */
    size_t k_head_off, v_head_off, k_off, v_off;
    size_t head_bytes;
    size_t layer_off; /* inside the page of this layer's group */
    /* Open tile of one KV head: keys [k.dim][64] then values [64][v.dim], raw elements; 64-byte multiple. */
    size_t tile_v_off, tile_bytes;
    size_t tile_layer_off; /* of tile 0 inside a sequence's tile block; the next one n_heads * tile_bytes on */
    /* Raw first tokens of one KV head: keys [k.dim][first], values [first][v.dim]. */
    size_t sink_v_off, sink_bytes;
    size_t sink_layer_off; /* inside a sequence's sink block */
};

#endif
