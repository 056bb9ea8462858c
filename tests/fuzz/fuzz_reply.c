/* First byte: format, second byte: size of pieces; the rest is a reply.  In pieces it gives what it gives as a whole,
 * arguments are JSON objects, and of a reply that is nothing but content, as long as it, content is the reply. */
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include "reply_transcript.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int n_others; /* events that are not content */

static int on_event(void *user, const tern_reply_event *e)
{
    n_others += e->kind != TERN_REPLY_CONTENT;
    if (e->kind == TERN_REPLY_CALL_ARGUMENTS) {
        json_t *j = json_loadb(e->text, e->n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
        if (!json_is_object(j))
            abort();
        json_decref(j);
    }
    return transcript_event(user, e);
}

static void run(int format, const char *text, size_t n, size_t piece, struct transcript *t)
{
    static const char *const reasonings[] = {"think", "bracket", "channel"};
    const tern_reply_params p = {.calls = tern_reply_formats()[format],
                                 .reasoning = reasonings[format % 3],
                                 .tools = format % 2 ? "[{\"name\": \"f\"}]" : NULL,
                                 .on_event = on_event,
                                 .user = t};
    tern_reply *r;
    if (tern_reply_make(&r, NULL, &p, NULL) < 0)
        abort();
    for (size_t at = 0; at < n; at += piece)
        if (tern_reply_push(r, text + at, piece < n - at ? piece : n - at, false, NULL) != 0)
            abort();
    if (tern_reply_finish(r, NULL) != 0)
        abort();
    tern_reply_free(r);
    transcript_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int n_formats = 0;
    struct transcript whole = {0}, pieces = {0};
    while (tern_reply_formats()[n_formats])
        n_formats++;
    if (size < 2)
        return 0;
    const char *text = (const char *)data + 2;
    size_t n = size - 2;
    n_others = 0;
    run(data[0] % n_formats, text, n, n ? n : 1, &whole);
    run(data[0] % n_formats, text, n, 1 + data[1] % 16, &pieces);
    if (whole.text.len != pieces.text.len ||
        (n && whole.text.len && memcmp(whole.text.p, pieces.text.p, whole.text.len) != 0))
        abort();
    if (n && n_others == 0 && whole.text.len == n + 2 && memcmp(whole.text.p + 1, text, n) != 0)
        abort();
    transcript_clear(&whole);
    transcript_clear(&pieces);
    return 0;
}
