/* Where a model runs: on the device that was asked for, or by "auto" on the card that is there, and on the CPU what that
 * card refuses. */
#include "run/run.h"

#include <stdio.h>
#include <string.h>
#include "base/cpu.h"
#include "base/mem.h"

/* ---- the device -------------------------------------------------------------------------------------------------- */

int tern_model_choose(struct tern_dev_choice *out, const tern_model_params *p, tern_error *err)
{
    const bool of_card = p->gpu_memory || p->gpu_layers || p->gpus > 1;
    *out = (struct tern_dev_choice){0};
    if (p->device && strcmp(p->device, "auto") != 0)
        return tern_dev_find(&out->first, p->device, err);
    tern_dev_auto(out);
    if (!of_card)
        return 0;
    out->then = NULL; /* who says what a card shall do asks for one */
    if (out->why.code && !tern_dev_is_card(out->first))
        return tern_err_set(err, out->why.code, "%s", out->why.msg);
    return 0;
}

/* Several cards, `first` and those of the next numbers, as one device. */
static int join_cards(tern_model *m, const struct tern_dev_ops **device, int n, tern_error *err)
{
    int rc = 0, number = 0;
    char name[TERN_DEV_NAME];
    const struct tern_dev_ops *first = *device, *of[TERN_DEV_CARDS];
    if (!first->card)
        TERN_FAIL(err, TERN_EINVAL, "gpus needs several cards, and device %s is not a card", first->name);
    while (first->card(number) && first->card(number) != first)
        number++;
    for (int i = 0; i < n; i++) {
        if (i >= TERN_DEV_CARDS || !(of[i] = first->card(number + i)))
            TERN_FAIL(err, TERN_EINVAL, "%d cards from %s on are more than %d", n, first->name, TERN_DEV_CARDS);
        if (of[i]->probe)
            TERN_TRY(of[i]->probe(name, err));
    }
    TERN_TRY(tern_dev_parallel_new(&m->together, of, n, err));
    *device = m->together;
out:
    return rc;
}

/* The limit of what a card's devices take together. */
static int set_limit(const struct tern_dev_ops *device, size_t bytes, int layers, tern_error *err)
{
    struct tern_dev *d = NULL;
    if (layers && !device->limit)
        return tern_err_set(err, TERN_EINVAL, "gpu_layers is of a card, and device %s has all layers", device->name);
    if (!bytes)
        return 0;
    if (!device->limit)
        return tern_err_set(err, TERN_EINVAL, "gpu_memory is of a card, and device %s has no memory of its own",
                            device->name);
    int rc = device->open(&d, device, NULL, err);
    rc = rc < 0 ? rc : device->limit(d, bytes, err);
    tern_dev_close(d);
    return rc;
}

/* As tern_net_load has it. */
static int gpu_layers(const tern_model_params *p)
{
    return p->gpu_layers ? p->gpu_layers < 0 ? 0 : p->gpu_layers : -1;
}

int tern_model_settle(tern_model *m, struct tern_dev_choice *device, const tern_model_params *p, tern_error *err)
{
    int rc = 0;
    if (p->gpus > 1 && p->gpu_layers)
        TERN_FAIL(err, TERN_EINVAL, "gpus divides a model among cards, gpu_layers between a card and the CPU");
    if (p->gpus > 1)
        TERN_TRY(join_cards(m, &device->first, p->gpus, err));
    TERN_TRY(set_limit(device->first, p->gpu_memory, p->gpu_layers, err));
out:
    return rc;
}

static void get_memory(const struct tern_dev *d, tern_device_memory *out)
{
    struct tern_dev_held h = {0};
    if (d->ops->held)
        d->ops->held(d, &h);
    *out = (tern_device_memory){.limit_bytes = h.limit, .used_bytes = h.used};
}

void tern_model_device_memory(const tern_model *m, tern_device_memory *out)
{
    get_memory(m->net->dev, out);
    out->weight_bytes = out->limit_bytes ? m->net->memory_bytes - m->net->cpu_bytes : 0;
}

int tern_device_get_memory(const char *device, tern_device_memory *out, tern_error *err)
{
    struct tern_dev *d;
    int rc = tern_dev_open(&d, device, NULL, err);
    if (rc == 0)
        get_memory(d, out);
    tern_dev_close(d);
    return rc;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static void name_device(tern_model *m, const struct tern_dev_ops *device)
{
    char about[TERN_DEV_NAME] = "", cards[32] = "";
    const bool more = device->probe && device->probe(about, NULL) == 0;
    if (device->together)
        (void)snprintf(cards, sizeof cards, ", %d cards together", device->together);
    int n = snprintf(m->device, sizeof m->device, "%s%s%s%s", device->name, more ? ": " : "", about, cards);
    const int cut = m->net->dev->ops->cut;
    if (cut && n > 0 && (size_t)n < sizeof m->device)
        (void)snprintf(m->device + n, sizeof m->device - (size_t)n, "; the CPU for %d of %d layers", cut,
                       m->net->desc.n_layers);
}

static int load(struct tern_net **out, const tern_model *m, const struct tern_dev_ops *device,
                const tern_model_params *p, struct tern_pool *pool, const struct tern_packed_file *kept,
                tern_error *err)
{
    const struct tern_load_watch watch = {p->before_weights, p->on_progress, p->user};
    if (p->on_device)
        p->on_device(p->user, device->name);
    return tern_net_load(out, m->file, device, gpu_layers(p), pool, kept, &watch, err);
}

static int stretch(struct tern_net *net, const tern_model *m, const tern_model_params *p, tern_error *err)
{
    tern_error why = {0};
    if (!p->rope_scaling && p->rope_base == 0)
        return 0;
    const int rc = tern_net_stretch(net, p->rope_scaling, p->rope_base, &why);
    return rc < 0 ? tern_err_set(err, rc, "%s: %s", m->path, why.msg) : 0;
}

/* One that was found and cannot be opened is as good as one that refuses. */
static int opens(const struct tern_dev_ops *device, tern_error *err)
{
    struct tern_dev *d = NULL;
    const int rc = device->open(&d, device, NULL, err);
    tern_dev_close(d);
    return rc;
}

/* What is wrong with the file has other codes, or is found by the CPU again, whose answer counts. */
static int load_on_card(tern_model *m, const struct tern_dev_choice *device, const tern_model_params *p,
                        struct tern_pool *pool, const struct tern_packed_file *kept, bool *refused, tern_error *err)
{
    int rc = opens(device->first, err);
    *refused = rc < 0;
    if (rc < 0)
        return rc;
    rc = load(&m->net, m, device->first, p, pool, kept, err);
    *refused = rc == TERN_EUNSUPPORTED || rc == TERN_ENOMEM;
    return rc;
}

static void keep_reason(tern_model *m, const tern_error *why)
{
    (void)snprintf(m->refused, sizeof m->refused, "%s", why->msg);
}

int tern_model_load_net(tern_model *m, const struct tern_dev_choice *device, const tern_model_params *p,
                        struct tern_pool *pool, const struct tern_packed_file *kept, tern_error *err)
{
    int rc = 0;
    const struct tern_dev_ops *on = device->first;
    tern_error why = device->why;
    bool refused = false;
    if (!device->then) {
        TERN_TRY(load(&m->net, m, on, p, pool, kept, err));
    } else {
        rc = load_on_card(m, device, p, pool, kept, &refused, &why);
        if (rc < 0 && !refused)
            TERN_FAIL(err, rc, "%s", why.msg);
        m->automatic = !refused;
    }
    if (refused)
        TERN_TRY(load(&m->net, m, on = device->then, p, pool, kept, err));
    if (!tern_dev_is_card(on))
        keep_reason(m, &why);
    TERN_TRY(stretch(m->net, m, p, err));
    name_device(m, on);
out:
    return rc;
}

/* Is it the card that refuses an engine, and would the CPU not? */
static bool is_refusal(const tern_model *m, const tern_engine_params *e, int code)
{
    const struct tern_dev_ops *ops = m->net->dev->ops;
    if (code != TERN_EUNSUPPORTED || !e)
        return code == TERN_ENOMEM || !e;
    if (e->decode_bits == 16 && !ops->decode16)
        return true;
    if (e->prompt_class && strcmp(e->prompt_class, "int8") == 0 && !ops->prompt8)
        return true;
    for (int i = -1; i < e->n_more_kv; i++)
        if (tern_plan_unserved(m, e->ctx, i < 0 ? e->kv : e->more_kv[i]))
            return true;
    return false;
}

int tern_model_fall_back(tern_model *m, const tern_model_params *p, const tern_engine_params *e, const tern_error *why,
                         tern_error *err)
{
    int rc = 0;
    const tern_error because = *why;
    const struct tern_dev_ops *host = tern_dev_host();
    /* The first opening has written the file if it was to be. */
    const struct tern_packed_file kept = {.path = m->packed.len ? m->packed.p : NULL, .experts = p->experts_resident};
    struct tern_pool *pool = NULL;
    struct tern_net *net = NULL;
    if (!m->automatic || !is_refusal(m, e, because.code))
        TERN_FAIL(err, because.code, "%s", because.msg);
    TERN_TRY(tern_pool_new(&pool, p->n_threads > 0 ? p->n_threads : tern_cpu_cores(), 0, err));
    TERN_TRY(load(&net, m, host, p, pool, &kept, err));
    TERN_TRY(stretch(net, m, p, err));
    tern_net_free(m->net);
    m->net = net;
    net = NULL;
    m->automatic = false;
    keep_reason(m, &because);
    name_device(m, host);
    tern_model_describe(m);
out:
    tern_net_free(net);
    tern_pool_free(pool);
    return rc;
}
