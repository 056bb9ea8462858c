/* dev/cuda/attn/codes/codes_block.cuh - attention of decode rows on closed pages of codes: integer tensor cores on the codes as they lie.
 *
 * A block of threads takes some of a row's ranges of pages that follow each other, or what is raw, or both.  A warp takes
 * whole pages, those whose number is its own modulo WARPS, half a page at a time: one half of shared memory for the first
 * halves and one for the second, and where one has been read the next page's is on its way, through all ranges of the
 * block.  In each range it has its own softmax; warps are put together in order.  Queries become 16-bit integers, in two
 * columns of 8 bits each; weights times the scales of values too.  Products are exact integers, so what rounds is the
 * query, once, and a weight, to a 2^-16th of the largest.
 *
 * A q row goes through the same steps whatever else is in its block, of four rows or of eight: columns do not meet.  Sums of
 * floats are written with their rounding, for the compiler would contract them in one of these kernels and not in another.
 *
 * In steps of few rows the kernel before has left heads as products (codes_own): the block does to them what is done to heads,
 * and what append would have done. */
#ifndef TERN_DEV_CUDA_ATTN_CODES_BLOCK_CUH
#define TERN_DEV_CUDA_ATTN_CODES_BLOCK_CUH

#include "dev/cuda/attn/codes/codes_half.cuh"
#include "dev/cuda/attn/columns.cuh"
#include "dev/cuda/attn/heads.cuh"
#include "dev/cuda/attn/raw.cuh"
#include "dev/cuda/attn/items.cuh"

#define THREADS TERN_CUDA_CODES_THREADS

/* Queries of the block: where the kernel before has left them, or made here, in `own`.  All threads call, and meet. */
template <int D, int ROWS> struct block_queries {
    const block_rows &b;
    const query_columns<D> *own;

    /* there: in `made` and `shift` they are already. */
    __device__ block_queries(const block_rows &rows, query_columns<D> *made, float *shift, bool there) : b(rows), own(made)
    {
        if (there)
            return;
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        float sign[D / 32];
        if (b.a->columns) {
            if (threadIdx.x < ROWS)
                shift[threadIdx.x] = row(threadIdx.x).shift;
            return;
        }
        load_signs<D / 32>(sign, b.a->l.k, lane);
        for (int i = warp; i < ROWS; i += WARPS) {
            put_columns<D>(made[i], i < b.n_q ? query_of(b, i, D) : nullptr, b.a->q_scale, b.a->l.k, b.cond, sign, lane);
            if (lane == 0)
                shift[i] = made[i].shift;
        }
    }
    /* Of q row i; rows that are not there are like the last one. */
    __device__ const query_columns<D> &row(int i) const
    {
        if (!b.a->columns)
            return own[i];
        const int at = min(i, b.n_q - 1);
        return cuda_at<const query_columns<D>>(b.a->columns)[(b.row0 + row_of(b, at)) * b.a->n_heads + head_of(b, at)];
    }
};

/* The warp's result of a range into its place of the room: [warp][row] D + 8 sums, so that lanes meet no bank twice, then
 * references and sums of weights. */
template <int D, int C, int NT> __device__ static inline void put_down(const worker<D, C, NT> &w, float *room, bool real)
{
    constexpr int ROWS = 4 * NT, STEP = D + 8, BLOCKS = code_blocks<D>::N;
    float *ref = room + WARPS * ROWS * STEP, *sum = ref + WARPS * ROWS;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        const int row = threadIdx.x / 32 * ROWS + 4 * i + w.t;
        float all = w.sum[i], offset[BLOCKS];
        for (int width = 4; width < 32; width *= 2)
            all = __fadd_rn(all, __shfl_xor_sync(~0u, all, width));
#pragma unroll
        for (int k = 0; k < BLOCKS; k++) {
            float sum = code_trellis(values_of(C)) ? (float)w.all[i][k] : 0.0f;
            for (int width = 4; code_trellis(values_of(C)) && width < 32; width *= 2)
                sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, width));
            offset[k] = code_trellis(values_of(C)) ? __fmul_rn(sum, -(float)w.of_values().offset) : 0.0f;
        }
        if (real && w.g == 0) {
            ref[row] = w.ref[i];
            sum[row] = all;
        }
#pragma unroll
        for (int n = 0; n < D / 16; n += 4)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float x[4];
#pragma unroll
                for (int j = 0; j < 4; j++)
                    x[j] = __fadd_rn(__fmaf_rn((float)w.o[i][n + j][2 * h], 256.0f, (float)w.o[i][n + j][2 * h + 1]),
                                     offset[n / (code_blocks<D>::DIMS / 16)]);
                float *to = room + row * STEP + (n / 2 + h) * 32 + 4 * w.g;
                if (real)
                    *reinterpret_cast<float4 *>(to) = make_float4(x[0], x[1], x[2], x[3]);
            }
    }
}

/* What warps have put down, put together in order, into the range's place. */
template <int D, int ROWS> __device__ static inline void put_together(const block_rows &b, const float *room, int range)
{
    constexpr int STEP = D + 8;
    const float *ref = room + WARPS * ROWS * STEP, *sum = ref + WARPS * ROWS, unit = b.a->l.v.unit;
    for (int e = threadIdx.x; e < b.n_q * (D / 4); e += THREADS) { /* four dims each */
        const int row = e / (D / 4), d = e % (D / 4) * 4;
        float most = ref[row], x[4] = {}, all = 0;
#pragma unroll
        for (int i = 1; i < WARPS; i++)
            most = fmaxf(most, ref[i * ROWS + row]);
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            const float by = exp2_of(__fsub_rn(ref[i * ROWS + row], most));
            const float4 v = *reinterpret_cast<const float4 *>(room + (i * ROWS + row) * STEP + d);
            x[0] = __fmaf_rn(by, v.x, x[0]);
            x[1] = __fmaf_rn(by, v.y, x[1]);
            x[2] = __fmaf_rn(by, v.z, x[2]);
            x[3] = __fmaf_rn(by, v.w, x[3]);
            all = __fmaf_rn(by, sum[i * ROWS + row], all);
        }
        float *part = part_at(b, row, range % TERN_CUDA_RANGES);
#pragma unroll
        for (int j = 0; j < 4; j += 2) /* parts are D + 2 apart */
            *reinterpret_cast<float2 *>(part + d + j) = make_float2(__fmul_rn(x[j], unit), __fmul_rn(x[j + 1], unit));
        if (d == 0) {
            part[D] = most;
            part[D + 1] = all;
        }
    }
}

/* A warp's pages on their way: those from `first` on whose number is the warp's. */
struct code_pages {
    code_source from;
    const uint32_t *numbers; /* by page */
    uint32_t at, mine;       /* the warp's two halves; the block of the lane-th page from `first` on */
    int first, end;
    uint64_t once;
};

/* Blocks of the warp's next 32 pages: waiting for each when its turn comes would cost more. */
__device__ static inline void look_up(code_pages &p, int first, int lane)
{
    p.first = first;
    p.mine = first + lane * WARPS < p.end ? p.numbers[first + lane * WARPS] : 0;
}

/* Bytes of half a page in shared memory. */
template <int D, int C> __host__ __device__ constexpr int half_bytes()
{
    return code_blocks<D>::N * code_stage<code_blocks<D>::DIMS, C>::BYTES;
}

/* One half of a page, or nothing behind the last. */
template <int D, int C> __device__ static inline void fetch_half(const code_pages &p, int page, int half, int lane)
{
    using blocks = code_blocks<D>;
    constexpr int BYTES = code_stage<blocks::DIMS, C>::BYTES;
    const uint32_t number = __shfl_sync(~0u, p.mine, (uint32_t)(page - p.first) / WARPS % 32);
    if (page < p.end)
#pragma unroll
        for (int k = 0; k < blocks::N; k++)
            fetch_codes<blocks::DIMS, C>(p.at + (half * blocks::N + k) * BYTES, p.from, number, half * blocks::N + k,
                                         half * 64 + k * 128, lane, p.once);
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Where the warp's pages lie. */
__device__ static inline void find_pages(code_pages &p, const block_rows &b, int page, int end, int lane)
{
    const tern_cuda_attn_args &a = *b.a;
    const tern_cuda_table &table = cuda_at<const tern_cuda_table>(a.t.tables)[b.table0 + a.l.group];
    const tern_cuda_cache &cache = cuda_at<const tern_cuda_cache>(a.t.caches)[b.cache];
    const tern_cuda_blocks &pool = cuda_at<const tern_cuda_blocks>(a.t.pools)[cache.pages + a.l.group];
    p.numbers = cuda_at<const uint32_t>(a.t.numbers) + table.blocks - table.first;
    p.from = source_of(pool, a.l, b.kv_head, lane);
    p.end = end;
    p.once = cuda_once();
    look_up(p, page, lane);
}

/* Both halves of the first page. */
template <int D, int C> __device__ static inline void fetch_first(const code_pages &p, int page, int lane)
{
    fetch_half<D, C>(p, page, 0, lane);
    fetch_half<D, C>(p, page, 1, lane);
}

/* What pairs add on a page, for all rows of the block. */
__device__ static __noinline__ void load_pairs(cold_rows *cold, int page)
{
    const block_rows &b = cold->b;
    const int n = b.cond ? b.cond->n_pairs : 0, dim = b.a->l.k.dim;
    for (int i = threadIdx.x % 32; i < b.n_q * n; i += 32) {
        const float *q = cold->heads ? cold->heads + i / n * dim : query_of(b, i / n, dim);
        const float2 f = pair_factors(b, q, i % n, page);
        float *to = cold->pairs[threadIdx.x / 32] + i / n * 16 + 2 * (i % n);
        to[0] = f.x;
        to[1] = f.y;
    }
}

/* The warp's pages of a range, which ends before page `to`.  Pages before `whole` have tokens that count for some rows only
 * (SOME; from there on PLAIN).  Not real: one half, which stays as it is. */
template <int D, int C, int NT>
__device__ static inline void take_range(worker<D, C, NT> &w, code_pages &p, cold_rows *cold, int &page, int to, int whole,
                                         page_scores &how, bool real)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        w.ref[i] = UNSET;
        w.sum[i] = 0;
#pragma unroll
        for (int k = 0; k < code_blocks<D>::N; k++)
            w.all[i][k] = 0;
#pragma unroll
        for (int n = 0; n < D / 16; n++)
            w.o[i][n][0] = w.o[i][n][1] = w.o[i][n][2] = w.o[i][n][3] = 0;
    }
#pragma unroll 1
    for (; page < to; page += WARPS) {
        if (real && page + WARPS == p.first + 32 * WARPS)
            look_up(p, page + WARPS, lane);
        if (how == SOME && page >= whole)
            how = PLAIN;
        if (how == COLD)
            load_pairs(cold, page);
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            asm volatile("cp.async.wait_group 1;" ::: "memory");
            __syncwarp();
            take_half<D, C, NT>(w, p.at + half * half_bytes<D, C>(), page, 32 * half, how);
            __syncwarp();
            if (!real)
                return;
            fetch_half<D, C>(p, page + WARPS, half, lane);
        }
    }
}

/* Tables and places. */
template <int D, int C, int NT> __device__ static inline void open_worker(worker<D, C, NT> &w, const tern_cuda_attn_args &a)
{
    w.g = threadIdx.x % 32 / 4;
    w.t = threadIdx.x % 4;
    load_code_tables<keys_of(C)>(w.tab, a.l.k);
    w.tab.one = a.one;
    if constexpr (keys_of(C) != values_of(C)) {
        load_code_tables<values_of(C)>(w.more.tab, a.l.v);
        w.more.tab.one = a.one;
    }
    w.sinks = a.l.first;
    w.spare = spare_of(w.t);
    w.places = places_of<code_blocks<D>::DIMS, C>(w.g, w.t);
#pragma unroll
    for (int i = 0; i < NT; i++) {
        w.scale[i] = 0;
        w.oldest[i] = 0;
#pragma unroll
        for (int k = 0; k < code_blocks<D>::N; k++)
            w.start[i][k] = 0;
#pragma unroll
        for (int s = 0; s < D / 32; s++)
            w.q[i][s][0] = w.q[i][s][1] = 0;
    }
}

/* Queries as the lane multiplies them. */
template <int D, int C, int NT>
__device__ static inline void open_queries(worker<D, C, NT> &w, const tern_cuda_attn_args &a, const block_queries<D, 4 * NT> &q)
{
    constexpr int E = code_blocks<D>::DIMS;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        const query_columns<D> &own = q.row(4 * i + w.t);
        const int8_t *column = q.row(4 * i + w.g / 2).c[w.g % 2];
        w.oldest[i] = oldest_seen(a.l, row_pos(q.b, 4 * i + w.t));
        w.scale[i] = own.scale;
#pragma unroll
        for (int k = 0; k < code_blocks<D>::N; k++)
            w.start[i][k] = -w.tab.offset * own.total[k];
#pragma unroll
        for (int s = 0; s < D / 32; s++) {
            const uint2 x = *reinterpret_cast<const uint2 *>(column + s / (E / 32) * E + octet_at<E, keys_of(C)>(w.t, s % (E / 32)));
            w.q[i][s][0] = x.x;
            w.q[i][s][1] = x.y;
        }
    }
}

/* What a block of threads does: ranges [first, end) of its rows, and what is raw. */
struct code_items {
    int first, end;
    bool raw;
};

/* The ranges of a row are cut evenly; what is raw has a block of its own where ranges have, or goes with the first. */
__device__ static inline code_items items_of_block(const tern_cuda_attn_args &a, int ranges, int z)
{
    if (tern_cuda_codes_apart(a.eighths)) { /* a range each: without divisions, which are long */
        if (z == 0 || z > ranges)
            return {0, 0, z == 0};
        return {z - 1, z, false};
    }
    const int blocks = tern_cuda_codes_blocks(ranges, a.eighths);
    if (z >= blocks)
        return {};
    return {ranges * z / blocks, ranges * (z + 1) / blocks, z == 0};
}

/* ---- heads that are not finished --------------------------------------------------------------------------------- */

/* A block of its own has two more warps: one rehearses what the others will do with pages, for instructions that a processor has to
 * fetch are half of the time of few pages; one has keys and values. */
#define HELPERS    TERN_CUDA_CODES_HELPERS
#define REHEARSES  WARPS
#define HAS_VALUES (WARPS + 1)

__device__ static inline const tern_cuda_attn_args &attn_of(const tern_cuda_attn_args &a)
{
    return a;
}

__device__ static inline const tern_cuda_attn_args &attn_of(const tern_cuda_codes_own_args &a)
{
    return a.attn;
}

/* A row of a head into token `token` of its tile, by a warp. */
template <int D> __device__ static inline void put_token(const tern_cuda_side &s, uint8_t *tile, const float *x, int token, int lane)
{
#pragma unroll
    for (int d = lane; d < D; d += 32) {
        const int at = s.key ? d * 64 + token : token * D + d;
        if (s.raw32)
            reinterpret_cast<float *>(tile)[at] = x[d];
        else
            reinterpret_cast<uint16_t *>(tile)[at] = to_f16(x[d]);
    }
}

/* What append does for the block's rows, by one warp. */
template <int D>
__device__ static inline void put_own_rows(const tern_cuda_codes_own_args &f, const block_rows &b, uint8_t *tile, float *k, float *v)
{
    const tern_cuda_layer &l = f.attn.l;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i = 0; i < b.n; i++) {
        const int row = b.row0 + i, token = (b.pos0 + i) % 64;
        const float *values = cuda_at<const float>(f.v) + row * f.v_stride + b.kv_head * D;
        const own_head key(f.heads.set[f.set_k], row, b.kv_head, lane);
        if (f.set_v >= 0) {
            const own_head value(f.heads.set[f.set_v], row, b.kv_head, lane);
            value.finish(f.heads, f.heads.set[f.set_v], row, v, lane);
            values = v;
        }
        key.finish(f.heads, f.heads.set[f.set_k], row, k, lane);
        __syncwarp();
        put_token<D>(l.k, tile, k, token, lane);
        put_token<D>(l.v, tile + l.tile_v_off, values, token, lane);
        __syncwarp();
    }
}

/* The warp's query, and its first page on its way. */
template <int D, int C>
__device__ static inline void finish_query(const tern_cuda_codes_own_args &f, const block_rows &b, const code_items &items, int page, int end,
                                           float *query, query_columns<D> &columns, float &shift, code_pages &pages, raw_places &raw)
{
    const tern_cuda_attn_args &a = f.attn;
    const bool coded = items.first < items.end;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sign[D / 32];
    const tern_cuda_heads_set &set = f.heads.set[f.set_q];
    const int q = min(warp, b.n_q - 1), row = b.row0 + row_of(b, q);
    const own_head head(set, row, head_of(b, q), lane);
    load_signs<D / 32>(sign, a.l.k, lane);
    if (coded)
        find_pages(pages, b, page, end, lane);
    if (items.raw)
        raw.sink = raw_sink_of(b);
    head.finish(f.heads, set, row, query, lane);
    __syncwarp();
    if (coded)
        fetch_first<D, C>(pages, page, lane);
    if (coded)
        put_columns<D>(columns, warp < b.n_q ? query : nullptr, a.q_scale, a.l.k, b.cond, sign, lane);
    if (coded && b.cond && lane == 0) {
        shift = columns.shift;
        if (items.first == 0 && warp < b.n_q)
            cuda_at<query_columns<D>>(f.columns)[row * a.n_heads + head_of(b, q)].shift = shift;
    }
    if (items.raw)
        asm volatile("bar.sync 2, %0;" ::"n"(THREADS + 32) : "memory");
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */

/* The block's ranges: each warp's pages of one, then what warps have together. */
template <int D, int C, int NT>
__device__ static inline void take_ranges(worker<D, C, NT> &w, code_pages &pages, const block_rows &b, const row_ranges &ranges,
                                          const code_items &items, int page, float *room, cold_rows *cold, bool real)
{
    constexpr int ROWS = 4 * NT, PLACE = TERN_CUDA_CODES_PLACE(D, ROWS) / 4;
    const tern_cuda_attn_args &a = *b.a;
    const int seen = (oldest_seen(a.l, row_pos(b, b.n_q - 1)) + 63) / 64, whole = a.l.first && !seen ? 1 : seen;
    page_scores how = !real ? PLAIN : (b.cond && b.cond->n_pairs) || a.cap > 0 ? COLD : SOME;
#pragma unroll 1
    for (int z = items.first; z < (real ? items.end : items.first + 1); z++) {
        int unused, to;
        pages_of(b, ranges, z, unused, to);
        take_range<D, C, NT>(w, pages, cold, page, real ? to : 1, whole, how, real);
        float *place = room + z % TERN_CUDA_CODES_PLACES(D) * PLACE; /* the other is still read by warps behind */
        if (TERN_CUDA_CODES_PLACES(D) == 1 && real)
            computing_meet<THREADS>();
        put_down<D, C, NT>(w, place, real);
        if (!real)
            continue;
        computing_meet<THREADS>();
        put_together<D, ROWS>(b, place, ranges.first + z);
    }
}

/* HEADS: they are not finished, and no page was closed in this step. */
template <int D, int C, int NT, bool HEADS, class ARGS> __device__ static void attend_codes(const ARGS &args)
{
    constexpr int ROWS = 4 * NT, HALF = half_bytes<D, C>(), RING = 2 * WARPS * HALF;
    constexpr int QUERIES = raw_room<D, ROWS>::QUERIES, UNREAD = QUERIES > HALF ? QUERIES : HALF;
    const tern_cuda_attn_args &a = attn_of(args);
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ __align__(16) query_columns<D> columns[ROWS];
    __shared__ cold_rows cold;
    __shared__ __align__(16) float heads[HEADS ? ROWS + 2 : 1][D];     /* queries, a key, a value */
    __shared__ __align__(16) uint8_t unread[HEADS ? UNREAD : 16]; /* what is rehearsed with */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool real = !HEADS || warp < WARPS;
    float *room = reinterpret_cast<float *>(shared + RING);
    cuda_start_next();
    block_rows b;
    row_ranges ranges;
    code_items items = {};
    if (find_rows(b, a, blockIdx.x, blockIdx.y)) {
        ranges = ranges_of(b);
        items = items_of_block(a, ranges.n, blockIdx.z);
    }
    const bool coded = items.first < items.end;
    if (!coded && !items.raw) {
        cuda_wait();
        return;
    }
    int page = 0, begin = 0, end = 0, unused;
    if (coded) {
        pages_of(b, ranges, items.first, begin, unused);
        pages_of(b, ranges, items.end - 1, unused, end);
    }
    worker<D, C, NT> w;
    w.cold = &cold;
    open_worker<D, C, NT>(w, a);
    code_pages pages = {};
    pages.at = (uint32_t)__cvta_generic_to_shared(real ? shared + warp * 2 * HALF : unread);
    raw_places raw = {};
    if constexpr (HEADS) {
        const tern_cuda_unit &unit = cuda_at<const tern_cuda_unit>(a.units)[blockIdx.x]; /* of one block */
        if (items.raw)
            raw.own = unit_tile(args.tiles, a.l, a.stage, unit, b.kv_head);
        if (warp != REHEARSES)
            cuda_wait();
        if (warp == HAS_VALUES) {
            if (items.raw) {
                put_own_rows<D>(args, b, const_cast<uint8_t *>(raw.own), heads[ROWS], heads[ROWS + 1]);
                asm volatile("bar.arrive 2, %0;" ::"n"(THREADS + 32) : "memory");
            }
            return;
        }
        if (real) {
            page = first_page(begin, warp, WARPS);
            finish_query<D, C>(args, b, items, page, end, heads[warp], columns[warp], cold.shift[warp], pages, raw);
        }
    } else {
        const bool early = end <= b.closed; /* pages that were closed before the step are there */
        if (items.raw)
            raw = raw_places_of(b);
        page = first_page(begin, warp, WARPS);
        if (!early)
            cuda_wait();
        find_pages(pages, b, page, end, lane);
        fetch_first<D, C>(pages, page, lane);
        if (early)
            cuda_wait();
    }
    if (items.raw)
        attend_raw<D, THREADS, ROWS>(b, raw, real ? reinterpret_cast<uint8_t *>(room) : unread, HEADS ? heads[0] : nullptr, real);
    if (!coded) {
        if (!real)
            cuda_wait();
        return;
    }
    if (real) {
        if (threadIdx.x == 0) {
            cold.b = b;
            cold.heads = HEADS ? heads[0] : nullptr;
        }
        const block_queries<D, ROWS> queries(b, columns, cold.shift, HEADS);
        computing_meet<THREADS>();
        open_queries<D, C, NT>(w, a, queries);
    }
    take_ranges<D, C, NT>(w, pages, b, ranges, items, page, room, &cold, real);
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    if (!real)
        cuda_wait();
}

/* blocks: of a processor.  A block that waits more than it computes is faster with more registers than four leave it. */
#define KERNEL(d, name, c, blocks)                                                          \
    TERN_CUDA_KERNEL_BEGIN(codes_##d##_##name##_1, tern_cuda_attn_args, THREADS, blocks)    \
    {                                                                                       \
        attend_codes<d, c, 1, false>(a);                                                    \
    }                                                                                       \
    TERN_CUDA_KERNEL_BEGIN(codes_##d##_##name##_2, tern_cuda_attn_args, THREADS, 2)         \
    {                                                                                       \
        attend_codes<d, c, 2, false>(a);                                                    \
    }

#endif
