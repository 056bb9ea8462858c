/* text/text.h - bytes to token ids and back, chat templates, and replies taken apart.  Knows ids and bytes, never
 * tensors.
 *
 * Two objects:
 *   struct tern_tokenizer   immutable after load, shared by any number of threads
 *   struct tern_template    a parsed Jinja chat template, immutable after load
 * and a small mutable one per stream: struct tern_detok (holds back incomplete characters).
 *
 * Text is UTF-8; other bytes are legal and survive encode/decode byte for byte wherever the vocabulary has bytes. */
#ifndef TERN_TEXT_H
#define TERN_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/err.h"
#include "file/file.h"
#include "tern/reply.h"

/* ---- tokenizer ---------------------------------------------------------------------------------------------- */

struct tern_tokenizer;

/* A growable list of token ids; zero-initialise, tern_ids_clear frees. */
struct tern_ids {
    int32_t *p;
    size_t len;
    size_t cap;
};
int tern_ids_add(struct tern_ids *ids, int32_t id, tern_error *err);
void tern_ids_clear(struct tern_ids *ids);

/* Builds the tokenizer from GGUF metadata `tokenizer.ggml.*`.  model "gpt2" = byte-level BPE (tokenizer.ggml.pre names
 * the pre-tokenizer; tok/pretok.def lists those that are known, others are refused and named), "llama" =
 * SentencePiece-style score merges, "gemma4" = merges of characters, "none" or no tokenizer keys at all = no
 * vocabulary: *out is NULL and 0 is returned.  Errors name the file and the key. */
int tern_tokenizer_from_file(struct tern_tokenizer **out, const struct tern_file *f, tern_error *err);

/* The files of a Hugging Face tokenizer, as bytes; p is NULL for one that is not there. */
struct tern_tokenizer_json {
    const char *name;           /* stands in messages: the path of tokenizer.json */
    struct tern_str tokenizer;  /* tokenizer.json */
    struct tern_str config;     /* tokenizer_config.json: bos_token, eos_token, add_bos_token, added_tokens_decoder */
    struct tern_str generation; /* generation_config.json: bos_token_id, eos_token_id (one or a list) */
    struct tern_str model;      /* config.json: the same, for what generation_config.json leaves open */
};

/* Builds the tokenizer from them: models BPE and Unigram with the normalizers, pre-tokenizers, decoders and
 * post-processors that language models use; others are refused and named.  Every eos_token_id ends a generation.
 * Nothing of `files` is referred to afterwards. */
int tern_tokenizer_from_json(struct tern_tokenizer **out, const struct tern_tokenizer_json *files, tern_error *err);
void tern_tokenizer_free(struct tern_tokenizer *t);

/* The texts beside a Hugging Face model; those that are not there, and all of a GGUF file, are empty (p NULL).
 * Zero-initialise; clear also after a failure. */
struct tern_texts {
    struct tern_buf tokenizer, config, generation, model, jinja, tool_jinja, processor;
};
int tern_texts_read(struct tern_texts *t, const struct tern_file *f, tern_error *err);
void tern_texts_clear(struct tern_texts *t);
/* As arguments of tern_tokenizer_from_json; views. */
struct tern_tokenizer_json tern_texts_tokenizer(const struct tern_texts *t, const char *name);
/* The chat template among them: chat_template.jinja, else what the JSON files have (of a list of named ones that of the
 * name "default"); or the one for conversations with tools: a file of its own, else that of the name "tool_use".
 * *found false: none. */
int tern_texts_template(const struct tern_texts *t, bool tools, const char *name, struct tern_buf *out, bool *found,
                        tern_error *err);

/* A template of our own for models of this architecture, where neither file nor texts have one and the vocabulary has
 * its marks: DeepSeek-V4's, which was published as a program (docs/templates.md).  *found false: there is none. */
int tern_texts_builtin(const struct tern_texts *t, struct tern_str arch, const struct tern_tokenizer *tok,
                       struct tern_buf *out, bool *found, tern_error *err);

/* What a model may recommend of picking tokens: X(name, GGUF's key, generation_config.json's or NULL, least, most). */
#define TERN_SAMPLING_LIST(X)                                                         \
    X(TEMPERATURE, "general.sampling.temp", "temperature", 0, 100)                    \
    X(TOP_K, "general.sampling.top_k", "top_k", -1, INT32_MAX)                        \
    X(TOP_P, "general.sampling.top_p", "top_p", 0, 1)                                 \
    X(MIN_P, "general.sampling.min_p", "min_p", 0, 1)                                 \
    X(REPETITION, "general.sampling.penalty_repeat", "repetition_penalty", 0.01, 100) \
    X(LAST, "general.sampling.penalty_last_n", NULL, -1, INT32_MAX)

struct tern_gguf;
/* Writes the tokenizer that the files describe as GGUF's tokenizer.ggml.*, so that tern_tokenizer_from_file makes one
 * of it that encodes alike, with unused tokens up to n_rows, the rows of the embedding.  What GGUF has no words for
 * fails with TERN_EUNSUPPORTED and the reason. */
int tern_tokenizer_to_gguf(struct tern_gguf *g, const struct tern_tokenizer_json *files, int n_rows, tern_error *err);

enum {
    TERN_TOK_SPECIAL = 1, /* control tokens written in the text become control tokens (template text) */
    TERN_TOK_BOS_EOS = 2, /* add the BOS / EOS ids that the file's rules ask for (never a second BOS) */
    TERN_TOK_OPEN = 4,    /* beside that: none behind the text, which goes on */
};

/* Appends the ids of text[0..n) to ids.  Without TERN_TOK_SPECIAL control tokens in the text are ordinary text;
 * user-defined tokens match in both modes.  Time is O(n log n), but for patterns that look ahead without a limit;
 * TERN_ELIMIT when they do so too often. */
int tern_tokenize(const struct tern_tokenizer *t, const char *text, size_t n, unsigned flags, struct tern_ids *ids,
                  tern_error *err);

int tern_tokenizer_n_vocab(const struct tern_tokenizer *t);
const char *tern_tokenizer_kind(const struct tern_tokenizer *t); /* "BPE, pre-tokenizer smollm", for reports */
size_t tern_tokenizer_longest(const struct tern_tokenizer *t);   /* bytes of a token */
int32_t tern_tokenizer_front(const struct tern_tokenizer *t);    /* that every text begins with; -1: none */
int32_t tern_tokenizer_bos(const struct tern_tokenizer *t);      /* -1 when the file names none */
int32_t tern_tokenizer_eos(const struct tern_tokenizer *t);
/* What the file calls its other special tokens: a JSON object with those it names of unk_token, pad_token, sep_token,
 * cls_token, mask_token and (a list) additional_special_tokens.  NULL: none; owned by t. */
const char *tern_tokenizer_names(const struct tern_tokenizer *t);
bool tern_tokenizer_is_eog(const struct tern_tokenizer *t, int32_t id); /* ends a generation: eos, eot, eom, ... */
bool tern_tokenizer_is_control(const struct tern_tokenizer *t, int32_t id);
int32_t tern_tokenizer_find(const struct tern_tokenizer *t, const char *text, size_t n); /* exact piece; -1 if absent */
/* The vocabulary's own spelling of a token (for example "\xC4\xA0the"); NULL-terminated, owned by t. */
const char *tern_tokenizer_piece(const struct tern_tokenizer *t, int32_t id);

/* Appends the bytes of one token to out.  Control tokens yield nothing unless `special`.  Ids outside the vocabulary
 * fail with TERN_EINVAL. */
int tern_token_bytes(const struct tern_tokenizer *t, int32_t id, bool special, struct tern_buf *out, tern_error *err);

/* One-shot decode of ids[0..n): the concatenation, with the prefix space that encoding added removed again. */
int tern_detokenize(const struct tern_tokenizer *t, const int32_t *ids, size_t n, bool special, struct tern_buf *out,
                    tern_error *err);

/* Streaming decode: emits only complete UTF-8 characters; malformed bytes become U+FFFD at the same places as
 * Python's errors="replace".  The concatenation of all pieces equals the one-shot decode of well-formed text. */
struct tern_detok {
    const struct tern_tokenizer *t;
    bool special;
    bool started;    /* false until the first token: a prefix space is dropped then */
    char pending[8]; /* bytes of an unfinished character */
    int n_pending;
};
void tern_detok_init(struct tern_detok *d, const struct tern_tokenizer *t, bool special);
int tern_detok_push(struct tern_detok *d, int32_t id, struct tern_buf *out, tern_error *err);
int tern_detok_finish(struct tern_detok *d, struct tern_buf *out, tern_error *err); /* flushes what is held back */

/* ---- chat template ------------------------------------------------------------------------------------------ */

struct tern_template;

/* Parses a Jinja template (the subset of docs/templates.md).  `name` is used in messages ("model.gguf: chat template,
 * line 3: ...").  Depth, steps and output are bounded at render time: TERN_ELIMIT. */
int tern_template_parse(struct tern_template **out, const char *name, const char *text, size_t n, tern_error *err);
void tern_template_free(struct tern_template *t);
/* What every rendering sees beneath the variables that it is given: the members of a JSON object (nullable), kept as a
 * copy. */
int tern_template_set_names(struct tern_template *t, const char *names_json, tern_error *err);

struct tern_chat_message {
    const char *role;    /* "system", "user", "assistant", "tool" */
    const char *content; /* UTF-8, NUL-terminated */
};

/* One stretch of the rendered prompt.  Text that came from a message is `user`: it is tokenized without
 * TERN_TOK_SPECIAL, so it can never become a control token; the template's own text is tokenized with it. */
struct tern_span {
    size_t begin, end; /* byte range in the rendered text */
    bool user;
};

struct tern_rendered {
    struct tern_buf text;
    struct tern_span *spans; /* cover text without gaps, in order */
    size_t n_spans, cap_spans;
};
void tern_rendered_clear(struct tern_rendered *r);

/* Renders messages with the variables Hugging Face passes: messages, add_generation_prompt, bos_token, eos_token,
 * plus `vars_json` (nullable): a JSON object of further variables (tools, enable_thinking ...). */
int tern_template_render(const struct tern_template *t, const struct tern_chat_message *msgs, size_t n_msgs,
                         bool add_generation_prompt, const char *bos_token, const char *eos_token,
                         const char *vars_json, struct tern_rendered *out, tern_error *err);

/* As above with `messages` itself given as a JSON array (content may be null, a list, carry tool_calls ...).  Every
 * string inside messages_json counts as user text. */
int tern_template_render_json(const struct tern_template *t, const char *messages_json, bool add_generation_prompt,
                              const char *bos_token, const char *eos_token, const char *vars_json,
                              struct tern_rendered *out, tern_error *err);

/* The ids of a rendered prompt.  Control tokens are found only where all of their text lies in template spans; ordinary
 * text tokenizes as a whole across the borders of spans, as it does where a finished prompt is tokenized.  Adds BOS by
 * the file's rule unless the text already begins with it. */
int tern_tokenize_rendered(const struct tern_tokenizer *t, const struct tern_rendered *r, struct tern_ids *ids,
                           tern_error *err);
/* The same, and where conversations that begin alike may part: borders (nullable) gets ids->len behind each control
 * token, ascending, as far as the first one behind the last message.  What comes before such a place is tokenized alike
 * whatever follows. */
int tern_tokenize_turns(const struct tern_tokenizer *t, const struct tern_rendered *r, struct tern_ids *ids,
                        struct tern_ids *borders, tern_error *err);

/* Does the template's text say this name?  A switch (`enable_thinking`) or list (`tools`) that it does not say would be
 * accepted and ignored. */
bool tern_template_says(const struct tern_template *t, const char *name);
/* Does it hold this text between quotation marks, as something that it compares with or prints? */
bool tern_template_quotes(const struct tern_template *t, const char *text);

/* ChatML, used when a file has no template but its vocabulary has <|im_start|> and <|im_end|>. */
extern const char tern_template_chatml[];

/* ---- replies ------------------------------------------------------------------------------------------------ */

/* How a model marks calls and reasoning: rows of text/reply/calls.def. */
struct tern_calls_format;
struct tern_reasoning_format;
/* By name, or by what a template's text says; NULL when there is none. */
const struct tern_calls_format *tern_calls_named(const char *name);
const char *tern_calls_name(const struct tern_calls_format *f);
const struct tern_calls_format *tern_calls_of_text(const char *text, size_t n);
const struct tern_reasoning_format *tern_reasoning_named(const char *name);
const struct tern_reasoning_format *tern_reasoning_of_text(const char *text, size_t n);
const struct tern_calls_format *tern_template_calls(const struct tern_template *t);
const struct tern_reasoning_format *tern_template_reasoning(const struct tern_template *t);
/* Their marks. */
const char *tern_calls_open(const struct tern_calls_format *f);
const char *tern_calls_close(const struct tern_calls_format *f); /* "": none */
const char *tern_reasoning_open(const struct tern_reasoning_format *f);
const char *tern_reasoning_close(const struct tern_reasoning_format *f);
/* Does a prompt that ends like this open the reasoning? */
bool tern_reasoning_begun(const struct tern_reasoning_format *f, const char *text, size_t n);
/* Does this text open it and not close it? */
bool tern_reasoning_open_in(const struct tern_reasoning_format *f, const char *text);

/* What tern_reply_new (tern/tern.h) does; t may be NULL, then p names the formats.  The functions of tern/reply.h are
 * in text/reply/reply.c. */
int tern_reply_make(tern_reply **out, const struct tern_template *t, const tern_reply_params *p, tern_error *err);
/* Is the next character reasoning, or a mark that ends it? */
bool tern_reply_reasons(const tern_reply *r);

#endif
