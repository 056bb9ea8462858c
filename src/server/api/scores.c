/* Tokens with their probabilities, in the shapes that APIs have for them. */
#include <math.h>
#include <string.h>

#include "server/api/ask.h"

static json_t *probability(double p)
{
    return isfinite(p) ? json_real(p) : isnan(p) ? json_null() : json_real(-9999.0); /* JSON has no infinity */
}

json_t *tern_scores_entry(const tern_token_score *t)
{
    json_t *top = json_array();
    for (int i = 0; i < t->n_top; i++)
        (void)json_array_append_new(top, json_pack("[i o]", (int)t->top[i].id, probability(t->top[i].logprob)));
    return json_pack("{si so so}", "id", (int)t->id, "logprob", probability(t->logprob), "top", top);
}

void tern_choice_score(struct tern_choice *c, const tern_event *e)
{
    if (!c->scores)
        c->scores = json_array();
    for (int i = 0; i < e->n_tokens; i++)
        (void)json_array_append_new(c->scores, tern_scores_entry(&e->tokens[i]));
}

void tern_token_text(const tern_model *m, int32_t id, struct tern_buf *out)
{
    char text[1024];
    size_t n = 0;
    tern_buf_reset(out);
    tern_error err = {0};
    if (tern_model_token_bytes(m, id, text, sizeof text, &n, &err) == 0)
        tern_json_add(out, text, n <= sizeof text ? n : 0);
    else if (err.code == TERN_ENOMEM)
        tern_json_lack();
}

static json_t *chat_token(const tern_model *m, int32_t id, json_t *logprob, struct tern_buf *b)
{
    tern_token_text(m, id, b);
    json_t *bytes = json_array();
    for (size_t i = 0; i < b->len; i++)
        (void)json_array_append_new(bytes, json_integer((unsigned char)b->p[i]));
    return json_pack("{so sO so}", "token", tern_json_chars(b->p, b->len), "logprob", logprob, "bytes", bytes);
}

json_t *tern_scores_chat(const tern_model *m, json_t *scores)
{
    json_t *content = json_array(), *t, *pair;
    struct tern_buf b = {0};
    size_t i, k;
    json_array_foreach(scores, i, t)
    {
        json_t *entry =
            chat_token(m, (int32_t)json_integer_value(json_object_get(t, "id")), json_object_get(t, "logprob"), &b);
        json_t *top = json_array();
        json_array_foreach(json_object_get(t, "top"), k, pair)
        {
            (void)json_array_append_new(
                top, chat_token(m, (int32_t)json_integer_value(json_array_get(pair, 0)), json_array_get(pair, 1), &b));
        }
        (void)json_object_set_new(entry, "top_logprobs", top);
        (void)json_array_append_new(content, entry);
    }
    tern_buf_clear(&b);
    return json_pack("{so sn}", "content", content, "refusal");
}

/* Where two ids have one text the likelier one stays, which comes first. */
static void add_top(const tern_model *m, json_t *map, int32_t id, json_t *logprob, struct tern_buf *b)
{
    tern_token_text(m, id, b);
    json_t *key = tern_json_chars(b->p, b->len), *before = json_object_get(map, json_string_value(key));
    if (!before || json_number_value(before) < json_number_value(logprob))
        (void)json_object_set(map, json_string_value(key), logprob);
    json_decref(key);
}

size_t tern_characters(const char *text, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)text[i] & 0xC0) != 0x80;
    return count;
}

void tern_scores_place(json_t *scores, size_t i, size_t offset)
{
    if (i < json_array_size(scores))
        (void)json_object_set_new(json_array_get(scores, i), "offset", json_integer((json_int_t)offset));
}

json_t *tern_scores_legacy(const tern_model *m, json_t *scores)
{
    json_t *tokens = json_array(), *logprobs = json_array(), *tops = json_array(), *offsets = json_array(), *t, *pair;
    struct tern_buf b = {0};
    size_t i, k;
    json_array_foreach(scores, i, t)
    {
        int32_t id = (int32_t)json_integer_value(json_object_get(t, "id"));
        json_t *logprob = json_object_get(t, "logprob"), *map = json_is_null(logprob) ? json_null() : json_object();
        json_array_foreach(json_object_get(t, "top"), k, pair)
        {
            if (json_is_object(map))
                add_top(m, map, (int32_t)json_integer_value(json_array_get(pair, 0)), json_array_get(pair, 1), &b);
        }
        if (json_is_object(map))
            add_top(m, map, id, logprob, &b);
        tern_token_text(m, id, &b);
        (void)json_array_append_new(tokens, tern_json_chars(b.p, b.len));
        (void)json_array_append(logprobs, logprob);
        (void)json_array_append_new(tops, map);
        (void)json_array_append(offsets, json_object_get(t, "offset"));
    }
    tern_buf_clear(&b);
    return json_pack("{so so so so}", "tokens", tokens, "token_logprobs", logprobs, "top_logprobs", tops, "text_offset",
                     offsets);
}
