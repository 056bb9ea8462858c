/* dev/cuda/products/products.h - weights and products, as kernels see them.  Read by C and by CUDA. */
#ifndef TERN_DEV_CUDA_PRODUCTS_H
#define TERN_DEV_CUDA_PRODUCTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "dev/cuda/together/together.h"

/* One matrix of panels (kernel/pack.h), its layout and what struct tern_packed says of it. */
struct tern_cuda_matrix {
    uint64_t p, panel_bytes;
    uint32_t d, m, a, b; /* offsets inside a panel */
    int32_t codes, scales, d_type, m_type, zero, shift;
    float unit;
    int32_t n, k;
    int8_t table[16];
};

/* Decode rows as int8: q [k], then for every 32 inputs the scale, then for every 32 scale * sum of q; row_bytes apart.
 * Several rows lie in eights (lanes): 32 inputs of each of eight rows, and so on, then the scales and sums likewise.
 * Words of 32 inputs are in the order 0, 4, 1, 5, 2, 6, 3, 7. */
struct tern_cuda_quantize {
    uint64_t to, x;
    uint64_t row_bytes, stride; /* stride: floats */
    uint64_t head;              /* heads of a row: floats from one to the next */
    int32_t k, n_heads;         /* row r, head h goes to row r * row_step + h * head_step */
    int32_t row_step, head_step, lanes, unused;
};

/* Several rows of eight-bit floats lie in the same eights (the kernel is `split`), unit by unit: 256 inputs, behind k
 * zeros.  Of each 32 inputs the first pieces of eight rows, 16-bit floats, then the second ones, 512 bytes each: of row
 * r quads t and t + 4 at 64 r + 16 t; behind these, [8 times 32 inputs][row], what products are to be multiplied by. */
#define TERN_CUDA_SPLIT_BYTES(k) (((k) + 255) / 256 * 1056) /* of a row */

#define TERN_CUDA_LANES       8
#define TERN_CUDA_FLOAT_PARTS 32   /* most parts of a panel of floats, a warp each: few panels have to fill a card */
#define TERN_CUDA_FLOAT_UNIT  64   /* inputs that a part has at least */
#define TERN_CUDA_Q8_BEHIND   2048 /* bytes behind the last row that may be read: a unit of eight rows */

/* How many units of 256 inputs of a panel a warp keeps under way, by their bytes.  Blocks of eight warps that share a
 * processor: two of several rows, of one row as many as their registers allow. */
#define TERN_CUDA_RING_DEPTH(bytes) ((bytes)*8 * 3 <= 72 << 10 ? 3 : 2)
#define TERN_CUDA_RING_BLOCKS(codes, scales)                                                                      \
    ((scales) == TERN_SCALES_G32                                                           ? TERN_CUDA_G32_BLOCKS \
     : (codes) == TERN_CODES_U6 || (codes) == TERN_CODES_S8 || (scales) >= TERN_SCALES_G16 ? 2                    \
                                                                                           : 3)
#define TERN_CUDA_G32_BLOCKS 3 /* that is, of small floats */

/* Many rows (many.cu): warps of a block of threads; what a warp has; bytes of a unit of eight rows, its scales and
 * sums. */
#define TERN_CUDA_MANY_WARPS  8
#define TERN_CUDA_MANY_PANELS 2
#define TERN_CUDA_MANY_ROWS   32
#define TERN_CUDA_MANY_EIGHT  2560

/* 9 to 16 rows (pairs.cu): most warps; half units of a warp under way; bytes of what a warp leaves of its sums, of 16
 * rows' half a unit and its scales, and a unit's sums. */
#define TERN_CUDA_PAIRS_WARPS 16
#define TERN_CUDA_PAIRS_DEPTH 2
#define TERN_CUDA_PAIRS_LEFT  2048
#define TERN_CUDA_PAIRS_ROWS  2304
#define TERN_CUDA_PAIRS_SUMS  512
#define TERN_CUDA_PAIRS_KINDS(X) \
    X(U4, F16)                   \
    X(U4, F16M)                  \
    X(U4, K32)                   \
    X(U5, K32)                   \
    X(U6, K16)

#define TERN_CUDA_PRODUCTS 8

struct tern_cuda_product {
    struct tern_cuda_matrix w;
    uint64_t y, y_stride, bias;
    int32_t panel0; /* of the launch: where this product's begin */
    int32_t unused;
};

/* Products of decode rows, all of one kind of weights.   */
struct tern_cuda_narrow {
    struct tern_cuda_product m[TERN_CUDA_PRODUCTS];
    uint64_t q8, row_bytes; /* of integer codes */
    uint64_t x, x_stride;   /* of float codes: f32 */
    int32_t n_m, n_rows, n_heads, n_panels;
    int32_t parts;          /* a panel's sum is that of so many */
    int32_t head_rows;      /* several rows: head z begins at row z * head_rows of q8 */
    int32_t groups, shares; /* many rows, of a block of threads: groups of 32; shares of the parts, a power of two */
    /* Stacks: block z is head z, of matrix z, matrix_bytes apart; its output y_head floats on, its input x_head. */
    uint64_t matrix_bytes, y_head, x_head;
    /* Experts: row r is pair r; its matrix stands in ids[r], its input is row r / per_row. */
    uint64_t ids;
    int32_t per_row, unused2;
    /* Or tiles of pairs (experts.h), each a block's: row j of tile t is row 8 t + j of q8, its output that of pairs[j].
     */
    uint64_t tiles, pairs;
};

/* to[row - row0][k] = the weights as they are multiplied by, `pitch` numbers apart, 0 behind k; f32 or f16. */
struct tern_cuda_dense_args {
    struct tern_cuda_matrix w;
    uint64_t to, pitch;
    uint64_t matrix_bytes, to_matrix; /* block y is matrix y; numbers from one to the next */
    int32_t row0, n_rows;
};

/* Prompt rows in 16-bit floats: to[row][pitch] = x * 2^-e, scale[row] = 2^e, 0 behind k.  rows: of x, or 0: in order.
 */
struct tern_cuda_half {
    uint64_t to, pitch, scale, x, stride;
    uint64_t rows;
    int32_t k, per_row;
};

/* What columns [first, first + n) of a product of 16-bit floats become: y[row][col - first], with a bias added or 0. */
struct tern_cuda_gemm_out {
    uint64_t y, y_stride, bias;
    int32_t first, n; /* first: a multiple of every tile's columns */
};

#define TERN_CUDA_GEMM_OUTS   4
#define TERN_CUDA_GEMM_GROUPS 1024

/* y[row][col] = scale[row] * sum of x[row][i] * w[col][i] (+ bias), rows of 16-bit floats, i a multiple of 64.  Columns
 * of several products, n with those between that belong to none.  to (gemm_90_sent): the only product goes there, to
 * the rows of several cards, which begin at multiples of four numbers. */
struct tern_cuda_gemm {
    uint64_t x, x_pitch, scale, w, w_pitch;
    struct tern_cuda_gemm_out out[TERN_CUDA_GEMM_OUTS];
    int32_t n_rows, n, k, n_out;
    int32_t n_to, n_groups;
    uint64_t to[TERN_CUDA_TOGETHER];
    /* Groups (experts), n_groups of them in gemm_90_groups, else one for each block z: {first row, rows}; w_group
     * numbers from one matrix to the next. */
    uint64_t groups, w_group;
};

/* y[row][col] = sum of x[row][i] * w[col][i] (+ bias) in f32, one chain of fma for every output. */
struct tern_cuda_exact {
    uint64_t x, x_stride, w, w_pitch, y, y_stride, bias;
    int32_t n_rows, n, k, unused;
    uint64_t groups, w_group;
    uint64_t x_head, y_head; /* stacks: block z is head z */
};

#ifndef __CUDACC__
#include "dev/cuda/driver.h"
#include "dev/handle.h"
#include "kernel/gemm.h"

struct tern_cuda;

/* Matrix i of a stack. */
struct tern_cuda_matrix tern_cuda_matrix_of(const struct tern_dev_weight *w, int i);

/* to = rows [row, row + n) of n_matrices matrices from `matrix` on, `pitch` numbers apart, as they are multiplied by.
 */
void tern_cuda_dense(struct tern_cuda *d, const struct tern_dev_weight *w, int matrix, int n_matrices, int row, int n,
                     tern_cu_address to, size_t pitch, bool f32);
/* Decode rows in tiles (a->tiles), at most `tiles` of them and some `expected`; a: its products, tiles and pairs, the
 * rows of int8 and matrix_bytes.  Of a kind that tern_cuda_has_tiles. */
void tern_cuda_tiles(struct tern_cuda *d, struct tern_cuda_narrow *a, int tiles, int expected);
bool tern_cuda_has_tiles(const struct tern_packed *m);
/* Rows of d->half, n_rows of them, or at most so many of each group, times what lies in d->dense, both `pitch` numbers
 * apart.  a: outputs, and groups; the rest is filled in. */
void tern_cuda_gemm(struct tern_cuda *d, struct tern_cuda_gemm *a, int n_rows, size_t pitch);

/* Numbers from one row of k 16-bit floats to the next, and of weights written out. */
static inline size_t tern_cuda_pitch(int k)
{
    return ((size_t)k + 63) / 64 * 64;
}

/* Bytes of a decode row of k inputs as int8. */
size_t tern_cuda_q8_bytes(int k);

/* Can this card have a chain (chain.h) now? */
bool tern_cuda_may_chain(const struct tern_cuda *d);
/* What chains need of the card's memory; the device gives it back. */
int tern_cuda_chain_open(struct tern_cuda *d, tern_error *err);
/* Are panels of both laid out alike?  Then products by them can go together. */
bool tern_cuda_alike(const struct tern_packed *a, const struct tern_packed *b);
/* Products of decode rows by a.m, whose weights are all of one kind (panel0 is set here).  n_z: heads of a stack; 1. */
void tern_cuda_narrow(struct tern_cuda *d, struct tern_cuda_narrow *a, int n_z);
/* Rows of one kind or another as the products read them. */
void tern_cuda_quantize_rows(struct tern_cuda *d, tern_cu_address to, size_t row_bytes, tern_cu_address x,
                             size_t stride, int n_rows, int k, int n_heads, size_t head, int lanes);
/* Lanes that n decode rows of a product lie in. */
static inline int tern_cuda_lanes(int n_rows)
{
    return n_rows > 1 ? TERN_CUDA_LANES : 1;
}
#endif

#endif
