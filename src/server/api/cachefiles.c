/* POST /v1/cache/export and /v1/cache/import: what is known of a prompt as a cache file (tern/cache.h), in the
 * directory of --cache-files or as bytes. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/outfile.h"
#include "server/api/ask.h"
#include "tern/cache.h"

#define MAGIC  "ternc\n\0"
#define SUFFIX ".ternc"

static int enabled(const struct tern_job *j, struct tern_fault *f)
{
    if (j->server->p.cache_files)
        return 0;
    return tern_fault_set(f, 404, "not_enabled", NULL,
                          "cache files are off here: the server was started without --cache-files DIR");
}

static int from_error(struct tern_fault *f, const tern_error *err, const char *param)
{
    (void)tern_fault_from(f, err, param);
    if (err->code == TERN_EMISMATCH || err->code == TERN_EFORMAT || err->code == TERN_EUNSUPPORTED) {
        f->status = err->code == TERN_EMISMATCH ? 409 : 400;
        f->code = err->code == TERN_EMISMATCH ? "other_origin" : "not_a_cache_file";
    }
    if (err->code == TERN_ELIMIT)
        f->status = 413;
    return -1;
}

/* A name in the directory, and nothing else. */
static int check_name(const char *name, struct tern_fault *f)
{
    const size_t n = strlen(name), suffix = strlen(SUFFIX);
    bool fits = n > suffix && n <= 200 && name[0] != '.' && strcmp(name + n - suffix, SUFFIX) == 0;
    for (size_t i = 0; i < n; i++)
        fits = fits && name[i] != '/' && (unsigned char)name[i] >= ' ' && name[i] != 127;
    if (fits)
        return 0;
    return tern_fault_set(f, 400, "invalid_value", "file",
                          "file must be a name that ends in " SUFFIX ", without directories and of 200 bytes at most");
}

/* ---- out --------------------------------------------------------------------------------------------------------- */

static const struct tern_field export_fields[] = {
    {"model", TERN_FIELD_STR, TERN_ASK_AT(model), 0, 512, NULL},
    {"prompt", TERN_FIELD_ANY, TERN_ASK_AT(prompt), 0, 0, NULL},
    {"messages", TERN_FIELD_ARR, TERN_ASK_AT(messages), 0, 0, NULL},
    {"tools", TERN_FIELD_ARR, TERN_ASK_AT(tools), 0, 0, NULL},
    {"tool_choice", TERN_FIELD_ANY, TERN_ASK_AT(tool_choice), 0, 0, NULL},
    {"reasoning_effort", TERN_FIELD_STR, TERN_ASK_AT(effort), 0, 0, NULL},
    {"chat_template_kwargs", TERN_FIELD_OBJ, TERN_ASK_AT(template_vars), 0, 0, NULL},
    {"file", TERN_FIELD_STR, TERN_ASK_AT(text), 0, 0, NULL},
    {0},
};

/* Whole pages alone, so that what is computed ends where a file can. */
static int cut_to_pages(struct tern_job *j, const char *param, struct tern_fault *f)
{
    struct tern_lane *lane = &j->lanes[0];
    if (j->n_lanes > 1)
        return tern_fault_set(f, 400, "invalid_value", param, "%s must be one prompt", param);
    if (lane->ids.len < TERN_CACHE_PAGE)
        return tern_fault_set(f, 400, "invalid_value", param,
                              "the prompt has %zu tokens; a cache file holds whole pages of %d", lane->ids.len,
                              TERN_CACHE_PAGE);
    lane->ids.len = lane->ids.len / TERN_CACHE_PAGE * TERN_CACHE_PAGE;
    while (lane->borders.len && (size_t)lane->borders.p[lane->borders.len - 1] > lane->ids.len)
        lane->borders.len--;
    return 0;
}

static int prepare_export(struct tern_job *j, struct tern_fault *f)
{
    if (enabled(j, f) < 0 || tern_ask_read(j, export_fields, f) < 0)
        return -1;
    struct tern_ask *g = j->ask;
    const char *param = g->messages ? "messages" : "prompt";
    if (g->messages && g->prompt)
        return tern_fault_set(f, 400, "invalid_value", "prompt", "messages and prompt exclude each other");
    if (g->text && check_name(g->text, f) < 0)
        return -1;
    g->max_tokens = 0;
    if (tern_ask_request(j, f) < 0)
        return -1;
    if ((g->messages ? tern_ask_conversation(j, f) : tern_ask_prompts(j, g->prompt, param, f)) < 0)
        return -1;
    return cut_to_pages(j, param, f);
}

/* What a link leads to is not in the directory. */
static int write_file(const struct tern_job *j, const void *bytes, size_t n, struct tern_fault *f)
{
    static const struct tern_outfile_kind kind = {"a cache file", MAGIC, 8, false, true};
    struct tern_outfile file = {.fd = -1};
    struct tern_buf path = {0};
    struct stat st;
    tern_error err = {0};
    int rc = tern_buf_addf(&path, &err, "%s/%s", j->server->p.cache_files, j->ask->text);
    if (rc == 0 && lstat(path.p, &st) == 0 && !S_ISREG(st.st_mode))
        rc = tern_err_set(&err, TERN_EINVAL, "%s is there and is no file", j->ask->text);
    if (rc == 0)
        rc = tern_outfile_open(&file, path.p, 0600, &kind, &err);
    if (rc == 0)
        rc = tern_outfile_write(&file, bytes, n, &err);
    if (rc == 0)
        rc = tern_outfile_commit(&file, &err);
    tern_outfile_abort(&file);
    tern_buf_clear(&path);
    return rc < 0 ? tern_fault_from(f, &err, "file") : 0;
}

static int give_export(struct tern_job *j, struct tern_fault *f)
{
    void *bytes;
    size_t n;
    int n_tokens;
    tern_error err = {0};
    const struct tern_lane *lane = &j->lanes[0];
    const char *name = j->ask->text;
    const size_t most = name ? SIZE_MAX : j->server->p.max_body;
    if (tern_loop_cache_export(j->served->loop, lane->ids.p, (int)lane->ids.len, most, &bytes, &n, &n_tokens, &err) <
        0) {
        (void)from_error(f, &err, NULL);
        if (err.code == TERN_ELIMIT)
            return tern_fault_set(f, 413, NULL, "file", "%.300s (--max-body); name a file to write it to", err.msg);
        return -1;
    }
    int rc = name ? write_file(j, bytes, n, f) : 0;
    if (rc == 0 && name)
        j->answer = json_pack("{ss so sI si}", "object", "cache_file", "file", tern_json_cstr(name), "bytes",
                              (json_int_t)n, "tokens", n_tokens);
    else if (rc == 0 && tern_buf_add(&j->raw, bytes, n, NULL) < 0)
        rc = tern_fault_set(f, 503, NULL, NULL, "out of memory");
    free(bytes);
    return rc;
}

static const struct tern_api export_file = {.shape = TERN_SHAPE_OPENAI, .prepare = give_export};
const struct tern_api tern_api_cache_export = {
    .shape = TERN_SHAPE_OPENAI, .prepare = prepare_export, .then = &export_file};

/* ---- in ---------------------------------------------------------------------------------------------------------- */

static int read_open(int fd, const char *name, size_t most, void **bytes, size_t *n, struct tern_fault *f)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return tern_fault_set(f, 400, "invalid_value", "file", "%.200s is no file", name);
    *n = (size_t)st.st_size;
    if (*n > most)
        return tern_fault_set(f, 413, NULL, "file",
                              "%.200s has %zu bytes, and the cache has room for %zu (--cache-ram)", name, *n, most);
    *bytes = malloc(*n + 1);
    if (!*bytes)
        return tern_fault_set(f, 503, NULL, NULL, "out of memory");
    for (size_t at = 0; at < *n;) {
        const ssize_t got = read(fd, (char *)*bytes + at, *n - at);
        if (got == 0 || (got < 0 && errno != EINTR))
            return tern_fault_set(f, 500, NULL, "file", "cannot read %.200s: %s", name,
                                  got ? strerror(errno) : "it was cut off meanwhile");
        at += got > 0 ? (size_t)got : 0;
    }
    return 0;
}

static int read_file(const struct tern_job *j, const char *name, void **bytes, size_t *n, struct tern_fault *f)
{
    if (check_name(name, f) < 0)
        return -1;
    const int dir = open(j->server->p.cache_files, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int fd = dir >= 0 ? openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) : -1;
    const int why = errno;
    if (dir >= 0)
        (void)close(dir);
    if (fd < 0)
        return tern_fault_set(f, why == ENOENT ? 404 : 400, NULL, "file", "cannot open %.200s: %s", name,
                              why == ELOOP ? "it is a link" : strerror(why));
    const int rc = read_open(fd, name, j->served->opened.cache_bytes, bytes, n, f);
    (void)close(fd);
    return rc;
}

static int import(struct tern_job *j, const void *bytes, size_t n, const char *name, struct tern_fault *f)
{
    int n_tokens;
    tern_error err = {0}, named = {0};
    int rc = tern_loop_cache_import(j->served->loop, bytes, n, &n_tokens, &err);
    if (rc < 0) {
        (void)tern_err_set(&named, rc, "%.200s: %.300s", name ? name : "the cache file", err.msg);
        return from_error(f, &named, name ? "file" : NULL);
    }
    j->answer = json_pack("{ss so sI si}", "object", "cache_file", "file", tern_json_cstr(name), "bytes", (json_int_t)n,
                          "tokens", n_tokens);
    return 0;
}

static int prepare_import(struct tern_job *j, struct tern_fault *f)
{
    static const struct tern_field fields[] = {
        {"model", TERN_FIELD_STR, TERN_ASK_AT(model), 0, 512, NULL},
        {"file", TERN_FIELD_STR, TERN_ASK_AT(text), 0, 0, NULL},
        {0},
    };
    void *bytes = NULL;
    size_t n = 0;
    if (enabled(j, f) < 0)
        return -1;
    if (!j->root)
        return import(j, j->body.p, j->body.len, NULL, f);
    if (tern_ask_read(j, fields, f) < 0)
        return -1;
    if (!j->ask->text)
        return tern_fault_set(f, 400, "missing_required_parameter", "file",
                              "file is missing; the body is a cache file, or JSON that names one");
    int rc = read_file(j, j->ask->text, &bytes, &n, f);
    if (rc == 0)
        rc = import(j, bytes, n, j->ask->text, f);
    free(bytes);
    return rc;
}

const struct tern_api tern_api_cache_import = {.shape = TERN_SHAPE_OPENAI, .magic = MAGIC, .prepare = prepare_import};
