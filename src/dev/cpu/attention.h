/* dev/cpu/attention.h - what the files of CPU attention share.  Private to them.
 *
 *   job    rows of one sequence (dev.h)
 *   block  rows of one job that lie in one page, their "own" page: at most 64 wide rows, or as many narrow rows as fill
 *          ATTN_NARROW query rows with the heads of one unit
 *   unit   one block and up to ATTN_WIDE_HEADS (or ATTN_NARROW) query heads of one KV head.  A task is the pages of one
 *          unit, of two neighbouring blocks' on matrix units, or ranges of pages of up to ATTN_TOGETHER narrow ones
 *   q row  one query head of one row; q row i of a unit is head i % heads of row i / heads
 *
 * Every q row goes through the same steps in the same order whatever unit carries it, and steps that do not concern it
 * (a page outside its window, a range without tokens) leave its state untouched.  That is why results depend neither on
 * the batch, nor on how jobs and blocks are cut, nor on threads. */
#ifndef TERN_DEV_CPU_ATTENTION_H
#define TERN_DEV_CPU_ATTENTION_H

#include "base/mem.h"
#include "dev/cpu/attention_job.h"

#define ATTN_NARROW     16 /* q rows of a narrow unit: what the kernels on codes accept */
#define ATTN_WIDE_HEADS 4  /* heads of a wide unit: 256 q rows of 128 dims fill half an L2 cache */
#define ATTN_SUB        48 /* q rows that go through a page together: their scores stay in L1 */
#define ATTN_BAND       24 /* q rows that go through a group of pages together: their scores and weights fit L1 */
#define ATTN_SCORES     (TERN_BAND * TERN_SOFTMAX_PAGES) /* not less than ATTN_SUB, nor narrow rows times pages */
#define ATTN_SHARING    2                                /* blocks on matrix units that expand pages together */
#define ATTN_TABLE      1024
#define ATTN_FETCH      768  /* bytes that one softmax asks for: what a core has room for at a time */
#define ATTN_ASK        8192 /* bytes between the codes in use and those asked for */
#define ATTN_FETCHES    4    /* and how many of one call do */
#define ATTN_TOGETHER   8    /* narrow units of a task, at most */

struct attn_block {
    const struct tern_attn_job *job;
    int row0, n_rows; /* inside the job */
    int pos0;         /* of the first row */
    int own;          /* page index of all rows */
    int page0;        /* first page that any row sees */
    int raw0;         /* first page that is seen raw; the own page is the last */
    int n_ranges;     /* page ranges; 0 for wide blocks and when no closed page is visible */
    int together;     /* units whose ranges a task takes side by side */
    int per_task;     /* ranges that it takes one after the other */
    int task0, merge0;
    /* Narrow blocks of one job that see the same pages share task0, and take turns in its tasks, so that a range is
     * read from memory once: this one is the stripe's so-manyth, from 1.  Wide blocks on matrix units are stripes, too,
     * of ATTN_SHARING neighbours whose units of the same heads are one task: pages become tiles once for both. */
    int stripe;
    size_t part; /* floats from the start of the partial results */
};

/* Whose queries a thread's scratch has prepared: the units of a block from one on; NULL: nobody's. */
struct attn_ready {
    const struct attn_block *block;
    int unit;
};

/* One call of tern_cpu_attend. */
struct attn_step {
    const struct tern_cpu_shape *shape;
    const struct tern_kv_layer *kv;
    int group;              /* query heads per KV head */
    int heads[2], units[2]; /* heads of a unit and units of a block: narrow, wide */
    float q_scale, cap;     /* both in log2 units; cap 0: none */
    const float *q;
    float *out;
    size_t q_stride, out_stride;
    struct attn_block *blocks;
    int n_blocks, n_tasks, n_merges;
    size_t part_used, part_cap;
    float *part;
    struct attn_ready *ready; /* [threads] */
    uint8_t *threads;
    size_t thread_bytes;
};

/* One thread's memory.  x and o: [q rows of the largest unit][dim]. */
struct attn_scratch {
    float *x, *o, *m, *l;
    float *s, *shrink; /* [ATTN_SCORES][64], [ATTN_SUB] */
    float *raw;        /* [ATTN_SUB][k.dim] queries before the codec saw them */
    float *k, *v;      /* one page in f32 */
    /* Of latent layers: queries for the values' part of the keys (codec's domain, and as loaded), the values of the
     * page as keys [v.dim][64], and scores of the other part. */
    float *xv, *raw_v, *vk, *s_k;
    struct tern_kv_query query;
    /* With shape->bf16: packed queries by band; of a group of pages keys, values, and the weights of one band; raw
     * first tokens of one side in f32, and as vectors. */
    uint16_t *x16, *k16, *v16, *p16;
    float *firsts, *first_keys;
    /* On integers: packed queries and their scales; of a group of pages keys, values, and the scales of both; of
     * ATTN_BAND rows weights and what they are worth. */
    struct attn_codes {
        int16_t *x, *k, *v, *w;
        float *x_scale, *k_scale, *v_scale, *unit;
    } codes;
};

struct attn_unit;

/* How a unit's q rows meet what the cache holds.  q rows come in, partial sums (c->o, c->m, c->l) go on. */
struct attn_kind {
    void (*begin)(void), (*end)(void); /* around a unit; NULL: nothing */
    /* Closed pages [begin, end) of one unit; NULL: narrow units, which tasks take side by side. */
    void (*pages)(const struct attn_unit *u, struct attn_scratch *c, int begin, int end);
    void (*sinks)(const struct attn_unit *u, struct attn_scratch *c, const uint8_t *sink); /* of this KV head */
    void (*raw)(const struct attn_unit *u, struct attn_scratch *c, int page, const uint8_t *tile);
};
/* Decode rows on codes, prompt rows in f32 and on tiles (attention_rows.c), prompt rows in 16-bit integers
 * (attention_codes.c), latent layers (attention_latent.c). */
extern const struct attn_kind tern_attn_narrow, tern_attn_wide, tern_attn_tiles, tern_attn_codes, tern_attn_latent;

struct attn_unit {
    const struct attn_step *step;
    const struct attn_block *block;
    const struct attn_kind *kind;
    struct tern_kv_side key; /* of this KV head */
    int kv_head, head0, heads, n_q;
};

void tern_attn_unit_init(struct attn_unit *u, const struct attn_step *step, const struct attn_block *b, int index);

/* dst[n][k.dim] = q rows [i0, i0 + n) times softmax scale and log2(e).  Of latent layers only the part after the
 * values', and that one by itself: dst[n][v.dim]. */
void tern_attn_load_q(const struct attn_unit *u, float *dst, int i0, int n);
void tern_attn_load_latent(const struct attn_unit *u, float *dst, int i0, int n);

/* One KV head of a closed page; one of its sides in f32: in place, converted or decoded. */
const uint8_t *tern_attn_page(const struct attn_unit *u, int page);
const float *tern_attn_page_f32(const struct tern_kv_side *side, float *buf, const uint8_t *data, const uint8_t *head);

/* Scores of q rows [i0, i0 + n) on the codes of a page, completed by what conditioning keeps out of the codes - all but
 * q.mean, which is the same for every coded token and so only moves m: tern_attn_finish adds it there.  A softcap does
 * not commute with that, so then it is added here.  raw: the rows as tern_attn_load_q gives them. */
bool tern_attn_completes(const struct attn_unit *u); /* is there anything to add? */
void tern_attn_complete(const struct attn_unit *u, float *scores, const float *raw, int n, int page);

/* Softmax of q rows [i0, i0 + n) over n_pages pages from `page` on: c->s[n_pages][n][64] becomes weights, c->shrink[n]
 * the factors.  Tokens [lo, hi) of the pages count, less what the window hides; causal: of the own page, which comes
 * alone, none after the row itself.  next: memory to ask for on the way, or NULL. */
void tern_attn_softmax(const struct attn_unit *u, struct attn_scratch *c, int i0, int n, int page, int n_pages, int lo,
                       int hi, const void *next);

/* The same for one band, tokens from lo on; the weights go to c->p16, to c->codes.w. */
void tern_attn_tile_softmax(const struct attn_unit *u, struct attn_scratch *c, int i0, int n, int page, int n_pages,
                            int lo);
void tern_attn_codes_softmax(const struct attn_unit *u, struct attn_scratch *c, int i0, int n, int page, int n_pages,
                             int lo);

/* Queries of all q rows as the codec of the keys wants them, to c->x.  The end of the aligned group of pages that
 * `page` is in, or of the closed pages. */
void tern_attn_wide_queries(const struct attn_unit *u, struct attn_scratch *c);
int tern_attn_group_end(int page, int end);

/* Q rows have seen their closed pages: transforms o, adds sinks and raw tiles, divides, writes to the output. */
void tern_attn_finish(const struct attn_unit *u, struct attn_scratch *c);

/* Do wide rows of the layer multiply 16-bit integers?  The model and the plan decide, no length. */
static inline bool attn_on_codes(const struct tern_cpu_shape *shape)
{
    const struct tern_kv_layer *kv = shape->kv;
    return shape->int16 && !kv->latent && tern_kv_table(kv->k.codec) && tern_kv_table(kv->v.codec);
}

/* n units, 1, or on matrix units up to ATTN_SHARING: the same heads of neighbouring blocks, with the scratch of each.
 */
void tern_attn_wide_units(const struct attn_unit *u, struct attn_scratch *c, int n);

/* The first tokens and a raw tile, where keys are cached as they are scored (attention_unit.c); raw tiles on matrix
 * units.  tern_attn_sink_keys: keys [dim][first] of f16 or f32 to f32 [dim][padded], zeros after the last. */
void tern_attn_sinks(const struct attn_unit *u, struct attn_scratch *c, const uint8_t *sink);
void tern_attn_raw(const struct attn_unit *u, struct attn_scratch *c, int page, const uint8_t *tile);
void tern_attn_raw_tiles(const struct attn_unit *u, struct attn_scratch *c, int page, const uint8_t *tile);
void tern_attn_sink_keys(float *out, const uint8_t *p, bool raw32, int dim, int first, int padded);

/* Wide units on matrix units (attention_tiles.c).  Page j of a group of n_pages: its keys and values in f32 become
 * tiles.  Then q rows go through the group by bands: q rows [i, i + n), i a multiple of TERN_BAND, n at most that; x:
 * their queries [n][k.dim] as the codec wants them, or NULL for those of the last call for this band; coded: tokens
 * from the first coded one of the pages on count, and conditioning completes their scores. */
void tern_attn_tile_page(const struct attn_unit *u, struct attn_scratch *c, int j, int n_pages, const float *k,
                         const float *v);
void tern_attn_tile_band(const struct attn_unit *u, struct attn_scratch *c, int page, int n_pages, const float *x,
                         int i, int n, bool coded);

/* On matrix units page 0 has the raw first tokens in the place of their codes (k, v: the page in f32), and they are a
 * step of their own for those rows alone whose window has left tokens behind and kept the first (reach.first): the rows
 * from the n-th on that tern_attn_firsts_seen returns.  Where page 0 is nothing but first tokens, they are for all. */
static inline bool attn_firsts_in_page(const struct attn_unit *u)
{
    return u->kind == &tern_attn_tiles && u->step->kv->first && u->step->kv->first < TERN_PAGE;
}
void tern_attn_put_firsts(const struct attn_unit *u, struct attn_scratch *c, float *k, float *v);
int tern_attn_firsts_seen(const struct attn_unit *u); /* q rows */

/* Coded tokens of a page start after the raw first ones. */
static inline int attn_first_token(const struct attn_unit *u, int page)
{
    return page == 0 ? u->step->kv->first : 0;
}

/* Ranges [first, last) of n units of a block, decode rows, each with its scratch, and what becomes of their partial
 * results.  ready: their queries are prepared. */
void tern_attn_narrow_ranges(const struct attn_unit *u, struct attn_scratch *c, int n, int first, int last, bool ready);
void tern_attn_narrow_merge(const struct attn_unit *u, struct attn_scratch *c);

/* Asks for memory that will be read soon; into L2, as the kernels do. */
static inline void tern_attn_fetch(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += TERN_ALIGN)
        __builtin_prefetch(p + i, 0, 2);
}

/* Floats of partial results of one q row and range: o, m, l. */
static inline size_t attn_part_floats(const struct tern_kv_layer *kv)
{
    return (size_t)kv->v.dim + 2;
}

#endif
