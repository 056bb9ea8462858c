/* server/models.h - the models that a server has names for: which of them are open, who uses them, who waits for them.
 *
 * A model is opened when a request names it and closed when its memory is needed, or when a client asked for that.  One
 * thread, the loader, does both, so neither sockets nor streams of other models wait for it.  Whoever uses a model has
 * a hold on it: jobs from before they are prepared until they are freed, and those who look at its figures.  A model
 * that somebody holds is never closed.
 *
 * Threads: E is the event loop's, W a worker, L the loader; what is shared is under `models.lock`. */
#ifndef TERN_SERVER_MODELS_H
#define TERN_SERVER_MODELS_H

#include "server/server.h"

struct tern_server;
struct tern_job;
struct tern_fault;

enum tern_served_state {
    TERN_SERVED_CLOSED,
    TERN_SERVED_WANTED, /* jobs wait, the loader has not begun */
    TERN_SERVED_OPENING,
    TERN_SERVED_OPEN,
    TERN_SERVED_CLOSING
};

/* What is known of a model that was open once. */
struct tern_served_about {
    bool known, gguf;
    char arch[64];
    int ctx;
    int64_t n_params;
    size_t file_bytes;
};

struct tern_served {
    struct tern_server *server; /* these four: for the server's life */
    int index;
    const char *name, *path;

    /* While somebody holds it, or in the loader's hands. */
    tern_model *model;
    tern_engine *engine;
    tern_loop *loop;
    struct tern_server_model opened;

    /* Under the lock. */
    enum tern_served_state state;
    int holds;
    bool retiring;   /* takes no new jobs, because another model waits for its memory */
    uint64_t turn;   /* of those that are wanted the lowest is opened first */
    size_t bytes;    /* of the budget */
    double used;     /* when the last job left it */
    double opened_s; /* how long the last opening took */
    double since;    /* when it was opened */
    double keep_s; /* "keep_alive" of the last job that said one; NAN: until its memory is needed, < 0: longer still */
    double close_at;               /* INFINITY: not by time */
    int done, total;               /* of an opening */
    struct tern_job *first, *last; /* jobs that wait for it */
    int n_waiting;
    uint64_t n_opened, n_closed, n_failed;
    tern_loop_stats past; /* counters of loops that were closed */
    struct tern_served_about about;
};

/* E: the first model is opened here, and the loader started. */
int tern_models_open(struct tern_server *s, tern_error *err);
/* E: no model is opened any more, and those who wait for one are refused. */
void tern_models_drain(struct tern_server *s);
/* E: ends the loader; false: after so many seconds it is still in the middle of an opening. */
bool tern_models_stop(struct tern_server *s, double seconds);
/* E, after that: the loops, which send their last events; then, when all jobs are over, the models. */
void tern_models_end_loops(struct tern_server *s);
void tern_models_close(struct tern_server *s);
void tern_models_clear(struct tern_server *s);

/* Any thread: the model of that name, alias, "default", or NAME:latest; NULL: there is none, and *f says so. */
struct tern_served *tern_models_find(struct tern_server *s, const char *name, struct tern_fault *f);

/* Any thread.  hold: for a job; false: it is not open, or has to close.  look: for a moment; false: it is not open. */
bool tern_served_hold(struct tern_served *m);
bool tern_served_look(struct tern_served *m);
void tern_served_leave(struct tern_served *m); /* after a look */
/* E: a job has ended that held it.  keep_s as above, NAN: it said nothing. */
void tern_served_drop(struct tern_served *m, double keep_s);

/* E: the job goes to the workers once its model is open; refused at once when too many wait. */
int tern_served_wait(struct tern_job *j, struct tern_fault *f);
bool tern_served_waits(const struct tern_job *j); /* E */
/* E: it no longer waits.  False: it did not. */
bool tern_served_forget(struct tern_job *j);
/* E: how far the opening is that a job waits for, as a sentence fragment. */
void tern_served_progress(const struct tern_job *j, char *out, size_t n);
const char *tern_served_word(struct tern_served *m); /* "loaded", "loading", "unloaded" */

/* Figures of its loops so far, of the one that runs and those before; with gauges of the one that runs. */
void tern_served_stats(struct tern_served *m, tern_loop_stats *out);
struct tern_served_counts {
    bool open;
    int waiting;
    size_t bytes;
    uint64_t opened, closed, failed;
    double close_in_s; /* INFINITY: not by time */
    struct tern_served_about about;
};
void tern_served_count(struct tern_served *m, struct tern_served_counts *out);
size_t tern_models_bytes(struct tern_server *s); /* that are held of the budget */

/* Between served.c and loader.c, all but the start under the lock.  poke: the loader is to look for work.  release:
 * jobs that wait for an open model go to the workers.  take: the first that waits, which no longer does. */
int tern_loader_start(struct tern_server *s, tern_error *err);
void tern_loader_poke(struct tern_server *s);
void tern_served_release(struct tern_served *m);
struct tern_job *tern_served_take(struct tern_served *m);
void tern_served_keep_counters(struct tern_served *m); /* of a loop that will be closed */

#endif
