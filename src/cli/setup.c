/* From options to open objects: what run, chat, eval, bench and doctor do alike. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/outfile.h"
#include "cli/cli.h"

static int check_turbo(const struct tern_args *a, tern_error *err)
{
    const struct tern_arg *v = a->v;
    const enum tern_option_id bits[2] = {TERN_OPT_TURBO_KV_BITS, TERN_OPT_TURBO_V_BITS};
    for (int i = 0; i < 2; i++)
        if (v[bits[i]].n && !strchr("02348", '0' + (int)v[bits[i]].i))
            return tern_cli_usage(err,
                                  "--turbo-%s-bits must be 0 (16 bits), 2, 3, 4 or 8, not %d; 2 bits are the least",
                                  i ? "v" : "kv", (int)v[bits[i]].i);
    if (!v[bits[0]].n && (v[bits[1]].n || v[TERN_OPT_TURBO_FP16_LAYERS].n))
        return tern_cli_usage(err, "--turbo-v-bits and --turbo-fp16-layers belong to --turbo-kv-bits");
    if (v[bits[0]].n && v[TERN_OPT_KV].n)
        return tern_cli_usage(err, "--kv and --turbo-kv-bits say the same thing; give one of them");
    return 0;
}

/* A plan that no model could have is wrong use; what its file holds is not on the command line. */
static int plan_error(const char *spec, int rc, tern_error *err)
{
    return strstr(spec, "plan=") ? rc : tern_cli_as_usage(rc, err);
}

static int check_plan(const char *spec, tern_error *err)
{
    return plan_error(spec, tern_kv_check(spec, err), err);
}

/* --max-kv-size and --keep are items of a plan. */
static int check_max(const struct tern_args *a, tern_error *err)
{
    const struct tern_arg *max = &a->v[TERN_OPT_MAX_KV_SIZE], *keep = &a->v[TERN_OPT_KEEP];
    const char *plan = a->v[TERN_OPT_KV].s;
    int plan_max = 0, plan_first = -1;
    if (keep->n && !max->i)
        return tern_cli_usage(err,
                              "--keep belongs to --max-kv-size; --kv ...,first=K keeps the first K tokens in 16 bits");
    if (max->i && max->i < 64)
        return tern_cli_usage(err, "--max-kv-size must be 64 or more, or 0, not %d", (int)max->i);
    if (max->i && max->i <= keep->i)
        return tern_cli_usage(err, "--max-kv-size %d leaves no room beside --keep %d", (int)max->i, (int)keep->i);
    int rc = max->i && plan ? tern_kv_check_max(plan, &plan_max, &plan_first, err) : 0;
    if (rc < 0)
        return plan_error(plan, rc, err);
    if (plan_max)
        return tern_cli_usage(err, "max=%d of --kv %.100s and --max-kv-size say the same thing; give one of them",
                              plan_max, plan);
    if (keep->n && plan_first >= 0)
        return tern_cli_usage(err, "first=%d of --kv %.100s and --keep say the same thing; give one of them",
                              plan_first, plan);
    return 0;
}

static int check_drafts(const struct tern_args *a, tern_error *err)
{
    const struct tern_arg *draft = &a->v[TERN_OPT_DRAFT];
    if (a->v[TERN_OPT_DRAFT_MAX].n && strcmp(draft->s, "off") == 0)
        return tern_cli_usage(err, "--draft-max belongs to --draft, which is off");
    return 0;
}

int tern_setup_check_kv(const struct tern_args *a, tern_error *err)
{
    int rc = check_turbo(a, err);
    rc = rc < 0 ? rc : check_max(a, err);
    return rc < 0 ? rc : check_plan(tern_setup_kv(a, NULL), err);
}

int tern_setup_begin(const struct tern_args *a, tern_error *err)
{
    int rc = tern_setup_check_kv(a, err);
    rc = rc < 0 ? rc : check_drafts(a, err);
    return rc < 0 ? rc : tern_set_cpu_mask(a->v[TERN_OPT_CPU_MASK].s, err);
}

int tern_setup_model(struct tern_setup *s, const struct tern_args *a, const char *path, tern_error *err)
{
    int rc = tern_setup_begin(a, err);
    return rc < 0 ? rc : tern_setup_open(s, a, path, err);
}

static const char *base_kv(const struct tern_args *a, const tern_model *m)
{
    static char turbo[64];
    const struct tern_arg *v = a->v;
    if (v[TERN_OPT_KV].s)
        return v[TERN_OPT_KV].s;
    if (v[TERN_OPT_TURBO_KV_BITS].n) {
        int k = (int)v[TERN_OPT_TURBO_KV_BITS].i;
        int n = snprintf(turbo, sizeof turbo, "turbo%dv%d", k,
                         v[TERN_OPT_TURBO_V_BITS].n ? (int)v[TERN_OPT_TURBO_V_BITS].i : k);
        if (v[TERN_OPT_TURBO_FP16_LAYERS].i > 0)
            (void)snprintf(turbo + n, sizeof turbo - (size_t)n, ",edge=%d:f16", (int)v[TERN_OPT_TURBO_FP16_LAYERS].i);
        return turbo;
    }
    return a->v[TERN_OPT_EXACT].n ? "f32" : m ? tern_model_get_info(m)->kv_default : "f16";
}

const char *tern_setup_kv(const struct tern_args *a, const tern_model *m)
{
    static char text[512];
    const struct tern_arg *max = &a->v[TERN_OPT_MAX_KV_SIZE], *keep = &a->v[TERN_OPT_KEEP];
    const char *base = base_kv(a, m);
    if (!max->i)
        return base;
    int n = snprintf(text, sizeof text, "%.400s,max=%d", base, (int)max->i);
    if (keep->n)
        (void)snprintf(text + n, sizeof text - (size_t)n, ",first=%d", (int)keep->i);
    return text;
}

/* The plan in 16 bits that keeps the same tokens. */
static int raw_kv(const char **out, const char *plan, bool exact, tern_error *err)
{
    static char text[64];
    int max, first, n = snprintf(text, sizeof text, "%s", exact ? "f32" : "f16");
    int rc = tern_kv_check_max(plan, &max, &first, err);
    if (max)
        n += snprintf(text + n, sizeof text - (size_t)n, ",max=%d", max);
    if (max && first >= 0)
        (void)snprintf(text + n, sizeof text - (size_t)n, ",first=%d", first);
    *out = text;
    return rc;
}

bool tern_setup_at_end(const struct tern_args *a)
{
    const struct tern_arg *when = &a->v[TERN_OPT_KV_WHEN];
    return when->n && strcmp(when->s, "end") == 0;
}

tern_engine_params tern_setup_params(const struct tern_args *a, int ctx, int max_seqs)
{
    return (tern_engine_params){
        .n_threads = (int)a->v[TERN_OPT_THREADS].i,
        .ctx = ctx,
        .max_seqs = max_seqs,
        .chunk = (int)a->v[TERN_OPT_CHUNK].i,
        .kv_strict = strcmp(a->v[TERN_OPT_KV_POLICY].s, "strict") == 0,
        .exact = a->v[TERN_OPT_EXACT].n > 0,
        .decode_bits = a->v[TERN_OPT_DECODE_BITS].n ? atoi(a->v[TERN_OPT_DECODE_BITS].s) : 0,
        .prompt_class = a->v[TERN_OPT_PROMPT_CLASS].s,
        .code_at_end = tern_setup_at_end(a),
    };
}

int tern_setup_guard_plan(const char *spec, tern_error *err)
{
    char path[4096];
    const char *item = strstr(spec, "plan=");
    if (!item)
        return 0;
    (void)snprintf(path, sizeof path, "%.*s", (int)strcspn(item + 5, ","), item + 5);
    return tern_outfile_guard_path(path, err);
}

/* --draft: a word, or the file of a smaller model. */
static int set_drafts(struct tern_setup *s, const struct tern_args *a, tern_engine_params *p, tern_error *err)
{
    static const char *const words[] = {"off", "auto", "ngram", "mtp"};
    const char *draft = a->v[TERN_OPT_DRAFT].s;
    if (!(tern_options[TERN_OPT_DRAFT].commands & (1u << a->command->id)))
        return 0;
    p->draft_most = (int)a->v[TERN_OPT_DRAFT_MAX].i;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(draft, words[i]) == 0) {
            p->draft = draft;
            return 0;
        }
    if (s->no_draft_model)
        return 0;
    int rc = tern_setup_draft(s, a, draft, err);
    p->draft_model = s->draft;
    return rc;
}

int tern_setup_engine(struct tern_setup *s, const struct tern_args *a, int ctx, int max_seqs, tern_error *err)
{
    int rc = 0;
    tern_engine_params p = tern_setup_params(a, ctx, max_seqs);
    const int from = (int)a->v[TERN_OPT_KV_START].i;
    const char *raw[] = {NULL};
    p.kv_bytes = s->kv_bytes;
    if (from && p.code_at_end)
        return tern_cli_usage(err, "--quantized-kv-start codes at a length and --kv-when end at the prompt's end: give "
                                   "one of them");
    if (from) {
        TERN_TRY(raw_kv(&raw[0], tern_setup_kv(a, s->model), p.exact, err));
        p.more_kv = raw;
        p.n_more_kv = 1;
        s->start = (struct tern_start){0, from, 1};
    }
    TERN_TRY(set_drafts(s, a, &p, err));
    TERN_TRY(tern_setup_first_use(s, a, err));
    TERN_TRY(tern_setup_guard_plan(tern_setup_kv(a, s->model), err));
    TERN_TRY(tern_setup_open_engine(&s->engine, s, a, &p, err));
    tern_plan_exceptions(tern_engine_plan(s->engine));
    if (a->v[TERN_OPT_MAX_KV_SIZE].i >= tern_engine_ctx(s->engine))
        tern_note("the context of %d tokens ends before --max-kv-size %d forgets any", tern_engine_ctx(s->engine),
                  (int)a->v[TERN_OPT_MAX_KV_SIZE].i);
    if (from > tern_engine_ctx(s->engine))
        tern_note("the context of %d tokens ends before --quantized-kv-start %d: nothing is coded",
                  tern_engine_ctx(s->engine), from);
out:
    return rc;
}

int tern_start_loaded(tern_seq *seq, tern_engine *e, const struct tern_start *s, tern_error *err)
{
    if (!s->from || s->from > tern_engine_ctx(e) || tern_seq_plan(seq) != s->raw)
        return 0;
    return tern_seq_recode_at(seq, s->from, s->plan, err);
}

int tern_start_new(tern_seq **out, tern_engine *e, const struct tern_start *s, tern_error *err)
{
    int rc = tern_seq_new_plan(out, e, s->from ? s->raw : s->plan, err);
    if (rc == 0)
        rc = tern_start_loaded(*out, e, s, err);
    if (rc < 0) {
        tern_seq_free(*out);
        *out = NULL;
    }
    return rc;
}

int tern_chunk_ctx(const struct tern_setup *s, const struct tern_arg *option)
{
    int trained = tern_model_get_info(s->model)->ctx;
    return !option->n && trained > 0 && trained < option->i ? trained : (int)option->i;
}

/* What Windows writes behind `>`; taken byte by byte it is garbage between NUL bytes. */
static bool is_utf16(const struct tern_buf *text)
{
    return text->len >= 2 && (memcmp(text->p, "\xff\xfe", 2) == 0 || memcmp(text->p, "\xfe\xff", 2) == 0);
}

int tern_setup_read(struct tern_buf *out, const char *path, size_t max_bytes, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_outfile_guard_path(path, err));
    TERN_TRY(tern_buf_read_file(out, path, max_bytes, err));
    if (is_utf16(out))
        TERN_FAIL(err, TERN_EFORMAT,
                  "%s: is UTF-16, and texts are read as UTF-8 (iconv -f UTF-16 -t UTF-8 converts it)",
                  strcmp(path, "-") == 0 ? "standard input" : tern_shown(path));
out:
    return rc;
}

void tern_setup_clear(struct tern_setup *s)
{
    tern_engine_close(&s->engine);
    tern_model_close(&s->model);
    tern_model_close(&s->draft);
}

int tern_setup_size(const char *option, const char *text, double min, double max, double *out, tern_error *err)
{
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    const char *units = "KMGT", *unit = *end ? strchr(units, *end >= 'a' ? *end - 'a' + 'A' : *end) : NULL;
    if (unit) {
        for (const char *u = units; u <= unit; u++)
            v *= 1024;
        end++;
    }
    if (errno || end == text || *end || !(v >= min && v <= max))
        return tern_cli_usage(err, "%s must be a number from %.0f to %.0f, perhaps with K, M or G, not \"%.40s\"",
                              option, min, max, text);
    *out = v;
    return 0;
}

int tern_setup_format(enum tern_format *out, const struct tern_args *a, tern_error *err)
{
    bool json = a->v[TERN_OPT_JSON].n > 0, csv = a->v[TERN_OPT_CSV].n > 0;
    if (json && csv)
        return tern_cli_usage(err, "--json and --csv exclude each other");
    *out = json ? TERN_FORMAT_JSON : csv ? TERN_FORMAT_CSV : TERN_FORMAT_TABLE;
    return 0;
}

static int add_plan(struct tern_plan_list *l, const char *text, size_t n, tern_error *err)
{
    if (n == 0)
        return tern_cli_usage(err, "--kv: empty plan");
    if (l->n == TERN_CLI_MAX_PLANS)
        return tern_cli_usage(err, "--kv: more than %d plans", TERN_CLI_MAX_PLANS);
    char *spec = strndup(text, n);
    if (!spec)
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate a plan");
    l->spec[l->n++] = spec;
    return 0;
}

int tern_setup_plans(struct tern_plan_list *out, const struct tern_arg *option, tern_error *err)
{
    int rc = 0;
    for (int i = 0; i < option->n_items; i++) {
        const char *p = option->ss[i];
        bool whole = strchr(p, '=') != NULL;
        for (;; p++) {
            size_t n = whole ? strlen(p) : strcspn(p, ",");
            TERN_TRY(add_plan(out, p, n, err));
            TERN_TRY(check_plan(out->spec[out->n - 1], err));
            p += n;
            if (!*p)
                break;
        }
    }
out:
    return rc;
}

void tern_plan_list_clear(struct tern_plan_list *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->spec[i]);
    l->n = 0;
}

/* ---- sampling ---------------------------------------------------------------------------------------------------- */

/* ID=VALUE */
static int read_bias(const char *text, int32_t *id, float *value, tern_error *err)
{
    char *end;
    errno = 0;
    long long i = strtoll(text, &end, 10);
    if (errno || end == text || *end != '=' || i < 0 || i > INT32_MAX)
        goto bad;
    const char *number = end + 1;
    double v = strtod(number, &end);
    if (end == number || *end || !(fabs(v) <= 1e6)) /* also refuses NaN */
        goto bad;
    *id = (int32_t)i;
    *value = (float)v;
    return 0;
bad:
    return tern_cli_usage(err, "--logit-bias must be ID=VALUE with VALUE from -1e6 to 1e6, not \"%.80s\"", text);
}

void tern_bias_clear(struct tern_bias *b)
{
    free(b->ids);
    free(b->values);
    *b = (struct tern_bias){0};
}

/* 48 random bits: short enough to type, and exact in any JSON reader. */
static int random_seed(uint64_t *seed, tern_error *err)
{
    if (getrandom(seed, sizeof *seed, 0) != sizeof *seed)
        return tern_err_set(err, TERN_EIO, "cannot draw a random seed: %s; give one with --seed", strerror(errno));
    *seed >>= 16;
    return 0;
}

int tern_setup_sampler(tern_sampler_params *p, struct tern_bias *bias, const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    const struct tern_arg *v = a->v;
    tern_sampler_defaults(p);
    p->temperature = (float)v[TERN_OPT_TEMP].f;
    p->top_k = (int)v[TERN_OPT_TOP_K].i;
    p->top_p = (float)v[TERN_OPT_TOP_P].f;
    p->min_p = (float)v[TERN_OPT_MIN_P].f;
    p->xtc_probability = (float)v[TERN_OPT_XTC_PROBABILITY].f;
    p->xtc_threshold = (float)v[TERN_OPT_XTC_THRESHOLD].f;
    if (v[TERN_OPT_PENALTY_LAST].i != 0) { /* the library reads 0 as its default, the user means none */
        p->repetition_penalty = (float)v[TERN_OPT_REPEAT_PENALTY].f;
        p->presence_penalty = (float)v[TERN_OPT_PRESENCE_PENALTY].f;
        p->frequency_penalty = (float)v[TERN_OPT_FREQUENCY_PENALTY].f;
        p->penalty_last = (int)v[TERN_OPT_PENALTY_LAST].i;
    }
    p->seed = (uint64_t)v[TERN_OPT_SEED].i;
    int n = v[TERN_OPT_LOGIT_BIAS].n_items;
    if (n) {
        bias->ids = calloc((size_t)n, sizeof *bias->ids);
        bias->values = calloc((size_t)n, sizeof *bias->values);
        if (!bias->ids || !bias->values)
            TERN_FAIL(err, TERN_ENOMEM, "cannot allocate %d logit biases", n);
        for (int i = 0; i < n; i++)
            TERN_TRY(read_bias(v[TERN_OPT_LOGIT_BIAS].ss[i], &bias->ids[i], &bias->values[i], err));
        p->bias_ids = bias->ids;
        p->bias_values = bias->values;
        p->n_bias = n;
    }
out:
    return rc;
}

static bool same_sampling(const tern_sampler_params *a, const tern_sampler_params *b)
{
    return a->temperature == b->temperature && a->top_k == b->top_k && a->top_p == b->top_p && a->min_p == b->min_p &&
           a->repetition_penalty == b->repetition_penalty && a->penalty_last == b->penalty_last;
}

int tern_setup_recommended(tern_sampler_params *p, const struct tern_args *a, const tern_model *m, bool tell,
                           tern_error *err)
{
    const struct tern_arg *v = a->v;
    const tern_sampler_params asked = *p;
    tern_sampler_params r = *p;
    (void)tern_model_recommends(m, &r);
    if (!v[TERN_OPT_TEMP].n)
        p->temperature = r.temperature;
    if (!v[TERN_OPT_TOP_K].n)
        p->top_k = r.top_k;
    if (!v[TERN_OPT_TOP_P].n)
        p->top_p = r.top_p;
    if (!v[TERN_OPT_MIN_P].n)
        p->min_p = r.min_p;
    if (v[TERN_OPT_PENALTY_LAST].i != 0) { /* else the user wants no penalties */
        if (!v[TERN_OPT_REPEAT_PENALTY].n)
            p->repetition_penalty = r.repetition_penalty;
        if (!v[TERN_OPT_PENALTY_LAST].n)
            p->penalty_last = r.penalty_last;
    }
    const bool counts = p->temperature > 0 || p->repetition_penalty != 1;
    const char *left_out = tern_model_get_info(m)->sampling_left_out;
    if (tell && counts && !same_sampling(&asked, p))
        tern_note("sampling as the model recommends: %s", tern_sampling_text(p));
    if (tell && counts && left_out)
        tern_note("recommended too, but not known here: %s", tern_shown(left_out));
    return !v[TERN_OPT_SEED].n && p->temperature > 0 ? random_seed(&p->seed, err) : 0;
}

int tern_setup_stop(tern_generate_params *p, const struct tern_args *a, tern_error *err)
{
    p->stop = a->v[TERN_OPT_STOP].ss;
    p->n_stop = a->v[TERN_OPT_STOP].n_items;
    for (int i = 0; i < p->n_stop; i++) {
        if (!p->stop[i][0])
            return tern_cli_usage(err, "--stop must not be empty");
    }
    for (int i = 0; i < a->v[TERN_OPT_STOP_TOKEN].n_items; i++) {
        if (!a->v[TERN_OPT_STOP_TOKEN].ss[i][0])
            return tern_cli_usage(err, "--stop-token must not be empty");
    }
    return 0;
}

int tern_setup_stop_tokens(tern_generate_params *p, tern_tokens *out, const struct tern_args *a, const tern_model *m,
                           tern_error *err)
{
    int rc = 0;
    const struct tern_arg *names = &a->v[TERN_OPT_STOP_TOKEN];
    for (int i = 0; i < names->n_items; i++) {
        const size_t before = out->len;
        TERN_TRY(tern_model_tokenize(m, names->ss[i], strlen(names->ss[i]), TERN_TEXT_SPECIAL, out, err));
        if (out->len != before + 1)
            TERN_FAIL(err, TERN_EINVAL, "--stop-token \"%.80s\" is %zu tokens of this model; --stop ends at a text",
                      names->ss[i], out->len - before);
    }
    p->stop_ids = out->p;
    p->n_stop_ids = (int)out->len;
out:
    return rc;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* Does the vocabulary have no token for this byte, so that it is left out? */
static bool is_lost(const tern_model *m, const char *byte)
{
    tern_tokens ids = {0};
    bool lost = tern_model_tokenize(m, byte, 1, 0, &ids, NULL) == 0 && ids.len == 0;
    tern_tokens_clear(&ids);
    return lost;
}

void tern_setup_check_text(const tern_model *m, const struct tern_buf *text, const char *what)
{
    size_t counts[256] = {0}, bad = 0, lost = 0;
    const char *first = NULL, *end = text->p + text->len;
    for (const char *p = text->p; p < end;) {
        size_t n = tern_utf8_length(p, end);
        if (n == 0) {
            counts[(unsigned char)*p]++;
            first = first ? first : p;
            bad++;
        }
        p += n ? n : 1;
    }
    for (int b = 0; bad && b < 256; b++)
        if (counts[b] && is_lost(m, &(char){(char)b}))
            lost += counts[b];
    if (bad)
        tern_note("%s: %zu byte%s not UTF-8, the first (0x%02x) at offset %td%s", tern_shown(what), bad,
                  bad == 1 ? " is" : "s are", (unsigned char)*first, first - text->p,
                  lost == 0     ? ""
                  : lost == bad ? "; the vocabulary has no tokens for them, they are left out"
                                : "; for some of them the vocabulary has no tokens, they are left out");
}

int tern_setup_tokenize(const tern_model *m, const struct tern_buf *text, unsigned flags, const char *what,
                        tern_tokens *out, tern_error *err)
{
    tern_setup_check_text(m, text, what);
    return tern_model_tokenize(m, text->p ? text->p : "", text->len, flags, out, err);
}

/* ---- ids --------------------------------------------------------------------------------------------------------- */

/* A comma stands between two ids; *open: behind the last one no id has come yet. */
static int next_comma(bool *open, bool any, const char *what, ptrdiff_t at, tern_error *err)
{
    if (*open || !any)
        return tern_err_set(err, TERN_EINVAL, "%s: a token id is missing before the comma at byte %td", what, at);
    *open = true;
    return 0;
}

int tern_ids_read(tern_tokens *out, const char *text, size_t n, const char *what, tern_error *err)
{
    int rc = 0;
    bool open = false, any = false;
    const char *p = text, *end = text + n;
    while (p < end) {
        if (*p == ',')
            TERN_TRY(next_comma(&open, any, what, p - text, err));
        if (*p == ',' || *p == ' ' || *p == '\n' || *p == '\r' || *p == '\t') {
            p++;
            continue;
        }
        int64_t v = 0;
        const char *start = p;
        while (p < end && *p >= '0' && *p <= '9' && v <= INT32_MAX)
            v = v * 10 + (*p++ - '0');
        bool ended = p == end || strchr(", \n\r\t", *p) != NULL;
        if (p == start || v > INT32_MAX || !ended || (p < end && !*p)) {
            size_t len = strcspn(start, ", \n\r\t");
            TERN_FAIL(err, TERN_EINVAL, "%s: \"%.*s\" at byte %td is not a token id", what, (int)(len < 40 ? len : 40),
                      start, start - text);
        }
        TERN_TRY(tern_tokens_push(out, (int32_t)v, err));
        open = false;
        any = true;
    }
    if (open)
        TERN_FAIL(err, TERN_EINVAL, "%s: a token id is missing behind the last comma", what);
out:
    return rc;
}
