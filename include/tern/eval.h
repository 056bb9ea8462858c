/* tern/eval.h - measurements of a model, and of attention alone, as this engine runs them. */
#ifndef TERN_EVAL_H
#define TERN_EVAL_H

#include "tern/tern.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Teacher-forced logits of every position of ids[0..n), written as float32 [n, n_vocab] .npy to `path` (temporary name,
 * then rename).  decode = false: prompt rows in steps of the engine's chunk; true: one decode row at a time. */
TERN_API int tern_eval_logits(tern_engine *e, const int32_t *ids, int n, bool decode, const char *path,
                              tern_error *err);

typedef struct tern_ppl {
    double nll; /* mean negative log-likelihood per scored token, natural log */
    double ppl; /* exp(nll) */
    double stderr_nll;
    int64_t n_tokens; /* scored */
    int n_chunks;
} tern_ppl;

/* Perplexity over ids[0..n) in chunks of ctx tokens, each evaluated afresh (behind BOS, where texts of the model
 * begin with it and `bos` is set); the second half of each chunk is scored.  n must fill at least one chunk. */
TERN_API int tern_eval_ppl(tern_engine *e, const int32_t *ids, int64_t n, int ctx, bool bos, tern_progress_fn *progress,
                           void *user, tern_ppl *out, tern_error *err);

/* ---- divergence between KV plans -------------------------------------------------------------------------------- */

/* How far the next-token distributions under each KV plan of an engine are from those under its plan 0 (the base),
 * token by token: KL(base || plan) in nats, computed in double from the logits.  Equal logits give exactly 0. */

typedef struct tern_kld_text {
    const char *name; /* for messages */
    const int32_t *ids;
    int64_t n;
} tern_kld_text;

typedef struct tern_kld_params {
    const tern_kld_text *texts;
    int n_texts;
    /* Tokens per chunk, with the BOS that stands in front when the model has one; 0 = the engine's context.  Positions
     * ctx/2 .. ctx-2 of a chunk are scored. */
    int ctx;
    /* Taken from the texts in turn and evenly over each of them; 0 = 4 or one per text, less where a text holds less.
     */
    int n_chunks;
    /* Score prompt rows; else the scored tokens are fed one at a time, as decode rows.  In an exact engine these are
     * the same numbers. */
    bool prefill;
    tern_progress_fn *progress;
    void *user;
} tern_kld_params;

typedef struct tern_kld tern_kld;

/* Runs all plans of e side by side: each step carries the sequences of as many chunks and plans as max_seqs, the rows
 * of a step and TERN_KLD_ROWS allow, and the rest follows in further rounds.  The figures do not depend on that, nor on
 * threads.  e needs at least two plans, max_seqs of at least 2, and no sequence alive. */
#define TERN_KLD_ROWS 64
TERN_API int tern_eval_kld(tern_kld **out, tern_engine *e, const tern_kld_params *p, tern_error *err);
TERN_API void tern_kld_free(tern_kld *k);

typedef struct tern_kld_info {
    int n_plans, n_texts, ctx;
    int n_chunks;
    int n_scored;       /* positions of each chunk */
    int chunks_at_once; /* in one step */
    int plans_at_once;  /* in one step, the base included */
    double base_ppl;    /* perplexity of the scored positions under the base */
} tern_kld_info;
TERN_API const tern_kld_info *tern_kld_get_info(const tern_kld *k); /* view, until free */
TERN_API int tern_kld_text_chunks(const tern_kld *k, int text);     /* how many chunks came from it */

/* Divergence of every scored position, [n_chunks][n_scored]; view until free. */
TERN_API const double *tern_kld_values(const tern_kld *k, int plan);

typedef struct tern_kld_stats {
    double mean;
    double trimmed; /* mean without the worst 1 % */
    double median, p99, max;
    double top1;      /* share of the positions where the likeliest token is the base's, 0..1 */
    double ppl_ratio; /* perplexity under the plan over that under the base */
    int64_t n_tokens;
} tern_kld_stats;
/* text: those chunks alone; -1: all. */
TERN_API int tern_kld_get_stats(const tern_kld *k, int plan, int text, tern_kld_stats *out, tern_error *err);

/* value, with the ends of its 95 % interval; NaN where a divergence of 0 leaves no ratio. */
typedef struct tern_kld_ratio {
    double value, low, high;
} tern_kld_ratio;
/* Divergence of plan a over that of plan b, of means and of trimmed means.  Intervals: bootstrap of blocks of 64
 * consecutive positions, the same blocks for both plans, 2000 resamples, always the same ones. */
TERN_API int tern_kld_compare(const tern_kld *k, int a, int b, tern_kld_ratio *mean, tern_kld_ratio *trimmed,
                              tern_error *err);

/* A KV plan that fits a memory budget: where each layer's keys and values get the bits that they need.
 *
 * Measured: the divergence when one side of one layer alone is coded in 4 bits.  It grows almost in proportion to the
 * error of the codes, so other widths follow from the codes' known errors; and the shares of layers nearly add up. From
 * all sides in 16 bits the side whose next step down costs least divergence per byte goes first, until the plan fits.
 */
typedef struct tern_fit_params {
    const int32_t *ids; /* the text to measure on, at least 512 tokens; the first 512 of it count */
    int64_t n_ids;
    int ctx;      /* tokens of the context that must fit */
    size_t bytes; /* for pages of that context, 64-bit counts of the formula behind tern_kv_row */
    int n_threads;
    tern_progress_fn *progress;
    void *user;
} tern_fit_params;

typedef struct tern_fit {
    char *plan;       /* text of a plan file (--kv plan=FILE), with comments; owned */
    double kld;       /* divergence to expect, nats per token on this text */
    double bytes;     /* pages of params.ctx tokens under the plan */
    double f16_bytes; /* the same in 16 bits */
    double min_bytes; /* the least that any plan takes */
} tern_fit;

/* TERN_ECAPACITY, with the numbers in the message and in out->min_bytes, when nothing fits. */
TERN_API int tern_eval_fit(tern_fit *out, tern_model *m, const tern_fit_params *p, tern_error *err);
TERN_API void tern_fit_clear(tern_fit *f);

/* ---- speed ------------------------------------------------------------------------------------------------------- */

typedef struct tern_spread {
    double median, min, max;
} tern_spread;
TERN_API int tern_spread_of(tern_spread *out, const double *x, int n, tern_error *err); /* n >= 1 finite values */

/* Plain memory to read: the roof that whatever reads weights and caches is compared with.  A comparison takes turns: a
 * round measures everything once and then reading, so drift of the machine falls on all alike. */
typedef struct tern_reader tern_reader;
/* bytes: 0 = 256 MiB, at least 1 MiB; all of them are touched. */
TERN_API int tern_reader_new(tern_reader **out, size_t bytes, tern_error *err);
TERN_API void tern_reader_free(tern_reader *r);
/* One pass by the threads of e, or by a device with memory of its own over four times as many bytes there; bytes per
 * second.  0: it is not known, for the device has no room for them or a model is on cards and in the host's memory. */
TERN_API double tern_reader_pass(tern_reader *r, tern_engine *e);

/* What a step of so many decode rows has to read, each the last of ctx tokens of a sequence of one of the engine's
 * plans. */
typedef struct tern_step_bytes {
    double weights; /* packed matrices, once for all rows; of experts the most that the rows can choose */
    double kv;      /* pages with their headers, raw tokens, recurrent states; of all rows */
} tern_step_bytes;
TERN_API void tern_eval_step_bytes(const tern_engine *e, int plan, int ctx, int rows, tern_step_bytes *out);

typedef struct tern_read_speed {
    tern_spread bytes_per_second; /* of all threads together */
    int n_threads;
} tern_read_speed;

/* ---- attention alone --------------------------------------------------------------------------------------------- */

/* How long one generated token spends in the KV caches of all layers: decode attention on pages of random vectors in a
 * given geometry, without a model, called as a step calls it.  All plans hold the same vectors, in caches of their own,
 * and take turns: a round is one step of every plan and then a read of plain memory by the same threads.  So a cache
 * that is larger than the processor's is read from memory every time, and drift of the machine falls on all alike. */

typedef struct tern_kv_speed_params {
    const char *const *plans; /* as for an engine, but cond= needs a model; plan 0 is the base of the comparison */
    int n_plans;
    int head_dim, n_heads, n_kv_heads, n_layers;
    int ctx;           /* tokens that the row attends to, its own included */
    int n_threads;     /* 0 = all physical cores */
    int reps;          /* rounds, after one that is not counted */
    size_t read_bytes; /* memory that reading alone is measured on; 0 = 256 MiB */
    tern_progress_fn *progress;
    void *user;
} tern_kv_speed_params;

typedef struct tern_kv_speed {
    tern_spread seconds;    /* of a step: one decode row through the attention of all layers */
    tern_spread speedup;    /* seconds of the base over these, round by round */
    tern_spread read_share; /* bytes per second over those of reading alone, round by round */
    /* One thread rotating, encoding and packing the keys and values of one token, all layers; f16: copying them. */
    tern_spread encode_seconds;
    double elements; /* numbers in the keys and values that the row attends to, all layers */
    double bytes;    /* that hold them: pages with their headers, raw tokens */
    double error;    /* of the attention output against the base's, root mean square over the base's */
} tern_kv_speed;

/* out: [p->n_plans].  TERN_EINVAL and TERN_EUNSUPPORTED name what does not fit the geometry, TERN_ELIMIT says what the
 * caches would take when that is more than the memory there is.  Starts threads of its own and ends them. */
TERN_API int tern_eval_kv_speed(tern_kv_speed *out, tern_read_speed *read, const tern_kv_speed_params *p,
                                tern_error *err);

/* ---- weights alone ----------------------------------------------------------------------------------------------- */

/* How long products with packed weights take, without a model: matrices of random weights, as many as fill the memory
 * asked for, multiplied one after another, each as a model's step does it.  Types and numbers of rows take turns, so
 * weights that are larger than the processor's caches are read from memory every time. */

/* Names of the file types that can be multiplied; NULL behind the last. */
TERN_API const char *tern_eval_weight_type(int i);

typedef struct tern_weight_speed_params {
    const char *const *types; /* "Q4_0" or "q4_0" */
    int n_types;
    const int *rows; /* activations that a product multiplies */
    int n_rows;
    int n_out, n_in;   /* of a matrix; n_out a multiple of 16 */
    size_t bytes;      /* of packed weights per type: whole matrices, at least one */
    bool prompt;       /* prompt rows; else decode rows */
    bool prompt8;      /* those of prompt_class "int8" */
    int n_threads;     /* 0 = all physical cores */
    int reps;          /* rounds, after one that is not counted */
    size_t read_bytes; /* memory that reading alone is measured on; 0 = 256 MiB */
    tern_progress_fn *progress;
    void *user;
} tern_weight_speed_params;

typedef struct tern_weight_speed {
    const char *type; /* as tern_eval_weight_type writes it */
    int rows;
    tern_spread seconds;    /* of one product with every matrix */
    tern_spread read_share; /* packed bytes per second over those of reading alone, round by round */
    double bytes;           /* packed weights of all matrices */
    int n_matrices;
    double error; /* of sampled outputs against double precision, root mean square over theirs */
} tern_weight_speed;

/* out: [p->n_types][p->n_rows].  Errors as for tern_eval_kv_speed. */
TERN_API int tern_eval_weight_speed(tern_weight_speed *out, tern_read_speed *read, const tern_weight_speed_params *p,
                                    tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
