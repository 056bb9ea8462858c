/* The effective KV plan, for reports and for engines. */
#include "run/run.h"

#include <stdio.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"

int tern_cond_path(struct tern_buf *out, const tern_model *m, tern_error *err)
{
    return tern_beside(out, m->path, ".ternkv", false, err);
}

/* What weights say: norms, else what a bias of the keys came to, of which p becomes the owner. */
static int from_weights(tern_kv_plan *p, const tern_model *m, const struct tern_kv_decl *decl,
                        struct tern_kv_cond_set **biased, tern_error *err)
{
    int rc = 0;
    const enum tern_kv_cond_from from = p->layout->spec.cond;
    if (from != TERN_COND_BIAS) {
        TERN_TRY(tern_cond_from_norms(&p->cond, m->net, decl, err));
        p->cond_source = "scaled by norm weights";
    }
    if (!p->cond && from != TERN_COND_NORMS) {
        p->cond = *biased;
        *biased = NULL;
        p->cond_source = "centred by the key bias";
    }
    if (from == TERN_COND_NORMS && !p->cond)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "--kv %s: this model normalises no queries and keys", p->layout->text);
    if (from == TERN_COND_BIAS && !p->cond)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "--kv %s: this model's keys have no bias that their norm leaves as it is",
                  p->layout->text);
out:
    return rc;
}

/* What lies beside the model.  Nobody asked for it, so what is wrong with it is told and done without; under strict it
 * is refused. */
static int from_sidecar(tern_kv_plan *p, const tern_model *m, const struct tern_kv_decl *decl, const char *path,
                        bool strict, tern_error *err)
{
    tern_error why = {0};
    p->uncalibrated = true;
    if (access(path, F_OK) != 0)
        return 0;
    int rc = tern_kv_cond_load(&p->cond, decl, m->net->desc.n_layers, m->net->digest, path, &why);
    if (rc < 0 && (strict || rc == TERN_ENOMEM))
        return tern_err_set(err, rc, "%s", why.msg);
    if (rc < 0)
        (void)snprintf(p->notice, sizeof p->notice, "%.600s", why.msg);
    else
        p->uncalibrated = false;
    p->cond_source = "calibrated";
    return 0;
}

/* The file named by the plan, the sidecar, norm weights, the key bias: the first that there is. */
static int find_conditioning(tern_kv_plan *p, const tern_model *m, const struct tern_kv_decl *decl,
                             struct tern_kv_cond_set **biased, bool strict, tern_error *err)
{
    int rc = 0;
    struct tern_buf path = {0};
    const struct tern_net *net = m->net;
    const struct tern_kv_spec *s = &p->layout->spec;
    if (s->cond == TERN_COND_OFF || !tern_kv_layout_codes_keys(p->layout))
        return 0;
    if (s->cond == TERN_COND_FILE) {
        TERN_TRY(tern_kv_cond_load(&p->cond, decl, net->desc.n_layers, net->digest, s->cond_path, err));
        p->cond_source = "calibrated";
    } else if (s->cond == TERN_COND_AUTO) {
        TERN_TRY(tern_cond_path(&path, m, err));
        TERN_TRY(from_sidecar(p, m, decl, path.p, strict, err));
    }
    if (!p->cond)
        TERN_TRY(from_weights(p, m, decl, biased, err));
    if (p->notice[0])
        (void)snprintf(p->note, sizeof p->note,
                       "%.500s; not used: keys are coded %s, which is several times less true at 4 bits. "
                       "'tern doctor --calibrate -m %.300s' writes it anew",
                       p->notice, p->cond ? p->cond_source : "as they are", m->path);
    if (p->cond)
        tern_kv_layout_condition(p->layout, p->cond, p->cond_source);
out:
    if (rc < 0 && (s->cond == TERN_COND_FILE || s->cond == TERN_COND_AUTO) && err) {
        tern_error why = *err;
        (void)tern_err_set(err, rc, "%s%.400s (--kv ...,cond=off goes without)",
                           strict && s->cond == TERN_COND_AUTO ? "--kv-policy strict: " : "", why.msg);
    }
    tern_buf_clear(&path);
    return rc;
}

int tern_kv_check(const char *spec, tern_error *err)
{
    struct tern_kv_spec s;
    return tern_kv_spec_parse(&s, spec, err);
}

int tern_kv_check_max(const char *spec, int *max, int *first, tern_error *err)
{
    struct tern_kv_spec s;
    int rc = tern_kv_spec_parse(&s, spec, err);
    *max = rc == 0 ? s.max : 0;
    *first = rc == 0 && s.has_first ? s.first : -1;
    return rc;
}

int tern_kv_plan_new(tern_kv_plan **out, const tern_model *m, const char *spec, bool strict, tern_error *err)
{
    return tern_plan_of_ctx(out, m, m->net->desc.ctx, spec, strict, false, err);
}

/* A device may only know windows that forget everything. */
static int check_firsts(const struct tern_kv_layout *l, const struct tern_dev_ops *ops, tern_error *err)
{
    for (int g = 0; g < l->n_groups; g++)
        if (l->groups[g].reach.first && !ops->firsts)
            return tern_err_set(
                err, TERN_EUNSUPPORTED,
                "--kv %s: the device %s keeps no first tokens beside a window; max=%d,first=0 does without", l->text,
                ops->name, l->spec.max);
    return 0;
}

bool tern_plan_unserved(const tern_model *m, int ctx, const char *spec)
{
    const struct tern_desc *d = &m->net->desc;
    struct tern_kv_decl *decl = NULL;
    struct tern_kv_layout *l = NULL;
    bool unserved = false;
    if (tern_alloc(&decl, (size_t)d->n_layers, sizeof *decl, NULL) == 0) {
        tern_desc_kv(d, ctx ? ctx : d->ctx, false, decl);
        unserved = tern_kv_layout_new(&l, decl, d->n_layers, spec ? spec : m->net->dev->ops->kv, false, NULL) == 0 &&
                   check_firsts(l, m->net->dev->ops, NULL) < 0;
    }
    tern_kv_layout_free(l);
    tern_free(decl);
    return unserved;
}

int tern_plan_of_ctx(tern_kv_plan **out, const tern_model *m, int ctx, const char *spec, bool strict, bool mtp,
                     tern_error *err)
{
    int rc = 0;
    struct tern_kv_decl *decl = NULL;
    tern_kv_plan *p = NULL;
    struct tern_kv_cond_set *biased = NULL;
    const struct tern_desc *d = &m->net->desc;
    const int n = d->n_layers + (mtp ? d->n_mtp : 0);
    *out = NULL;
    TERN_TRY(tern_alloc(&p, 1, sizeof *p, err));
    TERN_TRY(tern_alloc(&decl, (size_t)n, sizeof *decl, err));
    tern_desc_kv(d, ctx, mtp, decl);
    TERN_TRY(tern_cond_from_bias(&biased, m->net, decl, err));
    TERN_TRY(tern_kv_layout_new(&p->layout, decl, n, spec ? spec : m->net->dev->ops->kv, strict, err));
    TERN_TRY(check_firsts(p->layout, m->net->dev->ops, err));
    TERN_TRY(find_conditioning(p, m, decl, &biased, strict, err));
    *out = p;
    p = NULL;
out:
    tern_free(decl);
    tern_kv_cond_free(biased);
    tern_kv_plan_free(p);
    return rc;
}

void tern_kv_plan_free(tern_kv_plan *p)
{
    if (!p)
        return;
    tern_kv_layout_free(p->layout);
    tern_kv_cond_free(p->cond);
    tern_free(p);
}

bool tern_kv_plan_uncalibrated(const tern_kv_plan *p)
{
    return p->uncalibrated;
}

const char *tern_kv_plan_notice(const tern_kv_plan *p)
{
    return p->notice[0] ? p->notice : NULL;
}

const char *tern_kv_plan_text(const tern_kv_plan *p)
{
    return p->layout->text;
}

void tern_kv_plan_full(const tern_kv_plan *p, int tokens, size_t *bytes, size_t *f16_bytes)
{
    tern_kv_full_bytes(p->layout, tokens, bytes, f16_bytes);
}

int tern_kv_plan_rows(const tern_kv_plan *p)
{
    return p->layout->n_layers;
}

void tern_kv_plan_row(const tern_kv_plan *p, int layer, tern_kv_row *out)
{
    const struct tern_kv_layer *l = &p->layout->layers[layer];
    const size_t bytes = tern_kv_layer_state(p->layout, layer);
    const int span = tern_kv_span_of(p->layout, layer, TERN_KV_ROWS);
    const struct tern_kv_layer *rows = span < 0 ? l : &p->layout->layers[span];
    *out = (tern_kv_row){
        .layer = layer, .k = "none", .v = "none", .state_bytes = bytes, .kept_bytes = TERN_KV_KEPT_STATES * bytes};
    if (p->layout->group_of[layer] < 0)
        return;
    *out = (tern_kv_row){.layer = layer,
                         .k = l->k.codec->name,
                         .v = rows->v.codec->name,
                         .n_heads = l->n_heads,
                         .dim_k = l->k.dim,
                         .dim_v = l->v.dim,
                         .window = l->reach.window,
                         .first = l->reach.first,
                         .chunked = l->reach.chunked,
                         .bytes_per_token = tern_kv_spans_bytes(p->layout, layer),
                         .f16_bytes_per_token = tern_kv_spans_f16_bytes(p->layout, layer),
                         .state_bytes = bytes,
                         .kept_bytes = TERN_KV_KEPT_STATES * bytes,
                         .conditioning = l->k.cond ? p->cond_source : NULL,
                         .reason = rows->why_raw ? rows->why_raw : l->why_raw};
}

int tern_kv_row_tokens(const tern_kv_row *r, int tokens)
{
    return r->window && r->window + r->first < tokens ? r->window + r->first : tokens;
}

const char *tern_kv_plan_note(const tern_kv_plan *p, int i)
{
    if (i < 0 || i > p->layout->n_notes)
        return NULL;
    return i < p->layout->n_notes ? p->layout->note[i] : p->note[0] ? p->note : NULL;
}

static pthread_once_t schemes_once = PTHREAD_ONCE_INIT;
static const char *scheme_pairs[2 * 32 + 2];

static void list_schemes(void)
{
    size_t n = 0;
    for (int i = 0; tern_kv_codecs[i] && n < 64; i++) {
        scheme_pairs[n++] = tern_kv_codecs[i]->name;
        scheme_pairs[n++] = tern_kv_codecs[i]->about;
    }
}

const char *const *tern_kv_schemes(void)
{
    (void)pthread_once(&schemes_once, list_schemes);
    return scheme_pairs;
}
