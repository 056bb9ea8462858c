/* Another scaling of the rotary embedding than the file's: for contexts beyond the one that was trained. */
#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "base/mem.h"

struct stretch {
    enum tern_rope_scaling scaling;
    double factor, original; /* 0: not said */
};

static bool word(const char **p, const char *w)
{
    size_t n = strlen(w);
    if (strncmp(*p, w, n) != 0)
        return false;
    *p += n;
    return true;
}

static bool number(const char **p, double *out)
{
    char *end;
    *out = strtod(*p, &end);
    const bool read = end != *p && isfinite(*out) && *out > 0;
    *p = end;
    return read;
}

/* "yarn,factor=4", "linear,factor=2,original=4096", "none". */
static int parse(struct stretch *s, const char *text, tern_error *err)
{
    const char *p = text;
    bool ok = true;
    *s = (struct stretch){.scaling = word(&p, "yarn")     ? TERN_ROPE_YARN
                                     : word(&p, "linear") ? TERN_ROPE_LINEAR
                                                          : TERN_ROPE_PLAIN};
    const bool none = s->scaling == TERN_ROPE_PLAIN;
    if (none && !word(&p, "none"))
        ok = false;
    while (ok && *p && !none)
        ok = word(&p, ",factor=") ? number(&p, &s->factor) : word(&p, ",original=") && number(&p, &s->original);
    if (!ok || *p || (!none && !(s->factor >= 1 && s->factor <= 1024)) || s->original > 1e9)
        return tern_err_set(err, TERN_EINVAL,
                            "RoPE scaling \"%.80s\": yarn,factor=N or linear,factor=N with N from 1 to 1024, perhaps "
                            "with ,original=TOKENS, or none",
                            text);
    return 0;
}

/* What this model's frequencies come from besides base and factor, or NULL. */
static const char *bound_by(const struct tern_desc *d, const struct tern_rope *r)
{
    if (r->scaling == TERN_ROPE_LONG)
        return "longrope, whose divisors are the file's";
    if (r->use_factors)
        return "divisors in the file";
    for (int i = 0; i < d->n_layers; i++)
        if (d->layers[i].mixer == TERN_MIX_LATENT)
            return "latent attention, whose scores are scaled with it";
        else if (d->layers[i].mixer == TERN_MIX_SPARSE)
            return "compressed rows, whose embedding is stretched apart from that of tokens";
    return NULL;
}

int tern_net_stretch(struct tern_net *n, const char *scaling, double base, tern_error *err)
{
    int rc = 0;
    struct tern_desc *d = &n->desc;
    struct tern_rope r = d->ropes[0];
    struct stretch s;
    const char *bound = bound_by(d, &r);
    if (!scaling && base == 0)
        return 0;
    if (!d->n_ropes || bound)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "RoPE cannot be scaled otherwise: the model has %s",
                  bound ? bound : "no rotary embedding");
    if (base != 0 && !(base > 1 && base <= 1e12))
        TERN_FAIL(err, TERN_EINVAL, "RoPE base %g must be above 1 and at most 1e12", base);
    if (base != 0)
        r.theta = (float)base;
    int ctx = d->ctx;
    if (scaling) {
        TERN_TRY(parse(&s, scaling, err));
        const double original = s.original > 0 ? s.original : r.original ? r.original : d->ctx;
        const double longest = s.scaling == TERN_ROPE_PLAIN ? original : original * s.factor;
        r.scaling = s.scaling;
        r.factor = s.scaling == TERN_ROPE_PLAIN ? 1 : (float)s.factor;
        r.original = (int)original;
        r.fast = 32;
        r.slow = 1;
        r.magnitude = s.scaling == TERN_ROPE_YARN ? (float)(0.1 * log(s.factor) + 1) : 1;
        ctx = longest < INT32_MAX ? (int)longest : INT32_MAX;
    }
    r.freq = r.freq_long = NULL;
    TERN_TRY(tern_rope_make(&r, NULL, NULL, err));
    tern_free(d->ropes[0].freq);
    d->ropes[0] = r;
    d->ctx = ctx;
    const float what[3] = {r.theta, r.factor, r.magnitude};
    n->stretch = XXH3_64bits_withSeed(what, sizeof what, (XXH64_hash_t)r.scaling * 31 + (XXH64_hash_t)r.original);
out:
    return rc;
}
