#include "codec/codec.h"
#include "codec/weight_block.h"

#include <limits.h>
#include <string.h>
#include "base/mem.h"

static int plan_plain(struct tern_packed *w, const struct tern_weight_source *s, int64_t n, int64_t k, tern_error *err)
{
    const struct weight_type *t = tern_weight_type(s->type);
    if (!t)
        return tern_err_set(err, TERN_EUNSUPPORTED, "weights of %s cannot be multiplied", tern_type_name(s->type));
    if (k % t->elems)
        return tern_err_set(err, TERN_EUNSUPPORTED, "rows of %lld weights are not whole blocks of %d, as %s needs",
                            (long long)k, t->elems, tern_type_name(s->type));
    if (s->n_stored && (!tern_codes_float(t->kind.codes) || s->row0 + n > s->n_stored))
        return tern_err_set(err, TERN_EUNSUPPORTED, "%lld of %lld columns of %s are not supported", (long long)n,
                            (long long)s->n_stored, tern_type_name(s->type));
    *w = t->kind;
    return 0;
}

int tern_weight_plan(struct tern_packed *w, const struct tern_weight_source *s, int64_t n, int64_t k, tern_error *err)
{
    int rc = 0;
    size_t total;
    memset(w, 0, sizeof *w);
    if (n < 1 || k < 1 || n > INT_MAX - TERN_PANEL || k > INT_MAX - TERN_SUPER)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "a weight matrix of %lld rows of %lld is outside what tern handles",
                  (long long)n, (long long)k);
    if (s->form == TERN_FORM_PLAIN)
        TERN_TRY(plan_plain(w, s, n, k, err));
    else
        TERN_TRY(tern_weight_form_plan(w, s, n, k, err));
    if (s->factors && w->scales != TERN_SCALES_G16)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "factors of a matrix are only known beside NVFP4");
    w->n = (int)n;
    w->k = (int)k;
    w->panel_bytes = tern_panel_layout(w).bytes;
    if (!tern_mul((size_t)tern_panels(w), w->panel_bytes, &total) || !tern_add(total, TERN_VEC, &total))
        TERN_FAIL(err, TERN_EUNSUPPORTED, "a weight matrix of %lld rows of %lld exceeds the address space",
                  (long long)n, (long long)k);
out:
    return rc;
}

size_t tern_weight_bytes(const struct tern_packed *w)
{
    return (size_t)tern_panels(w) * w->panel_bytes + TERN_VEC;
}

struct tern_packed tern_weight_at(const struct tern_packed *w, int i)
{
    struct tern_packed one = *w;
    one.data += (size_t)i * tern_weight_bytes(w);
    return one;
}

int tern_weight_rows(struct tern_weight_source *out, const struct tern_weight_source *s, int64_t row0, int64_t k,
                     tern_error *err)
{
    const struct weight_type *t = s->form == TERN_FORM_PLAIN ? tern_weight_type(s->type) : NULL;
    if (s->form == TERN_FORM_PLAIN && !t)
        return tern_err_set(err, TERN_EUNSUPPORTED, "tensor %s has the type %s, in which no weights are read", s->name,
                            tern_type_name(s->type));
    bool whole = s->form == TERN_FORM_PLAIN ? row0 * k % t->elems == 0 : tern_weight_form_divides(s, row0);
    if (!whole || (s->factors && s->factor_rows && row0 % s->factor_rows))
        return tern_err_set(err, TERN_EUNSUPPORTED, "tensor %s cannot be divided at row %lld", s->name,
                            (long long)row0);
    *out = *s;
    if (t && s->n_stored) {
        const int64_t row = s->row0 + row0;
        out->row0 = row % s->n_stored;
        out->data = (const uint8_t *)s->data + row / s->n_stored * s->n_stored * k * t->bytes;
    } else if (t)
        out->data = (const uint8_t *)s->data + row0 * k / t->elems * t->bytes;
    else
        tern_weight_form_rows(out, row0, k);
    if (s->factors && s->factor_rows)
        out->factors = (const uint8_t *)s->factors + row0 / s->factor_rows * 4;
    return 0;
}
