/* kernel/avx2/dot.h - how integer products are added up: the one thing in which AVX-VNNI is more than AVX2.
 *
 * Files that include this are compiled twice: for avx2/, and, by a file of the same name there, for avxvnni/, whose
 * flags say which it is.  All sums are exact, so both levels have the same bits. */
#ifndef TERN_AVX2_DOT_H
#define TERN_AVX2_DOT_H

#include <immintrin.h>

#ifdef __AVXVNNI__
#define TERN_AT_LEVEL(name) name##_avxvnni
#else
#define TERN_AT_LEVEL(name) name##_avx2
#endif

#define DOT_INLINE static inline __attribute__((always_inline))

/* sum += w * x, two 16-bit products to a lane.  As instructions, because gcc 12 moves sums of intrinsics between
 * registers, has too few of them for that, and writes half of the sums to the stack in every round. */
DOT_INLINE __m256i dot_pairs(__m256i sum, __m256i w, __m256i x)
{
#ifdef __AVXVNNI__
    __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(w), "x"(x));
#else
    __m256i t;
    __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(t) : "x"(w), "x"(x));
#endif
    return sum;
}

#ifdef __AVXVNNI__
/* sum += u * s, four products of unsigned and signed bytes to a lane. */
DOT_INLINE __m256i dot_quads(__m256i sum, __m256i u, __m256i s)
{
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(u), "x"(s));
    return sum;
}
#endif

#endif
