/* Which compressed rows a row sees: those of the largest scores.
 *
 * A score and its row are one number, so that no two are equal and the best are the same whoever looks for them: pieces
 * of the keys have their own best, and a row's are among these. */
#include "dev/cpu/spans.h"

#include <string.h>

#define PIECE 1024 /* keys */

struct work {
    struct tern_cpu *d;
    const struct tern_choose *c;
    const struct tern_cpu_span *span;
    const float *q, *w;
    size_t q_stride, w_stride;
    int32_t *ids, *counts;
    int row0, pieces; /* of this band: the first row, pieces of every row */
    size_t room;      /* candidates of a piece */
};

/* ---- the best of some -------------------------------------------------------------------------------------------- */

/* Smaller is better: larger score, then lower row. */
static uint64_t candidate(float score, int row)
{
    uint32_t bits;
    score += 0.0f; /* the sign of a zero is none */
    memcpy(&bits, &score, sizeof bits);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)~bits << 32 | (uint32_t)row;
}

/* The n-th smallest of v, 1 <= n <= count; v is shuffled. */
static uint64_t nth(uint64_t *v, size_t count, size_t n)
{
    size_t lo = 0, hi = count - 1;
    while (lo < hi) {
        const uint64_t a = v[lo], b = v[lo + (hi - lo) / 2], c = v[hi];
        const uint64_t pivot = a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
        size_t i = lo, j = hi;
        for (;;) {
            while (v[i] < pivot)
                i++;
            while (v[j] > pivot)
                j--;
            if (i >= j)
                break;
            const uint64_t swap = v[i];
            v[i++] = v[j];
            v[j--] = swap;
        }
        if (n - 1 <= j)
            hi = j;
        else
            lo = j + 1;
    }
    return v[lo];
}

/* Keeps the n best of v in their order. */
static size_t keep_best(uint64_t *v, size_t count, size_t n, uint64_t *scratch)
{
    size_t kept = 0;
    if (count <= n)
        return count;
    memcpy(scratch, v, count * sizeof *v);
    const uint64_t last = nth(scratch, count, n);
    for (size_t i = 0; i < count; i++)
        if (v[i] <= last)
            v[kept++] = v[i];
    return kept;
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

struct scratch {
    float *s, *k;         /* [heads][64], [dim][64] */
    uint64_t *some, *two; /* [PIECE] */
};

static size_t lay_out(struct scratch *c, uint8_t *p, int heads, int dim)
{
    const size_t s = (size_t)heads * TERN_PAGE * sizeof(float), k = (size_t)dim * TERN_PAGE * sizeof(float);
    if (c) {
        c->s = (float *)(void *)p;
        c->k = (float *)(void *)(p + s);
        c->some = (uint64_t *)(void *)(p + s + k);
        c->two = c->some + PIECE;
    }
    return s + k + (size_t)2 * PIECE * sizeof(uint64_t);
}

/* c->s[heads][64] = q . keys of one page. */
static void score_page(const struct work *w, struct scratch *c, const float *q, int job, int page, int own)
{
    const struct tern_kv_layer *kv = tern_cpu_kv(&w->d->step, job, w->c->span);
    const struct tern_attn_job *at = &w->span->at[job];
    const bool open = page == own;
    const uint8_t *p = open ? tern_span_tile(kv, at, page) : tern_span_page(kv, at, page),
                  *keys = open ? p : p + kv->k_off;
    if (!open && !kv->k.codec->raw) {
        kv->k.codec->decode(&kv->k, c->k, keys, (const uint16_t *)(const void *)(p + kv->k_head_off));
        tern_k.attn.score_f32(c->s, q, c->k, w->c->dim, w->c->n_heads);
    } else if (kv->k.raw32) {
        tern_k.attn.score_f32(c->s, q, (const float *)(const void *)keys, w->c->dim, w->c->n_heads);
    } else {
        tern_k.attn.score_f16(c->s, q, (const uint16_t *)(const void *)keys, w->c->dim, w->c->n_heads, NULL);
    }
}

/* Candidates of the first n keys of a page. */
static void weigh_page(const struct work *w, const struct scratch *c, const float *weights, int first, int n,
                       uint64_t *out)
{
    float sum[TERN_PAGE] = {0};
    for (int h = 0; h < w->c->n_heads; h++) {
        const float *s = c->s + (size_t)h * TERN_PAGE, weight = weights[h];
        for (int t = 0; t < TERN_PAGE; t++)
            sum[t] += weight * (s[t] > 0 ? s[t] : 0);
    }
    for (int t = 0; t < n; t++)
        out[t] = candidate(sum[t], first + t);
}

static int rows_seen(const struct work *w, int row)
{
    return tern_span_rows(w->d->step.s.rows[row].pos + 1, w->c->rate);
}

/* Numbers that the candidates of one row take, and as many to look among them. */
static size_t row_room(const struct work *w)
{
    return 2 * (size_t)w->pieces * (w->room + 1);
}

/* Candidates of a piece: their number, then they. */
static uint64_t *piece_of(const struct work *w, int row, int piece)
{
    return w->d->chosen + (size_t)row * row_room(w) + (size_t)piece * (w->room + 1);
}

static void piece_task(void *ctx, int task, int worker)
{
    const struct work *w = ctx;
    struct scratch c;
    const int in_band = task / w->pieces, piece = task % w->pieces, row = w->row0 + in_band;
    const int n = rows_seen(w, row), own = n / TERN_PAGE, job = tern_cpu_job_of(&w->d->step, row);
    const float *q = w->q + (size_t)row * w->q_stride, *weights = w->w + (size_t)row * w->w_stride;
    uint64_t *to = piece_of(w, in_band, piece);
    size_t count = 0;
    to[0] = 0;
    if (n <= w->c->top)
        return;
    (void)lay_out(&c, w->d->sparse + (size_t)worker * w->d->sparse_bytes, w->c->n_heads, w->c->dim);
    for (int first = piece * PIECE; first < n && first < (piece + 1) * PIECE; first += TERN_PAGE) {
        const int rows = n - first < TERN_PAGE ? n - first : TERN_PAGE;
        score_page(w, &c, q, job, first / TERN_PAGE, own);
        weigh_page(w, &c, weights, first, rows, c.some + count);
        count += (size_t)rows;
    }
    count = keep_best(c.some, count, w->room, c.two);
    memcpy(to + 1, c.some, count * sizeof *to);
    to[0] = count;
}

/* The best of all pieces of a row. */
static void row_task(void *ctx, int task, int worker)
{
    const struct work *w = ctx;
    const int row = w->row0 + task, n = rows_seen(w, row), top = w->c->top;
    int32_t *ids = w->ids + (size_t)row * (size_t)top;
    uint64_t *all = piece_of(w, task, 0);
    size_t count = 0;
    (void)worker;
    w->counts[row] = n < top ? n : top;
    if (n <= top) {
        for (int i = 0; i < n; i++)
            ids[i] = i;
        return;
    }
    for (int piece = 0; piece < w->pieces; piece++) { /* moves each towards the beginning */
        const uint64_t *from = piece_of(w, task, piece);
        const size_t more = from[0];
        memmove(all + count, from + 1, more * sizeof *all);
        count += more;
    }
    count = keep_best(all, count, (size_t)top, all + row_room(w) / 2);
    for (size_t i = 0; i < count; i++)
        ids[i] = (int32_t)(uint32_t)all[i];
}

/* ---- the operation ----------------------------------------------------------------------------------------------- */

static size_t room_of(int top)
{
    return top < PIECE ? (size_t)top : PIECE;
}

#define CANDIDATES ((size_t)1 << 21) /* 16 MiB, or what one row needs */

size_t tern_cpu_choose_candidates(int top, int max_rows)
{
    const struct work one = {.pieces = max_rows / PIECE + 1, .room = room_of(top)};
    return row_room(&one) > CANDIDATES ? row_room(&one) : CANDIDATES;
}

size_t tern_cpu_choose_scratch(int heads, int dim)
{
    return lay_out(NULL, NULL, heads, dim);
}

void tern_cpu_choose(struct tern_dev *dev, const struct tern_choose *c, struct tern_dev_rows q, struct tern_dev_rows w,
                     int n_rows)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct work work = {.d = d,
                        .c = c,
                        .span = tern_cpu_span_fill(&d->step, c->span),
                        .q = tern_cpu_f32(q),
                        .w = tern_cpu_f32(w),
                        .q_stride = q.stride,
                        .w_stride = w.stride,
                        .ids = (int32_t *)(void *)tern_cpu_vec(c->ids),
                        .counts = (int32_t *)(void *)tern_cpu_vec(c->counts),
                        .room = room_of(c->top)};
    int most = 0;
    for (int r = 0; r < n_rows; r++)
        most = rows_seen(&work, r) > most ? rows_seen(&work, r) : most;
    work.pieces = most / PIECE + 1;
    TERN_ASSERT(row_room(&work) <= d->n_chosen);
    const int band = (int)(d->n_chosen / row_room(&work));
    for (; work.row0 < n_rows; work.row0 += band) {
        const int rows = n_rows - work.row0 < band ? n_rows - work.row0 : band;
        tern_pool_run(d->pool, piece_task, &work, rows * work.pieces);
        tern_pool_run(d->pool, row_task, &work, rows);
    }
}
