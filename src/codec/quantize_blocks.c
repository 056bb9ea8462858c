/* From 32-bit floats to the types of model files: what `tern convert` writes.  docs/convert.md has the method and its
 * errors.
 *
 * A scale is looked for, not computed: rounding is tried with a grid of scales around the one that spends all codes on
 * the range, each set of codes gets the scale (and minimum) that fits it best in the sense of weighted squares, and the
 * best of all counts.  A weight is |x| plus the root mean square of its block.  All sums are doubles in a fixed order,
 * so the bytes depend on the values alone. */
#include "codec/codec.h"

#include <math.h>
#include <string.h>
#include "base/fp16.h"
#include "codec/weight_block.h"

enum { SMALL = 32, SUPER = TERN_SUPER, STEPS = 10 };

static int clamp(long v, int lo, int hi)
{
    return v < lo ? lo : v > hi ? hi : (int)v;
}

static void put_f16(uint8_t *p, double v)
{
    uint16_t h = tern_f32_to_f16((float)v);
    memcpy(p, &h, 2);
}

/* v as the block will hold it. */
static double as_f16(double v)
{
    return (double)tern_f16_to_f32(tern_f32_to_f16((float)v));
}

static void set_weights(double *w, const float *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    const double rms = sqrt(sum / n);
    for (int i = 0; i < n; i++)
        w[i] = rms + fabs((double)x[i]);
}

/* The value of greatest magnitude, with its sign; the first one where two differ in sign alone. */
static double extreme(const float *x, int n)
{
    double e = 0;
    for (int i = 0; i < n; i++)
        if (fabs((double)x[i]) > fabs(e))
            e = (double)x[i];
    return e;
}

/* ---- values d * q, q from -half to half - 1 ---------------------------------------------------------------------- */

static int code_of(double x, double inverse, int half)
{
    return clamp(lrint(x * inverse), -half, half - 1);
}

/* The error of the best codes for a scale; inverse 0: all codes are 0. */
static double scale_error(const float *x, const double *w, int n, double d, int half)
{
    const double inverse = d != 0 ? 1 / d : 0;
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double e = (double)x[i] - d * code_of((double)x[i], inverse, half);
        sum += w[i] * e * e;
    }
    return sum;
}

static double fit_scale(const float *x, const double *w, int n, int half)
{
    const double e = extreme(x, n);
    double best = 0, scale = 0;
    if (e == 0)
        return 0;
    for (int step = -STEPS; step <= STEPS; step++) {
        const double inverse = -(half + 0.1 * step) / e;
        double xq = 0, qq = 0;
        for (int i = 0; i < n; i++) {
            double q = code_of((double)x[i], inverse, half);
            xq += w[i] * (double)x[i] * q;
            qq += w[i] * q * q;
        }
        if (qq > 0 && xq * xq > best * qq) {
            best = xq * xq / qq;
            scale = xq / qq;
        }
    }
    return scale;
}

/* The scale of one block: the fitted one, unless rounding to 16 bits made it worse than the plain rule's. */
static double block_scale(const float *x, int half)
{
    double w[SMALL];
    set_weights(w, x, SMALL);
    const double fitted = as_f16(fit_scale(x, w, SMALL, half)), plain = as_f16(extreme(x, SMALL) / -half);
    return scale_error(x, w, SMALL, fitted, half) <= scale_error(x, w, SMALL, plain, half) ? fitted : plain;
}

static bool block_q8_0(uint8_t *out, const float *x)
{
    const double d = as_f16(fabs(extreme(x, SMALL)) / 127), inverse = d > 0 ? 1 / d : 0;
    put_f16(out, d);
    for (int i = 0; i < SMALL; i++)
        out[2 + i] = (uint8_t)(int8_t)clamp(lrint((double)x[i] * inverse), -127, 127);
    return isfinite(d);
}

static bool block_q4_0(uint8_t *out, const float *x)
{
    const double d = block_scale(x, 8), inverse = d != 0 ? 1 / d : 0;
    put_f16(out, d);
    for (int i = 0; i < SMALL / 2; i++)
        out[2 + i] = (uint8_t)((code_of((double)x[i], inverse, 8) + 8) |
                               (code_of((double)x[i + SMALL / 2], inverse, 8) + 8) << 4);
    return isfinite(d);
}

static bool block_q5_0(uint8_t *out, const float *x)
{
    const double d = block_scale(x, 16), inverse = d != 0 ? 1 / d : 0;
    memset(out, 0, 22);
    put_f16(out, d);
    for (int i = 0; i < SMALL; i++) {
        int q = code_of((double)x[i], inverse, 16) + 16;
        out[2 + i / 8] = (uint8_t)(out[2 + i / 8] | (q >> 4) << i % 8);
        out[6 + i % 16] = (uint8_t)(out[6 + i % 16] | (q & 15) << i / 16 * 4);
    }
    return isfinite(d);
}

/* ---- Q6_K: sixteen groups, d * a * q, a of 8 bits ---------------------------------------------------------------- */

enum { Q6_GROUPS = 16, Q6_GROUP = 16 };

/* The integer next to `ideal` that makes the least error. */
static int nearby_scale(const float *x, const double *w, double d, double ideal, double *error)
{
    int best = 0;
    const int near = d != 0 ? clamp(lrint(ideal / d), -127, 127) : 0;
    *error = INFINITY;
    for (int a = clamp(near - 1, -127, 127); a <= clamp(near + 1, -127, 127); a++) {
        double e = scale_error(x, w, Q6_GROUP, d * a, 32);
        if (e < *error) {
            *error = e;
            best = a;
        }
    }
    return best;
}

/* The scales of all groups for d; returns the error. */
static double q6_scales(int a[Q6_GROUPS], const float *x, const double *w, double d, const double *ideal)
{
    double sum = 0, e;
    for (int g = 0; g < Q6_GROUPS; g++) {
        a[g] = nearby_scale(x + Q6_GROUP * g, w + Q6_GROUP * g, d, ideal[g], &e);
        sum += e;
    }
    return sum;
}

/* The d that fits the codes of these scales best. */
static double q6_refit(const float *x, const double *w, double d, const int a[Q6_GROUPS])
{
    double xq = 0, qq = 0;
    for (int i = 0; i < SUPER; i++) {
        const int g = i / Q6_GROUP;
        const double scale = d * a[g];
        double q = scale != 0 ? a[g] * (double)code_of((double)x[i], 1 / scale, 32) : 0;
        xq += w[i] * (double)x[i] * q;
        qq += w[i] * q * q;
    }
    return qq > 0 ? xq / qq : d;
}

static bool block_q6_k(uint8_t *out, const float *x)
{
    double w[SUPER], ideal[Q6_GROUPS], largest = 0;
    int a[Q6_GROUPS], other[Q6_GROUPS];
    set_weights(w, x, SUPER);
    for (int g = 0; g < Q6_GROUPS; g++) {
        ideal[g] = fit_scale(x + Q6_GROUP * g, w + Q6_GROUP * g, Q6_GROUP, 32);
        largest = fmax(largest, fabs(ideal[g]));
    }
    double d = as_f16(largest / 127);
    const double error = q6_scales(a, x, w, d, ideal), again = as_f16(q6_refit(x, w, d, a));
    if (q6_scales(other, x, w, again, ideal) < error) {
        d = again;
        memcpy(a, other, sizeof a);
    }
    memset(out, 0, 210);
    put_f16(out + 208, d);
    for (int g = 0; g < Q6_GROUPS; g++)
        out[192 + g] = (uint8_t)(int8_t)a[g];
    for (int i = 0; i < SUPER; i++) {
        const int g = i / Q6_GROUP;
        const double scale = d * a[g];
        const int q = code_of((double)x[i], scale != 0 ? 1 / scale : 0, 32) + 32;
        const int upper = i / 128, j = i % 128 / 32, l = i % 32;
        uint8_t *lo = out + 64 * upper + j % 2 * 32 + l, *hi = out + 128 + 32 * upper + l;
        *lo = (uint8_t)(*lo | (q & 15) << j / 2 * 4);
        *hi = (uint8_t)(*hi | (q >> 4) << 2 * j);
    }
    return isfinite(d);
}

/* ---- Q4_K: eight groups, d * a * q - m * b, a and b of 6 bits ---------------------------------------------------- */

enum { Q4_GROUPS = 8, Q4_GROUP = 32, Q4_MOST = 15, A_MOST = 63 };

struct affine {
    double scale, min; /* scale * q - min, neither below 0 */
};

static int code_above(double x, double inverse, double min)
{
    return clamp(lrint((x + min) * inverse), 0, Q4_MOST);
}

static double affine_error(const float *x, const double *w, struct affine f)
{
    const double inverse = f.scale != 0 ? 1 / f.scale : 0;
    double sum = 0;
    for (int i = 0; i < Q4_GROUP; i++) {
        double e = (double)x[i] - (f.scale * code_above((double)x[i], inverse, f.min) - f.min);
        sum += w[i] * e * e;
    }
    return sum;
}

/* What the best scale and minimum of given codes follow from. */
struct sums {
    double w, x, q, xq, qq;
};

static struct affine solve(const struct sums *s)
{
    struct affine f = {0, 0};
    const double det = s->w * s->qq - s->q * s->q;
    if (det > 0) {
        f.scale = (s->w * s->xq - s->x * s->q) / det;
        f.min = (f.scale * s->q - s->x) / s->w;
    }
    if (!(det > 0) || f.min < 0 || f.scale < 0) {
        f.min = 0;
        f.scale = s->qq > 0 && s->xq > 0 ? s->xq / s->qq : 0;
    }
    return f;
}

/* Of the codes that the sums are of, less the part that does not depend on f. */
static double error_of(const struct sums *s, struct affine f)
{
    return f.scale * (f.scale * s->qq - 2 * s->xq) + f.min * (f.min * s->w + 2 * s->x - 2 * f.scale * s->q);
}

static struct affine fit_affine(const float *x, const double *w)
{
    double lo = 0, hi = (double)x[0], best, squares = 0;
    for (int i = 0; i < Q4_GROUP; i++) {
        squares += w[i] * (double)x[i] * (double)x[i];
        lo = fmin(lo, (double)x[i]);
        hi = fmax(hi, (double)x[i]);
    }
    struct affine found = {.scale = (hi - lo) / Q4_MOST, .min = -lo};
    if (!(hi > lo))
        return found;
    best = affine_error(x, w, found);
    for (int step = -STEPS; step <= STEPS; step++) {
        struct sums s = {0};
        const double inverse = (Q4_MOST + 0.1 * step) / (hi - lo);
        for (int i = 0; i < Q4_GROUP; i++) {
            const double q = code_above((double)x[i], inverse, -lo);
            s.w += w[i];
            s.x += w[i] * (double)x[i];
            s.q += w[i] * q;
            s.xq += w[i] * (double)x[i] * q;
            s.qq += w[i] * q * q;
        }
        const struct affine f = solve(&s);
        const double e = error_of(&s, f) + squares;
        if (e < best) {
            best = e;
            found = f;
        }
    }
    return found;
}

struct q4_block {
    double d, m;
    int a[Q4_GROUPS], b[Q4_GROUPS];
};

/* The integers next to the ideal ones that make the least error. */
static double q4_nearby(struct q4_block *k, int g, const float *x, const double *w, struct affine ideal)
{
    double least = INFINITY;
    const int a0 = k->d > 0 ? clamp(lrint(ideal.scale / k->d), 0, A_MOST) : 0;
    const int b0 = k->m > 0 ? clamp(lrint(ideal.min / k->m), 0, A_MOST) : 0;
    for (int a = clamp(a0 - 1, 0, A_MOST); a <= clamp(a0 + 1, 0, A_MOST); a++)
        for (int b = clamp(b0 - 1, 0, A_MOST); b <= clamp(b0 + 1, 0, A_MOST); b++) {
            double e = affine_error(x, w, (struct affine){.scale = k->d * a, .min = k->m * b});
            if (e < least) {
                least = e;
                k->a[g] = a;
                k->b[g] = b;
            }
        }
    return least;
}

static double q4_scales(struct q4_block *k, const float *x, const double *w, const struct affine *ideal)
{
    double sum = 0;
    for (int g = 0; g < Q4_GROUPS; g++)
        sum += q4_nearby(k, g, x + Q4_GROUP * g, w + Q4_GROUP * g, ideal[g]);
    return sum;
}

/* The d and m that fit the codes of these scales best: x is d * (a q) - m * b. */
static void q4_refit(struct q4_block *to, const struct q4_block *k, const float *x, const double *w)
{
    double pp = 0, pb = 0, bb = 0, xp = 0, xb = 0;
    *to = *k;
    for (int i = 0; i < SUPER; i++) {
        const int g = i / Q4_GROUP;
        const double scale = k->d * k->a[g], b = k->b[g];
        const double p = scale > 0 ? k->a[g] * (double)code_above((double)x[i], 1 / scale, k->m * b) : 0;
        pp += w[i] * p * p;
        pb += w[i] * p * b;
        bb += w[i] * b * b;
        xp += w[i] * (double)x[i] * p;
        xb += w[i] * (double)x[i] * b;
    }
    const double det = pp * bb - pb * pb;
    if (det > 0) {
        to->d = as_f16(fmax((xp * bb - xb * pb) / det, 0));
        to->m = as_f16(fmax((xp * pb - xb * pp) / det, 0));
    } else if (pp > 0) {
        to->d = as_f16(fmax(xp / pp, 0));
    }
}

static void put_q4_scales(uint8_t s[12], const struct q4_block *k)
{
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(k->a[j] | (k->a[j + 4] >> 4) << 6);
        s[j + 4] = (uint8_t)(k->b[j] | (k->b[j + 4] >> 4) << 6);
        s[j + 8] = (uint8_t)((k->a[j + 4] & 15) | (k->b[j + 4] & 15) << 4);
    }
}

static bool block_q4_k(uint8_t *out, const float *x)
{
    double w[SUPER], scale = 0, min = 0;
    struct affine ideal[Q4_GROUPS];
    struct q4_block k = {0}, other;
    set_weights(w, x, SUPER);
    for (int g = 0; g < Q4_GROUPS; g++) {
        ideal[g] = fit_affine(x + Q4_GROUP * g, w + Q4_GROUP * g);
        scale = fmax(scale, ideal[g].scale);
        min = fmax(min, ideal[g].min);
    }
    k.d = as_f16(scale / A_MOST);
    k.m = as_f16(min / A_MOST);
    if (!isfinite(k.d) || !isfinite(k.m))
        return false;
    const double error = q4_scales(&k, x, w, ideal);
    q4_refit(&other, &k, x, w);
    if (isfinite(other.d) && isfinite(other.m) && q4_scales(&other, x, w, ideal) < error)
        k = other;
    memset(out, 0, 144);
    put_f16(out, k.d);
    put_f16(out + 2, k.m);
    put_q4_scales(out + 4, &k);
    for (int i = 0; i < SUPER; i++) {
        const int g = i / Q4_GROUP, l = i % Q4_GROUP;
        const double step = k.d * k.a[g];
        const int q = code_above((double)x[i], step > 0 ? 1 / step : 0, k.m * k.b[g]);
        uint8_t *p = out + 16 + g / 2 * 32 + l;
        *p = (uint8_t)(*p | q << g % 2 * 4);
    }
    return true;
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

static bool element_f32(uint8_t *out, const float *x)
{
    memcpy(out, x, sizeof *x);
    return true;
}

static bool element_f16(uint8_t *out, const float *x)
{
    const uint16_t h = tern_f32_to_f16(*x);
    memcpy(out, &h, sizeof h);
    return (h & 0x7C00u) != 0x7C00u;
}

static bool element_bf16(uint8_t *out, const float *x)
{
    const uint16_t h = tern_f32_to_bf16(*x);
    memcpy(out, &h, sizeof h);
    return (h & 0x7F80u) != 0x7F80u;
}

static const struct {
    int type;
    bool (*block)(uint8_t *out, const float *x); /* false: the values are too large for it */
} writers[] = {
    {TERN_F32, element_f32}, {TERN_F16, element_f16}, {TERN_BF16, element_bf16}, {TERN_Q8_0, block_q8_0},
    {TERN_Q4_0, block_q4_0}, {TERN_Q5_0, block_q5_0}, {TERN_Q4_K, block_q4_k},   {TERN_Q6_K, block_q6_k},
};

int tern_quantize(void *dst, int type, const float *src, size_t n, tern_error *err)
{
    const size_t elems = (size_t)tern_type_elems(type), bytes = (size_t)tern_type_bytes(type);
    size_t i = 0;
    uint8_t *out = dst;
    while (i < sizeof writers / sizeof *writers && writers[i].type != type)
        i++;
    if (i == sizeof writers / sizeof *writers)
        return tern_err_set(err, TERN_EUNSUPPORTED, "weights of %s cannot be written", tern_type_name(type));
    if (n % elems)
        return tern_err_set(err, TERN_EINVAL, "%zu elements are not whole blocks of %s", n, tern_type_name(type));
    for (size_t e = 0; e < n; e++)
        if (!isfinite(src[e]))
            return tern_err_set(err, TERN_EFORMAT, "element %zu is %s", e, isnan(src[e]) ? "not a number" : "infinite");
    for (size_t e = 0; e < n; e += elems, out += bytes)
        if (!writers[i].block(out, src + e))
            return tern_err_set(err, TERN_EUNSUPPORTED, "the values from element %zu on are too large for %s", e,
                                tern_type_name(type));
    return 0;
}
