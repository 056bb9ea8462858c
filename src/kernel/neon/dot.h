/* kernel/neon/dot.h - dot products of bytes, four to a 32-bit lane, with the lane of the other factor chosen by an
 * index that is constant after unrolling. */
#ifndef TERN_NEON_DOT_H
#define TERN_NEON_DOT_H

#include <arm_neon.h>

/* acc + a * the four bytes of lane `lane` of b. */
static inline __attribute__((always_inline)) int32x4_t dot_lane(int32x4_t acc, int8x16_t a, int8x16_t b, int lane)
{
    switch (lane) {
    case 0:
        return vdotq_laneq_s32(acc, a, b, 0);
    case 1:
        return vdotq_laneq_s32(acc, a, b, 1);
    case 2:
        return vdotq_laneq_s32(acc, a, b, 2);
    default:
        return vdotq_laneq_s32(acc, a, b, 3);
    }
}

#endif
