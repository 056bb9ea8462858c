/* Where weights lie: on a device, of which some layers may be the CPU's. */
#include <stdio.h>
#include "base/mem.h"
#include "model/load_impl.h"

/* What a layer must not read of one before the cut, but for the stream; NULL: it does not. */
static const char *reads_across(const struct tern_desc *d, int cut)
{
    for (int i = 0; i < d->n_layers + d->n_mtp; i++) {
        const struct tern_layer_desc *l = &d->layers[i];
        if (l->n_ple)
            return "embeddings for each layer";
        if (l->at.kv_of >= 0 && (l->at.kv_of < cut) != (i < cut))
            return "layers that attend to what one before the cut keeps";
    }
    return NULL;
}

int tern_load_open(struct tern_net *net, struct tern_dev **dev, const struct tern_file *f,
                   const struct tern_dev_ops *device, struct tern_pool *pool, int gpu_layers, tern_error *err)
{
    int rc = 0;
    const struct tern_dev_ops *cpu;
    if (gpu_layers >= 0 && gpu_layers < net->desc.n_layers) {
        TERN_TRY(tern_dev_find(&cpu, "cpu", err));
        TERN_TRY(tern_dev_split_new(&net->split, cpu, device, net->desc.n_layers - gpu_layers, err));
        device = net->split;
    }
    const char *across = device->cut ? reads_across(&net->desc, device->cut) : NULL;
    if (across)
        TERN_FAIL(err, TERN_EUNSUPPORTED,
                  "%s: the model has %s, so its layers cannot be divided between a card and the CPU (--gpu-layers)",
                  tern_file_path(f), across);
    TERN_TRY(device->open(&net->dev, device, NULL, err));
    TERN_TRY(device->open(dev, device, pool, err));
out:
    return rc;
}

/* Layers stand one after the other: those before the device's cut are one piece. */
static void find_cut(const struct tern_weight_block *b, size_t *from, size_t *to)
{
    *from = *to = 0;
    for (size_t i = 0; i < b->n; i++) {
        const struct tern_weight_place *p = &b->places[i];
        if (p->layer < 0 || p->layer >= b->dev->ops->cut)
            continue;
        *from = *to ? *from : p->offset;
        *to = p->offset + p->bytes;
    }
}

int tern_load_divide(const struct tern_weight_block *b, struct tern_dev_mem *m, tern_error *err)
{
    struct tern_dev_division by = {.block = b->bytes};
    if (!b->dev->ops->divide)
        return 0;
    find_cut(b, &by.from, &by.to);
    return b->dev->ops->divide(b->dev, m, &by, err);
}

/* So many of the last layers, with all that is no layer's, take `room` at most; -1: not even none of them. */
static int layers_within(const struct tern_weight_block *b, int n_layers, size_t room)
{
    size_t bytes = 0;
    for (int cut = n_layers;; cut--) {
        for (size_t i = 0; i < b->n; i++) {
            const int layer = b->places[i].layer;
            const bool always = layer < 0 || layer >= n_layers;
            bytes += (always ? cut == n_layers : layer == cut) ? b->places[i].bytes : 0;
        }
        if (bytes > room)
            return n_layers - cut - 1;
        if (cut == 0)
            return n_layers;
    }
}

int tern_load_room(const struct tern_weight_block *b, struct tern_net *net, tern_error *err)
{
    struct tern_dev_held h;
    const struct tern_desc *d = &net->desc;
    size_t from, to;
    char fits[100] = "";
    find_cut(b, &from, &to);
    net->cpu_bytes = to - from;
    if (!b->dev->ops->held)
        return 0;
    b->dev->ops->held(b->dev, &h);
    const size_t left = h.limit > h.used ? h.limit - h.used : 0, here = b->bytes - net->cpu_bytes;
    if (here <= left)
        return 0;
    const int layers = layers_within(b, d->n_layers, left - left / 8);
    if (layers >= 0)
        (void)snprintf(fits, sizeof fits, "%d of the %d layers would fit (--gpu-layers), or ", layers, d->n_layers);
    return tern_err_set(err, TERN_ENOMEM,
                        "%s: the weights take %zu MiB of %s, which may use %zu MiB (--gpu-memory), and %zu are in use: "
                        "%sfewer bits per weight",
                        tern_file_path(b->f), (here >> 20) + 1, b->dev->ops->name, h.limit >> 20, h.used >> 20, fits);
}
