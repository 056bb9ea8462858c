/* Tokenizes without a model, for tools/compare_tokenizers.py: understands what that asks of `tern tokenize`, and takes
 * any GGUF file with a vocabulary, or a tokenizer.json with what lies beside it.
 *
 *     tokenize_driver tokenize -m FILE --ids [--no-special] [--decode] [--lines | --zero] < TEXT
 *
 * --lines: every line is a text of its own; --zero: what lies between NULs is.  One line of ids for each.  --decode:
 * the decoded ids instead, as hexadecimal bytes. */
#include <stdio.h>
#include <string.h>

#include "text/text.h"

static int read_beside(const char *path, const char *file, struct tern_buf *b, struct tern_str *out)
{
    char other[4096];
    const char *slash = strrchr(path, '/');
    (void)snprintf(other, sizeof other, "%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, file);
    if (tern_buf_read_file(b, other, 1 << 28, NULL) == 0)
        *out = (struct tern_str){.p = b->p ? b->p : "", .n = b->len};
    return 0;
}

static int load(const char *path, struct tern_tokenizer **t, tern_error *err)
{
    int rc = 0;
    struct tern_file *f = NULL;
    struct tern_buf b[4] = {{0}};
    struct tern_tokenizer_json files = {.name = path};
    size_t n = strlen(path);
    if (n > 5 && strcmp(path + n - 5, ".json") == 0) {
        TERN_TRY(tern_buf_read_file(&b[0], path, 1 << 28, err));
        files.tokenizer = (struct tern_str){.p = b[0].p, .n = b[0].len};
        TERN_TRY(read_beside(path, "tokenizer_config.json", &b[1], &files.config));
        TERN_TRY(read_beside(path, "generation_config.json", &b[2], &files.generation));
        TERN_TRY(read_beside(path, "config.json", &b[3], &files.model));
        TERN_TRY(tern_tokenizer_from_json(t, &files, err));
    } else {
        TERN_TRY(tern_file_open(&f, path, err));
        TERN_TRY(tern_tokenizer_from_file(t, f, err));
        if (!*t)
            TERN_FAIL(err, TERN_EINVAL, "%s: has no vocabulary", path);
    }
out:
    for (int i = 0; i < 4; i++)
        tern_buf_clear(&b[i]);
    tern_file_close(&f);
    return rc;
}

static int answer(const struct tern_tokenizer *t, const char *text, size_t n, bool special, bool decode,
                  tern_error *err)
{
    int rc = 0;
    struct tern_ids ids = {0};
    struct tern_buf back = {0};
    TERN_TRY(tern_tokenize(t, text, n, special ? TERN_TOK_SPECIAL | TERN_TOK_BOS_EOS : 0, &ids, err));
    if (decode)
        TERN_TRY(tern_detokenize(t, ids.p, ids.len, true, &back, err));
    for (size_t i = 0; i < back.len; i++)
        printf("%02x", (unsigned char)back.p[i]);
    for (size_t i = 0; i < ids.len && !decode; i++)
        printf(i ? ",%d" : "%d", ids.p[i]);
    printf("\n");
out:
    tern_ids_clear(&ids);
    tern_buf_clear(&back);
    return rc;
}

int main(int argc, char **argv)
{
    int rc = 0, sep = -1;
    bool special = true, decode = false;
    tern_error err = {0};
    struct tern_tokenizer *t = NULL;
    struct tern_buf in = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-m") == 0 && i + 1 < argc)
            TERN_TRY(load(argv[++i], &t, &err));
        special = special && strcmp(argv[i], "--no-special") != 0;
        decode = decode || strcmp(argv[i], "--decode") == 0;
        sep = strcmp(argv[i], "--lines") == 0 ? '\n' : strcmp(argv[i], "--zero") == 0 ? 0 : sep;
    }
    TERN_TRY(tern_buf_read_file(&in, "-", 1 << 30, &err));
    if (!t)
        TERN_FAIL(&err, TERN_EINVAL, "no -m FILE");
    const char *p = in.p ? in.p : "", *end = p + in.len;
    for (const char *stop; sep >= 0 && (stop = memchr(p, sep, (size_t)(end - p))); p = stop + 1)
        TERN_TRY(answer(t, p, (size_t)(stop - p), special, decode, &err));
    TERN_TRY(answer(t, p, (size_t)(end - p), special, decode, &err));
out:
    if (rc < 0)
        fprintf(stderr, "%s\n", err.msg);
    tern_buf_clear(&in);
    tern_tokenizer_free(t);
    return rc < 0;
}
