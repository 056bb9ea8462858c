/* The same source at this level (avx2/dot.h). */
#include "kernel/avx2/kvq_score.c"
