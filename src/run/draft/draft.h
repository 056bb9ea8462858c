/* run/draft/draft.h - tokens of a reply that are guessed, and verified several in one step.
 *
 *   lookup.c   guesses from what the sequence holds already
 *   chain.c    guesses that are computed, each from those before: how many
 *   model.c    those of a smaller model
 *   mtp.c      those of the model's own layer for them
 *   price.c    what the rows of a step cost
 *   draft.c    how many guesses of each reply a step verifies, and what came of them
 *
 * A verified row is a decode row like any other: it computes what it would compute in a step of its own, and a token is
 * picked from it as it would be then.  A guess counts only where it is the token that is picked.  So a text is what it
 * is without drafts, bit for bit, greedy or drawn with a seed; guesses decide about time alone.
 *
 * A step takes the token that was picked last and the guesses behind it.  Then row by row: tern_gen_pick,
 * tern_gen_take, tern_draft_next.  While that is true the token is in the sequence already, and the next row's logits
 * count.  At last tern_draft_settle takes the other rows out.  Meanwhile tern_seq_length and tern_seq_tokens show what
 * counts (tern_seq.ahead); nothing else may be done with the sequence.
 *
 * Thread: the engine's. */
#ifndef TERN_RUN_DRAFT_H
#define TERN_RUN_DRAFT_H

#include "run/gen.h"

#define TERN_DRAFT_MOST 64 /* guesses of one reply in one step: going back so many rows computes nothing */

/* ---- lookup.c: what followed the longest match of the newest tokens ---------------------------------------------- */

struct tern_lookup { /* zero-initialise */
    int32_t *tokens; /* [cap], n of them known */
    int32_t *before; /* [cap] the place before with the same hash of two tokens, + 1; 0: none */
    size_t cap_tokens, cap_before;
    int32_t *newest; /* [size] the newest place of a hash, + 1 */
    int n, size;     /* size: a power of two, or 0 */
};

void tern_lookup_clear(struct tern_lookup *l);
/* n more tokens.  On failure some of them are known. */
int tern_lookup_add(struct tern_lookup *l, const int32_t *tokens, int n, tern_error *err);
/* Guesses what follows, out[0..most), and returns how many: what followed the place whose last tokens equal the newest
 * ones on the greatest length, of equally long ones the newest place.  *match: that length.  Where what followed ends
 * at the newest token, it goes on with the guesses themselves. */
#define TERN_LOOKUP_LEAST 2  /* a shorter match guesses nothing */
#define TERN_LOOKUP_LONG  32 /* and no longer one is looked for */
int tern_lookup_guess(const struct tern_lookup *l, int32_t *out, int most, int *match);

/* ---- price.c: what rows of a step cost --------------------------------------------------------------------------- */

#define TERN_PRICE_CLASSES 8 /* of rows: 1, 2, 3-4, 5-8 ... */

struct tern_price {                  /* zero-initialise */
    double row_s;                    /* a step of one row; 0: never seen */
    double rows[TERN_PRICE_CLASSES]; /* a step of the class's most rows, in steps of one; 0: never seen */
    double last[TERN_PRICE_CLASSES]; /* and what the last one of them said */
};

/* A step of decode rows alone took so long. */
void tern_price_learn(struct tern_price *p, int rows, double seconds);
/* A step of so many rows, in steps of one row: what was seen, and a cautious guess for what was not. */
double tern_price_of(const struct tern_price *p, int rows);

/* ---- draft.c ----------------------------------------------------------------------------------------------------- */

struct tern_drafter; /* of an engine */

/* Does p->draft ask for the model's own layer, and has it one?  An error where it asks for nothing else. */
int tern_draft_mtp(const tern_engine_params *p, const tern_model *m, bool *on, tern_error *err);
/* What p->drafts has to be for p->draft: rows that a trim takes back.  recurrent: the model has states. */
int tern_draft_rows(const tern_engine_params *p, bool recurrent, int *drafts, tern_error *err);
/* *out NULL: p asks for no drafts.  The engine is open but for this. */
int tern_drafter_open(struct tern_drafter **out, tern_engine *e, const tern_engine_params *p, tern_error *err);
void tern_drafter_close(struct tern_drafter *x);

/* For tests: another one who guesses what follows tokens[0..n), and returns how many, at most `most`; NULL: the same
 * one as before.  From then on all guesses are made and verified. */
typedef int tern_draft_source(void *user, const int32_t *tokens, int n, int32_t *out, int most);
void tern_drafter_set_source(struct tern_drafter *x, tern_draft_source *source, void *user);

#define TERN_DRAFT_CLASSES 8                        /* of matches, and as many of margins */
#define TERN_DRAFT_KINDS   (2 * TERN_DRAFT_CLASSES) /* guesses that were looked up, then those that were computed */

struct tern_draft { /* of a reply; zeroed: nothing is guessed */
    struct tern_drafter *by;
    struct tern_gen *gen;
    tern_seq *seq;
    int32_t rows[1 + TERN_DRAFT_MOST]; /* of the step in hand: the token picked last, then guesses */
    int n, at;                         /* rows to be verified; the one whose logits count */
    int n_guesses;                     /* in rows[1..], to be verified or not */
    uint8_t kind[1 + TERN_DRAFT_MOST]; /* [n_guesses] as likely as others: by length of match, or margin of logits */
    int most;                          /* guesses that there is use for */
    double chance;                     /* that all up to the first one that is not to be verified are right */
    struct tern_lookup lookup;
    tern_seq *own, *fork; /* of the smaller model: what it has read, and where it guesses; NULL: nothing yet */
    bool tried;           /* the model's own layer guesses behind seq */
    int own_same;         /* tokens of `own` that are known to be the reply's */
    /* Guesses by kind, the newest counting most: all that turned out, and the right ones. */
    double seen[TERN_DRAFT_KINDS], right[TERN_DRAFT_KINDS];
    int n_drafted, n_accepted; /* guesses that were verified, and those that counted */
};

/* A reply begins.  x may be NULL. */
void tern_draft_open(struct tern_draft *d, struct tern_drafter *x, struct tern_gen *g);
void tern_draft_close(struct tern_draft *d); /* figures stay */
/* That guess i, in rows[i], is right when those before are. */
double tern_draft_chance(const struct tern_draft *d, int i);

/* Fills rows and n of each of n replies, whose machines are in APPEND or LAST and whose seq is set: in all `room` rows
 * at most, room >= n. */
void tern_drafts_plan(struct tern_drafter *x, struct tern_draft *const *d, int n, int room);
/* The step with these rows found no memory; the next one has no guesses. */
void tern_draft_forget(struct tern_draft *d);
/* It went well: the token that was picked is in the sequence. */
void tern_draft_stepped(struct tern_draft *d);
/* After tern_gen_take: is the token that was taken in the sequence, too, and do the next row's logits count? */
bool tern_draft_next(struct tern_draft *d);
/* Takes the rows that do not count out of the sequence. */
int tern_draft_settle(struct tern_draft *d, tern_error *err);
/* A step of decode rows alone took so long. */
void tern_drafter_learn(struct tern_drafter *x, int rows, double seconds);
/* Bytes that it takes besides the engine: of the smaller model's engine. */
size_t tern_drafter_bytes(const struct tern_drafter *x);

/* ---- chain.c ----------------------------------------------------------------------------------------------------- */

struct tern_chain {
    int n_vocab;            /* ids that may be guessed */
    double step_s;          /* one guess of each reply; 0: never seen */
    double rate;            /* of guesses that were right, lately */
    struct tern_draft **of; /* [max_seqs] replies that have just got a guess */
    unsigned idle;          /* steps without guesses */
    /* The first guess of those of n replies that can have one, which are x->of then; how many they are. */
    int (*first)(struct tern_chain *x, struct tern_draft *const *d, int n);
    /* The next guess of x->of[0..on); how many have one. */
    int (*next)(struct tern_chain *x, int on);
    void (*end)(struct tern_chain *x, struct tern_draft *const *d, int n);
};

/* Guesses of n replies: rows, kind, n_guesses up to `most`, chance.  p NULL: as many as there is use for. */
void tern_chain_guess(struct tern_chain *x, struct tern_draft *const *d, int n, const struct tern_price *p);
/* For `first` and `next`: how many of the best of each row of e, the engine that guesses, are enough; 0: its logits.
 * The likeliest token is the reply's next guess. */
int tern_chain_best(const struct tern_chain *x, const tern_engine *e);
void tern_chain_add(const struct tern_chain *x, struct tern_draft *d, struct tern_seen seen);
void tern_chain_learn(struct tern_chain *x, bool right);

/* ---- model.c, mtp.c ---------------------------------------------------------------------------------------------- */

struct tern_draft_model;
/* TERN_EMISMATCH when the vocabularies differ.  most: guesses per step. */
int tern_draft_model_open(struct tern_draft_model **out, tern_engine *e, tern_model *small, int most, tern_error *err);
void tern_draft_model_close(struct tern_draft_model *x);
const tern_engine *tern_draft_model_engine(const struct tern_draft_model *x);
struct tern_chain *tern_draft_model_chain(struct tern_draft_model *x);

/* For an engine that has the layer (tern_engine.mtp). */
int tern_draft_mtp_open(struct tern_chain **out, tern_engine *e, tern_error *err);
void tern_draft_mtp_close(struct tern_chain *chain);

#endif
