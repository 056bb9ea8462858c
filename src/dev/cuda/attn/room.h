/* dev/cuda/attn/room.h - what blocks of threads of attention's kernels have: q rows, stages, bytes of shared memory.
 *
 * Read by C, which asks for them, and by CUDA. */
#ifndef TERN_DEV_CUDA_ATTN_ROOM_H
#define TERN_DEV_CUDA_ATTN_ROOM_H

/* Prompt rows: q rows of a block of prompts/wide_90.cu, and of prompts/wide.cu (16 a warp) with the parts of pages in
 * its ring: two blocks of a processor that has 100 KiB of shared memory. */
#define TERN_CUDA_WIDE_90_ROWS 128
#define TERN_CUDA_WIDE_ROWS    64
#define TERN_CUDA_WIDE_STAGES  3
/* Heads of other sizes and latents (prompts/wide_any.cu): q rows of a block, parts in its ring, 128 dims each; dims of
 * keys, of latents with them, and of values as they are expanded; bytes of a page then, and of a block's shared memory.
 */
#define TERN_CUDA_ANY_ROWS      32
#define TERN_CUDA_ANY_STAGES    3
#define TERN_CUDA_ANY_KEYS(l)   (((l)->k.dim + ((l)->latent ? (l)->v.dim : 0) + 15) / 16 * 16)
#define TERN_CUDA_ANY_VALUES(l) (((l)->v.dim + 127) / 128 * 128)
#define TERN_CUDA_ANY_BYTES(l)  ((uint64_t)128 * (uint64_t)(TERN_CUDA_ANY_KEYS(l) + TERN_CUDA_ANY_VALUES(l)))
#define TERN_CUDA_ANY_SHARED(l)                                                                 \
    (TERN_CUDA_ANY_STAGES * 16384 + 2 * TERN_CUDA_ANY_ROWS * (TERN_CUDA_ANY_KEYS(l) + 8 + 72) + \
     2 * 4 * 4 * TERN_CUDA_ANY_ROWS)
/* Shared bytes of a block of threads of prompts/expand.cu, without pages on their way. */
#define TERN_CUDA_EXPAND_ROOM(d) (2 * 144 * (d) + 3 * 4 * (d) + 8 * 20)
/* Decode rows of any heads (attn/any.cu): shared bytes of a token's halves, of a side's, of the place where a page's
 * numbers lie, of a q row's scores and then weights (of four warps, and of eight: lanes meet no bank twice), of a
 * side's tables, and of what a block of so many q rows has beside places and pages. */
#define TERN_CUDA_ANY_TOKEN(dim) (2 * ((uint32_t)(dim) + 8))
#define TERN_CUDA_ANY_SIDE(dim)  (64 * TERN_CUDA_ANY_TOKEN(dim))
#define TERN_CUDA_ANY_PLACE(l)                                                                   \
    ((l)->latent               ? TERN_CUDA_ANY_SIDE((l)->k.dim) + TERN_CUDA_ANY_SIDE((l)->v.dim) \
     : (l)->k.dim > (l)->v.dim ? TERN_CUDA_ANY_SIDE((l)->k.dim)                                  \
                               : TERN_CUDA_ANY_SIDE((l)->v.dim))
#define TERN_CUDA_ANY_LINE(warps) ((warps) == 8 ? 592 : 272)
#define TERN_CUDA_ANY_TABLES      40
#define TERN_CUDA_ANY_BLOCKS(d)   (((uint32_t)(d) + 127) / 128)
#define TERN_CUDA_ANY_BESIDE(l, rows, warps)                                                                           \
    ((rows) *                                                                                                          \
         (TERN_CUDA_ANY_LINE(warps) + 4 + 2 * ((uint32_t)(l)->k.dim + ((l)->latent ? (uint32_t)(l)->v.dim : 0) + 8)) + \
     4 * (64 * (TERN_CUDA_ANY_BLOCKS((l)->k.dim) + TERN_CUDA_ANY_BLOCKS((l)->v.dim)) + 4) + 2 * TERN_CUDA_ANY_TABLES)
/* Shared bytes of attn/raw.cuh, and of attn/halves.cu beside the stages of its warps: two places of four q rows or one
 * of eight. */
#define TERN_CUDA_RAW_FLOATS(d, threads, rows) (4 * (rows) * ((d) + 2 * (threads) + 64 + 3))
#define TERN_CUDA_RAW_HALVES(d, rows)          (4 * (rows) * ((d) + 16) + 4 * ((rows) + 4 * (rows) * ((d) + 10)))
#define TERN_CUDA_RAW_BYTES(d, threads, rows)                                                                        \
    (TERN_CUDA_RAW_FLOATS(d, threads, rows) > TERN_CUDA_RAW_HALVES(d, rows) ? TERN_CUDA_RAW_FLOATS(d, threads, rows) \
                                                                            : TERN_CUDA_RAW_HALVES(d, rows))
#define TERN_CUDA_HALVES_PART          8192 /* of a page's side, a stage */
#define TERN_CUDA_SUMS_BYTES(d, warps) (4 * (warps)*8 * ((d) + 6))
#define TERN_CUDA_HALVES_ROOM(d, warps, rows)                                      \
    (((TERN_CUDA_RAW_BYTES(d, 32 * (warps), rows) > TERN_CUDA_SUMS_BYTES(d, warps) \
           ? TERN_CUDA_RAW_BYTES(d, 32 * (warps), rows)                            \
           : TERN_CUDA_SUMS_BYTES(d, warps)) +                                     \
      127) /                                                                       \
     128 * 128)
/* q rows of a block: with four warps of 256 dims there is room for half as many. */
#define TERN_CUDA_HALVES_ROWS(d, warps) ((d) > 128 && (warps) < 8 ? 4 : 8)
/* Shared bytes of attn/codes (four warps) where warps put down what they have of a range: two such places by
 * turns, or one; or, in the same room, what is raw. */
#define TERN_CUDA_CODES_THREADS        128 /* of a block, and more of one that finishes its heads */
#define TERN_CUDA_CODES_HELPERS        64
#define TERN_CUDA_CODES_PLACES(d)      ((d) > 128 ? 1 : 2)
#define TERN_CUDA_CODES_PLACE(d, rows) (4 * (4 * (rows) * ((d) + 8) + 2 * 4 * (rows)))
#define TERN_CUDA_CODES_ROOM(d, rows)                                                               \
    (TERN_CUDA_RAW_BYTES(d, 128, rows) > TERN_CUDA_CODES_PLACES(d) * TERN_CUDA_CODES_PLACE(d, rows) \
         ? TERN_CUDA_RAW_BYTES(d, 128, rows)                                                        \
         : TERN_CUDA_CODES_PLACES(d) * TERN_CUDA_CODES_PLACE(d, rows))
/* And static ones at most: columns of queries, and what cold functions read. */
#define TERN_CUDA_CODES_BESIDE(d)  ((d) > 128 ? 8 * TERN_CUDA_COLUMNS_BYTES(d) + 4096 : 0)
#define TERN_CUDA_CHAIN            5248                  /* shared bytes of a warp that encodes trellis codes */
#define TERN_CUDA_COLUMNS_BYTES(d) (2 * ((d) + 16) + 16) /* of attn/columns.cuh */
/* Shared bytes of encode/encode.cuh: 32 vectors, the turns of pairs, codes. */
#define TERN_CUDA_ENCODE_BYTES(d) (32 * ((d) + 1) * 4 + TERN_CUDA_PAIRS * 2 * 32 * 4 + 32 * ((d) + 4))

#endif
