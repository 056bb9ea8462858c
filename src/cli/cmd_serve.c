/* tern serve: a model behind HTTP. */
#include <ctype.h>
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

struct serve {
    const struct tern_args *a;
    struct tern_setup setup;
    struct tern_buf file; /* of --api-key-file */
    const char **keys;
    int n_keys;
};

/* A key per line; blank lines and lines that begin with # count for nothing. */
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
        if (!given->ss[i][0])
            return tern_cli_usage(err, "--api-key must not be empty");
        s->keys[s->n_keys++] = given->ss[i];
    }
    if (env && *env)
        s->keys[s->n_keys++] = env;
    int before = s->n_keys;
    for (char *line = s->file.p, *end; line && *line; line = end) {
        end = line + strcspn(line, "\r\n");
        end += *end ? (*end = 0, 1) : 0;
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

/* The one line on standard output: where the server is. */
static void ready(void *user, const char *address)
{
    struct serve *s = user;
    tern_engine *e = s->setup.engine;
    double bytes, f16;
    tern_plan_bytes(tern_engine_plan(e), &bytes, &f16);
    char line[512];
    (void)snprintf(line, sizeof line,
                   "%.300s, context %d tokens, KV %.0f bytes per token (16 bit: %.0f, %.2fx), %d threads",
                   tern_shown(tern_model_get_info(s->setup.model)->path), tern_engine_ctx(e), bytes, f16,
                   bytes > 0 ? f16 / bytes : 0.0, tern_engine_threads(e));
    say(user, line);
    (void)tern_out_printf(NULL, "listening on %s\n", address);
    (void)tern_out_flush(NULL);
}

/* What the weights leave, less a quarter for everything else. */
static size_t default_kv_memory(const tern_model *m)
{
    tern_machine machine;
    tern_machine_describe(&machine);
    size_t all = machine.memory_bytes, weights = tern_model_get_info(m)->weight_bytes;
    size_t left = all > weights ? (all - weights) / 4 * 3 : 0, least = (size_t)64 << 20;
    return left > least ? left : least;
}

/* A server gives a long context to each of several clients, and pages of it are touched as they fill. */
static int open_engine(struct serve *s, tern_error *err)
{
    const struct tern_arg *v = s->a->v;
    const int ctx = (int)v[v[TERN_OPT_CTX_SIZE].n ? TERN_OPT_CTX_SIZE : TERN_OPT_CTX].i;
    return tern_setup_engine(&s->setup, s->a, ctx, (int)v[TERN_OPT_PARALLEL].i, err);
}

static int check(const struct tern_args *a, tern_error *err)
{
    const struct tern_arg *v = a->v;
    if (v[TERN_OPT_MODEL].n > 1)
        return tern_cli_usage(err, "-m (--model) is given twice; a server has one model");
    if (v[TERN_OPT_CTX].n && v[TERN_OPT_CTX_SIZE].n)
        return tern_cli_usage(err, "--ctx and --ctx-size say the same thing; give one of them");
    if ((v[TERN_OPT_TLS_CERT].s != NULL) != (v[TERN_OPT_TLS_KEY].s != NULL))
        return tern_cli_usage(err, "--tls-cert and --tls-key belong together");
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
    char *end = NULL;
    const char *text = v[TERN_OPT_CACHE_RAM].s;
    const bool none = text && strtod(text, &end) == 0 && end != text && end[strspn(end, "KMGTkmgt")] == 0;
    if (none && (v[TERN_OPT_CACHE_DISK].s || v[TERN_OPT_CACHE_SHARED].s))
        return tern_cli_usage(err, "--cache-ram 0 leaves no room for what --%s brings; give it some",
                              v[TERN_OPT_CACHE_DISK].s ? "cache-disk" : "cache-shared");
    return text && !none ? tern_setup_size("--cache-ram", text, 1e15, bytes, err) : 0;
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

int tern_cmd_serve(const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    const struct tern_arg *v = a->v;
    struct serve s = {.a = a};
    double body = 0, kv = 0, cache = 0;
    TERN_TRY(check(a, err));
    TERN_TRY(tern_setup_size("--max-body", v[TERN_OPT_MAX_BODY].s, 1 << 30, &body, err));
    if (v[TERN_OPT_KV_MEMORY].s)
        TERN_TRY(tern_setup_size("--kv-memory", v[TERN_OPT_KV_MEMORY].s, 1e15, &kv, err));
    TERN_TRY(cache_size(a, &cache, err));
    TERN_TRY(read_keys(&s, err));
    TERN_TRY(tern_setup_model(&s.setup, a, v[TERN_OPT_MODEL].s, err));
    if (!v[TERN_OPT_KV_MEMORY].s)
        kv = (double)default_kv_memory(s.setup.model);
    if (!v[TERN_OPT_CACHE_RAM].s)
        cache = kv / 4 < MOST_CACHE ? kv / 4 : MOST_CACHE;
    s.setup.kv_bytes = (size_t)kv + (size_t)cache; /* windows, too, have pages for all that the cache may keep */
    TERN_TRY(open_engine(&s, err));
    if (v[TERN_OPT_VERBOSE].n)
        tern_setup_print(&s.setup);
    struct tern_server_params p = {
        .host = v[TERN_OPT_UNIX].s && !v[TERN_OPT_HOST].n ? NULL : v[TERN_OPT_HOST].s,
        .port = (int)v[TERN_OPT_PORT].i,
        .unix_path = v[TERN_OPT_UNIX].s,
        .tls_cert = v[TERN_OPT_TLS_CERT].s,
        .tls_key = v[TERN_OPT_TLS_KEY].s,
        .keys = s.keys,
        .n_keys = s.n_keys,
        .insecure = v[TERN_OPT_INSECURE].n > 0,
        .aliases = v[TERN_OPT_ALIAS].ss,
        .n_aliases = v[TERN_OPT_ALIAS].n_items,
        .max_choices = (int)(v[TERN_OPT_PARALLEL].i < 16 ? v[TERN_OPT_PARALLEL].i : 16),
        .max_connections = (int)v[TERN_OPT_MAX_CONNECTIONS].i,
        .max_body = (size_t)body,
        .timeout_s = v[TERN_OPT_TIMEOUT].f,
        .ping_s = v[TERN_OPT_PING].f,
        .drain_s = v[TERN_OPT_DRAIN].f,
        .kv_spec = tern_setup_kv(a),
        .loop = {.max_waiting = (int)v[TERN_OPT_QUEUE].i, .kv_bytes = (size_t)kv, .cache_bytes = (size_t)cache},
        .say = say,
        .log = strcmp(v[TERN_OPT_LOG_FORMAT].s, "json") == 0 ? say_json : NULL,
        .log_prompts = v[TERN_OPT_LOG_PROMPTS].n > 0,
        .user = &s,
    };
    set_cache(&s, &p.loop);
    TERN_TRY(tern_server_run(&p, s.setup.model, s.setup.engine, ready, err));
out:
    tern_setup_clear(&s.setup);
    tern_buf_clear(&s.file);
    free(s.keys);
    return rc;
}
