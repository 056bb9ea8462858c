/* A model's first use: its keys are measured when that is quickly done, else the command that does it is named. */
#include <math.h>
#include <string.h>

#include "base/outfile.h"
#include "cli/cli.h"

#define LIMIT_S   20.0               /* more is not done unasked */
#define FROM_SIZE ((size_t)32 << 20) /* smaller models are there to try things out, as for packed weights */

static const struct tern_outfile_kind cond_kind = {"a key conditioning file", "ternkv\n", 7, true, false};

/* What a calibration gains, by what the plan has without it (docs/kv-cache.md, "Measured"). */
static const char *gain(const tern_kv_plan *p)
{
    for (int i = 0; i < tern_kv_plan_rows(p); i++) {
        tern_kv_row r;
        tern_kv_plan_row(p, i, &r);
        if (r.conditioning)
            return "makes coded keys a little more exact";
    }
    return "halves what coded keys lose";
}

struct watched_bar {
    struct tern_progress bar;
    const struct tern_setup *s;
};

static int show(void *watched, int done, int total)
{
    struct watched_bar *w = watched;
    int stop = w->s->on_progress ? w->s->on_progress(w->s->user, done, total) : 0;
    return stop ? stop : tern_progress_show(&w->bar, done, total);
}

/* old: what was wrong with the file that is there, or NULL. */
static int measure(const struct tern_setup *s, const struct tern_args *a, const char *path, const char *old,
                   double limit, double *expected, tern_error *err)
{
    int rc = 0, n_used;
    tern_model *m = s->model;
    const char *text = tern_calibration_text();
    tern_tokens ids = {0};
    struct watched_bar w = {.bar = {.what = "calibrating keys"}, .s = s};
    TERN_TRY(tern_model_tokenize(m, text, strlen(text), TERN_TEXT_BOS, &ids, err));
    const double start = tern_now();
    rc = tern_model_calibrate_within(m, ids.p, (int)ids.len, (int)a->v[TERN_OPT_THREADS].i, path, limit, show, &w,
                                     &n_used, expected, err);
    tern_progress_end(&w.bar);
    if (rc == 0)
        tern_cache_remember(path);
    if (rc == 0)
        tern_note("calibrated the keys of this model, once, on %d tokens in %.1f s: %s%s%s", n_used, tern_now() - start,
                  tern_shown(path), old ? " written anew, because " : "", old ? tern_shown(old) : "");
out:
    tern_tokens_clear(&ids);
    return rc;
}

/* Whatever prevents it is told and done without: the run that was asked for needs no calibration. */
static int calibrate(const struct tern_setup *s, const struct tern_args *a, const tern_kv_plan *plan, bool now,
                     tern_error *err)
{
    int rc = 0;
    tern_model *m = s->model;
    tern_error why = {0};
    char path[4096];
    double expected = NAN;
    const char *name = tern_model_get_info(m)->path;
    TERN_TRY(tern_model_beside(m, ".ternkv", path, sizeof path, err));
    rc = tern_outfile_check(path, &cond_kind, &why);
    if (rc == 0)
        rc = measure(s, a, path, tern_kv_plan_notice(plan), now ? 0 : LIMIT_S, &expected, &why);
    if (rc == TERN_ELIMIT && isfinite(expected))
        tern_note("keys not calibrated: tern doctor --calibrate -m %s %s (about %.0f s for a short text, once)",
                  tern_shown(name), gain(plan), expected);
    else if (rc < 0)
        tern_note("keys not calibrated, which %s: %s", gain(plan), why.msg);
    rc = rc == TERN_ENOMEM ? tern_err_set(err, rc, "%s", why.msg) : 0;
out:
    return rc;
}

int tern_first_use(const struct tern_setup *s, const struct tern_args *a, tern_error *err)
{
    const tern_model *m = s->model;
    const char *how = a->v[TERN_OPT_CALIBRATION].s;
    const tern_model_info *info = tern_model_get_info(m);
    const bool offered = tern_options[TERN_OPT_CALIBRATION].commands & (1u << a->command->id);
    if (!offered || strcmp(how, "off") == 0 || strcmp(info->tokenizer, "none") == 0)
        return 0;
    const bool now = strcmp(how, "now") == 0;
    tern_kv_plan *plan;
    if ((!now && info->weight_bytes < FROM_SIZE) || tern_kv_plan_new(&plan, m, tern_setup_kv(a), false, NULL) < 0)
        return 0; /* an engine will say what is wrong with the plan */
    int rc = 0;
    if (tern_kv_plan_uncalibrated(plan)) {
        tern_outfile_force(false); /* nobody asked for this file */
        rc = calibrate(s, a, plan, now, err);
        tern_outfile_force(a->v[TERN_OPT_FORCE].n > 0);
    }
    tern_kv_plan_free(plan);
    return rc;
}
