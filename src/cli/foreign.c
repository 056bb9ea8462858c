/* Options as other engines spell them: those of mlx-lm and llama.cpp that mean something here are rewritten before the
 * command line is parsed; others are refused with the nearest thing that there is.  What the table of options knows
 * itself is left alone. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"

#define TEXT_COMMANDS (TERN_ON_RUN | TERN_ON_CHAT)
#define KV_COMMANDS \
    (TEXT_COMMANDS | TERN_ON_SERVE | TERN_ON_INSPECT | TERN_ON_DOCTOR | TERN_ON_EVAL_LOGITS | TERN_ON_EVAL_PPL)

enum foreign_kind {
    RENAME,     /* the same under another name; a flag where `value` is false */
    REFUSE,     /* with this sentence */
    REFUSE_SET, /* the same, but 0, "0.0" and "off" are what happens anyway */
    KV_BITS,    /* 2 3 4 8 */
    CACHE_TYPE_K,
    CACHE_TYPE_V,
};

static const struct foreign {
    const char *name;
    enum foreign_kind kind;
    bool value;
    unsigned commands;
    const char *text; /* our name, or the sentence */
} foreigners[] = {
    {"--temperature", RENAME, true, TEXT_COMMANDS, "--temp"},
    {"--n-predict", RENAME, true, TEXT_COMMANDS, "--max-tokens"},
    {"--predict", RENAME, true, TEXT_COMMANDS, "--max-tokens"},
    {"--ctx-size", RENAME, true, KV_COMMANDS, "--ctx"},
    {"--repeat-last-n", RENAME, true, TEXT_COMMANDS, "--penalty-last"},
    {"--repetition-penalty", RENAME, true, TEXT_COMMANDS, "--repeat-penalty"},
    {"--prefill-step-size", RENAME, true, TEXT_COMMANDS, "--chunk"},
    {"--batch-size", RENAME, true, TEXT_COMMANDS, "--chunk"},
    {"--ubatch-size", RENAME, true, TEXT_COMMANDS, "--chunk"},
    {"--system-prompt", RENAME, true, TEXT_COMMANDS, "--system"},
    {"-sys", RENAME, true, TEXT_COMMANDS, "--system"},
    {"--ignore-chat-template", RENAME, false, TERN_ON_RUN, "--raw"},
    {"--draft-model", RENAME, true, TEXT_COMMANDS | TERN_ON_SERVE, "--draft"},
    {"--model-draft", RENAME, true, TEXT_COMMANDS | TERN_ON_SERVE, "--draft"},
    {"-md", RENAME, true, TEXT_COMMANDS | TERN_ON_SERVE, "--draft"},
    {"--num-draft-tokens", RENAME, true, TEXT_COMMANDS | TERN_ON_SERVE, "--draft-max"},
    {"--draft-n", RENAME, true, TEXT_COMMANDS | TERN_ON_SERVE, "--draft-max"},
    {"--extra-eos-token", RENAME, true, TEXT_COMMANDS, "--stop-token"},
    {"--prompt-cache-file", RENAME, true, TERN_ON_RUN, "--prompt-cache"},
    {"--grammar-file", RENAME, true, TERN_ON_RUN, "--grammar"},
    {"--json-schema-file", RENAME, true, TERN_ON_RUN, "--json-schema"},
    {"-jf", RENAME, true, TERN_ON_RUN, "--json-schema"},
    {"-j", RENAME, true, TERN_ON_RUN, "--json-schema"},
    {"--rope-freq-base", RENAME, true, KV_COMMANDS, "--rope-base"},
    {"--rope-scale", REFUSE, true, KV_COMMANDS, "--rope-scaling yarn,factor=N or linear,factor=N says both"},
    {"--kv-bits", KV_BITS, true, KV_COMMANDS, NULL},
    {"-np", RENAME, true, TERN_ON_SERVE, "--parallel"},
    {"--n-parallel", RENAME, true, TERN_ON_SERVE, "--parallel"},
    {"--max-num-seqs", RENAME, true, TERN_ON_SERVE, "--parallel"},
    {"--max-concurrent-requests", RENAME, true, TERN_ON_SERVE, "--parallel"},
    {"--decode-concurrency", RENAME, true, TERN_ON_SERVE, "--parallel"},
    {"--max-model-len", RENAME, true, TERN_ON_SERVE, "--ctx"},
    {"--served-model-name", RENAME, true, TERN_ON_SERVE, "--alias"},
    {"--ssl-cert-file", RENAME, true, TERN_ON_SERVE, "--tls-cert"},
    {"--ssl-key-file", RENAME, true, TERN_ON_SERVE, "--tls-key"},
    {"--models-dir", REFUSE, true, TERN_ON_SERVE,
     "each model has its own -m NAME=FILE; tern models FOLDER lists what is there"},
    {"--models-preset", REFUSE, true, TERN_ON_SERVE,
     "--config FILE has options one a line, and model = NAME=FILE as often as wanted"},
    {"--models-max", REFUSE, true, TERN_ON_SERVE,
     "--memory SIZE limits what loaded models hold together, not how many they are"},
    {"--models-autoload", REFUSE, false, TERN_ON_SERVE, "a model is loaded when a request names it, always"},
    {"--no-models-autoload", REFUSE, false, TERN_ON_SERVE,
     "a model is loaded when a request names it; leave its -m out where that is not wanted"},
    {"--sleep-idle-seconds", REFUSE, true, TERN_ON_SERVE,
     "the field keep_alive of Ollama's API says how long a model stays; --memory unloads the one that was not used for "
     "longest"},
    {"--keep-alive", REFUSE, true, TERN_ON_SERVE,
     "the field keep_alive of Ollama's API says how long a model stays; --memory unloads the one that was not used for "
     "longest"},
    {"-cb", REFUSE, false, TERN_ON_SERVE, "requests are batched as they come, always"},
    {"--cont-batching", REFUSE, false, TERN_ON_SERVE, "requests are batched as they come, always"},
    {"--continuous-batching", REFUSE, false, TERN_ON_SERVE, "requests are batched as they come, always"},
    {"--metrics", REFUSE, false, TERN_ON_SERVE, "/metrics is always there"},
    {"-ctk", CACHE_TYPE_K, true, KV_COMMANDS, NULL},
    {"--cache-type-k", CACHE_TYPE_K, true, KV_COMMANDS, NULL},
    {"-ctv", CACHE_TYPE_V, true, KV_COMMANDS, NULL},
    {"--cache-type-v", CACHE_TYPE_V, true, KV_COMMANDS, NULL},
    {"--kv-group-size", REFUSE, true, KV_COMMANDS,
     "codes here have one scale per vector and 128 dims; groups of 64 as in MLX are --kv affine4 and --kv affine8"},
    {"--quantized-kv-start", REFUSE_SET, true, KV_COMMANDS,
     "run and chat do that; requests to a server share their coded pages, so there a sequence is coded from its first "
     "page on; --kv ...,recent=N keeps the newest N tokens in 16 bits, first=N the first ones"},
    {"-ngl", REFUSE_SET, true, TEXT_COMMANDS | TERN_ON_SERVE,
     "all layers run on the processor; -t chooses the threads"},
    {"--n-gpu-layers", REFUSE_SET, true, TEXT_COMMANDS | TERN_ON_SERVE,
     "all layers run on the processor; -t chooses the threads"},
    {"--gpu-layers", REFUSE_SET, true, TEXT_COMMANDS | TERN_ON_SERVE,
     "all layers run on the processor; -t chooses the threads"},
    {"-fa", REFUSE, false, TEXT_COMMANDS | TERN_ON_SERVE, "attention has one form here, it needs no switch"},
    {"--flash-attn", REFUSE, false, TEXT_COMMANDS | TERN_ON_SERVE, "attention has one form here, it needs no switch"},
    {"--mlock", REFUSE, false, TEXT_COMMANDS,
     "weights are mapped, or packed into memory of the process (--packed off)"},
    {"--no-mmap", REFUSE, false, TEXT_COMMANDS, "--packed off keeps the packed weights in memory of the process"},
    {"-hf", REFUSE, true, TEXT_COMMANDS, "nothing is downloaded here; tools/fetch-model does, and -m names the file"},
    {"--hf-repo", REFUSE, true, TEXT_COMMANDS,
     "nothing is downloaded here; tools/fetch-model does, and -m names the file"},
    {"-cnv", REFUSE, false, TERN_ON_RUN, "tern chat talks, tern run continues one prompt"},
    {"--adapter-path", REFUSE, true, TEXT_COMMANDS, "adapters are not applied here; merge them into the weights first"},
    {"--lora", REFUSE, true, TEXT_COMMANDS, "adapters are not applied here; merge them into the weights first"},
};
#define N_FOREIGNERS (sizeof foreigners / sizeof *foreigners)

/* Types of llama.cpp's cache and what they come to; their names are those of weights. */
static const struct {
    const char *type, *scheme;
    bool exact; /* the same numbers, but for the order of operations */
} cache_types[] = {
    {"f32", "f32", true},       {"f16", "f16", true},       {"bf16", "bf16", true},  {"q8_0", "q8", false},
    {"q4_0", "t4", false},      {"q4_1", "t4", false},      {"iq4_nl", "t4", false}, {"turbo2", "turbo2", true},
    {"turbo3", "turbo3", true}, {"turbo4", "turbo4", true},
};

struct rewriting {
    const struct tern_command *command;
    char **argv; /* of the new command line */
    int argc;
    const char *k, *v; /* schemes that foreign options name */
    bool told;         /* of their being only like what was asked for */
};

/* The command line's own strings and literals live as long as the process, and so does this array. */
static char **rewritten;
static char kv_text[64];

static bool native(const struct tern_command *c, const char *name, size_t n)
{
    for (int id = 0; id < TERN_N_OPTIONS; id++)
        if (tern_options[id].kind != TERN_KIND_GROUP && (tern_options[id].commands & (1u << c->id)) && n > 2 &&
            strlen(tern_options[id].name) == n - 2 && strncmp(tern_options[id].name, name + 2, n - 2) == 0)
            return true;
    return false;
}

static const struct foreign *find(const struct tern_command *c, const char *arg, size_t n)
{
    if (native(c, arg, n))
        return NULL;
    for (size_t i = 0; i < N_FOREIGNERS; i++)
        if (strlen(foreigners[i].name) == n && strncmp(foreigners[i].name, arg, n) == 0 &&
            (foreigners[i].commands & (1u << c->id)))
            return &foreigners[i];
    return NULL;
}

static int set_bits(struct rewriting *w, const struct foreign *f, const char *value, tern_error *err)
{
    static const char *const of[9] = {[2] = "t2", [3] = "t3", [4] = "t4", [8] = "q8"};
    if (strlen(value) != 1 || value[0] < '0' || value[0] > '8' || !of[value[0] - '0'])
        return tern_cli_usage(err, "%s %.20s: codes have 2, 3, 4 or 8 bits here; 4 (--kv t4) is the default", f->name,
                              value);
    w->k = w->v = of[value[0] - '0'];
    w->told = true;
    return 0;
}

static int set_type(struct rewriting *w, const struct foreign *f, const char *value, tern_error *err)
{
    for (size_t i = 0; i < sizeof cache_types / sizeof *cache_types; i++)
        if (strcmp(cache_types[i].type, value) == 0) {
            *(f->kind == CACHE_TYPE_K ? &w->k : &w->v) = cache_types[i].scheme;
            w->told |= !cache_types[i].exact;
            return 0;
        }
    return tern_cli_usage(err, "%s %.20s is not here; nearest are q8_0 (--kv q8) and q4_0 (--kv t4, 4.25 bits)",
                          f->name, value);
}

static bool is_nothing(const char *value)
{
    char *end;
    return strcmp(value, "off") == 0 || (strtod(value, &end) == 0 && end != value && !*end);
}

/* value: of the option, NULL where it takes none. */
static int rewrite(struct rewriting *w, const struct foreign *f, char *value, tern_error *err)
{
    const char *said = value ? value : "";
    switch (f->kind) {
    case RENAME:
        w->argv[w->argc++] = (char *)f->text;
        if (value)
            w->argv[w->argc++] = value;
        return 0;
    case REFUSE_SET:
        if (is_nothing(said))
            return 0;
        break;
    case KV_BITS:
        return set_bits(w, f, said, err);
    case CACHE_TYPE_K:
    case CACHE_TYPE_V:
        return set_type(w, f, said, err);
    case REFUSE:
        break;
    }
    return tern_cli_usage(err, "%s: %s", f->name, f->text);
}

/* --kv from the schemes that were named; the side that was not is 16 bits, as there. */
static void add_plan(struct rewriting *w)
{
    if (!w->k && !w->v)
        return;
    (void)snprintf(kv_text, sizeof kv_text, "k=%s,v=%s", w->k ? w->k : "f16", w->v ? w->v : "f16");
    if (w->told)
        tern_note("the KV cache: --kv %s, which is like what was asked for", kv_text);
    w->argv[w->argc++] = "--kv";
    w->argv[w->argc++] = kv_text;
}

int tern_foreign_options(const struct tern_command *c, int *argc, char ***argv, tern_error *err)
{
    int rc = 0, i = 1;
    bool kv = false;
    struct rewriting w = {.command = c};
    TERN_TRY(tern_alloc(&w.argv, 2 * (size_t)*argc + 4, sizeof *w.argv, err));
    w.argv[w.argc++] = (*argv)[0];
    for (; i < *argc && strcmp((*argv)[i], "--") != 0; i++) {
        char *arg = (*argv)[i];
        size_t n = strcspn(arg, "=");
        const struct foreign *f = arg[0] == '-' ? find(c, arg, n) : NULL;
        kv |= strncmp(arg, "--kv", n) == 0 && n == 4;
        if (!f) {
            w.argv[w.argc++] = arg;
            continue;
        }
        char *value = f->value && arg[n] ? arg + n + 1 : NULL;
        if (f->value && !value && i + 1 < *argc)
            value = (*argv)[++i];
        if (f->value && !value)
            TERN_TRY(tern_cli_usage(err, "%s needs a value", f->name));
        TERN_TRY(rewrite(&w, f, value, err));
    }
    if (kv && (w.k || w.v))
        TERN_TRY(tern_cli_usage(err, "--kv and the names of other engines say the same thing; give one of them"));
    add_plan(&w);
    for (; i < *argc; i++)
        w.argv[w.argc++] = (*argv)[i];
    w.argv[w.argc] = NULL;
    tern_free(rewritten);
    rewritten = w.argv;
    *argc = w.argc;
    *argv = w.argv;
    return 0;
out:
    tern_free(w.argv);
    return rc;
}

/* ---- options out of a file ---------------------------------------------------------------------------------------
 *
 * --config FILE: options from a file, one a line, by the names that they have on the command line:
 *
 *     # comment
 *     model = /models/model.gguf
 *     kv t4
 *     insecure
 *
 * A flag stands alone or is true or false.  What the command line says comes after, so it counts where one value does.
 * Each line is tried by itself first, and an error names it. */

#define MAX_FILE ((size_t)1 << 20)

/* The strings live as long as the process, as those of the command line do. */
static struct tern_buf config_text;
static char **joined;

/* Value of --config in argv, NULL: not given. */
static const char *find_config(int argc, char **argv)
{
    const char *path = NULL;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strncmp(argv[i], "--config=", 9) == 0)
            path = argv[i] + 9;
        else if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
            path = argv[++i];
    }
    return path;
}

static char *trim(char *s)
{
    while (isspace((unsigned char)*s))
        s++;
    size_t n = strlen(s);
    while (n > 0 && isspace((unsigned char)s[n - 1]))
        s[--n] = 0;
    return s;
}

static bool is_flag(const struct tern_command *c, const char *name)
{
    for (int id = 0; id < TERN_N_OPTIONS; id++)
        if (tern_options[id].kind == TERN_KIND_FLAG && (tern_options[id].commands & (1u << c->id)) &&
            strcmp(tern_options[id].name, name) == 0)
            return true;
    return false;
}

/* Would the command line take this option alone? */
static int try_option(const struct tern_command *c, char *name, char *value, tern_error *err)
{
    char *argv[] = {(char *)"tern", name, value ? value : (char *)"--help", value ? (char *)"--help" : NULL, NULL};
    char **given = argv;
    int argc = value ? 4 : 3;
    struct tern_args a;
    int rc = tern_foreign_options(c, &argc, &given, err);
    rc = rc < 0 ? rc : tern_args_parse(&a, c, argc, given, err);
    if (rc == 0)
        tern_args_clear(&a);
    return rc;
}

/* A line into option and value (NULL: none); *name NULL: there is nothing in it. */
static int read_line(const struct tern_command *c, char *line, char **name, char **value, tern_error *err)
{
    *name = *value = NULL;
    line = trim(line);
    if (!*line || *line == '#')
        return 0;
    size_t n = strcspn(line, "= \t");
    char *rest = line + n;
    while (isspace((unsigned char)*rest))
        rest++;
    rest = trim(*rest == '=' ? rest + 1 : rest);
    line[n] = 0;
    if (strncmp(line, "-", 1) == 0)
        return tern_cli_usage(err, "\"%.40s\": names stand without dashes here", line);
    if (strcmp(line, "config") == 0 || strcmp(line, "help") == 0)
        return tern_cli_usage(err, "%s belongs to the command line", line);
    if (is_flag(c, line)) {
        if (strcmp(rest, "false") == 0)
            return 0;
        if (*rest && strcmp(rest, "true") != 0)
            return tern_cli_usage(err, "%s is true or false, not \"%.40s\"", line, rest);
        rest = NULL;
    } else if (!*rest) {
        return tern_cli_usage(err, "%.40s has no value", line);
    }
    /* Two dashes before the name: the line has room, for it is moved to the front of a copy. */
    if (tern_alloc(name, n + 3, 1, err) < 0)
        return TERN_ENOMEM;
    (void)snprintf(*name, n + 3, "--%s", line);
    *value = rest;
    return try_option(c, *name, *value, err);
}

int tern_config_options(const struct tern_command *c, int *argc, char ***argv, tern_error *err)
{
    int rc = 0, n = 1, number = 0;
    const char *path = c->id == TERN_CMD_SERVE ? find_config(*argc, *argv) : NULL;
    size_t lines = 1;
    if (!path)
        return 0;
    TERN_TRY(tern_buf_read_file(&config_text, path, MAX_FILE, err));
    for (size_t i = 0; i < config_text.len; i++)
        lines += config_text.p[i] == '\n';
    TERN_TRY(tern_alloc(&joined, 2 * lines + (size_t)*argc + 1, sizeof *joined, err));
    joined[0] = (*argv)[0];
    for (char *line = config_text.p, *end; line && *line; line = end) {
        tern_error why = {0};
        char *name, *value;
        end = line + strcspn(line, "\n");
        end += *end ? (*end = 0, 1) : 0;
        number++;
        rc = read_line(c, line, &name, &value, &why);
        if (name)
            joined[n++] = name;
        if (rc != 0) {
            (void)tern_err_set(err, TERN_EINVAL, "%s:%d: %s", path, number, why.msg);
            rc = TERN_CLI_USAGE;
            goto out;
        }
        if (name && value)
            joined[n++] = value;
    }
    for (int i = 1; i < *argc; i++)
        joined[n++] = (*argv)[i];
    joined[n] = NULL;
    *argc = n;
    *argv = joined;
out:
    return rc;
}
