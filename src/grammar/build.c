/* Pieces of grammars. */
#include "grammar/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "base/utf8.h"

int tern_gr_fail(tern_grammar *g, int code, const char *fmt, ...)
{
    if (g->rc == 0) {
        va_list args;
        char text[sizeof g->err.msg];
        va_start(args, fmt);
        (void)vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        g->rc = tern_err_set(&g->err, code, "%s", text);
    }
    return g->rc;
}

bool tern_gr_late(tern_grammar *g)
{
    if (tern_now() > g->until)
        (void)tern_gr_fail(g, TERN_ELIMIT, "it takes more than %.0f seconds to compile", TERN_GR_SECONDS);
    return tern_gr_failed(g);
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static bool grow(tern_grammar *g, void *array, size_t *cap, size_t want, size_t size)
{
    if (g->rc == 0)
        g->rc = tern_grow(array, cap, want, size, &g->err);
    return g->rc == 0;
}

static uint32_t add_node(tern_grammar *g, enum tern_gr_op op, uint32_t x, uint32_t a, uint32_t b)
{
    if (g->n_nodes >= TERN_GR_MAX_NODES)
        (void)tern_gr_fail(g, TERN_ELIMIT, "it takes more than %u states", TERN_GR_MAX_NODES);
    if (g->n_nodes % 1024 == 0)
        (void)tern_gr_late(g);
    if (!grow(g, &g->nodes, &g->cap_nodes, (size_t)g->n_nodes + 1, sizeof *g->nodes))
        return 0;
    g->nodes[g->n_nodes] = (struct tern_gr_node){(uint32_t)op, x, a, b};
    return g->n_nodes++;
}

/* A node and the open end behind it. */
static struct tern_gr_frag with_end(tern_grammar *g, enum tern_gr_op op, uint32_t x, uint32_t b)
{
    uint32_t end = add_node(g, TERN_GR_JUMP, 0, UINT32_MAX, 0), first = add_node(g, op, x, end, b);
    return (struct tern_gr_frag){first, end};
}

static void close_end(tern_grammar *g, uint32_t end, uint32_t to)
{
    if (!tern_gr_failed(g))
        g->nodes[end].a = to;
}

struct tern_gr_frag tern_gr_empty(tern_grammar *g)
{
    uint32_t end = add_node(g, TERN_GR_JUMP, 0, UINT32_MAX, 0);
    return (struct tern_gr_frag){end, end};
}

static uint32_t add_set(tern_grammar *g, const struct tern_gr_set *s)
{
    for (uint32_t back = 0; back < 64 && back < g->n_sets; back++) /* the newest are the likeliest to come again */
        if (memcmp(&g->sets[g->n_sets - 1 - back], s, sizeof *s) == 0)
            return g->n_sets - 1 - back;
    if (!grow(g, &g->sets, &g->cap_sets, (size_t)g->n_sets + 1, sizeof *g->sets))
        return 0;
    g->sets[g->n_sets] = *s;
    return g->n_sets++;
}

struct tern_gr_frag tern_gr_set(tern_grammar *g, const struct tern_gr_set *s)
{
    return with_end(g, TERN_GR_ONE, add_set(g, s), 0);
}

struct tern_gr_frag tern_gr_never(tern_grammar *g)
{
    return tern_gr_set(g, &(struct tern_gr_set){0});
}

struct tern_gr_frag tern_gr_span(tern_grammar *g, int from, int to)
{
    struct tern_gr_set s = {0};
    for (int c = from; c <= to; c++)
        s.w[c / 64] |= (uint64_t)1 << (c % 64);
    return tern_gr_set(g, &s);
}

struct tern_gr_frag tern_gr_bytes(tern_grammar *g, const char *p, size_t n)
{
    struct tern_gr_frag f = tern_gr_empty(g);
    for (size_t i = 0; i < n && !tern_gr_failed(g); i++)
        f = tern_gr_then(g, f, tern_gr_span(g, (unsigned char)p[i], (unsigned char)p[i]));
    return f;
}

struct tern_gr_frag tern_gr_text(tern_grammar *g, const char *s)
{
    return tern_gr_bytes(g, s, strlen(s));
}

struct tern_gr_frag tern_gr_then(tern_grammar *g, struct tern_gr_frag a, struct tern_gr_frag b)
{
    close_end(g, a.last, b.first);
    return (struct tern_gr_frag){a.first, b.last};
}

struct tern_gr_frag tern_gr_or(tern_grammar *g, struct tern_gr_frag a, struct tern_gr_frag b)
{
    uint32_t end = add_node(g, TERN_GR_JUMP, 0, UINT32_MAX, 0);
    close_end(g, a.last, end);
    close_end(g, b.last, end);
    return (struct tern_gr_frag){add_node(g, TERN_GR_FORK, 0, a.first, b.first), end};
}

struct tern_gr_frag tern_gr_maybe(tern_grammar *g, struct tern_gr_frag a)
{
    return tern_gr_or(g, a, tern_gr_empty(g));
}

struct tern_gr_frag tern_gr_call(tern_grammar *g, uint32_t rule)
{
    return with_end(g, TERN_GR_CALL, rule, 0);
}

struct tern_gr_frag tern_gr_repeat(tern_grammar *g, uint32_t rule, uint32_t min, uint32_t max)
{
    uint32_t i = 0;
    if (min > TERN_GR_MAX_REPEAT || (max != TERN_GR_NO_END && max > TERN_GR_MAX_REPEAT))
        (void)tern_gr_fail(g, TERN_ELIMIT, "a repetition of %u times is more than the limit of %d",
                           min > TERN_GR_MAX_REPEAT ? min : max, TERN_GR_MAX_REPEAT);
    if (grow(g, &g->counts, &g->cap_counts, (size_t)g->n_counts + 1, sizeof *g->counts)) {
        g->counts[g->n_counts] = (struct tern_gr_counts){min, max};
        i = g->n_counts++;
    }
    return with_end(g, TERN_GR_REPEAT, rule, i);
}

struct tern_gr_frag tern_gr_times(tern_grammar *g, struct tern_gr_frag a, uint32_t min, uint32_t max)
{
    if (min == 1 && max == 1)
        return a;
    if (min == 0 && max == 1)
        return tern_gr_maybe(g, a);
    return tern_gr_repeat(g, tern_gr_rule(g, a), min, max);
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */

uint32_t tern_gr_declare(tern_grammar *g)
{
    if (g->n_rules >= TERN_GR_MAX_RULES)
        (void)tern_gr_fail(g, TERN_ELIMIT, "it takes more than %u rules", TERN_GR_MAX_RULES);
    if (!grow(g, &g->rules, &g->cap_rules, (size_t)g->n_rules + 1, sizeof *g->rules))
        return 0;
    g->rules[g->n_rules] = UINT32_MAX;
    return g->n_rules++;
}

void tern_gr_define(tern_grammar *g, uint32_t rule, struct tern_gr_frag f)
{
    close_end(g, f.last, add_node(g, TERN_GR_RETURN, 0, 0, 0));
    if (!tern_gr_failed(g))
        g->rules[rule] = f.first;
}

uint32_t tern_gr_rule(tern_grammar *g, struct tern_gr_frag f)
{
    uint32_t r = tern_gr_declare(g);
    tern_gr_define(g, r, f);
    return r;
}

/* ---- marks ------------------------------------------------------------------------------------------------------- */

static uint32_t add_mark(tern_grammar *g, const char *text)
{
    for (uint32_t i = 0; i < g->n_marks; i++)
        if (strcmp(g->marks[i], text) == 0)
            return i;
    if (strlen(text) >= sizeof *g->marks)
        (void)tern_gr_fail(g, TERN_EUNSUPPORTED, "the mark %.80s is too long", text);
    if (!grow(g, &g->marks, &g->cap_marks, (size_t)g->n_marks + 1, sizeof *g->marks))
        return 0;
    memcpy(g->marks[g->n_marks], text, strlen(text) + 1);
    return g->n_marks++;
}

struct tern_gr_frag tern_gr_mark(tern_grammar *g, const char *text)
{
    return tern_gr_or(g, with_end(g, TERN_GR_MARK, add_mark(g, text), 0), tern_gr_text(g, text));
}

/* How much of the mark stands at the end of its first n bytes and c (Knuth, Morris, Pratt). */
static size_t matched(const char *mark, size_t n, unsigned char c)
{
    char seen[80];
    memcpy(seen, mark, n);
    seen[n] = (char)c;
    for (size_t k = n + 1; k > 0; k--)
        if (memcmp(seen + n + 1 - k, mark, k) == 0)
            return k;
    return 0;
}

struct tern_gr_frag tern_gr_until(tern_grammar *g, const char *mark, bool ends)
{
    return tern_gr_until_led(g, "", mark, ends);
}

struct tern_gr_frag tern_gr_until_led(tern_grammar *g, const char *lead, const char *mark, bool ends)
{
    char all[80];
    const size_t n_lead = strlen(lead), n = n_lead + strlen(mark);
    uint32_t at[80], m = add_mark(g, mark);
    TERN_ASSERT(n_lead < sizeof all - sizeof *g->marks);
    if (strlen(mark) >= sizeof *g->marks)
        return tern_gr_never(g); /* add_mark has failed */
    memcpy(all, lead, n_lead);
    memcpy(all + n_lead, mark, strlen(mark));
    for (size_t i = 0; i <= n; i++) /* at[i]: so much of the mark is read */
        at[i] = add_node(g, TERN_GR_JUMP, 0, UINT32_MAX, 0);
    for (size_t i = 0; i < n && !tern_gr_failed(g); i++) {
        struct tern_gr_set to[80] = {0};
        for (int c = 0; c < 256; c++)
            to[matched(all, i, (unsigned char)c)].w[c / 64] |= (uint64_t)1 << (c % 64);
        struct tern_gr_frag ways = n_lead == 0 || i == n_lead ? with_end(g, TERN_GR_MARK, m, 0) : tern_gr_never(g);
        close_end(g, ways.last, at[n]);
        uint32_t first = ways.first;
        for (size_t k = 0; k <= i + 1; k++) {
            if (!(to[k].w[0] | to[k].w[1] | to[k].w[2] | to[k].w[3]))
                continue;
            ways = tern_gr_set(g, &to[k]);
            close_end(g, ways.last, at[k]);
            first = add_node(g, TERN_GR_FORK, 0, ways.first, first);
        }
        if (ends)
            first = add_node(g, TERN_GR_FORK, 0, add_node(g, TERN_GR_RETURN, 0, 0, 0), first);
        close_end(g, at[i], first);
    }
    return (struct tern_gr_frag){at[0], at[n]};
}

struct tern_gr_frag tern_gr_chars_until(tern_grammar *g, const char *lead, const char *mark)
{
    char all[80];
    uint32_t cps[80], at[80], m = add_mark(g, mark);
    size_t n = 0, read = 0;
    const int bytes = snprintf(all, sizeof all, "%s%s", lead, mark);
    TERN_ASSERT(bytes > 0 && bytes < (int)sizeof all);
    for (int k; read < (size_t)bytes; read += (size_t)k, n++) {
        k = tern_utf8_decode(all + read, (size_t)bytes - read, &cps[n]);
        TERN_ASSERT(k > 0 && (n == 0 || cps[n] != cps[0]));
    }
    for (size_t i = 0; i <= n; i++)
        at[i] = add_node(g, TERN_GR_JUMP, 0, UINT32_MAX, 0);
    for (size_t i = 0; i < n && !tern_gr_failed(g); i++) {
        struct tern_gr_frag ways = i == strlen(lead) ? with_end(g, TERN_GR_MARK, m, 0) : tern_gr_never(g);
        close_end(g, ways.last, at[n]);
        uint32_t first = ways.first;
        for (int k = 0; k < 3; k++) { /* the next sign, the first one, another */
            struct tern_gr_chars c = {0};
            if (k == 1 && i == 0)
                continue;
            tern_gr_chars_add(g, &c, cps[k == 0 ? i : 0], cps[k == 0 ? i : 0]);
            if (k == 2) {
                tern_gr_chars_add(g, &c, cps[i], cps[i]);
                tern_gr_chars_add(g, &c, 0, 0);
                tern_gr_chars_not(g, &c);
            }
            ways = tern_gr_char(g, &c);
            tern_gr_chars_clear(&c);
            close_end(g, ways.last, at[k == 0 ? i + 1 : k == 1 ? 1 : 0]);
            first = add_node(g, TERN_GR_FORK, 0, ways.first, first);
        }
        close_end(g, at[i], first);
    }
    return (struct tern_gr_frag){at[0], at[n]};
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

static int compare_words(const void *a, const void *b)
{
    const struct tern_gr_word *x = a, *y = b;
    int c = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

struct branch { /* of the tree of words; children come behind their parents */
    uint32_t parent;
    uint8_t byte;
    bool word;
    uint32_t first; /* node of what follows its byte; UINT32_MAX: nothing yet */
};

/* The tree of sorted words.  Its root is branch 0. */
static size_t grow_tree(tern_grammar *g, const struct tern_gr_word *words, size_t n, struct branch **tree)
{
    size_t n_tree = 1, cap = 0, cap_path = 0;
    uint32_t *path = NULL; /* path[i]: the branch of the first i bytes of the word before */
    if (!grow(g, tree, &cap, 1, sizeof **tree) || !grow(g, &path, &cap_path, 1, sizeof *path))
        goto out;
    (*tree)[0] = (struct branch){.first = UINT32_MAX};
    path[0] = 0;
    for (size_t i = 0; i < n; i++) {
        const struct tern_gr_word *w = &words[i], *v = i ? &words[i - 1] : NULL;
        size_t same = 0;
        while (v && same < w->n && same < v->n && w->p[same] == v->p[same])
            same++;
        if (!grow(g, tree, &cap, n_tree + w->n, sizeof **tree) || !grow(g, &path, &cap_path, w->n + 1, sizeof *path))
            goto out;
        if (n_tree + w->n > TERN_GR_MAX_NODES) {
            (void)tern_gr_fail(g, TERN_ELIMIT, "it takes more than %u states", TERN_GR_MAX_NODES);
            goto out;
        }
        for (size_t k = same; k < w->n; k++) {
            (*tree)[n_tree] = (struct branch){path[k], (uint8_t)w->p[k], false, UINT32_MAX};
            path[k + 1] = (uint32_t)n_tree++;
        }
        (*tree)[path[w->n]].word = true;
    }
out:
    tern_free(path);
    return n_tree;
}

struct tern_gr_frag tern_gr_words(tern_grammar *g, const struct tern_gr_word *words, size_t n)
{
    struct branch *tree = NULL;
    struct tern_gr_word *sorted = NULL;
    struct tern_gr_frag out = {0, add_node(g, TERN_GR_JUMP, 0, UINT32_MAX, 0)};
    size_t cap = 0;
    if (n == 0 || !grow(g, &sorted, &cap, n, sizeof *sorted))
        return tern_gr_never(g);
    memcpy(sorted, words, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare_words);
    size_t n_tree = grow_tree(g, sorted, n, &tree);
    for (size_t i = n_tree; i-- > 0 && !tern_gr_failed(g);) {
        struct branch *b = &tree[i];
        if (b->word)
            b->first = b->first == UINT32_MAX ? out.last : add_node(g, TERN_GR_FORK, 0, out.last, b->first);
        if (i == 0)
            break;
        struct tern_gr_set set = {0};
        set.w[b->byte / 64] = (uint64_t)1 << (b->byte % 64);
        uint32_t one = add_node(g, TERN_GR_ONE, add_set(g, &set), b->first, 0);
        struct branch *up = &tree[b->parent];
        up->first = up->first == UINT32_MAX ? one : add_node(g, TERN_GR_FORK, 0, one, up->first);
    }
    out.first = tern_gr_failed(g) ? 0 : tree[0].first;
    tern_free(tree);
    tern_free(sorted);
    return out;
}
