/* Template text up to the first NUL byte, message content behind it.  Whatever both hold, a render ends with a text
 * whose spans tile it or with one sentence, within the engine's own limits. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "text/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct tern_rendered *r)
{
    size_t at = 0;
    for (size_t i = 0; i < r->n_spans; i++) {
        const struct tern_span *s = &r->spans[i];
        if (s->begin != at || s->end <= at || (i && s->user == r->spans[i - 1].user))
            abort();
        at = s->end;
    }
    if (at != r->text.len || r->text.p[at] != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char vars[] = "{\"tools\": [{\"name\": \"f\", \"p\": {\"a\": [1, 2.5, null, true]}}], \"n\": 3, "
                               "\"s\": \"\xc3\xa9 x\", \"l\": [3, 1, 2], \"d\": {\"b\": 1, \"a\": {\"c\": []}}}";
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - data) : size;
    size_t rest = nul ? size - n - 1 : 0;
    struct tern_template *t = NULL;
    struct tern_rendered out = {0};
    tern_error err = {0};
    char *content = malloc(rest + 1);
    if (!content)
        return 0;
    if (rest)
        memcpy(content, nul + 1, rest);
    content[rest] = 0;
    const struct tern_chat_message msgs[] = {{"system", "sys"}, {"user", content}, {content, "<|im_end|>"}};
    if (tern_template_parse(&t, "fuzz", (const char *)data, n, &err) == 0 &&
        tern_template_render(t, msgs, 3, true, "<s>", "</s>", vars, &out, &err) == 0)
        check(&out);
    else if (err.code >= 0 || !err.msg[0])
        abort();
    if (t && tern_template_render_json(t, content, false, NULL, NULL, NULL, &out, NULL) == 0)
        check(&out);
    tern_rendered_clear(&out);
    tern_template_free(t);
    free(content);
    return 0;
}
