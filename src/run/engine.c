/* Engines and sequences: opening, forking, trimming, saving; the step itself. */
#include "run/run.h"

#include <math.h>
#include <string.h>
#include "base/cpu.h"
#include "base/mem.h"
#include "run/draft/draft.h"

#define MAX_THREADS  256
#define MAX_SEQS     4096
#define MAX_CHUNK    8192
#define LEAST_CHUNK  512  /* of those that nobody chose: what a device takes that says nothing */
#define FRUGAL_CHUNK 2048 /* larger ones only where there is room to spare */
#define MAX_PLANS    256
#define MORE_PLANS   16 /* that an open engine has room for */

static bool is_prompt8(const tern_engine_params *p)
{
    return p->prompt_class && strcmp(p->prompt_class, "int8") == 0;
}

static int check_params(const tern_engine_params *p, tern_error *err)
{
    if (p->n_threads < 0 || p->n_threads > MAX_THREADS)
        return tern_err_set(err, TERN_EINVAL, "threads = %d is outside 1..%d", p->n_threads, MAX_THREADS);
    if (p->max_seqs < 0 || p->max_seqs > MAX_SEQS)
        return tern_err_set(err, TERN_EINVAL, "sequences = %d is outside 1..%d", p->max_seqs, MAX_SEQS);
    if (p->chunk < 0 || p->chunk > MAX_CHUNK)
        return tern_err_set(err, TERN_EINVAL, "chunk = %d is outside 1..%d", p->chunk, MAX_CHUNK);
    if (p->n_more_kv < 0 || p->n_more_kv >= MAX_PLANS)
        return tern_err_set(err, TERN_EINVAL, "further KV plans = %d is outside 0..%d", p->n_more_kv, MAX_PLANS - 1);
    for (int i = 0; i < p->n_more_kv; i++)
        if (!p->more_kv || !p->more_kv[i])
            return tern_err_set(err, TERN_EINVAL, "further KV plan %d of %d is missing", i + 1, p->n_more_kv);
    if (p->drafts < 0 || p->drafts > TERN_KV_MAX_DRAFTS)
        return tern_err_set(err, TERN_EINVAL, "drafts = %d is outside 0..%d", p->drafts, TERN_KV_MAX_DRAFTS);
    if (p->ctx < 0)
        return tern_err_set(err, TERN_EINVAL, "context = %d is negative", p->ctx);
    if (p->decode_bits != 0 && p->decode_bits != 8 && p->decode_bits != 16)
        return tern_err_set(err, TERN_EINVAL, "decode_bits = %d: there are 8 and 16", p->decode_bits);
    if (p->decode_bits && p->exact)
        return tern_err_set(err, TERN_EINVAL, "decode_bits = %d: an exact engine computes in 32 bits", p->decode_bits);
    if (p->prompt_class && strcmp(p->prompt_class, "auto") != 0 && strcmp(p->prompt_class, "int8") != 0)
        return tern_err_set(err, TERN_EINVAL, "prompt_class = \"%s\": there are \"auto\" and \"int8\"",
                            p->prompt_class);
    if (is_prompt8(p) && p->exact)
        return tern_err_set(err, TERN_EINVAL, "prompt_class = \"int8\": an exact engine computes in 32 bits");
    return 0;
}

int tern_engine_check_kv(const tern_engine *e, int plan, const char *spec, tern_error *err)
{
    const size_t least = tern_kv_least_bytes(&e->caches[plan]);
    return least <= e->kv_budget.limit
               ? 0
               : tern_err_set(err, TERN_EINVAL,
                              "KV memory of %zu bytes is less than the %zu that one page of --kv %s takes",
                              e->kv_budget.limit, least, spec);
}

/* Every plan has a cache with room for all sequences: address space, which costs nothing until pages are in use.  What
 * they use together is limited by kv_bytes. */
static int open_plans(tern_engine *e, const tern_engine_params *p, tern_error *err)
{
    int rc = 0, n = 1 + p->n_more_kv, drafts;
    const struct tern_kv_room room = {e->max_seqs, e->ctx, e->chunk, &e->kv_budget, e->dev};
    e->kv_budget.limit = p->kv_bytes ? p->kv_bytes : SIZE_MAX;
    e->max_plans = n + MORE_PLANS;
    TERN_TRY(tern_alloc(&e->plans, (size_t)e->max_plans + 1, sizeof(struct tern_kv_plan *), err));
    TERN_TRY(tern_alloc(&e->caches, (size_t)e->max_plans + 1, sizeof *e->caches, err));
    for (int i = 0; i < n; i++) {
        const char *spec = i ? p->more_kv[i - 1] : p->kv ? p->kv : p->exact ? "f32" : e->dev->ops->kv;
        TERN_TRY(tern_plan_of_ctx(&e->plans[i], e->model, e->ctx, spec, p->kv_strict, e->mtp, err));
        e->n_caches = ++e->n_plans;
        TERN_TRY(tern_draft_rows(p, e->plans[i]->layout->state_bytes > 0, &drafts, err));
        e->drafts = drafts;
        tern_kv_layout_spare(e->plans[i]->layout, drafts);
        TERN_TRY(tern_kv_cache_init(&e->caches[i], e->plans[i]->layout, &room, err));
        TERN_TRY(tern_engine_check_kv(e, i, spec, err));
    }
    if (p->code_at_end)
        TERN_TRY(tern_prompt_open(e, err));
out:
    return rc;
}

/* What the card has of pages: bytes of one of each group, and of `all`. */
static size_t card_pages(const tern_engine *e, size_t *all)
{
    size_t card = 0;
    *all = 0;
    for (int i = 0; i < e->n_plans; i++)
        for (int g = 0; g < e->plans[i]->layout->n_groups; g++) {
            *all += e->caches[i].pool[g].mem.bytes;
            card += e->caches[i].pool[g].mem.bytes - e->caches[i].pool[g].cut;
        }
    return card;
}

/* On a card sequences may have what weights and scratch leave: pools take whole pieces, and keep an eighth of what they
 * gave back (kv/pool.c).  Of layers that the CPU has nothing comes there. */
static int limit_kv(tern_engine *e, tern_error *err)
{
    struct tern_dev_held h;
    size_t pools = 0, all;
    const size_t card = card_pages(e, &all);
    if (!e->dev->ops->held || (all && !card))
        return 0;
    e->dev->ops->held(e->dev, &h);
    for (int i = 0; i < e->n_plans; i++)
        pools += (size_t)e->plans[i]->layout->n_groups + 2 + (e->plans[i]->layout->state_bytes > 0);
    const size_t taken = h.used + pools * h.piece;
    size_t left = h.limit > taken ? h.limit - taken : 0;
    left -= left / 9;
    left = card < all ? (size_t)((double)left / (double)card * (double)all) : left;
    if (left < e->kv_budget.limit)
        e->kv_budget.limit = left;
    for (int i = 0; i < e->n_plans; i++)
        if (tern_kv_least_bytes(&e->caches[i]) > left)
            return tern_err_set(
                err, TERN_ENOMEM,
                "%s may use %zu MiB (--gpu-memory), of which weights and scratch take %zu, and one page "
                "of the KV cache takes %zu bytes: smaller steps (--chunk) or fewer layers "
                "(--gpu-layers) leave more",
                e->dev->ops->name, h.limit >> 20, h.used >> 20, tern_kv_least_bytes(&e->caches[i]));
    return 0;
}

size_t tern_engine_kv_limit(const tern_engine *e)
{
    return e->kv_budget.limit;
}

static size_t held_bytes(const tern_engine *e)
{
    struct tern_dev_held h = {0};
    if (e->dev->ops->held)
        e->dev->ops->held(e->dev, &h);
    return h.used;
}

/* Pages that sequences hold more of a window than with small steps, while one of these is under way. */
static size_t window_bytes(const tern_engine *e)
{
    size_t bytes = 0;
    for (int i = 0; i < e->n_caches; i++)
        for (int g = 0; g < e->caches[i].layout->n_groups; g++)
            if (e->caches[i].layout->groups[g].reach.window)
                bytes += e->caches[i].pool[g].takes;
    return bytes * (size_t)(e->chunk - FRUGAL_CHUNK) / TERN_PAGE * (size_t)e->max_seqs;
}

/* Of steps whose size nobody chose, with so many bytes of scratch: TERN_ENOMEM where that and pages take more than a
 * fourth of what is left, but for small ones. */
static int check_frugal(const tern_engine *e, size_t scratch, tern_error *err)
{
    struct tern_dev_held h;
    if (e->chunk <= FRUGAL_CHUNK || !e->dev->ops->held)
        return 0;
    e->dev->ops->held(e->dev, &h);
    return h.limit > h.used && scratch + window_bytes(e) <= (h.limit - h.used) / 4
               ? 0
               : tern_err_set(err, TERN_ENOMEM, "steps of %d tokens take %zu bytes of %s", e->chunk, scratch,
                              e->dev->ops->name);
}

/* Room for steps; what would make it smaller is said where a card has none. */
static int open_forward(tern_engine *e, tern_error *err)
{
    tern_error why = {0};
    int rc = tern_forward_new(&e->forward, e->model->net, e->caches, e->n_caches, e->dev, e->chunk, e->chunk,
                              e->max_seqs, e->exact, e->decode16, e->prompt8, &why);
    if (rc == TERN_ENOMEM && e->dev->ops->held)
        return tern_err_set(err, rc, "no room for steps of %d tokens (--chunk takes fewer): %.400s", e->chunk, why.msg);
    if (rc < 0 && err)
        *err = why;
    return rc;
}

static int alloc_batch(tern_engine *e, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_alloc(&e->rows, (size_t)e->chunk, sizeof *e->rows, err));
    TERN_TRY(tern_alloc(&e->jobs, (size_t)e->max_seqs, sizeof *e->jobs, err));
    TERN_TRY(tern_alloc(&e->logit_rows, (size_t)e->chunk, sizeof *e->logit_rows, err));
    TERN_TRY(tern_alloc(&e->hidden_rows, (size_t)e->chunk, sizeof *e->hidden_rows, err));
    TERN_TRY(tern_alloc(&e->seqs, (size_t)e->max_seqs, sizeof *e->seqs, err));
    for (int i = 0; i < e->max_seqs; i++) {
        e->seqs[i].engine = e;
        TERN_TRY(tern_alloc(&e->seqs[i].tokens, (size_t)e->ctx, sizeof(int32_t), err));
        TERN_TRY(tern_alloc(&e->seqs[i].roles, (size_t)e->ctx, 1, err));
    }
out:
    return rc;
}

/* pool: another engine's, or NULL.  chunk: of its steps. */
static int open_with(tern_engine **out, tern_model *m, const tern_engine_params *p, struct tern_pool *pool, int chunk,
                     tern_error *err)
{
    int rc = 0;
    tern_engine *e = NULL;
    if (p->ctx > m->net->desc.ctx)
        TERN_FAIL(err, TERN_EINVAL,
                  "context = %d is more than the %d tokens that %s was trained for (rope_scaling: --rope-scaling "
                  "yarn,factor=N)",
                  p->ctx, m->net->desc.ctx, m->path);
    if (p->decode_bits == 16 && !m->net->dev->ops->decode16)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "decode_bits = 16: the device %s computes decode rows in 8 bits alone",
                  m->net->dev->ops->name);
    if (is_prompt8(p) && !m->net->dev->ops->prompt8)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "prompt_class = \"int8\": the device %s has one class for prompts",
                  m->net->dev->ops->name);
    TERN_TRY(tern_alloc(&e, 1, sizeof *e, err));
    e->model = m;
    e->ctx = p->ctx ? p->ctx : m->net->desc.ctx;
    e->max_seqs = p->max_seqs ? p->max_seqs : 1;
    e->chunk = chunk < e->ctx ? chunk : e->ctx;
    TERN_TRY(tern_net_experts_check(m->net, e->chunk, err));
    e->exact = p->exact;
    e->decode16 = p->decode_bits == 16;
    e->prompt8 = is_prompt8(p);
    TERN_TRY(tern_draft_mtp(p, m, &e->mtp, err));
    if (!pool)
        TERN_TRY(tern_pool_new(&e->own_pool, p->n_threads ? p->n_threads : tern_cpu_cores(), 1, err));
    e->pool = pool ? pool : e->own_pool;
    TERN_TRY(m->net->dev->ops->open(&e->dev, m->net->dev->ops, e->pool, err));
    TERN_TRY(open_plans(e, p, err));
    const size_t before = held_bytes(e);
    TERN_TRY(open_forward(e, err));
    if (!p->chunk)
        TERN_TRY(check_frugal(e, held_bytes(e) - before, err));
    TERN_TRY(limit_kv(e, err));
    TERN_TRY(alloc_batch(e, err));
    e->asks_best = e->dev->ops->apart && e->dev->ops->best && m->net->desc.n_vocab <= TERN_BEST_WIDTH;
    TERN_TRY(tern_drafter_open(&e->drafter, e, p, err));
    *out = e;
    e = NULL;
out:
    tern_engine_close(&e);
    return rc;
}

/* Steps whose size nobody chose become smaller where the device has no room for them. */
static int open_engine(tern_engine **out, tern_model *m, const tern_engine_params *p, struct tern_pool *pool,
                       tern_error *err)
{
    int rc = 0, chunk = p->chunk ? p->chunk : m->net->dev->ops->chunk ? m->net->dev->ops->chunk : LEAST_CHUNK;
    tern_error why = {0};
    *out = NULL;
    TERN_TRY(check_params(p, err));
    for (; (rc = open_with(out, m, p, pool, chunk, &why)) == TERN_ENOMEM && !p->chunk && chunk > LEAST_CHUNK;
         chunk /= 2)
        why = (tern_error){0};
    if (rc < 0 && err)
        *err = why;
out:
    return rc;
}

int tern_engine_open(tern_engine **out, tern_model *m, const tern_engine_params *p, tern_error *err)
{
    static const tern_engine_params defaults;
    return open_engine(out, m, p ? p : &defaults, NULL, err);
}

int tern_engine_open_beside(tern_engine **out, const tern_engine *e, tern_model *m, const tern_engine_params *p,
                            tern_error *err)
{
    return open_engine(out, m, p, e->pool, err);
}

void tern_engine_close(tern_engine **pe)
{
    if (!pe || !*pe)
        return;
    tern_engine *e = *pe;
    tern_drafter_close(e->drafter);
    for (int i = 0; e->seqs && i < e->max_seqs; i++) {
        tern_free(e->seqs[i].tokens);
        tern_free(e->seqs[i].roles);
    }
    tern_free(e->seqs);
    tern_free(e->rows);
    tern_free(e->jobs);
    tern_free(e->logit_rows);
    if (e->logits && e->dev->ops->lands)
        e->dev->ops->lands(e->dev, NULL, 0);
    tern_free(e->logits);
    tern_free(e->best);
    tern_free(e->hidden_rows);
    tern_free(e->hidden);
    tern_forward_free(e->forward);
    for (int i = 0; i < e->n_caches; i++) {
        tern_kv_cache_clear(&e->caches[i]);
        tern_kv_plan_free(e->plans[i]);
    }
    tern_free(e->caches);
    tern_free(e->plans);
    tern_dev_close(e->dev);
    tern_pool_free(e->own_pool);
    tern_free(e);
    *pe = NULL;
}

int tern_engine_ctx(const tern_engine *e)
{
    return e->ctx;
}

int tern_engine_chunk(const tern_engine *e)
{
    return e->chunk;
}

int tern_engine_max_decode(const tern_engine *e)
{
    return e->chunk;
}

int tern_engine_threads(const tern_engine *e)
{
    return tern_pool_threads(e->pool);
}

const tern_kv_plan *tern_engine_plan(const tern_engine *e)
{
    return e->plans[0];
}

int tern_engine_n_plans(const tern_engine *e)
{
    return e->n_plans;
}

const tern_kv_plan *tern_engine_plan_at(const tern_engine *e, int plan)
{
    return plan >= 0 && plan < e->n_plans ? e->plans[plan] : NULL;
}

void tern_engine_memory(const tern_engine *e, tern_memory *out)
{
    *out = (tern_memory){.scratch_bytes = tern_forward_scratch_bytes(e->forward) +
                                          (e->logits_cap + e->best_cap + e->hidden_cap) * sizeof(float) +
                                          tern_drafter_bytes(e->drafter)};
    for (int i = 0; i < e->n_caches; i++) {
        out->kv_bytes += tern_kv_used_bytes(&e->caches[i]);
        out->kv_f16_bytes += tern_kv_f16_bytes(&e->caches[i]);
        out->state_bytes += tern_kv_state_bytes(&e->caches[i]);
    }
    tern_kv_full_bytes(e->plans[0]->layout, e->ctx, &out->kv_full_bytes, &out->kv_full_f16_bytes);
}

void tern_engine_full(const tern_engine *e, int plan, size_t *bytes, size_t *f16_bytes)
{
    TERN_ASSERT(plan >= 0 && plan < e->n_plans);
    tern_kv_full_bytes(e->plans[plan]->layout, e->ctx, bytes, f16_bytes);
}

void tern_engine_cancel(tern_engine *e)
{
    atomic_store_explicit(&e->cancel, 1, memory_order_relaxed);
}

/* ---- sequences -------------------------------------------------------------------------------------------------- */

static struct tern_kv_cache *cache_of(const tern_seq *s)
{
    return &s->engine->caches[s->plan];
}

/* A free slot; the KV sequence is the caller's to attach. */
static int free_slot(tern_engine *e, tern_seq **out, tern_error *err)
{
    for (int i = 0; i < e->max_seqs; i++)
        if (!e->seqs[i].kv) {
            *out = &e->seqs[i];
            return 0;
        }
    *out = NULL;
    return tern_err_set(err, TERN_ECAPACITY, "all %d sequences of the engine are in use", e->max_seqs);
}

int tern_seq_new(tern_seq **out, tern_engine *e, tern_error *err)
{
    return tern_seq_new_plan(out, e, 0, err);
}

int tern_seq_new_plan(tern_seq **out, tern_engine *e, int plan, tern_error *err)
{
    *out = NULL;
    if (plan < 0 || plan >= e->n_plans)
        return tern_err_set(err, TERN_EINVAL, "KV plan %d is outside 0..%d", plan, e->n_plans - 1);
    int rc = free_slot(e, out, err);
    if (rc < 0)
        return rc;
    (*out)->plan = plan;
    (*out)->recode_at = 0;
    rc = tern_kv_seq_new(cache_of(*out), &(*out)->kv, err);
    if (rc < 0)
        *out = NULL;
    return rc;
}

void tern_seq_free(tern_seq *s)
{
    if (!s || !s->kv)
        return;
    tern_kv_seq_free(cache_of(s), s->kv);
    s->kv = NULL;
    s->ahead = 0;
    s->torn = false;
}

/* While drafts are verified a sequence holds tokens that may not count. */
int tern_seq_check_whole(const tern_seq *s, tern_error *err)
{
    if (s->torn)
        return tern_err_set(err, TERN_EINVAL, "a step of the sequence failed midway: it can only be freed");
    if (!s->ahead)
        return 0;
    return tern_err_set(err, TERN_EINVAL, "the sequence is in the middle of a step; until that is over it can be read");
}

int tern_seq_fork(tern_seq **out, tern_seq *s, tern_error *err)
{
    tern_engine *e = s->engine;
    *out = NULL;
    int rc = tern_seq_check_whole(s, err);
    if (rc < 0)
        return rc;
    rc = free_slot(e, out, err);
    if (rc < 0)
        return rc;
    (*out)->plan = s->plan;
    (*out)->recode_at = s->recode_at;
    (*out)->recode_plan = s->recode_plan;
    rc = tern_kv_seq_fork(cache_of(s), &(*out)->kv, s->kv, err);
    if (rc < 0) {
        *out = NULL;
        return rc;
    }
    memcpy((*out)->tokens, s->tokens, (size_t)s->kv->n_tokens * sizeof *s->tokens);
    memcpy((*out)->roles, s->roles, (size_t)s->kv->n_tokens);
    return 0;
}

int tern_seq_length(const tern_seq *s)
{
    return s->kv->n_tokens - s->ahead;
}

const int32_t *tern_seq_tokens(const tern_seq *s)
{
    return s->tokens;
}

int tern_seq_trim(tern_seq *s, int n, tern_error *err)
{
    int kept, rc = tern_seq_check_whole(s, err);
    if (rc < 0)
        return rc;
    if (n < 0 || n > s->kv->n_tokens)
        return tern_err_set(err, TERN_EINVAL, "cannot trim a sequence of %d tokens to %d", s->kv->n_tokens, n);
    rc = tern_kv_trim(cache_of(s), s->kv, n, &kept, err);
    if (rc < 0)
        return rc;
    rc = tern_seq_replay(s, kept, n, err);
    s->torn |=
        rc < 0; /* tokens below n are missing: nobody is to take it for one that was trimmed, or for the old one */
    return rc;
}

/* Of everything but the plan that decides keys and values: the model, which of its layers a card has not, and which
 * factors of longrope count. */
static uint64_t digest(const tern_engine *e)
{
    const struct tern_net *net = e->model->net;
    const uint64_t h = net->digest + net->stretch + (uint64_t)net->dev->ops->cut * 0x9E3779B97F4A7C15u;
    return tern_rope_is_long(&net->desc.ropes[0], e->ctx) ? ~h : h;
}

int tern_seq_save_check(const char *path, tern_error *err)
{
    return tern_kv_save_check(path, err);
}

int tern_seq_save(const tern_seq *s, const char *path, tern_error *err)
{
    const tern_engine *e = s->engine;
    int rc = tern_seq_check_whole(s, err);
    if (rc < 0)
        return rc;
    struct tern_kv_snapshot_info info = {.model_digest = digest(e), .tokens = s->tokens, .roles = s->roles};
    return tern_kv_save(cache_of(s), s->kv, &info, path, err);
}

int tern_seq_load(tern_seq **out, tern_engine *e, const char *path, tern_error *err)
{
    int rc = 0;
    int32_t *tokens = NULL;
    uint8_t *roles = NULL;
    tern_error refusal = {0};
    TERN_TRY(free_slot(e, out, err));
    tern_seq *s = *out;
    *out = NULL;
    rc = TERN_EMISMATCH;
    for (int i = 0; rc == TERN_EMISMATCH && i < e->n_plans; i++) {
        s->plan = i;
        rc = tern_kv_load(&e->caches[i], &s->kv, digest(e), e->model->net->desc.n_vocab, path, &tokens, &roles,
                          &refusal);
    }
    if (rc < 0) { /* the file fits one plan or none: then the last refusal stands */
        const struct tern_rope *rope = &e->model->net->desc.ropes[0];
        if (rc == TERN_EMISMATCH && rope->scaling == TERN_ROPE_LONG)
            TERN_FAIL(err, rc, "%.400s, or with a context on the other side of %d tokens, where longrope differs",
                      refusal.msg, rope->original);
        if (rc == TERN_EMISMATCH && e->model->net->desc.n_mtp_layers)
            TERN_FAIL(err, rc, "%.400s, or %s the layer for multi-token prediction that --draft mtp uses", refusal.msg,
                      e->mtp ? "without" : "with");
        if (err)
            *err = refusal;
        goto out;
    }
    memcpy(s->tokens, tokens, (size_t)s->kv->n_tokens * sizeof *tokens);
    memcpy(s->roles, roles, (size_t)s->kv->n_tokens);
    s->recode_at = 0;
    *out = s;
out:
    tern_free(tokens);
    tern_free(roles);
    return rc;
}

/* ---- the step --------------------------------------------------------------------------------------------------- */

static int check_item(tern_engine *e, const tern_step_item *it, tern_error *err)
{
    if (!it->seq || it->seq->engine != e || !it->seq->kv)
        return tern_err_set(err, TERN_EINVAL, "step: a sequence does not belong to this engine");
    if (it->n_tokens < 1 || !it->tokens)
        return tern_err_set(err, TERN_EINVAL, "step: a sequence comes with %d tokens", it->tokens ? it->n_tokens : 0);
    if (it->seq->ahead || it->seq->torn)
        return tern_seq_check_whole(it->seq, err);
    for (int i = 0; i < it->n_tokens; i++)
        if (it->tokens[i] < 0 || it->tokens[i] >= e->model->net->desc.n_vocab)
            return tern_err_set(err, TERN_EINVAL, "token %d is outside the vocabulary of %d", it->tokens[i],
                                e->model->net->desc.n_vocab);
    return 0;
}

static int check_items(tern_engine *e, const tern_step_item *items, int n_items, tern_error *err)
{
    int rc = 0;
    int64_t rows = 0;
    if (n_items < 1 || n_items > e->max_seqs)
        TERN_FAIL(err, TERN_EINVAL, "step: %d sequences, the engine holds %d", n_items, e->max_seqs);
    e->n_steps++;
    for (int i = 0; i < n_items; i++) {
        TERN_TRY(check_item(e, &items[i], err));
        if (items[i].seq->step == e->n_steps)
            TERN_FAIL(err, TERN_EINVAL, "step: a sequence occurs twice");
        items[i].seq->step = e->n_steps;
        rows += items[i].n_tokens;
    }
    if (rows > e->chunk)
        TERN_FAIL(err, TERN_EINVAL, "step: %lld rows, the engine takes %d", (long long)rows, e->chunk);
out:
    return rc;
}

/* What a step shall tell of its items (tern_step_seen); NULL where nobody asks. */
struct answers {
    const int *best;
    struct tern_seen *seen;
    int n_rows, n_logits, n_best; /* rows that are asked for; those whose logits are; most whose best can be */
};

static int best_of(const struct answers *a, int item)
{
    return a->best ? a->best[item] : 0;
}

int tern_floats_widen(float **p, size_t *cap, size_t want, tern_error *err)
{
    if (want <= *cap)
        return 0;
    tern_free(*p);
    *cap = 0;
    int rc = tern_alloc(p, want, sizeof(float), err);
    *cap = rc < 0 ? 0 : want;
    return rc;
}

int tern_logits_widen(tern_engine *e, size_t want, tern_error *err)
{
    const struct tern_dev_ops *ops = e->dev->ops;
    if (want <= e->logits_cap)
        return 0;
    if (ops->lands)
        ops->lands(e->dev, NULL, 0);
    const int rc = tern_floats_widen(&e->logits, &e->logits_cap, want, err);
    if (rc == 0 && ops->lands)
        ops->lands(e->dev, e->logits, want * sizeof *e->logits);
    return rc;
}

/* Nothing may fail once a step has run, for recurrent states have moved on. */
static int reserve_answers(tern_engine *e, const tern_step_item *items, int n_items, struct answers *a, tern_error *err)
{
    int rc = 0;
    bool best = false;
    for (int i = 0; i < n_items; i++) {
        const int n = tern_item_logits(&items[i]);
        a->n_rows += n;
        a->n_logits += best_of(a, i) ? 0 : n;
        best |= n && best_of(a, i);
    }
    TERN_ASSERT(e->asks_best || !best);
    a->n_best = best ? a->n_rows : 0;
    const size_t logits = (size_t)a->n_logits * (size_t)e->model->net->desc.n_vocab;
    TERN_TRY(tern_logits_widen(e, logits, err));
    TERN_TRY(tern_floats_widen(&e->best, &e->best_cap, (size_t)a->n_best * 2 * TERN_BEST, err));
out:
    return rc;
}

/* Rows of the items of one role, appended to the batch; order[] remembers which item each logits row belongs to. */
static void add_rows(tern_engine *e, struct tern_forward_batch *b, const tern_step_item *it, bool wide)
{
    struct tern_forward_job *j = &e->jobs[b->n_jobs++];
    int pos0 = it->seq->kv->n_tokens;
    *j = (struct tern_forward_job){.seq = it->seq->kv,
                                   .plan = it->seq->plan,
                                   .row0 = b->n_rows,
                                   .n_rows = it->n_tokens,
                                   .pos0 = pos0,
                                   .wide = wide};
    (void)tern_kv_mark(cache_of(it->seq), it->seq->kv, it->n_tokens, !it->decode);
    for (int i = 0; i < it->n_tokens; i++) {
        if (i >= it->n_tokens - tern_item_logits(it))
            e->logit_rows[b->n_logit_rows++] = b->n_rows;
        if (i >= it->n_tokens - tern_item_hidden(it))
            e->hidden_rows[b->n_hidden_rows++] = b->n_rows;
        e->rows[b->n_rows++] = (struct tern_row){it->tokens[i], pos0 + i};
    }
}

static void build_batch(tern_engine *e, struct tern_forward_batch *b, const tern_step_item *items, int n_items)
{
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < n_items; i++) {
            bool wide = e->exact || !items[i].decode;
            if (wide == (pass == 0))
                add_rows(e, b, &items[i], wide);
        }
        if (pass == 0)
            b->n_wide = b->n_rows;
    }
}

/* The device has prompt rows first; callers want rows in the order of their items: the first row of each, one item
 * after the other. */
struct places {
    int at[2]; /* next device row of wide and of narrow items */
};

static struct places places_of(const struct tern_forward_batch *b)
{
    struct places p = {{0, 0}};
    for (int i = 0; i < b->n_logit_rows; i++)
        p.at[1] += b->logit_rows[i] < b->n_wide;
    return p;
}

static int next_place(struct places *p, const tern_engine *e, const tern_step_item *it)
{
    int *at = &p->at[!(e->exact || !it->decode)];
    const int first = *at;
    *at += tern_item_logits(it);
    return first;
}

/* The best of all rows from the first that shall have it to the last, as many of each as the one that wants most: in a
 * power of two, so that steps of a device are alike. */
static void want_best(const tern_engine *e, struct tern_forward_batch *b, const tern_step_item *items, int n_items,
                      const struct answers *a)
{
    struct places p = places_of(b);
    int end = 0, most = 0;
    for (int i = 0; i < n_items; i++) {
        const int at = next_place(&p, e, &items[i]), n = tern_item_logits(&items[i]);
        if (!best_of(a, i) || !n)
            continue;
        b->best_from = most && b->best_from < at ? b->best_from : at;
        end = at + n > end ? at + n : end;
        most = best_of(a, i) > most ? best_of(a, i) : most;
    }
    for (b->best = 1; b->best < most;)
        b->best *= 2;
    b->n_best = end - b->best_from;
}

struct tern_seen tern_seen_best(const tern_engine *e, const struct tern_forward_batch *b, int row)
{
    const float *ids = e->best + (size_t)b->n_best * (size_t)b->best;
    const size_t from = (size_t)(row - b->best_from) * (size_t)b->best;
    return (struct tern_seen){e->best + from, (const int32_t *)(const void *)(ids + from), b->best};
}

static void fetch_answers(tern_engine *e, const struct tern_forward_batch *b, const tern_step_item *items, int n_items,
                          const struct answers *a)
{
    struct places p = places_of(b);
    float *to = e->logits;
    const int vocab = e->model->net->desc.n_vocab;
    if (b->n_best)
        tern_forward_best(e->forward, b, e->best);
    for (int i = 0; i < n_items; i++) {
        const int at = next_place(&p, e, &items[i]), n = tern_item_logits(&items[i]);
        struct tern_seen seen = {.x = n ? to : NULL, .n = vocab};
        if (n && best_of(a, i)) {
            seen = tern_seen_best(e, b, at);
        } else {
            tern_forward_logits(e->forward, to, at, n);
            to += (size_t)n * (size_t)vocab;
        }
        if (a->seen)
            a->seen[i] = seen;
    }
}

/* A step wrote rows and failed.  One row behind a sequence lies where nothing is needed that is nowhere else; but
 * several may have taken the place of raw rows that close a page, and states have moved. */
static void tear(const tern_step_item *items, int n_items)
{
    for (int i = 0; i < n_items; i++) {
        tern_seq *s = items[i].seq;
        tern_kv_tried(cache_of(s), s->kv, items[i].n_tokens);
        s->torn |= items[i].n_tokens > 1 || cache_of(s)->layout->state_bytes;
    }
}

static int step(tern_engine *e, const tern_step_item *items, int n_items, struct answers *a, tern_error *err)
{
    int rc = 0, begun = 0, n_hidden;
    TERN_TRY(check_items(e, items, n_items, err));
    TERN_TRY(reserve_answers(e, items, n_items, a, err));
    TERN_TRY(tern_hidden_reserve(e, items, n_items, &n_hidden, err));
    TERN_TRY(tern_forward_want(e->forward, a->n_rows, n_hidden, a->n_best, err));
    for (; begun < n_items; begun++)
        TERN_TRY(tern_kv_begin(cache_of(items[begun].seq), items[begun].seq->kv, items[begun].n_tokens, err));
    struct tern_forward_batch b = {
        .rows = e->rows, .jobs = e->jobs, .logit_rows = e->logit_rows, .hidden_rows = e->hidden_rows};
    b.tap = e->tap;
    b.tap_user = e->tap_user;
    build_batch(e, &b, items, n_items);
    want_best(e, &b, items, n_items, a);
    tern_forward_run(e->forward, &b);
    fetch_answers(e, &b, items, n_items, a);
    tern_hidden_fetch(e, &b, items, n_items);
    e->dev->ops->sync(e->dev);
    if ((rc = tern_forward_fault(e->forward, err)) < 0) {
        tear(items, n_items);
        return rc;
    }
    for (int i = 0; i < n_items; i++) {
        tern_seq *s = items[i].seq;
        size_t at = (size_t)s->kv->n_tokens, n = (size_t)items[i].n_tokens;
        memmove(s->tokens + at, items[i].tokens, n * sizeof *s->tokens);
        memset(s->roles + at, items[i].decode, n);
        tern_kv_commit(cache_of(s), s->kv, (int)n);
    }
    return 0;
out:
    for (int i = 0; i < begun; i++)
        tern_kv_abort(cache_of(items[i].seq), items[i].seq->kv);
    return rc;
}

int tern_step(tern_engine *e, const tern_step_item *items, int n_items, const float **logits, tern_error *err)
{
    struct answers a = {0};
    const int rc = step(e, items, n_items, &a, err);
    if (logits)
        *logits = rc == 0 && a.n_logits ? e->logits : NULL;
    return rc;
}

int tern_step_seen(tern_engine *e, const tern_step_item *items, int n_items, const int *best, struct tern_seen *seen,
                   tern_error *err)
{
    return step(e, items, n_items, &(struct answers){.best = best, .seen = seen}, err);
}

/* The lowest id of the largest number; -1: none is a number. */
static int32_t largest_of(const float *x, int n)
{
    int32_t best = -1;
    for (int i = 0; i < n; i++)
        if (!isnan(x[i]) && (best < 0 || x[i] > x[best]))
            best = i;
    return best;
}

int tern_step_greedy(tern_engine *e, const tern_step_item *items, int n_items, int32_t *ids, tern_error *err)
{
    int rc = 0, *best = NULL;
    struct tern_seen *seen = NULL;
    for (int i = 0; i < n_items; i++)
        if (tern_item_logits(&items[i]) > 1)
            TERN_FAIL(err, TERN_EINVAL, "item %d asks for %d rows of logits; the most likely token is told of one", i,
                      tern_item_logits(&items[i]));
    TERN_TRY(tern_alloc(&best, (size_t)n_items, sizeof *best, err));
    TERN_TRY(tern_alloc(&seen, (size_t)n_items, sizeof *seen, err));
    for (int i = 0; i < n_items; i++)
        best[i] = e->asks_best;
    TERN_TRY(tern_step_seen(e, items, n_items, best, seen, err));
    for (int i = 0; i < n_items; i++)
        ids[i] = !seen[i].x ? -1 : seen[i].ids ? seen[i].ids[0] : largest_of(seen[i].x, seen[i].n);
out:
    tern_free(best);
    tern_free(seen);
    return rc;
}

int tern_seq_replay(struct tern_seq *s, int from, int to, tern_error *err)
{
    int rc = 0;
    tern_engine *e = s->engine;
    while (from < to) {
        int n = 1, most = s->roles[from] ? tern_engine_max_decode(e) : e->chunk;
        while (from + n < to && n < most && s->roles[from + n] == s->roles[from])
            n++;
        tern_step_item it = {.seq = s, .tokens = s->tokens + from, .n_tokens = n, .decode = s->roles[from]};
        TERN_TRY(tern_step(e, &it, 1, NULL, err));
        from += n;
    }
out:
    return rc;
}

int tern_prefill(tern_engine *e, tern_seq *s, const int32_t *tokens, int n, const float **logits,
                 tern_progress_fn *progress, void *user, tern_error *err)
{
    tern_cancel_clear(e);
    return tern_prefill_steps(e, s, tokens, n, logits, progress, user, err);
}

void tern_cancel_clear(tern_engine *e)
{
    atomic_store_explicit(&e->cancel, 0, memory_order_relaxed);
}

int tern_prefill_steps(tern_engine *e, tern_seq *s, const int32_t *tokens, int n, const float **logits,
                       tern_progress_fn *progress, void *user, tern_error *err)
{
    int rc = 0, plan = s->plan;
    struct tern_kv_seq *coded = NULL;
    if (logits)
        *logits = NULL;
    if (n < 0)
        TERN_FAIL(err, TERN_EINVAL, "a prompt of %d tokens", n);
    if (n > e->ctx - s->kv->n_tokens)
        TERN_FAIL(err, TERN_ECAPACITY, "a prompt of %d tokens does not fit: the context is %d tokens, %d are in use", n,
                  e->ctx, s->kv->n_tokens);
    TERN_TRY(tern_prompt_begin(s, n, &coded, err));
    for (int done = 0; done < n;) {
        if (atomic_exchange_explicit(&e->cancel, 0, memory_order_relaxed))
            TERN_FAIL(err, TERN_ECANCELLED, "cancelled after %d of %d prompt tokens", done, n);
        int k = tern_seq_recode_room(s, n - done < e->chunk ? n - done : e->chunk);
        tern_step_item it = {.seq = s, .tokens = tokens + done, .n_tokens = k};
        it.logits = logits && done + k == n ? TERN_LOGITS_LAST : TERN_LOGITS_NONE;
        TERN_TRY(tern_step(e, &it, 1, logits, err));
        done += k;
        TERN_TRY(tern_seq_recode_due(s, err));
        if (progress && progress(user, done, n))
            TERN_FAIL(err, TERN_ECANCELLED, "cancelled after %d of %d prompt tokens", done, n);
    }
out:
    if (coded) {
        int end = tern_prompt_end(s, coded, plan, rc < 0 ? NULL : err);
        rc = rc < 0 ? rc : end;
    }
    return rc;
}
