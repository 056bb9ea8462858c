/* tern eval logits, tern eval ppl. */
#include <string.h>

#include "cli/cli.h"

/* ---- logits ------------------------------------------------------------------------------------------------------ */

static int read_ids(tern_tokens *ids, const char *spec, tern_error *err)
{
    int rc = 0;
    struct tern_buf b = {0};
    if (spec[0] != '@') {
        rc = tern_cli_as_usage(tern_ids_read(ids, spec, strlen(spec), "--ids", err), err);
    } else if (!spec[1]) {
        rc = tern_cli_usage(err, "--ids @: the name of a file is missing");
    } else {
        TERN_TRY(tern_setup_read(&b, spec + 1, TERN_CLI_MAX_TEXT, err));
        rc = tern_ids_read(ids, b.p, b.len, spec + 1, err);
    }
    if (rc == 0 && ids->len == 0)
        rc = tern_cli_usage(err, "--ids: no token ids");
out:
    tern_buf_clear(&b);
    return rc;
}

static int check_ids(const tern_tokens *ids, int n_vocab, int ctx, tern_error *err)
{
    for (size_t i = 0; i < ids->len; i++) {
        if (ids->p[i] >= n_vocab)
            return tern_err_set(err, TERN_EINVAL, "--ids: token %d (number %zu) is outside the vocabulary of %d",
                                ids->p[i], i, n_vocab);
    }
    if (ids->len > (size_t)ctx)
        return tern_err_set(err, TERN_ELIMIT, "--ids: %zu tokens and the context holds %d (-c)", ids->len, ctx);
    return 0;
}

static int report_logits(const struct tern_setup *s, const struct tern_args *a, size_t n, tern_error *err)
{
    json_t *kv = tern_report_kv(tern_engine_plan(s->engine), false);
    return tern_report_print(tern_report_json("eval logits", s->model, tern_engine_threads(s->engine)),
                             json_pack("{so sI si ss sb si so}", "file", tern_json_text(a->v[TERN_OPT_LOGITS_OUT].s),
                                       "n_tokens", (json_int_t)n, "n_vocab", tern_model_get_info(s->model)->n_vocab,
                                       "rows", a->v[TERN_OPT_DECODE_ROWS].n ? "decode" : "prompt", "exact",
                                       a->v[TERN_OPT_EXACT].n > 0, "ctx", tern_engine_ctx(s->engine), "kv", kv),
                             err);
}

int tern_cmd_eval_logits(const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    struct tern_setup s = {0};
    tern_tokens ids = {0};
    TERN_TRY(read_ids(&ids, a->v[TERN_OPT_IDS].s, err));
    TERN_TRY(tern_setup_model(&s, a, a->v[TERN_OPT_MODEL].s, err));
    TERN_TRY(tern_setup_engine(&s, a, (int)a->v[TERN_OPT_CTX].i, 1, err));
    TERN_TRY(check_ids(&ids, tern_model_get_info(s.model)->n_vocab, tern_engine_ctx(s.engine), err));
    if (a->v[TERN_OPT_VERBOSE].n)
        tern_setup_print(&s);
    tern_signals_watch(s.engine);
    rc = tern_eval_logits(s.engine, ids.p, (int)ids.len, a->v[TERN_OPT_DECODE_ROWS].n > 0, a->v[TERN_OPT_LOGITS_OUT].s,
                          err);
    if (rc == TERN_ECANCELLED)
        rc = TERN_CLI_INTERRUPTED;
    if (rc == 0 && a->v[TERN_OPT_JSON].n)
        rc = report_logits(&s, a, ids.len, err);
out:
    tern_signals_watch(NULL);
    tern_setup_clear(&s);
    tern_tokens_clear(&ids);
    return rc;
}

/* ---- perplexity -------------------------------------------------------------------------------------------------- */

static int report_ppl(const struct tern_setup *s, const struct tern_args *a, int ctx, const tern_ppl *p, double seconds,
                      tern_error *err)
{
    if (!a->v[TERN_OPT_JSON].n)
        return tern_out_printf(err, "perplexity %.4f (nll %.6f +- %.6f, %lld tokens in %d chunks of %d, KV %s%s)\n",
                               p->ppl, p->nll, p->stderr_nll, (long long)p->n_tokens, p->n_chunks, ctx,
                               tern_kv_plan_text(tern_engine_plan(s->engine)),
                               tern_setup_at_end(a) ? ", prompts coded at their end" : "");
    json_t *kv = tern_report_kv(tern_engine_plan(s->engine), tern_setup_at_end(a));
    return tern_report_print(tern_report_json("eval ppl", s->model, tern_engine_threads(s->engine)),
                             json_pack("{sf sf sf sI si si sf so}", "ppl", p->ppl, "nll", p->nll, "stderr_nll",
                                       p->stderr_nll, "n_tokens", (json_int_t)p->n_tokens, "n_chunks", p->n_chunks,
                                       "ctx", ctx, "seconds", seconds, "kv", kv),
                             err);
}

/* Leaves the first chunks that were asked for.  Where texts begin with BOS, each chunk gets it and the text does not.
 */
static int cut_text(tern_tokens *ids, const tern_model *m, const struct tern_args *a, int ctx, tern_error *err)
{
    int rc = 0;
    tern_tokens front = {0};
    const int64_t asked = a->v[TERN_OPT_PPL_CHUNKS].i;
    TERN_TRY(tern_model_tokenize(m, "", 0, TERN_TEXT_BOS | TERN_TEXT_OPEN, &front, err));
    const int64_t fresh = ctx - (front.len > 0), n = (int64_t)ids->len / fresh;
    if (!n)
        TERN_FAIL(err, TERN_EINVAL, "%s: %zu tokens do not fill one chunk of %d (-c)", a->v[TERN_OPT_PPL_FILE].s,
                  ids->len, ctx);
    if (asked > n)
        TERN_FAIL(err, TERN_EINVAL, "%s: %zu tokens are %lld chunks of %d, not %lld (--chunks)",
                  a->v[TERN_OPT_PPL_FILE].s, ids->len, (long long)n, ctx, (long long)asked);
    if (asked)
        ids->len = (size_t)(asked * fresh);
out:
    tern_tokens_clear(&front);
    return rc;
}

int tern_cmd_eval_ppl(const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    struct tern_setup s = {0};
    struct tern_buf text = {0};
    tern_tokens ids = {0};
    struct tern_progress bar = {.what = "perplexity"};
    tern_ppl ppl;
    TERN_TRY(tern_setup_read(&text, a->v[TERN_OPT_PPL_FILE].s, TERN_CLI_MAX_TEXT, err));
    TERN_TRY(tern_setup_model(&s, a, a->v[TERN_OPT_MODEL].s, err));
    int ctx = tern_chunk_ctx(&s, &a->v[TERN_OPT_PPL_CTX]);
    TERN_TRY(tern_setup_tokenize(s.model, &text, 0, a->v[TERN_OPT_PPL_FILE].s, &ids, err));
    TERN_TRY(cut_text(&ids, s.model, a, ctx, err));
    TERN_TRY(tern_setup_engine(&s, a, ctx, 1, err));
    if (a->v[TERN_OPT_VERBOSE].n)
        tern_setup_print(&s);
    tern_signals_watch(s.engine);
    double start = tern_now();
    rc = tern_eval_ppl(s.engine, ids.p, (int64_t)ids.len, ctx, true, tern_progress_show, &bar, &ppl, err);
    rc = tern_progress_result(&bar, rc);
    if (rc == 0)
        rc = report_ppl(&s, a, ctx, &ppl, tern_now() - start, err);
out:
    tern_signals_watch(NULL);
    tern_setup_clear(&s);
    tern_tokens_clear(&ids);
    tern_buf_clear(&text);
    return rc;
}
