/* Where the time of steps goes: every operation of a device, timed one by one.
 *
 * An open device is a table of functions, so timing puts another table in front of it: each entry calls the one behind
 * it between two looks at the clock, and counts what the operation had to read and to multiply.  Nothing else in the
 * engine knows of it, and results stay what they are. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "eval/speed.h"
#include "run/run.h"
#include "tern/profile.h"

#define MAX_LINES 256
#define WHAT      96

/* One operation on one kind of operand. */
struct line {
    const char *operation;
    char what[WHAT];
    int64_t calls;
    double seconds, bytes;
    double products[2]; /* multiply-adds of decode rows, of prompt rows */
};

struct tern_profile {
    struct tern_dev_ops ops; /* first: what the engine calls while it is timed */
    const struct tern_dev_ops *behind;
    tern_engine *engine;
    struct tern_dev_step step; /* n_jobs 0 between steps */
    double begun, in_step;     /* of the step that runs; of all */
    int64_t n_steps;
    struct line lines[MAX_LINES];
    int n_lines;
};

static struct tern_profile *profile_of(struct tern_dev *d)
{
    return (struct tern_profile *)(uintptr_t)d->ops;
}

/* ---- counting ---------------------------------------------------------------------------------------------------- */

/* What does not find a line any more is counted with the last one's operation, as "others". */
static struct line *line_of(struct tern_profile *p, const char *operation, const char *what)
{
    for (int i = 0; i < p->n_lines; i++)
        if (p->lines[i].operation == operation && strcmp(p->lines[i].what, what) == 0)
            return &p->lines[i];
    struct line *l = &p->lines[p->n_lines < MAX_LINES ? p->n_lines++ : MAX_LINES - 1];
    if (!l->operation)
        l->operation = operation;
    (void)snprintf(l->what, sizeof l->what, "%s", p->n_lines < MAX_LINES ? what : "others");
    return l;
}

static void count(struct line *l, double start)
{
    l->seconds += tern_now() - start;
    l->calls++;
}

static void put(char what[WHAT], size_t *n, const char *format, ...) TERN_PRINTF(3, 4);
static void put(char what[WHAT], size_t *n, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    int more = vsnprintf(what + *n, WHAT - *n, format, ap);
    va_end(ap);
    *n = *n + (size_t)more < WHAT ? *n + (size_t)more : WHAT - 1;
}

static double bits(const struct tern_profile *p, const struct tern_dev_weight *w)
{
    return 8.0 * (double)p->behind->weight_bytes(w) / ((double)w->n * w->k * w->stack);
}

/* Products of so many rows with `share` of a weight's matrices. */
static void count_weight(const struct tern_profile *p, struct line *l, const struct tern_dev_weight *w, double share,
                         int n_rows, int n_wide)
{
    l->bytes += share * (double)p->behind->weight_bytes(w);
    l->products[0] += (double)(n_rows - n_wide) * w->n * w->k;
    l->products[1] += (double)n_wide * w->n * w->k;
}

static const struct tern_kv_layer *layer_of(const struct tern_profile *p, const struct tern_dev_job *j, int layer)
{
    return &p->step.caches[j->cache].layers[layer];
}

/* What a layer keeps, as `heads x dim, scheme` and how far it sees. */
static void describe_layer(char what[WHAT], const struct tern_profile *p, int layer)
{
    size_t n = 0;
    what[0] = 0;
    if (p->step.n_jobs < 1)
        return;
    const struct tern_kv_layer *l = layer_of(p, &p->step.jobs[0], layer);
    put(what, &n, "%s%d of %d, %s", l->latent ? "latent, " : "", l->n_heads, l->v.dim, l->k.codec->name);
    if (strcmp(l->k.codec->name, l->v.codec->name) != 0)
        put(what, &n, " and %s", l->v.codec->name);
    if (l->reach.window)
        put(what, &n, ", window of %d", l->reach.window);
}

/* Rows of prompts read their job's cache once at least; decode rows each their own. */
static void count_attention(const struct tern_profile *p, struct line *l, const struct tern_attn_shape *shape)
{
    for (int i = 0; i < p->step.n_jobs; i++) {
        const struct tern_dev_job *j = &p->step.jobs[i];
        const struct tern_kv_layer *layer = layer_of(p, j, shape->layer);
        const double per_token = (double)shape->n_heads * (layer->k.dim + (layer->latent ? 2 : 1) * layer->v.dim);
        l->bytes += tern_speed_layer_bytes(layer, j->pos0 + j->n_rows) * (j->wide ? 1 : j->n_rows);
        for (int r = 0; r < j->n_rows; r++) {
            const int pos = j->pos0 + r;
            l->products[j->wide] += per_token * (pos + 1 - tern_kv_oldest(layer->reach, pos));
        }
    }
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

/* An operation on rows that is neither reading nor products for the most part: its time alone. */
#define TIMED(name, parameters, arguments)      \
    static void name##_op parameters            \
    {                                           \
        struct tern_profile *p = profile_of(d); \
        struct line *l = line_of(p, #name, ""); \
        double start = tern_now();              \
        p->behind->name arguments;              \
        count(l, start);                        \
    }

TIMED(embed,
      (struct tern_dev * d, struct tern_dev_rows x, const struct tern_dev_weight *table, int n_rows, float scale),
      (d, x, table, n_rows, scale))
TIMED(norm,
      (struct tern_dev * d, struct tern_dev_rows y, struct tern_dev_rows x, struct tern_dev_vec w, float eps,
       int n_rows),
      (d, y, x, w, eps, n_rows))
TIMED(add, (struct tern_dev * d, struct tern_dev_rows y, struct tern_dev_rows a, struct tern_dev_rows b, int n_rows),
      (d, y, a, b, n_rows))
TIMED(scale, (struct tern_dev * d, struct tern_dev_rows x, int n_rows, float factor), (d, x, n_rows, factor))
TIMED(rope_table,
      (struct tern_dev * d, struct tern_dev_vec cos, struct tern_dev_vec sin, struct tern_dev_vec freq, int n_rot,
       float magnitude, int n_rows),
      (d, cos, sin, freq, n_rot, magnitude, n_rows))
TIMED(heads, (struct tern_dev * d, const struct tern_heads *h, int n_rows), (d, h, n_rows))
TIMED(copy_heads,
      (struct tern_dev * d, struct tern_dev_rows to, size_t to_head, struct tern_dev_rows from, size_t from_head,
       int n_heads, int n, int n_rows),
      (d, to, to_head, from, from_head, n_heads, n, n_rows))
TIMED(glu, (struct tern_dev * d, struct tern_dev_rows gate, struct tern_dev_rows up, int n_rows, enum tern_gate act),
      (d, gate, up, n_rows, act))
TIMED(softcap, (struct tern_dev * d, struct tern_dev_rows x, int n_rows, float cap), (d, x, n_rows, cap))
TIMED(gate, (struct tern_dev * d, struct tern_dev_rows x, struct tern_dev_rows g, int n_rows), (d, x, g, n_rows))
TIMED(route,
      (struct tern_dev * d, const struct tern_route *r, struct tern_dev_rows logits, struct tern_dev_vec ids,
       struct tern_dev_vec weights, int n_rows),
      (d, r, logits, ids, weights, n_rows))
TIMED(delta, (struct tern_dev * d, int layer, const struct tern_delta *t, const struct tern_delta_io *io, int n_rows),
      (d, layer, t, io, n_rows))
TIMED(clamp, (struct tern_dev * d, struct tern_dev_rows gate, struct tern_dev_rows up, int n_rows, float limit),
      (d, gate, up, n_rows, limit))
TIMED(grid, (struct tern_dev * d, struct tern_dev_rows x, enum tern_grid grid, int n_heads, int n_rows),
      (d, x, grid, n_heads, n_rows))
TIMED(compress, (struct tern_dev * d, const struct tern_compress *c, struct tern_dev_rows x, struct tern_dev_rows gate),
      (d, c, x, gate))
TIMED(choose,
      (struct tern_dev * d, const struct tern_choose *c, struct tern_dev_rows q, struct tern_dev_rows w, int n_rows),
      (d, c, q, w, n_rows))
TIMED(sparse,
      (struct tern_dev * d, const struct tern_sparse *s, struct tern_dev_rows q, struct tern_dev_rows out, int n_rows),
      (d, s, q, out, n_rows))
TIMED(hyper_read,
      (struct tern_dev * d, const struct tern_hyper *h, struct tern_dev_rows m, struct tern_dev_rows streams,
       struct tern_dev_rows x, int n_rows),
      (d, h, m, streams, x, n_rows))
TIMED(hyper_write,
      (struct tern_dev * d, const struct tern_hyper *h, struct tern_dev_rows streams, struct tern_dev_rows m,
       struct tern_dev_rows t, int n_rows),
      (d, h, streams, m, t, n_rows))
TIMED(pick, (struct tern_dev * d, struct tern_dev_rows y, struct tern_dev_rows x, const int *rows, int n),
      (d, y, x, rows, n))
TIMED(best, (struct tern_dev * d, const struct tern_best *b, int n_rows), (d, b, n_rows))

static void begin_op(struct tern_dev *d, const struct tern_dev_step *s)
{
    struct tern_profile *p = profile_of(d);
    p->step = *s; /* what it points to is lent longer than itself */
    p->begun = tern_now();
    p->n_steps++;
    p->behind->begin(d, s);
}

static void end_op(struct tern_dev *d)
{
    struct tern_profile *p = profile_of(d);
    p->behind->end(d);
    p->in_step += tern_now() - p->begun;
    p->step = (struct tern_dev_step){0};
}

static void matmul_op(struct tern_dev *d, const struct tern_matmul *m, int n_m, struct tern_dev_rows x, int n_rows,
                      int n_wide)
{
    struct tern_profile *p = profile_of(d);
    char what[WHAT];
    size_t n = 0;
    put(what, &n, "%d to", m[0].w->k);
    for (int i = 0; i < n_m; i++)
        put(what, &n, "%s%d", i ? "+" : " ", m[i].w->n);
    put(what, &n, ", %.1f bits", bits(p, m[0].w));
    struct line *l = line_of(p, "matmul", what);
    double start = tern_now();
    p->behind->matmul(d, m, n_m, x, n_rows, n_wide);
    count(l, start);
    for (int i = 0; i < n_m; i++)
        count_weight(p, l, m[i].w, 1, n_rows, n_wide);
}

static void stack_op(struct tern_dev *d, const struct tern_stack *s, int n_rows, int n_wide)
{
    struct tern_profile *p = profile_of(d);
    char what[WHAT];
    size_t n = 0;
    put(what, &n, "%d times %d to %d, %.1f bits", s->w->stack, s->w->k, s->w->n, bits(p, s->w));
    struct line *l = line_of(p, "stack", what);
    double start = tern_now();
    p->behind->stack(d, s, n_rows, n_wide);
    count(l, start);
    count_weight(p, l, s->w, 1, n_rows * s->w->stack, n_wide * s->w->stack);
}

static void network_op(struct tern_dev *d, const struct tern_dev_network *w, struct tern_dev_rows y,
                       struct tern_dev_rows x, int n_rows, int n_wide)
{
    struct tern_profile *p = profile_of(d);
    char what[WHAT];
    size_t n = 0;
    put(what, &n, "%d to %d to %d, %.1f bits", w->up->k, w->up->n, w->down->n, bits(p, w->up));
    struct line *l = line_of(p, "network", what);
    double start = tern_now();
    p->behind->network(d, w, y, x, n_rows, n_wide);
    count(l, start);
    count_weight(p, l, w->gate, 1, n_rows, n_wide);
    count_weight(p, l, w->up, 1, n_rows, n_wide);
    count_weight(p, l, w->down, 1, n_rows, n_wide);
}

/* Of experts the most that the rows can choose. */
static void experts_op(struct tern_dev *d, const struct tern_experts *e, struct tern_dev_rows y, struct tern_dev_rows x,
                       struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows, int n_wide)
{
    struct tern_profile *p = profile_of(d);
    char what[WHAT];
    size_t n = 0;
    put(what, &n, "%d of %d, %d to %d, %.1f bits", e->n_active, e->up->stack, e->up->k, e->up->n, bits(p, e->up));
    struct line *l = line_of(p, "experts", what);
    double start = tern_now();
    p->behind->experts(d, e, y, x, ids, weights, n_rows, n_wide);
    count(l, start);
    const double chosen = (double)n_rows * e->n_active, all = e->up->stack, share = (chosen < all ? chosen : all) / all;
    const struct tern_dev_weight *w[] = {e->gate, e->up, e->down};
    for (int i = 0; i < 3; i++)
        count_weight(p, l, w[i], share, n_rows * e->n_active, n_wide * e->n_active);
}

static void append_op(struct tern_dev *d, int layer, struct tern_dev_rows k, struct tern_dev_rows v)
{
    struct tern_profile *p = profile_of(d);
    char what[WHAT];
    describe_layer(what, p, layer);
    struct line *l = line_of(p, "append", what);
    double start = tern_now();
    p->behind->append(d, layer, k, v);
    count(l, start);
}

static void attention_op(struct tern_dev *d, const struct tern_attn_shape *shape, struct tern_dev_rows q,
                         struct tern_dev_rows out)
{
    struct tern_profile *p = profile_of(d);
    char what[WHAT];
    describe_layer(what, p, shape->layer);
    struct line *l = line_of(p, "attention", what);
    double start = tern_now();
    p->behind->attention(d, shape, q, out);
    count(l, start);
    count_attention(p, l, shape);
}

/* Operations that the device lacks stay absent. */
static void take_over(struct tern_dev_ops *ops)
{
#define TAKE(name) \
    if (ops->name) \
    ops->name = name##_op
    TAKE(begin);
    TAKE(end);
    TAKE(embed);
    TAKE(norm);
    TAKE(add);
    TAKE(scale);
    TAKE(matmul);
    TAKE(rope_table);
    TAKE(heads);
    TAKE(copy_heads);
    TAKE(append);
    TAKE(attention);
    TAKE(glu);
    TAKE(network);
    TAKE(softcap);
    TAKE(gate);
    TAKE(stack);
    TAKE(route);
    TAKE(experts);
    TAKE(delta);
    TAKE(clamp);
    TAKE(grid);
    TAKE(compress);
    TAKE(choose);
    TAKE(sparse);
    TAKE(hyper_read);
    TAKE(hyper_write);
    TAKE(pick);
    TAKE(best);
#undef TAKE
}

/* ---- from outside ------------------------------------------------------------------------------------------------ */

int tern_profile_start(tern_profile **out, tern_engine *e, tern_error *err)
{
    int rc = 0;
    tern_profile *p = NULL;
    *out = NULL;
    if (e->dev->ops->fault)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "the device %s queues its operations, so they cannot be timed one by one",
                  e->dev->ops->name);
    TERN_TRY(tern_alloc(&p, 1, sizeof *p, err));
    p->engine = e;
    p->behind = e->dev->ops;
    p->ops = *p->behind;
    take_over(&p->ops);
    e->dev->ops = &p->ops;
    *out = p;
out:
    return rc;
}

static int by_time(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    return x->seconds < y->seconds ? 1 : x->seconds > y->seconds ? -1 : 0;
}

void tern_profile_stop(tern_profile *p)
{
    if (!p->engine)
        return;
    p->engine->dev->ops = p->behind;
    p->engine = NULL;
    qsort(p->lines, (size_t)p->n_lines, sizeof *p->lines, by_time);
}

void tern_profile_free(tern_profile *p)
{
    if (!p)
        return;
    tern_profile_stop(p);
    tern_free(p);
}

void tern_profile_total(const tern_profile *p, int64_t *n_steps, double *seconds)
{
    *n_steps = p->n_steps;
    *seconds = p->in_step;
}

bool tern_profile_at(const tern_profile *p, int i, const tern_profile_limits *limits, tern_profile_line *out)
{
    if (i < 0 || i >= p->n_lines)
        return false;
    const struct line *l = &p->lines[i];
    double reading = limits->bytes_per_second > 0 ? l->bytes / limits->bytes_per_second : 0;
    double products = 0;
    if (limits->decode_products > 0)
        products += l->products[0] / limits->decode_products;
    if (limits->prompt_products > 0)
        products += l->products[1] / limits->prompt_products;
    *out = (tern_profile_line){.operation = l->operation,
                               .what = l->what,
                               .calls = l->calls,
                               .seconds = l->seconds,
                               .bytes = l->bytes,
                               .products = l->products[0] + l->products[1],
                               .limit_seconds = products > reading ? products : reading,
                               .by_products = products > reading};
    return true;
}

/* One matrix alone stays in a cache, and so do its activations. */
static int product_speed(double *out, const tern_engine *e, bool prompt, tern_error *err)
{
    int rc = 0;
    tern_weight_speed speed;
    tern_read_speed read;
    const char *const types[] = {"Q4_0"};
    const int rows = prompt ? 256 : 8;
    const tern_weight_speed_params p = {.types = types,
                                        .n_types = 1,
                                        .rows = &rows,
                                        .n_rows = 1,
                                        .n_out = 2048,
                                        .n_in = 512,
                                        .bytes = 1,
                                        .prompt = prompt,
                                        .prompt8 = e->prompt8,
                                        .n_threads = tern_pool_threads(e->pool),
                                        .reps = 15,
                                        .read_bytes = (size_t)1 << 20};
    TERN_TRY(tern_eval_weight_speed(&speed, &read, &p, err));
    *out = (double)speed.n_matrices * p.n_out * p.n_in * rows / speed.seconds.min;
out:
    return rc;
}

int tern_profile_measure(tern_profile_limits *out, tern_reader *r, tern_engine *e, tern_error *err)
{
    int rc = 0;
    *out = (tern_profile_limits){0};
    for (int i = 0; i < 3; i++) {
        double speed = tern_reader_pass(r, e);
        out->bytes_per_second = speed > out->bytes_per_second ? speed : out->bytes_per_second;
    }
    TERN_TRY(product_speed(&out->decode_products, e, false, err));
    TERN_TRY(product_speed(&out->prompt_products, e, true, err));
out:
    return rc;
}
