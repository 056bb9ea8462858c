/* run/gen.h - one reply in the making: the state machine that tern_generate and the loop of requests both step.
 *
 *     PROMPT ── all of the prompt is in the sequence ──> PICK ── take ──> APPEND ── appended ──> PICK ...
 *                                                          ├────────────> LAST ──── appended ──> OVER
 *                                                          └────────────> OVER
 *
 * LAST: the reply is complete, and its last token would have to be appended only if the sequence shall go on later.
 * tern_gen_pick is all that costs time; several may run at once on different machines.  Everything else belongs to the
 * engine's thread.  The machine knows neither engines nor sequences: its owner appends what it says. */
#ifndef TERN_RUN_GEN_H
#define TERN_RUN_GEN_H

#include "run/run.h"

/* What becomes of the text.  Nonzero: no more is wanted. */
typedef int tern_gen_text_fn(void *user, const char *text, size_t n);

struct tern_gen_params { /* arrays and texts are borrowed for the machine's life */
    tern_sampler_params sampler;
    int max_tokens, min_tokens; /* as in tern_request */
    bool ignore_eog, continues;
    const char *const *stop;
    int n_stop;
    const int32_t *stop_ids;
    int n_stop_ids;
    bool keep_stop;            /* what stops the reply is part of its text */
    bool show_control;         /* control tokens are text, the last one with keep_stop alone */
    tern_gen_text_fn *on_text; /* nullable */
    tern_reply *reply;         /* nullable; takes the text in place of on_text; borrowed */
    void *user;
};

enum tern_gen_phase { TERN_GEN_PROMPT, TERN_GEN_PICK, TERN_GEN_APPEND, TERN_GEN_LAST, TERN_GEN_OVER };

struct tern_gen {
    const tern_model *model;
    struct tern_gen_params p;
    enum tern_gen_phase phase;
    const int32_t *prompt; /* borrowed */
    int n_prompt, done;    /* tokens of the prompt that the sequence has */
    tern_sampler *sampler;
    tern_stream *stream;  /* NULL: the model has no tokenizer */
    struct tern_buf held; /* text that might be the beginning of a stop string */
    int stop;             /* index of the stop string that was found, -1: none */
    bool refused;         /* the receiver wants no more */
    int32_t *never;       /* [n_never] ids that do not count before min_tokens */
    int n_never;
    int32_t picked;  /* in PICK: by tern_gen_pick; in APPEND and LAST: to be appended */
    int n_generated; /* a token that is not text, for it ends the reply, is not counted */
    tern_finish finish;
    int32_t last; /* the token that ended the reply, -1 otherwise */
};

/* Ready for the prompt, of which nothing is in the sequence yet.  TERN_EINVAL names what is wrong in p. */
int tern_gen_open(struct tern_gen *g, const tern_model *m, const struct tern_gen_params *p, const int32_t *prompt,
                  int n_prompt, tern_error *err);
void tern_gen_close(struct tern_gen *g); /* legal on a zeroed one */

/* n more tokens of the prompt are in the sequence. */
void tern_gen_prompted(struct tern_gen *g, int n);
/* How many of the best of each of the next rows are enough to pick from, without a constraint; 0: their logits are. */
int tern_gen_enough(const struct tern_gen *g);
/* In PICK: chooses a token.  mask as in struct tern_choice_limits, nullable; NULL where only the best are seen. */
void tern_gen_pick(struct tern_gen *g, struct tern_seen seen, const uint32_t *mask);
/* The same under a constraint (NULL: none), with mask [n_vocab / 32, rounded up] as scratch. */
int tern_gen_pick_within(struct tern_gen *g, struct tern_seen seen, const tern_constraint *c, uint32_t *mask,
                         tern_error *err);
/* Is the picked token one that counts as generated?  Not where no room is left for it. */
bool tern_gen_counts(const struct tern_gen *g, int room);
/* Goes on with the picked token: its text comes out, and it is to be appended, or the reply is over.  room: tokens that
 * the sequence can still take. */
int tern_gen_take(struct tern_gen *g, int room, tern_error *err);
/* In APPEND or LAST: the picked token is in the sequence. */
void tern_gen_appended(struct tern_gen *g);
/* Hands out what was held back; once, however the reply ended. */
int tern_gen_finish(struct tern_gen *g, tern_error *err);

#endif
