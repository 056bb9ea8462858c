/* POST /tokenize, /detokenize, /apply-template; GET /tokenizer_info: texts, and no computing. */
#include <string.h>

#include "server/api/ask.h"

struct text_request {
    const char *model;
    json_t *content, *prompt, *messages, *tokens;
    bool add_special, with_pieces, parse_special, skip_special;
};

#define AT(member) offsetof(struct text_request, member)

static json_t *id_list(const tern_model *m, const tern_tokens *ids, bool pieces)
{
    json_t *list = json_array();
    struct tern_buf b = {0};
    for (size_t i = 0; i < ids->len; i++) {
        if (pieces) {
            tern_token_text(m, ids->p[i], &b);
            (void)json_array_append_new(
                list, json_pack("{si so}", "id", (int)ids->p[i], "piece", tern_json_chars(b.p, b.len)));
        } else {
            (void)json_array_append_new(list, json_integer(ids->p[i]));
        }
    }
    tern_buf_clear(&b);
    return list;
}

/* "messages" as of /v1/chat/completions, and what belongs to them. */
static int conversation_ids(struct tern_job *j, tern_tokens *ids, struct tern_fault *f)
{
    static const struct tern_field table[] = {
        {"model", TERN_FIELD_STR, TERN_ASK_AT(model), 0, 512, NULL},
        {"messages", TERN_FIELD_ARR, TERN_ASK_AT(messages), 0, 0, NULL},
        {"tools", TERN_FIELD_ARR, TERN_ASK_AT(tools), 0, 0, NULL},
        {"tool_choice", TERN_FIELD_ANY, TERN_ASK_AT(tool_choice), 0, 0, NULL},
        {"reasoning_effort", TERN_FIELD_STR, TERN_ASK_AT(effort), 0, 0, NULL},
        {"chat_template_kwargs", TERN_FIELD_OBJ, TERN_ASK_AT(template_vars), 0, 0, NULL},
        TERN_ASK_CONTINUES,
        {"chat_template", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, "templates come from the model alone"},
        {0},
    };
    return tern_ask_read(j, table, f) < 0 ? -1 : tern_messages_tokens(j, ids, NULL, f);
}

/* A text, where there is one alone; its ids. */
static int text_ids(struct tern_job *j, const struct text_request *r, tern_tokens *ids, struct tern_fault *f)
{
    const json_t *text = r->prompt ? r->prompt : r->content;
    const char *param = r->prompt ? "prompt" : "content";
    tern_error err;
    if (r->prompt && r->content)
        return tern_fault_set(f, 400, "invalid_value", param,
                              "prompt and content are names of the same text; give one");
    if (!json_is_string(text))
        return tern_fault_set(f, 400, "invalid_type", param,
                              "the text to tokenize must be a string, in \"content\" or \"prompt\"");
    unsigned flags = (r->add_special ? TERN_TEXT_BOS : 0) | (r->parse_special ? TERN_TEXT_SPECIAL : 0);
    if (tern_model_tokenize(j->served->model, json_string_value(text), json_string_length(text), flags, ids, &err) < 0)
        return tern_fault_from(f, &err, param);
    return 0;
}

/* A text, or a conversation in "messages". */
static int tokenize(struct tern_job *j, struct tern_fault *f)
{
    static const struct tern_field table[] = {
        {"model", TERN_FIELD_STR, AT(model), 0, 512, NULL},
        {"content", TERN_FIELD_ANY, AT(content), 0, 0, NULL},
        {"prompt", TERN_FIELD_ANY, AT(prompt), 0, 0, NULL},
        {"messages", TERN_FIELD_ARR, AT(messages), 0, 0, NULL},
        {"add_special", TERN_FIELD_BOOL, AT(add_special), 0, 0, NULL},
        {"add_special_tokens", TERN_FIELD_BOOL, AT(add_special), 0, 0, NULL},
        {"parse_special", TERN_FIELD_BOOL, AT(parse_special), 0, 0, NULL},
        {"with_pieces", TERN_FIELD_BOOL, AT(with_pieces), 0, 0, NULL},
        {"return_token_strs", TERN_FIELD_OFF, TERN_FIELD_CHECKED, 0, 0, "ask with_pieces for what each token is"},
        {0},
    };
    /* llama-server's "content" adds nothing by itself, vLLM's "prompt" does. */
    struct text_request r = {.parse_special = true};
    tern_tokens ids = {0};
    if (tern_fields_read(table, j->root, "", &r, f) < 0)
        return -1;
    if (r.prompt && !json_object_get(j->root, "add_special_tokens") && !json_object_get(j->root, "add_special"))
        r.add_special = true;
    const bool talk = r.messages != NULL;
    if (talk && (r.prompt || r.content || r.add_special || !r.parse_special))
        return tern_fault_set(
            f, 400, "invalid_value", "messages",
            "messages stand alone: no text beside them, and templates write control tokens themselves");
    if ((talk ? conversation_ids(j, &ids, f) : text_ids(j, &r, &ids, f)) < 0) {
        tern_tokens_clear(&ids);
        return -1;
    }
    char prefix[TERN_PREFIX_ID];
    tern_prefix_id(&ids, prefix);
    j->answer =
        json_pack("{so sI si ss}", "tokens", id_list(j->served->model, &ids, r.with_pieces), "count",
                  (json_int_t)ids.len, "max_model_len", tern_engine_ctx(j->served->engine), "prefix_id", prefix);
    tern_tokens_clear(&ids);
    return 0;
}

static int ids_text(struct tern_job *j, const json_t *list, bool special, struct tern_buf *out, struct tern_fault *f)
{
    tern_stream *stream = NULL;
    tern_error err = {0};
    const char *text;
    size_t n, i;
    json_t *v;
    int n_vocab = tern_model_get_info(j->served->model)->n_vocab;
    if (tern_stream_new(&stream, j->served->model, special, &err) < 0)
        return tern_fault_from(f, &err, NULL);
    json_array_foreach(list, i, v)
    {
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= n_vocab) {
            tern_stream_free(stream);
            return tern_fault_set(f, 400, "invalid_value", "tokens", "tokens[%zu] is no token id from 0 to %d", i,
                                  n_vocab - 1);
        }
        if (tern_stream_push(stream, (int32_t)id, &text, &n, &err) < 0)
            break;
        tern_json_add(out, text, n);
    }
    if (err.code == 0 && tern_stream_finish(stream, &text, &n, &err) == 0)
        tern_json_add(out, text, n);
    tern_stream_free(stream);
    return err.code < 0 ? tern_fault_from(f, &err, "tokens") : 0;
}

static int detokenize(struct tern_job *j, struct tern_fault *f)
{
    static const struct tern_field table[] = {
        {"model", TERN_FIELD_STR, AT(model), 0, 512, NULL},
        {"tokens", TERN_FIELD_ARR, AT(tokens), 0, 0, NULL},
        {"skip_special_tokens", TERN_FIELD_BOOL, AT(skip_special), 0, 0, NULL},
        {0},
    };
    struct text_request r = {0};
    struct tern_buf b = {0};
    if (tern_fields_read(table, j->root, "", &r, f) < 0)
        return -1;
    if (!r.tokens)
        return tern_fault_set(f, 400, "missing_required_parameter", "tokens", "tokens is missing");
    int rc = ids_text(j, r.tokens, !r.skip_special, &b, f);
    if (rc == 0) /* "content" is llama-server's name, "prompt" is vLLM's */
        j->answer = json_pack("{so so}", "content", tern_json_chars(b.p, b.len), "prompt", tern_json_chars(b.p, b.len));
    tern_buf_clear(&b);
    return rc;
}

/* What the model would read. */
static int apply_template(struct tern_job *j, struct tern_fault *f)
{
    tern_tokens ids = {0};
    struct tern_buf b = {0};
    int rc = conversation_ids(j, &ids, f);
    if (rc == 0) {
        json_t *list = id_list(j->served->model, &ids, false);
        rc = ids_text(j, list, true, &b, f);
        char prefix[TERN_PREFIX_ID];
        tern_prefix_id(&ids, prefix);
        if (rc == 0)
            j->answer = json_pack("{so sO sI ss}", "prompt", tern_json_chars(b.p, b.len), "tokens", list, "count",
                                  (json_int_t)ids.len, "prefix_id", prefix);
        json_decref(list);
    }
    tern_buf_clear(&b);
    tern_tokens_clear(&ids);
    return rc;
}

const struct tern_api tern_api_tokenize = {.shape = TERN_SHAPE_OPENAI, .prepare = tokenize};
const struct tern_api tern_api_detokenize = {.shape = TERN_SHAPE_OPENAI, .prepare = detokenize};
const struct tern_api tern_api_template = {.shape = TERN_SHAPE_OPENAI, .prepare = apply_template};
