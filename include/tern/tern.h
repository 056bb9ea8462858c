/* tern/tern.h - run language models whose KV cache is compressed and attended in place.
 *
 * Objects, in order of life:
 *   tern_model    weights, tokenizer and chat template of one file; immutable once open
 *   tern_engine   a model plus threads, scratch and a KV pool; steps ragged batches of sequences
 *   tern_seq      one sequence: its tokens and their KV pages
 *   tern_sampler  turns logits into a token; owns its random state and penalties
 *   tern_stream   turns tokens into UTF-8 text; holds back unfinished characters
 *   tern_reply    takes a reply apart: content, reasoning, calls of tools (tern/reply.h)
 *   tern_grammar  what a text must look like: JSON by a schema, regular expressions ... (tern/grammar.h)
 *   tern_loop     many requests on one engine, from any thread (tern/loop.h)
 *
 * Threads: a model may be shared by engines and read from any thread.  An engine, its sequences and everything obtained
 * from them belong to one thread at a time.  tern_engine_cancel alone may be called from any thread or signal handler.
 * Ownership: `_open/_close`, `_new/_free` pair up; close and free accept NULL.  "view" results live until the next call
 * that the comment names.  Errors: tern/error.h.  Strings are UTF-8.  No function prints or exits.
 *
 * Promise (CPU): a token's logits depend on the tokens before it, the model and the KV plan alone - not on the number
 * of threads, on what else is in the batch, or on how the prompt was cut into steps.  A sequence that was forked,
 * trimmed, saved and restored continues bit for bit as one that was not. */
#ifndef TERN_H
#define TERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "tern/error.h"
#include "tern/grammar.h"
#include "tern/reply.h"

#ifdef __cplusplus
extern "C" {
#endif

TERN_API const char *tern_version(void); /* "0.1.0" */

/* ---- machine ------------------------------------------------------------------------------------------------ */

typedef struct tern_machine {
    const char *cpu;      /* brand string */
    const char *detected; /* highest instruction-set level found: "c", "avx2", "avx512", "amx" */
    const char *used;     /* level in use after the mask */
    int cores;            /* physical cores this process may use: the default number of threads */
    size_t memory_bytes;  /* total RAM (cgroup limit considered) */
    const char *refused;  /* why the system withholds a level that the processor has, or NULL */
} tern_machine;
TERN_API void tern_machine_describe(tern_machine *out);

/* Limits kernels to a level ("c", "avx2", "avx512", "amx", "all").  TERN_EINVAL
 * while a model is open.
 */
TERN_API int tern_set_cpu_mask(const char *level, tern_error *err);

/* Largest resident set of this process so far, in bytes. */
TERN_API size_t tern_peak_memory(void);

/* ---- model -------------------------------------------------------------------------------------------------- */

typedef struct tern_model tern_model;

typedef struct tern_model_info {
    const char *path;
    const char *container; /* "GGUF" or "safetensors" */
    const char *arch;      /* "llama" */
    const char *name;      /* general.name, or "" */
    const char *tokenizer; /* "BPE, pre-tokenizer smollm", or "none" */
    int n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab;
    int ctx;              /* tokens the model was trained for */
    bool has_template;    /* the file carries a chat template (or its vocabulary speaks ChatML) */
    int n_mtp_layers;     /* loaded for multi-token prediction, behind n_layers (tern_engine_params.draft): 0 or 1 */
    int64_t n_params;     /* of all layers */
    int64_t n_mtp_params; /* of these, those of n_mtp_layers */
    size_t file_bytes;
    size_t weight_bytes;       /* weights in memory, or mapped from `packed` */
    int n_cpu_layers;          /* of n_layers the first, which the CPU has beside a card (gpu_layers) */
    int n_cards;               /* that compute it together (gpus); 0: on the CPU */
    const char *device;        /* where it runs: "cpu", or "cuda: NVIDIA H200, 143156 MiB, compute capability 9.0" */
    const char *kv_default;    /* the KV plan where nobody asks for one: "t4" on the CPU, "l4" on a card, where t4 costs
                                  time (docs/decisions/071-a-cards-default.md) */
    const char *device_notice; /* a sentence that says why it is on the CPU although device "auto" found a card: what
                                  that refuses, or what is wrong with it; NULL: it is not so */
    const char *packed; /* the file of packed weights that is mapped; NULL: this process packed them for itself */
    const char *notice; /* a sentence about that file that a user wants to see: it was written, could not be written,
                           or did not fit; NULL when there is nothing to say */
    const char *sampling_left_out; /* settings that the model recommends (tern_model_recommends) and this sampler cannot
                                      follow, by their names in the file, separated by commas; NULL: none */
} tern_model_info;

typedef struct tern_model_params {
    int n_threads; /* 0 = all physical cores */
    /* Weights are packed when a model is opened; a file can keep them, for later runs to map.  Processes that map it
     * share its memory.
     *   "auto" or NULL   MODEL.packed (tern_model_beside); made when the weights are 32 MiB or more, and made anew when
     *                    it does not fit the model or is damaged
     *   "use"            the same file if it is there and fits; never written
     *   "off"            neither read nor written
     *   anything else    the path of the file, made for weights of any size
     * Whatever goes wrong with it leads to a notice in tern_model_info, never to an error.  A file under that name that
     * is something else is left alone.  docs/packed-format.md */
    const char *packed;
    /* A longer context than the model was trained for: "yarn,factor=4" or "linear,factor=2", with ",original=N" where N
     * is not what the model says; it takes the place of the model's own scaling.  "none" undoes that.  NULL: the
     * model's. */
    const char *rope_scaling;
    double rope_base; /* of the frequencies; 0: the model's */
    /* Called before such a file is written, from the calling thread: where, and how large it will be.  NULL: not. */
    void (*before_packed)(void *user, const char *path, size_t bytes);
    /* Called as soon as the bytes of all weights are known and before memory is taken or a file of them is mapped, for
     * each device that is tried: a negative status ends the opening with it and with *err.  NULL: not. */
    int (*before_weights)(void *user, size_t bytes, tern_error *err);
    /* Called between tensors while weights are packed; other than 0 ends the opening with TERN_ECANCELLED.  NULL: not.
     */
    int (*on_progress)(void *user, int done, int total);
    /* Called with its name before a device is tried.  The second time, by "auto", the first one has refused the model:
     * what before_weights was asked for then is not taken.  NULL: not. */
    void (*on_device)(void *user, const char *device);
    void *user; /* of all of these, which are called from the thread that opens */
    /* Where the model and its engines run: "cpu", or in builds with CUDA "cuda" or "cuda:1" (a card's number).  "auto"
     * or NULL: the first card, where there is one; the CPU without, and for a model that the card refuses, because it
     * is too large or needs what the card does not compute (tern_model_info.device_notice, tern_model_fall_back).  With
     * gpu_memory, gpu_layers or gpus a card is asked for, and what it refuses is an error (docs/decisions/029-cuda.md).
     * A program with CUDA kernels of its own uses a card before it opens a model there: else the stacks of the card's
     * primary context are as large as kernels here need, which is less than the driver's 1 KiB. */
    const char *device;
    /* A model with experts on the CPU: bytes of experts in memory; 0: all weights are.  The others stay in the file of
     * packed weights, which is written first where there is none and `packed` allows it, tensor by tensor; what the
     * rows of a step go to is read, and what is expected to be used last leaves memory for it.  Results do not depend
     * on it. Refused where the model has no experts, nothing can be mapped, or one token's experts of one layer take
     * more; an engine is refused where those of its largest step (chunk) do.  Pages that hold bytes of two experts are
     * beyond the limit.  A step fails with TERN_EIO when experts cannot be read, or the file was made shorter: open the
     * model again. */
    size_t experts_resident;
    /* On a card: bytes of its memory that this process takes at most, for weights, caches and scratch of all its models
     * there; 0: as it was set before, at first what was free when the card was found, less a margin.  What does not fit
     * is refused with a sentence: weights and scratch when they are opened, pages (TERN_ECAPACITY) before a step.
     * TERN_EINVAL on the CPU, and where the card has less. */
    size_t gpu_memory;
    /* On a card: so many of the last layers, and what stands before and behind them (embedding, output matrix); the CPU
     * computes the others from its own memory, and each keeps the cache of its layers.  0: all; negative: none.  Logits
     * depend on where a layer is computed, so a sequence that was saved is loaded with the same number alone.
     * TERN_EINVAL on the CPU; TERN_EUNSUPPORTED where layers read more of each other than the stream. */
    int gpu_layers;
    /* On cards: so many compute the model together, `device` and those of the next numbers; 0 and 1: one alone.  Each
     * has a part of every matrix and some KV heads of every layer, and whole the embedding, experts and states of
     * recurrent layers; gpu_memory is of each.  Logits are, bit for bit, those of one card of the kind, so sequences
     * and caches of any number go together.  TERN_EINVAL on the CPU, beside gpu_layers, and where there are not so
     * many. */
    int gpus;
} tern_model_params;

/* Of a card that models run on; limit_bytes 0: the CPU, whose memory is the machine's. */
typedef struct tern_device_memory {
    size_t limit_bytes;  /* gpu_memory, or what it was set to */
    size_t used_bytes;   /* of these, what this process has taken */
    size_t weight_bytes; /* of the model that was asked about, its weights on the card */
} tern_device_memory;
TERN_API void tern_model_device_memory(const tern_model *m, tern_device_memory *out); /* any thread */
/* Of a device by its name, as in tern_model_params. */
TERN_API int tern_device_get_memory(const char *device, tern_device_memory *out, tern_error *err);

/* Opens a GGUF file (any part of a split set), or a Hugging Face directory of safetensors.  p NULL: all defaults. */
TERN_API int tern_model_open(tern_model **out, const char *path, const tern_model_params *p, tern_error *err);
TERN_API void tern_model_close(tern_model **m);
/* After an engine of m was refused with *why, when m has none: where "auto" has chosen a card, and that is what refuses
 * (its memory, or something in e that it does not do), m's weights are loaded anew on the CPU, which an engine can be
 * opened on then.  Else *why comes back, as it does when m was not loaded; nothing has changed then.  p: what m was
 * opened with. e: what was refused; NULL: whatever *why says.  Nobody else may use m meanwhile. */
struct tern_engine_params;
TERN_API int tern_model_fall_back(tern_model *m, const tern_model_params *p, const struct tern_engine_params *e,
                                  const tern_error *why, tern_error *err);
/* The path of MODEL.suffix (".packed", ".ternkv"): beside the model, or in the user's cache folder
 * ($XDG_CACHE_HOME/tern or $HOME/.cache/tern, which is made) when it is there already or the model's folder cannot be
 * written. */
TERN_API int tern_model_beside(const tern_model *m, const char *suffix, char *out, size_t n, tern_error *err);
TERN_API const tern_model_info *tern_model_get_info(const tern_model *m); /* view, until close */

/* What experts_resident costs, since the model was opened, by all its engines.  An expert counts once for each step of
 * its layer, for all rows that go to it. */
typedef struct tern_expert_stats {
    size_t limit_bytes;         /* experts_resident; 0: all weights are in memory, and all that follows is 0 */
    size_t bytes;               /* of all experts */
    size_t resident_bytes;      /* of those in memory now */
    size_t most_resident_bytes; /* the most that there were */
    uint64_t rows;              /* tokens that were computed, prompts included */
    uint64_t used;              /* experts that steps computed with */
    uint64_t found;             /* of these, in memory, or read ahead */
    uint64_t read;              /* experts that were read from the file */
    uint64_t read_ahead;        /* of these, before their layer's turn, which tokens' ids tell */
    uint64_t read_bytes;
    double wait_s; /* seconds that steps waited for them */
} tern_expert_stats;
TERN_API void tern_model_experts(const tern_model *m, tern_expert_stats *out); /* any thread */

typedef struct tern_tensor_info {
    const char *name;
    const char *type; /* as in the file; of several tensors that are one weight: "affine 4 bit, groups of 64" */
    int n_dims;
    int64_t dims[4]; /* dims[0] contiguous */
    size_t file_bytes;
    size_t memory_bytes; /* packed; 0 when the tensor is not used */
} tern_tensor_info;
TERN_API size_t tern_model_n_tensors(const tern_model *m);
TERN_API void tern_model_tensor(const tern_model *m, size_t i, tern_tensor_info *out);

/* ---- text --------------------------------------------------------------------------------------------------- */

/* A growable list of token ids owned by the caller; zero-initialise, release with tern_tokens_clear. */
typedef struct tern_tokens {
    int32_t *p;
    size_t len;
    size_t cap;
} tern_tokens;
TERN_API void tern_tokens_clear(tern_tokens *t);
TERN_API int tern_tokens_push(tern_tokens *t, int32_t id, tern_error *err);

enum {
    TERN_TEXT_SPECIAL = 1, /* control tokens written in the text become control tokens */
    TERN_TEXT_BOS = 2,     /* add BOS/EOS as the file asks */
    TERN_TEXT_OPEN = 4,    /* beside that: no EOS, for the text is to be continued */
};
/* Appends the ids of text[0..n).  TERN_EUNSUPPORTED when the model has no tokenizer. */
TERN_API int tern_model_tokenize(const tern_model *m, const char *text, size_t n, unsigned flags, tern_tokens *out,
                                 tern_error *err);
/* Spelling of one id in the vocabulary, or NULL when out of range. */
TERN_API const char *tern_model_token(const tern_model *m, int32_t id);
/* The bytes of one id into buf[0..cap); *n: how many there are.  More than cap: nothing is written.
 * A token may be part of a character; control tokens have bytes, too. */
TERN_API int tern_model_token_bytes(const tern_model *m, int32_t id, char *buf, size_t cap, size_t *n, tern_error *err);
TERN_API bool tern_model_is_eog(const tern_model *m, int32_t id); /* does this token end a reply? */

typedef struct tern_chat_turn {
    const char *role;    /* "system", "user", "assistant", "tool" */
    const char *content; /* never becomes a control token, whatever it spells */
} tern_chat_turn;
/* Appends the ids of a conversation rendered with the model's template (BOS included where it belongs).
 * `first` > 0 renders all turns but appends only what follows the rendering of the first `first` turns (for a
 * conversation whose beginning is already in a sequence); fails with TERN_EMISMATCH when the template does not extend.
 */
TERN_API int tern_model_chat_tokens(const tern_model *m, const tern_chat_turn *turns, size_t n_turns, size_t first,
                                    bool add_generation_prompt, tern_tokens *out, tern_error *err);
/* The rendered text itself, for --verbose and tests.  *out is malloc'ed; free() it. */
TERN_API int tern_model_chat_text(const tern_model *m, const tern_chat_turn *turns, size_t n_turns,
                                  bool add_generation_prompt, char **out, tern_error *err);

/* So many bytes of text are at least so many tokens: what is far too long need not be tokenized. */
TERN_API size_t tern_model_least_tokens(const tern_model *m, size_t bytes);

/* The ids of a conversation that is a JSON array of messages as OpenAI's API has them (content may be null, tool_calls,
 * tool_call_id, reasoning_content ...), with further variables for the template as a JSON object, or NULL: tools, and
 * switches such as enable_thinking.  Arguments of calls may be texts or objects: the template gets what it can take. No
 * text of a message becomes a control token; variables are the template's text.  Where add_generation_prompt is asked
 * for and the last message is the assistant's, with text, no calls and "prefix": true, the ids end with its text as the
 * template writes it, for the model to go on: TERN_EUNSUPPORTED where the template does not write it. */
TERN_API int tern_model_chat_json(const tern_model *m, const char *messages_json, const char *vars_json,
                                  bool add_generation_prompt, tern_tokens *out, tern_error *err);
/* The same, and where conversations that begin alike may part: borders (nullable) gets counts of tokens, ascending, up
 * to the end of the last message, for tern_request.borders.  None where the template has no control tokens. */
TERN_API int tern_model_chat_borders(const tern_model *m, const char *messages_json, const char *vars_json,
                                     bool add_generation_prompt, tern_tokens *out, tern_tokens *borders,
                                     tern_error *err);
/* Does the model's template look at a variable of this name?  One that it never names would be ignored in silence.  A
 * model may have a template of its own for conversations with tools ("tool_use"), which is used when `tools` is not
 * empty; then both must look at it, except at `tools`. */
TERN_API bool tern_model_chat_uses(const tern_model *m, const char *variable);
/* Does the template hold this text between quotation marks ("max", "latest_reminder"): a value or a role that it tells
 * from others?  Of two templates both must. */
TERN_API bool tern_model_chat_quotes(const tern_model *m, const char *text);
/* The format of calls that the template describes, one of tern_reply_formats(); NULL: none that is known. */
TERN_API const char *tern_model_chat_calls(const tern_model *m);

/* For one reply of m; formats that p leaves open are those of its template.  TERN_EINVAL names what is wrong in p, of
 * whose texts nothing is referred to afterwards. */
TERN_API int tern_reply_new(tern_reply **out, const tern_model *m, const tern_reply_params *p, tern_error *err);

typedef struct tern_stream tern_stream;
TERN_API int tern_stream_new(tern_stream **out, const tern_model *m, bool special, tern_error *err);
TERN_API void tern_stream_free(tern_stream *s);
/* Complete characters that this id finishes; *text is a view until the next call on s. */
TERN_API int tern_stream_push(tern_stream *s, int32_t id, const char **text, size_t *n, tern_error *err);
TERN_API int tern_stream_finish(tern_stream *s, const char **text, size_t *n, tern_error *err);
/* Before the first id: the text goes on behind this one, so a space that it begins with is part of it. */
TERN_API int tern_stream_behind(tern_stream *s, int32_t id, tern_error *err);

/* ---- KV plan ------------------------------------------------------------------------------------------------ */

/* One layer of the effective plan: what a --kv text comes to on this model. */
typedef struct tern_kv_row {
    int layer;
    const char *k, *v; /* scheme in effect; v: of what grows, where a layer keeps a window besides */
    int n_heads, dim_k, dim_v;
    int window;             /* newest tokens that are seen; 0 = full attention */
    int first;              /* first tokens that are seen besides, however long the sequence is (max=N) */
    bool chunked;           /* the window does not slide: attention begins anew at its multiples */
    double bytes_per_token; /* of closed pages, headers included */
    double f16_bytes_per_token;
    /* n_heads 0: a layer that keeps this for a sequence of any length, instead of tokens, and up to kept_bytes more for
     * going back; or, 0, one that attends to what an earlier layer keeps. */
    size_t state_bytes, kept_bytes;
    const char *conditioning; /* "calibrated", "scaled by norm weights", "centred by the key bias"; NULL: keys are coded
                                 as they are, or not at all */
    const char *reason;       /* why this layer differs from what was asked for; NULL when it does not */
} tern_kv_row;

/* Grammar: SCHEME | k=SCHEME,v=SCHEME, then options first=N, recent=N, edge=N:SCHEME,
 * layers=A-B:SCHEME, position=f16, cond=off|norms|bias|FILE, plan=FILE, max=N (docs/kv-cache.md).  Schemes:
 * tern_kv_schemes().  NULL means tern_model_info.kv_default.  With max=N a sequence keeps N tokens at most, in layers
 * that would see everything: the first ones (first=K, 4) and the newest N - K; it goes on to the end of the context,
 * and a trim beyond what it keeps fails. Coded keys are conditioned by the sidecar beside the model, MODEL.ternkv, else
 * by the norm weights of queries and keys, else by a bias of the keys, else not; cond= chooses. */
typedef struct tern_kv_plan tern_kv_plan;
/* Is this the text of a plan, on whatever model?  TERN_EINVAL says what is wrong in it; files that it names are read.
 */
TERN_API int tern_kv_check(const char *spec, tern_error *err);
/* The same, and the numbers of max=N and first=K in it or in its plan file; 0 and -1 where they are not said. */
TERN_API int tern_kv_check_max(const char *spec, int *max, int *first, tern_error *err);
TERN_API int tern_kv_plan_new(tern_kv_plan **out, const tern_model *m, const char *spec, bool strict, tern_error *err);
TERN_API void tern_kv_plan_free(tern_kv_plan *p);
TERN_API const char *tern_kv_plan_text(const tern_kv_plan *p); /* as it was given, or the default; view until free */
TERN_API int tern_kv_plan_rows(const tern_kv_plan *p);
TERN_API void tern_kv_plan_row(const tern_kv_plan *p, int layer, tern_kv_row *out); /* strings: view until free */
/* What a sequence of so many tokens takes, whole pages and raw tokens included, and would take in 16 bits. */
TERN_API void tern_kv_plan_full(const tern_kv_plan *p, int tokens, size_t *bytes, size_t *f16_bytes);
TERN_API int tern_kv_row_tokens(const tern_kv_row *r, int tokens); /* how many of so many a layer keeps */

/* What the user should know about the plan, a sentence without its end: an item of the text that changes nothing, a
 * sidecar that cannot be used.  NULL behind the last one; views until free.  Strict plans have none, they fail. */
TERN_API const char *tern_kv_plan_note(const tern_kv_plan *p, int i);
/* Does it code keys whose conditioning a calibration would improve?  Not where cond= or a sidecar that fits decides. */
TERN_API bool tern_kv_plan_uncalibrated(const tern_kv_plan *p);
/* A sentence about a sidecar that lies there and cannot be used (the plan goes on without; strict refuses), or NULL. */
TERN_API const char *tern_kv_plan_notice(const tern_kv_plan *p); /* view until free */

/* Names of all schemes with a one-line description each; NULL-terminated pairs name, about. */
TERN_API const char *const *tern_kv_schemes(void);

/* Measures the keys and queries that ids[0..n) give rise to and writes the key conditioning of the model to `path`
 * (NULL: MODEL.ternkv beside the model).  256 to a few thousand tokens of varied text; at most the model's context is
 * used.  The same ids give the same file on any number of threads. */
typedef int tern_progress_fn(void *user, int done, int total);
TERN_API int tern_model_calibrate(tern_model *m, const int32_t *ids, int n, int n_threads, const char *path,
                                  tern_progress_fn *progress, void *user, tern_error *err);
/* The same in about `seconds`: on 4096 tokens at most, or on half of them, and so on down to 256; *n_used: how many.
 * TERN_ELIMIT, with the time that it would take in *expected, when that is more than `seconds` even so. */
TERN_API int tern_model_calibrate_within(tern_model *m, const int32_t *ids, int n, int n_threads, const char *path,
                                         double seconds, tern_progress_fn *progress, void *user, int *n_used,
                                         double *expected, tern_error *err);
/* A text for this, when there is no better: prose, dialogue, lists, tables, code, several languages.  Static. */
TERN_API const char *tern_calibration_text(void);

/* ---- engine ------------------------------------------------------------------------------------------------- */

typedef struct tern_engine tern_engine;
typedef struct tern_seq tern_seq;

typedef struct tern_engine_params {
    int n_threads;  /* 0 = all physical cores */
    int ctx;        /* tokens per sequence; 0 = the model's own */
    int max_seqs;   /* sequences alive at once; 0 = 1 */
    int chunk;      /* most rows in one step; 0 = 512, on a GPU 4096, or less where it has little room */
    const char *kv; /* KV plan; NULL = tern_model_info.kv_default ("f32" when exact) */
    bool kv_strict; /* refuse instead of keeping a layer at 16 bit with a reason */
    bool exact;     /* every row in the wide class: f32 arithmetic on the dequantised weights, on every machine */
    /* Bits of the activations that decode rows multiply weights by: 8, 16, or 0 for 8.  With 16 the products of decode
     * rows are as good as those of prompt rows; steps of many sequences take up to twice the time
     * (docs/decisions/040-16-bit-decode-rows.md).  TERN_EUNSUPPORTED on a GPU; --exact does without. */
    int decode_bits;
    /* The class of arithmetic that prompt rows multiply weights in.
     *   "auto" or NULL   the most exact that the machine is fast in (docs/decisions/021-int16-prompts-on-vnni.md)
     *   "int8"           that of decode rows with 8 bits: faster, and as far from exact arithmetic as generated tokens
     *                    are (docs/decisions/041-prompts-in-int8.md).  TERN_EUNSUPPORTED on a GPU; not with exact
     * Files and prefixes of one class are not found by the other. */
    const char *prompt_class;
    /* Further plans, numbered from 1; `kv` is plan 0.  Sequences of all plans go through one step together, so plans
     * can be compared at the price of reading the weights once.  max_seqs counts the sequences of all plans. */
    const char *const *more_kv;
    int n_more_kv;
    /* The prompt that a sequence begins with is attended to in 16 bits and coded when it is complete, as engines do
     * that compress after prefill; else pages are coded as they fill.  Concerns tern_prefill and tern_generate on an
     * empty sequence; what comes later, and what a trim computes again, is coded as it comes. */
    bool code_at_end;
    /* Most bytes that the sequences of all plans have in use together: pages, open pages, first tokens, states.  What
     * does not fit is refused with TERN_ECAPACITY before anything is computed; 0: room for max_seqs full sequences of
     * every plan.  On a card never more than weights and scratch leave of its budget (tern_engine_kv_limit). */
    size_t kv_bytes;
    /* Newest decode rows of a step that a trim right after it takes back without computing anything, 0..16: for drafts
     * that may be rejected.  Every sequence holds one more page in 16 bits for it, and a recurrent one a state for each
     * of those rows until its next step. */
    int drafts;
    /* Guesses at what a reply says next, which tern_generate and loops verify several in one step.  The text is what it
     * would be without, bit for bit (docs/drafts.md).
     *   "off" or NULL   none
     *   "ngram"         what followed the same tokens in prompt and reply, wherever two of them are alike
     *   "mtp"           what the model's layer for multi-token prediction finds likeliest (tern_model_info), which then
     *                   caches a layer more; TERN_EUNSUPPORTED where there is none
     *   "auto"          "ngram" and, where the model has the layer, "mtp", where that is faster by what this engine has
     *                   seen of texts and times
     * They raise `drafts` to what they need. */
    const char *draft;
    /* Guesses of a smaller model with the same vocabulary instead, as many as pay; TERN_EMISMATCH where it is another.
     * It must outlive the engine, whose threads it uses; its cache counts as scratch.  `draft` is NULL then. */
    tern_model *draft_model;
    int draft_most; /* guesses per sequence and step, 1..64 (16 where layers are recurrent); 0 = 15, 7 of a model (4) */
} tern_engine_params;

/* p NULL: all defaults. */
TERN_API int tern_engine_open(tern_engine **out, tern_model *m, const tern_engine_params *p, tern_error *err);
TERN_API void tern_engine_close(tern_engine **e); /* frees its sequences too */
TERN_API int tern_engine_ctx(const tern_engine *e);
TERN_API int tern_engine_chunk(const tern_engine *e);
TERN_API int tern_engine_max_decode(const tern_engine *e); /* most decode rows in one step */
TERN_API int tern_engine_threads(const tern_engine *e);
TERN_API const tern_kv_plan *tern_engine_plan(const tern_engine *e); /* plan 0 */
TERN_API int tern_engine_n_plans(const tern_engine *e);
TERN_API const tern_kv_plan *tern_engine_plan_at(const tern_engine *e, int plan); /* NULL when there is no such plan */

/* Another plan for an open engine, which several may share: *plan is its number, or that of one with the same pages.
 * TERN_ECAPACITY when 16 have been added.  Costs what opening an engine costs, and nothing has changed on failure.  Not
 * while a loop owns the engine. */
TERN_API int tern_engine_add_plan(tern_engine *e, const char *kv, bool strict, int *plan, tern_error *err);

typedef struct tern_memory {
    size_t kv_bytes;     /* pages, tiles and first tokens in use, from the allocator */
    size_t kv_f16_bytes; /* what a 16-bit cache would have in use for the same sequences, its open pages included */
    /* The same of one sequence of plan 0 that fills the context (tern_engine_full: of another). */
    size_t kv_full_bytes, kv_full_f16_bytes;
    size_t state_bytes; /* recurrent states of sequences, those that are kept for going back among them */
    size_t scratch_bytes;
} tern_memory;
/* What sequences may have in use together: kv_bytes, or what a card has left for them; SIZE_MAX: no limit. */
TERN_API size_t tern_engine_kv_limit(const tern_engine *e);
TERN_API void tern_engine_memory(const tern_engine *e, tern_memory *out);
TERN_API void tern_engine_full(const tern_engine *e, int plan, size_t *bytes, size_t *f16_bytes);

/* Makes the running call return TERN_ECANCELLED at its next step boundary; sequences stay valid.  Forgotten when no
 * call is running.  Async-signal-safe. */
TERN_API void tern_engine_cancel(tern_engine *e);

TERN_API int tern_seq_new(tern_seq **out, tern_engine *e, tern_error *err); /* TERN_ECAPACITY beyond max_seqs */
TERN_API int tern_seq_new_plan(tern_seq **out, tern_engine *e, int plan, tern_error *err);
TERN_API void tern_seq_free(tern_seq *s);
TERN_API int tern_seq_fork(tern_seq **out, tern_seq *s, tern_error *err); /* shares closed pages */
/* Forgets all tokens from n on.  Nothing has changed when it fails, but where a device fails while it computes again:
 * then the sequence can only be freed.  TERN_EUNSUPPORTED when a sliding-window layer no longer holds the tokens that n
 * needs; TERN_ECAPACITY when tokens before n must be computed again, others share their pages, and kv_bytes leaves no
 * room for new ones. */
TERN_API int tern_seq_trim(tern_seq *s, int n, tern_error *err);
TERN_API int tern_seq_length(const tern_seq *s);
TERN_API int tern_seq_plan(const tern_seq *s); /* number of its plan */

typedef struct tern_recoded {
    int plan_before, n_tokens;
    bool decoded;                     /* tokens were in codes before: what those had lost stays lost */
    size_t bytes_before, bytes_after; /* of the sequence, pages that it shares among them, without states */
    size_t bytes_more;                /* most that were in use on the way beyond what was in use before */
    double seconds;
} tern_recoded;
/* Gives a sequence another plan where it stands.  Its keys and values are what the next token would have read, and the
 * new plan holds them as it would hold them if the model had made them: 16-bit values are coded as they would have
 * been, codes become 16 bits by being decoded, and from codes to other codes both happen, so that the losses of the two
 * schemes add up (*out says so).  Page by page: each is given back when its successor stands, so that beside the larger
 * of the two there is one page and one open page, if nobody else holds the pages.  What a trim computes again comes
 * from the model, in the new plan.  out may be NULL.  Nothing has changed on failure: TERN_ECAPACITY when kv_bytes
 * leaves no room for that; TERN_EUNSUPPORTED where the model keeps rows of several tokens, where the device reads no
 * codes back, or where max= (or first= beside it) of the two plans differs.  Not while a loop owns the engine. */
TERN_API int tern_seq_recode(tern_seq *s, int plan, tern_recoded *out, tern_error *err);
/* s changes its plan when it has n tokens, at once if it has: steps of tern_prefill and tern_generate end there,
 * whatever their chunk.  If memory is short then, they fail and s keeps its plan.  Forks go on alike; another plan for
 * s, or a trim to below n after it, does not bring it back. */
TERN_API int tern_seq_recode_at(tern_seq *s, int n, int plan, tern_error *err);
TERN_API const int32_t *tern_seq_tokens(const tern_seq *s); /* view until the sequence changes */
/* Writes tokens and KV to a new file (temporary name, then rename: a failure leaves an existing file as it was). */
TERN_API int tern_seq_save(const tern_seq *s, const char *path, tern_error *err);
/* Could one be written there?  TERN_EINVAL for a device, a folder or a file of another kind. */
TERN_API int tern_seq_save_check(const char *path, tern_error *err);
/* A new sequence from a saved one: same model and one of the engine's KV plans, every byte checksummed, else an error
 * and no sequence. */
TERN_API int tern_seq_load(tern_seq **out, tern_engine *e, const char *path, tern_error *err);

/* What a step gives back of an item's rows: logits, and hidden states, which are what the output matrix reads, after
 * the last norm. */
enum { TERN_LOGITS_NONE, TERN_LOGITS_LAST, TERN_LOGITS_ALL, TERN_HIDDEN_LAST = 4, TERN_HIDDEN_ALL = 8 };

/* Some tokens appended to one sequence.  A sequence occurs at most once in a step. */
typedef struct tern_step_item {
    tern_seq *seq;
    const int32_t *tokens;
    int n_tokens; /* >= 1 */
    bool decode;  /* generated tokens (narrow arithmetic) rather than prompt tokens (wide) */
    int logits;   /* TERN_LOGITS_*, | TERN_HIDDEN_* */
} tern_step_item;

/* Runs one ragged batch of at most `chunk` rows.  *logits: [rows that asked][n_vocab] in the order of the items, view
 * until the next step; NULL when none asked.  All or nothing: on error no sequence has changed.  But where the device
 * failed, or a file that experts are read from, those of several tokens or with states can only be freed afterwards. */
TERN_API int tern_step(tern_engine *e, const tern_step_item *items, int n_items, const float **logits, tern_error *err);
/* tern_step, and in place of logits the most likely token after each item that asks for TERN_LOGITS_LAST: ids[i] of
 * item i, of equally likely ones the lower id; -1 where an item asks for none, or a row holds no number.  A device
 * apart from the host's memory finds them itself, so that rows need not be copied.  TERN_EINVAL where an item asks for
 * more rows than one. */
TERN_API int tern_step_greedy(tern_engine *e, const tern_step_item *items, int n_items, int32_t *ids, tern_error *err);

/* Hidden states of the last step: [rows that asked][n_embd] in the order of the items, view until the next step; NULL
 * when none asked. */
TERN_API const float *tern_engine_hidden(const tern_engine *e);

/* Appends prompt tokens in as many steps as needed; *logits (nullable) is the last token's row.  progress (nullable) is
 * called after each step and stops the call with TERN_ECANCELLED when it returns nonzero. */
TERN_API int tern_prefill(tern_engine *e, tern_seq *s, const int32_t *tokens, int n, const float **logits,
                          tern_progress_fn *progress, void *user, tern_error *err);

/* ---- sampling and generation ---------------------------------------------------------------------------------- */

typedef struct tern_sampler tern_sampler;

typedef struct tern_sampler_params {
    float temperature; /* 0 = greedy */
    int top_k;         /* 0 = off */
    float top_p;       /* 1 = off */
    float min_p;       /* 0 = off */
    /* XTC ("exclude top choices"), in the part xtc_probability of all draws, 0 = off: of the tokens that temperature
     * and the cut-offs above leave, those that have at least xtc_threshold of all that is left go, but for the least
     * likely of them; where that is one or none, nothing does.  A token that ends a reply is one like others. */
    float xtc_probability, xtc_threshold;
    float
        repetition_penalty; /* 1 = off; logits of tokens seen in the last penalty_last divided (or multiplied) by it */
    float presence_penalty, frequency_penalty; /* 0 = off; subtracted once / per occurrence */
    int penalty_last;                          /* tokens looked back at, the prompt's too; 0 = 64, -1 = all */
    bool penalise_reply; /* those two look at the reply alone, and all of it, as in OpenAI's API; the repetition
                            penalty looks at the last penalty_last all the same */
    uint64_t seed;
    const int32_t *bias_ids; /* n_bias ids and what is added to their logits */
    const float *bias_values;
    int n_bias;
} tern_sampler_params;
TERN_API void tern_sampler_defaults(tern_sampler_params *p); /* greedy, everything off, seed 0 */

/* How the model's makers want its tokens picked: generation_config.json of a directory, general.sampling.* of a GGUF
 * file.  Sets those members of p that they say something about, which the result names, and leaves the others as they
 * are.  Where they say top-k, top-p, min-p or "do_sample" and no temperature, that is 1; "do_sample": false is
 * temperature 0. */
enum {
    TERN_SAID_TEMPERATURE = 1,
    TERN_SAID_TOP_K = 2,
    TERN_SAID_TOP_P = 4,
    TERN_SAID_MIN_P = 8,
    TERN_SAID_REPETITION = 16, /* repetition_penalty */
    TERN_SAID_LAST = 32        /* penalty_last */
};
TERN_API unsigned tern_model_recommends(const tern_model *m, tern_sampler_params *p);

/* TERN_EINVAL names the parameter that is out of range. */
TERN_API int tern_sampler_new(tern_sampler **out, int n_vocab, const tern_sampler_params *p, tern_error *err);
TERN_API void tern_sampler_free(tern_sampler *s);
TERN_API void tern_sampler_accept(tern_sampler *s, int32_t id);           /* a token of the reply, for the penalties */
TERN_API void tern_sampler_prompt(tern_sampler *s, int32_t id);           /* likewise, of the prompt */
TERN_API int32_t tern_sampler_pick(tern_sampler *s, const float *logits); /* does not accept */

typedef enum tern_finish {
    TERN_FINISH_LENGTH,
    TERN_FINISH_EOG,
    TERN_FINISH_STOP,
    TERN_FINISH_CALLBACK,
    TERN_FINISH_CONTEXT,
    TERN_FINISH_CANCELLED, /* this and the next: of requests of a loop alone (tern/loop.h) */
    TERN_FINISH_TIMEOUT,
    TERN_FINISH_ERROR
} tern_finish;

typedef struct tern_generate_params {
    tern_sampler_params sampler;
    int max_tokens;          /* -1 = until the context is full */
    const char *const *stop; /* n_stop strings that end the text and are not part of it, also across token borders */
    int n_stop;
    const int32_t *stop_ids; /* n_stop_ids tokens that end the text like the model's own */
    int n_stop_ids;
    bool ignore_eog;
    bool continues; /* the text goes on from the prompt's: a space that it begins with is part of it, where decoding
                       drops that of other texts */
    /* Text as it becomes certain (a possible beginning of a stop string is held back).  Nonzero ends the generation.
     * It may read the sequence, and do nothing else with it. */
    int (*on_text)(void *user, const char *text, size_t n);
    /* Nullable, for one generation: takes the text instead of on_text, and the marks that are control tokens.  It is
     * told the end of the prompt before and finished after.  A receiver that wants no more ends the generation. */
    tern_reply *reply;
    const tern_constraint *constraint; /* NULL: none; its state is this generation's alone.  Borrowed */
    tern_progress_fn *on_prefill;
    void *user;
} tern_generate_params;

typedef struct tern_generate_result {
    tern_finish finish;
    int n_prompt, n_generated; /* tokens; an end-of-reply token is not counted and not appended to the sequence */
    double prompt_s, decode_s; /* seconds */
    int32_t last;              /* the token that ended the reply, -1 otherwise */
    int n_drafted, n_accepted; /* guesses that were verified, and those of them that were right */
} tern_generate_result;

/* Appends `prompt` to s, then generates.  On TERN_ECANCELLED the sequence holds what was processed so far and *result
 * is filled: n_prompt counts the tokens that were computed.  prompt may be empty only when pending logits exist, which
 * this API does not keep: n_prompt >= 1. */
TERN_API int tern_generate(tern_engine *e, tern_seq *s, const int32_t *prompt, int n_prompt,
                           const tern_generate_params *p, tern_generate_result *result, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
