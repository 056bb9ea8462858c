#include "checkasm.h"

#include <math.h>
#include <string.h>

#define COLS     TERN_DELTA_COLS
#define MAX_DK   128
#define MAX_ROWS 7

/* ---- scan ---- */

static double state[MAX_DK][COLS], oracle[MAX_DK * COLS], budget[MAX_DK * COLS];

/* The rule in double; out: [n_rows][COLS]. */
static void scan_oracle(const float *s, const struct tern_delta_rows *r, double *out)
{
    for (int i = 0; i < r->dk; i++)
        for (int c = 0; c < COLS; c++)
            state[i][c] = s[i * COLS + c];
    for (int t = 0; t < r->n_rows; t++) {
        const float *q = r->q + (size_t)t * r->stride, *k = r->k + (size_t)t * r->stride;
        const float *v = r->v + (size_t)t * r->stride;
        double decay = r->gate[(size_t)t * r->gate_stride], beta = r->beta[(size_t)t * r->gate_stride];
        for (int c = 0; c < COLS; c++) {
            double m = 0, o = 0;
            for (int i = 0; i < r->dk; i++)
                m += k[i] * (state[i][c] *= decay);
            for (int i = 0; i < r->dk; i++) {
                state[i][c] += k[i] * (beta * (v[c] - m));
                o += q[i] * state[i][c];
            }
            out[t * COLS + c] = o;
        }
    }
}

/* Directions of length 1, as the rule wants keys. */
static void fill_units(float *x, size_t stride, int n_rows, int dk)
{
    for (int t = 0; t < n_rows; t++) {
        double sum = 0;
        float *row = x + (size_t)t * stride;
        check_fill_f32(row, (size_t)dk, CHECK_GAUSS);
        for (int i = 0; i < dk; i++)
            sum += (double)row[i] * row[i];
        for (int i = 0; i < dk; i++)
            row[i] = (float)(row[i] / sqrt(sum));
    }
}

static double largest(const float *x, int n)
{
    double most = 0;
    for (int i = 0; i < n; i++)
        if (fabs(x[i]) > most)
            most = fabs(x[i]);
    return most;
}

static void scan_case(int n_rows, int dk, enum check_fill kind)
{
    check_case("rows=%d dk=%d %s", n_rows, dk, check_fill_name(kind));
    const size_t pad = (size_t)(dk + 15) / 16 * 16, stride = 2 * pad + COLS + 16, out_stride = 32, gates = 3;
    float *x = check_buf((size_t)n_rows * stride * 4, 64), *g = check_buf((size_t)n_rows * gates * 4, 4);
    float *s = check_buf((size_t)dk * COLS * 4, 64), *ref = check_buf((size_t)dk * COLS * 4, 64);
    float *out = check_buf((size_t)n_rows * out_stride * 4, 64), *want = check_buf((size_t)n_rows * out_stride * 4, 64);
    double exact[MAX_ROWS * COLS];
    struct tern_delta_rows r = {n_rows, dk, x, x + pad, x + 2 * pad, stride, g, g + 1, gates, want, out_stride};
    fill_units(x, stride, n_rows, dk);
    fill_units(x + pad, stride, n_rows, dk);
    for (int t = 0; t < n_rows; t++) {
        check_fill_f32(x + 2 * pad + (size_t)t * stride, COLS, kind);
        g[(size_t)t * gates] = (float)check_uniform();
        g[(size_t)t * gates + 1] = (float)check_uniform();
    }
    check_fill_f32(s, (size_t)dk * COLS, kind);
    memcpy(ref, s, (size_t)dk * COLS * 4);
    double most = largest(s, dk * COLS);
    for (int t = 0; t < n_rows; t++)
        most = fmax(most, largest(x + 2 * pad + (size_t)t * stride, COLS));
    scan_oracle(s, &r, exact);
    check_ref.delta.scan(ref, &r);
    r.out = out;
    tern_k.delta.scan(s, &r);
    check_same_f32("state", s, ref, (size_t)dk * COLS);
    for (int i = 0; i < dk * COLS; i++) {
        oracle[i] = state[i / COLS][i % COLS];
        budget[i] = most * n_rows * dk * 0x1p-22 + 1e-30;
    }
    check_budget("state", s, oracle, budget, (size_t)dk * COLS, NULL, 0);
    for (int t = 0; t < n_rows; t++) {
        check_same_f32("out", out + (size_t)t * out_stride, want + (size_t)t * out_stride, COLS);
        check_budget("out", out + (size_t)t * out_stride, exact + t * COLS, budget, COLS, NULL, 0);
        check_unwritten("behind a row", out + (size_t)t * out_stride + COLS, 64);
    }
}

static void part_scan(void)
{
    static const int dks[] = {4, 16, 20, 64, 128};
    for (size_t i = 0; i < sizeof dks / sizeof *dks; i++)
        for (int kind = 0; kind <= (int)CHECK_HUGE; kind++) {
            scan_case(0, dks[i], kind);
            scan_case(1, dks[i], kind);
            scan_case(MAX_ROWS, dks[i], kind);
        }
}

/* ---- conv ---- */

static void conv_case(int width, int n, enum check_fill kind)
{
    check_case("width=%d n=%d %s", width, n, check_fill_name(kind));
    const size_t stride = (size_t)n + 5;
    float *w = check_buf((size_t)width * stride * 4, 4), *y = check_buf((size_t)n * 4, 4), *rows[TERN_DELTA_WIDTH];
    float *one = check_buf(4, 4);
    const float *x[TERN_DELTA_WIDTH], *at[TERN_DELTA_WIDTH];
    check_fill_f32(w, (size_t)width * stride, CHECK_GAUSS);
    for (int j = 0; j < width; j++) {
        x[j] = rows[j] = check_buf((size_t)n * 4, 4);
        check_fill_f32(rows[j], (size_t)n, kind);
    }
    double exact[256], slack[256];
    for (int c = 0; c < n; c++) {
        double sum = 0, all = 0;
        for (int j = 0; j < width; j++) {
            sum += (double)w[(size_t)j * stride + (size_t)c] * x[j][c];
            all += fabs((double)w[(size_t)j * stride + (size_t)c] * x[j][c]);
        }
        exact[c] = sum < -700 ? 0 : sum / (1 + exp(-sum));
        slack[c] = 4e-7 * fabs(exact[c]) + 1.2 * all * width * 0x1p-23 + 1e-30;
    }
    tern_k.delta.conv(y, x, w, stride, width, n);
    check_budget("y", y, exact, slack, (size_t)n, NULL, 0);
    for (int c = 0; c < n; c += 1 + n / 5) { /* the same channel alone */
        for (int j = 0; j < width; j++)
            at[j] = x[j] + c;
        tern_k.delta.conv(one, at, w + c, stride, width, 1);
        check_same_f32("channel alone", one, y + c, 1);
    }
    tern_k.delta.conv(rows[width - 1], x, w, stride, width, n);
    check_same_f32("y = x", rows[width - 1], y, (size_t)n);
}

static void part_conv(void)
{
    static const int lengths[] = {1, 3, 7, 8, 9, 16, 17, 31, 96, 255};
    for (int width = 1; width <= TERN_DELTA_WIDTH; width++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (int kind = 0; kind < (int)CHECK_HUGE; kind++)
                conv_case(width, lengths[i], kind);
}

void check_delta(void)
{
    CHECK_PART(delta.scan, part_scan);
    CHECK_PART(delta.conv, part_conv);
}
