/* dev/cuda/attn/state.h - what the host keeps for append and attention.  Private to dev/cuda/attn. */
#ifndef TERN_DEV_CUDA_ATTN_STATE_H
#define TERN_DEV_CUDA_ATTN_STATE_H

#include "dev/cuda/attn/args.h"
#include "dev/cuda/cuda.h"

/* Units of a step on the card, and most rows of one. */
struct tern_cuda_list_of {
    tern_cu_address p;
    int n, rows;
};

struct tern_cuda_lists {
    struct tern_cuda_list_of all, closing, staged, wide, narrow;
};

struct tern_cuda_attn {
    int n_caches, n_layers;
    struct tern_cuda_layer *layers; /* [n_caches][n_layers] */
    tern_cu_address constants;      /* what they point to */
    tern_cu_address stage, part;
    int part_rows;            /* decode rows that part has room for */
    tern_cu_address expanded; /* closed pages of prompt rows as halves (attn/expand.cu); 0: no layer needs them */
    size_t expanded_bytes;
    size_t stage_tile_bytes, stage_tiles; /* of one set */
    int *stage_set;                       /* [n_layers] */
    bool *waits;                          /* [n_layers] appended, and staging tiles are not the sequences' own yet */
    struct tern_cuda_unit *units;         /* room for a list */
    size_t max_units;
    /* of the step in hand */
    int32_t *stage_of;             /* [n_jobs] */
    tern_cu_address stage_table;   /* on the card */
    struct tern_cuda_lists *lists; /* [n_caches] */
};

/* t->layers and t->constants (layers.c). */
int tern_cuda_attn_layers(struct tern_cuda *d, const struct tern_dev_limits *l, tern_error *err);

#endif
