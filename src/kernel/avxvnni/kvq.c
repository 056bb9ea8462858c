#include "kernel/avx2/kvq_floats.h"

void tern_kvq_init_avxvnni(struct tern_kvq_kernels *k)
{
    k->score = tern_kvq_score_avxvnni;
    k->accum = tern_kvq_accum_avxvnni;
}
