/* Experts and layers with a recurrent state. */
#include "checkdev.h"
#include "file/file.h"

/* ---- experts ----------------------------------------------------------------------------------------------------- */

struct stack_source {
    struct tern_weight_source form;
    uint8_t *bytes, *scales;
    size_t matrix, matrix_scales;
};

static int matrix_of(const void *user, int i, struct tern_weight_source *out, char name[TERN_DEV_NAME], tern_error *err)
{
    const struct stack_source *s = user;
    (void)err;
    *out = s->form;
    out->data = s->bytes + (size_t)i * s->matrix;
    if (s->scales)
        out->scales = s->scales + (size_t)i * s->matrix_scales;
    (void)snprintf(name, TERN_DEV_NAME, "w");
    return 0;
}

static uint8_t *random_bytes(struct checkdev *c, size_t n, int set, int mask)
{
    uint8_t *p = checkdev_get(n + 64, 1);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)((tern_rng_u64(&c->rng) >> 56 & (uint64_t)mask) | (uint64_t)set);
    return p;
}

/* Small floats with exponents as scales, or what numbers are quantised to. */
static void make_bytes(struct checkdev *c, struct stack_source *s, int n, int k, int stack)
{
    const size_t elems = (size_t)n * (size_t)k;
    tern_error err = {0};
    if (s->form.form != TERN_FORM_PLAIN) {
        const bool eight = s->form.form == TERN_FORM_MXFP8;
        s->matrix = eight ? elems : elems / 2;
        s->matrix_scales = elems / 32;
        s->bytes = random_bytes(c, s->matrix * (size_t)stack, 0, eight ? 0xBF : 0xFF);
        s->scales = random_bytes(c, s->matrix_scales * (size_t)stack, 0x78, 0x03);
        return;
    }
    s->matrix = elems / (size_t)tern_type_elems(s->form.type) * (size_t)tern_type_bytes(s->form.type);
    s->bytes = checkdev_get(s->matrix, (size_t)stack);
    float *x = checkdev_get(elems, sizeof *x);
    for (int i = 0; i < stack; i++) {
        for (size_t e = 0; e < elems; e++)
            x[e] = checkdev_noise(c) / 8;
        if (tern_quantize(s->bytes + (size_t)i * s->matrix, s->form.type, x, elems, &err) < 0)
            exit(1);
    }
    tern_free(x);
}

static void make_stack(struct checkdev *c, struct tern_dev_weight w[DEVICES], struct tern_dev_mem *m[DEVICES],
                       const struct tern_weight_source *form, int n, int k, int stack)
{
    tern_error err = {0};
    struct stack_source s = {.form = *form};
    make_bytes(c, &s, n, k, stack);
    for (int i = 0; i < DEVICES; i++) {
        const struct tern_dev_ops *ops = c->d[i]->ops;
        const struct tern_dev_source from = {matrix_of, &s};
        if (ops->weight_plan(c->d[i], &w[i], &s.form, n, k, stack, &err) < 0 ||
            ops->reserve(c->d[i], &m[i], ops->weight_bytes(&w[i]), true, &err) < 0)
            exit(1);
        ops->weight_place(c->d[i], &w[i], m[i], 0);
        if (ops->weight_load(c->d[i], &w[i], &from, &err) < 0)
            exit(1);
    }
    tern_free(s.bytes);
    tern_free(s.scales);
}

enum { EMBD = 256, FF = 320, ROWS = 200 };

static struct tern_dev_rows row_of(const struct both *b, int row)
{
    struct tern_dev_rows r = rows_of(b, OTHER, EMBD, EMBD);
    r.at += (size_t)row * EMBD;
    return r;
}

static struct tern_dev_vec part_of(const struct both *b, size_t from)
{
    struct tern_dev_vec v = vec_of(b, OTHER);
    v.at += from;
    return v;
}

/* Each row of a batch by itself: the same bits. */
static void rows_alone(struct checkdev *c, const struct tern_experts *e, const struct both *y, const struct both *x,
                       const struct both *ids, const struct both *weights, int n_rows, const char *about)
{
    static const struct tern_dev_step one = {.n_rows = 1};
    const size_t bytes = (size_t)n_rows * EMBD * sizeof(float);
    float *batch = checkdev_get(bytes, 1), *alone = checkdev_get(bytes, 1);
    struct tern_dev *d = c->d[OTHER];
    checkdev_out(c, y, OTHER, batch, bytes);
    for (int r = 0; r < n_rows; r++) {
        const size_t pair = (size_t)r * (size_t)e->n_active;
        d->ops->begin(d, &one);
        d->ops->experts(d, e, row_of(y, r), row_of(x, r), part_of(ids, pair), part_of(weights, pair), 1, 0);
        d->ops->end(d);
    }
    checkdev_out(c, y, OTHER, alone, bytes);
    checkdev_line(c, "alone", about, memcmp(batch, alone, bytes) ? 1 : 0, 0);
    tern_free(batch);
    tern_free(alone);
}

static void one_experts(struct checkdev *c, const struct tern_weight_source *form, int n_experts, int n_active,
                        int n_rows, int n_wide, bool weigh_input, bool exact)
{
    struct tern_dev_weight gate[DEVICES], up[DEVICES], down[DEVICES];
    struct tern_dev_mem *mem[3][DEVICES];
    const int type = form->type, ff = type == TERN_Q4_K ? 512 : FF;
    const struct tern_dev_limits l = {.max_rows = ROWS,
                                      .max_narrow = ROWS,
                                      .max_k = EMBD,
                                      .exact = exact,
                                      .max_experts = n_experts,
                                      .max_active = n_active,
                                      .max_expert_embd = EMBD,
                                      .max_expert_ff = ff};
    checkdev_prepare(c, &l);
    make_stack(c, gate, mem[0], form, ff, EMBD, n_experts);
    make_stack(c, up, mem[1], form, ff, EMBD, n_experts);
    make_stack(c, down, mem[2], form, EMBD, ff, n_experts);
    const size_t pairs = (size_t)n_rows * (size_t)n_active;
    struct tern_experts of_other = {0};
    struct both x = checkdev_random(c, EMBD * ROWS), y = checkdev_random(c, EMBD * ROWS),
                logits = checkdev_random(c, stride_of(n_experts) * ROWS), bias = checkdev_random(c, (size_t)n_experts),
                ids = checkdev_bytes(c, NULL, pairs * 4), weights = checkdev_bytes(c, NULL, pairs * 4);
    for (int i = 0; i < DEVICES; i++) {
        struct tern_dev *d = c->d[i];
        const struct tern_dev_step s = {.n_rows = n_rows};
        const struct tern_experts e = {.n_active = n_active,
                                       .gate = &gate[i],
                                       .up = &up[i],
                                       .down = &down[i],
                                       .gelu = type == TERN_F16,
                                       .weigh_input = weigh_input,
                                       .clamp = n_active > 1 ? 0.3f : 0};
        const struct tern_route r = {.n_experts = n_experts,
                                     .n_active = n_active,
                                     .sigmoid = n_active % 2,
                                     .bias = n_active % 2 ? vec_of(&bias, i) : (struct tern_dev_vec){0},
                                     .n_groups = n_experts % 8 ? 1 : 4,
                                     .n_groups_used = n_experts % 8 ? 1 : 2,
                                     .group_best = n_experts % 8 ? 1 : 2,
                                     .normalise = n_active > 2,
                                     .scale = 1.25f};
        d->ops->begin(d, &s);
        d->ops->route(d, &r, rows_of(&logits, i, stride_of(n_experts), n_experts), vec_of(&ids, i), vec_of(&weights, i),
                      n_rows);
        d->ops->experts(d, &e, rows_of(&y, i, EMBD, EMBD), rows_of(&x, i, EMBD, EMBD), vec_of(&ids, i),
                        vec_of(&weights, i), n_rows, n_wide);
        d->ops->end(d);
        if (i == OTHER)
            of_other = e;
    }
    char about[200];
    int32_t *a = checkdev_get(pairs, 4), *b = checkdev_get(pairs, 4);
    checkdev_out(c, &ids, OTHER, a, pairs * 4);
    checkdev_out(c, &ids, CPU, b, pairs * 4);
    (void)snprintf(about, sizeof about, "%d of %d, %d rows, %d of prompts, type %d of form %d%s%s", n_active, n_experts,
                   n_rows, n_wide, type, form->form, weigh_input ? ", weighed before" : "", exact ? ", f32" : "");
    checkdev_line(c, "route", about, memcmp(a, b, pairs * 4) ? 1 : 0, 0);
    checkdev_compare(c, "route", "weights", &weights, (size_t)n_active, n_active, n_rows, 1e-6);
    checkdev_compare(c, "experts", about, &y, EMBD, EMBD, n_rows, exact ? 1e-5 : 3e-3);
    if (!n_wide && n_rows > 1)
        rows_alone(c, &of_other, &y, &x, &ids, &weights, n_rows, about);
    tern_free(a);
    tern_free(b);
    struct both *all[] = {&x, &y, &logits, &bias, &ids, &weights};
    for (int i = 0; i < 6; i++)
        checkdev_free(c, all[i]);
    for (int i = 0; i < DEVICES; i++) {
        struct tern_dev_weight *w[] = {&gate[i], &up[i], &down[i]};
        for (int j = 0; j < 3; j++) {
            c->d[i]->ops->weight_drop(c->d[i], w[j]);
            c->d[i]->ops->release(c->d[i], mem[j][i]);
        }
    }
}

void check_experts(struct checkdev *c)
{
    static const int types[] = {TERN_Q4_K, TERN_Q8_0, TERN_F16, TERN_F32, TERN_Q6_K};
    if (!checkdev_wants(c, "experts"))
        return;
    for (int i = 0; i < 14; i++) {
        struct tern_weight_source s = {.type = types[i % 5] == TERN_Q6_K ? TERN_Q4_0 : types[i % 5], .name = "w"};
        if (i >= 10)
            s = (struct tern_weight_source){.form = i % 2 ? TERN_FORM_MXFP8 : TERN_FORM_MXFP4, .name = "w"};
        one_experts(c, &s, i % 2 ? 16 : 11, 1 + i % 4, 1, 0, i % 3 == 2, false);
        one_experts(c, &s, i % 2 ? 64 : 5, 1 + i % 4, 190, 170, i % 3 == 1, false);
        one_experts(c, &s, i % 2 ? 16 : 5, 1 + i % 4, 2 + 3 * i, 0, i % 3 == 0,
                    false); /* few, then many to an expert */
        one_experts(c, &s, i % 2 ? 16 : 5, 1 + i % 4, 100, 100, i % 3 == 0, true);
    }
}

/* ---- recurrent layers -------------------------------------------------------------------------------------------- */

struct delta_case {
    struct tern_delta l;
    int lens[3]; /* rows of each job */
};

static void one_delta(struct checkdev *c, const struct delta_case *k)
{
    const struct tern_delta *l0 = &k->l;
    const int channels = 2 * l0->n_k * l0->dk + l0->n_v * l0->dv, wide = l0->n_v * l0->dv,
              n = k->lens[0] + k->lens[1] + k->lens[2];
    const size_t floats = tern_delta_state_floats(l0), block = tern_round_up(64 + floats * 4, 64),
                 xs = stride_of(channels), gs = stride_of(l0->n_v), os = stride_of(wide);
    const struct tern_kv_layer no_layer = {0};
    const int group_of = -1;
    const size_t state_off = 64;
    struct tern_dev_cache cache = {.n_layers = 1, .layers = &no_layer, .group_of = &group_of, .state_off = &state_off};
    const struct tern_attn_shape shape = {0};
    const struct tern_dev_limits l = {.max_rows = n,
                                      .max_narrow = n,
                                      .max_k = 64,
                                      .caches = &cache,
                                      .n_caches = 1,
                                      .shapes = &shape,
                                      .max_jobs = 3,
                                      .max_pages = 4};
    checkdev_prepare(c, &l);
    struct both states = checkdev_random(c, block / 4 * 6), x = checkdev_random(c, xs * (size_t)n),
                decay = checkdev_random(c, gs * (size_t)n), beta = checkdev_random(c, gs * (size_t)n),
                out = checkdev_random(c, os * (size_t)n),
                conv = checkdev_random(c, (size_t)channels * (size_t)l0->width),
                dt = checkdev_random(c, (size_t)l0->n_v);
    float *a = checkdev_get((size_t)l0->n_v, sizeof *a);
    for (int h = 0; h < l0->n_v; h++)
        a[h] = -0.1f - fabsf(checkdev_noise(c));
    struct both as = checkdev_bytes(c, a, (size_t)l0->n_v * sizeof *a);
    const struct tern_dev_table no_table = {0};
    for (int i = 0; i < DEVICES; i++) {
        struct tern_dev *d = c->d[i];
        struct tern_delta layer = *l0;
        struct tern_dev_job jobs[3];
        const struct tern_dev_mark marks[2] = {{4, k->lens[2] / 2 + 1}, {5, k->lens[2]}};
        int n_jobs = 0, row = 0;
        for (int j = 0; j < 3; j++)
            if (k->lens[j]) {
                jobs[n_jobs++] = (struct tern_dev_job){.row0 = row,
                                                       .n_rows = k->lens[j],
                                                       .pos0 = 7,
                                                       .wide = j == 2,
                                                       .tables = &no_table,
                                                       .tile = TERN_NO_BLOCK,
                                                       .sink = TERN_NO_BLOCK,
                                                       .state = (uint32_t)(j + 1),
                                                       .marks = j == 2 ? marks : NULL,
                                                       .n_marks = j == 2 ? 2 : 0};
                row += k->lens[j];
            }
        cache.states = (struct tern_dev_blocks){states.m[i], block};
        layer.conv = vec_of(&conv, i);
        layer.a = vec_of(&as, i);
        layer.dt = vec_of(&dt, i);
        const struct tern_dev_step s = {.n_rows = n, .caches = &cache, .n_caches = 1, .jobs = jobs, .n_jobs = n_jobs};
        const struct tern_delta_io io = {rows_of(&x, i, xs, channels), rows_of(&decay, i, gs, l0->n_v),
                                         rows_of(&beta, i, gs, l0->n_v), rows_of(&out, i, os, wide)};
        d->ops->begin(d, &s);
        d->ops->delta(d, 0, &layer, &io, n);
        d->ops->end(d);
        d->ops->sync(d); /* jobs are lent */
    }
    char about[200];
    (void)snprintf(about, sizeof about, "%d/%d heads of %d/%d, width %d, rows %d %d %d", l0->n_k, l0->n_v, l0->dk,
                   l0->dv, l0->width, k->lens[0], k->lens[1], k->lens[2]);
    checkdev_compare(c, "delta", about, &out, os, wide, n, 1e-5);
    checkdev_compare(c, "delta", "states", &states, block / 4, (int)(block / 4), 6, 1e-5);
    struct both *all[] = {&states, &x, &decay, &beta, &out, &conv, &dt, &as};
    for (int i = 0; i < 8; i++)
        checkdev_free(c, all[i]);
    tern_free(a);
}

void check_delta(struct checkdev *c)
{
    static const struct delta_case cases[] = {
        {{.n_k = 2, .n_v = 4, .dk = 128, .dv = 128, .width = 4, .grouped = true}, {1, 1, 200}},
        {{.n_k = 2, .n_v = 2, .dk = 16, .dv = 32, .width = 2}, {1, 3, 1}},
        {{.n_k = 3, .n_v = 6, .dk = 48, .dv = 16, .width = 8}, {0, 2, 65}},
        {{.n_k = 1, .n_v = 2, .dk = 256, .dv = 64, .width = 3}, {5, 0, 3}},
        {{.n_k = 1, .n_v = 1, .dk = 512, .dv = 16, .width = 4}, {2, 0, 30}},
    };
    if (checkdev_wants(c, "delta"))
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            one_delta(c, &cases[i]);
}
