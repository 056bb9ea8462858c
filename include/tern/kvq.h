/* tern/kvq.h - libternkv: tern's KV codec alone, for other engines.
 *
 * Keys and values of an attention head become codes of 2 to 8 bits; attention reads the codes and never expands them.
 * A page holds 64 consecutive tokens of one KV head, one side (keys or values) of it:
 *
 *   keys:    ternkv_encode -> page          queries: ternkv_prep, once per step; ternkv_score, per page -> scores
 *   values:  ternkv_encode -> page          weights: ternkv_accum, per page;     ternkv_finish, once    -> output
 *
 * The softmax in between is the caller's, who visits pages one by one with a running maximum (online softmax: Milakov,
 * Gimelshein, arXiv:1805.02867).  examples/kvq_npy.c is a whole attention in one file.  docs/kv-cache.md says how the
 * codec works, docs/kv-page.md which bit means what.
 *
 * Link with -lternkv -lm, or pkg-config ternkv (position-independent, so into shared libraries too).  The library needs
 * nothing else, exports nothing but the names below, and may stand beside libtern in one program: they share no state.
 * The prefix is ternkv_ because tern_kvq_ is what tern's kernels are called inside.
 *
 * Memory: pages, scratch, prepared queries and outputs are the caller's, of the sizes that ternkv_get_info and
 * ternkv_query_bytes tell, 64-byte aligned (aligned_alloc, posix_memalign) where the comment says so.  Only ternkv_open
 * allocates.  Matrices are row-major f32 without gaps.
 * Threads: a side never changes once it is open; any number of threads may use it, each with its own scratch, queries
 * and outputs.  A page may be read by many while nobody encodes into it.
 * Errors: tern/error.h; a function that fails has written nothing.  Numbers are not looked at: a vector with an
 * infinity or NaN is coded as something finite and harms no other (f32, f16 and bf16 keep it, and the latter two make
 * one of what is above 65504); a query head with one gets non-finite scores.
 *
 * Promise: pages and every result are the same bit for bit on all instruction sets (C, AVX2, AVX-512; the best one is
 * chosen at run time); a query head's results do not depend on the heads beside it. */
#ifndef TERN_KVQ_H
#define TERN_KVQ_H

#include <stdbool.h>
#include <stddef.h>
#include "tern/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TERNKV_API __attribute__((visibility("default")))

#define TERNKV_PAGE        64    /* tokens in a page */
#define TERNKV_MAX_QUERIES 65536 /* query heads in one call */

/* ---- a side ------------------------------------------------------------------------------------------------- */

/* Keys or values of one KV head: a scheme applied to a head size.  Without conditioning all heads of a layer may share
 * one. */
typedef struct ternkv_side ternkv_side;

typedef struct ternkv_params {
    const char *scheme; /* "l4"; ternkv_scheme names all, and other names for them work too ("turbo4") */
    int dim;            /* head size: multiples of 32 up to 512, for rotated schemes with an odd factor up to 7 */
    bool key;           /* keys or values */
    int layer;          /* 0 and up: chooses the signs of the rotation as tern does for this layer of a model */
    /* Key conditioning, both or neither (NULL), [dim], copied: a key k is coded as (k - mean) * scale and a query is
     * divided by scale; what that takes from the scores is added back.  mean: of the keys that queries will meet;
     * scale: (E q_j^2 / Var k_j)^(1/4) puts the codes' noise where queries do not look (docs/kv-cache.md). */
    const float *mean;
    const float *scale; /* positive */
} ternkv_params;

/* Name of scheme i in order of reports ("f32", "f16", "q8", "l4" ...), NULL behind the last; static. */
TERNKV_API const char *ternkv_scheme(int i);

/* TERN_EINVAL, naming what is wrong: an unknown scheme, a head size that the scheme cannot code, a negative layer,
 * conditioning of values or of a scheme that takes none, or one that is not finite and positive; *out is NULL then.
 * TERN_ENOMEM. */
TERNKV_API int ternkv_open(ternkv_side **out, const ternkv_params *p, tern_error *err);
TERNKV_API void ternkv_close(ternkv_side **side); /* NULL is legal; leaves *side NULL */

typedef struct ternkv_info {
    const char *scheme; /* its first name: "l4" for "turbo4" */
    const char *level;  /* instruction set in use: "c", "avx2", "avx512" */
    int dim;
    bool key;
    int layer;
    int bits;             /* per value, without headers */
    size_t head_bytes;    /* a page begins with the headers (scales) of its 64 tokens; 0 for f32, f16, bf16 */
    size_t page_bytes;    /* headers and the codes behind them; both are multiples of 64 */
    size_t scratch_bytes; /* of ternkv_encode and ternkv_decode; 64-byte aligned */
} ternkv_info;
TERNKV_API const ternkv_info *ternkv_get_info(const ternkv_side *side); /* view, until close */

/* ---- pages -------------------------------------------------------------------------------------------------- */

/* Encodes x[n][dim], 0 <= n <= 64, into a page (64-byte aligned); tokens n..63 are encoded as vectors of zeros, so give
 * them no weight.  A page is encoded anew, never extended: keep its vectors until it is full.  x may lie anywhere.
 *
 * Random signs and a Walsh-Hadamard transform make every head look normal, Lloyd-Max levels code that (TurboQuant:
 * Zandieh, Daliri, Hadian, Mirrokni, arXiv:2504.19874; Max, 1960; Lloyd, 1982), one scale per token and 128 dims keeps
 * the norm (keys) or the least squares (values).  The bytes equal those of tern's own cache for the same vectors (tern
 * gives its codec keys and values that it has rounded to binary16), each side's headers directly before its codes. */
TERNKV_API int ternkv_encode(const ternkv_side *side, void *page, const float *x, int n, void *scratch,
                             tern_error *err);

/* The slow twin of scoring and accumulating: x[64][dim], 64-byte aligned, gets the vectors that the page stands for,
 * rotated back and unconditioned.  For tests, and for whatever cannot work on codes. */
TERNKV_API int ternkv_decode(const ternkv_side *side, float *x, const void *page, void *scratch, tern_error *err);

/* ---- keys --------------------------------------------------------------------------------------------------- */

/* Query heads that are ready for the codes: memory of the caller, ternkv_query_bytes long, 64-byte aligned, plain data
 * that refers to the side it was prepared for. */
typedef struct ternkv_query ternkv_query;

/* 0 when n_q is not in 1..TERNKV_MAX_QUERIES. */
TERNKV_API size_t ternkv_query_bytes(const ternkv_side *side, int n_q);

/* Prepares q[n_q][dim]: once per step, for all query heads that read this KV head.  Scores are linear in q, so the
 * softmax's scale is the caller's to multiply in (with log2(e) for exp2).  q may lie anywhere.
 * The query is conditioned, rotated as the keys are (a rotation keeps dot products) and rounded to 8 bits per 128 dims:
 * the only thing that scores add to the error of the codes. */
TERNKV_API int ternkv_prep(const ternkv_side *side, ternkv_query *query, const float *q, int n_q, tern_error *err);

/* s[n_q][64] = the dot products of the prepared query heads with the page's 64 tokens, complete: with q.mean, which is
 * what the codes of conditioned keys no longer hold.  s is 64-byte aligned.  Integer dots are exact. */
TERNKV_API int ternkv_score(const ternkv_side *side, float *s, const ternkv_query *query, const void *page,
                            tern_error *err);

/* ---- values ------------------------------------------------------------------------------------------------- */

/* o[n_q][dim] = o * shrink + the sum over the page's 64 tokens of p * value, in the codec's domain: start with zeros,
 * finish with ternkv_finish.  p[n_q][64]: weights >= 0, 0 for tokens that shall not count; shrink[n_q]: what a new
 * maximum leaves of the sum so far, NULL: 1.  o and p are 64-byte aligned.
 * Weights become integers per page and query head, relative to the largest p * scale: 8 bits for codes of at most 4
 * bits, 15 bits for 8-bit codes. */
TERNKV_API int ternkv_accum(const ternkv_side *side, float *o, const float *p, const void *page, const float *shrink,
                            int n_q, tern_error *err);

/* o[n_q][dim], 64-byte aligned, from the codec's domain to the model's, in place: the inverse rotation, once behind the
 * last page.  It is linear, so dividing by the sum of weights may come before or after. */
TERNKV_API int ternkv_finish(const ternkv_side *side, float *o, int n_q, tern_error *err);

/* ---- TurboQuant_prod, for comparison ------------------------------------------------------------------------ */

/* The second code of the TurboQuant paper: bits - 1 bits per dim of scalar code, and one bit per dim and a norm for
 * what that leaves (QJL: Zandieh, Daliri, Han, arXiv:2406.03482).  Its inner products have no bias, and at equal bits
 * about five times the variance of the codes above (docs/kv-cache.md), so tern's cache does not offer it.  Plain C,
 * dim^2 steps per vector and query: to measure with, not to run a model.  Each `layer` draws other signs and another
 * projection, the latter with libm's log, cos and sin: another libm may round it otherwise. */
typedef struct ternkv_prod ternkv_prod;

/* TERN_EINVAL: bits not in 1..5, a head size that rotated schemes refuse, a negative layer.  TERN_ENOMEM. */
TERNKV_API int ternkv_prod_open(ternkv_prod **out, int dim, int bits, int layer, tern_error *err);
TERNKV_API void ternkv_prod_close(ternkv_prod **prod);        /* NULL is legal; leaves *prod NULL */
TERNKV_API size_t ternkv_prod_bytes(const ternkv_prod *prod); /* of a coded vector: dim * bits / 8 + 8 */

/* x[n][dim] to n coded vectors one behind the other, 4-byte aligned: f32 |x| / sqrt(dim), f32 norm of the residual, and
 * a symbol of `bits` bits per dim, lowest bits first: the scalar code, above it the sign.  A vector with an infinity or
 * NaN becomes zero. */
TERNKV_API int ternkv_prod_encode(const ternkv_prod *prod, void *codes, const float *x, int n, tern_error *err);

/* s[n_q][n] = estimates of the inner products of q[n_q][dim] with n coded vectors. */
TERNKV_API int ternkv_prod_score(const ternkv_prod *prod, float *s, const float *q, int n_q, const void *codes, int n,
                                 tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
