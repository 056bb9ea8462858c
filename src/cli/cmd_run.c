/* tern run: one prompt, one text. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "tern/cache.h"

#define MAX_PROMPT_BYTES ((size_t)1 << 28)
#define MAX_RULE_BYTES   ((size_t)1 << 22) /* more than a grammar may have, which says so better */

struct run {
    const struct tern_args *a;
    struct tern_setup setup;
    struct tern_buf prompt; /* text */
    tern_tokens ids;
    tern_seq *seq;
    struct tern_bias bias;
    tern_tokens stop_ids;
    int n_kept;        /* prompt tokens that --prompt-cache spared */
    tern_error unkept; /* why it could not keep them; code 0: it did */
    double before_s;   /* and what reading the rest took before it was kept */
    tern_generate_params params;
    enum { FREE, SCHEMA, GRAMMAR, REGEX } rule; /* what the text must follow */
    struct tern_buf rule_text;
    tern_constraint constraint;
    tern_reply *reply; /* sets reasoning aside; NULL: the text is printed as it comes */
    tern_generate_result result;
    tern_finish finish;
    bool json, interrupted;
    struct tern_buf text; /* the reply, kept with --json */
    char last;            /* last byte written */
    struct tern_progress bar;
    int write_rc; /* why on_text stopped the generation */
    tern_error write_err;
};

/* ---- prompt ------------------------------------------------------------------------------------------------------ */

/* What is piped in, as people pipe it: the newline that ends it is not meant.  Nothing there: no prompt was given. */
static int read_pipe(struct run *r, tern_error *err)
{
    int rc = isatty(STDIN_FILENO) ? 0 : tern_setup_read(&r->prompt, "-", MAX_PROMPT_BYTES, err);
    if (rc == 0 && r->prompt.len == 0)
        return tern_cli_usage(err, "a prompt is missing: TEXT, -p TEXT, -f FILE or standard input");
    if (rc == 0 && r->prompt.p[r->prompt.len - 1] == '\n')
        r->prompt.p[--r->prompt.len] = 0;
    return rc;
}

static int read_prompt(struct run *r, tern_error *err)
{
    const struct tern_arg *text = &r->a->v[TERN_OPT_PROMPT], *file = &r->a->v[TERN_OPT_FILE];
    const bool alone = r->a->n_operands > 0;
    if ((text->n > 0) + (file->n > 0) + alone > 1)
        return tern_cli_usage(err, "%s exclude each other",
                              alone ? "a prompt that stands alone, -p and -f" : "-p and -f");
    if (r->a->v[TERN_OPT_RAW].n && r->a->v[TERN_OPT_SYSTEM].n)
        return tern_cli_usage(err, "--raw and --system exclude each other");
    const bool kept = r->a->v[TERN_OPT_PROMPT_CACHE].n > 0, cache = r->a->v[TERN_OPT_RUN_CACHE].n > 0;
    if (kept && cache)
        return tern_cli_usage(err, "--prompt-cache and --cache exclude each other");
    if ((kept || cache) && tern_setup_at_end(r->a))
        return tern_cli_usage(err, "--%s keeps pages as they are coded; it excludes --kv-when end",
                              kept ? "prompt-cache" : "cache");
    if (text->n)
        return tern_buf_add(&r->prompt, text->s, strlen(text->s), err);
    if (alone)
        return tern_buf_add(&r->prompt, r->a->operands[0], strlen(r->a->operands[0]), err);
    if (file->n)
        return tern_setup_read(&r->prompt, file->s, MAX_PROMPT_BYTES, err);
    return read_pipe(r, err);
}

/* A turn of no words is a slip, of a variable that is not set for one; a text may begin with nothing. */
static int read_whole_prompt(struct run *r, tern_error *err)
{
    const int rc = read_prompt(r, err);
    if (rc == 0 && !r->prompt.len && !r->a->v[TERN_OPT_RAW].n)
        return tern_cli_usage(err, "the prompt is empty");
    return rc;
}

static int render_prompt(struct run *r, tern_error *err)
{
    const char *nul = memchr(r->prompt.p, 0, r->prompt.len);
    if (nul)
        return tern_err_set(err, TERN_EINVAL, "the prompt has a NUL byte at offset %td; only --raw can take it",
                            nul - r->prompt.p);
    tern_chat_turn turns[2];
    size_t n = 0;
    if (r->a->v[TERN_OPT_SYSTEM].n)
        turns[n++] = (tern_chat_turn){"system", r->a->v[TERN_OPT_SYSTEM].s};
    turns[n++] = (tern_chat_turn){"user", r->prompt.p};
    return tern_model_chat_tokens(r->setup.model, turns, n, 0, true, &r->ids, err);
}

static int prompt_tokens(struct run *r, tern_error *err)
{
    int rc = 0;
    bool raw = r->a->v[TERN_OPT_RAW].n > 0;
    tern_setup_check_text(r->setup.model, &r->prompt, "the prompt");
    if (!raw && tern_model_get_info(r->setup.model)->has_template)
        return render_prompt(r, err);
    if (r->a->v[TERN_OPT_SYSTEM].n)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "--system needs a chat template and the model has none");
    TERN_TRY(tern_model_tokenize(r->setup.model, r->prompt.p, r->prompt.len,
                                 TERN_TEXT_SPECIAL | TERN_TEXT_BOS | TERN_TEXT_OPEN, &r->ids, err));
    if (!raw)
        tern_note("the model has no chat template: the prompt is continued as it stands (--raw)");
out:
    return rc;
}

static int check_prompt(const struct run *r, tern_error *err)
{
    int ctx = tern_engine_ctx(r->setup.engine);
    if (r->ids.len == 0)
        return tern_err_set(err, TERN_EINVAL, "the prompt is empty");
    if (r->ids.len > (size_t)ctx)
        return tern_err_set(err, TERN_ELIMIT, "the prompt has %zu tokens and the context holds %d (-c)", r->ids.len,
                            ctx);
    return 0;
}

static int on_prefill(void *user, int done, int total)
{
    return tern_progress_show(&((struct run *)user)->bar, done, total);
}

/* ---- --prompt-cache ---------------------------------------------------------------------------------------------- */

/* Cuts the sequence back to what it has in common with the prompt, whose last token is always run. */
static int keep_common(struct run *r, tern_error *err)
{
    int same = 0, n = tern_seq_length(r->seq);
    while (same < n && (size_t)same + 1 < r->ids.len && tern_seq_tokens(r->seq)[same] == r->ids.p[same])
        same++;
    int rc = same < n ? tern_seq_trim(r->seq, same, err) : 0;
    if (rc == TERN_EUNSUPPORTED) { /* a sliding window has moved on */
        tern_seq_free(r->seq);
        return tern_start_new(&r->seq, r->setup.engine, &r->setup.start, err);
    }
    r->n_kept = rc < 0 ? 0 : same;
    return rc;
}

/* What is there is a session of run's own, or nothing: a conversation's has its turns beside it, and would lose them.
 */
static int check_kept(const char *path, tern_error *err)
{
    int rc = 0;
    tern_error why = {0};
    struct tern_buf turns = {0};
    TERN_TRY(tern_buf_addf(&turns, err, "%s.turns.json", path));
    if (access(turns.p, F_OK) == 0)
        TERN_FAIL(err, TERN_EINVAL, "--prompt-cache %s: it is a conversation that chat saved; name another file", path);
    if ((rc = tern_seq_save_check(path, &why)) < 0)
        TERN_FAIL(err, rc, "--prompt-cache %.*s; name another file", (int)strcspn(why.msg, ";"), why.msg);
out:
    tern_buf_clear(&turns);
    return rc;
}

/* Reads the prompt but for its last token and keeps it: the sequence is the file's where that fits. */
static int open_kept(struct run *r, tern_error *err)
{
    int rc = 0;
    const char *path = r->a->v[TERN_OPT_PROMPT_CACHE].s;
    const int last = (int)r->ids.len - 1;
    r->bar.what = "prompt";
    tern_error why = {0};
    TERN_TRY(check_kept(path, err));
    if (access(path, F_OK) == 0 && tern_seq_load(&r->seq, r->setup.engine, path, &why) < 0)
        tern_note("%s; the prompt is read as a whole, and the file replaced", tern_shown(why.msg));
    if (!r->seq)
        TERN_TRY(tern_start_new(&r->seq, r->setup.engine, &r->setup.start, err));
    TERN_TRY(keep_common(r, err));
    TERN_TRY(tern_start_loaded(r->seq, r->setup.engine, &r->setup.start, err));
    if (r->n_kept < last) {
        const double start = tern_now();
        rc = tern_prefill(r->setup.engine, r->seq, r->ids.p + r->n_kept, last - r->n_kept, NULL, on_prefill, r, err);
        r->before_s = tern_now() - start;
        tern_progress_end(&r->bar);
        if (rc == TERN_ECANCELLED)
            rc = TERN_CLI_INTERRUPTED;
        TERN_TRY(rc);
    }
    if (r->n_kept < last || access(path, F_OK) != 0) {
        rc = last ? tern_seq_save(r->seq, path, &why) : 0;
        if (rc < 0)
            (void)tern_err_set(&r->unkept, rc, "the prompt is not kept: %s", why.msg); /* said behind the text */
    }
    if (r->n_kept)
        tern_note("%d of %d prompt tokens were kept in %s", r->n_kept, last + 1, tern_shown(path));
    rc = 0;
out:
    return rc;
}

/* ---- cache files ------------------------------------------------------------------------------------------------- */

static int open_cache(struct run *r, tern_error *err)
{
    const char *path = r->a->v[TERN_OPT_RUN_CACHE].s;
    const int n = (int)r->ids.len;
    int rc = tern_cache_start(&r->seq, r->setup.engine, path, r->ids.p, n, &r->n_kept, err);
    if (rc == 0 && r->n_kept)
        tern_note("%d of %d prompt tokens are in %s", r->n_kept, n, tern_shown(path));
    else if (rc == 0)
        tern_note("the prompt does not begin like %s: it is computed as a whole", tern_shown(path));
    return rc;
}

static int open_seq(struct run *r, tern_error *err)
{
    if (r->a->v[TERN_OPT_PROMPT_CACHE].n)
        return open_kept(r, err);
    if (!r->a->v[TERN_OPT_RUN_CACHE].n)
        return tern_start_new(&r->seq, r->setup.engine, &r->setup.start, err);
    if (r->a->v[TERN_OPT_KV_START].i)
        return tern_cli_usage(
            err, "--quantized-kv-start begins in 16 bits, and what --cache holds is coded: give one of them");
    return open_cache(r, err);
}

/* ---- --json-schema, --grammar, --regex --------------------------------------------------------------------------- */

static int compile_rule(const struct run *r, tern_grammar **out, const tern_grammar_reply *reply, tern_error *err)
{
    const char *p = r->rule_text.p ? r->rule_text.p : "";
    const size_t n = r->rule_text.len;
    switch (r->rule) {
    case SCHEMA:
        return tern_grammar_new_schema(out, p, n, reply, err);
    case GRAMMAR:
        return tern_grammar_new_gbnf(out, p, n, reply, err);
    default:
        return tern_grammar_new_regex(out, p, n, reply, err);
    }
}

/* Reads the rule and tries it, before anything slow is done. */
static int read_rule(struct run *r, tern_error *err)
{
    int rc = 0;
    const struct tern_arg *v = r->a->v, *schema = &v[TERN_OPT_JSON_SCHEMA], *grammar = &v[TERN_OPT_GRAMMAR],
                          *regex = &v[TERN_OPT_REGEX],
                          *given = schema->n    ? schema
                                   : grammar->n ? grammar
                                                : regex;
    tern_grammar *g = NULL;
    if (!given->n)
        return 0;
    if ((schema->n > 0) + (grammar->n > 0) + (regex->n > 0) > 1)
        return tern_cli_usage(err, "--json-schema, --grammar and --regex exclude each other");
    if (v[TERN_OPT_IGNORE_EOS].n)
        return tern_cli_usage(err, "--ignore-eos goes on where a text that follows a rule must end");
    r->rule = schema->n ? SCHEMA : grammar->n ? GRAMMAR : REGEX;
    const bool text =
        regex->n || (schema->n ? given->s[strspn(given->s, " \t\n\r")] == '{' : strstr(given->s, "::=") != NULL);
    if (text)
        TERN_TRY(tern_buf_add(&r->rule_text, given->s, strlen(given->s), err));
    else
        TERN_TRY(tern_setup_read(&r->rule_text, given->s, MAX_RULE_BYTES, err));
    TERN_TRY(compile_rule(r, &g, NULL, err));
out:
    tern_grammar_free(g);
    return rc;
}

static int on_text(void *user, const char *text, size_t n);

static int on_reply(void *user, const tern_reply_event *e)
{
    return e->kind == TERN_REPLY_CONTENT ? on_text(user, e->text, e->n) : 0;
}

/* Puts the rule to work on the reply. */
static int apply_rule(struct run *r, tern_error *err)
{
    int rc = 0;
    tern_grammar *g = NULL;
    const bool chat = !r->a->v[TERN_OPT_RAW].n && tern_model_get_info(r->setup.model)->has_template;
    const tern_grammar_reply reply = {r->setup.model, r->ids.p, (int)r->ids.len};
    if (r->rule == FREE)
        return 0;
    TERN_TRY(compile_rule(r, &g, chat ? &reply : NULL, err));
    TERN_TRY(tern_constraint_new(&r->constraint, r->setup.model, g, err));
    r->params.constraint = &r->constraint;
    if (chat)
        TERN_TRY(tern_reply_new(&r->reply, r->setup.model,
                                &(tern_reply_params){.calls = "off", .on_event = on_reply, .user = r}, err));
    r->params.reply = r->reply;
out:
    tern_grammar_free(g);
    return rc;
}

/* ---- generation -------------------------------------------------------------------------------------------------- */

static int on_text(void *user, const char *text, size_t n)
{
    struct run *r = user;
    tern_progress_end(&r->bar);
    if (n && r->json) {
        r->write_rc = tern_buf_add(&r->text, text, n, &r->write_err);
    } else if (n) {
        r->last = text[n - 1];
        r->write_rc = tern_out_write(text, n, &r->write_err);
        if (r->write_rc == 0)
            r->write_rc = tern_out_flush(&r->write_err);
    }
    return r->write_rc < 0 || tern_signals_interrupted();
}

static int generate(struct run *r, tern_error *err)
{
    r->params.max_tokens = (int)r->a->v[TERN_OPT_MAX_TOKENS].i;
    r->params.ignore_eog = r->a->v[TERN_OPT_IGNORE_EOS].n > 0;
    r->params.continues = r->a->v[TERN_OPT_RAW].n || !tern_model_get_info(r->setup.model)->has_template;
    r->params.on_text = on_text;
    r->params.on_prefill = on_prefill;
    r->params.user = r;
    r->bar.what = "prompt";
    r->result.last = -1;
    const int in = tern_seq_length(r->seq); /* of the prompt, with --prompt-cache and --cache */
    int rc = tern_generate(r->setup.engine, r->seq, r->ids.p + in, (int)r->ids.len - in, &r->params, &r->result, err);
    r->result.n_prompt += in - r->n_kept;
    r->result.prompt_s += r->before_s;
    r->interrupted = tern_signals_interrupted();
    tern_signals_watch(NULL);
    tern_progress_end(&r->bar);
    if (r->write_rc < 0) {
        if (err)
            *err = r->write_err;
        return r->write_rc;
    }
    return rc == TERN_ECANCELLED ? 0 : rc;
}

/* ---- report ------------------------------------------------------------------------------------------------------ */

static const char *finish_text(const struct run *r)
{
    if (r->interrupted)
        return "cancelled";
    switch (r->result.finish) {
    case TERN_FINISH_LENGTH:
        return "length";
    case TERN_FINISH_EOG:
    case TERN_FINISH_STOP:
        return "stop";
    case TERN_FINISH_CONTEXT:
        return "context";
    case TERN_FINISH_CALLBACK:
    case TERN_FINISH_CANCELLED:
    case TERN_FINISH_TIMEOUT:
    case TERN_FINISH_ERROR:
        break;
    }
    return "callback";
}

static double rate(int n, double seconds)
{
    return n > 0 && seconds > 0 ? n / seconds : 0;
}

static int print_json(const struct run *r, tern_error *err)
{
    const tern_generate_result *g = &r->result;
    tern_memory memory;
    tern_engine_memory(r->setup.engine, &memory);
    json_t *usage = json_pack("{si si si}", "prompt_tokens", g->n_prompt, "completion_tokens", g->n_generated,
                              "total_tokens", g->n_prompt + g->n_generated);
    json_t *timings = json_pack("{sf sf sf sf sf}", "load_s", r->setup.load_s, "prompt_s", g->prompt_s,
                                "prompt_tokens_per_s", rate(g->n_prompt, g->prompt_s), "decode_s", g->decode_s,
                                "decode_tokens_per_s", rate(g->n_generated, g->decode_s));
    json_t *kv = tern_report_kv(tern_engine_plan(r->setup.engine), tern_setup_at_end(r->a));
    (void)json_object_update_new(
        kv, json_pack("{sI sI sI sI sI}", "bytes", (json_int_t)memory.kv_bytes, "f16_bytes",
                      (json_int_t)memory.kv_f16_bytes, "full_bytes", (json_int_t)memory.kv_full_bytes, "full_f16_bytes",
                      (json_int_t)memory.kv_full_f16_bytes, "state_bytes", (json_int_t)memory.state_bytes));
    if (r->setup.start.from)
        (void)json_object_set_new(kv, "start", json_integer(r->setup.start.from));
    json_t *drafts = json_pack("{so si si}", "by", tern_json_text(r->a->v[TERN_OPT_DRAFT].s), "guesses", g->n_drafted,
                               "accepted", g->n_accepted);
    json_t *text = json_stringn(r->text.p ? r->text.p : "", r->text.len);
    json_t *report = json_pack("{so ss so so si so so so}", "text", text, "finish_reason", finish_text(r), "usage",
                               usage, "timings", timings, "ctx", tern_engine_ctx(r->setup.engine), "kv", kv, "drafts",
                               drafts, "sampling", tern_sampling_json(&r->params.sampler));
    tern_expert_stats experts;
    tern_model_experts(r->setup.model, &experts);
    if (experts.limit_bytes)
        (void)json_object_set_new(report, "experts", tern_experts_json(&(tern_expert_stats){0}, &experts));
    return tern_report_print(tern_report_json("run", r->setup.model, tern_engine_threads(r->setup.engine)), report,
                             err);
}

/* Does a note on stderr land right behind the answer? */
static bool notes_follow_answer(void)
{
    struct stat out, note;
    return isatty(STDOUT_FILENO) || (fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &note) == 0 &&
                                     out.st_dev == note.st_dev && out.st_ino == note.st_ino);
}

static int report(struct run *r, tern_error *err)
{
    if (r->json)
        return print_json(r, err);
    int rc = 0;
    const tern_generate_result *g = &r->result;
    if (r->last && r->last != '\n' && notes_follow_answer())
        TERN_TRY(tern_out_write("\n", 1, err));
    TERN_TRY(tern_out_flush(err));
    tern_note("prompt %d tokens, %.1f/s; text %d tokens, %.1f/s; %s; peak memory %s", g->n_prompt,
              rate(g->n_prompt, g->prompt_s), g->n_generated, rate(g->n_generated, g->decode_s),
              tern_kv_use_text(r->setup.engine, 0), tern_size_text((double)tern_peak_memory()));
    tern_experts_note(r->setup.model);
    if (!r->interrupted && r->rule != FREE && g->finish != TERN_FINISH_EOG)
        tern_note("the text was cut before its rule let it end");
    if (g->n_drafted)
        tern_note("%d of %d guesses were right (--draft %s)", g->n_accepted, g->n_drafted,
                  tern_shown(r->a->v[TERN_OPT_DRAFT].s));
    if (!r->interrupted && g->finish == TERN_FINISH_CONTEXT)
        tern_note("the context of %d tokens is full", tern_engine_ctx(r->setup.engine));
out:
    return rc;
}

int tern_cmd_run(const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    struct run r = {.a = a, .json = a->v[TERN_OPT_JSON].n > 0};
    TERN_TRY(read_whole_prompt(&r, err));
    TERN_TRY(read_rule(&r, err));
    TERN_TRY(tern_setup_sampler(&r.params.sampler, &r.bias, a, err));
    TERN_TRY(tern_setup_stop(&r.params, a, err));
    TERN_TRY(tern_setup_model(&r.setup, a, a->v[TERN_OPT_MODEL].s, err));
    TERN_TRY(tern_setup_stop_tokens(&r.params, &r.stop_ids, a, r.setup.model, err));
    TERN_TRY(tern_setup_recommended(&r.params.sampler, a, r.setup.model, !r.json, err));
    TERN_TRY(prompt_tokens(&r, err));
    TERN_TRY(tern_setup_engine(&r.setup, a, (int)a->v[TERN_OPT_CTX].i, 1, err));
    TERN_TRY(check_prompt(&r, err));
    TERN_TRY(apply_rule(&r, err));
    tern_signals_watch(r.setup.engine); /* before anything that tells the user to wait */
    if (a->v[TERN_OPT_VERBOSE].n) {
        tern_setup_print(&r.setup);
        if (r.params.sampler.temperature > 0)
            tern_note("seed %llu", (unsigned long long)r.params.sampler.seed);
    }
    TERN_TRY(open_seq(&r, err));
    TERN_TRY(generate(&r, err));
    TERN_TRY(report(&r, err));
    if (r.interrupted)
        rc = TERN_CLI_INTERRUPTED;
    else if (r.unkept.code)
        TERN_FAIL(err, r.unkept.code, "%s", r.unkept.msg);
out:
    tern_signals_watch(NULL);
    tern_seq_free(r.seq);
    tern_reply_free(r.reply);
    if (r.constraint.free)
        r.constraint.free(r.constraint.state);
    tern_buf_clear(&r.rule_text);
    tern_setup_clear(&r.setup);
    tern_bias_clear(&r.bias);
    tern_tokens_clear(&r.stop_ids);
    tern_tokens_clear(&r.ids);
    tern_buf_clear(&r.prompt);
    tern_buf_clear(&r.text);
    return rc;
}

int tern_cmd_cache_build(const struct tern_args *a, tern_error *err)
{
    int rc = 0, kept = 0;
    struct run r = {.a = a};
    const char *path = a->v[TERN_OPT_CACHE_OUT].s;
    TERN_TRY(read_whole_prompt(&r, err));
    TERN_TRY(tern_setup_model(&r.setup, a, a->v[TERN_OPT_MODEL].s, err));
    TERN_TRY(prompt_tokens(&r, err));
    TERN_TRY(tern_setup_engine(&r.setup, a, (int)a->v[TERN_OPT_CTX].i, 1, err));
    TERN_TRY(check_prompt(&r, err));
    tern_signals_watch(r.setup.engine);
    r.bar.what = "prompt";
    rc = tern_cache_build(r.setup.engine, r.ids.p, (int)r.ids.len, path, on_prefill, &r, &kept, err);
    tern_progress_end(&r.bar);
    if (rc == TERN_ECANCELLED)
        rc = TERN_CLI_INTERRUPTED;
    TERN_TRY(rc);
    tern_note("%s holds %d of %zu prompt tokens", tern_shown(path), kept, r.ids.len);
out:
    tern_signals_watch(NULL);
    tern_setup_clear(&r.setup);
    tern_tokens_clear(&r.ids);
    tern_buf_clear(&r.prompt);
    return rc;
}
