/* run/loop.h - behind tern/loop.h: requests, the thread that steps them, and what a prefix cache can hook into.
 *
 *   events.c        queues of events
 *   loop_request.c  a request: checked, copied, its replies and what they tell
 *   loop_queue.c    who is next: priorities, turns, room, and who gives up his
 *   loop_again.c    what was given up, computed again
 *   loop_step.c     one step: which rows, what comes of them
 *   loop_visit.c    cache files, between steps
 *   loop.c          the thread, and the calls of other threads
 *   prefix          beginnings of prompts that are kept (run/prefix/prefix.h)
 *   pace.c          how many prompt rows go beside decode rows
 *   logprobs.c      log probabilities
 *   draft/          guesses at what replies say next
 *
 * A request is made by the thread that submits it, is the lock's while it waits, and the loop's thread's once it runs;
 * `cancelled` stays the lock's.  The lock is never held during a step. */
#ifndef TERN_RUN_LOOP_H
#define TERN_RUN_LOOP_H

#include <pthread.h>
#include "run/draft/draft.h"
#include "run/gen.h"
#include "run/prefix/prefix.h"
#include "tern/loop.h"

/* ---- events ------------------------------------------------------------------------------------------------------ */

struct tern_event_node;
/* A copy of the event and all that it points to. */
int tern_event_new(struct tern_event_node **out, const tern_event *e, tern_error *err);
/* A TERN_EVENT_END with room for a message, so that the last word cannot fail. */
int tern_event_new_end(struct tern_event_node **out, tern_error *err);
tern_event *tern_event_of(struct tern_event_node *n);
void tern_events_push(tern_events *q, struct tern_event_node *n); /* takes n over */
void tern_events_ref(tern_events *q);
void tern_events_unref(tern_events *q);
bool tern_events_closed(tern_events *q);
size_t tern_events_bytes(tern_events *q); /* that wait to be received */

/* ---- log probabilities ------------------------------------------------------------------------------------------- */

/* Of token id and of the n_top likeliest, into top[n_top], which *out points to. */
void tern_score_token(const float *logits, int n_vocab, int32_t id, int n_top, tern_logprob *top,
                      tern_token_score *out);

/* What a cache of prefixes does for the loop (run/prefix/prefix.h), before the first request; copies *p. */
void tern_loop_set_prefix(tern_loop *l, const struct tern_prefix *p);

/* ---- requests ---------------------------------------------------------------------------------------------------- */

struct tern_request_run;

struct tern_choice { /* one reply of a request */
    struct tern_request_run *request;
    int index;
    struct tern_gen gen;
    struct tern_draft draft;
    tern_seq *seq; /* NULL: not begun, or over */
    tern_reply *reply;
    void *constraint;  /* its state */
    uint32_t *mask;    /* [n_vocab / 32, rounded up]; NULL: no constraint */
    tern_logprob *top; /* [r.logprobs] */
    tern_token_score score;
    double logprob; /* sum */
    bool thinking;  /* its last token brought reasoning */
    int n_generated, n_thought;
    double last_token;     /* when */
    bool over;             /* its TERN_EVENT_CHOICE is out */
    struct tern_seen seen; /* of the step in hand */
    int32_t *again;        /* [n_again] rows of the reply that were given up; again_done of them are computed again */
    int n_again, again_done;
    int rc; /* of picking, by a worker */
    tern_error err;
};

struct tern_fair { /* one who asks, while requests of his wait or run */
    struct tern_fair *next;
    uint64_t key, turn; /* when one of his was let in last */
    int n_waiting, n_running;
};

struct tern_request_run {
    tern_loop *loop;
    uint64_t id;
    void *user;
    tern_events *events;
    struct tern_event_node *end; /* until it is sent */
    tern_request r;              /* arrays are copies */
    struct tern_choice *choices; /* [r.n_choices] */
    struct tern_fair *fair;
    size_t reserve; /* bytes that its pages need up to ... */
    int room;       /* ... so many tokens of each reply */
    int fits;       /* most tokens of prompt and reply for which there can be room */
    bool preempted; /* waits to be let in again, without pages */
    bool torn;      /* a step of its failed midway: it gives up what it has, and computes it again */
    bool torn_once; /* that has been; a second time it fails, or goes alone where others were in the step */
    int alone;      /* steps that it still goes without others, behind what it computes again */
    bool begun;     /* its TERN_EVENT_START is out */
    bool again;     /* its rows are computed again; nothing new comes of them */
    bool mute;      /* there was no memory for one of its events: none is sent any more but the last */
    bool stalled;   /* its receiver has left too much unread */
    double stalled_at;
    double submitted, started, prompted, first; /* when; 0: not yet */
    int n_cached, n_told;                       /* tokens of the prompt: found at first; of which events have told */
    void *fetch;                                /* what it waits for (run/prefix/prefix.h); NULL: nothing */
    float *vector;                              /* [n_embd] of the embedding, and what it is summed in */
    double *sum;
    uint64_t step;  /* the last one that its prompt was in */
    bool at_border; /* that step ends at a border of the prompt */
    int again_at;   /* whose turn it was last, of its choices */
    bool cancelled; /* by tern_loop_cancel or for want of a receiver */
    int rc;         /* why it ends early */
    tern_error err;
};

/* Checks and copies all of *r.  reserve and id are the caller's to fill. */
int tern_request_new(struct tern_request_run **out, tern_loop *l, const tern_request *r, tern_events *q, void *user,
                     tern_error *err);
/* Without a word to anybody: of one that was not accepted, or has ended.  keep_constraint: it stays the submitter's. */
void tern_request_free(struct tern_request_run *q, bool keep_constraint);
/* Sends an event; running out of memory is an error of the request, and its receiver gets no event that would follow on
 * one that is missing. */
void tern_request_tell(struct tern_request_run *q, const tern_event *e);
/* The request goes wrong: the first reason counts. */
void tern_request_fail(struct tern_request_run *q, int rc, const char *message);
/* The reply is complete: hands out what was held back, and tells it.  finish: as the machine says, or why it ended
 * early. */
void tern_choice_end(struct tern_choice *c, tern_finish finish);
/* The last words: of choices that are not over, and TERN_EVENT_END. */
void tern_request_end(struct tern_request_run *q, double now);
bool tern_request_over(const struct tern_request_run *q);

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

#define TERN_PACE_SIZES 14 /* powers of two up to the largest step */

struct tern_pace_cost { /* sums over what steps took beyond their decode rows; the newest count most */
    double weight, n, t, nn, nt;
};

struct tern_pace {                     /* how long steps take, in seconds */
    double gap;                        /* how far prompts may stretch the time between tokens, where few wait */
    double idle[TERN_PACE_SIZES];      /* decode rows alone, by the logarithm of their number */
    uint64_t idle_at[TERN_PACE_SIZES]; /* the step that measured that last */
    uint64_t step;
    double row_s; /* a prompt row in a step of such alone */
    struct tern_pace_cost cost;
    double factor; /* by which the step in hand may stretch that time; 0: no prompt waits */
    double saved;  /* of the prompts' share, by steps without prompt rows */
};

/* pace.c: prompt rows for the next step, where n_prompts prompts want so many in all: up to room, 0 for none this time.
 */
int tern_pace_rows(struct tern_pace *p, int n_decode, int n_prompts, int wanted, int room);
/* What a step took. */
void tern_pace_learn(struct tern_pace *p, int n_decode, int n_prompt, double seconds);

struct tern_prefix_cache;
struct tern_visit;

struct tern_loop {
    tern_engine *e;
    tern_loop_params p;
    struct tern_prefix prefix;       /* lookup NULL: none */
    struct tern_prefix_cache *cache; /* the loop's own; NULL: none */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;  /* the thread: something has come */
    pthread_cond_t quiet; /* drains: a request has ended */
    /* Under the lock: */
    bool closing, draining;
    bool poked;                        /* something has come that the thread has not looked at */
    struct tern_visit *visits;         /* in the order in which they came */
    struct tern_request_run **waiting; /* [max_waiting + max_seqs], by age */
    int n_waiting, n_running;
    struct tern_fair *fairs;
    uint64_t next_id, turn;
    size_t reserved;
    int seqs_reserved;
    tern_loop_stats stats;
    double beat, last_end, end_pace;   /* the thread came by; a request ended; seconds between such ends */
    struct tern_request_run **running; /* [max_seqs]; the thread changes it under the lock and reads it without */
    int n_alive;                       /* accepted and not ended */
    /* The thread's: */
    struct tern_pace pace;
    struct tern_request_run **ending;   /* [max_waiting + 2 max_seqs] */
    struct tern_request_run **given_up; /* [max_seqs] */
    tern_loop_stats fresh;              /* what the step in hand adds */
    tern_step_item *items;              /* [max_seqs] */
    int *best;                          /* [max_seqs] of these: how many are enough (tern_step_seen) */
    struct tern_seen *seen;             /* [max_seqs] what came of them */
    struct tern_choice **of;            /* [max_seqs] whose they are */
    struct tern_choice **picks;         /* [max_seqs] */
    struct tern_draft **drafts;         /* [max_seqs] of the step's decode items */
    uint64_t n_steps;
    struct tern_request_run *only; /* whose the step in hand is; NULL: of all that do not go alone */
    int turn_alone;                /* whose step it is, of those who go alone, and of all others together */
    int turn_decode;               /* where decode rows begin when there are more than a step takes */
    double memory_at;
    tern_memory memory;
};

/* loop_queue.c; all under the lock. */
int tern_loop_enqueue(tern_loop *l, struct tern_request_run *q, tern_error *err);
struct tern_request_run *tern_loop_next(tern_loop *l); /* who is to be let in now, taken from the queue; NULL: nobody */
void tern_loop_dequeue(tern_loop *l, int at);          /* waiting[at] leaves the queue without being let in */
void tern_loop_release(tern_loop *l, struct tern_request_run *q); /* what it held when it ran */
void tern_loop_requeue(tern_loop *l, struct tern_request_run *q); /* one that ran waits again */
int tern_loop_place(const tern_loop *l, const struct tern_request_run *q);

/* Fills reserve, room and fits of a request that is new. */
void tern_room_of_new(const tern_loop *l, struct tern_request_run *q);
/* Can what it has be computed again? */
bool tern_room_may_go(const struct tern_request_run *q);
/* Under the lock: room for the next row of every reply that runs.  Requests that give up theirs, and those that are
 * torn, go back into the queue and into l->given_up; returns how many. */
int tern_room_grow(tern_loop *l);

/* loop_again.c, the thread's. */
void tern_again_give_up(struct tern_request_run *q); /* its sequences; it has just been preempted */
/* It was let in again, and *found tokens of its prompt lie in the first sequence of tern_again_first. */
struct tern_choice *tern_again_first(struct tern_request_run *q);
void tern_again_begin(tern_loop *l, struct tern_request_run *q);
int tern_again_rest(const struct tern_request_run *q); /* rows to compute before it goes on */
/* The next item of at most room rows, for the choice that is returned; NULL: none that is not in this step. */
struct tern_choice *tern_again_next(tern_loop *l, struct tern_request_run *q, int room, tern_step_item *out);
void tern_again_take(tern_loop *l, struct tern_choice *c, const tern_step_item *it); /* a step has done it */
int tern_loop_fork(tern_loop *l, tern_seq **out, tern_seq *from, tern_error *err);

/* loop_visit.c, the thread's: what others wait for.  last: it will not come by again. */
void tern_loop_visits(tern_loop *l, bool last);

/* loop_step.c: begins a request that was let in, or lets it wait for what a cache brings; begins those for which that
 * has come; one step of all that run. */
void tern_loop_admit(tern_loop *l, struct tern_request_run *q);
void tern_loop_begin(tern_loop *l);
bool tern_loop_step(tern_loop *l); /* false: nobody could go on */
void tern_times_add(tern_times *t, double seconds);

#endif
