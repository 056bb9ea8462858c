/* First byte: the notation; then a rule, and behind a NUL a text.  The rule is refused with a sentence or compiled;
 * then the text is followed in one piece and byte by byte with the same result, and masks allow what can be taken. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCAB = 257 };

static int token(void *user, int32_t id, struct tern_gr_token *out, tern_error *err)
{
    static char byte;
    (void)user;
    (void)err;
    byte = (char)id;
    *out = (struct tern_gr_token){.p = &byte, .n = id < 256, .ends = id == 256};
    return 0;
}

static void follow(const tern_grammar *g, const struct tern_gr_vocab *v, const char *text, size_t n,
                   tern_grammar_fit fit)
{
    tern_error err = {0};
    struct tern_gr_matcher *m;
    bool alive = true;
    if (tern_gr_matcher_new(&m, g, v, &err) < 0)
        return;
    for (size_t i = 0; i < n && alive; i++) {
        uint32_t mask[VOCAB / 32 + 1] = {0};
        unsigned char c = (unsigned char)text[i];
        if (tern_gr_mask(m, mask, &err) < 0)
            goto out;
        alive = mask[c / 32] >> (c % 32) & 1;
        int rc = tern_gr_take(m, c, &err);
        if (rc == TERN_ELIMIT)
            goto out;
        if ((rc == 0) != alive)
            abort();
    }
    if (alive != (fit != TERN_GRAMMAR_NOT) || (alive && tern_gr_complete(m) != (fit == TERN_GRAMMAR_WHOLE)))
        abort();
out:
    tern_gr_matcher_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tern_gr_vocab *v;
    tern_grammar *g;
    tern_error err = {0};
    tern_grammar_fit fit;
    if (size < 1)
        return 0;
    if (!v && tern_gr_vocab_new(&v, VOCAB, token, NULL, NULL) < 0)
        abort();
    const char *rule = (const char *)data + 1, *end = memchr(rule, 0, size - 1);
    size_t n = end ? (size_t)(end - rule) : size - 1, n_text = end ? size - 2 - n : 0;
    const struct tern_gr_calls calls = {"<tool_call>", "</tool_call>", false,       "name", "arguments",
                                        NULL,          NULL,           data[0] & 8, true};
    const struct tern_gr_frame frame = {data[0] & 16 ? "<think>" : NULL, "</think>", data[0] & 32};
    int rc = tern_gr_compile(&g, (enum tern_gr_kind)((data[0] & 7) % 6), rule, n, &frame, &calls, &err);
    if (rc < 0) {
        if (!err.msg[0] || strchr(err.msg, '\n'))
            abort();
        return 0;
    }
    if (n_text > 300)
        n_text = 300;
    if (tern_grammar_check(g, end ? end + 1 : "", n_text, &fit, &err) == 0)
        follow(g, v, end ? end + 1 : "", n_text, fit);
    tern_grammar_free(g);
    return 0;
}
