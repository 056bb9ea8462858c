/* The registry of devices. */
#include "dev/dev.h"

#include <stdio.h>
#include <string.h>
#include "base/mem.h"

#define TERN_DEV(name) extern const struct tern_dev_ops tern_dev_##name;
#include "dev/devs.def"
#undef TERN_DEV

#define MAX_DEVICES 64

static const struct tern_dev_ops *devices[MAX_DEVICES + 1] = {
#define TERN_DEV(name) &tern_dev_##name,
#include "dev/devs.def"
#undef TERN_DEV
};

const struct tern_dev_ops *tern_dev_at(int i)
{
    return i >= 0 && i < MAX_DEVICES ? devices[i] : NULL;
}

void tern_dev_add_first(const struct tern_dev_ops *ops)
{
    TERN_ASSERT(!devices[MAX_DEVICES - 1]);
    memmove(devices + 1, devices, (MAX_DEVICES - 1) * sizeof *devices);
    devices[0] = ops;
}

static bool one_alone;

void tern_dev_try_one(void)
{
    one_alone = true;
}

static int probe(const struct tern_dev_ops *ops, tern_error *err)
{
    char about[TERN_DEV_NAME];
    return ops->probe ? ops->probe(about, err) : 0;
}

bool tern_dev_is_card(const struct tern_dev_ops *ops)
{
    return ops->held != NULL;
}

const struct tern_dev_ops *tern_dev_host(void)
{
    int i = 0;
    while (tern_dev_is_card(tern_dev_at(i)) || probe(tern_dev_at(i), NULL) < 0)
        i++; /* as far as the CPU */
    return tern_dev_at(i);
}

void tern_dev_auto(struct tern_dev_choice *out)
{
    *out = (struct tern_dev_choice){0};
    for (int i = 0; !out->first; i++) {
        tern_error why = {0};
        const int rc = probe(tern_dev_at(i), &why);
        if (rc == 0)
            out->first = tern_dev_at(i);
        else if (rc != TERN_ENOENT && !out->why.code)
            out->why = why;
    }
    if (tern_dev_is_card(out->first) && !one_alone)
        out->then = tern_dev_host();
}

/* Device `name` as ops, or one of its numbers: "cuda", "cuda:1". */
static const struct tern_dev_ops *named(const struct tern_dev_ops *ops, const char *name)
{
    const size_t n = strlen(ops->name);
    if (strncmp(name, ops->name, n) != 0)
        return NULL;
    if (!name[n])
        return ops;
    if (!ops->card || name[n] != ':' || name[n + 1] < '0' || name[n + 1] > '9' || name[n + 2])
        return NULL;
    return ops->card(name[n + 1] - '0');
}

int tern_dev_find(const struct tern_dev_ops **out, const char *name, tern_error *err)
{
    char known[256] = "auto";
    size_t used = strlen(known);
    struct tern_dev_choice any;
    if (!name || strcmp(name, "auto") == 0) {
        tern_dev_auto(&any);
        *out = any.first;
        return 0;
    }
    for (int i = 0; tern_dev_at(i); i++) {
        *out = named(tern_dev_at(i), name);
        if (*out) {
            int rc = probe(*out, err);
            *out = rc < 0 ? NULL : *out;
            return rc;
        }
        *out = tern_dev_at(i);
        int n = snprintf(known + used, sizeof known - used, ", %s", (*out)->name);
        used += n > 0 && used + (size_t)n < sizeof known ? (size_t)n : 0;
    }
    *out = NULL;
    return tern_err_set(err, TERN_EINVAL, "device \"%.60s\" is not one of those that this program has: %s", name,
                        known);
}

int tern_dev_open(struct tern_dev **out, const char *name, struct tern_pool *pool, tern_error *err)
{
    const struct tern_dev_ops *ops;
    *out = NULL;
    int rc = tern_dev_find(&ops, name, err);
    return ops ? ops->open(out, ops, pool, err) : rc;
}

void tern_dev_close(struct tern_dev *d)
{
    if (d)
        d->ops->close(d);
}

int tern_dev_fault(struct tern_dev *d, bool keep, tern_error *err)
{
    return d->ops->fault ? d->ops->fault(d, keep, err) : 0;
}

int tern_dev_stages(const struct tern_dev_limits *l, int *set, size_t *bytes)
{
    int sets = 1;
    *bytes = 0;
    for (int c = 0; c < l->n_caches; c++)
        for (int i = 0; i < l->caches[c].n_spans; i++) {
            const struct tern_kv_layer *kv = &l->caches[c].layers[i];
            const size_t tile = (size_t)kv->n_heads * kv->tile_bytes;
            if (l->caches[c].group_of[i] >= 0 && tile > *bytes)
                *bytes = tile;
        }
    for (int i = 0; i < l->caches[0].n_layers; i++) {
        const int of = l->shapes[i].n_heads ? l->shapes[i].layer : i;
        if (of != i && !set[of])
            set[of] = sets++;
    }
    return sets;
}

int tern_dev_rows_new(struct tern_dev *d, struct tern_dev_rows *out, int n_rows, int width, tern_error *err)
{
    size_t bytes;
    *out = (struct tern_dev_rows){.stride = tern_round_up((size_t)width, 16), .width = width};
    if (!tern_mul((size_t)n_rows, out->stride * sizeof(float), &bytes))
        return tern_err_set(err, TERN_ENOMEM, "%d rows of %d numbers do not fit in memory", n_rows, width);
    return d->ops->reserve(d, &out->mem, bytes, false, err);
}

void tern_dev_rows_out(struct tern_dev *d, float *host, struct tern_dev_rows x, int row0, int n)
{
    const size_t width = (size_t)x.width;
    for (size_t r = 0; r < (size_t)n; r++)
        d->ops->copy_out(d, host + r * width, x.mem, (x.at + ((size_t)row0 + r) * x.stride) * sizeof(float),
                         width * sizeof(float));
}

size_t tern_delta_state_floats(const struct tern_delta *l)
{
    const size_t channels = 2 * (size_t)l->n_k * (size_t)l->dk + (size_t)l->n_v * (size_t)l->dv;
    return channels * (size_t)(l->width - 1) + (size_t)l->n_v * (size_t)l->dk * (size_t)l->dv;
}

/* ---- weights as panels ------------------------------------------------------------------------------------------- */

int tern_dev_panels_plan(struct tern_packed *out, const struct tern_weight_source *s, int64_t n, int64_t k, int stack,
                         tern_error *err)
{
    size_t bytes;
    int rc = tern_weight_plan(out, s, n, k, err);
    if (rc == 0 && !tern_mul(tern_weight_bytes(out), (size_t)stack, &bytes))
        rc = tern_err_set(err, TERN_ENOMEM, "%d matrices of %zu bytes do not fit in memory", stack,
                          tern_weight_bytes(out));
    return rc;
}

void tern_dev_panels_about(const struct tern_packed *m, struct tern_dev_about *out)
{
    *out = (struct tern_dev_about){.unit_bytes = m->panel_bytes,
                                   .codes = m->codes,
                                   .scales = m->scales,
                                   .zero = m->zero,
                                   .group = m->group,
                                   .d_type = m->d_type,
                                   .m_type = m->m_type,
                                   .unit = m->unit};
    memcpy(out->table, m->table, sizeof out->table);
}
