/* Fields that other servers with OpenAI's API have besides: vLLM and llama-server.  What would change the reply and is
 * not here is refused by its name; a value that asks for nothing is accepted.  What changes no more than time, or tells
 * more beside the reply, is left alone. */
#include <math.h>

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
    SWITCH("skip_special_tokens", 1, "control tokens are no text here"),
    SWITCH("use_beam_search", 0, "there is no search of beams here"),
    NUMBER("length_penalty", 1, 1, "there is no search of beams here"),
    SWITCH("early_stopping", 0, "there is no search of beams here"),
    ANY("truncate_prompt_tokens", "a prompt that is too long is refused"),
    ANY("logits_processors", "there are none here"),
    ANY("mm_processor_kwargs", "there are no eyes here"),
    ANY("cache_salt", "beginnings of prompts are shared by all who ask (--cache-ram 0: by nobody)"),
    ANY("kv_transfer_params", "caches are not handed over here"),
    ANY("vllm_xargs", "there are none here"),
    ANY("thinking_token_budget", "how long a model thinks is not limited here"),
    SWITCH("return_tokens_as_token_ids", 0, no_ids),
    SWITCH("return_token_ids", 0, no_ids),
    /* llama-server */
    ANY("n_predict", "use max_tokens"),
    NUMBER("typical_p", 1, 1, no_sampler),
    NUMBER("tfs_z", 1, 1, no_sampler),
    NUMBER("top_n_sigma", -INFINITY, 0, no_sampler),
    NUMBER("mirostat", 0, 0, no_sampler),
    NUMBER("dynatemp_range", 0, 0, no_sampler),
    NUMBER("dry_multiplier", 0, 0, no_sampler),
    NUMBER("min_keep", 0, 1, no_sampler),
    ANY("samplers", "their order is fixed here"),
    NUMBER("n_probs", 0, 0, "use logprobs"),
    SWITCH("post_sampling_probs", 0, "log probabilities are those of the model's own distribution"),
    NUMBER("t_max_predict_ms", -INFINITY, 0, "replies are limited by max_tokens"),
    SWITCH("return_tokens", 0, no_ids),
    ANY("lora", "there are no adapters here"),
    {0},
};

int tern_ask_refuse(struct tern_job *j, struct tern_fault *f)
{
    return tern_fields_read(fields, j->root, "", NULL, f);
}
