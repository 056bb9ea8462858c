/* Opening models, and what can be asked of them: facts, text, chat prompts. */
#include "run/run.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include "base/cpu.h"
#include "base/mem.h"

/* The kernels are chosen for the whole process: at the latest when the first model is opened, and no more while one is.
 */
static pthread_mutex_t kernels_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned cpu_mask = ~0u;
static bool kernels_ready;
static int n_models;

const char *tern_version(void)
{
    return "0.1.0";
}

static void init_kernels(void)
{
    (void)pthread_mutex_lock(&kernels_lock);
    if (!kernels_ready)
        tern_kernels_init(cpu_mask);
    kernels_ready = true;
    (void)pthread_mutex_unlock(&kernels_lock);
}

/* n: 1, and kernels stay what they are; -1, when the model is closed. */
static void count_model(int n)
{
    init_kernels();
    (void)pthread_mutex_lock(&kernels_lock);
    n_models += n;
    (void)pthread_mutex_unlock(&kernels_lock);
}

int tern_set_cpu_mask(const char *level, tern_error *err)
{
    unsigned mask;
    int rc = tern_cpu_parse(level, &mask, err);
    if (rc < 0)
        return rc;
    (void)pthread_mutex_lock(&kernels_lock);
    if (n_models)
        rc = tern_err_set(err, TERN_EINVAL, "CPU level \"%s\": it is chosen before a model is opened, and %d %s", level,
                          n_models, n_models == 1 ? "is open" : "are open");
    else
        tern_kernels_init(cpu_mask = mask);
    kernels_ready |= rc == 0;
    (void)pthread_mutex_unlock(&kernels_lock);
    return rc;
}

/* The smaller of the machine's memory and what the process' cgroups leave it. */
static size_t memory_limit(void)
{
    struct sysinfo si;
    const size_t all = sysinfo(&si) == 0 ? (size_t)si.totalram * si.mem_unit : 0;
    const size_t limit = tern_cgroup_memory("/sys/fs/cgroup", "/proc/self/cgroup");
    return limit < all ? limit : all;
}

void tern_machine_describe(tern_machine *out)
{
    init_kernels();
    (void)pthread_mutex_lock(&kernels_lock);
    unsigned used = tern_k.mask;
    (void)pthread_mutex_unlock(&kernels_lock);
    *out = (tern_machine){.cpu = tern_cpu_model(),
                          .detected = tern_cpu_name(tern_cpu_detect()),
                          .used = tern_cpu_name(used),
                          .cores = tern_cpu_cores(),
                          .memory_bytes = memory_limit(),
                          .refused = tern_cpu_refused()};
}

size_t tern_peak_memory(void)
{
    return tern_rss_peak();
}

/* ---- the device -------------------------------------------------------------------------------------------------- */

static int choose(struct tern_dev_choice *out, const tern_model_params *p, tern_error *err)
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

static int settle(tern_model *m, struct tern_dev_choice *device, const tern_model_params *p, tern_error *err)
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

static void describe(tern_model *m)
{
    const struct tern_desc *d = &m->net->desc;
    const struct tern_layer_desc *l = &d->layers[0]; /* the first one with attention speaks for all */
    for (int i = 1; !l->at.n_heads && i < d->n_layers; i++)
        l = &d->layers[i];
    m->info = (tern_model_info){
        .path = m->path,
        .container = tern_file_kind(m->file) == TERN_FILE_HF ? "safetensors" : "GGUF",
        .arch = d->arch,
        .name = m->name,
        .tokenizer = m->tok ? tern_tokenizer_kind(m->tok) : "none",
        .n_layers = d->n_layers,
        .n_cpu_layers = m->net->dev->ops->cut,
        .n_cards = !m->net->dev->ops->held      ? 0
                   : m->net->dev->ops->together ? m->net->dev->ops->together
                                                : 1,
        .n_embd = d->n_embd,
        .n_heads = l->at.n_heads,
        .n_kv_heads = l->at.n_kv_heads,
        .head_dim = l->mixer == TERN_MIX_SPARSE   ? l->at.dim_v
                    : l->mixer == TERN_MIX_LATENT ? l->at.dim_k + l->latent.dim_nope
                                                  : l->at.dim_k,
        .n_ff = l->ffn == TERN_FFN_EXPERTS ? l->experts.n_ff : l->n_ff,
        .n_vocab = d->n_vocab,
        .ctx = d->ctx,
        .has_template = m->tmpl != NULL,
        .n_mtp_layers = d->n_mtp,
        .n_params = m->net->n_params,
        .n_mtp_params = m->net->n_mtp_params,
        .file_bytes = tern_file_bytes(m->file),
        .weight_bytes = m->net->memory_bytes,
        .device = m->device,
        .kv_default = m->net->dev->ops->kv,
        .device_notice = m->refused[0] ? m->refused : NULL,
        .packed = m->net->packed.p ? m->packed.p : NULL,
        .notice = m->net->notice[0] ? m->net->notice : NULL,
        .sampling_left_out = m->left_out[0] ? m->left_out : NULL,
    };
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

static int load_net(tern_model *m, const struct tern_dev_choice *device, const tern_model_params *p,
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
    describe(m);
out:
    tern_net_free(net);
    tern_pool_free(pool);
    return rc;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

/* Building the tokenizer takes as long as mapping the weights of a small model, on one thread: both go on at once. */
struct text_load {
    tern_model *m;
    pthread_t thread;
    bool started;
    int rc;
    tern_error err;
};

static void *load_text(void *ctx)
{
    struct text_load *l = ctx;
    l->rc = tern_model_load_text(l->m, &l->err);
    return NULL;
}

static void begin_text(struct text_load *l, tern_model *m, int n_threads)
{
    *l = (struct text_load){.m = m};
    l->started = n_threads > 1 && pthread_create(&l->thread, NULL, load_text, l) == 0;
    if (!l->started)
        (void)load_text(l);
}

static void join_text(struct text_load *l)
{
    if (l->started)
        (void)pthread_join(l->thread, NULL);
    l->started = false;
}

static int check_text(const struct text_load *l, tern_error *err)
{
    const tern_model *m = l->m;
    if (l->rc < 0)
        return tern_err_set(err, l->rc, "%s", l->err.msg);
    if (m->tok && tern_tokenizer_n_vocab(m->tok) > m->net->desc.n_vocab)
        return tern_err_set(err, TERN_EFORMAT,
                            "%s: vocabulary mismatch: the tokenizer has %d entries, the embedding has %d rows", m->path,
                            tern_tokenizer_n_vocab(m->tok), m->net->desc.n_vocab);
    return 0;
}

#define PACKED_FROM ((size_t)32 << 20) /* less is packed sooner than a user notices */

static int packed_file(struct tern_packed_file *out, tern_model *m, const tern_model_params *p, tern_error *err)
{
    const char *how = p->packed;
    bool automatic = !how || strcmp(how, "auto") == 0;
    *out = (struct tern_packed_file){.experts = p->experts_resident};
    if (how && strcmp(how, "off") == 0)
        return 0;
    bool beside = automatic || strcmp(how, "use") == 0;
    int rc = beside ? tern_beside(&m->packed, m->path, ".packed", automatic, err)
                    : tern_buf_addf(&m->packed, err, "%s", how);
    *out = (struct tern_packed_file){.path = m->packed.p,
                                     .write = automatic || !beside,
                                     .write_from = beside ? PACKED_FROM : 0,
                                     .experts = p->experts_resident,
                                     .before = p->before_packed,
                                     .user = p->user};
    return rc;
}

int tern_model_open(tern_model **out, const char *path, const tern_model_params *p, tern_error *err)
{
    static const tern_model_params defaults;
    int rc = 0, n_threads = p && p->n_threads > 0 ? p->n_threads : tern_cpu_cores();
    struct tern_packed_file kept;
    struct text_load text = {0};
    tern_model *m = NULL;
    struct tern_pool *pool = NULL;
    struct tern_str name;
    struct tern_dev_choice device;
    p = p ? p : &defaults;
    *out = NULL;
    if (p->n_threads < 0)
        TERN_FAIL(err, TERN_EINVAL, "threads = %d is negative", p->n_threads);
    TERN_TRY(choose(&device, p, err));
    TERN_TRY(tern_alloc(&m, 1, sizeof *m, err));
    count_model(1);
    TERN_TRY(settle(m, &device, p, err));
    if (snprintf(m->path, sizeof m->path, "%s", path) >= (int)sizeof m->path)
        TERN_FAIL(err, TERN_EINVAL, "path is longer than %zu bytes", sizeof m->path - 1);
    for (size_t n = strlen(m->path); n > 1 && m->path[n - 1] == '/';) /* what belongs to a directory lies beside it */
        m->path[--n] = 0;
    TERN_TRY(tern_known_new(&m->known, err));
    TERN_TRY(tern_file_open(&m->file, path, err));
    TERN_TRY(packed_file(&kept, m, p, err));
    TERN_TRY(tern_pool_new(&pool, n_threads, 0, err));
    begin_text(&text, m, n_threads);
    TERN_TRY(load_net(m, &device, p, pool, &kept, err));
    join_text(&text);
    TERN_TRY(check_text(&text, err));
    TERN_TRY(tern_file_get_str(m->file, "general.name", &name, err));
    (void)snprintf(m->name, sizeof m->name, "%.*s", (int)(name.n < sizeof m->name ? name.n : sizeof m->name - 1),
                   name.p ? name.p : "");
    describe(m);
    *out = m;
    m = NULL;
out:
    join_text(&text);
    tern_pool_free(pool);
    tern_model_close(&m);
    return rc;
}

void tern_model_close(tern_model **m)
{
    if (!m || !*m)
        return;
    tern_template_free((*m)->tmpl);
    tern_template_free((*m)->tool_tmpl);
    tern_known_free((*m)->known);
    tern_gr_vocab_free((*m)->vocab);
    tern_tokenizer_free((*m)->tok);
    tern_net_free((*m)->net);
    tern_dev_parallel_free((*m)->together);
    tern_file_close(&(*m)->file);
    tern_buf_clear(&(*m)->packed);
    tern_free(*m);
    *m = NULL;
    count_model(-1);
}

const tern_model_info *tern_model_get_info(const tern_model *m)
{
    return &m->info;
}

void tern_model_experts(const tern_model *m, tern_expert_stats *out)
{
    struct tern_resident_stats s;
    tern_net_experts(m->net, &s);
    *out = (tern_expert_stats){.limit_bytes = s.limit,
                               .bytes = s.bytes,
                               .resident_bytes = s.resident,
                               .most_resident_bytes = s.most,
                               .rows = s.rows,
                               .used = s.used,
                               .found = s.found,
                               .read = s.read,
                               .read_ahead = s.ahead,
                               .read_bytes = s.read_bytes,
                               .wait_s = s.wait_s};
}

size_t tern_model_n_tensors(const tern_model *m)
{
    return tern_file_n_tensors(m->file);
}

/* Without what lies between the matrices of a stack. */
static size_t own_bytes(size_t n_bytes, size_t stride, int64_t matrices)
{
    return stride ? (n_bytes - (size_t)(matrices - 1) * stride) * (size_t)matrices : n_bytes;
}

void tern_model_tensor(const tern_model *m, size_t i, tern_tensor_info *out)
{
    const struct tern_tensor *t = tern_file_tensor_at(m->file, i);
    const struct tern_tensor *parts[TERN_TENSOR_PARTS];
    *out = (tern_tensor_info){.name = t->source,
                              .type = t->quant ? t->quant->about : tern_type_name(t->type),
                              .n_dims = t->n_dims,
                              .file_bytes = own_bytes(t->n_bytes, t->stride, t->dims[2]),
                              .memory_bytes = tern_net_tensor_bytes(m->net, t)};
    memcpy(out->dims, t->dims, sizeof out->dims);
    for (int n = tern_tensor_parts(t, parts), j = 0; j < n; j++)
        out->file_bytes += own_bytes(parts[j]->n_bytes, t->quant ? t->quant->stride : 0, t->dims[2]);
}

/* ---- text ------------------------------------------------------------------------------------------------------- */

void tern_tokens_clear(tern_tokens *t)
{
    tern_free(t->p);
    *t = (tern_tokens){0};
}

int tern_tokens_append(tern_tokens *out, const int32_t *ids, size_t n, tern_error *err)
{
    size_t want;
    if (!tern_add(out->len, n, &want))
        return tern_err_set(err, TERN_ENOMEM, "too many tokens");
    int rc = tern_grow(&out->p, &out->cap, want, sizeof *out->p, err);
    if (rc < 0)
        return rc;
    if (n)
        memcpy(out->p + out->len, ids, n * sizeof *ids);
    out->len = want;
    return 0;
}

int tern_tokens_push(tern_tokens *t, int32_t id, tern_error *err)
{
    return tern_tokens_append(t, &id, 1, err);
}

static int need_tokenizer(const tern_model *m, tern_error *err)
{
    if (m->tok)
        return 0;
    return tern_err_set(err, TERN_EUNSUPPORTED, "%s: the model has no tokenizer; give token ids instead", m->path);
}

int tern_model_tokenize(const tern_model *m, const char *text, size_t n, unsigned flags, tern_tokens *out,
                        tern_error *err)
{
    int rc = 0;
    struct tern_ids ids = {0};
    unsigned f = (flags & TERN_TEXT_SPECIAL ? TERN_TOK_SPECIAL : 0u) | (flags & TERN_TEXT_BOS ? TERN_TOK_BOS_EOS : 0u) |
                 (flags & TERN_TEXT_OPEN ? TERN_TOK_OPEN : 0u);
    TERN_TRY(need_tokenizer(m, err));
    TERN_TRY(tern_tokenize(m->tok, text, n, f, &ids, err));
    TERN_TRY(tern_tokens_append(out, ids.p, ids.len, err));
out:
    tern_ids_clear(&ids);
    return rc;
}

const char *tern_model_token(const tern_model *m, int32_t id)
{
    return m->tok && id >= 0 && id < tern_tokenizer_n_vocab(m->tok) ? tern_tokenizer_piece(m->tok, id) : NULL;
}

int tern_model_token_bytes(const tern_model *m, int32_t id, char *buf, size_t cap, size_t *n, tern_error *err)
{
    int rc = 0;
    struct tern_buf b = {0};
    *n = 0;
    if (!m->tok)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: the model has no tokenizer", m->path);
    TERN_TRY(tern_token_bytes(m->tok, id, true, &b, err));
    *n = b.len;
    if (b.len && b.len <= cap)
        memcpy(buf, b.p, b.len);
out:
    tern_buf_clear(&b);
    return rc;
}

bool tern_model_is_eog(const tern_model *m, int32_t id)
{
    return m->tok && tern_tokenizer_is_eog(m->tok, id);
}

const char *tern_model_special(const tern_model *m, int32_t id)
{
    return id >= 0 ? tern_tokenizer_piece(m->tok, id) : "";
}

int tern_model_need_template(const tern_model *m, tern_error *err)
{
    int rc = need_tokenizer(m, err);
    if (rc == 0 && !m->tmpl)
        rc = tern_err_set(err, TERN_EUNSUPPORTED, "%s: the model has no chat template (a base model): use --raw",
                          m->path);
    return rc;
}

static int check_turns(const tern_chat_turn *turns, size_t n, size_t first, tern_error *err)
{
    if (first > n)
        return tern_err_set(err, TERN_EINVAL, "what follows turn %zu is asked for, and there are %zu", first, n);
    if (n > 0 && !turns)
        return tern_err_set(err, TERN_EINVAL, "there are %zu turns, and no list of them", n);
    for (size_t i = 0; i < n; i++)
        if (!turns[i].role || !turns[i].content)
            return tern_err_set(err, TERN_EINVAL, "turn %zu has no %s", i, turns[i].role ? "content" : "role");
    return 0;
}

static int render(const tern_model *m, const tern_chat_turn *turns, size_t n, bool add_generation_prompt,
                  struct tern_rendered *r, tern_error *err)
{
    int rc = 0;
    struct tern_chat_message *msgs = NULL;
    TERN_TRY(tern_model_need_template(m, err));
    TERN_TRY(tern_alloc(&msgs, n, sizeof *msgs, err));
    for (size_t i = 0; i < n; i++)
        msgs[i] = (struct tern_chat_message){turns[i].role, turns[i].content};
    TERN_TRY(tern_template_render(m->tmpl, msgs, n, add_generation_prompt,
                                  tern_model_special(m, tern_tokenizer_bos(m->tok)),
                                  tern_model_special(m, tern_tokenizer_eos(m->tok)), NULL, r, err));
out:
    tern_free(msgs);
    return rc;
}

int tern_model_chat_text(const tern_model *m, const tern_chat_turn *turns, size_t n_turns, bool add_generation_prompt,
                         char **out, tern_error *err)
{
    struct tern_rendered r = {0};
    *out = NULL;
    int rc = check_turns(turns, n_turns, 0, err);
    rc = rc < 0 ? rc : render(m, turns, n_turns, add_generation_prompt, &r, err);
    if (rc == 0) {
        *out = r.text.p; /* the buffer is malloc'ed: hand it over */
        r.text.p = NULL;
        if (!*out && !(*out = calloc(1, 1)))
            rc = tern_err_set(err, TERN_ENOMEM, "out of memory");
    }
    tern_rendered_clear(&r);
    return rc;
}

int tern_model_chat_tokens(const tern_model *m, const tern_chat_turn *turns, size_t n_turns, size_t first,
                           bool add_generation_prompt, tern_tokens *out, tern_error *err)
{
    int rc = 0;
    struct tern_rendered whole = {0}, head = {0};
    struct tern_ids ids = {0}, old = {0};
    TERN_TRY(check_turns(turns, n_turns, first, err));
    TERN_TRY(render(m, turns, n_turns, add_generation_prompt, &whole, err));
    TERN_TRY(tern_tokenize_rendered(m->tok, &whole, &ids, err));
    if (first) {
        TERN_TRY(render(m, turns, first, false, &head, err));
        TERN_TRY(tern_tokenize_rendered(m->tok, &head, &old, err));
        if (old.len > ids.len || memcmp(old.p, ids.p, old.len * sizeof *ids.p) != 0)
            TERN_FAIL(err, TERN_EMISMATCH, "the chat template rewrites earlier turns");
    }
    TERN_TRY(tern_tokens_append(out, ids.p + old.len, ids.len - old.len, err));
out:
    tern_rendered_clear(&whole);
    tern_rendered_clear(&head);
    tern_ids_clear(&ids);
    tern_ids_clear(&old);
    return rc;
}

struct tern_stream {
    struct tern_detok d;
    struct tern_buf text;
};

int tern_stream_new(tern_stream **out, const tern_model *m, bool special, tern_error *err)
{
    int rc = 0;
    *out = NULL;
    TERN_TRY(need_tokenizer(m, err));
    TERN_TRY(tern_alloc(out, 1, sizeof **out, err));
    tern_detok_init(&(*out)->d, m->tok, special);
out:
    return rc;
}

void tern_stream_free(tern_stream *s)
{
    if (!s)
        return;
    tern_buf_clear(&s->text);
    tern_free(s);
}

static int stream_result(tern_stream *s, int rc, const char **text, size_t *n)
{
    *text = s->text.p ? s->text.p : "";
    *n = rc < 0 ? 0 : s->text.len;
    return rc;
}

int tern_stream_push(tern_stream *s, int32_t id, const char **text, size_t *n, tern_error *err)
{
    tern_buf_reset(&s->text);
    return stream_result(s, tern_detok_push(&s->d, id, &s->text, err), text, n);
}

int tern_stream_finish(tern_stream *s, const char **text, size_t *n, tern_error *err)
{
    tern_buf_reset(&s->text);
    return stream_result(s, tern_detok_finish(&s->d, &s->text, err), text, n);
}

int tern_stream_behind(tern_stream *s, int32_t id, tern_error *err)
{
    const char *text;
    size_t n;
    const int rc = tern_stream_push(s, id, &text, &n, err);
    return rc < 0 ? rc : tern_stream_finish(s, &text, &n, err);
}
