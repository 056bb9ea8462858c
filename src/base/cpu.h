/* base/cpu.h - what this processor can do, as a bit mask of levels that kernels are written for.
 *
 * A level is a bundle that is used as a whole.  x86-64: avx2 = AVX2 + FMA + F16C + BMI2; avxvnni = avx2 + AVX-VNNI
 * (Alder Lake, Zen 5 and up); avx512 = avx2 + F BW DQ VL VNNI VBMI (Ice Lake, Zen 4 and up), which may lack avxvnni and
 * has no use for it; avx512bf16 = avx512 + AVX512_BF16 (Zen 4, Sapphire Rapids and up); amx = that + AMX-TILE +
 * AMX-BF16 (Sapphire Rapids and up), which a process has to ask the system for.  AArch64: neon = Advanced SIMD + dot
 * products (most of Armv8.2 and up: Neoverse, Apple M, Cortex-A55 and A75).  `--cpu-mask` narrows the mask; it never
 * widens it. */
#ifndef TERN_BASE_CPU_H
#define TERN_BASE_CPU_H

#include <stdbool.h>
#include "base/err.h"

/* X(bit, name, word) in ascending order of preference; plain C is level 0 and always there.  An architecture knows its
 * own levels only. */
#if defined(__aarch64__)
#define TERN_CPU_LIST(X) X(1, NEON, "neon")
#define TERN_CPU_BESIDE  0
#else
#define TERN_CPU_LIST(X)           \
    X(1, AVX2, "avx2")             \
    X(16, AVXVNNI, "avxvnni")      \
    X(2, AVX512, "avx512")         \
    X(8, AVX512BF16, "avx512bf16") \
    X(4, AMX, "amx")
#define TERN_CPU_BESIDE TERN_CPU_AVXVNNI /* levels that the next ones are not built on */
#endif

/* "c|avx2|avxvnni|avx512|avx512bf16|amx|all" */
#define TERN_CPU_WORD(bit, name, word) word "|"
#define TERN_CPU_WORDS                 "c|" TERN_CPU_LIST(TERN_CPU_WORD) "all"

enum {
#define TERN_CPU_ENUM(bit, name, text) TERN_CPU_##name = bit,
    TERN_CPU_LIST(TERN_CPU_ENUM)
#undef TERN_CPU_ENUM
};

/* Levels that both the processor and the operating system support. */
unsigned tern_cpu_detect(void);

/* Why a level that the processor has is not among them: one sentence, or NULL; static storage. */
const char *tern_cpu_refused(void);

/* Mask of the level `bit` and of those that it is built on: all before it in the list, but TERN_CPU_BESIDE. */
unsigned tern_cpu_mask(unsigned bit);

/* "c" or the word of a level -> its tern_cpu_mask; "all" -> every level.  TERN_EINVAL names `text`.
 */
int tern_cpu_parse(const char *text, unsigned *mask, tern_error *err);

/* Name of the highest level in the mask ("c" for 0). */
const char *tern_cpu_name(unsigned mask);

/* Is memory that a stream of weights will need best asked for into the first cache, instead of into the second?  Zen 5
 * and up (decision 074). */
bool tern_cpu_asks_near(void);

/* Brand string of the processor, or "unknown"; static storage. */
const char *tern_cpu_model(void);

/* Physical cores this process may use: affinity mask and cgroup quota considered, hyper-threads counted once. */
int tern_cpu_cores(void);

#endif
