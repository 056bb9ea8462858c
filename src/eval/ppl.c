/* Perplexity over consecutive chunks of a text. */
#include "tern/eval.h"

#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "run/run.h"

/* -log softmax(logits)[target], in double. */
static double nll(const float *logits, int n, int32_t target)
{
    float max = logits[0];
    double sum = 0;
    for (int i = 1; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int i = 0; i < n; i++)
        sum += exp((double)logits[i] - (double)max);
    return log(sum) + (double)max - (double)logits[target];
}

struct sums {
    double nll, squares;
    int64_t n;
};

/* One chunk of ctx tokens: the second half is scored, each token by the logits before it. */
static int chunk_ppl(tern_engine *e, const int32_t *ids, int ctx, struct sums *sum, tern_error *err)
{
    int rc = 0, vocab = e->model->net->desc.n_vocab;
    tern_seq *s = NULL;
    const float *logits;
    int half = ctx / 2;
    TERN_TRY(tern_seq_new(&s, e, err));
    TERN_TRY(tern_prefill(e, s, ids, half, NULL, NULL, NULL, err));
    for (int at = half; at < ctx - 1;) {
        int most = e->chunk < TERN_EVAL_ROWS ? e->chunk : TERN_EVAL_ROWS;
        int k = ctx - 1 - at < most ? ctx - 1 - at : most;
        tern_step_item it = {.seq = s, .tokens = ids + at, .n_tokens = k, .logits = TERN_LOGITS_ALL};
        TERN_TRY(tern_step(e, &it, 1, &logits, err));
        for (int i = 0; i < k; i++) {
            double x = nll(logits + (size_t)i * (size_t)vocab, vocab, ids[at + i + 1]);
            sum->nll += x;
            sum->squares += x * x;
            sum->n++;
        }
        at += k;
    }
out:
    tern_seq_free(s);
    return rc;
}

int tern_eval_ppl(tern_engine *e, const int32_t *ids, int64_t n, int ctx, bool bos, tern_progress_fn *progress,
                  void *user, tern_ppl *out, tern_error *err)
{
    int rc = 0;
    struct sums sum = {0};
    int32_t *chunk = NULL;
    int32_t first = e->model->tok ? tern_tokenizer_front(e->model->tok) : -1;
    int lead = bos && first >= 0 ? 1 : 0, fresh = ctx - lead;
    if (ctx < 8 || ctx > e->ctx)
        TERN_FAIL(err, TERN_EINVAL, "context = %d is outside 8..%d", ctx, e->ctx);
    int64_t n_chunks = n / fresh;
    if (n_chunks < 1)
        TERN_FAIL(err, TERN_EINVAL, "the text has %lld tokens, one chunk needs %d", (long long)n, fresh);
    if (n_chunks > INT32_MAX)
        TERN_FAIL(err, TERN_ELIMIT, "the text has too many tokens");
    TERN_TRY(tern_alloc(&chunk, (size_t)ctx, sizeof *chunk, err));
    for (int64_t i = 0; i < n_chunks; i++) {
        chunk[0] = first;
        memcpy(chunk + lead, ids + i * fresh, (size_t)fresh * sizeof *ids);
        TERN_TRY(chunk_ppl(e, chunk, ctx, &sum, err));
        if (progress && progress(user, (int)i + 1, (int)n_chunks))
            TERN_FAIL(err, TERN_ECANCELLED, "cancelled after %lld of %lld chunks", (long long)i + 1,
                      (long long)n_chunks);
    }
    double mean = sum.nll / (double)sum.n, var = sum.squares / (double)sum.n - mean * mean;
    *out = (tern_ppl){.nll = mean, .ppl = exp(mean), .n_tokens = sum.n, .n_chunks = (int)n_chunks};
    out->stderr_nll = sqrt((var > 0 ? var : 0) / (double)sum.n);
out:
    tern_free(chunk);
    return rc;
}
