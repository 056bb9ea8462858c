/* run/run.h - behind the public header: models, engines, sequences.  For src/run and src/eval only.
 *
 * The engine is the only mutator of its KV caches and its device; it belongs to one thread at a time.  A step never
 * allocates except to widen the logits buffer, which happens before anything has changed. */
#ifndef TERN_RUN_H
#define TERN_RUN_H

#include <stdatomic.h>
#include "base/buf.h"
#include "base/pool.h"
#include "file/file.h"
#include "grammar/grammar.h"
#include "kv/kv.h"
#include "model/model.h"
#include "tern/tern.h"
#include "text/text.h"

struct tern_known;

struct tern_model {
    char device[TERN_DEV_NAME + 32];
    char refused[sizeof((tern_error *)0)->msg]; /* why it runs on the CPU although there is a card, or "" */
    bool automatic;                             /* on a card that nobody named: what that refuses is the CPU's */
    struct tern_file *file;
    struct tern_net *net;
    struct tern_tokenizer *tok;      /* NULL: token ids only */
    struct tern_template *tmpl;      /* NULL: base model */
    struct tern_template *tool_tmpl; /* for conversations with tools; NULL: tmpl is for all */
    tern_model_info info;
    char path[4096];
    char name[256];
    tern_sampler_params recommended;       /* what `said` names of it */
    unsigned said;                         /* TERN_SAID_* */
    char left_out[512];                    /* recommended settings that are not used, or "" */
    _Atomic(struct tern_gr_vocab *) vocab; /* for constraints; NULL until the first */
    struct tern_known *known;              /* grammars */
    struct tern_buf packed;                /* path of the file of packed weights; empty: none is used */
    const struct tern_dev_ops *together;   /* a device made of several cards; NULL: there is one */
};

/* grammar/known.c: compiled grammars, kept for the next request.  Any thread. */
int tern_known_new(struct tern_known **out, tern_error *err);
void tern_known_free(struct tern_known *k); /* NULL is legal */
/* tern_gr_compile, or the grammar that came of it lately.  Free it like any other. */
int tern_known_compile(struct tern_known *k, tern_grammar **out, enum tern_gr_kind kind, const char *text, size_t n,
                       const struct tern_gr_frame *frame, const struct tern_gr_calls *calls, tern_error *err);

/* Fills tok, tmpl and recommended from what the opened file holds or has beside it. */
int tern_model_load_text(tern_model *m, tern_error *err);

/* recommend.c: fills recommended, said and left_out; generation: the bytes of generation_config.json, p NULL: there is
 * none. */
int tern_model_load_recommended(tern_model *m, const struct tern_str *generation, tern_error *err);

/* model.c: TERN_EUNSUPPORTED with a sentence for a model without one; the spelling of a token that may be missing. */
int tern_model_need_template(const tern_model *m, tern_error *err);
const char *tern_model_special(const tern_model *m, int32_t id);
int tern_tokens_append(tern_tokens *out, const int32_t *ids, size_t n, tern_error *err);

struct tern_seq {
    tern_engine *engine;
    int plan;
    struct tern_kv_seq *kv; /* in the plan's cache; NULL while the slot is free */
    int32_t *tokens;        /* [ctx] */
    uint8_t *roles;         /* [ctx] 1 = decode row */
    uint64_t step;          /* number of the last step that it was asked for */
    int recode_at;          /* tokens from which on recode_plan is its plan; 0: none */
    int recode_plan;
    int ahead;   /* of kv's tokens: drafts that are being verified (run/draft/draft.h) */
    int guessed; /* rows of guesses behind it since tern_guess_begin, those of a step that failed too */
    bool torn;   /* a step or trim failed midway: raw rows and states may be those of tokens that it does not have */
};

struct tern_drafter;

struct tern_engine {
    tern_model *model;                 /* borrowed */
    struct tern_pool *pool, *own_pool; /* own_pool NULL: it is another engine's */
    struct tern_dev *dev;
    struct tern_kv_plan **plans;  /* [n_caches], room for max_plans + 1 */
    struct tern_kv_cache *caches; /* likewise */
    int n_plans, max_plans;
    int drafts;                      /* rows that a trim takes back, in layouts of all plans */
    struct tern_kv_budget kv_budget; /* of all caches together */
    int n_caches;                    /* n_plans, and with code_at_end a raw one for the prompt in hand */
    struct tern_forward *forward;
    struct tern_seq *seqs; /* [max_seqs] */
    int ctx, max_seqs, chunk;
    bool exact, decode16, prompt8;
    bool mtp; /* sequences hold what the MTP layer keeps, of all plans */
    atomic_int cancel;
    struct tern_drafter *drafter; /* NULL: replies are generated token by token */
    uint64_t n_steps;             /* asked for so far */
    atomic_bool looped;           /* a loop's, until that is closed */
    /* The batch being built. */
    struct tern_row *rows;         /* [chunk] */
    struct tern_forward_job *jobs; /* [max_seqs] */
    int *logit_rows;               /* [chunk] */
    float *logits;
    bool asks_best; /* of a device that is far away, the best of a row's logits where they are enough to pick from */
    float *best;    /* values of rows, then their ids */
    size_t best_cap;
    int *hidden_rows;  /* [chunk] */
    float *hidden;     /* twice what a step asked for: as it came, and in the order of the items */
    size_t hidden_cap; /* floats */
    const float *hidden_view;
    size_t logits_cap;     /* floats */
    tern_forward_tap *tap; /* NULL but while calibrating */
    void *tap_user;
};

struct tern_kv_plan {
    struct tern_kv_layout *layout;
    struct tern_kv_cond_set *cond; /* NULL: keys are coded as they are */
    const char *cond_source;
    bool uncalibrated; /* a sidecar would be used and is not there */
    char notice[640];  /* why one that is there is not used, or "" */
    char note[1024];   /* the same with what that costs */
};

/* What norm weights alone say about queries and keys; *out NULL when the model has none. */
int tern_cond_from_norms(struct tern_kv_cond_set **out, const struct tern_net *net, const struct tern_kv_decl *decl,
                         tern_error *err);
/* The same from the bias of keys: their mean, and the pairs of the embedding that turn most of it; *out NULL when there
 * is none.  Sets decl[].hard_keys where too much of a bias turns for 4-bit codes. */
int tern_cond_from_bias(struct tern_kv_cond_set **out, const struct tern_net *net, struct tern_kv_decl *decl,
                        tern_error *err);
/* One pair of an embedding: the mean of keys before the rotation, and the square of their mean after it. */
struct tern_pair_mean {
    double re, im, after2;
};
/* Pairs are worth their time only where the means that rotate outweigh what varies (as a sum of squares over the head);
 * then as many as bring the rest of them below a quarter of its norm.  s: of all pairs of d, spent.  Returns the sum of
 * squares that still rotates. */
double tern_cond_choose_pairs(struct tern_kv_cond *c, const struct tern_kv_decl *d, struct tern_pair_mean *s,
                              double varying);
/* tern_kv_plan_new for engines of this context; mtp: which run the MTP layer, if the model has one. */
int tern_plan_of_ctx(tern_kv_plan **out, const tern_model *m, int ctx, const char *spec, bool strict, bool mtp,
                     tern_error *err);

/* TERN_EINVAL where kv_bytes do not pay for one page of this plan, which was given as `spec`. */
int tern_engine_check_kv(const tern_engine *e, int plan, const char *spec, tern_error *err);

/* Is it the device of m that cannot serve this plan? */
bool tern_plan_unserved(const tern_model *m, int ctx, const char *spec);

/* MODEL.ternkv */
int tern_cond_path(struct tern_buf *out, const tern_model *m, tern_error *err);
/* MODEL.suffix as tern_model_beside finds it, into an empty buffer.  make: a folder that it is to be written to. */
int tern_beside(struct tern_buf *out, const char *model, const char *suffix, bool make, tern_error *err);

/* Positions per step of an evaluation that wants every row's logits: bounds that buffer (64 rows of a 262144-word
 * vocabulary are 64 MiB). */
#define TERN_EVAL_ROWS 64

/* A cancel that came while nothing ran must not end the next call: public calls forget it when they begin, and use
 * tern_prefill_steps, which does not, inside. */
void tern_cancel_clear(tern_engine *e);
int tern_prefill_steps(tern_engine *e, tern_seq *s, const int32_t *tokens, int n, const float **logits,
                       tern_progress_fn *progress, void *user, tern_error *err);

/* prompt.c: a prompt that is coded at its end.  Opening adds the raw cache behind those of the engine's plans.  Between
 * begin and end an empty sequence lives in it; *coded keeps what it was, NULL when there is nothing to do (the engine
 * codes as it goes, the sequence holds tokens, or its plan is f32).  end may be called after any number of tokens. */
int tern_prompt_open(tern_engine *e, tern_error *err);
int tern_prompt_check_plan(const struct tern_kv_layout *l, tern_error *err); /* can a prompt be coded at its end? */
int tern_prompt_begin(tern_seq *s, int n_tokens, struct tern_kv_seq **coded, tern_error *err);
int tern_prompt_end(tern_seq *s, struct tern_kv_seq *coded, int plan, tern_error *err);
/* TERN_ELIMIT when the pages of n tokens, raw and coded, exceed `have` bytes. */
int tern_prompt_fits(const tern_engine *e, int plan, int n_tokens, size_t have, tern_error *err);

/* engine.c: TERN_EINVAL while drafts of the sequence are verified: it holds tokens that may not count. */
int tern_seq_check_whole(const tern_seq *s, tern_error *err);

/* recode.c: before a step of tern_prefill and the like, at most n tokens long: how many it may append, so that it ends
 * where s changes its plan; after it: s changes its plan if it is time. */
int tern_seq_recode_room(const tern_seq *s, int n);
int tern_seq_recode_due(tern_seq *s, tern_error *err);

/* share.c: a new sequence that goes on from slices and a checkpoint (kv/share.h) of the plan's cache, and that holds
 * these tokens, in these roles.  Both are those of the sequence that they were taken from. */
int tern_seq_start(tern_seq **out, tern_engine *e, int plan, const struct tern_kv_slice *slices, int n_slices,
                   const struct tern_kv_checkpoint *at, const int32_t *tokens, const uint8_t *roles, tern_error *err);
/* engine.c: with the threads of another engine, which belongs to the same thread and is closed later. */
int tern_engine_open_beside(tern_engine **out, const tern_engine *e, tern_model *m, const tern_engine_params *p,
                            tern_error *err);

/* Where a plan's sequences live: slices and checkpoints are taken from there. */
struct tern_kv_cache *tern_engine_cache(tern_engine *e, int plan);

/* How many of an item's rows are asked for. */
static inline int tern_item_logits(const tern_step_item *it)
{
    return it->logits & TERN_LOGITS_ALL ? it->n_tokens : it->logits & TERN_LOGITS_LAST;
}

static inline int tern_item_hidden(const tern_step_item *it)
{
    return it->logits & TERN_HIDDEN_ALL ? it->n_tokens : (it->logits & TERN_HIDDEN_LAST) != 0;
}

/* What a step tells of a row: its logits, or, where there are ids, the n best of them (struct tern_best). */
struct tern_seen {
    const float *x; /* NULL: nothing */
    const int32_t *ids;
    int n;
};

static inline struct tern_seen tern_seen_next(struct tern_seen s)
{
    return (struct tern_seen){s.x + s.n, s.ids ? s.ids + s.n : NULL, s.n};
}

/* engine.c: a buffer of that many numbers at least, whose contents may be lost. */
int tern_floats_widen(float **p, size_t *cap, size_t want, tern_error *err);
/* engine.c: the same of e->logits, where the device's rows land. */
int tern_logits_widen(tern_engine *e, size_t want, tern_error *err);
/* What e->best holds of a row of logits of that batch, once it was fetched. */
struct tern_seen tern_seen_best(const tern_engine *e, const struct tern_forward_batch *b, int row);
/* tern_step, of whose items those with best[i] > 0 want so many of the best of each row, or a few more, in place of its
 * logits: seen[i], of the first row that item i asks for, until the next step.  best[i] <= TERN_BEST; all 0 unless
 * e->asks_best. */
int tern_step_seen(tern_engine *e, const tern_step_item *items, int n_items, const int *best, struct tern_seen *seen,
                   tern_error *err);

/* hidden.c: hidden states that a step's items ask for.  Reserving is all that can fail. */
int tern_hidden_reserve(tern_engine *e, const tern_step_item *items, int n_items, int *n_rows, tern_error *err);
void tern_hidden_fetch(tern_engine *e, const struct tern_forward_batch *b, const tern_step_item *items, int n_items);

/* guess.c: the MTP layer of an engine that has it (tern_engine.mtp) guesses on behind sequences.  Between begin and
 * end, the first of which says how many guesses there are at most, nothing else may be done with a sequence; then it is
 * what it was. One step says what each token at n_tokens + depth is followed by.  first: they go on from what is in the
 * sequences; else from guess `from` of the last step.  seen: the first of n rows, until the engine's next step: logits,
 * or with `best`, which is 0 unless e->asks_best, so many of the best or a few more. */
struct tern_guess {
    tern_seq *seq;
    int32_t token;
    int depth, from;
};
int tern_guess_begin(tern_seq *s, int n, tern_error *err);
int tern_guess_step(tern_engine *e, const struct tern_guess *g, int n, bool first, int best, struct tern_seen *seen,
                    tern_error *err);
void tern_guess_end(tern_seq *s);

/* What the step loop uses when a sequence goes back into a closed page: the tokens [from, to) again, in their roles. */
int tern_seq_replay(struct tern_seq *s, int from, int to, tern_error *err);

#endif
