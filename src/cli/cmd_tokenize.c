/* tern tokenize: text to ids and back. */
#include <string.h>

#include "cli/cli.h"

static int print_ids(const tern_tokens *ids, tern_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < ids->len; i++)
        TERN_TRY(tern_out_printf(err, "%s%d", i ? "," : "", ids->p[i]));
    TERN_TRY(tern_out_printf(err, "\n"));
out:
    return rc;
}

static int print_table(const tern_model *m, const tern_tokens *ids, tern_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < ids->len; i++) {
        const char *spelling = tern_model_token(m, ids->p[i]);
        TERN_TRY(tern_out_printf(err, "%d\t%s\n", ids->p[i], spelling ? tern_shown(spelling) : ""));
    }
out:
    return rc;
}

/* tokens: the spelling of each, null where there is none; text: what the ids say, NULL when they come from a text. */
static int report(const tern_model *m, const tern_tokens *ids, const struct tern_buf *text, tern_error *err)
{
    json_t *list = json_array(), *tokens = json_array();
    for (size_t i = 0; i < ids->len; i++) {
        json_array_append_new(list, json_integer(ids->p[i]));
        json_array_append_new(tokens, tern_json_text(tern_model_token(m, ids->p[i])));
    }
    json_t *own = json_pack("{so so sI}", "ids", list, "tokens", tokens, "n_tokens", (json_int_t)ids->len);
    if (text)
        (void)json_object_set_new(own, "text", tern_json_text(text->p ? text->p : ""));
    return tern_report_print(tern_report_json("tokenize", m, 0), own, err);
}

static int encode(const tern_model *m, const struct tern_args *a, const struct tern_buf *in, tern_error *err)
{
    int rc = 0;
    tern_tokens ids = {0};
    unsigned flags = a->v[TERN_OPT_NO_SPECIAL].n ? 0 : TERN_TEXT_SPECIAL | TERN_TEXT_BOS;
    TERN_TRY(tern_setup_tokenize(m, in, flags, "standard input", &ids, err));
    if (a->v[TERN_OPT_JSON].n)
        rc = report(m, &ids, NULL, err);
    else
        rc = a->v[TERN_OPT_TOKEN_IDS].n ? print_ids(&ids, err) : print_table(m, &ids, err);
out:
    tern_tokens_clear(&ids);
    return rc;
}

static int decode(const tern_model *m, const struct tern_args *a, const struct tern_buf *in, tern_error *err)
{
    int rc = 0;
    tern_tokens ids = {0};
    tern_stream *stream = NULL;
    struct tern_buf all = {0};
    const bool json = a->v[TERN_OPT_JSON].n > 0;
    const char *text;
    size_t n;
    TERN_TRY(tern_ids_read(&ids, in->p, in->len, "standard input", err));
    TERN_TRY(tern_stream_new(&stream, m, a->v[TERN_OPT_NO_SPECIAL].n == 0, err));
    for (size_t i = 0; i < ids.len; i++) {
        TERN_TRY(tern_stream_push(stream, ids.p[i], &text, &n, err));
        TERN_TRY(json ? tern_buf_add(&all, text, n, err) : tern_out_write(text, n, err));
    }
    TERN_TRY(tern_stream_finish(stream, &text, &n, err));
    TERN_TRY(json ? tern_buf_add(&all, text, n, err) : tern_out_write(text, n, err));
    if (json)
        TERN_TRY(report(m, &ids, &all, err));
out:
    tern_buf_clear(&all);
    tern_stream_free(stream);
    tern_tokens_clear(&ids);
    return rc;
}

int tern_cmd_tokenize(const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    tern_model *m = NULL;
    struct tern_buf in = {0};
    if (a->v[TERN_OPT_DECODE].n && a->v[TERN_OPT_TOKEN_IDS].n)
        TERN_TRY(tern_cli_usage(err, "--ids and --decode exclude each other"));
    if (a->v[TERN_OPT_JSON].n && a->v[TERN_OPT_TOKEN_IDS].n)
        TERN_TRY(tern_cli_usage(err, "--ids and --json exclude each other; --json has the ids"));
    TERN_TRY(tern_model_open(&m, a->v[TERN_OPT_MODEL].s, &(tern_model_params){.packed = "use", .device = "cpu"}, err));
    tern_packed_note(m);
    TERN_TRY(tern_setup_read(&in, "-", TERN_CLI_MAX_TEXT, err));
    TERN_TRY(a->v[TERN_OPT_DECODE].n ? decode(m, a, &in, err) : encode(m, a, &in, err));
out:
    tern_buf_clear(&in);
    tern_model_close(&m);
    return rc;
}
