/* dev/args.h - arguments of the larger operations (dev.h).  They are read before the operation returns. */
#ifndef TERN_DEV_ARGS_H
#define TERN_DEV_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "dev/handle.h"

/* One product y[row] = x[row] . w, all products of one call share x. */
struct tern_matmul {
    const struct tern_dev_weight *w;
    struct tern_dev_vec bias; /* [w->n] or none */
    struct tern_dev_rows y;   /* w->n wide */
    bool f32;                 /* prompt rows in f32 on every machine */
};

/* Query or key heads of all rows: optional RMS norm per head, then rotation, then a factor by position. */
struct tern_heads {
    struct tern_dev_rows x; /* [n_rows][n_heads * dim]; columns are allowed */
    int n_heads, dim;
    bool norm, norm_after;      /* normalise each head before or after the rotation */
    struct tern_dev_vec norm_w; /* [dim] or none: without weight */
    float eps;
    struct tern_dev_vec cos, sin; /* [n_rows][n_rot/2]; none: no rotation */
    int n_rot;
    bool interleaved;
    bool inverse; /* turns back: by -sin */
    /* Times 1 + temper * ln(1 + (position + temper_from) / temper_span), the quotient rounded down; 0: no. */
    float temper;
    int temper_span, temper_from;
};

struct tern_attn_shape {
    int layer;     /* whose keys and values are attended to */
    int n_heads;   /* query heads, a multiple of that layer's KV heads; 0: the layer has no attention */
    float scale;   /* softmax scale; log2(e) is added inside */
    float softcap; /* 0: none; else cap*tanh(score/cap) before the softmax */
};

/* Every head has a matrix of its own, of a stack: y[row][h * y_head + n] = x[row][h * x_head ..] . matrix h.  Head
 * strides in floats, multiples of 16. */
struct tern_stack {
    const struct tern_dev_weight *w;
    struct tern_dev_rows y, x;
    size_t y_head, x_head;
};

/* Which experts a row goes to, and what each of them counts. */
struct tern_route {
    int n_experts, n_active;  /* a row goes to n_active of them */
    bool sigmoid;             /* an expert's score is the sigmoid of its logit; else the softmax over all logits */
    struct tern_dev_vec bias; /* [n_experts] added to a score for the choice alone, or none */
    /* Experts come in n_groups groups of one size, of which the best n_groups_used compete, ranked by the sum of their
     * group_best best experts.  n_groups 1: no groups. */
    int n_groups, n_groups_used, group_best;
    bool normalise;              /* a row's weights are divided by their sum */
    float scale;                 /* and multiplied by this */
    struct tern_dev_vec factors; /* [n_experts] and each by its expert's; none: 1 */
    struct tern_dev_vec table;   /* [tokens][n_active] f32: the experts of the row's token, instead of a choice; none */
    bool sqrt_softplus;          /* a score is the root of ln(1 + e^logit) */
};

#define TERN_MAX_EXPERTS 1024

/* The experts of one layer: stacks. */
struct tern_experts {
    int n_active;                                   /* of a row */
    const struct tern_dev_weight *gate, *up, *down; /* gate, up: [n_ff, n_embd]; down: [n_embd, n_ff] */
    bool gelu;                                      /* tanh form of GELU, else SiLU */
    bool weigh_input; /* a row's weight for an expert multiplies what the expert reads, not what it answers */
    float clamp;      /* as the operation of that name, before the activation; 0: no */
};

/* A layer with a recurrent state: a causal convolution over the last `width` rows, then the gated delta rule of
 * kernel/delta.h for each of n_v heads, which share n_k heads of queries and keys. */
struct tern_delta {
    int n_k, n_v, dk, dv;      /* heads and their dims, multiples of 16 */
    int width;                 /* 2..TERN_DELTA_WIDTH */
    bool grouped;              /* value head h goes with key head h / (n_v / n_k); else with h % n_k */
    struct tern_dev_vec conv;  /* [width][channels]; channels: queries [n_k][dk], keys [n_k][dk], values [n_v][dv] */
    struct tern_dev_vec a, dt; /* [n_v] decay is exp(a * softplus(input + dt)) */
};

/* f32 that a sequence keeps for the layer: the convolution's last width - 1 inputs, then states (kernel/delta.h) head
 * by head.  All 0 in the beginning. */
size_t tern_delta_state_floats(const struct tern_delta *l);

struct tern_delta_io {
    struct tern_dev_rows x;           /* in: [n_rows][channels]; overwritten */
    struct tern_dev_rows decay, beta; /* in: [n_rows][n_v] before softplus and sigmoid; overwritten */
    struct tern_dev_rows out;         /* [n_rows][n_v * dv] */
};

/* ---- layers that cache compressed rows beside a window ---- */

/* Grids that numbers are rounded to, in groups with a power of two as their scale: E4M3 in groups of 64, and E2M1 in
 * groups of 32, after a Hadamard transform of the whole.  To the nearest, to even; the scale is the smallest that takes
 * the group's largest number to 448, or 6.  A last group may be short. */
enum tern_grid { TERN_GRID_NONE, TERN_GRID_FP8, TERN_GRID_FP4 };

/* One row for every `rate` tokens: per channel, the softmax over tokens of gate + ape[position % rate] weighs inputs;
 * then a norm, the rotation for the first token's position, a grid.  overlap: tokens have two sets of channels, and a
 * row is made of the first set of the window before and the second of its own, of which the former is left out of the
 * first row.  In f32 (the softmax in double) for both roles. */
struct tern_compress {
    int layer, span; /* whose states; which of the caches' layers the rows go to */
    int rate;
    bool overlap;
    int dim;                       /* of a row; channels of a token: twice that with overlap */
    struct tern_dev_vec ape, norm; /* [rate][channels], [dim] */
    float eps;
    struct tern_dev_vec freq; /* [n_rot/2] of the last n_rot dims, neighbours paired */
    int n_rot;
    enum tern_grid grid; /* FP8: of the dims before those; FP4: of all */
    /* Where in the layer's state, in floats, the tokens stand that rows to come need: inputs, then gates with ape, each
     * [ring][channels] by position modulo ring = rate, or twice that with overlap. */
    size_t state_at;
};
size_t tern_compress_floats(const struct tern_compress *c);

/* Which rows of a span of keys a row sees: all of them, or the `top` of the largest sum over heads of
 * weight * max(0, q . key); of equal ones the lower. */
struct tern_choose {
    int span, rate;
    int n_heads, dim;
    int top;
    struct tern_dev_vec ids;    /* [n_rows][top] int32, ascending */
    struct tern_dev_vec counts; /* [n_rows] int32 */
};

/* Attention of n_heads heads to one set of rows, which are keys and values: those of the window, and compressed ones,
 * all that are complete or those chosen.  With one score more, a constant of the head, that weighs nothing. */
struct tern_sparse {
    int layer, span, rate; /* span -1: the window alone */
    int n_heads, dim;
    float scale;
    struct tern_dev_vec sinks;        /* [n_heads] */
    const struct tern_choose *chosen; /* NULL: all */
};

/* ---- residual streams that mix ---- */

/* n streams of `dim`: [n_rows][n * dim].  m: [n_rows][n * (n + 2)] their products with a matrix, not yet divided by the
 * root of the streams' mean square. */
struct tern_hyper {
    int n, dim;
    struct tern_dev_vec base, scale; /* [n * (n + 2)], [3]; where iterations is 0: [n], [1] */
    int iterations;                  /* that make the matrix of streams doubly stochastic; 0: m has the first n alone */
    float eps, norm_eps;
};
#define TERN_MAX_STREAMS 8

/* ---- rows that the host picks from ---- */

/* Of each row of x its n largest numbers and their columns, the larger first, of equal ones the lower column.
 * Infinities are numbers; what is none is left out, and where a row has fewer than n the ids behind them are -1. */
struct tern_best {
    struct tern_dev_rows x;
    int n;                           /* 1..TERN_BEST */
    struct tern_dev_vec values, ids; /* [n_rows][n]; ids int32 */
};
#define TERN_BEST       64
#define TERN_BEST_WIDTH (1 << 20) /* most columns of x */

/* Activations of gates; gelu: tanh form. */
enum tern_gate { TERN_GATE_SILU, TERN_GATE_GELU, TERN_GATE_SIGMOID };

/* A feed-forward network: act(x . gate) * (x . up), times down. */
struct tern_dev_network {
    const struct tern_dev_weight *gate, *up, *down;
    enum tern_gate act;                  /* SILU or GELU */
    struct tern_dev_rows of_gate, of_up; /* room for what is in between, which nobody reads afterwards */
};

#endif
