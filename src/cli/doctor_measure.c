/* What `tern doctor` learns by running a text: key conditioning, and a KV plan for a memory budget. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/outfile.h"
#include "cli/cli.h"
#include "tern/eval.h"

static const struct tern_outfile_kind plan_kind = {"a KV plan", "# KV plan", 9, true, false};
static const struct tern_outfile_kind cond_kind = {"a key conditioning file", "ternkv\n", 7, true, false};

int tern_doctor_check(const struct tern_args *a, tern_error *err)
{
    const struct tern_arg *v = a->v;
    bool calibrate = v[TERN_OPT_CALIBRATE].n > 0, fit = v[TERN_OPT_FIT].n > 0;
    if (v[TERN_OPT_KV].n && !v[TERN_OPT_MODEL].n)
        return tern_cli_usage(err, "--kv needs a model (-m)");
    if (v[TERN_OPT_MAX_KV_SIZE].n && (fit || !v[TERN_OPT_MODEL].n))
        return tern_cli_usage(err, fit ? "--fit keeps all tokens of a context; --max-kv-size is another way to fit one"
                                       : "--max-kv-size needs a model (-m)");
    if ((v[TERN_OPT_GPU_MEMORY].n || v[TERN_OPT_GPU_LAYERS].n) && !v[TERN_OPT_MODEL].n)
        return tern_cli_usage(err, "--gpu-%s needs a model (-m)", v[TERN_OPT_GPU_MEMORY].n ? "memory" : "layers");
    int rc = tern_setup_check_kv(a, err);
    if (rc < 0)
        return rc;
    if ((calibrate || fit) && !v[TERN_OPT_MODEL].n)
        return tern_cli_usage(err, "--%s needs a model (-m)", fit ? "fit" : "calibrate");
    if (calibrate && fit)
        return tern_cli_usage(err, "--calibrate and --fit are two things; run one after the other");
    if (fit != (v[TERN_OPT_FIT_IN].n > 0))
        return tern_cli_usage(err, "--fit TOKENS and --in SIZE belong together");
    if (v[TERN_OPT_FORCE].n && !v[TERN_OPT_DOCTOR_OUT].n && !calibrate)
        return tern_cli_usage(err, "--force belongs to --calibrate and --out");
    if (!calibrate && !fit && (v[TERN_OPT_DOCTOR_FILE].n || v[TERN_OPT_DOCTOR_OUT].n))
        return tern_cli_usage(err, "-f and --out belong to --calibrate and --fit");
    return 0;
}

/* The ids of -f or of the built-in text. */
static int read_text(tern_tokens *ids, tern_model *m, const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    struct tern_buf text = {0};
    const char *builtin = tern_calibration_text();
    if (a->v[TERN_OPT_DOCTOR_FILE].n)
        TERN_TRY(tern_setup_read(&text, a->v[TERN_OPT_DOCTOR_FILE].s, TERN_CLI_MAX_TEXT, err));
    else
        TERN_TRY(tern_buf_add(&text, builtin, strlen(builtin), err));
    TERN_TRY(tern_setup_tokenize(m, &text, TERN_TEXT_BOS, "the text", ids, err));
out:
    tern_buf_clear(&text);
    return rc;
}

int tern_doctor_calibrate(tern_model *m, const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    const struct tern_arg *out = &a->v[TERN_OPT_DOCTOR_OUT];
    tern_tokens ids = {0};
    struct tern_progress bar = {.what = "calibration"};
    char sidecar[4096];
    TERN_TRY(read_text(&ids, m, a, err));
    if (!out->n)
        TERN_TRY(tern_model_beside(m, ".ternkv", sidecar, sizeof sidecar, err));
    const char *path = out->n ? out->s : sidecar;
    TERN_TRY(tern_outfile_check(path, &cond_kind, err));
    double start = tern_now();
    rc = tern_model_calibrate(m, ids.p, (int)(ids.len < INT32_MAX ? ids.len : INT32_MAX), (int)a->v[TERN_OPT_THREADS].i,
                              path, tern_progress_show, &bar, err);
    tern_progress_end(&bar);
    TERN_TRY(rc);
    tern_note("wrote %s in %.1f s", tern_shown(path), tern_now() - start);
    tern_cache_remember(path);
out:
    tern_tokens_clear(&ids);
    return rc;
}

#define KLD_TOKENS       512
#define KLD_TOKENS_LARGE 192               /* three pages */
#define KLD_LARGE        ((size_t)1 << 30) /* bytes of weights */

/* Nothing to measure: all layers raw, as with f16. */
static bool all_raw(const tern_kv_plan *p)
{
    for (int i = 0; i < tern_kv_plan_rows(p); i++) {
        tern_kv_row r;
        tern_kv_plan_row(p, i, &r);
        if (r.n_heads && r.bytes_per_token < r.f16_bytes_per_token)
            return false;
    }
    return true;
}

int tern_doctor_kld(tern_model *m, const struct tern_args *a, double *kld, int *n, tern_error *err)
{
    int rc = 0;
    const tern_model_info *info = tern_model_get_info(m);
    const char *text = tern_calibration_text(), *plan = tern_setup_kv(a, m);
    tern_tokens ids = {0};
    tern_engine *e = NULL;
    tern_kld *result = NULL;
    tern_kld_stats stats;
    struct tern_progress bar = {.what = "divergence"};
    *kld = NAN;
    *n = info->weight_bytes < KLD_LARGE ? KLD_TOKENS : KLD_TOKENS_LARGE;
    *n = *n < info->ctx ? *n : info->ctx;
    if (strcmp(info->tokenizer, "none") == 0)
        return 0;
    TERN_TRY(tern_model_tokenize(m, text, strlen(text), 0, &ids, err));
    tern_engine_params p = tern_setup_params(a, *n, 2);
    p.kv = "f16";
    p.more_kv = &plan;
    p.n_more_kv = 1;
    p.code_at_end = false;
    TERN_TRY(tern_engine_open(&e, m, &p, err));
    if (all_raw(tern_engine_plan_at(e, 1)) || ids.len < (size_t)*n)
        goto out;
    const tern_kld_text t = {.name = "the built-in text", .ids = ids.p, .n = (int64_t)ids.len};
    const tern_kld_params k = {.texts = &t,
                               .n_texts = 1,
                               .ctx = *n,
                               .n_chunks = 1,
                               .prefill = true,
                               .progress = tern_progress_show,
                               .user = &bar};
    rc = tern_eval_kld(&result, e, &k, err);
    TERN_TRY(tern_progress_result(&bar, rc));
    TERN_TRY(tern_kld_get_stats(result, 1, -1, &stats, err));
    *kld = stats.mean;
out:
    tern_kld_free(result);
    tern_engine_close(&e);
    tern_tokens_clear(&ids);
    return rc;
}

/* What a plan is fitted to has to be there besides the weights. */
static int check_card(const tern_model *m, double bytes, tern_error *err)
{
    tern_device_memory card;
    tern_model_device_memory(m, &card);
    const size_t left = card.limit_bytes > card.used_bytes ? card.limit_bytes - card.used_bytes : 0;
    if (!card.limit_bytes || bytes <= (double)left)
        return 0;
    char in[32], limit[32];
    (void)snprintf(in, sizeof in, "%s", tern_size_text(bytes));
    (void)snprintf(limit, sizeof limit, "%s", tern_size_text((double)card.limit_bytes));
    return tern_err_set(err, TERN_EINVAL,
                        "--in is %s, and of the %s of the card's memory that may be used (--gpu-memory) the weights "
                        "leave %s",
                        in, limit, tern_size_text((double)left));
}

int tern_doctor_fit(const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    double ctx, bytes;
    struct tern_setup s = {0};
    tern_tokens ids = {0};
    tern_fit fit = {0};
    struct tern_outfile f = {.fd = -1};
    struct tern_progress bar = {.what = "fit"};
    TERN_TRY(tern_setup_size("--fit", a->v[TERN_OPT_FIT].s, 1, 16777216, &ctx, err));
    TERN_TRY(tern_setup_size("--in", a->v[TERN_OPT_FIT_IN].s, 1, 1e15, &bytes, err));
    TERN_TRY(tern_setup_model(&s, a, a->v[TERN_OPT_MODEL].s, err));
    if (check_card(s.model, bytes, err) < 0)
        TERN_TRY(tern_setup_fall_back(&s, a, NULL, err));
    const int trained = tern_model_get_info(s.model)->ctx;
    if (ctx > trained)
        tern_note("the model was trained for %d tokens: %.0f need --rope-scaling yarn,factor=%.0f", trained, ctx,
                  ceil(ctx / trained));
    TERN_TRY(read_text(&ids, s.model, a, err));
    if (a->v[TERN_OPT_DOCTOR_OUT].n)
        TERN_TRY(tern_outfile_check(a->v[TERN_OPT_DOCTOR_OUT].s, &plan_kind, err));
    tern_fit_params p = {.ids = ids.p,
                         .n_ids = (int64_t)ids.len,
                         .ctx = (int)ctx,
                         .bytes = (size_t)bytes,
                         .n_threads = (int)a->v[TERN_OPT_THREADS].i,
                         .progress = tern_progress_show,
                         .user = &bar};
    rc = tern_eval_fit(&fit, s.model, &p, err);
    tern_progress_end(&bar);
    TERN_TRY(rc);
    if (a->v[TERN_OPT_DOCTOR_OUT].n) {
        TERN_TRY(tern_outfile_open(&f, a->v[TERN_OPT_DOCTOR_OUT].s, 0644, &plan_kind, err));
        TERN_TRY(tern_outfile_write(&f, fit.plan, strlen(fit.plan), err));
        TERN_TRY(tern_outfile_commit(&f, err));
    } else if (!a->v[TERN_OPT_JSON].n) {
        TERN_TRY(tern_out_write(fit.plan, strlen(fit.plan), err));
        TERN_TRY(tern_out_flush(err));
    }
    if (a->v[TERN_OPT_JSON].n)
        TERN_TRY(tern_report_print(tern_report_json("doctor --fit", s.model, 0),
                                   json_pack("{so si sI sI sf}", "plan", tern_json_text(fit.plan), "ctx", p.ctx,
                                             "full_bytes", (json_int_t)fit.bytes, "full_f16_bytes",
                                             (json_int_t)fit.f16_bytes, "kld", fit.kld),
                                   err));
    tern_note("%d tokens in %s (16 bit: %s), expected KLD %.2g", p.ctx, tern_size_text(fit.bytes),
              tern_size_text(fit.f16_bytes), fit.kld);
out:
    tern_outfile_abort(&f);
    tern_fit_clear(&fit);
    tern_tokens_clear(&ids);
    tern_setup_clear(&s);
    return rc;
}
