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
};

#define TERN_MAX_EXPERTS 1024

/* The experts of one layer: stacks. */
struct tern_experts {
    int n_active;                                   /* of a row */
    const struct tern_dev_weight *gate, *up, *down; /* gate, up: [n_ff, n_embd]; down: [n_embd, n_ff] */
    bool gelu;                                      /* tanh form of GELU, else SiLU */
    bool weigh_input; /* a row's weight for an expert multiplies what the expert reads, not what it answers */
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

/* Activations of gates; gelu: tanh form. */
enum tern_gate { TERN_GATE_SILU, TERN_GATE_GELU, TERN_GATE_SIGMOID };

#endif
