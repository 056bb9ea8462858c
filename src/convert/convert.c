/* tern_convert: a plan, and then the file. */
#include "convert/convert_impl.h"

#include <stdio.h>
#include <string.h>

/* The new file's metadata opens, and what it says about text can be used. */
static int describe(const struct plan *p, tern_convert_report *report, tern_error *err)
{
    int rc = 0;
    struct tern_file *f = NULL;
    struct tern_str model, pre;
    struct tern_buf head = {0};
    struct tern_gguf bare = p->head; /* without tensors, whose data do not exist yet */
    bare.n_tensors = 0;
    bare.infos = (struct tern_buf){0};
    TERN_TRY(tern_gguf_head(&bare, &head, err));
    TERN_TRY(tern_file_open_memory(&f, head.p, head.len, "the new file", err));
    TERN_TRY(tern_file_get_str(f, "tokenizer.ggml.model", &model, err));
    TERN_TRY(tern_file_get_str(f, "tokenizer.ggml.pre", &pre, err));
    (void)snprintf(report->tokenizer, sizeof report->tokenizer, "%.*s%s%.*s", (int)(model.p ? model.n : 4),
                   model.p ? model.p : "none", pre.p ? ", pre-tokenizer " : "", (int)pre.n, pre.p ? pre.p : "");
    report->n_tensors = p->n;
out:
    tern_file_close(&f);
    tern_buf_clear(&head);
    return rc;
}

int tern_convert(const char *from, const char *to, const tern_convert_params *params, tern_convert_report *report,
                 tern_error *err)
{
    static const tern_convert_params usual = {0};
    int rc = 0;
    tern_convert_report unseen;
    struct tern_file *f = NULL;
    struct plan p = {0};
    params = params ? params : &usual;
    report = report ? report : &unseen;
    *report = (tern_convert_report){0};
    if (!to || !*to)
        TERN_FAIL(err, TERN_EINVAL, "the new file has no name");
    if (params->n_threads < 0)
        TERN_FAIL(err, TERN_EINVAL, "threads = %d is negative", params->n_threads);
    TERN_TRY(tern_file_open(&f, from, err));
    p.f = f;
    TERN_TRY(tern_convert_plan_make(&p, params, err));
    tern_convert_differs(&p, report->differs, sizeof report->differs);
    TERN_TRY(describe(&p, report, err));
    TERN_TRY(tern_convert_write(&p, to, params, report, err));
out:
    tern_convert_plan_clear(&p);
    tern_file_close(&f);
    return rc;
}
