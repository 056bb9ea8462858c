/* Attention on compressed keys and values, by libternkv alone:
 *
 *   cc kvq_npy.c $(pkg-config --static --cflags --libs ternkv) -o kvq_npy
 *   ./kvq_npy l4 l3 q.npy k.npy v.npy          float32 arrays [n_q][dim], [n][dim], [n][dim]
 *
 * prints how much smaller the codes are than 16 bits, and how far the output is from exact attention. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tern/kvq.h>

static void need(int good, const char *what, const char *why)
{
    if (!good) {
        (void)fprintf(stderr, "kvq_npy: %s: %s\n", what, why);
        exit(1);
    }
}

static void *block(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    need(p != NULL, "memory", "there is not enough");
    return memset(p, 0, bytes);
}

struct matrix {
    size_t rows, cols;
    float *x;
};

/* A two-dimensional float32 array in C order, .npy version 1. */
static struct matrix load(const char *path)
{
    struct matrix m = {0};
    unsigned char start[10];
    char text[65536] = "";
    FILE *f = fopen(path, "rb");
    need(f && fread(start, 1, 10, f) == 10 && !memcmp(start, "\x93NUMPY\x01", 7), path, "not an .npy file, version 1");
    size_t n = start[8] | (size_t)start[9] << 8;
    const char *shape = fread(text, 1, n, f) == n ? strstr(text, "'shape': (") : NULL;
    need(shape && strstr(text, "'<f4'") && strstr(text, "'fortran_order': False") &&
             sscanf(shape, "'shape': (%zu, %zu)", &m.rows, &m.cols) == 2 && m.rows - 1 < 1 << 24 && m.cols - 1 < 512,
         path, "not a float32 array [rows][columns] in C order, with at most 512 columns");
    m.x = block(m.rows * m.cols * sizeof *m.x);
    need(fread(m.x, m.cols * sizeof *m.x, m.rows, f) == m.rows, path, "shorter than its shape");
    (void)fclose(f);
    return m;
}

/* The next page of the online softmax of one query head: s[64] of which n count become weights; o and l shrink. */
static float soften(float *s, int n, float *m, float *l)
{
    float top = *m;
    for (int t = 0; t < n; t++)
        top = fmaxf(top, s[t]);
    float shrink = expf(*m - top);
    *m = top;
    *l *= shrink;
    for (int t = 0; t < 64; t++)
        *l += s[t] = t < n ? expf(s[t] - top) : 0;
    return shrink;
}

/* o[q.rows][v.cols] = attention on codes, which are made page by page here; an engine would keep the pages. */
static void attend(float *o, ternkv_side *ks, ternkv_side *vs, struct matrix q, struct matrix k, struct matrix v)
{
    const ternkv_info *ki = ternkv_get_info(ks), *vi = ternkv_get_info(vs);
    const int n_q = (int)q.rows;
    void *kp = block(ki->page_bytes), *vp = block(vi->page_bytes), *tmp = block(ki->scratch_bytes + vi->scratch_bytes);
    ternkv_query *query = block(ternkv_query_bytes(ks, n_q));
    float *s = block(q.rows * 64 * 4), *m = block(q.rows * 4), *l = block(q.rows * 4), *shrink = block(q.rows * 4);
    tern_error err;
    for (size_t i = 0; i < q.rows; i++)
        m[i] = -INFINITY;
    need(ternkv_prep(ks, query, q.x, n_q, &err) == 0, "query", err.msg);
    for (size_t t = 0; t < k.rows; t += 64) {
        int n = k.rows - t < 64 ? (int)(k.rows - t) : 64;
        need(ternkv_encode(ks, kp, k.x + t * k.cols, n, tmp, &err) == 0, "keys", err.msg);
        need(ternkv_encode(vs, vp, v.x + t * v.cols, n, tmp, &err) == 0, "values", err.msg);
        need(ternkv_score(ks, s, query, kp, &err) == 0, "scores", err.msg);
        for (size_t i = 0; i < q.rows; i++)
            shrink[i] = soften(s + i * 64, n, &m[i], &l[i]);
        need(ternkv_accum(vs, o, s, vp, shrink, n_q, &err) == 0, "weights", err.msg);
    }
    need(ternkv_finish(vs, o, n_q, &err) == 0, "output", err.msg);
    for (size_t j = 0; j < q.rows * v.cols; j++)
        o[j] /= l[j / v.cols];
    void *all[] = {kp, vp, tmp, query, s, m, l, shrink};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* |o - e| / |e|, where e is attention in double precision. */
static double distance(const float *o, struct matrix q, struct matrix k, struct matrix v)
{
    double off = 0, all = 0, *w = block(k.rows * sizeof *w);
    for (size_t i = 0; i < q.rows; i++) {
        double top = -INFINITY, sum = 0;
        for (size_t t = 0; t < k.rows; t++) {
            w[t] = 0;
            for (size_t d = 0; d < k.cols; d++)
                w[t] += (double)q.x[i * k.cols + d] * (double)k.x[t * k.cols + d];
            top = fmax(top, w[t]);
        }
        for (size_t t = 0; t < k.rows; t++)
            sum += w[t] = exp(w[t] - top);
        for (size_t d = 0; d < v.cols; d++) {
            double exact = 0;
            for (size_t t = 0; t < k.rows; t++)
                exact += w[t] / sum * (double)v.x[t * v.cols + d];
            off += pow((double)o[i * v.cols + d] - exact, 2);
            all += exact * exact;
        }
    }
    free(w);
    return sqrt(off / all);
}

int main(int argc, char **argv)
{
    need(argc == 6, "usage", "kvq_npy KEY-SCHEME VALUE-SCHEME Q.npy K.npy V.npy");
    tern_error err;
    ternkv_side *ks, *vs;
    struct matrix q = load(argv[3]), k = load(argv[4]), v = load(argv[5]);
    const ternkv_params kp = {.scheme = argv[1], .dim = (int)k.cols, .key = true};
    const ternkv_params vp = {.scheme = argv[2], .dim = (int)v.cols};
    need(q.cols == k.cols && k.rows == v.rows, "shapes", "must be [n_q][dim], [n][dim], [n][any]");
    need(q.rows <= TERNKV_MAX_QUERIES, "queries", "too many for one call");
    need(ternkv_open(&ks, &kp, &err) == 0, "keys", err.msg);
    need(ternkv_open(&vs, &vp, &err) == 0, "values", err.msg);
    for (size_t j = 0; j < q.rows * q.cols; j++)
        q.x[j] /= sqrtf((float)q.cols);
    float *o = block(q.rows * v.cols * sizeof *o);
    attend(o, ks, vs, q, k, v);
    double bytes = (double)(ternkv_get_info(ks)->page_bytes + ternkv_get_info(vs)->page_bytes);
    (void)printf("k=%s v=%s: %.2f times smaller than 16 bits, relative error of the output %.3g\n", argv[1], argv[2],
                 64 * 2 * (double)(k.cols + v.cols) / bytes, distance(o, q, k, v));
    ternkv_close(&ks);
    ternkv_close(&vs);
    void *all[] = {q.x, k.x, v.x, o};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    return 0;
}
