/* Teacher-forced logits of every position. */
#include "tern/eval.h"

#include "base/npy.h"
#include "run/run.h"

int tern_eval_logits(tern_engine *e, const int32_t *ids, int n, bool decode, const char *path, tern_error *err)
{
    int rc = 0;
    tern_seq *s = NULL;
    struct tern_npy *out = NULL;
    const float *logits;
    if (n < 1)
        TERN_FAIL(err, TERN_EINVAL, "no token ids given");
    if (n > e->ctx)
        TERN_FAIL(err, TERN_ECAPACITY, "%d token ids do not fit the context of %d", n, e->ctx);
    TERN_TRY(tern_seq_new(&s, e, err));
    TERN_TRY(tern_npy_create(&out, path, (size_t)n, (size_t)e->model->net->desc.n_vocab, err));
    tern_cancel_clear(e);
    for (int done = 0; done < n;) {
        if (atomic_exchange_explicit(&e->cancel, 0, memory_order_relaxed))
            TERN_FAIL(err, TERN_ECANCELLED, "cancelled after %d of %d tokens", done, n);
        int most = decode ? 1 : e->chunk < TERN_EVAL_ROWS ? e->chunk : TERN_EVAL_ROWS;
        int k = n - done < most ? n - done : most;
        tern_step_item it = {
            .seq = s, .tokens = ids + done, .n_tokens = k, .decode = decode, .logits = TERN_LOGITS_ALL};
        TERN_TRY(tern_step(e, &it, 1, &logits, err));
        TERN_TRY(tern_npy_write(out, logits, (size_t)k, err));
        done += k;
    }
    rc = tern_npy_finish(out, err);
    out = NULL;
out:
    tern_npy_abort(out);
    tern_seq_free(s);
    return rc;
}
