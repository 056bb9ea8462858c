/* tern/eval.h - measurements of a model as this engine runs it. */
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

/* Perplexity over ids[0..n) in chunks of ctx tokens, each evaluated afresh (BOS prepended when the model has one and
 * `bos` is set); the second half of each chunk is scored.  n must fill at least one chunk. */
TERN_API int tern_eval_ppl(tern_engine *e, const int32_t *ids, int64_t n, int ctx, bool bos, tern_progress_fn *progress,
                           void *user, tern_ppl *out, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
