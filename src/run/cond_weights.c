/* Key conditioning from weights alone, before any text: norm weights say which dims are large, a bias of the keys is
 * their mean (design: docs/kv-cache.md). */
#include "run/run.h"

#include <math.h>
#include "base/mem.h"

#define RIDGE   0.03 /* of the average dim, added to every dim's energy */
#define HORIZON 8192 /* positions that a mean after the rotation is taken over */
#define SAMPLE  16   /* rows of a head's key weights that stand for all */
#define HARD    4    /* times what varies: more of a bias than that in the codes, and 4 bits hold the bias alone */

double tern_cond_choose_pairs(struct tern_kv_cond *c, const struct tern_kv_decl *d, struct tern_pair_mean *s,
                              double varying)
{
    const int n_pairs = d->n_rot / 2;
    double rotating = 0;
    for (int i = 0; i < n_pairs; i++)
        rotating += fmax(s[i].re * s[i].re + s[i].im * s[i].im - s[i].after2, 0);
    if (rotating < 2 * varying)
        return rotating;
    while (rotating > varying / 16 && c->n_pairs < TERN_KV_MAX_PAIRS) {
        int best = -1;
        double most = 0;
        for (int i = 0; i < n_pairs; i++) {
            double gain = s[i].re * s[i].re + s[i].im * s[i].im - s[i].after2;
            if (gain > most) {
                most = gain;
                best = i;
            }
        }
        if (best < 0)
            break;
        c->pairs[c->n_pairs++] = tern_kv_cond_pair(d, best, (float)s[best].re, (float)s[best].im);
        s[best].after2 = INFINITY; /* taken */
        rotating -= most;
    }
    return rotating;
}

/* ---- norm weights ------------------------------------------------------------------------------------------------ */

int tern_cond_from_norms(struct tern_kv_cond_set **out, const struct tern_net *net, const struct tern_kv_decl *decl,
                         tern_error *err)
{
    int rc = 0;
    const struct tern_desc *d = &net->desc;
    float *wq = NULL, *wk = NULL;
    *out = NULL;
    for (int i = 0; i < d->n_layers; i++)
        if (decl[i].n_heads && (!net->layers[i][TERN_SLOT_Q_NORM].vec.mem || !net->layers[i][TERN_SLOT_K_NORM].vec.mem))
            return 0;
    TERN_TRY(tern_kv_cond_new(out, decl, d->n_layers, err));
    for (int i = 0; i < d->n_layers; i++) {
        const struct tern_layer_desc *l = &d->layers[i];
        double q2[TERN_KVQ_MAX_DIM], k2[TERN_KVQ_MAX_DIM], all_q2 = 0, all_k2 = 0;
        if (!decl[i].n_heads)
            continue;
        TERN_TRY(tern_net_vector(&wq, net, net->layers[i][TERN_SLOT_Q_NORM].vec, (size_t)l->at.dim_k, err));
        TERN_TRY(tern_net_vector(&wk, net, net->layers[i][TERN_SLOT_K_NORM].vec, (size_t)l->at.dim_k, err));
        for (int e = 0; e < l->at.dim_k; e++) {
            q2[e] = (double)wq[e] * (double)wq[e];
            k2[e] = (double)wk[e] * (double)wk[e];
        }
        tern_free(wq);
        tern_free(wk);
        wq = wk = NULL;
        /* The rotation that follows mixes the two dims of a pair. */
        for (int p = 0; p < decl[i].n_rot / 2 && !l->attention.qk_norm_after_rope; p++) {
            struct tern_kv_pair pair = tern_kv_cond_pair(&decl[i], p, 0, 0);
            q2[pair.a] = q2[pair.b] = 0.5 * (q2[pair.a] + q2[pair.b]);
            k2[pair.a] = k2[pair.b] = 0.5 * (k2[pair.a] + k2[pair.b]);
        }
        for (int e = 0; e < l->at.dim_k; e++) {
            all_q2 += q2[e] / l->at.dim_k;
            all_k2 += k2[e] / l->at.dim_k;
        }
        for (int h = 0; h < l->at.n_kv_heads; h++)
            for (int e = 0; e < l->at.dim_k; e++)
                tern_kv_cond_vectors(*out, i, h)[l->at.dim_k + e] =
                    (float)sqrt(sqrt((q2[e] / all_q2 + RIDGE) / (k2[e] / all_k2 + RIDGE)));
    }
    tern_kv_cond_seal(*out, decl);
out:
    tern_free(wq);
    tern_free(wk);
    return rc;
}

/* ---- key bias ---------------------------------------------------------------------------------------------------- */

/* The mean of cos and sin of freq * p, p = 0 .. n-1. */
static void mean_turn(double freq, int n, double *co, double *si)
{
    double half = sin(0.5 * freq), size = fabs(half) < 1e-9 ? 1 : sin(0.5 * freq * n) / (n * half);
    *co = size * cos(0.5 * freq * (n - 1));
    *si = size * sin(0.5 * freq * (n - 1));
}

/* What a head's keys vary by, as a sum over its dims: the squares of their weights, for inputs of unit variance.  row:
 * room for one. */
static double varying_energy(struct tern_dev *dev, const struct tern_dev_weight *keys, const float *norm, int head,
                             int dim, float *row)
{
    double sum = 0;
    const int step = dim > SAMPLE ? dim / SAMPLE : 1, rows = (dim + step - 1) / step;
    for (int j = 0; j < dim; j += step) {
        dev->ops->weight_out(dev, row, keys, 0, head * dim + j, 1);
        dev->ops->sync(dev);
        for (int i = 0; i < keys->k; i++) {
            double x = (double)row[i] * (norm ? (double)norm[i] : 1.0);
            sum += x * x;
        }
    }
    return sum * dim / rows;
}

/* Mean and pairs of one head; returns how many times what varies of its keys is left of the bias. */
static double center_head(struct tern_kv_cond *c, float *mean, const struct tern_kv_decl *d, const float *bias,
                          double magnitude, int n_positions, double varying)
{
    struct tern_pair_mean s[TERN_KVQ_MAX_DIM / 2];
    const int n_pairs = d->n_rot / 2;
    for (int e = 0; e < d->dim_k; e++)
        mean[e] = bias[e];
    for (int i = 0; i < n_pairs; i++) {
        double co, si;
        struct tern_kv_pair p = tern_kv_cond_pair(d, i, 0, 0);
        s[i].re = magnitude * (double)bias[p.a];
        s[i].im = magnitude * (double)bias[p.b];
        mean_turn((double)p.freq, n_positions, &co, &si);
        mean[p.a] = (float)(s[i].re * co - s[i].im * si);
        mean[p.b] = (float)(s[i].re * si + s[i].im * co);
        s[i].after2 = (s[i].re * s[i].re + s[i].im * s[i].im) * (co * co + si * si);
    }
    double left = tern_cond_choose_pairs(c, d, s, varying);
    for (int i = 0; i < c->n_pairs; i++)
        mean[c->pairs[i].a] = mean[c->pairs[i].b] = 0;
    return varying > 0 ? left / varying : left > 0 ? INFINITY : 0;
}

static bool has_key_bias(const struct tern_net *net, const struct tern_kv_decl *decl)
{
    bool any = false;
    for (int i = 0; i < net->desc.n_layers; i++) {
        if (decl[i].n_heads &&
            net->layers[i][TERN_SLOT_K_NORM].vec.mem) /* what the norm makes of a bias is not known */
            return false;
        any |= decl[i].n_heads && net->layers[i][TERN_SLOT_K_BIAS].vec.mem;
    }
    return any;
}

int tern_cond_from_bias(struct tern_kv_cond_set **out, const struct tern_net *net, struct tern_kv_decl *decl,
                        tern_error *err)
{
    int rc = 0;
    const struct tern_desc *d = &net->desc;
    const int n_positions = d->ctx < HORIZON ? d->ctx : HORIZON;
    float *row = NULL, *bias = NULL, *norm = NULL;
    struct tern_dev *dev = NULL;
    *out = NULL;
    if (!has_key_bias(net, decl))
        return 0;
    TERN_TRY(net->dev->ops->open(&dev, net->dev->ops, NULL, err));
    TERN_TRY(tern_alloc(&row, (size_t)d->n_embd, sizeof *row, err));
    TERN_TRY(tern_kv_cond_new(out, decl, d->n_layers, err));
    for (int i = 0; i < d->n_layers; i++) {
        const struct tern_layer_desc *l = &d->layers[i];
        const struct tern_weights *w = net->layers[i];
        const struct tern_dev_vec before = w[TERN_SLOT_ATTN_NORM].vec;
        if (!decl[i].n_heads || !w[TERN_SLOT_K_BIAS].vec.mem)
            continue;
        TERN_TRY(
            tern_net_vector(&bias, net, w[TERN_SLOT_K_BIAS].vec, (size_t)l->at.n_kv_heads * (size_t)l->at.dim_k, err));
        if (before.mem)
            TERN_TRY(tern_net_vector(&norm, net, before, (size_t)d->n_embd, err));
        double magnitude = l->at.rope >= 0 ? (double)d->ropes[l->at.rope].magnitude : 1;
        for (int h = 0; h < l->at.n_kv_heads; h++) {
            double varying = varying_energy(dev, &w[TERN_SLOT_K].mat, norm, h, l->at.dim_k, row);
            double left = center_head(&(*out)->layers[i][h], tern_kv_cond_vectors(*out, i, h), &decl[i],
                                      bias + (size_t)h * (size_t)l->at.dim_k, magnitude, n_positions, varying);
            if (left > HARD)
                decl[i].hard_keys = "the key bias turns in more pairs than can be kept out of codes";
        }
        tern_free(bias);
        tern_free(norm);
        bias = norm = NULL;
    }
    tern_kv_cond_seal(*out, decl);
out:
    tern_free(row);
    tern_free(bias);
    tern_free(norm);
    tern_dev_close(dev);
    if (rc < 0) {
        tern_kv_cond_free(*out);
        *out = NULL;
    }
    return rc;
}
