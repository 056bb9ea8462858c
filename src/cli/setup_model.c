/* From options to models and engines: which device, and what becomes of them where a card that nobody named refuses. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/outfile.h"
#include "cli/cli.h"

#define LIMIT_S   20.0               /* more is not done unasked */
#define FROM_SIZE ((size_t)32 << 20) /* smaller models are there to try things out, as for packed weights */

static const struct tern_outfile_kind cond_kind = {"a key conditioning file", "ternkv\n", 7, true, false};

/* ---- the device -------------------------------------------------------------------------------------------------- */

static bool is_auto(const struct tern_args *a)
{
    const char *device = a->v[TERN_OPT_DEVICE].s;
    return !device || strcmp(device, "auto") == 0;
}

/* The option that says what a card shall do; NULL: none was given. */
static const char *card_option(const struct tern_args *a)
{
    const struct tern_arg *v = a->v;
    return v[TERN_OPT_GPU_MEMORY].n   ? "--gpu-memory"
           : v[TERN_OPT_GPU_LAYERS].n ? "--gpu-layers"
           : v[TERN_OPT_GPUS].n       ? "--gpus"
                                      : NULL;
}

const char *tern_setup_device(const struct tern_args *a)
{
    return !is_auto(a) ? a->v[TERN_OPT_DEVICE].s : card_option(a) ? "cuda" : "auto";
}

bool tern_setup_on_card(const struct tern_args *a)
{
    return strncmp(tern_setup_device(a), "cuda", 4) == 0;
}

/* Nothing that a card shall do is left out where there is none. */
static int check_card(const struct tern_args *a, tern_error *err)
{
    const char *option = card_option(a);
    tern_device_memory card;
    tern_error why = {0};
    if (option && !tern_setup_on_card(a))
        return tern_cli_usage(err, "%s is a card's, and the model runs on device %s: --device cuda", option,
                              a->v[TERN_OPT_DEVICE].s);
    if (option && is_auto(a) && tern_device_get_memory("cuda", &card, &why) < 0)
        return tern_cli_usage(err, "%s needs a card: %.300s", option, why.msg);
    if (a->v[TERN_OPT_GPUS].n && a->v[TERN_OPT_GPUS].i > 1 && a->v[TERN_OPT_GPU_LAYERS].n)
        return tern_cli_usage(err,
                              "--gpus divides a model among cards, --gpu-layers between a card and the CPU: one of "
                              "them");
    return 0;
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

/* What is asked and told while a model is opened. */
struct opening {
    struct tern_setup *s;
    bool draft;
};

static void before_packed(void *opening, const char *path, size_t bytes)
{
    (void)opening;
    tern_note("writing packed weights to %s (%s), once; later starts map them (--packed off goes without, "
              "'tern cache ls' lists them)",
              tern_shown(path), tern_size_text((double)bytes));
    tern_cache_remember(path); /* now: `cache ls` is to show what an interruption leaves, too */
}

static int before_weights(void *opening, size_t bytes, tern_error *err)
{
    const struct opening *o = opening;
    struct tern_setup *s = o->s;
    const int rc = s->before_weights ? s->before_weights(s->user, bytes, err) : 0;
    s->asked[o->draft] = rc < 0 ? 0 : bytes;
    return rc;
}

static void on_device(void *opening, const char *device)
{
    const struct opening *o = opening;
    struct tern_setup *s = o->s;
    if (s->asked[o->draft] && s->no_weights)
        s->no_weights(s->user, s->asked[o->draft], o->draft);
    s->asked[o->draft] = 0;
    if (!o->draft)
        (void)snprintf(s->device, sizeof s->device, "%s", device);
}

static int on_progress(void *opening, int done, int total)
{
    const struct tern_setup *s = ((struct opening *)opening)->s;
    return s->on_progress ? s->on_progress(s->user, done, total) : 0;
}

/* As in tern_model_params. */
static int gpu_layers(const struct tern_args *a)
{
    const struct tern_arg *layers = &a->v[TERN_OPT_GPU_LAYERS];
    return !layers->n ? 0 : layers->i ? (int)layers->i : -1;
}

/* A model that guesses is where the other is, or on the CPU. */
static const char *device_of(const struct opening *o, const struct tern_args *a)
{
    const bool beside = o->draft && !tern_model_get_info(o->s->model)->n_cards;
    return beside ? "cpu" : tern_setup_device(a);
}

/* --experts-resident, --gpu-layers and the scaling are not meant for a model that guesses. */
static int set_params(tern_model_params *p, struct opening *o, const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    const struct tern_arg *v = a->v;
    /* Commands without the option only look at a model: they write nothing. */
    const bool computes = tern_options[TERN_OPT_PACKED].commands & (1u << a->command->id);
    double experts = 0, card = 0;
    TERN_TRY(check_card(a, err));
    if (v[TERN_OPT_GPU_MEMORY].n)
        TERN_TRY(tern_setup_size("--gpu-memory", v[TERN_OPT_GPU_MEMORY].s, 1, 1e15, &card, err));
    if (!o->draft && v[TERN_OPT_EXPERTS_RESIDENT].s)
        TERN_TRY(tern_setup_size("--experts-resident", v[TERN_OPT_EXPERTS_RESIDENT].s, 1, 1e15, &experts, err));
    *p = (tern_model_params){.n_threads = (int)v[TERN_OPT_THREADS].i,
                             .packed = computes ? v[TERN_OPT_PACKED].s : "use",
                             .rope_scaling = o->draft ? NULL : v[TERN_OPT_ROPE_SCALING].s,
                             .rope_base = o->draft ? 0 : v[TERN_OPT_ROPE_BASE].f,
                             .before_packed = before_packed,
                             .before_weights = before_weights,
                             .on_progress = on_progress,
                             .on_device = on_device,
                             .user = o,
                             .experts_resident = (size_t)experts,
                             .gpu_memory = (size_t)card,
                             .gpu_layers = o->draft ? 0 : gpu_layers(a),
                             .gpus = v[TERN_OPT_GPUS].n ? (int)v[TERN_OPT_GPUS].i : 1,
                             .device = computes ? device_of(o, a) : "cpu"};
out:
    return rc;
}

/* Why it is not where there is a card. */
static void tell_device(const tern_model *m)
{
    const char *why = tern_model_get_info(m)->device_notice;
    if (why)
        tern_note("running on the CPU, not on the card: %s (--device cpu chooses that)", tern_shown(why));
}

static int open_model(tern_model **out, struct opening *o, const struct tern_args *a, const char *path, tern_error *err)
{
    tern_model_params p;
    o->s->asked[o->draft] = 0;
    int rc = set_params(&p, o, a, err);
    if (rc == 0)
        rc = tern_model_open(out, path, &p, err);
    if (rc == 0) {
        tell_device(*out);
        tern_packed_note(*out);
    }
    return rc;
}

int tern_setup_open(struct tern_setup *s, const struct tern_args *a, const char *path, tern_error *err)
{
    struct opening o = {.s = s};
    const double start = tern_now();
    int rc = open_model(&s->model, &o, a, path, err);
    s->load_s = tern_now() - start;
    return rc;
}

int tern_setup_draft(struct tern_setup *s, const struct tern_args *a, const char *path, tern_error *err)
{
    struct opening o = {.s = s, .draft = true};
    return s->draft ? 0 : open_model(&s->draft, &o, a, path, err);
}

/* ---- engines ----------------------------------------------------------------------------------------------------- */

int tern_setup_fall_back(struct tern_setup *s, const struct tern_args *a, const tern_engine_params *p, tern_error *err)
{
    int rc = 0;
    struct opening o = {.s = s};
    const tern_error why = *err;
    tern_model_params m;
    TERN_TRY(set_params(&m, &o, a, err));
    TERN_TRY(tern_model_fall_back(s->model, &m, p, &why, err));
    tell_device(s->model);
    if (s->draft && tern_model_get_info(s->draft)->n_cards) {
        o.draft = true;
        TERN_TRY(set_params(&m, &o, a, err));
        TERN_TRY(tern_model_fall_back(s->draft, &m, NULL, &why, err));
    }
out:
    return rc;
}

/* The processor's memory is found page by page; a card that cannot hold one full context would end a long text. */
static int check_context(const struct tern_setup *s, const struct tern_args *a, const tern_engine *e, tern_error *err)
{
    size_t full, f16;
    const size_t limit = tern_engine_kv_limit(e);
    const int ctx = tern_engine_ctx(e);
    char needed[32], left[32], fits[40] = "";
    if (strcmp(tern_setup_device(a), "auto") != 0 || !tern_model_get_info(s->model)->n_cards || s->kv_bytes)
        return 0;
    tern_engine_full(e, 0, &full, &f16);
    const double states = tern_plan_states(tern_engine_plan(e)), pages = (double)full;
    if (pages + states <= (double)limit)
        return 0;
    const double part = pages > 0 ? ((double)limit - states) / pages : 0;
    const int most = part > 0 ? (int)(part * ctx) / 64 * 64 : 0;
    if (most > 0)
        (void)snprintf(fits, sizeof fits, "-c %d fits, ", most);
    (void)snprintf(needed, sizeof needed, "%s", tern_size_text(pages + states));
    (void)snprintf(left, sizeof left, "%s", tern_size_text((double)limit));
    return tern_err_set(err, TERN_ENOMEM,
                        "a context of %d tokens takes %s, and weights and scratch leave %s of the card's memory: %sor "
                        "fewer layers on the card (--gpu-layers)",
                        ctx, needed, left, fits);
}

static int open_engine(tern_engine **out, const struct tern_setup *s, const struct tern_args *a,
                       const tern_engine_params *p, tern_error *err)
{
    int rc = tern_engine_open(out, s->model, p, err);
    if (rc == 0)
        rc = check_context(s, a, *out, err);
    if (rc < 0)
        tern_engine_close(out);
    return rc;
}

int tern_setup_open_engine(tern_engine **out, struct tern_setup *s, const struct tern_args *a, tern_engine_params *p,
                           tern_error *err)
{
    const bool by_options = !p->kv;
    p->kv = by_options ? tern_setup_kv(a, s->model) : p->kv;
    int rc = open_engine(out, s, a, p, err);
    if (rc < 0 && tern_setup_fall_back(s, a, p, err) == 0) {
        p->kv_bytes = s->kv_bytes ? s->kv_bytes : p->kv_bytes;
        p->kv = by_options ? tern_setup_kv(a, s->model) : p->kv;
        rc = open_engine(out, s, a, p, err);
    }
    return rc < 0 ? err->code : 0;
}

/* ---- first use: keys are measured when that is quickly done, else the command that does it is named ---------------
 */

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

static int first_use(const struct tern_setup *s, const struct tern_args *a, tern_error *err)
{
    const tern_model *m = s->model;
    const char *how = a->v[TERN_OPT_CALIBRATION].s;
    const tern_model_info *info = tern_model_get_info(m);
    const bool offered = tern_options[TERN_OPT_CALIBRATION].commands & (1u << a->command->id);
    if (!offered || strcmp(how, "off") == 0 || strcmp(info->tokenizer, "none") == 0)
        return 0;
    const bool now = strcmp(how, "now") == 0;
    tern_kv_plan *plan;
    if ((!now && info->weight_bytes < FROM_SIZE) || tern_kv_plan_new(&plan, m, tern_setup_kv(a, m), false, NULL) < 0)
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

int tern_setup_first_use(struct tern_setup *s, const struct tern_args *a, tern_error *err)
{
    if (first_use(s, a, err) == 0)
        return 0;
    const int rc = tern_setup_fall_back(s, a, NULL, err); /* a card without room for that has none for a context */
    return rc < 0 ? rc : first_use(s, a, err);
}
