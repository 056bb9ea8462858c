/* Layers that cache compressed rows: compress, choose and sparse of a device and of the CPU's on the same steps.
 *
 * Both begin with the same numbers, which are functions of a sequence and a position, and take the same steps: prompts
 * in chunks, then decode rows.  Pages, raw rows, states and the rows chosen are equal byte for byte.  But exp, sin and
 * cos in double are another library's on a card, and may differ in a last bit: a compressed row may then be another,
 * where it is in f32, too, and these are counted.  What sparse sums up is compared by the largest number of a row.
 *
 * On the device alone the same sequence is the same with others and without them, and however its prompt is cut.
 *
 * CHECKDEV_QUICK leaves out what takes long. */
#include "checkdev.h"
#include "spans_image.h"

enum { SEQS = 3, LAYERS = 3, PLANS = 2, DECODED = 7, DRAFTS = 3, CTX = 4608, MOST_RATE = 128 };
enum { CHUNK = 512, MOST_ROWS = CHUNK + SEQS * DRAFTS };
enum { X, GATE, INDEX_X, INDEX_GATE, V, Q, INDEX_Q, INDEX_W, INPUTS };
enum { APE, NORM, INDEX_APE, INDEX_NORM, FREQ, SINKS, CONSTANTS };

/* rate 0: a window alone.  chooses: with overlap, and an index; else without both. */
struct kind {
    int rate;
    bool chooses;
};

struct shape {
    int dim, n_rot, heads, window;
    int index_dim, index_heads, top;
    bool grid, ties; /* ties: scores are small whole numbers */
    int n_layers;
    struct kind layers[LAYERS];
};

/* Sequences of a run: tokens of their prompts, of which a step has so many in all, and decode rows at a time. */
struct script {
    int n, prompt[SEQS], chunk, at_once;
};

/* ---- a case ------------------------------------------------------------------------------------------------------ */

/* One device's side.  Sequence k lies in cache k % n_plans. */
struct side {
    struct tern_kv_cache cache[PLANS];
    struct tern_kv_seq *seq[SEQS];
    struct tern_dev_cache dev_cache[PLANS];
    struct tern_dev_blocks pages[PLANS][TERN_KV_MAX_GROUPS];
    struct tern_dev_table tables[SEQS][TERN_KV_MAX_GROUPS];
    struct tern_dev_job jobs[SEQS];
};

struct test {
    struct checkdev *c;
    const struct shape *s;
    const char *plan; /* or two, with a + between them */
    struct tern_kv_layout *l[PLANS];
    int n_plans;
    struct both in[INPUTS], constants[CONSTANTS], out[LAYERS], ids[LAYERS], counts[LAYERS];
    int width[INPUTS];
    struct side at[DEVICES];
    struct tern_row rows[MOST_ROWS];
    float *host;
    char about[100];
    /* Of a run of both: */
    double worst;                                 /* of what sparse sums up */
    long chosen, choices[LAYERS][SEQS], rows_off; /* choices that differ; rows that are excused by them */
    double states;                                /* of steps' marks, numbers that differ */
};

static struct tern_kv_cache *cache_of(struct test *t, int i, int seq)
{
    return &t->at[i].cache[seq % t->n_plans];
}

/* Compressed rows that differ as f32, by the last run with that plan. */
enum { MOST_COMPRESSED = CTX / 2 };
static bool other[LAYERS][2][SEQS][MOST_COMPRESSED];

static struct tern_compress compress_of(const struct shape *s, int layer, enum tern_kv_role role)
{
    const struct kind *k = &s->layers[layer];
    const bool index = role == TERN_KV_INDEX;
    struct tern_compress c = {.layer = layer,
                              .rate = k->rate,
                              .overlap = k->chooses,
                              .dim = index ? s->index_dim : s->dim,
                              .eps = 1e-6f,
                              .n_rot = index && s->index_dim < s->n_rot ? s->index_dim : s->n_rot};
    if (s->grid)
        c.grid = index ? TERN_GRID_FP4 : TERN_GRID_FP8;
    if (index) {
        const struct tern_compress rows = compress_of(s, layer, TERN_KV_ROWS);
        c.state_at = tern_compress_floats(&rows);
    }
    return c;
}

static void declare(const struct shape *s, struct tern_kv_decl *decl)
{
    for (int i = 0; i < s->n_layers; i++) {
        struct tern_kv_decl *d = &decl[i];
        *d = (struct tern_kv_decl){
            .n_heads = 1, .dim_v = s->dim, .latent = true, .reach = {.window = s->window}, .n_rot = s->n_rot};
        for (int k = 0; s->layers[i].rate && k < 1 + s->layers[i].chooses; k++) {
            const enum tern_kv_role role = k ? TERN_KV_INDEX : TERN_KV_ROWS;
            const struct tern_compress c = compress_of(s, i, role);
            d->more[d->n_more++] = (struct tern_kv_more){role, c.rate, 1, c.dim, s->grid};
            d->state_bytes += tern_compress_floats(&c) * sizeof(float);
        }
    }
}

static uint64_t seed;

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* Nearly normal: the sum of four 16-bit numbers. */
static float gauss(struct tern_rng *r)
{
    const uint64_t u = tern_rng_u64(r);
    const int sum = (int)(u & 0xFFFF) + (int)(u >> 16 & 0xFFFF) + (int)(u >> 32 & 0xFFFF) + (int)(u >> 48);
    return (float)(sum - 131070) * 2.6429e-5f;
}

/* Keys of +-1 that one token alone decides, and queries and weights that are whole. */
static float tied(const struct shape *s, int what, int i, int pos, struct tern_rng *r)
{
    const uint64_t u = tern_rng_u64(r);
    return what == INDEX_X      ? (u & 1 ? 1.0f : -1.0f)
           : what == INDEX_GATE ? (i >= s->index_dim && pos % 4 == 1 ? 0.0f : -1e6f)
           : what == INDEX_Q    ? (float)((int)(u % 5) - 2)
                                : (float)((int)(u % 4) - 1);
}

static void make_row(const struct test *t, float *x, int what, int seq, int pos)
{
    struct tern_rng r = {tern_hash64(seed ^ (uint64_t)seq << 40 ^ (uint64_t)pos << 8 ^ (uint64_t)what)};
    const bool ties = t->s->ties && what != X && what != GATE && what != V && what != Q;
    for (int i = 0; i < t->width[what]; i++)
        x[i] = ties ? tied(t->s, what, i, pos, &r) : gauss(&r) * (what == GATE || what == INDEX_GATE ? 2.0f : 1.0f);
}

static void make_constants(struct test *t)
{
    const struct shape *s = t->s;
    const int n[CONSTANTS] = {[APE] = MOST_RATE * 2 * s->dim,
                              [INDEX_APE] = MOST_RATE * 2 * s->index_dim,
                              [NORM] = s->dim,
                              [INDEX_NORM] = s->index_dim,
                              [FREQ] = s->n_rot / 2,
                              [SINKS] = s->heads};
    for (int k = 0; k < CONSTANTS; k++) {
        const bool norm = k == NORM || k == INDEX_NORM, still = s->ties && (k == INDEX_APE || k == INDEX_NORM);
        struct tern_rng r = {tern_hash64(seed ^ (uint64_t)k)};
        float *x = checkdev_get((size_t)n[k], sizeof *x);
        for (int i = 0; i < n[k]; i++)
            x[i] = k == FREQ ? (s->ties ? 0.0f : powf(10000, -2.0f * (float)i / (float)s->n_rot))
                             : (norm ? 1.0f : 0.0f) + (still ? 0.0f : gauss(&r) * (norm ? 0.2f : 1.0f));
        t->constants[k] = checkdev_bytes(t->c, x, (size_t)n[k] * sizeof *x);
        for (int i = 0; i < DEVICES; i++)
            t->c->d[i]->ops->sync(t->c->d[i]);
        tern_free(x);
    }
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void prepare(struct test *t)
{
    static const struct tern_attn_shape none[LAYERS];
    const struct shape *s = t->s;
    struct tern_dev_cache caches[PLANS];
    for (int p = 0; p < t->n_plans; p++)
        caches[p] = (struct tern_dev_cache){.n_layers = t->l[p]->n_layers,
                                            .n_spans = t->l[p]->n_spans,
                                            .layers = t->l[p]->layers,
                                            .group_of = t->l[p]->group_of,
                                            .span_layer = t->l[p]->span_layer,
                                            .state_off = t->l[p]->state_off};
    bool chooses = false;
    for (int i = 0; i < s->n_layers; i++)
        chooses |= s->layers[i].chooses;
    const struct tern_dev_limits lim = {.max_rows = MOST_ROWS,
                                        .max_narrow = MOST_ROWS,
                                        .max_k = 64,
                                        .caches = caches,
                                        .n_caches = t->n_plans,
                                        .shapes = none,
                                        .max_jobs = SEQS,
                                        .max_pages = CTX / TERN_PAGE + 2,
                                        .max_compressed = s->dim > s->index_dim ? s->dim : s->index_dim,
                                        .max_sparse_heads = s->heads,
                                        .max_chosen = chooses ? s->top : 0,
                                        .max_choose_heads = chooses ? s->index_heads : 0};
    checkdev_prepare(t->c, &lim);
}

static void open_test(struct test *t, struct checkdev *c, const struct shape *s, const char *plan)
{
    struct tern_kv_decl decl[LAYERS];
    tern_error err;
    size_t most = (size_t)s->heads * (size_t)s->dim;
    *t = (struct test){.c = c, .s = s, .plan = plan};
    declare(s, decl);
    for (const char *at = plan; *at; t->n_plans++) {
        char text[64];
        const int n = (int)strcspn(at, "+");
        (void)snprintf(text, sizeof text, "%.*s", n, at);
        image_ok(tern_kv_layout_new(&t->l[t->n_plans], decl, s->n_layers, text, false, &err), &err);
        tern_kv_layout_spare(t->l[t->n_plans], s->top % 2 ? DRAFTS : 0);
        at += n + (at[n] == '+');
    }
    prepare(t);
    const int width[INPUTS] = {[X] = 2 * s->dim,
                               [GATE] = 2 * s->dim,
                               [INDEX_X] = 2 * s->index_dim,
                               [INDEX_GATE] = 2 * s->index_dim,
                               [V] = s->dim,
                               [Q] = s->heads * s->dim,
                               [INDEX_Q] = s->index_heads * s->index_dim,
                               [INDEX_W] = s->index_heads};
    for (int i = 0; i < INPUTS; i++) {
        t->width[i] = width[i];
        most = stride_of(width[i]) > most ? stride_of(width[i]) : most;
        t->in[i] = checkdev_bytes(c, NULL, MOST_ROWS * stride_of(width[i]) * sizeof(float));
    }
    make_constants(t);
    for (int i = 0; i < s->n_layers; i++) {
        t->out[i] = checkdev_bytes(c, NULL, MOST_ROWS * (size_t)width[Q] * sizeof(float));
        t->ids[i] = checkdev_bytes(c, NULL, MOST_ROWS * (size_t)s->top * sizeof(float));
        t->counts[i] = checkdev_bytes(c, NULL, MOST_ROWS * sizeof(float));
    }
    t->host = checkdev_get(2 * MOST_ROWS * most, sizeof *t->host);
}

static void close_test(struct test *t)
{
    for (int i = 0; i < INPUTS; i++)
        checkdev_free(t->c, &t->in[i]);
    for (int i = 0; i < CONSTANTS; i++)
        checkdev_free(t->c, &t->constants[i]);
    for (int i = 0; i < t->s->n_layers; i++) {
        checkdev_free(t->c, &t->out[i]);
        checkdev_free(t->c, &t->ids[i]);
        checkdev_free(t->c, &t->counts[i]);
    }
    for (int p = 0; p < t->n_plans; p++)
        tern_kv_layout_free(t->l[p]);
    tern_free(t->host);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

struct part {
    int seq, pos, n;
    bool wide;
};

/* The rows of the next step: prompts, and behind them sequences that decode already; how many parts. */
static int next_step(const struct script *s, int *done, struct part *parts)
{
    int n = 0, prompts = 0;
    for (int i = 0; i < s->n; i++)
        prompts += done[i] < s->prompt[i];
    for (int i = 0; i < s->n; i++) {
        const int left = s->prompt[i] - done[i], most = prompts ? s->chunk / prompts : 0;
        if (left > 0)
            parts[n++] = (struct part){i, done[i], left < most ? left : most, true};
    }
    for (int i = 0; i < s->n; i++) {
        const int left = s->prompt[i] + DECODED - done[i];
        if (left > 0 && left <= DECODED)
            parts[n++] = (struct part){i, done[i], left < s->at_once ? left : s->at_once, false};
    }
    for (int k = 0; k < n; k++)
        done[parts[k].seq] += parts[k].n;
    return n;
}

static void send(struct test *t, const struct part *parts, int n, unsigned devices)
{
    for (int what = 0; what < INPUTS; what++) {
        const size_t stride = stride_of(t->width[what]);
        size_t row = 0;
        for (int k = 0; k < n; k++)
            for (int i = 0; i < parts[k].n; i++)
                make_row(t, t->host + row++ * stride, what, parts[k].seq, parts[k].pos + i);
        for (int i = 0; i < DEVICES; i++)
            if (devices >> i & 1) {
                t->c->d[i]->ops->copy_in(t->c->d[i], t->in[what].m[i], 0, t->host, row * stride * sizeof(float));
                t->c->d[i]->ops->sync(t->c->d[i]);
            }
    }
}

static struct tern_dev_rows input(const struct test *t, int i, int what, int width)
{
    return rows_of(&t->in[what], i, stride_of(t->width[what]), width);
}

static void compress(struct test *t, int i, int layer, enum tern_kv_role role)
{
    const bool index = role == TERN_KV_INDEX;
    struct tern_compress c = compress_of(t->s, layer, role);
    const int channels = c.dim * (c.overlap ? 2 : 1);
    c.span = tern_kv_span_of(t->l[0], layer, role);
    c.ape = vec_of(&t->constants[index ? INDEX_APE : APE], i);
    c.norm = vec_of(&t->constants[index ? INDEX_NORM : NORM], i);
    c.freq = vec_of(&t->constants[FREQ], i);
    t->c->d[i]->ops->compress(t->c->d[i], &c, input(t, i, index ? INDEX_X : X, channels),
                              input(t, i, index ? INDEX_GATE : GATE, channels));
}

static void run_layer(struct test *t, int i, int layer, int n_rows)
{
    const struct shape *s = t->s;
    const struct kind *k = &s->layers[layer];
    struct tern_dev *d = t->c->d[i];
    const struct tern_choose choose = {.span = tern_kv_span_of(t->l[0], layer, TERN_KV_INDEX),
                                       .rate = k->rate,
                                       .n_heads = s->index_heads,
                                       .dim = s->index_dim,
                                       .top = s->top,
                                       .ids = vec_of(&t->ids[layer], i),
                                       .counts = vec_of(&t->counts[layer], i)};
    const struct tern_sparse sparse = {.layer = layer,
                                       .span = k->rate ? tern_kv_span_of(t->l[0], layer, TERN_KV_ROWS) : -1,
                                       .rate = k->rate,
                                       .n_heads = s->heads,
                                       .dim = s->dim,
                                       .scale = 1.7f / sqrtf((float)s->dim),
                                       .sinks = vec_of(&t->constants[SINKS], i),
                                       .chosen = k->chooses ? &choose : NULL};
    const int width = t->width[Q];
    d->ops->append(d, layer, input(t, i, V, s->dim), input(t, i, V, s->dim));
    if (k->rate)
        compress(t, i, layer, TERN_KV_ROWS);
    if (k->chooses) {
        compress(t, i, layer, TERN_KV_INDEX);
        d->ops->choose(d, &choose, input(t, i, INDEX_Q, t->width[INDEX_Q]), input(t, i, INDEX_W, s->index_heads),
                       n_rows);
    }
    d->ops->sparse(d, &sparse, input(t, i, Q, width), rows_of(&t->out[layer], i, (size_t)width, width), n_rows);
}

static int begin_jobs(struct test *t, struct side *at, const struct part *parts, int n)
{
    int rows = 0;
    tern_error err;
    for (int k = 0; k < n; k++) {
        struct tern_kv_seq *seq = at->seq[parts[k].seq];
        const int cache = parts[k].seq % t->n_plans;
        image_ok(tern_kv_begin(&at->cache[cache], seq, parts[k].n, &err), &err);
        (void)tern_kv_mark(&at->cache[cache], seq, parts[k].n, parts[k].wide);
        at->jobs[k] = tern_kv_dev_job(seq, cache, at->tables[k]);
        at->jobs[k].row0 = rows;
        at->jobs[k].n_rows = parts[k].n;
        at->jobs[k].wide = parts[k].wide;
        for (int i = 0; i < parts[k].n; i++)
            t->rows[rows++] = (struct tern_row){0, parts[k].pos + i};
    }
    for (int p = 0; p < t->n_plans; p++)
        tern_kv_dev_cache(&at->dev_cache[p], at->pages[p], &at->cache[p]);
    return rows;
}

static void run_step(struct test *t, int i, const struct part *parts, int n)
{
    struct tern_dev *d = t->c->d[i];
    struct side *at = &t->at[i];
    tern_error err;
    const int rows = begin_jobs(t, at, parts, n);
    const struct tern_dev_step s = {t->rows, rows, at->dev_cache, t->n_plans, at->jobs, n};
    d->ops->begin(d, &s);
    for (int layer = 0; layer < t->s->n_layers; layer++)
        run_layer(t, i, layer, rows);
    d->ops->end(d);
    d->ops->sync(d);
    image_ok(tern_dev_fault(d, false, &err), &err);
}

/* ---- what a step leaves ------------------------------------------------------------------------------------------ */

/* Do the devices choose the same for a row? */
static bool same_choice(const int32_t *const *ids, const int32_t *const *counts, int row, int top)
{
    const int n = counts[CPU][row];
    return counts[OTHER][row] == n &&
           memcmp(ids[OTHER] + (size_t)row * (size_t)top, ids[CPU] + (size_t)row * (size_t)top, (size_t)n * 4) == 0;
}

/* Which rows of a step the devices choose differently for. */
static void compare_choices(struct test *t, int layer, const struct part *parts, int n, bool *differs)
{
    const int top = t->s->top;
    const size_t most = MOST_ROWS * (size_t)top;
    int32_t *ids[DEVICES], *counts[DEVICES];
    for (int i = 0; i < DEVICES; i++) {
        ids[i] = checkdev_get(most, sizeof **ids);
        counts[i] = checkdev_get(MOST_ROWS, sizeof **counts);
        checkdev_out(t->c, &t->ids[layer], i, ids[i], most * sizeof **ids);
        checkdev_out(t->c, &t->counts[layer], i, counts[i], MOST_ROWS * sizeof **counts);
    }
    for (int k = 0, row = 0; k < n; k++)
        for (int i = 0; i < parts[k].n; i++, row++) {
            const int sees = (parts[k].pos + i + 1) / t->s->layers[layer].rate, want = sees < top ? sees : top;
            differs[row] = !same_choice((const int32_t *const *)ids, (const int32_t *const *)counts, row, top) ||
                           counts[CPU][row] != want;
            t->choices[layer][parts[k].seq] += differs[row];
            t->chosen += sees > top;
        }
    for (int i = 0; i < DEVICES; i++) {
        tern_free(ids[i]);
        tern_free(counts[i]);
    }
}

static double row_error(const float *a, const float *e, int n)
{
    double most = 0, apart = 0;
    for (int i = 0; i < n; i++) {
        most = fabs((double)e[i]) > most ? fabs((double)e[i]) : most;
        apart = fabs((double)a[i] - (double)e[i]) > apart ? fabs((double)a[i] - (double)e[i]) : apart;
        if (!isfinite(a[i]))
            return INFINITY;
    }
    return apart == 0 ? 0 : apart / most;
}

static bool row_is_other(int layer, int role, int seq)
{
    for (int i = 0; i < MOST_COMPRESSED; i++)
        if (other[layer][role][seq][i])
            return true;
    return false;
}

static void compare_step(struct test *t, int layer, const struct part *parts, int n, int rows)
{
    const size_t width = (size_t)t->width[Q], all = (size_t)rows * width;
    bool differs[MOST_ROWS] = {false};
    if (t->s->layers[layer].chooses)
        compare_choices(t, layer, parts, n, differs);
    for (int i = 0; i < DEVICES; i++)
        checkdev_out(t->c, &t->out[layer], i, t->host + (size_t)i * all, all * sizeof *t->host);
    for (int k = 0, row = 0; k < n; k++) {
        const bool excused = strcmp(t->plan, "f32") != 0 && row_is_other(layer, 0, parts[k].seq);
        for (int i = 0; i < parts[k].n; i++, row++) {
            const float *a = t->host + (size_t)row * width;
            const double e = row_error(a + OTHER * all, a + CPU * all, (int)width);
            t->rows_off += differs[row] || excused;
            if (!differs[row] && !excused)
                t->worst = e > t->worst ? e : t->worst;
        }
    }
}

/* Hashes of a step's rows on the device go to those of their positions. */
static void hash_step(struct test *t, int layer, const struct part *parts, int n, int rows, uint64_t *const *to)
{
    const size_t width = (size_t)t->width[Q];
    checkdev_out(t->c, &t->out[layer], OTHER, t->host, (size_t)rows * width * sizeof *t->host);
    const float *x = t->host;
    for (int k = 0; k < n; k++)
        for (int i = 0; i < parts[k].n; i++, x += width) {
            uint64_t h = to[parts[k].seq][parts[k].pos + i];
            for (size_t j = 0; j < width; j++) {
                uint32_t bits;
                memcpy(&bits, x + j, sizeof bits);
                h = tern_hash64(h ^ bits);
            }
            to[parts[k].seq][parts[k].pos + i] = h;
        }
}

/* The states that a step's marks ask for. */
static void compare_marks(struct test *t, const struct part *parts, int n)
{
    const size_t bytes = t->l[0]->state_bytes;
    uint8_t *x[DEVICES];
    if (!bytes)
        return;
    for (int i = 0; i < DEVICES; i++)
        x[i] = checkdev_get(bytes, 1);
    for (int k = 0; k < n; k++) {
        const struct tern_kv_seq *s[DEVICES] = {t->at[OTHER].seq[parts[k].seq], t->at[CPU].seq[parts[k].seq]};
        TERN_ASSERT(s[OTHER]->n_marks == s[CPU]->n_marks);
        for (int m = 0; m < s[CPU]->n_marks; m++) {
            for (int i = 0; i < DEVICES; i++)
                tern_kv_block_read(&cache_of(t, i, parts[k].seq)->states, s[i]->marks[m].block, 0, x[i], bytes);
            t->states += memcmp(x[OTHER], x[CPU], bytes) != 0;
        }
    }
    for (int i = 0; i < DEVICES; i++)
        tern_free(x[i]);
}

/* ---- what sequences have ----------------------------------------------------------------------------------------- */

/* Do these rows hold one that is another number in f32? */
static bool excused(const struct test *t, int seq, const struct piece *p)
{
    const int layer = t->l[0]->span_layer[p->span],
              index = t->l[0]->roles[p->span] == TERN_KV_INDEX; /* of every plan */
    if (p->span < t->l[0]->n_layers || p->what == STATE)
        return false;
    for (int i = 0; i < p->rows; i++)
        if (other[layer][index][seq][p->page * TERN_PAGE + i])
            return true;
    return false;
}

/* How many pieces differ.  devices: of the two devices, which have the same ones; pages of a window may be gone in one
 * of two runs. */
static int differing(const struct test *t, const struct image *a, const struct image *b, int seq, bool devices)
{
    static const char *const names[] = {"page", "raw rows of page", "first tokens of page", "state of"};
    int n = devices && a->n_pieces != b->n_pieces;
    for (int i = 0; i < a->n_pieces; i++) {
        const struct piece *p = &a->pieces[i], *q = find_piece(b, p);
        if (!q && p->what == PAGE && p->span < t->l[0]->n_layers && !devices)
            continue;
        if (q && p->n == q->n && memcmp(a->p + p->at, b->p + q->at, p->n) == 0)
            continue;
        if (devices && excused(t, seq, p))
            continue;
        if (n++ < 3)
            printf("     sequence %d, span %d: %s %d\n", seq, p->span, names[p->what], p->page);
    }
    return n;
}

/* ---- rows in f32 ------------------------------------------------------------------------------------------------- */

/* Marks the rows of a sequence that differ, and returns the largest difference. */
static double mark_others(const struct test *t, const struct image *a, const struct image *e, int seq, long *rows)
{
    float x[512], y[512];
    double worst = 0;
    for (int i = 0; i < a->n_pieces; i++) {
        const struct piece *p = &a->pieces[i], *q = find_piece(e, p);
        const int layer = t->l[0]->span_layer[p->span], index = t->l[0]->roles[p->span] == TERN_KV_INDEX;
        const struct tern_kv_layer *kv = &t->l[0]->layers[p->span];
        if (p->what > TILE || p->span < t->l[0]->n_layers || !q || p->n != q->n)
            continue;
        for (int row = 0; row < p->rows; row++) {
            row_in(kv, a, p, row, x);
            row_in(kv, e, q, row, y);
            const int n = kv->k.dim + kv->v.dim;
            const double apart = row_error(x, y, n);
            other[layer][index][seq][p->page * TERN_PAGE + row] = apart > 0;
            worst = apart > worst ? apart : worst;
            *rows += 1;
        }
    }
    return worst;
}

static long count_others(const struct test *t, int n)
{
    long differ = 0;
    for (int i = 0; i < t->s->n_layers * 2 * n; i++)
        for (int row = 0; row < MOST_COMPRESSED; row++)
            differ += other[i / n / 2][i / n % 2][i % n][row];
    return differ;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

/* What a run of the device leaves. */
struct result {
    struct image image[SEQS];
    uint64_t *rows[SEQS];
};

static void open_side(struct test *t, int i, int n)
{
    const struct tern_kv_room room = {n, CTX, MOST_ROWS, NULL, t->c->d[i]};
    tern_error err;
    struct side *at = &t->at[i];
    for (int p = 0; p < t->n_plans; p++)
        image_ok(tern_kv_cache_init(&at->cache[p], t->l[p], &room, &err), &err);
    for (int k = 0; k < n; k++)
        image_ok(tern_kv_seq_new(cache_of(t, i, k), &at->seq[k], &err), &err);
}

static void close_side(struct test *t, int i, int n)
{
    for (int k = 0; k < n; k++)
        tern_kv_seq_free(cache_of(t, i, k), t->at[i].seq[k]);
    for (int p = 0; p < t->n_plans; p++)
        tern_kv_cache_clear(&t->at[i].cache[p]);
}

static void free_result(struct result *r)
{
    for (int i = 0; i < SEQS; i++) {
        clear_image(&r->image[i]);
        tern_free(r->rows[i]);
    }
}

/* Sequence `first` and those behind it; cpu: both devices, compared step by step, and the CPU's images in *cpu. */
static void run(struct test *t, const struct script *script, int first, struct result *out, struct image *cpu)
{
    int done[SEQS] = {0};
    struct part parts[SEQS];
    const unsigned devices = cpu ? 1u << CPU | 1u << OTHER : 1u << OTHER;
    *out = (struct result){0};
    for (int i = 0; i < DEVICES; i++)
        if (devices >> i & 1)
            open_side(t, i, first + script->n);
    for (int k = 0; k < script->n; k++)
        out->rows[first + k] = checkdev_get(CTX, sizeof **out->rows);
    for (int n; (n = next_step(script, done, parts)) > 0;) {
        int rows = 0;
        for (int k = 0; k < n; k++) {
            rows += parts[k].n;
            parts[k].seq += first;
        }
        send(t, parts, n, devices);
        for (int i = 0; i < DEVICES; i++)
            if (devices >> i & 1)
                run_step(t, i, parts, n);
        for (int layer = 0; layer < t->s->n_layers; layer++) {
            hash_step(t, layer, parts, n, rows, out->rows);
            if (cpu)
                compare_step(t, layer, parts, n, rows);
        }
        if (cpu)
            compare_marks(t, parts, n);
        for (int i = 0; i < DEVICES; i++)
            for (int k = 0; k < n && (devices >> i & 1); k++)
                tern_kv_commit(cache_of(t, i, parts[k].seq), t->at[i].seq[parts[k].seq], parts[k].n);
    }
    for (int k = first; k < first + script->n; k++) {
        out->image[k] = image_of(cache_of(t, OTHER, k), t->at[OTHER].seq[k]);
        if (cpu)
            cpu[k] = image_of(cache_of(t, CPU, k), t->at[CPU].seq[k]);
    }
    for (int i = 0; i < DEVICES; i++)
        if (devices >> i & 1)
            close_side(t, i, first + script->n);
}

static void say(const struct test *t, const char *what, long n, double error, double most)
{
    char about[140];
    int used = snprintf(about, sizeof about, "%s: %s", t->about, what);
    if (n)
        (void)snprintf(about + used, sizeof about - (size_t)used, " (%ld)", n);
    checkdev_line(t->c, "spans", about, error, most);
}

static void compare_f32(struct test *t, const struct script *s, const struct image *of, const struct image *cpu)
{
    double worst = 0;
    long rows = 0;
    memset(other, 0, sizeof other);
    for (int k = 0; k < s->n; k++)
        worst = fmax(worst, mark_others(t, &of[k], &cpu[k], k, &rows));
    say(t, "rows", rows, worst, 1e-6);
    say(t, "rows that differ", 0, (double)count_others(t, s->n), floor((double)rows / 1000));
}

/* Choices that differ although all keys are the same. */
static long wrong_choices(const struct test *t, int n)
{
    long wrong = 0;
    for (int i = 0; i < t->s->n_layers * n; i++)
        wrong += row_is_other(i / n, 1, i % n) ? 0 : t->choices[i / n][i % n];
    return wrong;
}

/* The device against the CPU. */
static struct result against_cpu(struct test *t, const struct script *s)
{
    struct result r;
    struct image cpu[SEQS] = {{0}};
    int differ = 0, pieces = 0;
    t->worst = t->states = 0;
    t->chosen = t->rows_off = 0;
    memset(t->choices, 0, sizeof t->choices);
    run(t, s, 0, &r, cpu);
    if (strcmp(t->plan, "f32") == 0)
        compare_f32(t, s, r.image, cpu);
    for (int k = 0; k < s->n; k++) {
        differ += differing(t, &cpu[k], &r.image[k], k, true);
        pieces += cpu[k].n_pieces;
        clear_image(&cpu[k]);
    }
    say(t, "bytes", pieces, differ + t->states, 0);
    if (t->chosen)
        say(t, "choices", t->chosen, (double)wrong_choices(t, s->n), 0);
    say(t, "attention", 0, t->worst, 2e-5);
    if (t->rows_off)
        printf("     %ld rows of attention are not compared\n", t->rows_off);
    return r;
}

/* Two runs of the device, bit for bit: what differs of a sequence. */
static int differing_runs(const struct test *t, const struct result *a, const struct result *b, int seq)
{
    int n = differing(t, &a->image[seq], &b->image[seq], seq, false);
    for (int i = 0; i < CTX; i++)
        n += a->rows[seq][i] != b->rows[seq][i];
    return n;
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

static void one_case(struct checkdev *c, const struct shape *s, const struct script *script, const char *plan)
{
    struct test t;
    struct result all, some;
    const struct script cut = {script->n, {script->prompt[0], script->prompt[1], script->prompt[2]}, 100, DRAFTS};
    int used, differ = 0;
    open_test(&t, c, s, plan);
    used = snprintf(t.about, sizeof t.about, "%d x %d%s, %s,", s->heads, s->dim, s->grid ? " grid" : "", plan);
    for (int k = 0; k < script->n; k++)
        used += snprintf(t.about + used, sizeof t.about - (size_t)used, " %d", script->prompt[k]);
    all = against_cpu(&t, script);
    run(&t, &cut, 0, &some, NULL);
    for (int k = 0; k < script->n; k++)
        differ += differing_runs(&t, &all, &some, k);
    say(&t, "in chunks of 100", 0, differ, 0);
    free_result(&some);
    differ = 0;
    for (int k = 0; k < script->n && script->n > 1; k++) {
        run(&t, &(struct script){1, {script->prompt[k]}, CHUNK, 1}, k, &some, NULL);
        differ += differing_runs(&t, &all, &some, k);
        free_result(&some);
    }
    if (script->n > 1)
        say(&t, "alone", 0, differ, 0);
    free_result(&all);
    close_test(&t);
}

static const struct shape shapes[] = {
    {64, 16, 5, 24, 32, 3, 41, true, true, 2, {{4, true}, {0, false}}},
    {192, 32, 5, 100, 32, 5, 33, false, false, 3, {{4, true}, {16, false}, {2, true}}},
    {512, 64, 64, 128, 128, 64, 512, true, false, 3, {{0, false}, {4, true}, {128, false}}},
    {64, 16, 64, 128, 128, 64, 16, false, false, 1, {{4, true}}},
    {512, 64, 5, 128, 32, 64, 7, false, false, 1, {{2, true}}},
    {192, 32, 64, 128, 32, 8, 100, true, false, 1, {{128, false}}},
    {64, 16, 5, 24, 32, 8, 100, true, false, 1, {{0, false}}},
};

static const char *const plans[] = {"f32",
                                    "f16",
                                    "fp8",
                                    "q8",
                                    "l4",
                                    "t4",
                                    "t3",
                                    "t4,position=f16",
                                    "q8,layers=0-0:q8,recent=128,first=5",
                                    "l4+t3,position=f16"};

/* For what emulates a card: short, with pages that close all the same. */
static const struct shape short_shapes[] = {
    {64, 16, 5, 20, 32, 3, 9, true, false, 2, {{2, true}, {16, false}}},
    {64, 16, 3, 20, 16, 2, 7, false, true, 2, {{4, true}, {0, false}}},
    {64, 16, 3, 20, 16, 2, 7, true, false, 2, {{2, false}, {2, true}}},
};
static const char *const short_plans[] = {"f32", "fp8", "f16+q8,position=f16,layers=0-1:q8,recent=128,first=5"};

static void quick_cases(struct checkdev *c)
{
    static const struct script several = {3, {65, 129, 4}, CHUNK, 1}, alone = {1, {130}, CHUNK, 1};
    for (int p = 0; p < 3; p++)
        one_case(c, &short_shapes[0], &several, short_plans[p]);
    memset(other, 0, sizeof other);
    one_case(c, &short_shapes[1], &alone, "f16");
    one_case(c, &short_shapes[2], &alone, "f16");
}

static void all_cases(struct checkdev *c)
{
    static const struct script several = {3, {257, 1000, 65}, CHUNK, 1};
    static const int lengths[] = {1, 63, 64, 65, 257, 1000, 4097};
    const int n_plans = sizeof plans / sizeof *plans, n_shapes = sizeof shapes / sizeof *shapes;
    for (int i = 0; i < n_shapes; i++) {
        for (int p = 0; p < n_plans; p++)
            one_case(c, &shapes[i], &several, plans[p]);
        for (int k = 0; k < 7; k++)
            for (int p = 0; p < n_plans; p++)
                if (p == 0 || (p + i + k) % 3 == 0)
                    one_case(c, &shapes[i], &(struct script){1, {lengths[k]}, CHUNK, 1}, plans[p]);
    }
}

void check_spans(struct checkdev *c)
{
    if (!checkdev_wants(c, "spans"))
        return;
    seed = c->rng.state;
    if (getenv("CHECKDEV_QUICK"))
        quick_cases(c);
    else
        all_cases(c);
}
