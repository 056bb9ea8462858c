/* kernel/kernel.h - the arithmetic: pure functions on pointers, chosen once per process.
 *
 * No allocation, no threads, no input/output, no errors: callers assert.  Each family (gemm, vec, attn, kvq, delta) is
 * a struct of function pointers whose contract stands beside each pointer.  ref/ fills every entry with plain C; avx2/
 * and avx512/, or neon/, overwrite what they have, avxvnni/ integer products of avx2; avx2 and avx512 add products of
 * prompt rows and their attention to codes in int16, avx512bf16/ and amx/ those in bf16.  A folder is compiled with its
 * own instruction-set flags and is entered only through these tables, so nothing else in the program needs the
 * instructions.
 *
 * Bit equality: where a contract gives an order of operations, every level computes exactly that order and results are
 * equal bit for bit; where it gives an error budget, levels may differ within it, but the result for one row never
 * depends on which other rows are computed with it. */
#ifndef TERN_KERNEL_H
#define TERN_KERNEL_H

#include "kernel/attn.h"
#include "kernel/attn16.h"
#include "kernel/delta.h"
#include "kernel/gemm.h"
#include "kernel/kvq.h"
#include "kernel/prompt.h"
#include "kernel/vec.h"

struct tern_kernels {
    struct tern_gemm_kernels gemm;
    struct tern_vec_kernels vec;
    struct tern_attn_kernels attn;
    struct tern_kvq_kernels kvq;
    struct tern_delta_kernels delta;
    struct tern_prompt_kernels prompt, prompt8; /* of the machine's own class; int8 */
    struct tern_bf16_kernels bf16;
    struct tern_attn16_kernels attn16;
    unsigned mask; /* levels in use, TERN_CPU_* */
};

/* The tables in use.  Written by tern_kernels_init only, before any thread that computes is started. */
extern struct tern_kernels tern_k;

/* Fills tern_k with the best kernels among the levels in `mask` that this machine has.  Idempotent; tests call it
 * again with other masks while nothing computes. */
void tern_kernels_init(unsigned mask);

#endif
