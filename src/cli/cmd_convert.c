/* tern convert: a model file out of another. */
#include <string.h>

#include "cli/cli.h"
#include "tern/convert.h"

static int report(const struct tern_args *a, const tern_convert_report *r, tern_error *err)
{
    const char *to = a->v[TERN_OPT_CONVERT_OUT].s;
    if (a->v[TERN_OPT_JSON].n)
        return tern_report_print(tern_report_json("convert", NULL, 0),
                                 json_pack("{so ss sI sI sI sI so ss}", "file", tern_json_text(to), "type",
                                           a->v[TERN_OPT_CONVERT_TYPE].s, "n_tensors", (json_int_t)r->n_tensors,
                                           "bytes", (json_int_t)r->bytes, "n_chunks", (json_int_t)r->chunks,
                                           "n_chunks_kept", (json_int_t)r->chunks_kept, "tokenizer",
                                           tern_json_text(r->tokenizer), "differs", r->differs),
                                 err);
    if (r->chunks_kept)
        tern_note("%d of %d chunks were there from an earlier run", r->chunks_kept, r->chunks);
    tern_note("%s: %zu tensors, %s, tokenizer %s", tern_shown(to), r->n_tensors, tern_size_text((double)r->bytes),
              tern_shown(r->tokenizer));
    if (*r->differs)
        tern_note("%s", r->differs);
    return 0;
}

int tern_cmd_convert(const struct tern_args *a, tern_error *err)
{
    tern_convert_report r;
    struct tern_progress progress = {.what = "chunks"};
    tern_convert_params p = {.type = a->v[TERN_OPT_CONVERT_TYPE].s,
                             .n_threads = (int)a->v[TERN_OPT_THREADS].i,
                             .requantize = a->v[TERN_OPT_REQUANTIZE].n > 0,
                             .no_tokenizer = a->v[TERN_OPT_NO_TOKENIZER].n > 0,
                             .progress = tern_progress_show,
                             .user = &progress};
    if (strcmp(a->v[TERN_OPT_CONVERT_OUT].s, "-") == 0)
        return tern_cli_usage(err, "-o -: a model is no stream; name a file");
    tern_signals_hold();
    int rc = tern_convert(a->v[TERN_OPT_MODEL].s, a->v[TERN_OPT_CONVERT_OUT].s, &p, &r, err);
    tern_progress_end(&progress);
    if (rc == TERN_ECANCELLED && tern_signals_interrupted())
        return TERN_CLI_INTERRUPTED;
    return rc < 0 ? rc : report(a, &r, err);
}
