/* tern serve: models behind HTTP. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "cli/cli.h"
#include "server/server.h"

#define MAX_KEYS   ((size_t)1 << 20) /* bytes of a file of keys */
#define GIB        1073741824.0
#define MOST_CACHE GIB /* bytes of the prefix cache, where --cache-ram does not say */

#define NAME 128 /* bytes of a model's name */

/* Packed weights take about what a file does; so much is reckoned with before they are known. */
#define PACKED_PART 1.125
#define PACKED_MORE 1048576.0

struct serve {
    const struct tern_args *a;
    int n_models;
    struct tern_server_name *names; /* [n_models] */
    char (*name_text)[NAME];
    struct tern_setup *setups;
    double memory;        /* --memory; 0: no limit */
    double kv, cache;     /* --kv-memory and --cache-ram, of each model; 0: not given, or no cache */
    struct tern_buf file; /* of --api-key-file */
    const char **keys;
    int n_keys;
};

static bool is_blank(const char *text)
{
    return text[strspn(text, " \t\r\n")] == 0;
}

/* A key per line; blank lines, lines that begin with # and blanks in front count for nothing. */
static int read_keys(struct serve *s, tern_error *err)
{
    const struct tern_arg *given = &s->a->v[TERN_OPT_API_KEY];
    const char *path = s->a->v[TERN_OPT_API_KEY_FILE].s, *env = getenv("TERN_API_KEY");
    size_t n_lines = 1;
    struct stat st;
    if (path) {
        int rc = tern_buf_read_file(&s->file, path, MAX_KEYS, err);
        if (rc < 0)
            return rc;
        if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 077))
            tern_note("%s can be read by others than its owner; chmod 600 is safer", tern_shown(path));
    }
    for (size_t i = 0; i < s->file.len; i++)
        n_lines += s->file.p[i] == '\n';
    s->keys = calloc((size_t)given->n_items + n_lines + 2, sizeof *s->keys);
    if (!s->keys)
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate the keys");
    for (int i = 0; i < given->n_items; i++) {
        if (is_blank(given->ss[i]))
            return tern_cli_usage(err, "--api-key must not be empty");
        s->keys[s->n_keys++] = given->ss[i];
    }
    if (env && *env && is_blank(env))
        return tern_err_set(err, TERN_EINVAL, "TERN_API_KEY has nothing but blanks");
    if (env && *env)
        s->keys[s->n_keys++] = env;
    int before = s->n_keys;
    for (char *line = s->file.p, *end; line && *line; line = end) {
        end = line + strcspn(line, "\r\n");
        end += *end ? (*end = 0, 1) : 0;
        line += strspn(line, " \t");
        if (*line && *line != '#')
            s->keys[s->n_keys++] = line;
    }
    if (path && s->n_keys == before)
        return tern_err_set(err, TERN_EFORMAT, "%s holds no API key", path);
    return 0;
}

/* Messages, as text or as JSON. */
static void say(void *user, const char *line)
{
    const struct serve *s = user;
    if (strcmp(s->a->v[TERN_OPT_LOG_FORMAT].s, "json") != 0) {
        tern_note("%s", line);
        return;
    }
    char stamp[32];
    struct tm t;
    time_t now = time(NULL);
    (void)gmtime_r(&now, &t);
    (void)strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", &t);
    json_t *o = json_pack("{ss ss ss}", "time", stamp, "event", "message", "message", line);
    char *text = json_dumps(o, JSON_COMPACT);
    (void)fprintf(stderr, "%s\n", text ? text : "");
    free(text);
    json_decref(o);
}

static void say_json(void *user, const char *json)
{
    (void)user;
    (void)fprintf(stderr, "%s\n", json);
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

/* "model-q4" out of "/models/model-q4.gguf" */
static int name_of_path(char out[NAME], const char *whole, tern_error *err)
{
    size_t end = strlen(whole), begin;
    while (end > 1 && whole[end - 1] == '/')
        end--;
    for (begin = end; begin > 0 && whole[begin - 1] != '/';)
        begin--;
    if (end - begin > 5 && strncmp(whole + end - 5, ".gguf", 5) == 0)
        end -= 5;
    (void)snprintf(out, NAME, "%.*s", (int)(end - begin), whole + begin);
    return *out ? 0 : tern_cli_usage(err, "-m %s: the file has no name; give one, -m NAME=FILE", tern_shown(whole));
}

static int check_name(const char *name, const char *item, tern_error *err)
{
    size_t left;
    for (const char *p = name, *end = name + strlen(name); p < end; p += left) {
        left = tern_utf8_length(p, end);
        if (left == 0 || (unsigned char)*p < 0x20 || *p == 0x7F)
            return tern_cli_usage(err, "-m %s: the model's name has control characters, or is no UTF-8",
                                  tern_shown(item));
    }
    if (strcmp(name, "default") == 0 || strcmp(name, "*") == 0)
        return tern_cli_usage(err, "-m %s: the name \"%s\" %s", tern_shown(item), name,
                              *name == '*' ? "belongs to --alias" : "always means the first model");
    return 0;
}

/* NAME=FILE, or a path: one that is there is a path, whatever it contains. */
static int read_model(struct serve *s, int i, tern_error *err)
{
    const char *item = s->a->v[TERN_OPT_SERVE_MODELS].ss[i], *equals = strchr(item, '=');
    char *name = s->name_text[i];
    struct stat st;
    int rc = 0;
    s->names[i] = (struct tern_server_name){name, item};
    if (!equals || stat(item, &st) == 0) {
        rc = name_of_path(name, item, err);
    } else {
        s->names[i].path = equals + 1;
        if (equals == item || !equals[1])
            return tern_cli_usage(err, "-m %s: it is -m NAME=FILE, and the %s is missing", tern_shown(item),
                                  equals == item ? "name" : "file");
        if (equals - item >= NAME)
            return tern_cli_usage(err, "-m %s: a name has at most %d bytes", tern_shown(item), NAME - 1);
        (void)snprintf(name, NAME, "%.*s", (int)(equals - item), item);
    }
    rc = rc < 0 ? rc : check_name(name, item, err);
    if (rc == 0 && i > 0 && stat(s->names[i].path, &st) < 0) /* the first one is opened now */
        return tern_err_set(err, TERN_ENOENT, "%s: cannot be opened: %s", s->names[i].path, strerror(errno));
    return rc;
}

static int read_models(struct serve *s, tern_error *err)
{
    const struct tern_arg *v = s->a->v;
    const size_t n = (size_t)v[TERN_OPT_SERVE_MODELS].n_items;
    static const char *const words[] = {"auto", "use", "off"};
    s->names = calloc(n, sizeof *s->names);
    s->name_text = calloc(n, sizeof *s->name_text);
    s->setups = calloc(n, sizeof *s->setups);
    if (!s->names || !s->name_text || !s->setups)
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate %zu models", n);
    s->n_models = (int)n;
    for (int i = 0; i < s->n_models; i++) {
        int rc = read_model(s, i, err);
        if (rc < 0)
            return rc;
        for (int k = 0; k < i; k++)
            if (strcmp(s->names[k].name, s->names[i].name) == 0)
                return tern_cli_usage(err, "two models are called \"%s\"; give them names, -m NAME=FILE",
                                      tern_shown(s->names[i].name));
    }
    for (int k = 0; k < v[TERN_OPT_ALIAS].n_items; k++)
        for (int i = 1; i < s->n_models; i++)
            if (strcmp(v[TERN_OPT_ALIAS].ss[k], s->names[i].name) == 0)
                return tern_cli_usage(err, "--alias %s: another model than the first has this name",
                                      tern_shown(s->names[i].name));
    bool word = false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        word |= strcmp(v[TERN_OPT_PACKED].s, words[i]) == 0;
    if (s->n_models > 1 && !word)
        return tern_cli_usage(err, "--packed FILE belongs to one model; --packed auto keeps a file beside each");
    if (s->n_models > 1 && tern_setup_on_card(s->a) && !v[TERN_OPT_KV_MEMORY].s)
        return tern_cli_usage(err, "%d models share the card's memory: --kv-memory says what each one's cache may take",
                              s->n_models);
    if (s->n_models > 1 && v[TERN_OPT_GPU_LAYERS].n)
        return tern_cli_usage(err, "--gpu-layers belongs to one model, and there are %d", s->n_models);
    if (s->n_models > 1 && v[TERN_OPT_EXPERTS_RESIDENT].s)
        return tern_cli_usage(err, "--experts-resident belongs to one model, and there are %d", s->n_models);
    return 0;
}

/* The one line on standard output: where the server is. */
static void ready(void *user, const char *address, const struct tern_server_model *first)
{
    struct serve *s = user;
    tern_engine *e = first->engine;
    double bytes, f16;
    tern_plan_bytes(tern_engine_plan(e), &bytes, &f16);
    char line[512], more[64] = "";
    if (s->n_models > 1)
        (void)snprintf(more, sizeof more, "; %d more model%s when asked for", s->n_models - 1,
                       s->n_models > 2 ? "s" : "");
    (void)snprintf(line, sizeof line,
                   "%.300s, context %d tokens, KV %.0f bytes per token (16 bit: %.0f, %.2fx), %d threads%s",
                   tern_shown(tern_model_get_info(first->model)->path), tern_engine_ctx(e), bytes, f16,
                   bytes > 0 ? f16 / bytes : 0.0, tern_engine_threads(e), more);
    say(user, line);
    (void)tern_out_printf(NULL, "listening on %s\n", address);
    (void)tern_out_flush(NULL);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static size_t machine_memory(void)
{
    tern_machine machine;
    tern_machine_describe(&machine);
    return machine.memory_bytes;
}

/* What the weights leave, less a quarter for everything else. */
static double default_kv_memory(const struct serve *s, const char *device, size_t weights)
{
    tern_device_memory card = {0};
    const bool named = tern_setup_on_card(s->a);
    if (!s->a->v[TERN_OPT_GPU_LAYERS].n) /* the engine takes off what its scratch needs */
        (void)tern_device_get_memory(named ? tern_setup_device(s->a) : device, &card, NULL);
    if (card.limit_bytes) {
        const size_t taken = card.used_bytes + weights;
        const double left = card.limit_bytes > taken ? (double)(card.limit_bytes - taken) : 1;
        return left > s->n_models ? left / s->n_models : 1; /* the others shall find room, too */
    }
    size_t all = machine_memory();
    size_t left = all > weights ? (all - weights) / 4 * 3 : 0, least = (size_t)64 << 20;
    return (double)(left > least ? left : least);
}

/* Bytes of a model's file, or of what a directory holds: about those of its weights. */
static double size_of(const char *path)
{
    struct stat st;
    double sum = 0;
    if (stat(path, &st) < 0)
        return 0;
    if (!S_ISDIR(st.st_mode))
        return (double)st.st_size;
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        if (strstr(e->d_name, ".safetensors") && fstatat(dirfd(d), e->d_name, &st, 0) == 0 && S_ISREG(st.st_mode))
            sum += (double)st.st_size;
    if (d)
        (void)closedir(d);
    return sum;
}

/* KV cache and prefix cache of a model under --memory: an equal share of what the weights of all would leave, or a
 * quarter of what its own do where that is more. */
static double share_of(const struct serve *s, double weights)
{
    const double draft = size_of(s->a->v[TERN_OPT_DRAFT].s); /* 0: a word */
    double all = 0, own = (s->memory - weights - draft) / (s->n_models > 1 ? 4 : 1);
    for (int i = 0; i < s->n_models; i++)
        all += draft * PACKED_PART + size_of(s->names[i].path) * PACKED_PART + PACKED_MORE;
    double share = (s->memory - all) / s->n_models;
    return share > own ? share : own > 0 ? own : 0;
}

struct opening {
    const struct serve *s;
    const struct tern_server_watch *watch;
    struct tern_setup *setup;
    struct tern_server_model *out;
    bool sized;
    size_t more; /* that was held with the model's weights */
};

static void set_sizes(struct opening *o, size_t weights)
{
    const struct serve *s = o->s;
    const bool cache_given = s->a->v[TERN_OPT_CACHE_RAM].s != NULL;
    double kv = s->kv, cache = s->cache;
    if (s->memory > 0 && kv == 0) {
        double share = share_of(s, (double)weights);
        cache = cache_given ? cache : share / 5 < MOST_CACHE ? share / 5 : MOST_CACHE;
        kv = share > cache + 1 ? share - cache : 1; /* the engine says what is too little */
    } else if (kv == 0) {
        kv = default_kv_memory(s, o->setup->device, weights);
    }
    if (!cache_given && !(s->memory > 0 && s->kv == 0))
        cache = kv / 4 < MOST_CACHE ? kv / 4 : MOST_CACHE;
    o->out->kv_bytes = (size_t)kv;
    o->out->cache_bytes = (size_t)cache;
    o->setup->kv_bytes =
        o->out->kv_bytes + o->out->cache_bytes; /* windows, too, have pages for all that the cache keeps */
}

/* All that the model will take: of a second file, the one that guesses, the weights alone. */
static int before_weights(void *opening, size_t bytes, tern_error *err)
{
    struct opening *o = opening;
    if (o->sized)
        return o->watch->hold(o->watch->self, bytes, err);
    set_sizes(o, bytes);
    o->sized = true;
    o->more = o->out->kv_bytes + o->out->cache_bytes;
    return o->watch->hold(o->watch->self, bytes + o->more, err);
}

/* Sizes are another device's then. */
static void no_weights(void *opening, size_t bytes, bool draft)
{
    struct opening *o = opening;
    o->watch->let_go(o->watch->self, bytes + (draft ? 0 : o->more));
    o->sized &= draft;
}

static int on_progress(void *opening, int done, int total)
{
    struct opening *o = opening;
    return o->watch->on_progress(o->watch->self, done, total);
}

/* A server gives a long context to each of several clients, and pages of it are touched as they fill. */
static int open_engine(struct serve *s, struct tern_setup *t, tern_error *err)
{
    const struct tern_arg *v = s->a->v;
    const enum tern_option_id given = v[TERN_OPT_CTX_SIZE].n ? TERN_OPT_CTX_SIZE : TERN_OPT_CTX;
    const int trained = tern_model_get_info(t->model)->ctx;
    int ctx = (int)v[given].i;
    if (s->n_models > 1 && trained > 0 && ctx > trained) {
        tern_note("%s: the context is %d tokens, for which the model was trained, not %d",
                  tern_shown(tern_model_get_info(t->model)->path), trained, ctx);
        ctx = trained;
    }
    int rc = tern_setup_engine(t, s->a, ctx, (int)v[TERN_OPT_PARALLEL].i, err);
    if (rc != TERN_EMISMATCH || s->n_models == 1 || !t->draft)
        return rc;
    tern_note("%s: no guesses of %s, which has another vocabulary", tern_shown(tern_model_get_info(t->model)->path),
              tern_shown(v[TERN_OPT_DRAFT].s));
    tern_model_close(&t->draft);
    t->no_draft_model = true;
    return tern_setup_engine(t, s->a, ctx, (int)v[TERN_OPT_PARALLEL].i, err);
}

/* A card gives an engine what weights and scratch leave: the sizes are those then, where nobody gave any. */
static int share_card(const struct serve *s, struct tern_setup *t, struct tern_server_model *out, tern_error *err)
{
    const size_t limit = tern_engine_kv_limit(t->engine), asked = out->kv_bytes + out->cache_bytes;
    if (limit >= asked)
        return 0;
    if (s->kv > 0)
        return tern_err_set(
            err, TERN_ENOMEM,
            "%s: --kv-memory and --cache-ram ask for %zu bytes, and weights and scratch leave %zu of the "
            "card's memory (--gpu-memory)",
            tern_model_get_info(t->model)->path, asked, limit);
    if (!s->a->v[TERN_OPT_CACHE_RAM].s)
        out->cache_bytes = limit / 5 < (size_t)MOST_CACHE ? limit / 5 : (size_t)MOST_CACHE;
    if (out->cache_bytes >= limit)
        return tern_err_set(
            err, TERN_ENOMEM,
            "%s: --cache-ram asks for %zu bytes, and weights and scratch leave %zu of the card's memory "
            "(--gpu-memory)",
            tern_model_get_info(t->model)->path, out->cache_bytes, limit);
    out->kv_bytes = limit - out->cache_bytes;
    return 0;
}

/* A card that nobody named and that leaves less than was asked for is not used. */
static int share_or_leave(struct serve *s, struct tern_setup *t, struct tern_server_model *out, tern_error *err)
{
    int rc = 0;
    if (share_card(s, t, out, err) == 0)
        return 0;
    tern_engine_close(&t->engine);
    TERN_TRY(tern_setup_fall_back(t, s->a, NULL, err));
    TERN_TRY(open_engine(s, t, err));
    TERN_TRY(share_card(s, t, out, err));
out:
    return rc;
}

static int open_one(void *user, int i, const struct tern_server_watch *w, struct tern_server_model *out,
                    tern_error *err)
{
    int rc = 0;
    struct serve *s = user;
    struct tern_setup *t = &s->setups[i];
    struct opening o = {.s = s, .watch = w, .setup = t, .out = out};
    *out = (struct tern_server_model){0};
    *t = (struct tern_setup){
        .before_weights = before_weights, .on_progress = on_progress, .no_weights = no_weights, .user = &o};
    TERN_TRY(tern_setup_open(t, s->a, s->names[i].path, err));
    TERN_TRY(open_engine(s, t, err));
    TERN_TRY(share_or_leave(s, t, out, err));
    if (s->a->v[TERN_OPT_VERBOSE].n)
        tern_setup_print(t);
    out->model = t->model;
    out->engine = t->engine;
out:
    t->user = NULL;
    t->before_weights = NULL;
    t->on_progress = NULL;
    t->no_weights = NULL;
    if (rc < 0)
        tern_setup_clear(t);
    return rc;
}

static void close_one(void *user, int i, struct tern_server_model *m)
{
    struct serve *s = user;
    *m = (struct tern_server_model){0};
    tern_setup_clear(&s->setups[i]);
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static int check(const struct tern_args *a, tern_error *err)
{
    const struct tern_arg *v = a->v;
    if (v[TERN_OPT_CTX].n && v[TERN_OPT_CTX_SIZE].n)
        return tern_cli_usage(err, "--ctx and --ctx-size say the same thing; give one of them");
    if ((v[TERN_OPT_TLS_CERT].s != NULL) != (v[TERN_OPT_TLS_KEY].s != NULL))
        return tern_cli_usage(err, "--tls-cert and --tls-key belong together");
    struct stat st;
    const char *files = v[TERN_OPT_CACHE_FILES].s;
    if (files && (stat(files, &st) < 0 || !S_ISDIR(st.st_mode)))
        return tern_err_set(err, TERN_EINVAL, "--cache-files %s is no directory", files);
    if (!v[TERN_OPT_CACHE_DISK].s && (v[TERN_OPT_CACHE_DISK_GB].n || v[TERN_OPT_CACHE_DISK_FREE].n))
        return tern_cli_usage(err, "--cache-disk-gb and --cache-disk-min-free belong to --cache-disk");
    if (v[TERN_OPT_LOG_PROMPTS].n && strcmp(v[TERN_OPT_LOG_FORMAT].s, "json") != 0)
        return tern_cli_usage(err, "--log-prompts belongs to --log-format json");
    if (v[TERN_OPT_UNIX].s && v[TERN_OPT_TLS_CERT].s && !v[TERN_OPT_HOST].n)
        return tern_cli_usage(err, "--unix alone needs no TLS; give --host as well, or leave --tls-cert out");
    return 0;
}

/* --cache-ram, of 0: none. */
static int cache_size(const struct tern_args *a, double *bytes, tern_error *err)
{
    const struct tern_arg *v = a->v;
    if (!v[TERN_OPT_CACHE_RAM].s)
        return 0;
    int rc = tern_setup_size("--cache-ram", v[TERN_OPT_CACHE_RAM].s, 0, 1e15, bytes, err);
    if (rc < 0)
        return rc;
    if (*bytes < 1 && (v[TERN_OPT_CACHE_DISK].s || v[TERN_OPT_CACHE_SHARED].s || v[TERN_OPT_CACHE_FILES].s))
        return tern_cli_usage(err, "--cache-ram 0 leaves no room for what --%s brings; give it some",
                              v[TERN_OPT_CACHE_DISK].s     ? "cache-disk"
                              : v[TERN_OPT_CACHE_SHARED].s ? "cache-shared"
                                                           : "cache-files");
    return 0;
}

static void set_cache(struct serve *s, tern_loop_params *p)
{
    const struct tern_arg *v = s->a->v;
    p->cache_dir = v[TERN_OPT_CACHE_DISK].s;
    p->cache_dir_bytes = (size_t)(v[TERN_OPT_CACHE_DISK_GB].f * GIB);
    p->cache_dir_free = (size_t)(v[TERN_OPT_CACHE_DISK_FREE].f * GIB);
    p->cache_shared = v[TERN_OPT_CACHE_SHARED].s;
    p->on_notice = say;
    p->notice_user = s;
}

/* --memory: several models without one have that of the machine, less a quarter for everything else. */
static int memory_size(struct serve *s, tern_error *err)
{
    const char *text = s->a->v[TERN_OPT_MEMORY].s;
    if (text)
        return tern_setup_size("--memory", text, 1, 1e15, &s->memory, err);
    s->memory = s->n_models > 1 ? .75 * (double)machine_memory() : 0;
    return 0;
}

static struct tern_server_params params(struct serve *s, double body)
{
    const struct tern_arg *v = s->a->v;
    const bool json = strcmp(v[TERN_OPT_LOG_FORMAT].s, "json") == 0;
    struct tern_server_params p = {
        .host = v[TERN_OPT_UNIX].s && !v[TERN_OPT_HOST].n ? NULL : v[TERN_OPT_HOST].s,
        .port = (int)v[TERN_OPT_PORT].i,
        .unix_path = v[TERN_OPT_UNIX].s,
        .tls_cert = v[TERN_OPT_TLS_CERT].s,
        .tls_key = v[TERN_OPT_TLS_KEY].s,
        .keys = s->keys,
        .n_keys = s->n_keys,
        .insecure = v[TERN_OPT_INSECURE].n > 0,
        .names = s->names,
        .n_models = s->n_models,
        .memory = (size_t)s->memory,
        .aliases = v[TERN_OPT_ALIAS].ss,
        .n_aliases = v[TERN_OPT_ALIAS].n_items,
        .max_choices = (int)(v[TERN_OPT_PARALLEL].i < 16 ? v[TERN_OPT_PARALLEL].i : 16),
        .max_connections = (int)v[TERN_OPT_MAX_CONNECTIONS].i,
        .max_body = (size_t)body,
        .cache_files = v[TERN_OPT_CACHE_FILES].s,
        .timeout_s = v[TERN_OPT_TIMEOUT].f,
        .ping_s = v[TERN_OPT_PING].f,
        .drain_s = v[TERN_OPT_DRAIN].f,
        .stall_s = v[TERN_OPT_STALL].f,
        .loop = {.max_waiting = (int)v[TERN_OPT_QUEUE].i},
        .open = open_one,
        .close = close_one,
        .say = say,
        .log = json ? say_json : NULL,
        .log_prompts = v[TERN_OPT_LOG_PROMPTS].n > 0,
        .user = s,
    };
    set_cache(s, &p.loop);
    return p;
}

int tern_cmd_serve(const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    const struct tern_arg *v = a->v;
    struct serve s = {.a = a};
    double body = 0;
    TERN_TRY(check(a, err));
    TERN_TRY(tern_setup_size("--max-body", v[TERN_OPT_MAX_BODY].s, 1, 1 << 30, &body, err));
    if (v[TERN_OPT_KV_MEMORY].s)
        TERN_TRY(tern_setup_size("--kv-memory", v[TERN_OPT_KV_MEMORY].s, 1, 1e15, &s.kv, err));
    TERN_TRY(cache_size(a, &s.cache, err));
    TERN_TRY(read_models(&s, err));
    TERN_TRY(memory_size(&s, err));
    TERN_TRY(read_keys(&s, err));
    if (strcmp(v[TERN_OPT_LOG_FORMAT].s, "json") == 0)
        tern_note_through(say, &s);
    TERN_TRY(tern_setup_begin(a, err));
    const struct tern_server_params p = params(&s, body);
    TERN_TRY(tern_server_run(&p, ready, err));
out:
    tern_note_through(NULL, NULL);
    tern_buf_clear(&s.file);
    free(s.keys);
    free(s.names);
    free(s.name_text);
    free(s.setups);
    return rc;
}
