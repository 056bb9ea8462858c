/* What strangers send.  First byte: what is read; second byte: an API, or the size of pieces; the rest is the text.
 *   even   a head, and behind it a body in chunks, which in pieces is what it is as a whole
 *   odd    the body of a request, up to the point where the engine would get it */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "server/api/ask.h"
#define main make_text_model
#include "../support/make_text_model.c"
#undef main

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- HTTP -------------------------------------------------------------------------------------------------------- */

static bool take_chunks(const char *text, size_t n, size_t piece, struct tern_buf *body)
{
    struct tern_http_chunks c = {0};
    for (size_t at = 0; at < n && !c.done; at += piece) {
        int status = 0;
        size_t k = piece < n - at ? piece : n - at;
        if (tern_http_chunks_take(&c, text + at, k, body, &status, NULL) < 0) {
            if (status != 400 && status != 413)
                abort();
            return false;
        }
    }
    return c.done;
}

static void http(const char *text, size_t n, size_t piece)
{
    struct tern_http_head h;
    int status = 0;
    size_t end = tern_http_head_end(text, n);
    if (end == 0)
        return;
    if (tern_http_head_parse(&h, text, end, &status, NULL) == 0) {
        if (h.path[0] != '/' || !h.query || (h.chunked && h.length >= 0))
            abort();
        for (int i = 0; i < h.n_fields; i++)
            if (strpbrk(h.fields[i].name, "\r\n ") || strpbrk(h.fields[i].value, "\r\n"))
                abort();
    } else if (status < 400 || status > 505) {
        abort();
    }
    tern_http_head_clear(&h);
    struct tern_buf whole = {.max = 4096}, pieces = {.max = 4096};
    bool good = take_chunks(text + end, n - end, n - end ? n - end : 1, &whole);
    if (take_chunks(text + end, n - end, piece, &pieces) != good ||
        (good && (whole.len != pieces.len || (whole.len && memcmp(whole.p, pieces.p, whole.len) != 0))))
        abort();
    tern_buf_clear(&whole);
    tern_buf_clear(&pieces);
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static struct tern_server server;
static struct tern_served served = {.server = &server, .name = "m", .path = "m", .state = TERN_SERVED_OPEN, .holds = 1};

static void open_model(void)
{
    char path[] = "/tmp/tern-fuzz-XXXXXX";
    int fd = mkstemp(path);
    char *argv[] = {"make_text_model", "--tools", path, NULL};
    if (fd < 0 || close(fd) != 0 || make_text_model(3, argv) != 0)
        abort();
    const tern_model_params mp = {.n_threads = 1, .packed = "off"};
    const tern_engine_params ep = {.n_threads = 1, .ctx = 512, .max_seqs = 1};
    tern_json_limit_memory();
    if (tern_model_open(&served.model, path, &mp, NULL) < 0 ||
        tern_engine_open(&served.engine, served.model, &ep, NULL) < 0)
        abort();
    (void)unlink(path);
    server.p.max_choices = 4;
    server.p.n_models = 1;
    server.models.all = &served;
}

static void request(int which, const char *text, size_t n)
{
    static const struct tern_api *const apis[] = {
        &tern_api_chat,      &tern_api_completions, &tern_api_messages,    &tern_api_count,
        &tern_api_responses, &tern_api_embeddings,  &tern_api_ollama_chat, &tern_api_ollama_generate,
        &tern_api_tokenize,  &tern_api_detokenize,  &tern_api_template,    &tern_api_ollama_show,
    };
    const struct tern_api *api = apis[which % (int)(sizeof apis / sizeof *apis)];
    struct tern_fault f = {0};
    struct tern_job *j = tern_job_new(&server, api);
    if (!j || tern_buf_add(&j->body, text, n, NULL) < 0)
        abort();
    if (tern_job_read(j, &f) < 0 || api->prepare(j, &f) < 0) {
        if (f.status < 400 || f.status > 503 || !f.text[0] || strchr(f.text, '\n'))
            abort();
        json_decref(tern_fault_json(&f, api->shape));
    } else if (!j->answer) { /* what the engine would get is in order */
        const tern_request *r = &j->ask->request;
        if (j->n_lanes < 1 || r->n_choices < 1 || r->n_choices > 4 || r->n_stop > TERN_MAX_STOPS)
            abort();
        for (int i = 0; i < j->n_lanes; i++)
            if (j->lanes[i].ids.len < 1 || j->lanes[i].ids.len > 512)
                abort();
    }
    tern_job_free(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!served.model)
        open_model();
    if (size < 2)
        return 0;
    const char *text = (const char *)data + 2;
    if (data[0] % 2)
        request(data[1], text, size - 2);
    else
        http(text, size - 2, 1 + data[1] % 16);
    return 0;
}
