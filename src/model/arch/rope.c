/* Rotary position embeddings: what the file says about them, and the frequencies that follow.
 *
 *   linear     every frequency divided by the factor
 *   yarn       Peng et al. 2023: pairs that turn less than beta_slow times in the original context are divided by the
 *              factor, those that turn more than beta_fast times are kept, a ramp in between; cos and sin grow
 *   llama3     Llama 3.1: the same by wavelength, ramp linear in the frequency
 *   longrope   Ding et al. 2024: one divisor per pair from the file, two sets of them
 *              (docs/decisions/011-longrope-by-context.md says which one counts) */
#include "model/arch/arch.h"

#include <math.h>
#include <string.h>
#include "base/mem.h"

static const char *const names[] = {"none", "linear", "yarn", "llama3", "longrope"}; /* enum tern_rope_scaling */

/* Without a type a factor means linear, as other readers of GGUF take it; tensors of divisors mean longrope. */
static int read_scaling(struct tern_rope *r, const struct tern_file *f, const char *arch, tern_error *err)
{
    char key[160];
    struct tern_str type;
    int rc = tern_file_get_str(f, tern_arch_key(key, sizeof key, arch, "rope.scaling.type"), &type, err);
    if (rc < 0)
        return rc;
    r->scaling = type.p ? TERN_ROPE_PLAIN : TERN_ROPE_LINEAR;
    size_t i = 0, n = sizeof names / sizeof *names;
    while (type.p && i < n && (strlen(names[i]) != type.n || memcmp(names[i], type.p, type.n) != 0))
        i++;
    if (i == n)
        return tern_err_set(err, TERN_EUNSUPPORTED, "%s: RoPE scaling \"%.*s\" (%s) is not supported",
                            tern_file_path(f), (int)(type.n < 40 ? type.n : 40), type.p, key);
    if (type.p)
        r->scaling = (enum tern_rope_scaling)i;
    bool tensors = tern_file_tensor(f, "rope_factors_long.weight") || tern_file_tensor(f, "rope_factors_short.weight");
    if ((tensors || r->scaling == TERN_ROPE_LONG) &&
        (!tern_file_tensor(f, "rope_factors_long.weight") || !tern_file_tensor(f, "rope_factors_short.weight")))
        return tern_err_set(err, TERN_EFORMAT,
                            "%s: longrope wants both tensors, \"rope_factors_long.weight\" and "
                            "\"rope_factors_short.weight\"",
                            tern_file_path(f));
    if (tensors)
        r->scaling = TERN_ROPE_LONG;
    return 0;
}

/* What cos and sin are multiplied by: attn_factor, for YaRN on top of what the scaling itself asks for. */
static int read_magnitude(struct tern_rope *r, const struct tern_file *f, const char *arch, tern_error *err)
{
    int rc = 0;
    char key[160];
    double attn, yarn_attn, log_mul, extend;
#define KEY(name) tern_arch_key(key, sizeof key, arch, "rope.scaling." name)
    TERN_TRY(tern_file_get_float(f, KEY("attn_factor"), 1, &attn, err));
    TERN_TRY(tern_file_get_float(f, KEY("yarn_attn_factor"), 1, &yarn_attn, err));
    TERN_TRY(tern_file_get_float(f, KEY("yarn_log_multiplier"), 0, &log_mul, err));
    TERN_TRY(tern_file_get_float(f, KEY("yarn_ext_factor"), 1, &extend, err));
    if (extend != 1)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: %s = %g is not supported, only 1", tern_file_path(f), key, extend);
    if (r->scaling == TERN_ROPE_YARN) {
        double stretch = r->factor > 1 ? 0.1 * log((double)r->factor) : 0;
        attn *= yarn_attn * (stretch + 1) / (log_mul * stretch + 1);
    }
    if (!(attn > 0) || !(attn < 1e6))
        TERN_FAIL(err, TERN_EFORMAT, "%s: %s.rope.scaling: attention factors multiply to %g", tern_file_path(f), arch,
                  attn);
    r->magnitude = (float)attn;
#undef KEY
out:
    return rc;
}

int tern_rope_read(struct tern_rope *r, const struct tern_file *f, const char *arch, int n_rot, tern_error *err)
{
    int rc = 0;
    char key[160];
    double theta, factor, fast, slow;
    int64_t original;
#define KEY(name) tern_arch_key(key, sizeof key, arch, "rope." name)
    *r = (struct tern_rope){.n_rot = n_rot, .use_factors = tern_file_tensor(f, "rope_freqs.weight") != NULL};
    TERN_TRY(read_scaling(r, f, arch, err));
    const bool llama3 = r->scaling == TERN_ROPE_LLAMA3;
    TERN_TRY(tern_file_get_float(f, KEY("freq_base"), 10000.0, &theta, err));
    TERN_TRY(tern_file_get_float(f, KEY("scaling.factor"), 1.0, &factor, err));
    TERN_TRY(tern_file_get_int(f, KEY("scaling.original_context_length"), 0, 1, INT32_MAX, &original, err));
    if (r->scaling >= TERN_ROPE_YARN && !original)
        TERN_FAIL(err, TERN_EFORMAT, "%s: metadata key %s is missing, which RoPE scaling \"%s\" needs",
                  tern_file_path(f), key, names[r->scaling]);
    TERN_TRY(tern_file_get_float(f, llama3 ? KEY("scaling.high_freq_factor") : KEY("scaling.yarn_beta_fast"),
                                 llama3 ? 4 : 32, &fast, err));
    TERN_TRY(
        tern_file_get_float(f, llama3 ? KEY("scaling.low_freq_factor") : KEY("scaling.yarn_beta_slow"), 1, &slow, err));
    if (!(theta > 1) || !(factor > 0) || !(slow > 0) || !(fast >= slow))
        TERN_FAIL(err, TERN_EFORMAT,
                  "%s: %s has an impossible RoPE base (%g), factor (%g) or range of the ramp (%g to %g)",
                  tern_file_path(f), arch, theta, factor, slow, fast);
    r->theta = (float)theta;
    r->factor = r->scaling == TERN_ROPE_PLAIN || r->scaling == TERN_ROPE_LONG ? 1 : (float)factor;
    r->original = (int)original;
    r->fast = (float)fast;
    r->slow = (float)slow;
    TERN_TRY(read_magnitude(r, f, arch, err));
#undef KEY
out:
    return rc;
}

int tern_rope_read_local(struct tern_rope *r, const struct tern_file *f, const char *arch, int n_rot, tern_error *err)
{
    char key[160];
    double theta;
    int rc = tern_file_get_float(f, tern_arch_key(key, sizeof key, arch, "rope.freq_base_swa"), 10000.0, &theta, err);
    if (rc < 0)
        return rc;
    if (!(theta > 1))
        return tern_err_set(err, TERN_EFORMAT, "%s: %s = %g is impossible", tern_file_path(f), key, theta);
    *r = (struct tern_rope){.n_rot = n_rot, .theta = (float)theta, .factor = 1, .magnitude = 1};
    return 0;
}

/* The pair that turns `turns` times in the original context. */
static double yarn_pair(const struct tern_rope *r, double turns)
{
    const double two_pi = 6.283185307179586;
    return r->n_rot * log(r->original / (two_pi * turns)) / (2 * log((double)r->theta));
}

/* The share of pair i that keeps its frequency; the rest of it is divided by the factor. */
static double kept(const struct tern_rope *r, int i, double freq)
{
    const double two_pi = 6.283185307179586, turns = r->original * freq / two_pi;
    if (r->scaling == TERN_ROPE_YARN) {
        double lo = fmax(floor(yarn_pair(r, (double)r->fast)), 0);
        double hi = fmin(ceil(yarn_pair(r, (double)r->slow)), r->n_rot - 1);
        double ramp = (i - lo) / (hi > lo ? hi - lo : 0.001);
        return 1 - fmin(fmax(ramp, 0), 1);
    }
    if (r->scaling == TERN_ROPE_LLAMA3) {
        if (turns > (double)r->fast || turns < (double)r->slow || !(r->fast > r->slow))
            return turns < (double)r->slow ? 0 : 1;
        return (turns - (double)r->slow) / ((double)r->fast - (double)r->slow);
    }
    return 0;
}

static int make(float **out, const struct tern_rope *r, const float *divisors, tern_error *err)
{
    const int half = r->n_rot / 2;
    int rc = tern_alloc(out, (size_t)half, sizeof(float), err);
    if (rc < 0)
        return rc;
    for (int i = 0; i < half; i++) {
        double freq = pow((double)r->theta, -2.0 * i / r->n_rot), keep = kept(r, i, freq);
        freq = freq * keep + freq / (double)r->factor * (1 - keep);
        (*out)[i] = (float)(divisors ? freq / (double)divisors[i] : freq);
    }
    return 0;
}

int tern_rope_make(struct tern_rope *r, const float *factors, const float *factors_long, tern_error *err)
{
    int rc = make(&r->freq, r, factors, err);
    return rc == 0 && factors_long ? make(&r->freq_long, r, factors_long, err) : rc;
}

const float *tern_rope_freq(const struct tern_rope *r, int ctx)
{
    return tern_rope_is_long(r, ctx) ? r->freq_long : r->freq;
}

bool tern_rope_is_long(const struct tern_rope *r, int ctx)
{
    return r->scaling == TERN_ROPE_LONG && ctx > r->original;
}
