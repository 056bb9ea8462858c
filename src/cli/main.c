#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/outfile.h"
#include "cli/cli.h"

static tern_command_fn *const command_fns[TERN_N_COMMANDS] = {
    [TERN_CMD_RUN] = tern_cmd_run,
    [TERN_CMD_CHAT] = tern_cmd_chat,
    [TERN_CMD_SERVE] = tern_cmd_serve,
    [TERN_CMD_INSPECT] = tern_cmd_inspect,
    [TERN_CMD_TOKENIZE] = tern_cmd_tokenize,
    [TERN_CMD_EVAL_LOGITS] = tern_cmd_eval_logits,
    [TERN_CMD_EVAL_PPL] = tern_cmd_eval_ppl,
    [TERN_CMD_EVAL_KLD] = tern_cmd_eval_kld,
    [TERN_CMD_BENCH] = tern_cmd_bench,
    [TERN_CMD_BENCH_KV] = tern_cmd_bench_kv,
    [TERN_CMD_BENCH_WEIGHTS] = tern_cmd_bench_weights,
    [TERN_CMD_DOCTOR] = tern_cmd_doctor,
    [TERN_CMD_CONVERT] = tern_cmd_convert,
    [TERN_CMD_CACHE_BUILD] = tern_cmd_cache_build,
    [TERN_CMD_CACHE_VERIFY] = tern_cmd_cache_verify,
    [TERN_CMD_CACHE_LS] = tern_cmd_cache_ls,
    [TERN_CMD_CACHE_RM] = tern_cmd_cache_rm,
    [TERN_CMD_MODELS] = tern_cmd_models,
    [TERN_CMD_PRINT] = tern_cmd_print,
};

int tern_cli_usage(tern_error *err, const char *fmt, ...)
{
    tern_error e = {.code = TERN_CLI_USAGE};
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(e.msg, sizeof e.msg, fmt, ap);
    va_end(ap);
    if (err)
        *err = e;
    return TERN_CLI_USAGE;
}

int tern_cli_as_usage(int rc, tern_error *err)
{
    if (rc != TERN_EINVAL)
        return rc;
    if (err)
        err->code = TERN_CLI_USAGE;
    return TERN_CLI_USAGE;
}

/* The list of commands whose names begin with `prefix`. */
static int print_commands(const char *prefix, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_out_printf(err, "usage: tern COMMAND [options]\n\nRuns language models whose KV cache is compressed "
                                  "and attended in place.\n\nCommands:\n"));
    for (int i = 0; i < TERN_N_COMMANDS; i++) {
        const struct tern_command *c = &tern_commands[i];
        if (!c->hidden && strncmp(c->name, prefix, strlen(prefix)) == 0)
            TERN_TRY(tern_out_printf(err, "  %-13s %s\n", c->name, c->summary));
    }
    TERN_TRY(tern_out_printf(err, "\nOptions:\n  -h, --help    print this text\n  -V, --version print the version\n\n"
                                  "'tern COMMAND --help' describes one command.  Of an option that is given twice the "
                                  "last one counts;\n-m, -p, -f, -o and others that name a command's input or output "
                                  "may be given once, where its help does\nnot say otherwise.\n"));
out:
    return rc;
}

static bool takes_plan(const struct tern_command *c)
{
    for (int id = 0; id < TERN_N_OPTIONS; id++)
        if ((tern_options[id].commands & (1u << c->id)) && strcmp(tern_options[id].name, "kv") == 0)
            return true;
    return false;
}

static int print_schemes(tern_error *err)
{
    int rc = tern_out_printf(err, "\nKV schemes:\n");
    for (const char *const *s = tern_kv_schemes(); s[0] && rc == 0; s += 2)
        rc = tern_out_printf(err, "  %-9s %s\n", s[0], s[1]);
    return rc;
}

static int print_help(const struct tern_command *c, tern_error *err)
{
    struct tern_buf b = {0};
    int rc = tern_command_help(c, &b, err);
    if (rc == 0)
        rc = tern_out_write(b.p, b.len, err);
    if (rc == 0 && takes_plan(c))
        rc = print_schemes(err);
    tern_buf_clear(&b);
    return rc;
}

static bool is(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

/* First words of commands that are none by themselves. */
static const struct {
    const char *name, *wants;
} families[] = {
    {"eval", "a measurement: logits, ppl or kld"},
    {"cache", "what to do: build, verify, ls or rm"},
};

static char hint_text[48];

/* What other engines call it. */
static const struct {
    const char *name, *here;
} elsewhere[] = {
    {"generate", "run"},        {"complete", "run"},    {"cli", "run"},      {"quantize", "convert"},
    {"perplexity", "eval ppl"}, {"ppl", "eval ppl"},    {"kld", "eval kld"}, {"info", "inspect"},
    {"show", "inspect"},        {"list", "models"},     {"ls", "models"},    {"server", "serve"},
    {"encode", "tokenize"},     {"benchmark", "bench"},
};

/* `tern`, `tern --help`, `tern help COMMAND`, `tern eval`, and everything that is no command. */
static int other(int argc, char **argv, const char **hint, tern_error *err)
{
    int words;
    *hint = "tern --help";
    if (argc < 2)
        return tern_cli_usage(err, "a command is missing");
    if (is(argv[1], "help") && argc > 2) {
        const struct tern_command *c = tern_command_find(argc - 1, argv + 1, &words);
        if (!c && argc == 3)
            for (size_t i = 0; i < sizeof families / sizeof *families; i++)
                if (is(argv[2], families[i].name))
                    return print_commands(families[i].name, err);
        return c ? print_help(c, err) : tern_cli_usage(err, "unknown command \"%.80s\"", argv[2]);
    }
    if (is(argv[1], "--help") || is(argv[1], "-h") || is(argv[1], "help"))
        return print_commands("", err);
    if (is(argv[1], "--version") || is(argv[1], "-V"))
        return tern_out_printf(err, "tern %s\n", tern_version());
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (!is(argv[1], families[i].name))
            continue;
        (void)snprintf(hint_text, sizeof hint_text, "tern %s --help", families[i].name);
        *hint = hint_text;
        if (argc > 2 && (is(argv[2], "--help") || is(argv[2], "-h")))
            return print_commands(families[i].name, err);
        return tern_cli_usage(err, "%s wants %s", families[i].name, families[i].wants);
    }
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (is(argv[1], elsewhere[i].name)) {
            (void)snprintf(hint_text, sizeof hint_text, "tern %s --help", elsewhere[i].here);
            *hint = hint_text;
            return tern_cli_usage(err, "unknown command \"%s\"; here it is %s", argv[1], elsewhere[i].here);
        }
    return tern_cli_usage(err, "unknown command \"%.80s\"", argv[1]);
}

static int dispatch(int argc, char **argv, const char **hint, tern_error *err)
{
    int words = 0;
    const struct tern_command *c = tern_command_find(argc, argv, &words);
    if (!c)
        return other(argc, argv, hint, err);
    (void)snprintf(hint_text, sizeof hint_text, "tern %s --help", c->name);
    *hint = hint_text;
    struct tern_args a;
    argc -= words;
    argv += words;
    int rc = tern_config_options(c, &argc, &argv, err);
    rc = rc == 0 ? tern_foreign_options(c, &argc, &argv, err) : rc;
    if (rc != 0)
        return rc;
    rc = tern_args_parse(&a, c, argc, argv, err);
    if (rc < 0)
        return rc == TERN_EINVAL ? TERN_CLI_USAGE : rc;
    tern_outfile_force(a.v[TERN_OPT_FORCE].n > 0);
    if (a.v[TERN_OPT_HELP].n)
        rc = print_help(c, err);
    else if (a.v[TERN_OPT_EXACT].n && a.v[TERN_OPT_DECODE_BITS].n)
        rc = tern_cli_usage(err, "--decode-bits and --exact exclude each other: exact steps compute in 32 bits");
    else if (a.v[TERN_OPT_EXACT].n && a.v[TERN_OPT_PROMPT_CLASS].n)
        rc = tern_cli_usage(err, "--prompt-class and --exact exclude each other: exact steps compute in 32 bits");
    else
        rc = command_fns[c->id](&a, err);
    tern_args_clear(&a);
    return rc;
}

/* A stream that was closed by whoever started us: its number would go to the next file or connection, and what is meant
 * for the user would be written there.  Opened the wrong way round, so that using it is an error as before. */
static void keep_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

int main(int argc, char **argv)
{
    keep_streams();
    /* A reader that goes away shows up as EPIPE where it is written, and the sequence of events stays ours. */
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* likewise EFBIG, of a file that may not grow further (ulimit -f) */
    const char *hint = "tern --help";
    tern_error err = {0};
    int rc = dispatch(argc, argv, &hint, &err);
    if (rc == 0)
        rc = tern_out_flush(&err);
    else
        (void)tern_out_flush(NULL);
    switch (rc) {
    case 0:
        return 0;
    case TERN_CLI_USAGE:
        tern_note("%s; try '%s'", err.msg, hint);
        return 2;
    case TERN_CLI_INTERRUPTED:
        return 130;
    case TERN_CLI_REPORTED:
        return 1;
    default:
        tern_note("%s", err.msg[0] ? err.msg : tern_err_text(rc));
        return 1;
    }
}
