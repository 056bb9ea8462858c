/* server/api/ask.h - what a request says about generation, whichever API it came through.
 *
 * Each API has a table of its own names; all tables fill this struct.  tern_ask_request turns it into the loop's
 * request.  Pointers refer to the job's JSON. */
#ifndef TERN_SERVER_ASK_H
#define TERN_SERVER_ASK_H

#include "server/server_impl.h"

#define TERN_ASK_UNSET    (-1) /* of `seed` and `max_tokens` it may be said, too, and means the same */
#define TERN_ASK_NO_TOP_K (-2) /* of which -1 says all */
#define TERN_ASK_NO_LAST  (-2) /* likewise */
#define TERN_MAX_STOPS    64
#define TERN_MAX_LOGPROB  20

/* What the output must follow. */
enum tern_ask_rule {
    TERN_RULE_NONE,
    TERN_RULE_JSON,
    TERN_RULE_SCHEMA,
    TERN_RULE_REGEX,
    TERN_RULE_GRAMMAR,
    TERN_RULE_CHOICE
};

struct tern_ask {
    /* Members of the request; unset numbers are TERN_ASK_UNSET, or NAN. */
    const char *model;
    bool stream, echo, ignore_eos, keep_stop, logprobs, parallel_calls;
    bool special;       /* texts get what the tokenizer puts around them */
    bool truncates;     /* prompts that are too long lose their end */
    bool skips_control; /* control tokens are no text */
    bool include_usage, continuous_usage;
    int64_t max_tokens, max_completion_tokens, min_tokens, n, best_of, top_k, top_logprobs, penalty_last;
    int64_t seed;
    double temperature, top_p, min_p, xtc_probability, xtc_threshold, repetition, repeat, presence, frequency;
    json_t *stop, *stop_ids, *logit_bias, *allowed_ids, *stream_options;
    json_t *prompt, *messages, *tools, *tool_choice, *template_vars;
    json_t *format, *guided_json, *guided_choice, *structured, *json_schema; /* format: as response_format */
    const char *guided_regex, *guided_grammar, *grammar;
    json_t *system, *input, *thinking, *keep_alive, *include; /* of single APIs */
    const char *user, *effort, *system_text, *text;           /* text: of single APIs */
    bool effort_alone;                                        /* effort does not say whether to think */
    bool flag;                                                /* likewise */
    bool continues;      /* the reply goes on from the last message, which is the assistant's */
    json_t *opens_reply; /* add_generation_prompt: the opposite of continues, where it is given */

    /* Made out of them. */
    enum tern_ask_rule rule;
    char *rule_text;
    tern_grammar *compiled;
    const char *rule_param, *format_param, *stop_param, *effort_param; /* what the fields are called in this API */
    bool call_required, strict_tools;
    const char *call_function; /* that is required; NULL: any */
    tern_request request;
    const char *stops[TERN_MAX_STOPS];
    int32_t *ids;  /* biases, then stop ids */
    float *values; /* biases; of what is not allowed -INFINITY */
    tern_reply_params reply;
    char *tools_json;
    json_t *owned; /* a list */
};

struct tern_ask *tern_ask_new(void);
void tern_ask_free(struct tern_ask *g);

/* Rows that all APIs of OpenAI's kind share. */
#define TERN_ASK_AT(member) offsetof(struct tern_ask, member)
#define TERN_ASK_COMMON_FIELDS                                                                                         \
    {"model", TERN_FIELD_STR, TERN_ASK_AT(model), 0, 512, NULL},                                                       \
        {"stream", TERN_FIELD_BOOL, TERN_ASK_AT(stream), 0, 0, NULL},                                                  \
        {"stream_options", TERN_FIELD_OBJ, TERN_ASK_AT(stream_options), 0, 0, NULL},                                   \
        {"max_tokens", TERN_FIELD_INT, TERN_ASK_AT(max_tokens), -1, INT32_MAX, NULL},                                  \
        {"min_tokens", TERN_FIELD_INT, TERN_ASK_AT(min_tokens), 0, INT32_MAX, NULL},                                   \
        {"temperature", TERN_FIELD_NUM, TERN_ASK_AT(temperature), 0, 100, NULL},                                       \
        {"top_p", TERN_FIELD_NUM, TERN_ASK_AT(top_p), 0, 1, NULL},                                                     \
        {"top_k", TERN_FIELD_INT, TERN_ASK_AT(top_k), -1, INT32_MAX, NULL},                                            \
        {"min_p", TERN_FIELD_NUM, TERN_ASK_AT(min_p), 0, 1, NULL},                                                     \
        {"xtc_probability", TERN_FIELD_NUM, TERN_ASK_AT(xtc_probability), 0, 1, NULL},                                 \
        {"xtc_threshold", TERN_FIELD_NUM, TERN_ASK_AT(xtc_threshold), 0, 1, NULL},                                     \
        {"n", TERN_FIELD_INT, TERN_ASK_AT(n), 1, 1024, NULL}, {"stop", TERN_FIELD_ANY, TERN_ASK_AT(stop), 0, 0, NULL}, \
        {"stop_token_ids", TERN_FIELD_ARR, TERN_ASK_AT(stop_ids), 0, 0, NULL},                                         \
        {"seed", TERN_FIELD_INT, TERN_ASK_AT(seed), -0x1p63, 0x1p63, NULL},                                            \
        {"presence_penalty", TERN_FIELD_NUM, TERN_ASK_AT(presence), -100, 100, NULL},                                  \
        {"frequency_penalty", TERN_FIELD_NUM, TERN_ASK_AT(frequency), -100, 100, NULL},                                \
        {"repetition_penalty", TERN_FIELD_NUM, TERN_ASK_AT(repetition), 0.01, 100, NULL},                              \
        {"repeat_penalty", TERN_FIELD_NUM, TERN_ASK_AT(repeat), 0.01, 100, NULL},                                      \
        {"repeat_last_n", TERN_FIELD_INT, TERN_ASK_AT(penalty_last), -1, INT32_MAX, NULL},                             \
        {"include_stop_str_in_output", TERN_FIELD_BOOL, TERN_ASK_AT(keep_stop), 0, 0, NULL},                           \
        {"skip_special_tokens", TERN_FIELD_BOOL, TERN_ASK_AT(skips_control), 0, 0, NULL},                              \
        {"allowed_token_ids", TERN_FIELD_ARR, TERN_ASK_AT(allowed_ids), 0, 0, NULL},                                   \
        {"logit_bias", TERN_FIELD_ANY, TERN_ASK_AT(logit_bias), 0, 0, NULL},                                           \
        {"ignore_eos", TERN_FIELD_BOOL, TERN_ASK_AT(ignore_eos), 0, 0, NULL},                                          \
        {"user", TERN_FIELD_STR, TERN_ASK_AT(user), 0, 0, NULL},                                                       \
        {"metadata", TERN_FIELD_OBJ, TERN_FIELD_CHECKED, 0, 0, NULL},                                                  \
        {"store", TERN_FIELD_BOOL, TERN_FIELD_CHECKED, 0, 0, NULL},                                                    \
        {"service_tier", TERN_FIELD_STR, TERN_FIELD_CHECKED, 0, 0, NULL},                                              \
        {"prompt_cache_key", TERN_FIELD_STR, TERN_FIELD_CHECKED, 0, 0, NULL},                                          \
        {"safety_identifier", TERN_FIELD_STR, TERN_FIELD_CHECKED, 0, 0, NULL},                                         \
        {"guided_json", TERN_FIELD_ANY, TERN_ASK_AT(guided_json), 0, 0, NULL},                                         \
        {"guided_regex", TERN_FIELD_STR, TERN_ASK_AT(guided_regex), 0, 0, NULL},                                       \
        {"guided_choice", TERN_FIELD_ARR, TERN_ASK_AT(guided_choice), 0, 0, NULL},                                     \
        {"guided_grammar", TERN_FIELD_STR, TERN_ASK_AT(guided_grammar), 0, 0, NULL},                                   \
        {"guided_whitespace_pattern", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, TERN_OWN_BLANKS},                  \
        {"guided_json_object", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, TERN_OTHER_NAME},                         \
        {"structural_tag", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, TERN_OTHER_NAME},                             \
        {"structured_outputs", TERN_FIELD_OBJ, TERN_ASK_AT(structured), 0, 0, NULL},                                   \
        {"response_format", TERN_FIELD_OBJ, TERN_ASK_AT(format), 0, 0, NULL},                                          \
        {"grammar", TERN_FIELD_STR, TERN_ASK_AT(grammar), 0, 0, NULL},                                                 \
    {                                                                                                                  \
        "json_schema", TERN_FIELD_ANY, TERN_ASK_AT(json_schema), 0, 0, NULL                                            \
    }

/* Of those of its kind that take conversations. */
#define TERN_ASK_CONTINUES                                                            \
    {"continue_final_message", TERN_FIELD_BOOL, TERN_ASK_AT(continues), 0, 0, NULL},  \
    {                                                                                 \
        "add_generation_prompt", TERN_FIELD_ANY, TERN_ASK_AT(opens_reply), 0, 0, NULL \
    }

#define TERN_OWN_BLANKS "blanks in JSON are as docs/structured-output.md says"
#define TERN_OTHER_NAME "use response_format or structured_outputs"

/* W: the fields of the body by a table.  Common to all APIs that generate. */
int tern_ask_read(struct tern_job *j, const struct tern_field *table, struct tern_fault *f);
/* others.c, W: fields of servers with the same API that would change the reply, and are not here. */
int tern_ask_others(struct tern_job *j, struct tern_fault *f);
/* W: checks what belongs together and fills g->request, all but the prompt. */
int tern_ask_request(struct tern_job *j, struct tern_fault *f);
/* W: so many bytes of text can be no prompt, and are not worth being tokenized. */
int tern_ask_check_bytes(const struct tern_job *j, size_t bytes, const char *param, struct tern_fault *f);
/* W: is there room for the prompt of a lane, which is the field `param`?  Then puts the rule to work on its reply. */
int tern_ask_check_prompt(struct tern_job *j, struct tern_lane *lane, const char *param, struct tern_fault *f);

/* rule.c, W: what the output must follow, from the fields; and at work on the replies to a lane's prompt. */
int tern_rule_read(struct tern_ask *g, struct tern_fault *f);
int tern_rule_apply(struct tern_job *j, struct tern_lane *lane, struct tern_fault *f);

/* messages.c, W: the conversation of j->ask (messages, tools, ...) into ids.  What other APIs have in place of these is
 * turned into them first; tern_ask_own keeps such JSON for the job's life.  borders: nullable. */
json_t *tern_ask_own(struct tern_ask *g, json_t *j);
int tern_messages_tokens(struct tern_job *j, tern_tokens *out, tern_tokens *borders, struct tern_fault *f);
int tern_messages_check(struct tern_job *j, struct tern_fault *f);
/* Is the last message the assistant's, without calls?  In some APIs a reply goes on from it then. */
bool tern_ends_unfinished(const json_t *messages);
/* May a reply call more than one tool?  Not where the request says so, and not where it names the function: that is one
 * call in OpenAI's API. */
bool tern_calls_several(const struct tern_ask *g);
/* "tools" of OpenAI's API are checked; tool_choice decides whether they are offered. */
int tern_tools_check(struct tern_job *j, struct tern_fault *f);

/* scores.c: entries of struct tern_choice.scores. */
json_t *tern_scores_entry(const tern_token_score *t);
void tern_choice_score(struct tern_choice *c, const tern_event *e); /* appends */
json_t *tern_scores_chat(const tern_model *m, json_t *scores);      /* OpenAI's chat */
json_t *tern_scores_legacy(const tern_model *m,
                           json_t *scores); /* OpenAI's completions; entries have an "offset", too */
void tern_scores_place(json_t *scores, size_t i, size_t offset); /* gives one to the i-th, where there is that */
size_t tern_characters(const char *text, size_t n);              /* not bytes: what clients count offsets in */
void tern_token_text(const tern_model *m, int32_t id, struct tern_buf *out);

/* W: lanes for texts, lists of ids, or one of them; `param` names the field. */
int tern_ask_prompts(struct tern_job *j, const json_t *p, const char *param, struct tern_fault *f);
/* W: the id that the answer has: prefix and the request's. */
void tern_ask_name(struct tern_job *j, const char *prefix);
/* W: all that is left once the request is read and j->ask has a conversation: one lane with its ids, how its reply is
 * taken apart. */
int tern_ask_conversation(struct tern_job *j, struct tern_fault *f);

/* "stop", "length", "tool_calls" */
const char *tern_finish_openai(const struct tern_choice *c);
json_t *tern_usage_openai(const struct tern_job *j);
/* In the middle of a stream: choices tell their tokens so far in n_parts. */
json_t *tern_usage_so_far(const struct tern_job *j);

#endif
