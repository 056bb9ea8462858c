/* dev/cuda/tables.h - the step in hand as kernels see it: tables in the card's memory, written once per step.
 *
 * Read by C and by CUDA; addresses are numbers here, and nothing follows them but kernels. */
#ifndef TERN_DEV_CUDA_TABLES_H
#define TERN_DEV_CUDA_TABLES_H

#include <stdint.h>

struct tern_cuda_row {
    int32_t token, pos;
};

struct tern_cuda_blocks {
    uint64_t p, bytes; /* block i from p + i * bytes on */
};

struct tern_cuda_cache {
    struct tern_cuda_blocks tiles, sinks, states;
    int32_t pages; /* index into pools: of its group 0 */
    int32_t n_groups;
};

/* Closed pages of one job in one group: page first + i is block numbers[blocks + i], i < n. */
struct tern_cuda_table {
    int32_t blocks, first, n;
};

struct tern_cuda_mark {
    uint32_t block;
    int32_t at;
};

/* As struct tern_dev_job. */
struct tern_cuda_job {
    int32_t cache, row0, n_rows, pos0, wide;
    int32_t tables; /* index into tables: of its cache's group 0 */
    uint32_t tile, sink, state;
    int32_t marks, n_marks; /* index into marks */
};

/* All tables of a step; an argument of kernels. */
struct tern_cuda_tables {
    uint64_t rows;    /* struct tern_cuda_row [n_rows] */
    uint64_t jobs;    /* struct tern_cuda_job [n_jobs], in the order of struct tern_dev_step */
    uint64_t caches;  /* struct tern_cuda_cache [n_caches] */
    uint64_t pools;   /* struct tern_cuda_blocks: pages by cache and group */
    uint64_t tables;  /* struct tern_cuda_table */
    uint64_t marks;   /* struct tern_cuda_mark */
    uint64_t numbers; /* uint32_t */
    int32_t n_rows, n_jobs, n_caches, unused;
};

#endif
