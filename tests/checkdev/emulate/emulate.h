/* tests/checkdev/emulate/emulate.h - what kernels of src/dev/cuda need to run on a processor: a fiber for each thread
 * of a block, which changes place where threads of a warp or a block meet.
 *
 * Included before each translated file.  Products on tensor cores are summed in one order of their own, so results are
 * a card's within rounding; integers are equal. */
#ifndef TERN_TEST_EMULATE_H
#define TERN_TEST_EMULATE_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>

#define __CUDACC__ /* headers for both sides show what kernels see */
#define __device__
#define __host__
#define __global__
#define __noinline__    __attribute__((noinline))
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __shared__   static

using std::isinf;
using std::isnan;

struct emulate_index {
    unsigned x, y, z;
};

/* ---- fibers (emulate.cpp) ---- */

extern uint8_t *emulate_shared; /* dynamic shared memory of the block in hand */
extern emulate_index emulate_block, emulate_grid, emulate_threads, emulate_thread;
#define blockIdx  emulate_block
#define gridDim   emulate_grid
#define blockDim  emulate_threads
#define threadIdx emulate_thread

/* All threads of the warp that are left arrive with a piece of their own; then `work` sees the pieces (NULL: a thread
 * that has ended), and all go on.  Threads that arrive at different places end the program. */
void emulate_meet(const char *what, void *piece, void (*work)(void *pieces[32]));
void emulate_meet_block(void);
/* The same for so many of its threads, at barrier `id`; some only arrive. */
void emulate_meet_some(int id, int threads, bool waits);
/* A thread looked for something: where it is not there, others go on. */
void emulate_try(bool there);
/* A thread waits for another block: others go on. */
void emulate_pass(void);
/* A thread waits for another card: others go on.  The time, in ns. */
uint64_t emulate_elsewhere(void);
#define __trap abort

typedef void emulate_kernel(const void *args);
void emulate_run(emulate_kernel *kernel, const void *args, const unsigned grid[3], unsigned threads);

#define EMULATE_KERNEL(name, args)                                                           \
    static void emulate_body_##name(const args &a);                                          \
    extern "C" __attribute__((visibility("default"))) const size_t tern_cuda_args_##name;    \
    const size_t tern_cuda_args_##name = sizeof(args);                                       \
    extern "C" __attribute__((visibility("default"))) void tern_cuda_k_##name(const void *p) \
    {                                                                                        \
        emulate_body_##name(*static_cast<const args *>(p));                                  \
    }                                                                                        \
    static void emulate_body_##name(const args &a)

/* ---- vectors, numbers ---- */

struct float2 {
    float x, y;
};
struct __attribute__((aligned(16))) float4 {
    float x, y, z, w;
};
struct int2 {
    int x, y;
};
struct __attribute__((aligned(16))) int4 {
    int x, y, z, w;
};
struct uint2 {
    uint32_t x, y;
};
struct __attribute__((aligned(16))) uint4 {
    uint32_t x, y, z, w;
};
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline int2 make_int2(int x, int y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline uint2 make_uint2(uint32_t x, uint32_t y)
{
    return {x, y};
}
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return {x, y, z, w};
}
template <class A, class B> static inline typename std::common_type<A, B>::type min(A a, B b)
{
    return b < a ? b : a;
}
template <class A, class B> static inline typename std::common_type<A, B>::type max(A a, B b)
{
    return a < b ? b : a;
}

template <class TO, class FROM> static inline TO emulate_bits(FROM x)
{
    TO y;
    static_assert(sizeof y == sizeof x, "");
    memcpy(&y, &x, sizeof y);
    return y;
}
#define __float_as_uint(x)      emulate_bits<uint32_t>((float)(x))
#define __uint_as_float(x)      emulate_bits<float>((uint32_t)(x))
#define __clz(x)                __builtin_clz((uint32_t)(x))
#define __popc(x)               __builtin_popcount((uint32_t)(x))
#define __double_as_longlong(x) emulate_bits<int64_t>((double)(x))
#define __fmul_rn(a, b)         ((float)(a) * (float)(b))
#define __fadd_rn(a, b)         ((float)(a) + (float)(b))
#define __fsub_rn(a, b)         ((float)(a) - (float)(b))
#define __fdiv_rn(a, b)         ((float)(a) / (float)(b))
#define __fdividef(a, b)        ((float)(a) / (float)(b))
#define __fsqrt_rn(a)           sqrtf(a)
#define __fmaf_rn(a, b, c)      fmaf(a, b, c)
#define __dmul_rn(a, b)         ((double)(a) * (double)(b))
#define __dadd_rn(a, b)         ((double)(a) + (double)(b))
#define __dsub_rn(a, b)         ((double)(a) - (double)(b))

static inline int __float2int_rn(float x)
{
    return std::isnan(x) ? 0 : x >= 0x1p31f ? INT32_MAX : x < -0x1p31f ? INT32_MIN : (int)nearbyintf(x);
}

template <class T> static inline T __ldg(const T *p)
{
    return *p;
}

static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t sel)
{
    const uint64_t all = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t s = sel >> 4 * i & 15, byte = (uint32_t)(all >> 8 * (s & 7)) & 255;
        out |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return out;
}

static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 4; i++)
        c += (int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
    return c;
}

static inline uint32_t __vadd4(uint32_t a, uint32_t b)
{
    uint32_t out = 0;
    for (int i = 0; i < 4; i++)
        out |= ((a >> 8 * i) + (b >> 8 * i) & 255u) << 8 * i;
    return out;
}

/* ---- 16-bit floats ---- */

struct __half {
    uint16_t u;
};
struct __half2 {
    __half x, y;
};
static inline __half __ushort_as_half(uint16_t u)
{
    return {u};
}
static inline uint16_t __half_as_ushort(__half h)
{
    return h.u;
}
static inline float __half2float(__half h)
{
    return _cvtsh_ss(h.u);
}
static inline __half __float2half_rn(float x)
{
    return {(uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)};
}
static inline float2 __half22float2(__half2 h)
{
    return {__half2float(h.x), __half2float(h.y)};
}
static inline __half2 __floats2half2_rn(float x, float y)
{
    return {__float2half_rn(x), __float2half_rn(y)};
}
static inline __half2 __halves2half2(__half x, __half y)
{
    return {x, y};
}
static inline __half2 __half2half2(__half x)
{
    return {x, x};
}
static inline __half __low2half(__half2 x)
{
    return x.x;
}
static inline __half __high2half(__half2 x)
{
    return x.y;
}
static inline __half2 __hmul2_rn(__half2 a, __half2 b)
{
    return __floats2half2_rn(__half2float(a.x) * __half2float(b.x), __half2float(a.y) * __half2float(b.y));
}
static inline __half2 __hsub2(__half2 a, __half2 b)
{
    return __floats2half2_rn(__half2float(a.x) - __half2float(b.x), __half2float(a.y) - __half2float(b.y));
}

/* ---- warps ---- */

struct emulate_word {
    uint64_t value, out;
    int from;
};

static inline void emulate_exchange(void *pieces[32])
{
    for (int i = 0; i < 32; i++) {
        emulate_word *w = static_cast<emulate_word *>(pieces[i]);
        const emulate_word *from = w && w->from >= 0 && w->from < 32 ? static_cast<emulate_word *>(pieces[w->from]) : w;
        if (w)
            w->out = (from ? from : w)->value;
    }
}

template <class T> static inline T emulate_shuffle(T x, int from)
{
    emulate_word w = {0, 0, from};
    memcpy(&w.value, &x, sizeof x);
    emulate_meet("shuffle", &w, emulate_exchange);
    memcpy(&x, &w.out, sizeof x);
    return x;
}
/* Lanes of a group of `width` exchange among themselves. */
template <class T> static inline T __shfl_sync(unsigned, T x, int lane, int width = 32)
{
    const int own = (int)(emulate_thread.x % 32);
    return emulate_shuffle(x, (own & -width) | (lane & (width - 1)));
}
template <class T> static inline T __shfl_xor_sync(unsigned, T x, int bit, int = 32)
{
    return emulate_shuffle(x, (int)(emulate_thread.x % 32) ^ bit);
}
template <class T> static inline T __shfl_down_sync(unsigned, T x, int n, int width = 32)
{
    const int own = (int)(emulate_thread.x % 32);
    return emulate_shuffle(x, own % width + n < width ? own + n : own);
}

/* The lanes that bring the same, a bit each. */
static inline uint32_t __match_any_sync(unsigned, int x)
{
    emulate_word w = {(uint64_t)(uint32_t)x, 0, 0};
    emulate_meet("match", &w, [](void *pieces[32]) {
        for (int i = 0; i < 32; i++)
            for (int j = 0; pieces[i] && j < 32; j++) {
                emulate_word *own = static_cast<emulate_word *>(pieces[i]);
                const emulate_word *other = static_cast<emulate_word *>(pieces[j]);
                own->out |= other && other->value == own->value ? (uint64_t)1 << j : 0;
            }
    });
    return (uint32_t)w.out;
}

/* What all lanes bring, put together two at a time; each gets it. */
template <class OP> static inline uint64_t emulate_together(const char *what, uint64_t x)
{
    emulate_word w = {x, 0, 0};
    emulate_meet(what, &w, [](void *pieces[32]) {
        const emulate_word *first = NULL;
        uint64_t all = 0;
        for (int i = 0; i < 32; i++)
            if (const emulate_word *p = static_cast<emulate_word *>(pieces[i])) {
                all = first ? OP()(all, p->value) : p->value;
                first = p;
            }
        for (int i = 0; i < 32; i++)
            if (pieces[i])
                static_cast<emulate_word *>(pieces[i])->out = all;
    });
    return w.out;
}
struct emulate_or {
    uint64_t operator()(uint64_t a, uint64_t b) const
    {
        return a | b;
    }
};
struct emulate_least {
    uint64_t operator()(uint64_t a, uint64_t b) const
    {
        return (uint64_t)std::min((int64_t)a, (int64_t)b);
    }
};
struct emulate_most {
    uint64_t operator()(uint64_t a, uint64_t b) const
    {
        return std::max(a, b);
    }
};
struct emulate_sum {
    uint64_t operator()(uint64_t a, uint64_t b) const
    {
        return a + b;
    }
};
static inline bool __any_sync(unsigned, bool x)
{
    return emulate_together<emulate_or>("any", x);
}
template <class T> static inline T __reduce_min_sync(unsigned, T x)
{
    return (T)emulate_together<emulate_least>("least", (uint64_t)(int64_t)x);
}
static inline uint32_t __reduce_max_sync(unsigned, uint32_t x)
{
    return (uint32_t)emulate_together<emulate_most>("most", x);
}
static inline int __reduce_add_sync(unsigned, int x)
{
    return (int)emulate_together<emulate_sum>("sum", (uint64_t)(int64_t)x);
}

static inline void emulate_nothing(void *[32])
{
}
static inline void __syncwarp(unsigned = ~0u)
{
    char none;
    emulate_meet("warp", &none, emulate_nothing);
}
static inline void __syncthreads()
{
    emulate_meet_block();
}
template <class T> static inline T atomicAdd(T *p, T x)
{
    const T old = *p;
    *p += x;
    return old;
}

/* ---- assembly ---- */

static inline uint64_t __cvta_generic_to_shared(const void *p)
{
    return (uint64_t)(static_cast<const uint8_t *>(p) - emulate_shared);
}

struct emulate_product {
    int kind; /* 0: halves; 8: floats of 11 bits; else inputs of integers */
    bool a_signed, b_signed;
    void *c[4];
    uint32_t a[4], b[2];
};

/* Element i (of `bytes`) of a register. */
static inline int emulate_byte(uint32_t r, int i, bool is_signed)
{
    const uint32_t x = r >> 8 * i & 255;
    return is_signed ? (int8_t)x : (int)x;
}
static inline float emulate_half(uint32_t r, int i)
{
    return _cvtsh_ss((uint16_t)(r >> 16 * i));
}

/* Element i of a register of a product of that kind. */
template <class T> static inline T emulate_element(int kind, uint32_t r, int i, bool is_signed)
{
    if (kind == 8) {
        float x;
        r &= 0xFFFFE000u;
        memcpy(&x, &r, 4);
        return (T)x;
    }
    return kind ? (T)emulate_byte(r, i, is_signed) : (T)emulate_half(r, i);
}

/* All elements of a product of halves, those of a lane together: most of what attention does here is this. */
static inline void emulate_halves(emulate_product *const lane[32], float a[16][16], float b[16][8])
{
    for (int l = 0; l < 32; l++) {
        const int g = l / 4, k = l % 4 * 2;
        float x[8], y[4];
        _mm256_storeu_ps(x, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(lane[l]->a))));
        _mm_storeu_ps(y, _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(lane[l]->b))));
        for (int i = 0; i < 8; i++)
            a[i / 4 * 8 + k + i % 2][i / 2 % 2 * 8 + g] = x[i];
        for (int i = 0; i < 4; i++)
            b[i / 2 * 8 + k + i % 2][g] = y[i];
    }
}

/* m16n8: lane 4g + t has rows g and g + 8 and columns 2t and 2t + 1 of what comes out. */
template <class T, int K, int REGISTER> static inline void emulate_matrix(emulate_product *const lane[32])
{
    T a[K][16], b[K][8], c[16][8];
    if constexpr (std::is_same<T, float>::value && K == 16)
        emulate_halves(lane, a, b);
    else
        for (int k = 0; k < K; k++) {
            const int t = k % (4 * REGISTER) / REGISTER, half = k / (4 * REGISTER), i = k % REGISTER;
            for (int row = 0; row < 16; row++) {
                const emulate_product *p = lane[row % 8 * 4 + t];
                const uint32_t r = p->a[half * 2 + row / 8];
                a[k][row] = emulate_element<T>(p->kind, r, i, p->a_signed);
            }
            for (int col = 0; col < 8; col++) {
                const emulate_product *p = lane[col * 4 + t];
                b[k][col] = emulate_element<T>(p->kind, p->b[half], i, p->b_signed);
            }
        }
    for (int row = 0; row < 16; row++)
        for (int col = 0; col < 8; col++)
            c[row][col] = *static_cast<T *>(lane[row % 8 * 4 + col / 2]->c[row / 8 * 2 + col % 2]);
    for (int k = 0; k < K; k++)
        for (int row = 0; row < 16; row++)
            for (int col = 0; col < 8; col++)
                c[row][col] += a[k][row] * b[k][col];
    for (int row = 0; row < 16; row++)
        for (int col = 0; col < 8; col++)
            *static_cast<T *>(lane[row % 8 * 4 + col / 2]->c[row / 8 * 2 + col % 2]) = c[row][col];
}

static inline void emulate_multiply(void *pieces[32])
{
    emulate_product *const *lane = reinterpret_cast<emulate_product *const *>(pieces);
    if (lane[0]->kind == 32)
        emulate_matrix<int, 32, 4>(lane);
    else if (lane[0]->kind == 8)
        emulate_matrix<float, 8, 1>(lane);
    else if (lane[0]->kind)
        emulate_matrix<int, 16, 4>(lane);
    else
        emulate_matrix<float, 16, 2>(lane);
}

template <class T>
static inline void emulate_mma(const char *text, T &c0, T &c1, T &c2, T &c3, uint32_t a0, uint32_t a1, uint32_t a2,
                               uint32_t a3, uint32_t b0, uint32_t b1)
{
    const bool floats = sizeof(T) == 4 && std::is_same<T, float>::value;
    emulate_product p = {!floats                ? 32
                         : strstr(text, "tf32") ? 8
                                                : 0,
                         strstr(text, ".s32.s8") != NULL,
                         strstr(text, "8.s8.s32") != NULL,
                         {&c0, &c1, &c2, &c3},
                         {a0, a1, a2, a3},
                         {b0, b1}};
    emulate_meet(text, &p, emulate_multiply);
}
/* What is added to stands apart. */
static inline void emulate_mma(const char *text, int &d0, int &d1, int &d2, int &d3, uint32_t a0, uint32_t a1,
                               uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, int c0, int c1, int c2, int c3)
{
    d0 = c0;
    d1 = c1;
    d2 = c2;
    d3 = c3;
    emulate_mma(text, d0, d1, d2, d3, a0, a1, a2, a3, b0, b1);
}
static inline void emulate_mma(const char *text, int &c0, int &c1, int &c2, int &c3, uint32_t a0, uint32_t a1,
                               uint32_t b0)
{
    emulate_product p = {16, true, true, {&c0, &c1, &c2, &c3}, {a0, a1, 0, 0}, {b0, 0}};
    emulate_meet(text, &p, emulate_multiply);
}

struct emulate_matrices {
    uint32_t at;
    uint32_t *r[4];
    bool turned;
};
static inline void emulate_load(void *pieces[32])
{
    for (int i = 0; i < 32; i++) {
        emulate_matrices *m = static_cast<emulate_matrices *>(pieces[i]);
        for (int j = 0; j < 4; j++) {
            uint16_t two[2];
            for (int h = 0; h < 2; h++) { /* row of matrix j: the address of lane 8 j + row */
                const int row = m->turned ? i % 4 * 2 + h : i / 4, col = m->turned ? i / 4 : i % 4 * 2 + h;
                const uint32_t at = static_cast<emulate_matrices *>(pieces[8 * j + row])->at;
                memcpy(&two[h], emulate_shared + at + 2 * col, 2);
            }
            *m->r[j] = (uint32_t)two[0] | (uint32_t)two[1] << 16;
        }
    }
}
static inline void emulate_ldmatrix(const char *text, uint32_t &r0, uint32_t &r1, uint32_t &r2, uint32_t &r3,
                                    uint32_t at)
{
    emulate_matrices m = {at, {&r0, &r1, &r2, &r3}, strstr(text, ".trans") != NULL};
    emulate_meet(text, &m, emulate_load);
}

/* A matrix of 8 by 8 halves turned: row i / 4, columns 2 (i % 4) and the next are lane i's. */
static inline void emulate_turn(void *pieces[32])
{
    uint16_t x[8][8];
    for (int i = 0; i < 32; i++)
        memcpy(&x[i / 4][i % 4 * 2], *static_cast<uint32_t **>(pieces[i]), 4);
    for (int i = 0; i < 32; i++)
        **static_cast<uint32_t **>(pieces[i]) = (uint32_t)x[i % 4 * 2][i / 4] | (uint32_t)x[i % 4 * 2 + 1][i / 4] << 16;
}
static inline void emulate_movmatrix(const char *text, uint32_t &to, uint32_t from)
{
    uint32_t x = from, *p = &x;
    emulate_meet(text, &p, emulate_turn);
    to = x;
}

static inline void emulate_words(void *to, uint32_t at, uint32_t bytes)
{
    if (at % bytes)
        abort();
    memcpy(to, emulate_shared + at, bytes);
}
static inline void emulate_ld(const char *, uint32_t &r, uint32_t at)
{
    emulate_words(&r, at, 4);
}
static inline void emulate_ld(const char *, uint32_t &r0, uint32_t &r1, uint32_t at)
{
    uint32_t r[2];
    emulate_words(r, at, sizeof r);
    r0 = r[0];
    r1 = r[1];
}
static inline void emulate_ld(const char *, uint32_t &r0, uint32_t &r1, uint32_t &r2, uint32_t &r3, uint32_t at)
{
    uint32_t r[4];
    emulate_words(r, at, sizeof r);
    r0 = r[0];
    r1 = r[1];
    r2 = r[2];
    r3 = r[3];
}

/* What other cards write, and read: each eight bytes in one piece. */
static inline void emulate_ld(const char *text, uint64_t &x, const uint64_t *from)
{
    x = __atomic_load_n(from, __ATOMIC_ACQUIRE);
    if (strstr(text, ".gpu")) /* another block's, which has to have its turn */
        emulate_pass();
}
static inline void emulate_ld(const char *, uint64_t &x, uint64_t &y, const uint64_t *from)
{
    x = __atomic_load_n(from, __ATOMIC_ACQUIRE);
    y = __atomic_load_n(from + 1, __ATOMIC_ACQUIRE);
}
static inline void emulate_ld(const char *, float &x, float &y, float &z, float &w, const float *from)
{
    x = from[0];
    y = from[1];
    z = from[2];
    w = from[3];
}
static inline void emulate_st(const char *, uint32_t at, int x)
{
    memcpy(emulate_shared + at, &x, sizeof x);
}
static inline void emulate_atom(const char *, uint64_t &before, uint64_t *at)
{
    before = __atomic_fetch_add(at, 1, __ATOMIC_ACQ_REL);
}
static inline void emulate_st(const char *, uint64_t *to, uint64_t x)
{
    __atomic_store_n(to, x, __ATOMIC_RELEASE);
}
static inline void emulate_st(const char *, uint64_t *to, uint64_t x, uint64_t y)
{
    __atomic_store_n(to, x, __ATOMIC_RELEASE);
    __atomic_store_n(to + 1, y, __ATOMIC_RELEASE);
}
/* The time, in ns: who asks for it waits for another card. */
static inline void emulate_mov(const char *, uint64_t &ns)
{
    ns = emulate_elsewhere();
}
static inline void __threadfence_system(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void emulate_prmt(const char *, uint32_t &r, uint32_t a, uint32_t b, uint32_t sel)
{
    r = __byte_perm(a, b, sel);
}
static inline void emulate_prmt(const char *text, uint32_t &r, uint32_t a, uint32_t b)
{
    r = __byte_perm(a, b, (uint32_t)strtoul(strstr(text, "0x"), NULL, 16));
}
static inline void emulate_mov(const char *, uint16_t &lo, uint16_t &hi, uint32_t both)
{
    lo = (uint16_t)both;
    hi = (uint16_t)(both >> 16);
}
/* Two eight-bit floats as 16-bit ones. */
static inline void emulate_cvt(const char *, uint32_t &two, uint16_t codes)
{
    two = 0;
    for (int i = 0; i < 2; i++) {
        const uint32_t code = codes >> 8 * i & 255;
        const float x = emulate_bits<float>((code & 0x80u) << 24 | (code & 0x7Fu) << 20) * 0x1p120f;
        two |= (uint32_t)__float2half_rn((code & 0x7F) == 0x7F ? NAN : x).u << 16 * i;
    }
}
static inline void emulate_ex2(const char *, float &y, float x)
{
    y = exp2f(x);
}
static inline void emulate_lg2(const char *, float &y, float x)
{
    y = log2f(x);
}
static inline void emulate_mov(const char *, int &y, int x)
{
    y = x;
}

/* Copies happen at once: what is read too early is not found here. */
static inline void emulate_cp(const char *text, uint32_t to, const void *from)
{
    const unsigned bytes = strstr(text, "], 8;") ? 8 : 16;
    if (to % bytes || (uintptr_t)from % bytes)
        abort();
    memcpy(emulate_shared + to, from, bytes);
}
static inline void emulate_cp(const char *text, uint32_t to, uint64_t from)
{
    emulate_cp(text, to, reinterpret_cast<const void *>(from));
}
static inline void emulate_cp(const char *text, uint32_t to, const void *from, uint64_t policy)
{
    (void)policy;
    emulate_cp(text, to, from);
}
static inline void emulate_cp(const char *)
{
}
static inline void emulate_createpolicy(const char *, uint64_t &policy)
{
    policy = 0;
}
static inline void emulate_fence(const char *)
{
}

/* With zeros behind the first `bytes`. */
static inline void emulate_cp(const char *text, uint32_t to, const uint8_t *from, uint32_t bytes)
{
    uint8_t x[16] __attribute__((aligned(16))) = {};
    memcpy(x, from, bytes);
    emulate_cp(text, to, x);
}

/* Products out of shared memory: m64nNk16, each warp its 16 rows; matrices in the pattern of 128 bytes. */
struct emulate_wide {
    float *c[128];
    int columns, n_a; /* n_a 4: the rows lie in registers */
    bool adds, turned;
    uint32_t a[4];
    uint64_t matrix[2]; /* x where it is in shared memory, then w */
    int n_matrices;
};
static inline float emulate_swizzled(uint32_t at)
{
    uint16_t h;
    at ^= (at >> 7 & 7) << 4;
    memcpy(&h, emulate_shared + at, 2);
    return _cvtsh_ss(h);
}
/* Number k of a row, or, turned, of a column whose 64 neighbours lie beside it. */
static inline float emulate_number(uint64_t matrix, int row, int k, bool turned)
{
    if (matrix >> 62 != 1 || (matrix >> 32 & 0x3FFF) != 64)
        abort();
    const uint32_t at = (uint32_t)(matrix & 0x3FFF) * 16, next = (uint32_t)(matrix >> 16 & 0x3FFF) * 16;
    return turned ? emulate_swizzled(at + (uint32_t)(row / 64) * next + (uint32_t)k * 128 + (uint32_t)(row % 64) * 2)
                  : emulate_swizzled(at + (uint32_t)row * 128 + (uint32_t)k * 2);
}
static inline void emulate_multiply_wide(void *pieces[32])
{
    emulate_wide *const *lane = reinterpret_cast<emulate_wide *const *>(pieces);
    const emulate_wide *one = lane[0];
    static float w[256][16], x[16][16];
    for (int col = 0; col < one->columns; col++)
        for (int k = 0; k < 16; k++)
            w[col][k] = emulate_number(one->matrix[one->n_matrices - 1], col, k, one->turned);
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            x[row][k] = one->n_a
                            ? emulate_half(lane[row % 8 * 4 + k % 8 / 2]->a[k / 8 * 2 + row / 8], k % 2)
                            : emulate_number(one->matrix[0], (int)(emulate_thread.x / 32 % 4) * 16 + row, k, false);
    for (int row = 0; row < 16; row++)
        for (int col = 0; col < one->columns; col++) {
            float *c = lane[row % 8 * 4 + col % 8 / 2]->c[col / 8 * 4 + row / 8 * 2 + col % 2];
            *c = one->adds ? *c : 0;
            for (int k = 0; k < 16; k++)
                *c += x[row][k] * w[col][k];
        }
}
template <class... F> static inline void emulate_wgmma(const char *text, F &&...all)
{
    emulate_wide p = {};
    int n = 0;
    auto take = [&](auto &&x) {
        typedef std::decay_t<decltype(x)> kind;
        if constexpr (std::is_same<kind, float>::value)
            p.c[n++] = &x;
        else if constexpr (sizeof(kind) == 4)
            p.a[p.n_a++] = x;
        else
            p.matrix[p.n_matrices++] = x;
    };
    (take(all), ...);
    if (!n)
        return;
    int adds = 0, sign_a, sign_b, last = 0, turned = 0;
    const int found = sscanf(strrchr(text, '%'), "%%%*d, %d, %d, %d, %d, %d", &adds, &sign_a, &sign_b, &last, &turned);
    p.columns = 2 * n;
    p.adds = adds;
    p.turned = found == 4 ? last : turned;
    emulate_meet(text, &p, emulate_multiply_wide);
}

/* Barriers count those who arrive; who waits gives way. */
struct emulate_barrier {
    uint16_t all, missing;
    uint32_t phase;
};
static inline emulate_barrier *emulate_barrier_at(uint32_t at)
{
    if (at % 8)
        abort();
    return reinterpret_cast<emulate_barrier *>(emulate_shared + at);
}
static inline void emulate_mbarrier(const char *, uint32_t at)
{
    emulate_barrier *b = emulate_barrier_at(at);
    if (--b->missing == 0) {
        b->missing = b->all;
        b->phase ^= 1;
    }
}
/* To be opened for so many threads; or bytes are expected, whose copies happen before anybody looks. */
static inline void emulate_mbarrier(const char *text, uint32_t at, uint32_t n)
{
    if (strstr(text, "expect_tx"))
        emulate_mbarrier(text, at);
    else
        *emulate_barrier_at(at) = {(uint16_t)n, (uint16_t)n, 0};
}
static inline void emulate_cp(const char *, uint32_t to, const uint8_t *from, uint32_t bytes, uint32_t, uint64_t)
{
    if (to % 16 || bytes % 16 || (uintptr_t)from % 16)
        abort();
    memcpy(emulate_shared + to, from, bytes);
}
static inline void emulate_bar(const char *, int threads)
{
    emulate_meet_some(1, threads, true);
}
static inline void emulate_bar(const char *text, int id, int threads)
{
    emulate_meet_some(id, threads, strstr(text, "sync") != NULL);
}
static inline void emulate_reg(const char *, uint32_t &there, uint32_t at, uint32_t phase)
{
    there = emulate_barrier_at(at)->phase != phase;
    emulate_try(there);
}
static inline void emulate_setmaxnreg(const char *)
{
}
static inline void emulate_hold(const char *, float &)
{
}
static inline void emulate_cp(const char *, int)
{
}

#endif
