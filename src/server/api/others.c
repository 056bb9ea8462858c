/* Fields that other servers with OpenAI's API have besides: vLLM and llama-server.  What would change the reply and is
 * not here is refused by its name; a value that asks for nothing is accepted.  What changes no more than time, or tells
 * more beside the reply, is left alone. */
#include <math.h>
#include <string.h>

#include "server/api/ask.h"

#define NUMBER(name, low, high, why)                             \
    {                                                            \
        name, TERN_FIELD_OFF, TERN_FIELD_CHECKED, low, high, why \
    }
#define SWITCH(name, on, why)                                 \
    {                                                         \
        name, TERN_FIELD_OFF, TERN_FIELD_CHECKED, on, on, why \
    }
#define ANY(name, why)                                          \
    {                                                           \
        name, TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, why \
    }

static const char no_sampler[] = "there is no such sampler here";
static const char no_ids[] = "replies are told as texts; log probabilities come with their tokens";

static const struct tern_field fields[] = {
    /* vLLM */
    ANY("bad_words", "words cannot be excluded here; logit_bias excludes tokens"),
    ANY("prompt_logprobs", "ask /v1/completions with echo and logprobs"),
    SWITCH("use_beam_search", 0, "there is no search of beams here"),
    NUMBER("length_penalty", 1, 1, "there is no search of beams here"),
    SWITCH("early_stopping", 0, "there is no search of beams here"),
    ANY("truncate_prompt_tokens", "a prompt that is too long is refused"),
    ANY("logits_processors", "there are none here"),
    ANY("mm_processor_kwargs", "there are no eyes here"),
    ANY("cache_salt", "beginnings of prompts are shared by all who ask (--cache-ram 0: by nobody)"),
    ANY("kv_transfer_params", "caches are not handed over here"),
    ANY("vllm_xargs", "there are none here"),
    NUMBER("thinking_token_budget", -1, -1, "how long a model thinks is not limited here"),
    SWITCH("return_tokens_as_token_ids", 0, no_ids),
    SWITCH("return_token_ids", 0, no_ids),
    /* llama-server */
    NUMBER("typical_p", 1, 1, no_sampler),
    NUMBER("tfs_z", 1, 1, no_sampler),
    NUMBER("top_n_sigma", -INFINITY, 0, no_sampler),
    NUMBER("mirostat", 0, 0, no_sampler),
    NUMBER("dynatemp_range", 0, 0, no_sampler),
    NUMBER("dry_multiplier", 0, 0, no_sampler),
    NUMBER("min_keep", 0, 1, no_sampler),
    NUMBER("n_probs", 0, 0, "use logprobs"),
    SWITCH("post_sampling_probs", 0, "log probabilities are those of the model's own distribution"),
    NUMBER("t_max_predict_ms", -INFINITY, 0, "replies are limited by max_tokens"),
    SWITCH("return_tokens", 0, no_ids),
    ANY("lora", "there are no adapters here"),
    {0},
};

/* llama-server's other name of max_tokens, of which -1 and -2 are no limit but the context. */
static int read_n_predict(struct tern_job *j, struct tern_fault *f)
{
    static const struct tern_field field[] = {
        {"n_predict", TERN_FIELD_INT, 0, -2, INT32_MAX, NULL},
        {0},
    };
    struct tern_ask *g = j->ask;
    int64_t n = TERN_ASK_UNSET, *most = g->max_completion_tokens >= 0 ? &g->max_completion_tokens : &g->max_tokens;
    if (tern_fields_read(field, j->root, "", &n, f) < 0)
        return -1;
    if (n < 0)
        return 0;
    if (*most >= 0 && *most != n)
        return tern_fault_set(f, 400, "invalid_value", "n_predict",
                              "n_predict is another name of max_tokens, and both are given");
    *most = n;
    return 0;
}

static char letter_of(const json_t *name)
{
    static const struct {
        const char *name;
        char letter;
    } names[] = {{"penalties", 'e'}, {"dry", 'd'},   {"top_n_sigma", 's'}, {"top_k", 'k'}, {"typ_p", 'y'},
                 {"typical_p", 'y'}, {"top_p", 'p'}, {"min_p", 'm'},       {"xtc", 'x'},   {"temperature", 't'}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (json_is_string(name) && strcmp(json_string_value(name), names[i].name) == 0)
            return names[i].letter;
    return '?';
}

/* llama-server's samplers in their usual order, as letters or as a list of names, ask for nothing: many clients always
 * send them.  What is not here (dry, top_n_sigma, typ_p) has fields of its own. */
static int check_samplers(const struct tern_job *j, struct tern_fault *f)
{
    const json_t *v = json_object_get(j->root, "samplers");
    char order[16] = "";
    size_t n = 0;
    const size_t given = json_is_array(v) ? json_array_size(v) : json_is_string(v) ? json_string_length(v) : 0;
    for (size_t i = 0; i < given && n + 1 < sizeof order; i++) {
        const char c = json_is_string(v) ? json_string_value(v)[i] : letter_of(json_array_get(v, i));
        if (!strchr("dsy", c))
            order[n++] = c;
    }
    if (!v || json_is_null(v) || strcmp(order, "ekpmxt") == 0 || strcmp(order, "kpmxt") == 0)
        return 0;
    return tern_fault_set(f, 400, "unsupported_parameter", "samplers", "samplers: their order is fixed here");
}

int tern_ask_others(struct tern_job *j, struct tern_fault *f)
{
    if (tern_fields_read(fields, j->root, "", NULL, f) < 0 || check_samplers(j, f) < 0)
        return -1;
    return read_n_predict(j, f);
}
