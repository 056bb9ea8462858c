/* dev/cuda/attn/codes/codes.cuh - codes of a page as bytes for integer tensor cores, straight out of registers.
 *
 * Half a page lies in shared memory as in the cache (kernel/kvq.h), its 16-byte pieces placed so that lanes meet no bank
 * twice.  Lane (g, t) of a warp, g = lane / 4, t = lane % 4, takes
 *
 *   keys    tokens 4g .. 4g+3 of a half, and in step s of D/32 eight dims: its octet
 *   values  dims 32 r + 4g .. + 3, r < D/32, and its octet of the half's 32 tokens
 *
 * which is what an operand of m16n8k32 holds: bytes 0..3 of an octet are contracted first, bytes 4..7 sixteen places on.
 * Trellis entries are sums of two looked-up bytes, of 3 bits three, offset so that no sum leaves a byte. */
#ifndef TERN_DEV_CUDA_ATTN_CODES_CUH
#define TERN_DEV_CUDA_ATTN_CODES_CUH

#include "dev/cuda/attn/decode.cuh"

enum code_kind { CODES_2 = 2, CODES_3 = 3, CODES_4 = 4, CODES_T4 = 5, CODES_T3 = 6, CODES_T2 = 7, CODES_8 = 8 };

__host__ __device__ constexpr bool code_trellis(int c)
{
    return c >= CODES_T4 && c <= CODES_T2;
}

__host__ __device__ constexpr int code_bits(int c)
{
    return c == CODES_T4 ? 4 : c == CODES_T3 ? 3 : c == CODES_T2 ? 2 : c;
}

/* Keys and values of one kind, or of two: both in one number. */
__host__ __device__ constexpr int code_pair(int keys, int values)
{
    return keys | values << 4;
}

__host__ __device__ constexpr int keys_of(int c)
{
    return c & 15;
}

__host__ __device__ constexpr int values_of(int c)
{
    return c >> 4 ? c >> 4 : c;
}

struct code_tables {
    uint32_t a[4], b[4], c[2];
    uint32_t one; /* 1.0 in two halves */
    int offset;   /* bytes are entry + offset; 0: signed */
};

/* Codes have scales and chains of up to 128 dims each, so a head of 256 is two blocks, of D dims here and below. */
template <int D> struct code_blocks {
    static constexpr int N = D > 128 ? D / 128 : 1, DIMS = D / N;
};

/* Half a page, 32 tokens, in shared memory: headers of keys, of values, then keys and values. */
template <int D, int C> struct code_stage {
    static constexpr int BITS = code_bits(keys_of(C)), SETS = D / 32, SET = 128 * BITS; /* bytes of a set of keys, both groups */
    static constexpr int KEY_BYTES = D * 4 * BITS, VALUE_BYTES = D * 4 * code_bits(values_of(C));
    static constexpr int PAD = BITS < 4 ? 32 : 0, STEP = SET + PAD; /* behind each set of keys */
    static constexpr int KEYS = 128, VALUES = KEYS + SETS * STEP, BYTES = VALUES + VALUE_BYTES;
};

/* Where 16-byte piece i of a side lies; that of i + 32 n lies 32 n on. */
template <int C> __host__ __device__ constexpr int piece_of(int i)
{
    return C == CODES_8 ? i ^ (i >> 3 & 3) << 1 : C == CODES_4 || C == CODES_T4 ? i ^ (i >> 3 & 1) << 1 : i;
}

/* Pages of a KV head in memory, as a lane copies them. */
struct code_source {
    const uint8_t *keys;     /* the lane's first piece of the keys of block 0 */
    int32_t values, headers; /* its first piece of values, and of headers, from there */
    uint32_t bytes;          /* of a page */
};

__device__ static inline code_source source_of(const tern_cuda_blocks &pool, const tern_cuda_layer &l, int head, int lane)
{
    const uint64_t own = l.k_off + lane * 16, header = (lane < 4 ? l.k_head_off : l.v_head_off) + lane % 4 * 16;
    return {cuda_at<const uint8_t>(pool.p + l.layer_off + head * l.head_bytes + own), (int32_t)(l.v_off - l.k_off),
            (int32_t)(header - own), (uint32_t)pool.bytes};
}

/* A block of half of a page on its way to shared memory, by one warp: part of so many of the page, halves first; header: its headers'
 * place behind the page's first one. */
template <int D, int C>
__device__ static inline void fetch_codes(uint32_t to, const code_source &s, uint32_t number, int part, int header, int lane,
                                          uint64_t once)
{
    using stage = code_stage<D, C>;
    constexpr int K = stage::KEY_BYTES / 16, V = stage::VALUE_BYTES / 16;
    const uint8_t *page = s.keys + (uint64_t)number * s.bytes, *k = page + part * stage::KEY_BYTES;
    const uint8_t *v = k + s.values + part * (stage::VALUE_BYTES - stage::KEY_BYTES);
    const uint32_t key = to + piece_of<keys_of(C)>(lane) * 16, value = to + piece_of<values_of(C)>(lane) * 16;
    if (lane < 8)
        cuda_copy_16(to + lane * 16, page + s.headers + header, once);
#pragma unroll
    for (int n = 0; n < ((K > V ? K : V) + 31) / 32; n++) {
        const int i = lane + 32 * n;
        if (32 * n + 32 <= K || i < K)
            cuda_copy_16(key + stage::KEYS + i / (stage::SET / 16) * stage::PAD + n * 512, k + n * 512, once);
        if (32 * n + 32 <= V || i < V)
            cuda_copy_16(value + stage::VALUES + n * 512, v + n * 512, once);
    }
}

/* Where the lane's words lie in a stage. */
struct code_places {
    uint32_t key, next_key, last_key;       /* of the first set; what chains need beside it, and of the last set */
    uint32_t value, next_value, last_value; /* the same of values */
};

template <int C> __device__ static inline void load_code_tables(code_tables &t, const tern_cuda_side &s)
{
    t.offset = 0;
    if (C == CODES_8)
        return;
    int low_a = 0, low_b = 0, low_c = 0;
    const int n = C == CODES_T2 ? 16 : 1 << code_bits(C); /* entries of a table; shorter ones repeat */
    for (int i = 0; code_trellis(C) && i < n; i++) {
        low_a = min(low_a, (int)s.entry[i]);
        low_b = min(low_b, (int)s.b[i]);
        low_c = min(low_c, C == CODES_T3 ? (int)s.c[i] : 0);
    }
    for (int i = 0; i < 4; i++) {
        t.a[i] = four_bytes(s.entry + 4 * i % n, -low_a);
        t.b[i] = code_trellis(C) ? four_bytes(s.b + 4 * i % n, -low_b) : 0;
    }
    for (int i = 0; C == CODES_T3 && i < 2; i++)
        t.c[i] = four_bytes(s.c + 4 * i, -low_c);
    t.offset = -(low_a + low_b + low_c);
}

struct octet {
    uint32_t lo, hi;
};

__device__ static inline uint32_t byte_perm(uint32_t x, uint32_t y, uint32_t sel)
{
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(sel));
    return r;
}

/* The upper half of a word whose nibbles are below 8, in both halves: a product with 1.0, because units for shifts have
 * more to do than those for products.  Bit 11 of such a half is 0, so it is a number, and no product changes it. */
__device__ static inline uint32_t upper_half(uint32_t s, uint32_t one)
{
    const __half2 h = *reinterpret_cast<const __half2 *>(&s);
    const __half2 r = __hmul2_rn(__half2half2(__high2half(h)), *reinterpret_cast<const __half2 *>(&one));
    return *reinterpret_cast<const uint32_t *>(&r);
}

/* Eight symbols below 8, a nibble each. */
__device__ static inline octet look_8(const uint32_t t[2], uint32_t w, uint32_t one)
{
    return {byte_perm(t[0], t[1], w), byte_perm(t[0], t[1], upper_half(w, one))};
}

/* Eight symbols below 16. */
__device__ static inline octet look_16(const uint32_t t[4], uint32_t w, uint32_t one)
{
    const uint32_t s = w & 0x77777777u, up = w << 4, h = upper_half(s, one);
    const uint32_t lo = byte_perm(w, up, 0x9D8C), hi = byte_perm(w, up, 0xBFAE); /* 255 where a symbol is 8 or more */
    const uint32_t l0 = byte_perm(t[0], t[1], s), l1 = byte_perm(t[2], t[3], s);
    const uint32_t h0 = byte_perm(t[0], t[1], h), h1 = byte_perm(t[2], t[3], h);
    return {(l0 & ~lo) | (l1 & lo), (h0 & ~hi) | (h1 & hi)};
}

__device__ static inline octet sum_of(const octet &x, const octet &y)
{
    return {x.lo + y.lo, x.hi + y.hi}; /* no byte carries */
}

/* An octet of a word; of trellis codes also of the symbols that stand before its own in the chain: one back of 4 bits, one
 * and two back of 3 bits.  Of 2 bits w is 4 s_i-1 + s_i, p1 the same two back. */
template <int C> __device__ static inline octet look(const code_tables &t, uint32_t w, uint32_t p1, uint32_t p2)
{
    if (C == CODES_T4 || C == CODES_T2)
        return sum_of(look_16(t.a, w, t.one), look_16(t.b, p1, t.one));
    if (C == CODES_T3)
        return sum_of(sum_of(look_8(t.a, w, t.one), look_8(t.b, p1, t.one)), look_8(t.c, p2, t.one));
    return C == CODES_4 ? look_16(t.a, w, t.one) : look_8(t.a, w, t.one);
}

/* Octet i of a set of 3 bits (three words) or 2 bits (two): symbols in nibbles. */
template <int C> __device__ static inline uint32_t symbols(uint32_t w0, uint32_t w1, uint32_t w2, int i)
{
    if (code_bits(C) == 2)
        return (i >> 1 ? w1 : w0) >> 2 * (i & 1) & 0x33333333u;
    const uint32_t spare = (w0 >> 3 & 0x11111111u) | (w1 >> 2 & 0x22222222u) | (w2 >> 1 & 0x44444444u);
    return i == 3 ? spare : (i == 0 ? w0 : i == 1 ? w1 : w2) & 0x77777777u;
}

__device__ static inline uint32_t of4(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

__device__ static inline uint4 load_piece(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}

__device__ static inline uint2 load_pair(uint32_t at)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
    return v;
}

/* Where lane t's octet of a query's bytes in step s begins: octets lie one behind the other (columns.cuh). */
template <int D, int C> __device__ static inline int octet_at(int t, int s)
{
    return C == CODES_4 || C == CODES_T4 || C == CODES_8 ? 32 * s + 8 * t : 8 * (t * (D / 32) + s);
}

/* Of keys of kind C, from the first one's place. */
template <int D, int C> __device__ static inline void place_keys(code_places &p, int g, int t)
{
    using stage = code_stage<D, C>;
    const int own = t * stage::SETS / 4, group = g >> 2, quad = g & 3;
    if (C == CODES_8) {
        const int i = group * 32 + 8 * t + quad;
        p.key = piece_of<C>(i) * 16;
        p.next_key = piece_of<C>(i + 4) * 16;
    } else if (C == CODES_4 || C == CODES_T4) {
        const int i = group * 16 + 4 * t + quad;
        p.key = piece_of<C>(i) * 16;
        p.next_key = piece_of<C>(t < 3 ? i + 4 : i + 20) * 16;
        p.last_key = piece_of<C>(t < 3 ? i + 4 + 32 * (stage::SETS - 1) : i - 12) * 16;
    } else {
        p.last_key = group * 64 * stage::BITS + quad * 16;
        p.key = p.last_key + own * stage::STEP + (stage::BITS == 2 && D == 64 ? (t & 1) * 64 : 0);
        p.next_key = C == CODES_T2 && D == 64 && !(t & 1) ? p.last_key + own * stage::STEP + 64
                                                          : p.last_key + (own + 1) % stage::SETS * stage::STEP;
    }
}

/* The same of values. */
template <int D, int C> __device__ static inline void place_values(code_places &p, int g, int t)
{
    const int group = g >> 2, quad = g & 3;
    if (C == CODES_8) {
        const int i = group * 32 + 8 * t + quad;
        p.value = piece_of<C>(i) * 16;
        p.next_value = piece_of<C>(i + 4) * 16;
    } else if (C == CODES_4 || C == CODES_T4) {
        const int i = group * 16 + 4 * t + quad, first = 4 * t + quad;
        p.value = piece_of<C>(i) * 16;
        p.next_value = piece_of<C>(i + 16) * 16;
        p.last_value = piece_of<C>(g < 4 ? i + 16 + 32 * (D / 32 - 1) : first) * 16;
    } else {
        const int i = group * 4 * code_bits(C) + quad;
        p.value = (code_bits(C) == 2 ? i + 4 * (t >> 1) : t == 3 ? i : i + 4 * t) * 16;
        p.next_value = (i + 4) * 16;
    }
}

template <int D, int C> __device__ static inline code_places places_of(int g, int t)
{
    using stage = code_stage<D, C>;
    code_places p = {};
    place_keys<D, keys_of(C)>(p, g, t);
    place_values<D, values_of(C)>(p, g, t);
    p.key += stage::KEYS;
    p.next_key += stage::KEYS;
    p.last_key += stage::KEYS;
    p.value += stage::VALUES;
    p.next_value += stage::VALUES;
    p.last_value += stage::VALUES;
    return p;
}

/* What keys of a half need before step 0: of 2 and 3 bits all words, of chains the one that stands before the last. */
template <int D, int C> struct key_words {
    uint4 w[3], next;
};

/* at: the stage; start: start states of the lane's four tokens, of trellis codes. */
template <int D, int C>
__device__ static inline void load_keys(key_words<D, C> &k, uint32_t at, const code_places &p, int t, const uint32_t start[4])
{
    if constexpr (code_bits(C) <= 3) {
#pragma unroll
        for (int i = 0; i < (code_bits(C) == 2 && D == 64 ? 1 : code_bits(C)); i++)
            k.w[i] = load_piece(at + p.key + 64 * i);
    }
    if constexpr (C == CODES_T3 || C == CODES_T2) { /* behind the last word the first, a byte on, and the start */
        uint4 n = load_piece(at + p.next_key);
        uint32_t s[4];
#pragma unroll
        for (int r = 0; r < 4; r++)
            s[r] = C == CODES_T3 ? (start[r] & 7) << 4 | start[r] >> 3 : start[r];
        if (t == 3)
            n = make_uint4(n.x << 8 | s[0], n.y << 8 | s[1], n.z << 8 | s[2], n.w << 8 | s[3]);
        k.next = n;
    }
}

/* x: an octet of 3 bits; n: the one behind it in memory, which stands before it in the chain. */
__device__ static inline octet chain_3(const code_tables &tab, uint32_t x, uint32_t n)
{
    const uint32_t low = 0x07070707u;
    return look<CODES_T3>(tab, x, (x & low) << 4 | (n >> 4 & low), n);
}

/* Even or odd codes of a word of 2 bits; n: the word behind it in memory.  Inside a byte the high pair comes first. */
__device__ static inline octet chain_2(const code_tables &tab, uint32_t x, uint32_t n, bool odd)
{
    if (odd)
        return look<CODES_T2>(tab, (x >> 2 & 0x3F3F3F3Fu) | (n & 0x03030303u) << 6,
                              (x >> 6 & 0x03030303u) | (n & 0x3F3F3F3Fu) << 2, 0);
    return look<CODES_T2>(tab, x, (x >> 4 & 0x0F0F0F0Fu) | (n & 0x0F0F0F0Fu) << 4, 0);
}

/* Octets of the lane's four tokens in step s; start: start states of the four, of trellis codes. */
template <int D, int C>
__device__ static inline void key_octets(octet o[4], const code_tables &tab, const key_words<D, C> &k, uint32_t at,
                                         const code_places &p, int s, int t, const uint32_t start[4])
{
    if (C == CODES_8) {
        const uint4 a = load_piece(at + p.key + s * 1024), b = load_piece(at + p.next_key + s * 1024);
#pragma unroll
        for (int r = 0; r < 4; r++)
            o[r] = {of4(a, r), of4(b, r)};
    } else if (C == CODES_4 || C == CODES_T4) {
        const uint4 a = load_piece(at + p.key + s * 512);
        uint4 n = a;
        if (C == CODES_T4 && s + 1 < D / 32) { /* the word behind in memory */
            n = load_piece(at + p.next_key + s * 512);
        } else if (C == CODES_T4) { /* behind the last one the first, a byte on, and the start */
            n = load_piece(at + p.last_key);
            if (t == 3)
                n = make_uint4(n.x << 8 | start[0] << 4, n.y << 8 | start[1] << 4, n.z << 8 | start[2] << 4,
                               n.w << 8 | start[3] << 4);
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const uint32_t w = of4(a, r), low = 0x0F0F0F0Fu;
            o[r] = look<C>(tab, w, (w & low) << 4 | (of4(n, r) >> 4 & low), 0);
        }
    } else {
        const bool upper = D == 64 && (t & 1); /* of 64 dims a lane has half of a set */
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const uint32_t w0 = of4(k.w[0], r), w1 = of4(k.w[1], r), w2 = of4(k.w[2], r), next = of4(k.next, r);
            const auto part = [&](int i) { return i > 3 ? next & 0x77777777u : symbols<C>(w0, w1, w2, i); };
            if (C == CODES_T2)
                o[r] = chain_2(tab, D == 128 && s > 1 ? w1 : w0, D == 128 && s < 2 ? w1 : next, s & 1);
            else if (C == CODES_2 && D == 64)
                o[r] = look<C>(tab, w0 >> 2 * s & 0x33333333u, 0, 0);
            else if (C == CODES_T3)
                o[r] = chain_3(tab, upper ? part(s + 2) : part(s), upper ? part(s + 3) : part(s + 1));
            else
                o[r] = look<C>(tab, upper ? part(s + 2) : part(s), 0, 0);
        }
    }
}

/* Words of values: of dims 32 r + 4g .. + 3 what the lane's octet comes from. */
template <int C> struct value_words {
    uint4 w[3], before;
};

/* What a lane does to its three words of 3 bits, so that all lanes do the same. */
struct spare_bits {
    uint32_t shift, m0, m1, m2;
};

__device__ static inline spare_bits spare_of(int t)
{
    return {t == 3 ? 3u : 0u, t == 3 ? 0x11111111u : 0x77777777u, t == 3 ? 0x22222222u : 0u, t == 3 ? 0x44444444u : 0u};
}

/* Start states of the eight tokens whose headers lie at head, a nibble each. */
__device__ static inline uint32_t eight_starts(uint32_t head)
{
    const uint4 h = load_piece(head);
    const uint32_t a = byte_perm(h.x, h.y, 0x6420), b = byte_perm(h.z, h.w, 0x6420); /* low bytes */
    return (byte_perm(a, b, 0x6420) & 0x0F0F0F0Fu) | (byte_perm(a, b, 0x7531) & 0x0F0F0F0Fu) << 4;
}

/* at: the stage. */
template <int D, int C>
__device__ static inline void load_values(value_words<C> &v, uint32_t at, const code_places &p, int r, int g, int t)
{
    constexpr int ON = 128 * code_bits(C); /* bytes of 32 dims */
    v.w[0] = load_piece(at + p.value + r * ON);
    if (C == CODES_8) {
        v.w[1] = load_piece(at + p.next_value + r * ON);
    } else if (C == CODES_T4 && r + 1 < D / 32) {
        v.before = load_piece(at + p.next_value + r * ON);
    } else if (C == CODES_T4) { /* before the last group the first one, a lane back; before its lane 0 the start */
        const uint4 x = load_piece(at + p.last_value);
        const uint32_t back = __shfl_sync(~0u, x.w, (threadIdx.x - 4) % 32);
        const uint32_t before = g == 4 ? eight_starts(at + 64 + t * 16) : back;
        v.before = g < 4 ? x : make_uint4(before, x.x, x.y, x.z);
    } else if (code_bits(C) == 3) { /* lane 3 needs all three words, others their own */
        v.w[1] = load_piece(at + p.next_value + r * ON);
        v.w[2] = load_piece(at + p.next_value + r * ON + 64);
    }
}

/* Symbols of the octet of dim 32 r + 4g + i, of 2 and 3 bits. */
template <int C>
__device__ static inline uint32_t value_symbols(const value_words<C> &v, const spare_bits &s, int i, int t)
{
    const uint32_t w = of4(v.w[0], i);
    if (code_bits(C) == 2)
        return w >> 2 * (t & 1) & 0x33333333u;
    return (w >> s.shift & s.m0) | (of4(v.w[1], i) >> 2 & s.m1) | (of4(v.w[2], i) >> 1 & s.m2);
}

/* The octet of dim 32 r + 4g + i. */
template <int C>
__device__ static inline octet value_octet(const code_tables &tab, const value_words<C> &v, const spare_bits &s, int i, int t)
{
    const uint32_t w = of4(v.w[0], i);
    if (C == CODES_8)
        return {w, of4(v.w[1], i)};
    if (C == CODES_4 || C == CODES_T4)
        return look<C>(tab, w, C == CODES_T4 ? of4(v.before, i) : 0, 0);
    return look<C>(tab, value_symbols<C>(v, s, i, t), 0, 0);
}

/* ---- values in chains of 3 and 2 bits ----
 *
 * What stands before a dim is the dim 16 on; before the last 16 dims the first 16, a lane back; before their lane 0 the start.
 * With dims counted on in this manner, two back are the lane's own of the next 32, one and three back its partner's. */
template <int D> struct value_chain {
    static constexpr int S = D / 32;
    uint32_t own[S + 2][4]; /* dims 32 r + 4g + i; from S on: counted on */
    uint32_t p1[S + 1][4];  /* one back */
};

/* Start states of the tokens of the lane's octet. */
template <int C> __device__ static inline uint32_t start_states(uint32_t head, int t)
{
    if (C == CODES_T3) /* tokens 8t and on */
        return eight_starts(head + t * 16);
    uint32_t all = 0; /* tokens 16 (t / 2) + t % 2, and every second from there */
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint4 h = load_piece(head + (t >> 1) * 32 + j * 16);
#pragma unroll
        for (int i = 0; i < 4; i++)
            all |= (of4(h, i) >> 16 * (t & 1) & 15) << 4 * (4 * j + i);
    }
    return all;
}

template <int D, int C>
__device__ static inline void load_chain(value_chain<D> &c, uint32_t at, const code_places &p, const spare_bits &spare, int g,
                                         int t)
{
    constexpr int S = D / 32, MORE = C == CODES_T2 ? 2 : 1; /* nobody is four back, and of 3 bits nobody three */
    const uint32_t start = start_states<C>(at + 64, t);
#pragma unroll
    for (int r = 0; r < S; r++) {
        value_words<C> v;
        load_values<D, C>(v, at, p, r, g, t);
#pragma unroll
        for (int i = 0; i < 4; i++)
            c.own[r][i] = value_symbols<C>(v, spare, i, t);
    }
#pragma unroll
    for (int r = 0; r < MORE; r++) {
        const uint32_t one = start & (C == CODES_T3 ? 0x77777777u : 0x33333333u);
        const uint32_t two = C == CODES_T3 ? start >> 3 & 0x11111111u : start >> 2 & 0x33333333u;
        const uint32_t lane_before = __shfl_sync(~0u, c.own[r][3], (threadIdx.x - 4) % 32);
        c.own[S + r][0] = g & 3 ? lane_before : r ? 0 : g < 4 ? one : two;
#pragma unroll
        for (int i = 1; i < 4; i++)
            c.own[S + r][i] = c.own[r][i - 1];
    }
#pragma unroll
    for (int r = 0; r < S + MORE - 1; r++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c.p1[r][i] = __shfl_xor_sync(~0u, g < 4 ? c.own[r + 1][i] : c.own[r][i], 16);
}

template <int D, int C>
__device__ static inline octet chain_octet(const code_tables &tab, const value_chain<D> &c, int r, int i)
{
    if (C == CODES_T3)
        return look<C>(tab, c.own[r][i], c.p1[r][i], c.own[r + 1][i]);
    return look<C>(tab, c.p1[r][i] << 2 | c.own[r][i], c.p1[r + 1][i] << 2 | c.own[r + 1][i], 0);
}

#endif
