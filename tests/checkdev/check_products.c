/* Products, embeddings and weights as they are multiplied by, for every form that the CPU packs; and the promises: a
 * row has the same bits in every batch, and a prompt in every cut. */
#include "checkdev.h"
#include "file/file.h"

static const int type_ids[] = {
#define TYPE_ID(name, id, text, elems, bytes) id,
    TERN_TYPE_LIST(TYPE_ID)
#undef TYPE_ID
};
static const char *const type_names[] = {
#define TYPE_NAME(name, id, text, elems, bytes) text,
    TERN_TYPE_LIST(TYPE_NAME)
#undef TYPE_NAME
};

/* A weight of random bytes in which every float is finite and normal, whatever its width: upper exponent bits 01. */
struct weight {
    struct tern_weight_source s;
    char name[64];
    uint8_t *bytes[3];
    struct tern_dev_weight w[DEVICES];
    struct tern_dev_mem *m[DEVICES];
    size_t row_bytes, matrix_bytes[3];
    int n, k, stack;
};

static int source_of(const void *user, int i, struct tern_weight_source *out, char name[TERN_DEV_NAME], tern_error *err)
{
    const struct weight *w = user;
    (void)err;
    *out = w->s;
    out->data = w->bytes[0] + (size_t)i * w->matrix_bytes[0];
    if (w->bytes[1])
        out->scales = w->bytes[1] + (size_t)i * w->matrix_bytes[1];
    if (w->bytes[2])
        out->zeros = w->bytes[2] + (size_t)i * w->matrix_bytes[2];
    (void)snprintf(name, TERN_DEV_NAME, "%s", w->name);
    out->name = w->name;
    return 0;
}

static uint8_t *random_bytes(struct checkdev *c, size_t n, int set, int mask)
{
    uint8_t *p = checkdev_get(n + 64, 1);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)((tern_rng_u64(&c->rng) >> 56 & (uint64_t)mask) | (uint64_t)set);
    return p;
}

enum { OTHER_FORMS = 7 };

/* False where there is no such form of this shape. */
static bool describe(struct checkdev *c, struct weight *w, int form)
{
    const int n_types = (int)(sizeof type_ids / sizeof *type_ids);
    const size_t n = (size_t)w->n, k = (size_t)w->k, all = (size_t)w->stack;
    w->s = (struct tern_weight_source){.form = TERN_FORM_PLAIN};
    if (form < n_types) {
        w->s.type = type_ids[form];
        (void)snprintf(w->name, sizeof w->name, "%s", type_names[form]);
        if (w->k % tern_type_elems(w->s.type))
            return false;
        w->matrix_bytes[0] = n * (k / (size_t)tern_type_elems(w->s.type)) * (size_t)tern_type_bytes(w->s.type);
        /* a scale of eight exponent bits: around 1, for 16-bit floats end at 65504 */
        const bool exponents = strcmp(w->name, "MXFP4") == 0;
        w->bytes[0] = random_bytes(c, w->matrix_bytes[0] * all, exponents ? 0x70 : 0x20, exponents ? 0x0F : 0x9F);
        return true;
    }
    static const enum tern_weight_form forms[OTHER_FORMS] = {TERN_FORM_AFFINE, TERN_FORM_AFFINE, TERN_FORM_AFFINE,
                                                             TERN_FORM_MXFP4,  TERN_FORM_NVFP4,  TERN_FORM_MXFP8,
                                                             TERN_FORM_FP8};
    static const int bits[OTHER_FORMS] = {4, 8, 3, 4, 4, 8, 8}, groups[OTHER_FORMS] = {64, 32, 128, 32, 16, 32, 128};
    static const char *const names[OTHER_FORMS] = {"affine 4 of 64", "affine 8 of 32", "affine 3 of 128", "MXFP4",
                                                   "NVFP4",          "MXFP8",          "FP8 of 128"};
    const int f = form - n_types;
    w->s.form = forms[f];
    w->s.bits = bits[f];
    w->s.group = groups[f];
    (void)snprintf(w->name, sizeof w->name, "%s", names[f]);
    if (w->k % groups[f] || all > 1)
        return false;
    w->matrix_bytes[0] = n * k * (size_t)bits[f] / 8;
    /* of eight-bit floats no NaN */
    w->bytes[0] = random_bytes(c, w->matrix_bytes[0], 0, bits[f] == 8 && f > 2 ? 0xBF : 0xFF);
    const bool wide_scales = f < 3 || f == 6;
    w->s.scale_type = f == 1 ? TERN_BF16 : f == 6 ? TERN_F32 : TERN_F16;
    w->s.group_rows = f == 6 ? 128 : 0;
    w->matrix_bytes[1] = (f == 6 ? (n + 127) / 128 : n) * (k / (size_t)groups[f]) * (wide_scales ? f == 6 ? 4 : 2 : 1);
    w->bytes[1] = f == 4        ? random_bytes(c, w->matrix_bytes[1], 0x20, 0x1F) /* E4M3, positive */
                  : f == 6      ? random_bytes(c, w->matrix_bytes[1], 0x3C, 0x03) /* from 2^-7 on: weights in 16 bits */
                  : wide_scales ? random_bytes(c, w->matrix_bytes[1], 0x20, 0x1F)
                                : random_bytes(c, w->matrix_bytes[1], 0x78, 0x07); /* E8M0 around 1 */
    w->matrix_bytes[2] = w->matrix_bytes[1];
    if (f < 3)
        w->bytes[2] = random_bytes(c, w->matrix_bytes[2], 0x20, 0x9F);
    return true;
}

static void free_weight(struct checkdev *c, struct weight *w)
{
    for (int i = 0; i < DEVICES; i++) {
        c->d[i]->ops->weight_drop(c->d[i], &w->w[i]);
        c->d[i]->ops->release(c->d[i], w->m[i]);
    }
    for (int i = 0; i < 3; i++)
        tern_free(w->bytes[i]);
    memset(w, 0, sizeof *w);
}

static bool make_weight(struct checkdev *c, struct weight *w, int form, int n, int k, int stack)
{
    tern_error err = {0};
    *w = (struct weight){.n = n, .k = k, .stack = stack};
    if (!describe(c, w, form))
        return false;
    for (int i = 0; i < DEVICES; i++) {
        const struct tern_dev_ops *ops = c->d[i]->ops;
        const struct tern_dev_source from = {source_of, w};
        int rc = ops->weight_plan(c->d[i], &w->w[i], &w->s, n, k, stack, &err);
        if (rc == TERN_EUNSUPPORTED)
            return free_weight(c, w), false;
        if (rc == 0)
            rc = ops->reserve(c->d[i], &w->m[i], ops->weight_bytes(&w->w[i]) + 256, true, &err);
        if (rc == 0) {
            ops->weight_place(c->d[i], &w->w[i], w->m[i], 256);
            rc = ops->weight_load(c->d[i], &w->w[i], &from, &err);
        }
        if (rc < 0) {
            printf("FAIL %s [%d, %d]: %s\n", w->name, n, k, err.msg);
            c->failures++;
            return free_weight(c, w), false;
        }
    }
    return true;
}

/* ---- weights themselves ------------------------------------------------------------------------------------------ */

static void weight_out(struct checkdev *c, const struct weight *w)
{
    const int row = w->n / 3, n = w->n - row;
    float *x[DEVICES];
    char about[200];
    for (int i = 0; i < DEVICES; i++) {
        x[i] = checkdev_get((size_t)n * (size_t)w->k, sizeof **x);
        c->d[i]->ops->weight_out(c->d[i], x[i], &w->w[i], w->stack - 1, row, n);
        c->d[i]->ops->sync(c->d[i]);
    }
    (void)snprintf(about, sizeof about, "%s [%d, %d]", w->name, w->n, w->k);
    checkdev_line(c, "weight_out", about, memcmp(x[0], x[1], (size_t)n * (size_t)w->k * 4) == 0 ? 0 : 1, 0);
    for (int i = 0; i < DEVICES; i++)
        tern_free(x[i]);
}

static void embed(struct checkdev *c, const struct weight *w)
{
    enum { ROWS = 9 };
    const size_t stride = stride_of(w->k);
    struct both x = checkdev_random(c, stride * ROWS);
    struct tern_row rows[ROWS];
    for (int r = 0; r < ROWS; r++)
        rows[r] = (struct tern_row){(int32_t)(tern_rng_u64(&c->rng) % (uint64_t)w->n), r};
    for (int i = 0; i < DEVICES; i++) {
        const struct tern_dev_step s = {.rows = rows, .n_rows = ROWS};
        c->d[i]->ops->begin(c->d[i], &s);
        c->d[i]->ops->embed(c->d[i], rows_of(&x, i, stride, w->k), &w->w[i], ROWS, 1.5f);
        c->d[i]->ops->end(c->d[i]);
    }
    checkdev_compare(c, "embed", w->name, &x, stride, w->k, ROWS, 0);
    checkdev_free(c, &x);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static void run(struct checkdev *c, int i, const struct weight *w, int n_m, const struct both *x, size_t x_at,
                const struct both *y, size_t y_at, const struct both *bias, int n_rows, int n_wide, bool f32)
{
    struct tern_dev *d = c->d[i];
    const size_t xs = stride_of(w->k), ys = stride_of(w->n);
    const struct tern_dev_step s = {.n_rows = n_rows};
    struct tern_matmul m[2];
    struct tern_dev_rows in = rows_of(x, i, xs, w->k);
    in.at = x_at * xs;
    for (int j = 0; j < n_m; j++) {
        m[j] = (struct tern_matmul){.w = &w->w[i], .y = rows_of(&y[j], i, ys, w->n), .f32 = f32};
        m[j].y.at = y_at * ys;
        if (j)
            m[j].bias = vec_of(bias, i);
    }
    d->ops->begin(d, &s);
    d->ops->matmul(d, m, n_m, in, n_rows, n_wide);
    d->ops->end(d);
}

static void product(struct checkdev *c, const struct weight *w, int n_rows, int n_wide, bool f32, double most)
{
    const size_t xs = stride_of(w->k), ys = stride_of(w->n);
    struct both x = checkdev_random(c, xs * (size_t)n_rows), bias = checkdev_random(c, ys),
                y[2] = {checkdev_random(c, ys * (size_t)n_rows), checkdev_random(c, ys * (size_t)n_rows)},
                apart = checkdev_random(c, ys * (size_t)n_rows);
    char about[200];
    const size_t bytes = ys * (size_t)n_rows * sizeof(float);
    float *one = checkdev_get(bytes, 1), *other = checkdev_get(bytes, 1);
    for (int i = 0; i < DEVICES; i++)
        run(c, i, w, 2, &x, 0, y, 0, &bias, n_rows, n_wide, f32);
    (void)snprintf(about, sizeof about, "%s [%d, %d], %d rows, %d of prompts%s", w->name, w->n, w->k, n_rows, n_wide,
                   f32 ? ", f32" : "");
    checkdev_compare(c, "matmul", about, &y[0], ys, w->n, n_rows, most);
    checkdev_compare(c, "matmul", "with a bias", &y[1], ys, w->n, n_rows, most);
    /* the same rows one by one, or a prompt in parts */
    for (int r = 0, n; r < n_rows; r += n) {
        n = r < n_wide ? n_wide / 3 + 1 : 1;
        n = r < n_wide && r + n > n_wide ? n_wide - r : n;
        run(c, OTHER, w, 1, &x, (size_t)r, &apart, (size_t)r, &bias, n, r < n_wide ? n : 0, f32);
    }
    checkdev_out(c, &y[0], OTHER, one, bytes);
    checkdev_out(c, &apart, OTHER, other, bytes);
    int differ = 0;
    for (int r = 0; r < n_rows; r++)
        differ += memcmp(one + (size_t)r * ys, other + (size_t)r * ys, (size_t)w->n * sizeof *one) != 0;
    checkdev_line(c, "matmul", "rows that differ when they are computed apart", differ, 0);
    tern_free(one);
    tern_free(other);
    struct both *all[] = {&x, &bias, &y[0], &y[1], &apart};
    for (int i = 0; i < 5; i++)
        checkdev_free(c, all[i]);
}

/* Rows that come as int8 or in 16 bits from the operation before: of a gate in place, or of a norm. */
struct before {
    const struct weight *w;
    struct both x, from, factors, y;
    int n_rows, n_wide;
    bool norm;
};

/* apart: in a step of its own, so that nothing can be handed over. */
static void run_before(struct checkdev *c, int i, const struct before *b, bool apart)
{
    const struct weight *w = b->w;
    struct tern_dev *d = c->d[i];
    const struct tern_dev_step s = {.n_rows = b->n_rows};
    const struct tern_matmul m = {.w = &w->w[i], .y = rows_of(&b->y, i, stride_of(w->n), w->n)};
    const struct tern_dev_rows in = rows_of(&b->x, i, stride_of(w->k), w->k),
                               from = rows_of(&b->from, i, stride_of(w->k), w->k);
    d->ops->begin(d, &s);
    if (b->norm)
        d->ops->norm(d, in, from, vec_of(&b->factors, i), 1e-6f, b->n_rows);
    else
        d->ops->glu(d, in, from, b->n_rows, TERN_GATE_SILU);
    if (apart) {
        d->ops->end(d);
        d->ops->begin(d, &s);
    }
    d->ops->matmul(d, &m, 1, in, b->n_rows, b->n_wide);
    d->ops->end(d);
}

static void after_rows(struct checkdev *c, const struct weight *w, int n_rows, int n_wide, double most)
{
    const size_t xs = stride_of(w->k), ys = stride_of(w->n), n = (size_t)n_rows, bytes = ys * n * sizeof(float);
    float *together = checkdev_get(bytes, 1), *apart = checkdev_get(bytes, 1);
    for (int norm = 0; norm < 2; norm++) {
        struct before b = {w,
                           checkdev_random(c, xs * n),
                           checkdev_random(c, xs * n),
                           checkdev_random(c, xs),
                           checkdev_random(c, ys * n),
                           n_rows,
                           n_wide,
                           norm};
        char about[200];
        int differ = 0;
        for (int i = 0; i < DEVICES; i++)
            run_before(c, i, &b, false);
        (void)snprintf(about, sizeof about, "%s [%d, %d], %d of %d rows of prompts, after %s", w->name, w->n, w->k,
                       n_wide, n_rows, norm ? "norm" : "glu");
        checkdev_compare(c, "matmul", about, &b.y, ys, w->n, n_rows, most);
        checkdev_out(c, &b.y, OTHER, together, bytes);
        if (n_wide == n_rows) { /* then a device may leave the gate as it was */
            run_before(c, OTHER, &b, true);
            checkdev_out(c, &b.y, OTHER, apart, bytes);
            for (size_t r = 0; r < n; r++)
                differ += memcmp(together + r * ys, apart + r * ys, (size_t)w->n * sizeof *apart) != 0;
            checkdev_line(c, "matmul", "rows that differ when the two are apart", differ, 0);
        }
        struct both *all[] = {&b.x, &b.from, &b.factors, &b.y};
        for (int i = 0; i < 4; i++)
            checkdev_free(c, all[i]);
    }
    tern_free(together);
    tern_free(apart);
}

/* Every head by a matrix of its own. */
static void stack(struct checkdev *c, const struct weight *w, int n_rows)
{
    enum { WIDE = 3 };
    const size_t x_head = stride_of(w->k) + 16, y_head = stride_of(w->n), heads = (size_t)w->stack;
    struct both x = checkdev_random(c, x_head * heads * (size_t)n_rows),
                y = checkdev_random(c, y_head * heads * (size_t)n_rows);
    char about[200];
    for (int i = 0; i < DEVICES; i++) {
        const struct tern_dev_step s = {.n_rows = n_rows};
        const struct tern_stack st = {.w = &w->w[i],
                                      .y = rows_of(&y, i, y_head * heads, (int)(y_head * heads)),
                                      .x = rows_of(&x, i, x_head * heads, (int)(x_head * heads)),
                                      .y_head = y_head,
                                      .x_head = x_head};
        c->d[i]->ops->begin(c->d[i], &s);
        c->d[i]->ops->stack(c->d[i], &st, n_rows, WIDE);
        c->d[i]->ops->end(c->d[i]);
    }
    (void)snprintf(about, sizeof about, "%s [%d, %d] x %d, %d rows", w->name, w->n, w->k, w->stack, n_rows);
    checkdev_compare(c, "stack", about, &y, y_head * heads, (int)(y_head * heads), n_rows, 1e-5); /* padding is kept */
    checkdev_free(c, &x);
    checkdev_free(c, &y);
}

/* 9 to 16 rows of the kinds that a card may multiply two panels at a time, where each processor has much to do: parts
 * of unequal length, and rows too long to lie in shared memory.  Small ones are for one processor, large ones for a
 * card. */
static void sixteens(struct checkdev *c, bool quick)
{
    static const int types[] = {TERN_Q4_0, TERN_Q4_1, TERN_Q4_K, TERN_Q5_K, TERN_Q6_K};
    static const int shapes[][2] = {{300, 2304}, {107, 6144}, {20500, 4096}, {4096, 14336}};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int s = 0; s < (quick ? 2 : 4); s++) {
            struct weight w;
            int form = 0;
            while (type_ids[form] != types[t])
                form++;
            if (!make_weight(c, &w, form, shapes[s][0], shapes[s][1], 1))
                continue;
            product(c, &w, 9 + (int)t, 0, false, 1e-5);
            product(c, &w, 16 - (int)t % 3, 0, false, 1e-5);
            free_weight(c, &w);
        }
}

void check_products(struct checkdev *c)
{
    enum { FORMS = (int)(sizeof type_ids / sizeof *type_ids) + OTHER_FORMS, LONG = 17152 };
    static const int shapes[][2] = {{48, 256}, {37, 1536}, {130, 1280}, {16, 32}, {17, 96}, {1000, 2048}, {300, 4352}};
    struct tern_dev_limits l = {.max_rows = 320, .max_narrow = 320, .max_k = LONG, .max_stack = 5, .max_stack_k = 512};
    const bool races = getenv("CHECKDEV_RACES") != NULL;          /* one shape of each form */
    const bool quick = races || getenv("CHECKDEV_QUICK") != NULL; /* decode rows, and few others, of small matrices */
    if (!checkdev_wants(c, "products"))
        return;
    for (int exact = 0; exact < 2 - quick; exact++) {
        l.exact = exact;
        checkdev_prepare(c, &l);
        for (int form = 0; form < FORMS; form++)
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
                struct weight w;
                if ((exact && s % 3) || (quick && s > 4) || (races && (int)s != form % 5 && s != 1) ||
                    !make_weight(c, &w, form, shapes[s][0], shapes[s][1], 1))
                    continue;
                const double most = exact ? 1e-5 : 2e-3;
                if (!exact) {
                    weight_out(c, &w);
                    embed(c, &w);
                    after_rows(c, &w, 6, 2, most);
                    after_rows(c, &w, 5, 5, most);
                    product(c, &w, 1, 0, false, 1e-5);
                    product(c, &w, 4 + (int)s, 0, false, 1e-5);
                    if (s % 2 == 0 || races) /* more than two groups of rows */
                        product(c, &w, 137 + (int)s, 0, false, 1e-5);
                    product(c, &w, quick ? 20 : 150, quick ? 13 : 143, true, 1e-5);
                }
                product(c, &w, (quick ? 20 : 170) + 7 * (int)s, (quick ? 10 : 160) + 5 * (int)s, false, most);
                free_weight(c, &w);
            }
        struct weight w;
        if (!exact && make_weight(c, &w, 0, 21, LONG, 1)) { /* more inputs than a thread keeps of a row */
            after_rows(c, &w, 3, 3, 2e-3);
            free_weight(c, &w);
        }
    }
    sixteens(c, quick);
    for (int form = 0; form < FORMS; form++) {
        struct weight w;
        if (!make_weight(c, &w, form, 80, 256, 5))
            continue;
        weight_out(c, &w);
        stack(c, &w, 7);
        stack(c, &w, 43);
        free_weight(c, &w);
    }
}
