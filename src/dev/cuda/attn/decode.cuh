/* dev/cuda/attn/decode.cuh - sets of codes to f16: 32 codes of one token (keys) or one dim (values), a word at a time.
 *
 * An octet is a word with a symbol in each nibble, 3 bits of 4 or all of them.  A look-up takes 4 symbols to 4 entries,
 * offset by 128; those become f16 exactly, because 1024 + b has b in its lowest bits. */
#ifndef TERN_DEV_CUDA_ATTN_DECODE_CUH
#define TERN_DEV_CUDA_ATTN_DECODE_CUH

#include "dev/cuda/attn/cache.cuh"

struct tables {
    uint32_t a[4], b[4], c[2]; /* a: offset by 128 */
};

/* Four entries, from one that 4 divides, each and `offset`. */
__device__ static inline uint32_t four_bytes(const int8_t *x, int offset)
{
    return __vadd4(*reinterpret_cast<const uint32_t *>(x), (uint32_t)(offset & 255) * 0x01010101u);
}

__device__ static inline void load_tables(tables &t, const tern_cuda_side &s)
{
    const int n = s.trellis ? (s.bits == 3 ? 8 : 16) : s.bits < 4 ? 1 << s.bits : 16;
#pragma unroll
    for (int i = 0; i < 4; i++) { /* shorter tables repeat */
        t.a[i] = four_bytes(s.entry + (4 * i & (n - 1)), 128);
        t.b[i] = four_bytes(s.b + (4 * i & (s.bits == 3 ? 7 : 15)), 0);
    }
    t.c[0] = four_bytes(s.c, 0);
    t.c[1] = four_bytes(s.c + 4, 0);
}

/* 4 symbols below 8, in the low half of sel. */
__device__ static inline uint32_t look8(uint32_t t0, uint32_t t1, uint32_t sel)
{
    return __byte_perm(t0, t1, sel & 0x7777u);
}

/* 4 symbols below 16. */
__device__ static inline uint32_t look16(const uint32_t t[4], uint32_t sel)
{
    uint32_t mask; /* 255 where a symbol is 8 or more */
    asm("prmt.b32 %0, %1, %2, 0x9D8C;" : "=r"(mask) : "r"(sel), "r"(sel << 4));
    const uint32_t low = __byte_perm(t[0], t[1], sel & 0x7777u), high = __byte_perm(t[2], t[3], sel & 0x7777u);
    return (low & ~mask) | (high & mask);
}

/* Entries offset by 128 to f16. */
__device__ static inline void to_halves(uint32_t out[2], uint32_t x)
{
    const __half2 offset = __half2half2(__ushort_as_half(0x6480));
    uint32_t y[2] = {__byte_perm(x, 0x64646464u, 0x4140), __byte_perm(x, 0x64646464u, 0x4342)};
    for (int i = 0; i < 2; i++) {
        const __half2 h = __hsub2(*reinterpret_cast<__half2 *>(&y[i]), offset);
        out[i] = *reinterpret_cast<const uint32_t *>(&h);
    }
}

/* The four octets of a 3-bit set; those of 4 bits are its words. */
__device__ static inline void octets3(uint32_t o[4], const uint32_t w[3])
{
    for (int i = 0; i < 3; i++)
        o[i] = w[i] & 0x77777777u;
    o[3] = (w[0] >> 3 & 0x11111111u) | (w[1] >> 2 & 0x22222222u) | (w[2] >> 1 & 0x44444444u);
}

/* 16 pairs of a 2-bit word as entries of its even and its odd items, in order. */
__device__ static inline void zip2(uint32_t out[8], uint32_t even_lo, uint32_t odd_lo, uint32_t even_hi,
                                   uint32_t odd_hi)
{
    to_halves(out, __byte_perm(even_lo, odd_lo, 0x5140));
    to_halves(out + 2, __byte_perm(even_lo, odd_lo, 0x7362));
    to_halves(out + 4, __byte_perm(even_hi, odd_hi, 0x5140));
    to_halves(out + 6, __byte_perm(even_hi, odd_hi, 0x7362));
}

/* A set of scalar codes: words `step` apart. */
__device__ static inline void decode_scalar(uint32_t out[16], const tables &t, const uint32_t *w, int step, int bits)
{
    if (bits == 8) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            to_halves(out + 2 * i, w[i * step] ^ 0x80808080u);
    } else if (bits == 2) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t x = w[i * step], even = x & 0x33333333u, odd = x >> 2 & 0x33333333u;
            zip2(out + 8 * i, look8(t.a[0], t.a[1], even), look8(t.a[0], t.a[1], odd),
                 look8(t.a[0], t.a[1], even >> 16), look8(t.a[0], t.a[1], odd >> 16));
        }
    } else {
        uint32_t o[4], x[3];
        for (int i = 0; i < 3; i++)
            x[i] = w[i * step];
        if (bits == 3)
            octets3(o, x);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t y = bits == 3 ? o[i] : i < 3 ? x[i] : w[3 * step];
            to_halves(out + 4 * i, bits == 3 ? look8(t.a[0], t.a[1], y) : look16(t.a, y));
            to_halves(out + 4 * i + 2, bits == 3 ? look8(t.a[0], t.a[1], y >> 16) : look16(t.a, y >> 16));
        }
    }
}

/* ---- trellis codes ---- */

/* What stands before each symbol, one and two back, of 4 octets and their tables' sums. */
__device__ static inline uint32_t sum4(const tables &t, uint32_t w, uint32_t p)
{
    return __vadd4(look16(t.a, w), look16(t.b, p));
}

__device__ static inline uint32_t sum3(const tables &t, uint32_t w, uint32_t p1, uint32_t p2)
{
    return __vadd4(__vadd4(look8(t.a[0], t.a[1], w), look8(t.b[0], t.b[1], p1)), look8(t.c[0], t.c[1], p2));
}

/* w[n]: the octets (2 bits: words) of a set of keys; next: the word that follows in memory. */
__device__ static inline void decode_keys(uint32_t out[16], const tables &t, const uint32_t *w, uint32_t next, int bits)
{
    if (bits == 2) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t x = w[i], n = i ? next : w[1];
            const uint32_t odd = (x >> 2 & 0x3F3F3F3Fu) | (n & 0x03030303u) << 6;
            const uint32_t even_b = (x >> 4 & 0x0F0F0F0Fu) | (n & 0x0F0F0F0Fu) << 4;
            const uint32_t odd_b = (x >> 6 & 0x03030303u) | (n & 0x3F3F3F3Fu) << 2;
            zip2(out + 8 * i, sum4(t, x, even_b), sum4(t, odd, odd_b), sum4(t, x >> 16, even_b >> 16),
                 sum4(t, odd >> 16, odd_b >> 16));
        }
        return;
    }
    const uint32_t low = bits == 3 ? 0x07070707u : 0x0F0F0F0Fu;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t x = w[i], n = i < 3 ? w[i + 1] : next, p = (x & low) << 4 | (n >> 4 & low);
        to_halves(out + 4 * i, bits == 3 ? sum3(t, x, p, n) : sum4(t, x, p));
        to_halves(out + 4 * i + 2, bits == 3 ? sum3(t, x >> 16, p >> 16, n >> 16) : sum4(t, x >> 16, p >> 16));
    }
}

/* The same of values: w, p1, p2, p3 are the sets of a dim and of what stands before it. */
__device__ static inline void decode_values(uint32_t out[16], const tables &t, const uint32_t w[4],
                                            const uint32_t p[3][4], int bits)
{
    if (bits == 2) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t m = 0x33333333u, even = (w[i] & m) | (p[0][i] & m) << 2;
            const uint32_t odd = (w[i] >> 2 & m) | (p[0][i] & ~m), even_b = (p[1][i] & m) | (p[2][i] & m) << 2;
            const uint32_t odd_b = (p[1][i] >> 2 & m) | (p[2][i] & ~m);
            zip2(out + 8 * i, sum4(t, even, even_b), sum4(t, odd, odd_b), sum4(t, even >> 16, even_b >> 16),
                 sum4(t, odd >> 16, odd_b >> 16));
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to_halves(out + 4 * i, bits == 3 ? sum3(t, w[i], p[0][i], p[1][i]) : sum4(t, w[i], p[0][i]));
        to_halves(out + 4 * i + 2, bits == 3 ? sum3(t, w[i] >> 16, p[0][i] >> 16, p[1][i] >> 16)
                                             : sum4(t, w[i] >> 16, p[0][i] >> 16));
    }
}

/* The octets (2 bits: words) of a set whose words lie 16 apart. */
__device__ static inline void load_octets(uint32_t o[4], const uint32_t *w, int bits)
{
    uint32_t x[4];
    for (int i = 0; i < 4; i++)
        x[i] = i < bits ? w[16 * i] : 0;
    if (bits == 3) {
        octets3(o, x);
        return;
    }
    for (int i = 0; i < 4; i++)
        o[i] = x[i];
}

/* Symbols of 32 tokens that stand before lane 0 of the first group, j back. */
__device__ static inline void start_octets(uint32_t o[4], const uint16_t *head, int j, int bits)
{
    o[0] = o[1] = o[2] = o[3] = 0;
    for (int i = 0; i < 32; i++) {
        const uint32_t s = (uint32_t)start_symbol(head[i] & 15, j, bits);
        if (bits == 2)
            o[i / 16] |= s << 2 * (i % 16);
        else
            o[i / 8] |= s << 4 * (i % 8);
    }
}

/* What codes a side has: constants where a kernel knows them. */
struct codes_of {
    int dim, bits;
    bool trellis;
};

__device__ static inline codes_of codes_in(const tern_cuda_side &s)
{
    return {s.dim, s.bits, s.trellis != 0};
}

/* 32 dims from d (a multiple of 32, like dim) of token t. */
__device__ static inline void key_set(uint32_t out[16], const codes_of &s, const tables &tab, const uint8_t *data,
                                      const uint16_t *head, int t, int d)
{
    int item;
    const uint32_t *w = set_of(data, t, d, s.dim, s.bits, true, &item);
    if (!s.trellis) {
        decode_scalar(out, tab, w, 16, s.bits);
        return;
    }
    uint32_t o[4];
    load_octets(o, w, s.bits);
    const int d0 = d / 128 * 128, end = d0 + block_dims(s.dim, d0), set = 2 * 16 * s.bits;
    uint32_t next;
    if (d + 32 < end) {
        next = w[set];
    } else {
        const uint32_t start = head[d / 128 * 64 + t] & 15u;
        const uint32_t byte = s.bits == 4 ? start << 4 : s.bits == 3 ? (start & 7) << 4 | start >> 3 : start;
        next = w[-(d - d0) / 32 * set] << 8 | byte;
    }
    decode_keys(out, tab, o, s.bits == 3 ? next & 0x77777777u : next, s.bits);
}

/* 32 tokens from t (0 or 32) of dim d. */
__device__ static inline void value_set(uint32_t out[16], const codes_of &s, const tables &tab,
                                        const uint8_t *data, const uint16_t *head, int t, int d)
{
    int item;
    const uint32_t *w = set_of(data, t, d, s.dim, s.bits, false, &item);
    if (!s.trellis) {
        decode_scalar(out, tab, w, 16, s.bits);
        return;
    }
    uint32_t o[4], p[3][4];
    load_octets(o, w, s.bits);
    const int b = d / 128, groups = block_dims(s.dim, b * 128) / 16, g = d / 16 - b * 8, lane = d % 16;
#pragma unroll
    for (int i = 0; i < 3; i++) {
        const int over = g + 1 + i - groups; /* groups beyond the last: the first ones, one lane before */
        if (i >= 5 - s.bits)
            p[i][0] = p[i][1] = p[i][2] = p[i][3] = 0;
        else if (over < 0)
            load_octets(p[i], w + (1 + i) * s.bits * 16, s.bits);
        else if (lane && over < groups)
            load_octets(p[i], w + (over - g) * s.bits * 16 - 1, s.bits);
        else if (lane) /* a block of one or two groups goes round more than once */
            for (int k = 0; k < 4; k++)
                p[i][k] = 0;
        else
            start_octets(p[i], head + b * 64 + t, over, s.bits);
    }
    decode_values(out, tab, o, p, s.bits);
}

#endif
