#include "kernel/kernel.h"

#include <string.h>
#include "base/cpu.h"
#include "base/err.h"

struct tern_kernels tern_k;

/* libternkv (cmake/ternkv.cmake) is the codec without a model, so it goes without the kernels that only models need. */
#ifdef TERN_KV_ONLY
#define TERN_FOR_MODELS(...)
#else
#define TERN_FOR_MODELS(...) __VA_ARGS__
#endif

/* An empty slot would be a crash in the middle of a step; a table is nothing but pointers, so look at them all. */
static void assert_filled(const void *table, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof(void *); i++) {
        void *p;
        memcpy(&p, (const char *)table + i * sizeof p, sizeof p);
        TERN_ASSERT(p);
    }
}

void tern_kernels_init(unsigned mask)
{
    struct tern_kernels k = {.mask = mask & tern_cpu_detect()};
#define TERN_INIT(isa)                                    \
    do {                                                  \
        TERN_FOR_MODELS(tern_gemm_init_##isa(&k.gemm);)   \
        TERN_FOR_MODELS(tern_vec_init_##isa(&k.vec);)     \
        TERN_FOR_MODELS(tern_delta_init_##isa(&k.delta);) \
        tern_attn_init_##isa(&k.attn);                    \
        tern_kvq_init_##isa(&k.kvq);                      \
    } while (0)
    TERN_INIT(ref);
    TERN_FOR_MODELS(tern_prompt8_init(&k.prompt8);)
#ifdef TERN_HAVE_AVX2
    if (k.mask & TERN_CPU_AVX2) {
        TERN_INIT(avx2);
        TERN_FOR_MODELS(tern_prompt_init_avx2(&k.prompt);)
        TERN_FOR_MODELS(tern_prompt8_init_avx2(&k.prompt8);)
        TERN_FOR_MODELS(tern_attn16_init_avx2(&k.attn16);)
    }
#endif
#ifdef TERN_HAVE_AVXVNNI
    if (k.mask & TERN_CPU_AVXVNNI) {
        TERN_FOR_MODELS(tern_gemm_init_avxvnni(&k.gemm);)
        TERN_FOR_MODELS(tern_prompt_init_avxvnni(&k.prompt);)
        TERN_FOR_MODELS(tern_prompt8_init_avxvnni(&k.prompt8);)
        TERN_FOR_MODELS(tern_attn16_init_avxvnni(&k.attn16);)
        tern_kvq_init_avxvnni(&k.kvq);
    }
#endif
#ifdef TERN_HAVE_AVX512
    if (k.mask & TERN_CPU_AVX512) {
        TERN_INIT(avx512);
        TERN_FOR_MODELS(tern_prompt_init_avx512(&k.prompt);)
        TERN_FOR_MODELS(tern_prompt8_init_avx512(&k.prompt8);)
        TERN_FOR_MODELS(tern_attn16_init_avx512(&k.attn16);)
    }
#endif
#ifdef TERN_HAVE_NEON
    if (k.mask & TERN_CPU_NEON)
        TERN_INIT(neon);
#endif
#undef TERN_INIT
#ifdef TERN_HAVE_AVX512BF16
    TERN_FOR_MODELS(if (k.mask & TERN_CPU_AVX512BF16) tern_bf16_init_avx512bf16(&k.bf16);)
#endif
#ifdef TERN_HAVE_AMX
    TERN_FOR_MODELS(if (k.mask & TERN_CPU_AMX) {
        tern_prompt_init_amx(&k.prompt);
        tern_bf16_init_amx(&k.bf16);
    })
#endif
    TERN_FOR_MODELS(assert_filled(&k.gemm, sizeof k.gemm);)
    TERN_FOR_MODELS(assert_filled(&k.vec, sizeof k.vec);)
    TERN_FOR_MODELS(assert_filled(&k.delta, sizeof k.delta);)
    assert_filled(&k.attn, sizeof k.attn);
    assert_filled(&k.kvq, sizeof k.kvq);
    tern_k = k;
}
