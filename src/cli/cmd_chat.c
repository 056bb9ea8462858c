/* tern chat: the loop of messages, replies and slash commands. */
#include <ctype.h>
#include <string.h>

#include "cli/chat.h"

struct chat {
    const struct tern_args *a;
    struct tern_setup setup;
    struct tern_session session;
    struct tern_input *input;
    struct tern_bias bias;
    tern_generate_params params;
    tern_generate_result last; /* of the last reply, for /stats */
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

/* Runs the model on the pending tokens; what it says ends up in c->reply. */
static int generate(struct chat *c, const tern_tokens *ids, bool *interrupted, tern_error *err)
{
    int rc = 0;
    c->params.on_prefill = on_prefill;
    c->params.user = c;
    c->params.sampler.seed = c->session.seed;
    c->bar.what = "prompt";
    c->last = (tern_generate_result){.last = -1};
    c->reply.bar = &c->bar;
    tern_chat_reply_begin(&c->reply);
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
    if (tern_seq_length(s->seq) > length && tern_seq_trim(s->seq, length, NULL) < 0)
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

static int finish_reply(struct chat *c, bool interrupted, tern_error *err)
{
    int rc = 0;
    struct tern_session *s = &c->session;
    json_t *more;
    TERN_TRY(tern_chat_reply_more(&c->reply, &more, err));
    TERN_TRY(tern_session_add_reply(s, c->reply.content.p ? c->reply.content.p : "", more, c->last.n_generated, err));
    s->seed++;
    TERN_TRY(tern_chat_reply_end(&c->reply, err));
    TERN_TRY(tern_out_flush(err));
    if (interrupted)
        tern_note("stopped");
    else if (c->last.finish == TERN_FINISH_CONTEXT)
        tern_note("the context of %d tokens is full: /reset begins a new conversation",
                  tern_engine_ctx(c->setup.engine));
    else if (c->last.finish == TERN_FINISH_LENGTH)
        tern_note("the reply reached its %d tokens (-n)", c->params.max_tokens);
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

static int answer(struct chat *c, const char *message, tern_error *err)
{
    int rc = 0;
    bool interrupted = false, complete = false;
    struct tern_session *s = &c->session;
    size_t before = s->n_turns;
    tern_tokens ids = {0};
    int length = tern_seq_length(s->seq), ctx = tern_engine_ctx(c->setup.engine);
    TERN_TRY(add_message(c, message, &complete, err));
    if (!complete) {
        ask_for_result(c);
        return 0;
    }
    TERN_TRY(tern_session_pending(s, &ids, err));
    length = tern_seq_length(s->seq);
    if (ids.len > (size_t)(ctx - length))
        TERN_FAIL(err, TERN_ELIMIT,
                  "the conversation and this message have %zu tokens and the context holds %d: /reset begins anew",
                  (size_t)length + ids.len, ctx);
    TERN_TRY(generate(c, &ids, &interrupted, err));
    if (interrupted && c->last.n_generated == 0) {
        tern_note("stopped before the reply; the message is forgotten");
        undo_message(c, length);
    } else {
        TERN_TRY(finish_reply(c, interrupted, err));
    }
out:
    if (rc < 0 && s->n_turns == before + 1)
        undo_message(c, length);
    tern_tokens_clear(&ids);
    return rc;
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

static int do_help(struct chat *c, const char *arg, tern_error *err)
{
    (void)c, (void)arg, (void)err;
    (void)fputs("/help        this list\n"
                "/reset       forget the conversation (a system turn stays)\n"
                "/save FILE   write the session: tokens and KV to FILE, the turns to FILE.turns.json\n"
                "/load FILE   restore a session from both files, checked, without reading it again\n"
                "/stats       length, KV memory and speed\n"
                "/quit        leave (so does the end of input)\n"
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

static int do_stats(struct chat *c, const char *arg, tern_error *err)
{
    (void)arg, (void)err;
    tern_memory m;
    tern_engine_memory(c->setup.engine, &m);
    const tern_generate_result *g = &c->last;
    tern_note("%d of %d tokens, %zu turns; KV %s (16 bit: %s); peak memory %s", tern_seq_length(c->session.seq),
              tern_engine_ctx(c->setup.engine), c->session.n_turns, tern_size_text((double)m.kv_bytes),
              tern_size_text((double)m.kv_f16_bytes), tern_size_text((double)tern_peak_memory()));
    if (m.state_bytes)
        tern_note("recurrent states %s, those that are kept for going back among them",
                  tern_size_text((double)m.state_bytes));
    tern_note("last reply: %d prompt tokens in %.3f s, %d tokens in %.3f s (%.1f/s)", g->n_prompt, g->prompt_s,
              g->n_generated, g->decode_s, g->decode_s > 0 ? g->n_generated / g->decode_s : 0.0);
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
    bool wants_file;
    int (*run)(struct chat *c, const char *arg, tern_error *err);
} slash_commands[] = {
    {"/help", false, do_help},   {"/reset", false, do_reset}, {"/save", true, do_save},  {"/load", true, do_load},
    {"/stats", false, do_stats}, {"/quit", false, do_quit},   {"/exit", false, do_quit},
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
        if (slash_commands[i].wants_file != (*arg != 0))
            return tern_err_set(err, TERN_EINVAL, "%s %s", line,
                                *arg ? "takes no argument" : "needs the name of a file");
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
    else if (!message->len)
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

int tern_cmd_chat(const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    struct chat c = {.a = a};
    TERN_TRY(tern_setup_sampler(&c.params.sampler, &c.bias, a, err));
    TERN_TRY(tern_setup_stop(&c.params, a, err));
    c.params.max_tokens = a->v[TERN_OPT_CHAT_MAX_TOKENS].n ? (int)a->v[TERN_OPT_CHAT_MAX_TOKENS].i : -1;
    TERN_TRY(tern_setup_model(&c.setup, a, a->v[TERN_OPT_MODEL].s, err));
    if (!tern_model_get_info(c.setup.model)->has_template)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s has no chat template; use tern run", a->v[TERN_OPT_MODEL].s);
    TERN_TRY(tern_setup_recommended(&c.params.sampler, a, c.setup.model, true, err));
    TERN_TRY(tern_chat_vars_init(&c.vars, a, c.setup.model, err));
    c.reply.hide_reasoning = a->v[TERN_OPT_HIDE_REASONING].n > 0;
    TERN_TRY(new_reply(&c, err)); /* a format that does not exist is told now */
    tern_reply_free(c.params.reply);
    c.params.reply = NULL;
    /* Two sequences: /load reads the new one before it lets the old one go. */
    TERN_TRY(tern_setup_engine(&c.setup, a, (int)a->v[TERN_OPT_CTX].i, 2, err));
    if (a->v[TERN_OPT_VERBOSE].n) {
        tern_setup_print(&c.setup);
        if (c.params.sampler.temperature > 0)
            tern_note("seed %llu", (unsigned long long)c.params.sampler.seed);
    }
    TERN_TRY(tern_session_init(&c.session, c.setup.model, c.setup.engine, a->v[TERN_OPT_SYSTEM].s, c.vars.vars,
                               c.params.sampler.seed, err));
    TERN_TRY(tern_input_new(&c.input, err));
    if (tern_input_interactive(c.input))
        tern_note("%s; /help lists the commands", tern_shown(tern_model_get_info(c.setup.model)->path));
    await_user(&c);
    TERN_TRY(converse(&c, err));
out:
    tern_input_free(c.input);
    tern_session_clear(&c.session);
    tern_setup_clear(&c.setup);
    tern_bias_clear(&c.bias);
    tern_chat_reply_clear(&c.reply);
    tern_chat_vars_clear(&c.vars);
    return rc;
}
