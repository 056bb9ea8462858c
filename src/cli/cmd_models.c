/* tern models: what can be fetched, and what is in a folder. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/cli.h"

/* What tools/fetch-model knows; e2e/models holds the two lists to each other. */
static const struct known {
    const char *name, *title, *file, *licence;
    double bytes;
} known[] = {
    {"smollm2", "SmolLM2-135M-Instruct, Q4_1", "smollm2-135m-instruct-q4_1.gguf", "Apache-2.0", 98362432},
    {"gemma3-270m", "Gemma 3 270M (base), Q4_K_M", "gemma3-270m-q4_k_m.gguf", "Gemma Terms of Use", 253113024},
};
#define N_KNOWN (sizeof known / sizeof *known)

struct found {
    char *name; /* owned; in the folder */
    double bytes;
    bool directory;
};

struct folder {
    const char *path;
    struct found *v;
    size_t n, cap;
};

static void clear(struct folder *f)
{
    for (size_t i = 0; i < f->n; i++)
        free(f->v[i].name);
    tern_free(f->v);
}

/* Bytes of the safetensors of a folder with a config.json, else -1. */
static double directory_bytes(int fd)
{
    struct stat st;
    double bytes = 0;
    bool config = fstatat(fd, "config.json", &st, 0) == 0;
    DIR *d = fdopendir(fd); /* owns fd */
    if (!d) {
        (void)close(fd);
        return -1;
    }
    for (struct dirent *e; (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n > 12 && strcmp(e->d_name + n - 12, ".safetensors") == 0 && fstatat(fd, e->d_name, &st, 0) == 0)
            bytes += (double)st.st_size;
    }
    (void)closedir(d);
    return config && bytes > 0 ? bytes : -1;
}

/* Is this a model, by its first bytes? */
static bool is_model(int folder, const char *name, struct found *out)
{
    struct stat st;
    char magic[4];
    int fd = openat(folder, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
        out->directory = true;
        out->bytes = directory_bytes(fd);
        return out->bytes > 0;
    }
    bool is = S_ISREG(st.st_mode) && pread(fd, magic, 4, 0) == 4 && memcmp(magic, "GGUF", 4) == 0;
    out->bytes = (double)st.st_size;
    (void)close(fd);
    return is;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct found *)a)->name, ((const struct found *)b)->name);
}

/* asked: the user named the folder, so it has to be there. */
static int read_folder(struct folder *f, bool asked, tern_error *err)
{
    int rc = 0;
    DIR *d = opendir(f->path);
    if (!d)
        return asked ? tern_err_set(err, TERN_EIO, "%s: %s", tern_shown(f->path), strerror(errno)) : 0;
    for (struct dirent *e; (e = readdir(d));) {
        struct found one = {0};
        if (e->d_name[0] == '.' || !is_model(dirfd(d), e->d_name, &one))
            continue;
        one.name = strdup(e->d_name);
        if (!one.name)
            TERN_FAIL(err, TERN_ENOMEM, "cannot allocate the list of models");
        rc = f->n == f->cap ? tern_grow(&f->v, &f->cap, f->n + 1, sizeof *f->v, err) : 0;
        if (rc < 0) {
            free(one.name);
            goto out;
        }
        f->v[f->n++] = one;
    }
    if (f->n)
        qsort(f->v, f->n, sizeof *f->v, by_name);
out:
    (void)closedir(d);
    return rc;
}

static bool is_there(const struct folder *f, const struct known *k)
{
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->v[i].name, k->file) == 0)
            return true;
    return false;
}

static int print_json(const struct folder *f, tern_error *err)
{
    json_t *can = json_array(), *have = json_array();
    for (size_t i = 0; i < N_KNOWN; i++)
        json_array_append_new(can, json_pack("{ss ss ss ss sI sb}", "name", known[i].name, "title", known[i].title,
                                             "file", known[i].file, "licence", known[i].licence, "bytes",
                                             (json_int_t)known[i].bytes, "there", is_there(f, &known[i])));
    for (size_t i = 0; i < f->n; i++)
        json_array_append_new(have, json_pack("{so sI ss}", "file", tern_json_text(f->v[i].name), "bytes",
                                              (json_int_t)f->v[i].bytes, "container",
                                              f->v[i].directory ? "safetensors" : "GGUF"));
    return tern_report_print(tern_report_json("models", NULL, 0),
                             json_pack("{so so so}", "folder", tern_json_text(f->path), "known", can, "files", have),
                             err);
}

int tern_cmd_models(const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    struct folder f = {.path = a->n_operands ? a->operands[0] : "models"};
    TERN_TRY(read_folder(&f, a->n_operands > 0, err));
    if (a->v[TERN_OPT_JSON].n) {
        rc = print_json(&f, err);
        goto out;
    }
    TERN_TRY(tern_out_printf(err, "To fetch with tools/fetch-model NAME (--licence NAME shows the licence first):\n"));
    for (size_t i = 0; i < N_KNOWN; i++)
        TERN_TRY(tern_out_printf(err, "  %-12s %8s  %-18s  %s%s\n", known[i].name, tern_size_text(known[i].bytes),
                                 known[i].licence, known[i].title, is_there(&f, &known[i]) ? " (there)" : ""));
    TERN_TRY(tern_out_printf(err, "\nIn %s:%s\n", tern_shown(f.path), f.n ? "" : " none"));
    for (size_t i = 0; i < f.n; i++)
        TERN_TRY(tern_out_printf(err, "  %8s  %s%s\n", tern_size_text(f.v[i].bytes), tern_shown(f.v[i].name),
                                 f.v[i].directory ? "/" : ""));
out:
    clear(&f);
    return rc;
}
