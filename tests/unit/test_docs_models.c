/* docs/models.md, made from the registries and from running every model of tests/data with every KV scheme.
 *
 *     test_docs_models                 the committed page is what this program would write
 *     test_docs_models --write FILE    writes it (`make docs`)
 *
 * Nothing on the page depends on the machine: marks and sizes, no measured figures. */
#include <dirent.h>
#include <unistd.h>
#include "base/buf.h"
#include "model/arch/arch.h"
#include "run/run.h"
#include "tern/eval.h"
#include "tiny.h"

#define MAX_MODELS   256
#define MAX_FAMILIES 64
#define MAX_TYPES    64
#define MAX_SCHEMES  32
#define MAX_REASONS  32
#define PAGE         TERN_TEST_DATA "/../../docs/models.md"

/* The most that a plan may diverge from the 16-bit cache on a tiny model, in nats per token, by bits per value.  Random
 * keys of few dims code worse than those of trained models, and any rounding may send a row to another expert. */
static const double most[] = {[2] = 1, [3] = .3, [4] = .1, [5] = .1, [8] = .01, [16] = .01, [32] = .01};

/* What a scheme comes to: for all layers of one model, and the least of several models. */
enum mark { UNSEEN, WHOLE, PARTLY, RAW };
static const char *const shown[] = {"", "●", "◐", "○"};

struct cell {
    enum mark mark;
    uint32_t reasons; /* bit i: reasons[i] */
};

struct family {
    const char *name;
    int models[2];   /* by enum tern_file_kind */
    char types[256]; /* model_types of configurations */
    struct cell cells[MAX_SCHEMES];
};

static struct {
    struct family families[MAX_FAMILIES];
    int n_families;
    char reasons[MAX_REASONS][128];
    int n_reasons;
    char types[2][MAX_TYPES][64]; /* of weights, by container */
    int n_types[2];
    int n_schemes, n_models;
} page;

static struct tern_buf text;

static void put(const char *fmt, ...) TERN_PRINTF(1, 2);
static void put(const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    assert_true(n >= 0 && n < (int)sizeof line);
    assert_int_equal(tern_buf_add(&text, line, (size_t)n, NULL), 0);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static int number_of_reason(const char *reason)
{
    for (int i = 0; i < page.n_reasons; i++)
        if (strcmp(page.reasons[i], reason) == 0)
            return i;
    assert_true(page.n_reasons < MAX_REASONS && strlen(reason) < sizeof *page.reasons);
    strcpy(page.reasons[page.n_reasons], reason);
    return page.n_reasons++;
}

/* Adds what the scheme comes to in one layer. */
static void add_layer(struct cell *c, const char *k, const char *v, const char *reason, const char *scheme)
{
    int sides = (strcmp(k, scheme) == 0) + (strcmp(v, scheme) == 0);
    enum mark m = sides == 2 ? WHOLE : sides ? PARTLY : RAW;
    c->mark = c->mark == UNSEEN || c->mark == m ? m : PARTLY;
    if (m != WHOLE)
        c->reasons |= 1u << number_of_reason(reason);
}

static void add_cell(struct cell *to, const struct cell *c)
{
    to->mark = c->mark > to->mark ? c->mark : to->mark;
    to->reasons |= c->reasons;
}

static struct family *family_of(const char *arch)
{
    for (int i = 0; i < page.n_families; i++)
        if (strcmp(page.families[i].name, arch) == 0)
            return &page.families[i];
    fail_msg("no architecture \"%s\" in the registry", arch);
    return NULL;
}

static void add_word(char *list, size_t size, const char *word)
{
    char quoted[64];
    (void)snprintf(quoted, sizeof quoted, "`%s`", word);
    size_t n = strlen(list);
    if (!strstr(list, quoted))
        assert_true(snprintf(list + n, size - n, "%s%s", n ? " " : "", quoted) < (int)(size - n));
}

/* "affine 4 bit, groups of 64" counts as "affine 4 bit". */
static void add_type(int kind, const char *about)
{
    char type[sizeof **page.types];
    (void)snprintf(type, sizeof type, "%.*s", (int)strcspn(about, ","), about);
    for (int i = 0; i < page.n_types[kind]; i++)
        if (strcmp(page.types[kind][i], type) == 0)
            return;
    assert_true(page.n_types[kind] < MAX_TYPES);
    (void)snprintf(page.types[kind][page.n_types[kind]++], sizeof **page.types, "%s", type);
}

static void add_facts(struct family *f, const tern_model *m)
{
    const int kind = tern_file_kind(m->file);
    const struct tern_meta *type = tern_file_meta(m->file, "config.text_config.model_type");
    type = type ? type : tern_file_meta(m->file, "config.model_type");
    f->models[kind]++;
    page.n_models++;
    if (type)
        add_word(f->types, sizeof f->types, type->s.p);
    for (size_t i = 0; i < tern_model_n_tensors(m); i++) {
        tern_tensor_info t;
        tern_model_tensor(m, i, &t);
        if (t.memory_bytes)
            add_type(kind, t.type);
    }
}

/* All schemes side by side: what they come to, and that they stay near the 16-bit cache. */
static void add_schemes(struct family *f, struct tiny *t, const char *path)
{
    const char *plans[MAX_SCHEMES];
    tern_error err = {0};
    tern_engine *e;
    tern_kld *k;
    for (int i = 0; i < page.n_schemes; i++)
        plans[i] = tern_kv_codecs[i]->name;
    tern_engine_params p = {
        .n_threads = 1, .kv = "f16", .more_kv = plans, .n_more_kv = page.n_schemes, .exact = true, .max_seqs = 16};
    tiny_ok(tern_engine_open(&e, t->model, &p, &err), &err);
    tern_kld_text prompt = {"the prompt", t->ids, t->n_ids};
    int ctx = tern_engine_ctx(e) < t->n_ids ? tern_engine_ctx(e) : t->n_ids;
    tern_kld_params kp = {.texts = &prompt, .n_texts = 1, .ctx = ctx, .n_chunks = 1, .prefill = true};
    tiny_ok(tern_eval_kld(&k, e, &kp, &err), &err);
    for (int i = 0; i < page.n_schemes; i++) {
        const tern_kv_plan *plan = tern_engine_plan_at(e, i + 1);
        struct cell c = {0};
        tern_kld_stats s;
        for (int l = 0; l < tern_kv_plan_rows(plan); l++) {
            tern_kv_row r;
            tern_kv_plan_row(plan, l, &r);
            if (r.n_heads)
                add_layer(&c, r.k, r.v, r.reason, plans[i]);
        }
        add_cell(&f->cells[i], &c);
        tiny_ok(tern_kld_get_stats(k, i + 1, -1, &s, &err), &err);
        if (!(s.mean <= most[tern_kv_codecs[i]->bits]))
            fail_msg("%s with --kv %s diverges by %g", path, plans[i], s.mean);
    }
    tern_kld_free(k);
    tern_engine_close(&e);
}

/* The prompt of dir/name: NAME.ids.txt of that name or of its beginning, up to a dash. */
static void read_prompt(struct tiny *t, const char *dir, const char *name)
{
    char base[128], file[400];
    assert_true(snprintf(base, sizeof base, "%s", name) < (int)sizeof base);
    for (char *cut = base; cut; cut = strrchr(base, '-')) {
        if (cut != base)
            *cut = 0;
        (void)snprintf(file, sizeof file, "%s/%s/%s.ids.txt", TERN_TEST_DATA, dir, base);
        if (access(file, F_OK) == 0) {
            char from_tiny[160];
            (void)snprintf(from_tiny, sizeof from_tiny, "../%s/%s", dir, base);
            tiny_read_ids(t, from_tiny);
            return;
        }
    }
    fail_msg("no prompt for %s/%s", dir, name);
}

static void run_model(const char *dir, const char *file)
{
    struct tiny t = {0};
    tern_error err = {0};
    char path[600], name[128];
    assert_true(snprintf(name, sizeof name, "%s", file) < (int)sizeof name);
    char *dot = strstr(name, ".gguf"), *part = strstr(name, "-000");
    if (part && !strstr(part, "-00001-"))
        return; /* not the first of a split set */
    if (dot)
        *dot = 0;
    if (part)
        *part = 0;
    (void)snprintf(path, sizeof path, "%s/%s/%s", TERN_TEST_DATA, dir, file);
    tiny_ok(tern_model_open(&t.model, path, &(tern_model_params){.n_threads = 1, .packed = "off"}, &err), &err);
    read_prompt(&t, dir, name);
    struct family *f = family_of(tern_model_get_info(t.model)->arch);
    add_facts(f, t.model);
    add_schemes(f, &t, path);
    tiny_close(&t);
}

static int is_model(const struct dirent *d)
{
    size_t n = strlen(d->d_name);
    return (n > 5 && strcmp(d->d_name + n - 5, ".gguf") == 0) || !strchr(d->d_name, '.');
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void run_all(void)
{
    static const char *const dirs[] = {"tiny", "hf"};
    for (; tern_kv_codecs[page.n_schemes]; page.n_schemes++)
        ;
    for (; tern_archs[page.n_families]; page.n_families++)
        page.families[page.n_families].name = tern_archs[page.n_families]->name;
    assert_true(page.n_schemes <= MAX_SCHEMES && page.n_families <= MAX_FAMILIES);
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        char path[512];
        struct dirent **list;
        (void)snprintf(path, sizeof path, "%s/%s", TERN_TEST_DATA, dirs[i]);
        int n = scandir(path, &list, is_model, by_name);
        assert_true(n > 0);
        for (int k = 0; k < n; k++) {
            run_model(dirs[i], list[k]->d_name);
            free(list[k]);
        }
        free(list);
    }
}

/* ---- real sizes -------------------------------------------------------------------------------------------------- */

/* Layers of published models, for the layout alone. */
struct layers {
    int n, heads, dim_k, dim_v;
    int window;
    bool chunked, latent;
};
#define FULL(n, heads, dim)                 \
    {                                       \
        n, heads, dim, dim, 0, false, false \
    }
#define WINDOW(n, heads, dim, window)            \
    {                                            \
        n, heads, dim, dim, window, false, false \
    }
#define CHUNKS(n, heads, dim, window)           \
    {                                           \
        n, heads, dim, dim, window, true, false \
    }
#define LATENT(n, dim, dim_rope)            \
    {                                       \
        n, 1, dim_rope, dim, 0, false, true \
    }
#define NOTHING                     \
    {                               \
        0, 0, 0, 0, 0, false, false \
    }
static const struct real {
    const char *arch, *model;
    struct layers kinds[2];
} reals[] = {
    {"llama", "SmolLM2 135M", {FULL(30, 3, 64), NOTHING}},
    {"llama", "Llama 3.2 1B", {FULL(16, 8, 64), NOTHING}},
    {"llama", "Llama 3.1 8B", {FULL(32, 8, 128), NOTHING}},
    {"llama", "Mixtral 8x7B", {FULL(32, 8, 128), NOTHING}},
    {"llama", "Mistral 7B v0.1", {WINDOW(32, 8, 128, 4096), NOTHING}},
    {"deepseek2", "DeepSeek-V2-Lite", {LATENT(27, 512, 64), NOTHING}},
    {"deepseek2", "DeepSeek-V3", {LATENT(61, 512, 64), NOTHING}},
    {"deepseek2", "GLM-4.7-Flash", {LATENT(47, 512, 64), NOTHING}},
    {"gemma2", "Gemma 2 2B", {FULL(13, 4, 256), WINDOW(13, 4, 256, 4096)}},
    {"gemma3", "Gemma 3 270M", {FULL(3, 1, 256), WINDOW(15, 1, 256, 512)}},
    {"gemma3", "Gemma 3 27B", {FULL(10, 16, 128), WINDOW(52, 16, 128, 1024)}},
    {"gemma4", "Gemma 4 26B-A4B", {FULL(5, 2, 512), WINDOW(25, 8, 256, 1024)}},
    {"glm4", "GLM-4 9B 0414", {FULL(40, 2, 128), NOTHING}},
    {"llama4", "Llama 4 Scout", {FULL(12, 8, 128), CHUNKS(36, 8, 128, 8192)}},
    {"mistral3", "Ministral 3 8B", {FULL(34, 8, 128), NOTHING}},
    {"phi3", "Phi-3.5 mini", {FULL(32, 32, 96), NOTHING}},
    {"phi3", "Phi-4", {FULL(40, 10, 128), NOTHING}},
    {"qwen2", "Qwen2.5 0.5B", {FULL(24, 2, 64), NOTHING}},
    {"qwen2", "Qwen2.5 7B", {FULL(28, 4, 128), NOTHING}},
    {"qwen3", "Qwen3 8B", {FULL(36, 8, 128), NOTHING}},
    {"qwen3moe", "Qwen3 30B-A3B", {FULL(48, 4, 128), NOTHING}},
    {"qwen35", "Qwen3.5 2B, its 6 layers of attention", {FULL(6, 2, 256), NOTHING}},
    {"qwen35", "Qwen3.5 27B, its 16 layers of attention", {FULL(16, 4, 256), NOTHING}},
    {"qwen35moe", "Qwen3.5 35B-A3B, its 10 layers of attention", {FULL(10, 2, 256), NOTHING}},
    {"smollm3", "SmolLM3 3B", {FULL(36, 4, 128), NOTHING}},
};

#define REAL_CTX    32768
#define REAL_LAYERS 128

/* Bytes of a context, and what the scheme comes to. */
static double real_bytes(const struct real *r, const char *scheme, struct cell *c)
{
    struct tern_kv_decl decl[REAL_LAYERS] = {0};
    struct tern_kv_layout *layout;
    tern_error err = {0};
    double bytes = 0;
    int n = 0;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < r->kinds[k].n; i++) {
            const struct layers *l = &r->kinds[k];
            assert_true(n < REAL_LAYERS);
            decl[n++] = (struct tern_kv_decl){.n_heads = l->heads,
                                              .dim_k = l->dim_k,
                                              .dim_v = l->dim_v,
                                              .latent = l->latent,
                                              .reach = {l->window, l->chunked}};
        }
    tiny_ok(tern_kv_layout_new(&layout, decl, n, scheme, false, &err), &err);
    for (int i = 0; i < n; i++) {
        const struct tern_kv_layer *l = &layout->layers[i];
        int window = l->reach.window;
        bytes += tern_kv_layer_bytes(l) * (window && window < REAL_CTX ? window : REAL_CTX);
        add_layer(c, l->k.codec->name, l->v.codec->name, l->why_raw, scheme);
    }
    tern_kv_layout_free(layout);
    return bytes;
}

/* ---- the page ---------------------------------------------------------------------------------------------------- */

static void put_cell(const struct cell *c)
{
    put(" %s", shown[c->mark]);
    const char *before = "<sup>";
    for (int i = 0; i < page.n_reasons; i++)
        if (c->reasons >> i & 1) {
            put("%s%d", before, i + 1);
            before = ",";
        }
    put("%s |", c->reasons ? "</sup>" : "");
}

/* Rows of cells by scheme; schemes that differ in no row share a column. */
struct grid {
    const struct cell *rows[MAX_FAMILIES];
    int n;
};

static bool same_column(const struct grid *g, int a, int b)
{
    for (int r = 0; r < g->n; r++)
        if (g->rows[r][a].mark != g->rows[r][b].mark || g->rows[r][a].reasons != g->rows[r][b].reasons)
            return false;
    return true;
}

/* Is it the first scheme of its column? */
static bool leads(const struct grid *g, int scheme)
{
    for (int i = 0; i < scheme; i++)
        if (same_column(g, i, scheme))
            return false;
    return true;
}

static void put_heads(const struct grid *g, const char *first)
{
    put("| %s |", first);
    for (int i = 0; i < page.n_schemes; i++)
        if (leads(g, i)) {
            for (int k = i; k < page.n_schemes; k++)
                if (same_column(g, i, k))
                    put(" `%s`", tern_kv_codecs[k]->name);
            put(" |");
        }
    put("\n|---|");
    for (const char *bar = strchr(first, '|'); bar; bar = strchr(bar + 1, '|'))
        put("---|");
    for (int i = 0; i < page.n_schemes; i++)
        if (leads(g, i))
            put("---|");
    put("\n");
}

static void put_row(const struct grid *g, int r)
{
    for (int i = 0; i < page.n_schemes; i++)
        if (leads(g, i))
            put_cell(&g->rows[r][i]);
    put("\n");
}

static void put_families(void)
{
    struct grid g = {.n = page.n_families};
    for (int i = 0; i < page.n_families; i++)
        g.rows[i] = page.families[i].cells;
    put_heads(&g, "architecture | GGUF | safetensors: `model_type`");
    for (int i = 0; i < page.n_families; i++) {
        const struct family *f = &page.families[i];
        put("| %s | ", f->name);
        if (f->models[TERN_FILE_GGUF])
            put("● %d", f->models[TERN_FILE_GGUF]);
        put(" | ");
        if (f->models[TERN_FILE_HF])
            put("● %d: %s", f->models[TERN_FILE_HF], f->types);
        put(" |");
        put_row(&g, i);
    }
    put("\n● works, and in how many models of `tests/data` that was seen; empty: refused, or nothing here tests it. In "
        "the "
        "columns\nof KV schemes ● as asked in every layer, ◐ some layers or their keys stay in 16 bits, ○ all of them; "
        "`tern inspect\n--kv PLAN MODEL` says which, `--kv-policy strict` refuses instead. Why:\n\n");
}

static void put_reasons(void)
{
    for (int i = 0; i < page.n_reasons; i++)
        put("%d. %s\n", i + 1, page.reasons[i]);
}

static void put_head_sizes(void)
{
    static const int dims[] = {24, 32, 48, 64, 72, 80, 96, 112, 128, 144, 160, 192, 256, 384, 512};
    enum { N = sizeof dims / sizeof *dims };
    static struct cell cells[N][MAX_SCHEMES];
    struct grid g = {.n = N};
    put("\nBy head size, in layers without a window:\n\n");
    for (int i = 0; i < N; i++) {
        struct real r = {.kinds = {FULL(1, 1, dims[i]), NOTHING}};
        for (int k = 0; k < page.n_schemes; k++)
            (void)real_bytes(&r, tern_kv_codecs[k]->name, &cells[i][k]);
        g.rows[i] = cells[i];
    }
    put_heads(&g, "dims");
    for (int i = 0; i < N;) {
        int same = i; /* sizes of which the same is to be said share a row */
        put("|");
        for (; same < N && memcmp(cells[same], cells[i], sizeof *cells) == 0; same++)
            put(" %d", dims[same]);
        put(" |");
        put_row(&g, i);
        i = same;
    }
}

static void put_layers(const struct layers *l)
{
    if (l->latent)
        put("%d x (%d latent + %d)", l->n, l->dim_v, l->dim_k);
    else
        put("%d x %d heads of %d", l->n, l->heads, l->dim_k);
    if (l->window)
        put(", %s of %d", l->chunked ? "chunks" : "window", l->window);
}

static void put_reals(void)
{
    put("\n## Published models\n\nWhat the layout makes of their sizes: KV cache of %d tokens, and what `t4` comes "
        "to.\n\n"
        "| model | layers and KV heads | `f16`, MiB | `t4`, MiB | less | |\n|---|---|---|---|---|---|\n",
        REAL_CTX);
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        const struct real *r = &reals[i];
        struct cell c = {0}, raw = {0};
        (void)family_of(r->arch);
        double f16 = real_bytes(r, "f16", &raw), t4 = real_bytes(r, "t4", &c);
        put("| %s (%s) | ", r->model, r->arch);
        put_layers(&r->kinds[0]);
        put("%s", r->kinds[1].n ? "; " : "");
        if (r->kinds[1].n)
            put_layers(&r->kinds[1]);
        put(" | %.0f | %.0f | %.2fx |", f16 / 0x1p20, t4 / 0x1p20, f16 / t4);
        put_cell(&c);
        put("\n");
    }
}

/* What is known of a type of weights in a container. */
enum proof { UNKNOWN, BYTES, MODEL };
static const char *const proofs[] = {"", "◇", "●"};

/* Does tern multiply by it?  Not by ids (I32, I64), nor by what may lie in a file that nobody reads. */
static bool is_weight(int type)
{
    return tern_type_elems(type) && tern_type_is_weight(type);
}

static enum proof proof_of(const char *type, int kind)
{
    for (int i = 0; i < page.n_types[kind]; i++)
        if (strcmp(page.types[kind][i], type) == 0)
            return MODEL;
    for (int id = 0; kind == TERN_FILE_GGUF && id < 64; id++)
        if (is_weight(id) && strcmp(tern_type_name(id), type) == 0)
            return BYTES;
    return UNKNOWN;
}

/* Types that no model of the first container has come after those of the registry, in alphabetical order. */
static int all_types(const char *types[2 * MAX_TYPES])
{
    int n = 0;
    for (int id = 0; id < 64; id++)
        if (is_weight(id))
            types[n++] = tern_type_name(id);
    for (int i = 0; i < page.n_types[TERN_FILE_HF]; i++)
        if (proof_of(page.types[TERN_FILE_HF][i], TERN_FILE_GGUF) == UNKNOWN)
            types[n++] = page.types[TERN_FILE_HF][i];
    return n;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void put_weights(void)
{
    const char *types[2 * MAX_TYPES];
    put("\n## Weights\n\nEvery type becomes the same packed form without loss when a model is opened, so speed does "
        "not "
        "depend on the\ncontainer.\n\n| types | GGUF | safetensors |\n|---|---|---|\n");
    qsort(page.types[TERN_FILE_HF], (size_t)page.n_types[TERN_FILE_HF], sizeof **page.types, by_text);
    const int n = all_types(types);
    for (int row = MODEL * 3 + MODEL; row > 0; row--) {
        bool any = false;
        for (int i = 0; i < n; i++) {
            if ((int)proof_of(types[i], TERN_FILE_GGUF) * 3 + (int)proof_of(types[i], TERN_FILE_HF) != row)
                continue;
            put("%s%s", any ? ", " : "| ", types[i]);
            any = true;
        }
        if (any)
            put(" | %s | %s |\n", proofs[row / 3], proofs[row % 3]);
    }
    put("\n● a model above has it; ◇ no model here has it, bytes and products are held against others' "
        "(`unit/test_weights`,\n`checkasm/gemm`). Refused by name:");
    for (int id = 0, seen = 0; id < 64; id++)
        if (!is_weight(id) && id != TERN_I32 && id != TERN_I64 && strncmp(tern_type_name(id), "type ", 5) != 0)
            put("%s%s", seen++ % 16 == 8 ? "\n" : " ", tern_type_name(id));
    put(".\n");
}

static void make_page(void)
{
    static bool made;
    if (made)
        return;
    made = true;
    run_all();
    put("# Models\n\nWhat runs, from which files, with which KV cache. `make docs` writes this page from the "
        "registries "
        "and from running\nthe %d models of `tests/data` with every KV scheme; `unit/test_docs_models` fails when it "
        "is "
        "out of date. Their logits\nare compared with those of the reference implementations by `unit/test_model*`.\n\n"
        "## Architectures\n\n",
        page.n_models);
    put_families();
    size_t reasons_at = text.len;
    put_head_sizes();
    put_reals();
    put_weights();
    /* The list of reasons is complete only now. */
    struct tern_buf rest = {0};
    assert_int_equal(tern_buf_add(&rest, text.p + reasons_at, text.len - reasons_at, NULL), 0);
    text.len = reasons_at;
    put_reasons();
    assert_int_equal(tern_buf_add(&text, rest.p, rest.len, NULL), 0);
    tern_buf_clear(&rest);
}

static void test_page_is_current(void **state)
{
    struct tern_buf committed = {0};
    tern_error err = {0};
    (void)state;
    make_page();
    tiny_ok(tern_buf_read_file(&committed, PAGE, 1 << 20, &err), &err);
    size_t same = 0, line = 1;
    while (same < committed.len && same < text.len && committed.p[same] == text.p[same])
        line += text.p[same++] == '\n';
    if (committed.len != text.len || same != text.len)
        fail_msg("docs/models.md is out of date from line %zu on: run `make docs`", line);
    tern_buf_clear(&committed);
}

static const char *write_to;

static void write_page(void **state)
{
    (void)state;
    make_page();
    FILE *f = fopen(write_to, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text.p, 1, text.len, f), text.len);
    assert_int_equal(fclose(f), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest check[] = {cmocka_unit_test(test_page_is_current)};
    const struct CMUnitTest write[] = {cmocka_unit_test(write_page)};
    write_to = argc == 3 && strcmp(argv[1], "--write") == 0 ? argv[2] : NULL;
    int rc = write_to ? cmocka_run_group_tests(write, NULL, NULL) : cmocka_run_group_tests(check, NULL, NULL);
    tern_buf_clear(&text);
    return rc;
}
