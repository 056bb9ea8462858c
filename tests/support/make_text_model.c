/* support/make_text_model.c - writes a tiny llama with random weights and a real tokenizer, for the tests of the
 * command line.
 *
 *     make_text_model OUT.gguf          byte-level BPE of 300 tokens, control tokens, ChatML template
 *     make_text_model --base OUT.gguf   the same without control tokens of a chat, template and token for byte 255
 *     make_text_model --strict OUT.gguf a template that raises an error at a system message which is not the first
 *     make_text_model --tools OUT.gguf  a template that knows tools, and tokens that are a call (300), reasoning (301),
 *                                       half a call (302), a text (303) and a control token (304), for replies that
 * --logit-bias chooses
 *     make_text_model --bias OUT.gguf   a qwen2 whose keys have a bias of norm 600, as Qwen2.5 has them
 *     make_text_model --large OUT.gguf  with more than 32 MiB of weights
 *     make_text_model --around OUT.gguf score BPE without template: BOS in front of texts, EOS behind them, and a space
 * that decoding drops
 *     make_text_model --v4 TEMPLATE OUT.gguf  DeepSeek-V4's control tokens, and the template of that file
 *
 * The weights come from a fixed seed: the same program writes the same bytes everywhere. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/rng.h"
#include "gguf_writer.h"

enum { N_EMBD = 128, N_HEADS = 2, N_KV_HEADS = 1, HEAD_DIM = 64, N_FF = 224, N_LAYERS = 3, N_CTX = 8192 };
enum {
    N_BYTES = 256,
    MAX_TOKENS = 320,
    TYPE_NORMAL = 1,
    TYPE_UNKNOWN,
    TYPE_CONTROL,
    TYPE_USER,
    TYPE_BYTE = 6,
    GGUF_F32 = 0
};
enum variant { CHAT, BASE, TOOLS, STRICT, V4 };

/* Pairs that byte-level BPE joins, in order of rank; "_" stands for the letter that spells a space. */
static const char *const merges[][2] = {
    {"_", "t"},  {"h", "e"},  {"_", "a"}, {"i", "n"},  {"r", "e"}, {"o", "n"}, {"_t", "he"}, {"e", "r"}, {"_", "s"},
    {"a", "t"},  {"_", "w"},  {"e", "n"}, {"_", "o"},  {"n", "d"}, {"i", "t"}, {"o", "r"},   {"e", "s"}, {"i", "s"},
    {"_", "b"},  {"in", "g"}, {"_", "c"}, {"_o", "f"}, {"_", "f"}, {"a", "n"}, {"_", "p"},   {"a", "l"}, {"_a", "nd"},
    {"_t", "o"}, {"a", "r"},  {"o", "u"}, {"_", "in"}, {"l", "e"}, {"_", "m"}, {"_", "d"},   {"_", "h"}, {"r", "o"},
    {"s", "e"},  {"_t", "h"}, {"l", "y"}, {"_s", "e"}, {"e", "d"},
};
#define N_MERGES (sizeof merges / sizeof *merges)

static const char chatml[] = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
                             "message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ "
                             "'<|im_start|>assistant\n' }}{% endif %}";

static const char chatml_strict[] =
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}{% "
    "endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";

static const char chatml_tools[] =
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}\n<tool_call></tool_call><|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}<tool_call>"
    "{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
    "{# </think> #}";

static const char *const user_tokens[] = {
    "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2]}}\n</tool_call>",
    "<think>Well.</think>",
    "<tool_call>{\"name\": \"add\"",
    "Done.</think>",
};

static const char *const v4_tokens[] = {
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜title｜>",
};

static char v4_template[1 << 16];

static char pool[MAX_TOKENS + 2 * N_MERGES][24];
static int n_pool;
static const char *tokens[MAX_TOKENS];
static int32_t types[MAX_TOKENS];
static int n_tokens;

/* The spelling of a byte in byte-level vocabularies: printable Latin-1 as itself, everything else from U+0100 on. */
static void byte_spelling(int byte, char *out)
{
    int c = byte, next = 256;
    for (int b = 0; b <= byte; b++) {
        bool plain = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
        c = plain ? b : next++;
    }
    if (c < 0x80) {
        out[0] = (char)c;
        out[1] = 0;
    } else {
        out[0] = (char)(0xC0 | (c >> 6));
        out[1] = (char)(0x80 | (c & 0x3F));
        out[2] = 0;
    }
}

static void add_token(const char *text, int32_t type)
{
    if (n_tokens == MAX_TOKENS)
        abort();
    tokens[n_tokens] = text;
    types[n_tokens++] = type;
}

/* "_th" with the underscore replaced. */
static char *spelled(const char *text)
{
    char *out = pool[n_pool++], space[4];
    byte_spelling(' ', space);
    size_t n = 0;
    for (; *text; text++) {
        if (*text == '_')
            n += (size_t)sprintf(out + n, "%s", space);
        else
            out[n++] = *text;
    }
    out[n] = 0;
    return out;
}

static void write_tokenizer(struct gguf_writer *w, enum variant variant)
{
    bool base = variant == BASE;
    static const char *lines[N_MERGES];
    static char line[N_MERGES][48];
    for (int b = 0; b < N_BYTES; b++) {
        byte_spelling(b, pool[n_pool]);
        if (base && b == N_BYTES - 1) /* no text in UTF-8 has this byte, so some vocabularies lack it */
            (void)snprintf(pool[n_pool], sizeof pool[0], "<none>");
        add_token(pool[n_pool++], TYPE_NORMAL);
    }
    for (size_t i = 0; i < N_MERGES; i++) {
        char *left = spelled(merges[i][0]), *right = spelled(merges[i][1]), *both = pool[n_pool++];
        (void)snprintf(line[i], sizeof line[i], "%s %s", left, right);
        (void)snprintf(both, sizeof pool[0], "%.10s%.10s", left, right);
        lines[i] = line[i];
        add_token(both, TYPE_NORMAL);
    }
    add_token("<|endoftext|>", TYPE_CONTROL);
    add_token(base ? "<|reserved_0|>" : "<|im_start|>", TYPE_CONTROL);
    add_token(base ? "<|reserved_1|>" : "<|im_end|>", TYPE_CONTROL);
    int end = n_tokens - (base ? 3 : 1), begin = n_tokens - 3;
    for (size_t i = 0; variant == TOOLS && i < sizeof user_tokens / sizeof *user_tokens; i++)
        add_token(user_tokens[i], TYPE_USER);
    if (variant == TOOLS)
        add_token("<think>", TYPE_CONTROL);
    for (size_t i = 0; variant == V4 && i < sizeof v4_tokens / sizeof *v4_tokens; i++)
        add_token(v4_tokens[i], TYPE_CONTROL);
    if (variant == V4) {
        begin = n_tokens - (int)(sizeof v4_tokens / sizeof *v4_tokens);
        end = begin + 1;
    }
    gw_str(w, "tokenizer.ggml.model", "gpt2");
    gw_str(w, "tokenizer.ggml.pre", "smollm");
    gw_str_array(w, "tokenizer.ggml.tokens", tokens, (size_t)n_tokens);
    gw_array(w, "tokenizer.ggml.token_type", GW_I32, types, (size_t)n_tokens);
    gw_str_array(w, "tokenizer.ggml.merges", lines, N_MERGES);
    gw_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)begin);
    gw_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t)end);
    gw_bool(w, "tokenizer.ggml.add_bos_token", 0);
    if (!base)
        gw_str(w, "tokenizer.chat_template",
               variant == TOOLS    ? chatml_tools
               : variant == STRICT ? chatml_strict
               : variant == V4     ? v4_template
                                   : chatml);
}

/* Letters, a space, and bytes for all else. */
static void write_around(struct gguf_writer *w)
{
    static float scores[MAX_TOKENS];
    add_token("<unk>", TYPE_UNKNOWN);
    add_token("<s>", TYPE_CONTROL);
    add_token("</s>", TYPE_CONTROL);
    for (int b = 0; b < N_BYTES; b++) {
        (void)snprintf(pool[n_pool], sizeof pool[0], "<0x%02X>", b);
        add_token(pool[n_pool++], TYPE_BYTE);
    }
    add_token("\xE2\x96\x81", TYPE_NORMAL);
    for (int c = 'a'; c <= 'z'; c++) {
        (void)snprintf(pool[n_pool], sizeof pool[0], "%c", c);
        add_token(pool[n_pool++], TYPE_NORMAL);
    }
    gw_str(w, "tokenizer.ggml.model", "llama");
    gw_str_array(w, "tokenizer.ggml.tokens", tokens, (size_t)n_tokens);
    gw_array(w, "tokenizer.ggml.token_type", GW_I32, types, (size_t)n_tokens);
    gw_array(w, "tokenizer.ggml.scores", GW_F32, scores, (size_t)n_tokens);
    gw_u32(w, "tokenizer.ggml.unknown_token_id", 0);
    gw_u32(w, "tokenizer.ggml.bos_token_id", 1);
    gw_u32(w, "tokenizer.ggml.eos_token_id", 2);
    gw_bool(w, "tokenizer.ggml.add_bos_token", 1);
    gw_bool(w, "tokenizer.ggml.add_eos_token", 1);
}

/* Dims in pairs that turn fast and in pairs that hardly turn. */
static float bias_of(int d)
{
    int pair = d % (HEAD_DIM / 2);
    return pair < 4 ? 42.0f : pair >= 28 ? 208.0f : 0;
}

/* n_out rows of n_in values of that standard deviation (sum of uniform numbers: normal enough).  bias: queries, which
 * hardly look along the bias of keys. */
static void add_matrix(struct gguf_writer *w, struct tern_rng *rng, const char *name, uint64_t n_in, uint64_t n_out,
                       double deviation, bool bias)
{
    float *p = malloc(n_in * n_out * sizeof *p);
    if (!p)
        abort();
    for (uint64_t i = 0; i < n_in * n_out; i++)
        p[i] = (float)((tern_rng_f64(rng) + tern_rng_f64(rng) + tern_rng_f64(rng) - 1.5) * 2 * deviation) *
               (bias && bias_of((int)(i / n_in % HEAD_DIM)) > 0 ? 0.1f : 1.0f);
    gw_tensor(w, name, GGUF_F32, 2, (uint64_t[]){n_in, n_out}, p, n_in * n_out * sizeof *p);
    free(p);
}

static void add_norm(struct gguf_writer *w, const char *name)
{
    float ones[N_EMBD];
    for (int i = 0; i < N_EMBD; i++)
        ones[i] = 1;
    gw_tensor(w, name, GGUF_F32, 1, (uint64_t[]){N_EMBD}, ones, sizeof ones);
}

static void add_key_bias(struct gguf_writer *w, struct tern_rng *rng, const char *name)
{
    float bias[N_KV_HEADS * HEAD_DIM];
    for (int d = 0; d < N_KV_HEADS * HEAD_DIM; d++) {
        float x = bias_of(d);
        bias[d] = tern_rng_f64(rng) < 0.5 ? x : -x;
    }
    gw_tensor(w, name, GGUF_F32, 1, (uint64_t[]){N_KV_HEADS * HEAD_DIM}, bias, sizeof bias);
}

static void write_weights(struct gguf_writer *w, uint64_t n_ff, bool bias)
{
    const struct {
        const char *name;
        uint64_t n_in, n_out;
        double gain;
    } mats[] = {
        {"attn_q", N_EMBD, N_HEADS * HEAD_DIM, 1},
        {"attn_k", N_EMBD, N_KV_HEADS * HEAD_DIM, 1},
        {"attn_v", N_EMBD, N_KV_HEADS * HEAD_DIM, 1},
        {"attn_output", N_HEADS * HEAD_DIM, N_EMBD, 2},
        {"ffn_gate", N_EMBD, n_ff, 1},
        {"ffn_up", N_EMBD, n_ff, 1},
        {"ffn_down", n_ff, N_EMBD, 1},
    };
    struct tern_rng rng = {.state = 7};
    char name[64];
    add_matrix(w, &rng, "token_embd.weight", N_EMBD, (uint64_t)n_tokens, 0.7, false);
    for (int l = 0; l < N_LAYERS; l++) {
        (void)snprintf(name, sizeof name, "blk.%d.attn_norm.weight", l);
        add_norm(w, name);
        (void)snprintf(name, sizeof name, "blk.%d.ffn_norm.weight", l);
        add_norm(w, name);
        for (size_t i = 0; i < sizeof mats / sizeof *mats; i++) {
            (void)snprintf(name, sizeof name, "blk.%d.%s.weight", l, mats[i].name);
            add_matrix(w, &rng, name, mats[i].n_in, mats[i].n_out, mats[i].gain / sqrt((double)mats[i].n_in),
                       bias && i == 0);
        }
        (void)snprintf(name, sizeof name, "blk.%d.attn_k.bias", l);
        if (bias)
            add_key_bias(w, &rng, name);
    }
    add_norm(w, "output_norm.weight");
    add_matrix(w, &rng, "output.weight", N_EMBD, (uint64_t)n_tokens, 3 / sqrt((double)N_EMBD), false);
}

static bool said(int argc, char **argv, const char *variant)
{
    return argc == 3 && strcmp(argv[1], variant) == 0;
}

int main(int argc, char **argv)
{
    const bool base = said(argc, argv, "--base"), tools = said(argc, argv, "--tools"),
               strict = said(argc, argv, "--strict"), bias = said(argc, argv, "--bias"),
               around = said(argc, argv, "--around");
    const bool sampling = said(argc, argv, "--sampling"), large = said(argc, argv, "--large");
    const bool v4 = argc == 4 && strcmp(argv[1], "--v4") == 0;
    const char *arch = bias ? "qwen2" : "llama";
    const uint32_t n_ff = large ? 8192 : N_FF;
    FILE *text = v4 ? fopen(argv[2], "rb") : NULL;
    if (argc != 2 + (base || tools || strict || sampling || bias || large || around) + 2 * v4 || (v4 && !text)) {
        (void)fprintf(stderr, "usage: make_text_model [--base | --tools | --strict | --sampling | --bias | --large | "
                              "--around | --v4 TEMPLATE] OUT.gguf\n");
        return 2;
    }
    if (text && (fread(v4_template, 1, sizeof v4_template - 1, text) == 0 || fclose(text) != 0))
        abort();
    struct gguf_writer w;
    gw_init(&w);
    gw_str(&w, "general.architecture", arch);
    gw_str(&w, "general.name", base ? "tiny base" : "tiny chat");
    if (sampling) {
        gw_f32(&w, "general.sampling.temp", 0.75f);
        gw_i32(&w, "general.sampling.top_k", 5);
        gw_f32(&w, "general.sampling.min_p", 0.1f);
        gw_i32(&w, "general.sampling.mirostat", 2);
    }
    const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {{"block_count", N_LAYERS},         {"context_length", N_CTX},
                   {"embedding_length", N_EMBD},      {"feed_forward_length", n_ff},
                   {"attention.head_count", N_HEADS}, {"attention.head_count_kv", N_KV_HEADS},
                   {"rope.dimension_count", HEAD_DIM}};
    char key[64];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        (void)snprintf(key, sizeof key, "%s.%s", arch, numbers[i].key);
        gw_u32(&w, key, numbers[i].value);
    }
    (void)snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    gw_f32(&w, key, 1e-5f);
    (void)snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    gw_f32(&w, key, 10000.0f);
    if (around)
        write_around(&w);
    else
        write_tokenizer(&w, base ? BASE : tools ? TOOLS : strict ? STRICT : v4 ? V4 : CHAT);
    (void)snprintf(key, sizeof key, "%s.vocab_size", arch);
    gw_u32(&w, key, (uint32_t)n_tokens);
    write_weights(&w, n_ff, bias);
    const char *path = argv[argc - 1];
    int rc = gw_save(&w, path);
    if (rc < 0)
        perror(path);
    gw_clear(&w);
    return rc < 0;
}
