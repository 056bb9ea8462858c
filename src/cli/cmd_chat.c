/* tern chat: the loop of messages, replies and slash commands. */
#include <ctype.h>
#include <string.h>

#include "base/mem.h"
#include "cli/chat.h"

#define CHAT_TEMPERATURE 0.6f
#define CHAT_MIN_P       0.1f
#define CHAT_PENALTY     1.1f
#define CHAT_TOKENS      4096 /* of one reply */

struct chat {
    const struct tern_args *a;
    struct tern_setup setup;
    struct tern_session session;
    struct tern_input *input;
    struct tern_bias bias;
    tern_tokens stop_ids;
    tern_generate_params params;
    tern_generate_result last; /* of the last reply, for /stats */
    bool replied;              /* there was one */
    struct tern_chat_loop loop;
    enum { FULL_STOP, FULL_DROP, FULL_SHIFT } when_full;
    struct tern_chat_vars vars;
    struct tern_chat_reply reply;
    struct tern_progress bar;
    bool quit;
    bool failed; /* a command or message failed: the status tells a script that fed us through a pipe */
};

/* ---- replies ----------------------------------------------------------------------------------------------------- */

static int on_prefill(void *user, int done, int total)
{
    return tern_progress_show(&((struct chat *)user)->bar, done, total);
}

/* Between replies a Ctrl-C must not end a session that a person is typing into. */
static void await_user(const struct chat *c)
{
    if (tern_input_interactive(c->input))
        tern_signals_hold();
    else
        tern_signals_watch(NULL);
}

static int new_reply(struct chat *c, tern_error *err)
{
    const char *format = c->a->v[TERN_OPT_TOOL_FORMAT].s;
    const tern_reply_params p = {.calls = c->vars.tools ? format : "off",
                                 .tools = c->vars.tools,
                                 .seed = c->session.seed,
                                 .on_event = tern_chat_reply_event,
                                 .user = &c->reply};
    return tern_reply_new(&c->params.reply, c->setup.model, &p, err);
}

/* Runs the model on the pending tokens; what it says ends up in c->reply, behind what is there already. */
static int generate(struct chat *c, const tern_tokens *ids, bool *interrupted, tern_error *err)
{
    int rc = 0;
    const int length = tern_seq_length(c->session.seq);
    c->params.on_prefill = on_prefill;
    c->params.user = c;
    c->params.sampler.seed = c->session.seed;
    c->bar.what = "prompt";
    c->last = (tern_generate_result){.last = -1};
    c->reply.bar = &c->bar;
    c->reply.seq = c->session.seq;
    tern_chat_loop_begin(&c->loop, length + (int)ids->len);
    TERN_TRY(new_reply(c, err));
    tern_signals_watch(c->setup.engine);
    do /* a Ctrl-C that came just after the last reply ended cancels this one before its first step: begin again */
        rc = tern_generate(c->setup.engine, c->session.seq, ids->p, (int)ids->len, &c->params, &c->last, err);
    while (rc == TERN_ECANCELLED && !tern_signals_interrupted());
    *interrupted = tern_signals_interrupted();
    if (rc == TERN_ECANCELLED) /* what was held back belongs to the reply all the same */
        rc = tern_reply_finish(c->params.reply, err);
    await_user(c);
    tern_progress_end(&c->bar);
    if (c->reply.write_rc < 0) {
        *err = c->reply.write_err;
        rc = c->reply.write_rc;
    }
    rc = rc < 0 ? rc : 0;
    c->replied = true;
out:
    tern_reply_free(c->params.reply);
    c->params.reply = NULL;
    return rc;
}

/* Takes the unanswered message back, so that turns and sequence agree again. */
static void undo_message(struct chat *c, int length)
{
    struct tern_session *s = &c->session;
    tern_session_drop(s);
    if (tern_seq_trim(s->seq, length, NULL) < 0)
        s->exact = false;
}

/* Asks for the result of the next call, if there is one without. */
static void ask_for_result(const struct chat *c)
{
    const json_t *call = tern_session_open_call(&c->session);
    const char *name = json_string_value(json_object_get(json_object_get(call, "function"), "name"));
    if (call)
        tern_note("the next message is the result of %s", name ? tern_shown(name) : "the call");
}

/* What a reply says over and over is not part of the conversation, or the next one goes on with it. */
static int cut_loop(struct chat *c, tern_error *err)
{
    int rc = 0;
    struct tern_buf once = {0};
    const int n = tern_chat_loop_once(&c->loop);
    if (c->reply.calls || c->reply.reasoning.len)
        return 0;
    TERN_TRY(tern_session_text(&c->session, c->loop.from, n, &once, err));
    if (once.len && once.len <= c->reply.content.len && memcmp(once.p, c->reply.content.p, once.len) == 0)
        c->reply.content.p[c->reply.content.len = once.len] = 0;
out:
    tern_buf_clear(&once);
    return rc;
}

static void tell_end(const struct chat *c, bool interrupted)
{
    const int ctx = tern_engine_ctx(c->setup.engine);
    if (interrupted)
        tern_note("stopped");
    else if (c->loop.period)
        tern_note(
            "the reply repeated itself and was ended; the repetitions are forgotten (--loops allow lets them go on)");
    else if (c->last.finish == TERN_FINISH_CONTEXT && c->when_full == FULL_STOP)
        tern_note("the context of %d tokens is full: /reset begins a new conversation", ctx);
    else if (c->last.finish == TERN_FINISH_CONTEXT)
        tern_note("the context of %d tokens is full; the next message makes room", ctx);
    else if (c->last.finish == TERN_FINISH_LENGTH)
        tern_note("the reply reached its %d tokens (-n)", c->params.max_tokens);
}

static int finish_reply(struct chat *c, int n_generated, bool interrupted, tern_error *err)
{
    int rc = 0;
    struct tern_session *s = &c->session;
    json_t *more;
    TERN_TRY(tern_chat_reply_end(&c->reply, err));
    if (c->loop.period)
        TERN_TRY(cut_loop(c, err));
    TERN_TRY(tern_chat_reply_more(&c->reply, &more, err));
    TERN_TRY(tern_session_add_reply(s, c->reply.content.p ? c->reply.content.p : "", more, n_generated, err));
    s->seed++;
    TERN_TRY(tern_out_flush(err));
    tell_end(c, interrupted);
    ask_for_result(c);
out:
    return rc;
}

/* The message as a turn: a call's result where one is waited for.  *complete: the model may answer. */
static int add_message(struct chat *c, const char *message, bool *complete, tern_error *err)
{
    int rc = 0;
    struct tern_session *s = &c->session;
    const json_t *call = tern_session_open_call(s);
    json_t *more = NULL;
    if (call) {
        json_t *id = json_object_get(call, "id"), *name = json_object_get(json_object_get(call, "function"), "name");
        more = json_pack("{sO* sO*}", "tool_call_id", id, "name", name);
        if (!more)
            return tern_err_set(err, TERN_ENOMEM, "cannot allocate a result");
    }
    TERN_TRY(tern_session_add(s, call ? "tool" : "user", message, more, err));
    *complete = !call || !tern_session_open_call(s);
out:
    return rc;
}

/* ---- a context that is full -------------------------------------------------------------------------------------- */

static void tell_forgotten(const struct chat *c, int n)
{
    if (n)
        tern_note("the context of %d tokens is full: forgot the %d oldest exchange%s (--context-full)",
                  tern_engine_ctx(c->setup.engine), n, n == 1 ? "" : "s");
}

/* Room that a reply is to find: a quarter of the context, or less when it may not get that long. */
static int reserve(const struct chat *c)
{
    int quarter = tern_engine_ctx(c->setup.engine) / 4;
    return c->params.max_tokens > 0 && c->params.max_tokens < quarter ? c->params.max_tokens : quarter;
}

/* The pending tokens, after old turns have made room for them and a reply. */
static int pending_in_room(struct chat *c, tern_tokens *ids, tern_error *err)
{
    int rc = 0, forgotten, ctx = tern_engine_ctx(c->setup.engine);
    struct tern_session *s = &c->session;
    TERN_TRY(tern_session_pending(s, ids, err));
    size_t total = (size_t)tern_seq_length(s->seq) + ids->len;
    if (c->when_full == FULL_STOP && total > (size_t)ctx)
        TERN_FAIL(err, TERN_ELIMIT,
                  "the conversation and this message have %zu tokens and the context holds %d: /reset begins anew",
                  total, ctx);
    if (c->when_full == FULL_STOP || total + (size_t)reserve(c) <= (size_t)ctx)
        goto out;
    TERN_TRY(tern_session_shorten(s, ctx / 2, ctx - 1, &forgotten, err));
    tell_forgotten(c, forgotten);
    ids->len = 0;
    TERN_TRY(tern_session_pending(s, ids, err));
out:
    return rc;
}

/* The reply goes on in a context that has room again.  n: tokens of it so far. */
static int go_on(struct chat *c, int n, bool *interrupted, tern_error *err)
{
    int rc = 0, forgotten, ctx = tern_engine_ctx(c->setup.engine), length = tern_seq_length(c->session.seq);
    struct tern_session *s = &c->session;
    tern_tokens ids = {0};
    const int tail = n < ctx / 4 ? n : ctx / 4;
    int32_t *end = NULL;
    TERN_TRY(tern_alloc(&end, (size_t)tail + 1, sizeof *end, err));
    memcpy(end, tern_seq_tokens(s->seq) + length - tail, (size_t)tail * sizeof *end);
    TERN_TRY(tern_session_shorten(s, ctx / 2 - tail, ctx - 1 - tail, &forgotten, err));
    tell_forgotten(c, forgotten);
    TERN_TRY(tern_session_resume(s, end, tail, &ids, err));
    TERN_TRY(generate(c, &ids, interrupted, err));
out:
    tern_free(end);
    tern_tokens_clear(&ids);
    return rc;
}

/* Has a reply of content alone filled the context, so that it can go on in another? */
static bool goes_on(const struct chat *c, int left, bool interrupted)
{
    return c->when_full == FULL_SHIFT && c->last.finish == TERN_FINISH_CONTEXT && !interrupted && !c->loop.period &&
           left != 0 && !c->reply.calls && !c->reply.reasoning.len;
}

/* The model answers the turns so far.  *kept: the reply is one of them now. */
static int respond(struct chat *c, bool *kept, tern_error *err)
{
    int rc = 0, n = 0;
    const int most = c->params.max_tokens;
    bool interrupted = false;
    tern_tokens ids = {0};
    tern_generate_result all;
    *kept = false;
    TERN_TRY(pending_in_room(c, &ids, err));
    tern_chat_reply_begin(&c->reply);
    TERN_TRY(generate(c, &ids, &interrupted, err));
    all = c->last;
    n = c->last.n_generated;
    while (goes_on(c, most < 0 ? -1 : most - n, interrupted)) {
        if (most > 0)
            c->params.max_tokens = most - n;
        rc = go_on(c, n, &interrupted, err);
        c->params.max_tokens = most;
        TERN_TRY(rc);
        n += c->last.n_generated;
        all.n_prompt += c->last.n_prompt;
        all.prompt_s += c->last.prompt_s;
        all.decode_s += c->last.decode_s;
    }
    all.finish = c->last.finish;
    all.n_generated = n;
    c->last = all;
    if (interrupted && n == 0)
        goto out;
    TERN_TRY(finish_reply(c, n, interrupted, err));
    *kept = true;
out:
    tern_tokens_clear(&ids);
    return rc;
}

static int answer(struct chat *c, const char *message, tern_error *err)
{
    int rc = 0;
    bool complete = false, kept = false;
    struct tern_session *s = &c->session;
    int length = tern_seq_length(s->seq);
    TERN_TRY(add_message(c, message, &complete, err));
    if (!complete) {
        ask_for_result(c);
        return 0;
    }
    rc = respond(c, &kept, err);
    if (rc == 0 && !kept)
        tern_note("stopped before the reply; the message is forgotten");
    if (!kept && strcmp(s->turns[s->n_turns - 1].role, "assistant") != 0)
        undo_message(c, length);
out:
    return rc;
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

static int do_help(struct chat *c, const char *arg, tern_error *err)
{
    (void)c, (void)arg, (void)err;
    (void)fputs("/help        this list\n"
                "/reset       forget the conversation (a system turn stays); /clear too\n"
                "/undo        forget the last message and its reply\n"
                "/retry       another reply to the last message\n"
                "/save FILE   write the session: tokens and KV to FILE, the turns to FILE.turns.json\n"
                "/load FILE   restore a session from both files, checked, without reading it again\n"
                "/kv PLAN     another KV plan for the conversation, where it stands, and what follows\n"
                "/stats       length, KV memory and speed\n"
                "/quit        leave; /exit and the end of input, too\n"
                "//TEXT       a message that begins with a slash\n"
                "A line that ends in \\ continues; \"\"\" on lines of their own enclose a message of several lines.\n",
                stderr);
    return 0;
}

static int do_reset(struct chat *c, const char *arg, tern_error *err)
{
    (void)arg;
    return tern_session_reset(&c->session, err);
}

static int do_save(struct chat *c, const char *arg, tern_error *err)
{
    int rc = tern_session_save(&c->session, arg, err);
    if (rc == 0)
        tern_note("saved %d tokens to %s", tern_seq_length(c->session.seq), arg);
    return rc;
}

static int do_load(struct chat *c, const char *arg, tern_error *err)
{
    int rc = tern_session_load(&c->session, arg, err);
    if (rc == 0 && c->a->v[TERN_OPT_SYSTEM].n)
        tern_note("the session keeps the system turn that it was saved with; --system changes nothing in it");
    if (rc == 0)
        tern_note("restored %d tokens and %zu turns from %s", tern_seq_length(c->session.seq), c->session.n_turns, arg);
    if (rc == 0)
        ask_for_result(c);
    return rc;
}

static int do_undo(struct chat *c, const char *arg, tern_error *err)
{
    (void)arg;
    struct tern_buf message = {0};
    if (!tern_session_undo(&c->session, &message))
        return tern_err_set(err, TERN_EINVAL, "there is nothing to undo");
    tern_note("forgot \"%.60s%s\" and what followed; %zu turns are left", tern_shown(message.p ? message.p : ""),
              message.len > 60 ? "..." : "", c->session.n_turns);
    tern_buf_clear(&message);
    ask_for_result(c);
    return 0;
}

static int do_retry(struct chat *c, const char *arg, tern_error *err)
{
    (void)arg;
    bool kept;
    if (!tern_session_unreply(&c->session))
        return tern_err_set(err, TERN_EINVAL, "there is no reply to try again");
    int rc = respond(c, &kept, err);
    if (rc == 0 && !kept)
        tern_note("stopped before the reply; /retry asks again, /undo takes the message back");
    return rc;
}

/* What became of the cache, and what did not come back. */
static void tell_recoded(const tern_recoded *r, const char *spec)
{
    tern_note("--kv %s from here on: %d tokens, KV %s, before %s", tern_shown(spec), r->n_tokens,
              tern_size_text((double)r->bytes_after), tern_size_text((double)r->bytes_before));
    if (r->decoded)
        tern_note("pages were codes before: their values are what those codes made of them, and what they had rounded "
                  "away stays lost (/reset begins a conversation in this plan)");
}

static int do_kv(struct chat *c, const char *arg, tern_error *err)
{
    int rc = 0, plan;
    tern_recoded r;
    TERN_TRY(tern_kv_check(arg, err));
    TERN_TRY(tern_setup_guard_plan(arg, err));
    TERN_TRY(
        tern_engine_add_plan(c->setup.engine, arg, strcmp(c->a->v[TERN_OPT_KV_POLICY].s, "strict") == 0, &plan, err));
    TERN_TRY(tern_seq_recode(c->session.seq, plan, &r, err));
    c->session.start = (struct tern_start){.plan = plan};
    tern_plan_exceptions(tern_engine_plan_at(c->setup.engine, plan));
    if (r.plan_before == plan)
        tern_note("the conversation has that plan already");
    else
        tell_recoded(&r, arg);
out:
    return rc;
}

static int do_stats(struct chat *c, const char *arg, tern_error *err)
{
    (void)arg, (void)err;
    tern_memory m;
    tern_engine_memory(c->setup.engine, &m);
    const tern_generate_result *g = &c->last;
    tern_note("%d of %d tokens, %zu turns; %s; peak memory %s", tern_seq_length(c->session.seq),
              tern_engine_ctx(c->setup.engine), c->session.n_turns,
              tern_kv_use_text(c->setup.engine, tern_seq_plan(c->session.seq)),
              tern_size_text((double)tern_peak_memory()));
    if (m.state_bytes)
        tern_note("recurrent states %s, those that are kept for going back among them",
                  tern_size_text((double)m.state_bytes));
    tern_experts_note(c->setup.model);
    if (!c->replied)
        return 0;
    tern_note("last reply: %d prompt tokens in %.3f s, %d tokens in %.3f s (%.1f/s)", g->n_prompt, g->prompt_s,
              g->n_generated, g->decode_s, g->decode_s > 0 ? g->n_generated / g->decode_s : 0.0);
    if (g->n_drafted)
        tern_note("%d of %d guesses were right (--draft %s)", g->n_accepted, g->n_drafted,
                  tern_shown(c->a->v[TERN_OPT_DRAFT].s));
    return 0;
}

static int do_quit(struct chat *c, const char *arg, tern_error *err)
{
    (void)arg, (void)err;
    c->quit = true;
    return 0;
}

static const struct {
    const char *name;
    const char *wants; /* as its argument; NULL: none */
    int (*run)(struct chat *c, const char *arg, tern_error *err);
} slash_commands[] = {
    {"/help", NULL, do_help},
    {"/reset", NULL, do_reset},
    {"/clear", NULL, do_reset},
    {"/undo", NULL, do_undo},
    {"/retry", NULL, do_retry},
    {"/save", "the name of a file", do_save},
    {"/load", "the name of a file", do_load},
    {"/kv", "a plan, such as t4 or f16", do_kv},
    {"/stats", NULL, do_stats},
    {"/quit", NULL, do_quit},
    {"/exit", NULL, do_quit},
};

static int slash_command(struct chat *c, char *line, tern_error *err)
{
    size_t n = strcspn(line, " \t");
    char *arg = line + n;
    while (*arg == ' ' || *arg == '\t')
        *arg++ = 0;
    for (size_t len = strlen(arg); len && isspace((unsigned char)arg[len - 1]); len--)
        arg[len - 1] = 0;
    for (size_t i = 0; i < sizeof slash_commands / sizeof *slash_commands; i++) {
        if (strcmp(slash_commands[i].name, line) != 0)
            continue;
        const char *wants = slash_commands[i].wants;
        if (*arg && !wants)
            return tern_err_set(err, TERN_EINVAL, "%s takes no argument", line);
        if (!*arg && wants)
            return tern_err_set(err, TERN_EINVAL, "%s needs %s", line, wants);
        return slash_commands[i].run(c, arg, err);
    }
    return tern_err_set(err, TERN_EINVAL, "unknown command %s; /help lists them, // begins a message with a slash",
                        tern_shown(line));
}

/* ---- loop -------------------------------------------------------------------------------------------------------- */

/* Failures of one message or command are told and the session goes on; only a broken output ends it. */
static int handle(struct chat *c, struct tern_buf *message, tern_error *err)
{
    char *text = message->p ? message->p : "";
    tern_error e = {0};
    int rc;
    if (strlen(text) != message->len)
        rc = tern_err_set(&e, TERN_EINVAL, "the message has a NUL byte at offset %zu", strlen(text));
    else if (!text[strspn(text, " \t\r\n\v\f")]) /* a key that was hit by chance is no message */
        return 0;
    else if (text[0] == '/' && text[1] != '/')
        rc = slash_command(c, text, &e);
    else
        rc = answer(c, text[0] == '/' ? text + 1 : text, &e);
    if (rc == 0)
        return 0;
    if (c->reply.write_rc < 0 || rc == TERN_CLI_REPORTED || !c->session.seq) {
        *err = e;
        return rc;
    }
    tern_note("%s", e.msg[0] ? e.msg : tern_err_text(rc));
    c->failed = true;
    return 0;
}

static int converse(struct chat *c, tern_error *err)
{
    int rc = 0, idle_interrupts = 0;
    struct tern_buf message = {0};
    while (!c->quit) {
        TERN_TRY(tern_input_message(c->input, &message, err));
        if (rc == TERN_INPUT_END)
            break;
        if (rc == TERN_INPUT_INTERRUPTED) {
            if (++idle_interrupts == 2) {
                rc = TERN_CLI_INTERRUPTED;
                goto out;
            }
            tern_note("Ctrl-C once more or /quit leaves");
            continue;
        }
        idle_interrupts = 0;
        TERN_TRY(handle(c, &message, err));
    }
    rc = c->failed && !tern_input_interactive(c->input) ? TERN_CLI_REPORTED : 0;
out:
    tern_buf_clear(&message);
    return rc;
}

/* Where neither the user nor the model says anything: a model that always takes the likeliest token repeats itself. */
static bool default_sampling(tern_sampler_params *p, const struct tern_args *a, const tern_model *m)
{
    const struct tern_arg *v = a->v;
    tern_sampler_params said = *p;
    if (tern_model_recommends(m, &said) || v[TERN_OPT_TEMP].n)
        return false;
    p->temperature = CHAT_TEMPERATURE;
    if (!v[TERN_OPT_TOP_K].n && !v[TERN_OPT_TOP_P].n && !v[TERN_OPT_MIN_P].n)
        p->min_p = CHAT_MIN_P;
    if (!v[TERN_OPT_REPEAT_PENALTY].n && v[TERN_OPT_PENALTY_LAST].i != 0)
        p->repetition_penalty = CHAT_PENALTY;
    return true;
}

/* -n; else half the context and at most CHAT_TOKENS. */
static int reply_limit(const struct tern_args *a, int ctx)
{
    const struct tern_arg *n = &a->v[TERN_OPT_CHAT_MAX_TOKENS];
    return n->n ? (int)n->i : ctx / 2 < CHAT_TOKENS ? ctx / 2 : CHAT_TOKENS;
}

int tern_cmd_chat(const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    struct chat c = {.a = a};
    TERN_TRY(tern_setup_sampler(&c.params.sampler, &c.bias, a, err));
    TERN_TRY(tern_setup_stop(&c.params, a, err));
    if (a->v[TERN_OPT_CHAT_MAX_TOKENS].n && !a->v[TERN_OPT_CHAT_MAX_TOKENS].i)
        return tern_cli_usage(err, "-n must be 1 to %d, or -1 for no limit, not 0", INT32_MAX);
    const char *full = a->v[TERN_OPT_CONTEXT_FULL].s;
    c.when_full = strcmp(full, "stop") == 0 ? FULL_STOP : strcmp(full, "drop") == 0 ? FULL_DROP : FULL_SHIFT;
    if (strcmp(a->v[TERN_OPT_LOOPS].s, "stop") == 0)
        c.reply.loop = &c.loop;
    TERN_TRY(tern_setup_model(&c.setup, a, a->v[TERN_OPT_MODEL].s, err));
    if (!tern_model_get_info(c.setup.model)->has_template)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s has no chat template; use tern run", a->v[TERN_OPT_MODEL].s);
    const bool by_default = default_sampling(&c.params.sampler, a, c.setup.model);
    TERN_TRY(tern_setup_recommended(&c.params.sampler, a, c.setup.model, true, err));
    TERN_TRY(tern_setup_stop_tokens(&c.params, &c.stop_ids, a, c.setup.model, err));
    TERN_TRY(tern_chat_vars_init(&c.vars, a, c.setup.model, err));
    c.reply.hide_reasoning = a->v[TERN_OPT_HIDE_REASONING].n > 0;
    TERN_TRY(new_reply(&c, err)); /* a format that does not exist is told now */
    tern_reply_free(c.params.reply);
    c.params.reply = NULL;
    /* Two sequences: /load reads the new one before it lets the old one go. */
    TERN_TRY(tern_setup_engine(&c.setup, a, (int)a->v[TERN_OPT_CTX].i, 2, err));
    c.params.max_tokens = reply_limit(a, tern_engine_ctx(c.setup.engine));
    if (a->v[TERN_OPT_VERBOSE].n) {
        tern_setup_print(&c.setup);
        if (c.params.sampler.temperature > 0)
            tern_note("seed %llu", (unsigned long long)c.params.sampler.seed);
    }
    TERN_TRY(tern_session_init(&c.session, &c.setup, a->v[TERN_OPT_SYSTEM].s, c.vars.vars, c.params.sampler.seed, err));
    TERN_TRY(tern_input_new(&c.input, err));
    if (by_default && tern_input_interactive(c.input))
        tern_note("the model recommends no sampling: %s; --temp 0 always takes the likeliest token",
                  tern_sampling_text(&c.params.sampler));
    if (tern_input_interactive(c.input))
        tern_note("%s; /help lists the commands", tern_shown(tern_model_get_info(c.setup.model)->path));
    await_user(&c);
    TERN_TRY(converse(&c, err));
out:
    tern_input_free(c.input);
    tern_session_clear(&c.session);
    tern_setup_clear(&c.setup);
    tern_bias_clear(&c.bias);
    tern_tokens_clear(&c.stop_ids);
    tern_chat_reply_clear(&c.reply);
    tern_chat_vars_clear(&c.vars);
    return rc;
}
