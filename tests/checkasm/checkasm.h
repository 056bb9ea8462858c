/* tests/checkasm/checkasm.h - compares every kernel of every instruction-set level with an oracle and with plain C.
 *
 * Mental model: the program walks the levels this machine has (c, avx2, avxvnni, avx512, amx; c, neon).  At each it
 * fills tern_k and calls the check_<family>() of every check_<family>.c in this folder (CMake makes the list).  A
 * family calls CHECK_PART once per kernel; a part is skipped when the level has no kernel of its own, because the
 * pointer is then the one that the level below already proved.  A part runs cases: check_case() names the parameters,
 * check_buf() hands out memory that ends at a guard page, the compare helpers record a failure together with part,
 * level, case and seed.
 *
 * A part sees the same random numbers at every level.  Signals (SEGV, BUS, ILL, FPE, ABRT) end the part, not the
 * program.  Buffers live until the next check_case or the end of the part; red zones are checked at that moment.
 *
 * bench_<family>() is optional and runs once, after the checks, under --bench: check_bench times one closure, which
 * must call through tern_k, at all levels in turn.  Thread: one. */
#ifndef TERN_CHECKASM_H
#define TERN_CHECKASM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernel/kernel.h"

extern struct tern_kernels check_ref;   /* plain C */
extern struct tern_kernels check_below; /* the level below the current one; all NULL at level c */

/* Runs `fn` for tern_k.<field>, for example CHECK_PART(gemm.wide, part_wide). */
#define CHECK_PART(field, fn)                  \
    do {                                       \
        if (tern_k.field != check_below.field) \
            check_part(#field, (fn));          \
    } while (0)
void check_part(const char *name, void (*fn)(void));

/* How often a part goes through its cases, and where cases are pairs, how far apart the ones are that go with one of
 * the others.  Under AddressSanitizer there are fewer: buffers have guard pages and red zones in every build, and what
 * sanitizers add, they see at the first case of each kind. */
#ifdef TERN_TEST_FEW
#define CHECK_TIMES(n) (((n) + 3) / 4)
#define CHECK_STEP     3
#else
#define CHECK_TIMES(n) (n)
#define CHECK_STEP     1
#endif

/* Opens a case: releases the buffers of the case before and remembers the sentence for failure reports. */
void check_case(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Records a failure of the current case.  Only the first of a part is printed. */
void check_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ---- memory ---- */

/* `bytes` poisoned bytes, `align`-aligned (a power of two up to 4096), whose end is as close to an unmapped page as the
 * alignment allows: an overread of `align` bytes or more faults at once, and every byte written outside is found later.
 * Some buffers are deliberately not aligned to 2 * align. */
void *check_buf(size_t bytes, size_t align);

/* Poison is a byte that makes every float a NaN, so that padding which takes part in arithmetic shows.  check_unwritten
 * fails the case when a byte of the range is not poison any more: for padding between rows and columns that the
 * contract leaves alone. */
void check_poison(void *p, size_t bytes);
bool check_unwritten(const char *what, const void *p, size_t bytes);

/* ---- random numbers and fills ---- */

uint64_t check_rand(void);
int check_range(int lo, int hi); /* uniform, both ends included */
double check_uniform(void);      /* [0, 1) */
double check_gauss(void);        /* mean 0, variance 1 */

enum check_fill {
    CHECK_GAUSS,
    CHECK_ZERO,
    CHECK_NEGZERO, /* +0 and -0 mixed */
    CHECK_EQUAL,   /* one value everywhere */
    CHECK_ONEHOT,
    CHECK_TIES,   /* small multiples of 1/2: rounding ties */
    CHECK_SPREAD, /* magnitudes over 24 binades */
    CHECK_OUTLIER,
    CHECK_TINY, /* denormals of the format */
    CHECK_HUGE, /* up to 1e18 (f32) or 60000 (f16) */
    CHECK_N_FINITE,
    CHECK_NONFINITE = CHECK_N_FINITE /* Gaussian with a few infinities and NaN */
};
const char *check_fill_name(enum check_fill kind);
void check_fill_f32(float *x, size_t n, enum check_fill kind);
void check_fill_f16(uint16_t *x, size_t n, enum check_fill kind);
void check_fill_bytes(void *p, size_t n);

/* ---- verdicts: each returns true when all is well, else records one failure and returns false ---- */

/* Bit for bit; any NaN equals any NaN. */
bool check_same_f32(const char *what, const float *got, const float *want, size_t n);
bool check_same_bytes(const char *what, const void *got, const void *want, size_t n);

/* |got - oracle| <= budget element by element; where the oracle is not finite, got must be the same infinity or NaN.
 * With `ref` the worst share of the budget that got uses may also not exceed `k` times the worst share that ref uses
 * (floor 1/64), so that a faster kernel cannot quietly eat up the whole budget. */
bool check_budget(const char *what, const float *got, const double *oracle, const double *budget, size_t n,
                  const float *ref, double k);

/* ---- benches ---- */

struct check_timing {
    const char *label;    /* "gemm.wide F16 512x4096x4096" */
    double (*fn)(void *); /* one call, through tern_k; returns the work it did, in `unit` */
    void *ctx;
    const char *unit;       /* "B" or "FLOP" */
    double (*roof)(void *); /* the limit, measured in the same rounds; likewise; or NULL */
    void *roof_ctx;
};
void check_bench(const struct check_timing *t);

/* Ready-made roofs: FMAs on registers only, in the widest vectors of the current level (multiply, then add, on 128
 * bits at level c); and one plain sequential read of a buffer. */
double check_roof_fma(void *unused);
double check_roof_prompt(void *unused); /* products of bf16 tiles where the level has them, else check_roof_fma */
struct check_read {
    const void *p;
    size_t bytes;
};
double check_roof_read(void *check_read);

/* One per file of this folder, in the generated list. */
#define X(family)              \
    void check_##family(void); \
    void bench_##family(void) __attribute__((weak));
#include "check_list.h"
#undef X

#endif
