/* tern doctor: what would run here, and whether it does. */
#include <math.h>
#include <string.h>

#include "cli/cli.h"

#define TERN_PAGE_TOKENS 64

struct doctor {
    const struct tern_args *a;
    struct tern_setup setup;
    tern_machine machine;
    double kv_bytes, kv_f16_bytes; /* of a full context */
    double kld;                    /* of the plan from 16 bits; NaN: not measured */
    int kld_tokens;
    size_t needed;           /* weights, a full context, scratch */
    size_t scratch;          /* of these */
    tern_device_memory card; /* limit_bytes 0: none */
    int n_unfinished;        /* files of runs that were interrupted */
    double unfinished_bytes;
    char verdict[sizeof((tern_error *)0)->msg]; /* "ok", or what is wrong */
    bool ok;
};

static void wrong(struct doctor *d, const char *text)
{
    (void)snprintf(d->verdict, sizeof d->verdict, "%s", text);
    d->ok = false;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static bool all_finite(const float *x, int n)
{
    for (int i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

/* One prompt row and one decode row, which take different kernels. */
static int run_two_tokens(struct doctor *d, tern_error *err)
{
    int rc = 0, n_vocab = tern_model_get_info(d->setup.model)->n_vocab;
    tern_seq *seq = NULL;
    const float *logits;
    const int32_t ids[2] = {0, n_vocab > 1};
    TERN_TRY(tern_seq_new(&seq, d->setup.engine, err));
    for (int i = 0; i < 2; i++) {
        tern_step_item it = {
            .seq = seq, .tokens = &ids[i], .n_tokens = 1, .decode = i == 1, .logits = TERN_LOGITS_LAST};
        TERN_TRY(tern_step(d->setup.engine, &it, 1, &logits, err));
        if (!all_finite(logits, n_vocab))
            TERN_FAIL(err, TERN_EFORMAT, "the %s token gives logits that are not finite numbers: the file is damaged",
                      i ? "second" : "first");
    }
out:
    tern_seq_free(seq);
    return rc;
}

/* The part of what layers keep of a token that the card's keep. */
static double card_share(const struct doctor *d)
{
    const tern_kv_plan *p = tern_engine_plan(d->setup.engine);
    double all = 0, card = 0;
    for (int i = 0; i < tern_kv_plan_rows(p); i++) {
        tern_kv_row r;
        tern_kv_plan_row(p, i, &r);
        all += r.bytes_per_token;
        card += r.layer >= tern_model_get_info(d->setup.model)->n_cpu_layers ? r.bytes_per_token : 0;
    }
    return all > 0 ? card / all : 0;
}

/* A card's budget holds a context that is smaller by what is missing. */
static void check_card(struct doctor *d)
{
    const double kv = d->kv_bytes * card_share(d);
    const double all = (double)d->card.weight_bytes + (double)d->scratch + kv;
    const double missing = all - (double)d->card.limit_bytes;
    const int ctx = tern_engine_ctx(d->setup.engine);
    const double fits = kv > 0 ? ctx * (1 - missing / kv) : 0;
    char text[300], needed[32], limit[32];
    if (missing <= 0)
        return;
    (void)snprintf(needed, sizeof needed, "%s", tern_size_text(all));
    (void)snprintf(limit, sizeof limit, "%s", tern_size_text((double)d->card.limit_bytes));
    if (fits >= TERN_PAGE_TOKENS)
        (void)snprintf(text, sizeof text,
                       "weights, scratch and a full context need %s and the card may be used to %s (--gpu-memory): a "
                       "context of %d tokens fits (-c), or choose a smaller plan (--kv)",
                       needed, limit, (int)fits / TERN_PAGE_TOKENS * TERN_PAGE_TOKENS);
    else
        (void)snprintf(text, sizeof text,
                       "weights, scratch and a full context need %s and the card may be used to %s (--gpu-memory): "
                       "fewer layers (--gpu-layers), or smaller steps (--chunk), leave room for a context",
                       needed, limit);
    wrong(d, text);
}

static void check_memory(struct doctor *d)
{
    tern_memory m;
    tern_engine_memory(d->setup.engine, &m);
    d->kv_bytes = (double)m.kv_full_bytes;
    d->kv_f16_bytes = (double)m.kv_full_f16_bytes;
    d->needed = tern_model_get_info(d->setup.model)->weight_bytes + (size_t)d->kv_bytes +
                (size_t)tern_plan_states(tern_engine_plan(d->setup.engine)) + m.scratch_bytes;
    d->scratch = m.scratch_bytes;
    tern_model_device_memory(d->setup.model, &d->card);
    if (d->card.limit_bytes) {
        check_card(d);
    } else if (d->machine.memory_bytes && d->needed > d->machine.memory_bytes) {
        char text[200];
        (void)snprintf(text, sizeof text,
                       "weights and a full context need %s and the machine has %s: choose a smaller "
                       "context (-c) or plan (--kv)",
                       tern_size_text((double)d->needed), tern_size_text((double)d->machine.memory_bytes));
        wrong(d, text);
    }
}

static int check_divergence(struct doctor *d, tern_error *err)
{
    int rc = tern_doctor_kld(d->setup.model, d->a, &d->kld, &d->kld_tokens, err);
    if (rc == 0 && d->kld > TERN_DOCTOR_KLD) {
        char text[240];
        (void)snprintf(
            text, sizeof text,
            "--kv %.80s changes what the model says: %.3g nats per token from a 16-bit cache, and %.1f is the "
            "most that is in order: give keys more bits (--kv k=q8,v=t4)",
            tern_kv_plan_text(tern_engine_plan(d->setup.engine)), d->kld, TERN_DOCTOR_KLD);
        wrong(d, text);
    }
    return rc;
}

static void examine(struct doctor *d)
{
    tern_error e = {0};
    int rc = 0;
    TERN_TRY(tern_setup_model(&d->setup, d->a, d->a->v[TERN_OPT_MODEL].s, &e));
    if (d->a->v[TERN_OPT_CALIBRATE].n)
        TERN_TRY(tern_doctor_calibrate(d->setup.model, d->a, &e));
    TERN_TRY(tern_setup_engine(&d->setup, d->a, (int)d->a->v[TERN_OPT_CTX].i, 1, &e));
    TERN_TRY(run_two_tokens(d, &e));
    TERN_TRY(check_divergence(d, &e));
    check_memory(d);
out:
    if (rc < 0)
        wrong(d, e.msg[0] ? e.msg : tern_err_text(rc));
}

/* ---- report ------------------------------------------------------------------------------------------------------ */

/* Why the plan is another one than on the CPU, where nobody asked for it. */
static const char *of_a_card(const struct doctor *d)
{
    const tern_model_info *i = tern_model_get_info(d->setup.model);
    const char *plan = tern_kv_plan_text(tern_engine_plan(d->setup.engine));
    const bool asked = d->a->v[TERN_OPT_KV].n || d->a->v[TERN_OPT_TURBO_KV_BITS].n;
    return !asked && i->n_cards && strcmp(plan, i->kv_default) == 0
               ? " (the default on a card; t4 is truer, and slower there)"
               : "";
}

static int print_model(const struct doctor *d, tern_error *err)
{
    int rc = 0;
    const tern_model_info *i = tern_model_get_info(d->setup.model);
    TERN_TRY(tern_out_printf(err, "model       %s: %s, %.4g M parameters, %s in memory\n", tern_shown(i->path),
                             tern_shown(i->arch), (double)i->n_params * 1e-6, tern_size_text((double)i->weight_bytes)));
    TERN_TRY(tern_out_printf(err, "device      %s\n", tern_shown(i->device)));
    if (i->device_notice)
        TERN_TRY(tern_out_printf(err, "reason      %s\n", tern_shown(i->device_notice)));
    TERN_TRY(tern_out_printf(err, "packed      %s\n", i->packed ? tern_shown(i->packed) : "no file is mapped"));
    TERN_TRY(tern_out_printf(err, "tokenizer   %s; chat template: %s\n", tern_shown(i->tokenizer),
                             i->has_template ? "yes" : "no"));
    if (!d->setup.engine)
        goto out;
    TERN_TRY(tern_out_printf(err, "KV plan     %s%s\n",
                             tern_shown(tern_kv_plan_text(tern_engine_plan(d->setup.engine))), of_a_card(d)));
    TERN_TRY(tern_plan_print(tern_engine_plan(d->setup.engine), stdout, err));
    if (d->needed)
        TERN_TRY(tern_out_printf(err, "context     %d tokens: KV %s (16 bit: %s); %s with the weights\n",
                                 tern_engine_ctx(d->setup.engine), tern_size_text(d->kv_bytes),
                                 tern_size_text(d->kv_f16_bytes), tern_size_text((double)d->needed)));
    if (d->card.limit_bytes) {
        char weights[32], scratch[32];
        (void)snprintf(weights, sizeof weights, "%s", tern_size_text((double)d->card.weight_bytes));
        (void)snprintf(scratch, sizeof scratch, "%s", tern_size_text((double)d->scratch));
        TERN_TRY(tern_out_printf(err, "%s %s may be used (--gpu-memory): weights %s, scratch %s\n",
                                 tern_model_get_info(d->setup.model)->n_cards > 1 ? "cards      " : "card       ",
                                 tern_size_text((double)d->card.limit_bytes), weights, scratch));
    }
    if (isfinite(d->kld))
        TERN_TRY(tern_out_printf(err,
                                 "divergence  %.2g nats per token from a 16-bit cache, on %d tokens; up to %.1f is "
                                 "in order\n",
                                 d->kld, d->kld_tokens, TERN_DOCTOR_KLD));
out:
    return rc;
}

static int print_text(const struct doctor *d, tern_error *err)
{
    int rc = 0;
    int threads = d->setup.engine               ? tern_engine_threads(d->setup.engine)
                  : d->a->v[TERN_OPT_THREADS].i ? (int)d->a->v[TERN_OPT_THREADS].i
                                                : d->machine.cores;
    TERN_TRY(tern_out_printf(err, "tern        %s\n", tern_version()));
    TERN_TRY(tern_out_printf(err, "processor   %s, %d cores\n", tern_shown(d->machine.cpu), d->machine.cores));
    TERN_TRY(tern_out_printf(err, "kernels     %s (the processor has %s)\n", d->machine.used, d->machine.detected));
    if (d->machine.refused)
        TERN_TRY(tern_out_printf(err, "refused     %s\n", d->machine.refused));
    TERN_TRY(tern_out_printf(err, "threads     %d\n", threads));
    TERN_TRY(tern_out_printf(err, "memory      %s\n", tern_size_text((double)d->machine.memory_bytes)));
    if (d->setup.model)
        TERN_TRY(print_model(d, err));
    if (d->n_unfinished)
        TERN_TRY(tern_out_printf(err,
                                 "unfinished  %d file%s, %s, of runs that were interrupted: 'tern cache ls' names %s\n",
                                 d->n_unfinished, d->n_unfinished == 1 ? "" : "s", tern_size_text(d->unfinished_bytes),
                                 d->n_unfinished == 1 ? "it" : "them"));
    TERN_TRY(tern_out_printf(err, "verdict     %s\n", d->verdict));
out:
    return rc;
}

static int print_json(const struct doctor *d, tern_error *err)
{
    json_t *out = json_pack("{so sb si sI}", "verdict", tern_json_text(d->verdict), "ok", d->ok, "n_unfinished",
                            d->n_unfinished, "unfinished_bytes", (json_int_t)d->unfinished_bytes);
    const tern_model_info *i = d->setup.model ? tern_model_get_info(d->setup.model) : NULL;
    if (i)
        json_object_set_new(out, "device", tern_json_text(i->device));
    if (i && i->device_notice)
        json_object_set_new(out, "device_reason", tern_json_text(i->device_notice));
    if (d->setup.engine) {
        json_t *kv = tern_report_kv_layers(tern_engine_plan(d->setup.engine));
        json_object_set_new(out, "ctx", json_integer(tern_engine_ctx(d->setup.engine)));
        json_object_set_new(kv, "full_bytes", json_integer((json_int_t)d->kv_bytes));
        json_object_set_new(kv, "full_f16_bytes", json_integer((json_int_t)d->kv_f16_bytes));
        json_object_set_new(kv, "kld", isfinite(d->kld) ? json_real(d->kld) : json_null());
        json_object_set_new(out, "kv", kv);
        json_object_set_new(out, "needed_bytes", json_integer((json_int_t)d->needed));
        if (d->card.limit_bytes)
            json_object_set_new(out, "card",
                                json_pack("{sI sI sI sI}", "limit_bytes", (json_int_t)d->card.limit_bytes, "used_bytes",
                                          (json_int_t)d->card.used_bytes, "weight_bytes",
                                          (json_int_t)d->card.weight_bytes, "scratch_bytes", (json_int_t)d->scratch));
    }
    const int threads = d->setup.engine ? tern_engine_threads(d->setup.engine) : 0;
    return tern_report_print(tern_report_json("doctor", d->setup.model, threads), out, err);
}

int tern_cmd_doctor(const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    struct doctor d = {.a = a, .ok = true, .verdict = "ok", .kld = NAN};
    TERN_TRY(tern_doctor_check(a, err));
    if (a->v[TERN_OPT_FIT].n)
        return tern_doctor_fit(a, err);
    TERN_TRY(tern_set_cpu_mask(a->v[TERN_OPT_CPU_MASK].s, err));
    tern_machine_describe(&d.machine);
    if (a->v[TERN_OPT_MODEL].n)
        examine(&d);
    d.n_unfinished = tern_cache_unfinished(&d.unfinished_bytes);
    TERN_TRY(a->v[TERN_OPT_JSON].n ? print_json(&d, err) : print_text(&d, err));
    TERN_TRY(tern_out_flush(err));
    if (!d.ok)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s", d.verdict);
out:
    tern_setup_clear(&d.setup);
    return rc;
}
