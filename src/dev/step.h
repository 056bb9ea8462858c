/* dev/step.h - what a device is told about a step before its first operation: rows, jobs, and where the cache keeps
 * each sequence.
 *
 * A batch is a list of rows (tokens) of any mix of sequences.  Rows [0, n_wide) are prompt rows, the rest decode rows.
 * Rows of one sequence in one step form a job.  Page index = position / 64, absolute. */
#ifndef TERN_DEV_STEP_H
#define TERN_DEV_STEP_H

#include <stdbool.h>
#include <stdint.h>
#include "codec/codec.h"
#include "dev/handle.h"

/* One token of a batch. */
struct tern_row {
    int32_t token;
    int32_t pos;
};

/* The memory of sequences that share a layout.  The layers, and all that they point to, stay as prepare saw them. */
struct tern_dev_cache {
    int n_layers;
    int n_spans;                         /* the model's layers, then spans of rows */
    const struct tern_kv_layer *layers;  /* [n_spans] */
    const int *group_of;                 /* [n_spans] of a layer's pages; -1: it keeps no keys and values */
    const int *span_layer;               /* [n_spans] whose span it is; a layer's own */
    const size_t *state_off;             /* [n_layers] bytes into a block of states */
    const struct tern_dev_blocks *pages; /* [groups] */
    struct tern_dev_blocks tiles, sinks, states;
};

/* Bytes of a block, of `whole`, that layers before the cut have: of the pages of group `part`, or of one of these. */
enum { TERN_DEV_TILES = -1, TERN_DEV_SINKS = -2, TERN_DEV_STATES = -3 };
size_t tern_dev_cut(const struct tern_dev_cache *c, int cut, int part, size_t whole);

/* What lies in memory: blocks of `block` bytes, of which [from, to) belong to layers before the cut.  Weights are one
 * block.  cache: of a pool, whose blocks are pages of group `part`, or what `part` is else; NULL: weights.  Out, of
 * devices that compute one model together: `takes`, the bytes that a block takes of all of them, did each have as much
 * of it as the one that has most. */
struct tern_dev_division {
    size_t block, from, to, takes;
    const struct tern_dev_cache *cache;
    int part;
};

/* The closed pages of a sequence in one group: page index first + i is block blocks[i], 0 <= i < n. */
struct tern_dev_table {
    const uint32_t *blocks;
    int first, n;
};

/* Where the states after the first `at` rows of a job are written besides. */
struct tern_dev_mark {
    uint32_t block;
    int at; /* 0 < at <= n_rows */
};

#define TERN_DEV_MARKS 17 /* most of one job */

/* One sequence's rows in this step, consecutive in the batch and in position, of one role.  Pages that the step closes
 * are in the tables already; a row at position p attends to closed pages with an index below p / 64 only. */
struct tern_dev_job {
    int cache; /* index of the step's caches */
    int row0;  /* first row in the batch */
    int n_rows;
    int pos0;                            /* position of the first row */
    bool wide;                           /* role: prompt rows */
    const struct tern_dev_table *tables; /* [groups] */
    uint32_t tile;
    uint32_t sink;                     /* TERN_NO_BLOCK while no page is closed */
    uint32_t state;                    /* TERN_NO_BLOCK where no layer has one */
    const struct tern_dev_mark *marks; /* [n_marks], `at` not descending */
    int n_marks;
};

/* All of it is borrowed until the sync after end. */
struct tern_dev_step {
    const struct tern_row *rows; /* [n_rows]; NULL where no operation asks for tokens or positions */
    int n_rows;
    const struct tern_dev_cache
        *caches; /* [n_caches], those of prepare; they may lie elsewhere than in the last step */
    int n_caches;
    const struct tern_dev_job *jobs; /* [n_jobs] */
    int n_jobs;
};

#endif
