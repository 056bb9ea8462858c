#include "kernel/avx2/gemm.h"

void tern_gemm_init_avxvnni(struct tern_gemm_kernels *k)
{
    k->narrow = tern_gemm_narrow_avxvnni;
    k->narrow16 = tern_gemm_narrow16_avxvnni;
}
