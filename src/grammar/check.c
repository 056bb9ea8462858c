/* A grammar that is complete: which nodes lead to an end, where the empty text will do, what bytes differ, and that no
 * rule calls itself before it has eaten a byte. */
#include "grammar/build.h"

#include <string.h>
#include "base/mem.h"

/* ---- jumps ------------------------------------------------------------------------------------------------------- */

/* Where a way into node n leads.  Ends of pieces that nobody used stay jumps to nowhere; no way leads there.  Jumps on
 * the way lead there at once from then on, since alternatives have long chains of them. */
static uint32_t skip_jumps(tern_grammar *g, uint32_t n)
{
    uint32_t end = n;
    for (uint32_t i = 0; g->nodes[end].op == TERN_GR_JUMP && g->nodes[end].a != UINT32_MAX && i < g->n_nodes; i++)
        end = g->nodes[end].a;
    while (n != end) {
        uint32_t next = g->nodes[n].a;
        g->nodes[n].a = end;
        n = next;
    }
    return end;
}

static void remove_jumps(tern_grammar *g)
{
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        struct tern_gr_node *n = &g->nodes[i];
        if (n->op == TERN_GR_RETURN || n->a == UINT32_MAX)
            continue;
        n->a = skip_jumps(g, n->a);
        if (n->op == TERN_GR_FORK)
            n->b = skip_jumps(g, n->b);
    }
    for (uint32_t i = 0; i < g->n_rules; i++)
        g->rules[i] = skip_jumps(g, g->rules[i]);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

/* The nodes that a node's flags depend on; their number. */
static int sources(const tern_grammar *g, uint32_t i, uint32_t out[2])
{
    const struct tern_gr_node *n = &g->nodes[i];
    if (n->op == TERN_GR_RETURN || n->op == TERN_GR_JUMP)
        return 0;
    out[0] = n->a;
    if (n->op == TERN_GR_ONE || n->op == TERN_GR_MARK)
        return 1;
    out[1] = n->op == TERN_GR_FORK ? n->b : g->rules[n->x];
    return 2;
}

static uint8_t flags_of(const tern_grammar *g, uint32_t i)
{
    const struct tern_gr_node *n = &g->nodes[i];
    const struct tern_gr_set *s;
    uint8_t body;
    switch ((enum tern_gr_op)n->op) {
    case TERN_GR_ONE:
        s = &g->sets[n->x];
        return s->w[0] | s->w[1] | s->w[2] | s->w[3] ? g->flags[n->a] & TERN_GR_ENDS : 0;
    case TERN_GR_MARK:
        return g->flags[n->a] & TERN_GR_ENDS;
    case TERN_GR_FORK:
        return g->flags[n->a] | g->flags[n->b];
    case TERN_GR_CALL:
        return g->flags[n->a] & g->flags[g->rules[n->x]];
    case TERN_GR_REPEAT:
        body = g->counts[n->b].min == 0 ? TERN_GR_ENDS | TERN_GR_EMPTY : g->flags[g->rules[n->x]];
        return g->flags[n->a] & body;
    case TERN_GR_RETURN:
        return TERN_GR_ENDS | TERN_GR_EMPTY;
    default:
        return 0;
    }
}

/* Flags go from nodes to those that depend on them, until nothing changes. */
static int spread_flags(tern_grammar *g, tern_error *err)
{
    int rc = 0;
    uint32_t *from = NULL, *users = NULL, *work = NULL, n_work = 0, s[2];
    uint8_t *waits = NULL;
    TERN_TRY(tern_alloc(&from, (size_t)g->n_nodes + 2, sizeof *from, err));
    TERN_TRY(tern_alloc(&users, (size_t)g->n_nodes * 2 + 1, sizeof *users, err));
    TERN_TRY(tern_alloc(&work, (size_t)g->n_nodes + 1, sizeof *work, err));
    TERN_TRY(tern_alloc(&waits, (size_t)g->n_nodes + 1, sizeof *waits, err));
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (int k = sources(g, i, s); k-- > 0;)
            from[s[k] + 2]++;
    for (uint32_t i = 2; i < g->n_nodes + 2; i++)
        from[i] += from[i - 1];
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (int k = sources(g, i, s); k-- > 0;)
            users[from[s[k] + 1]++] = i;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == TERN_GR_RETURN) {
            work[n_work++] = i;
            waits[i] = 1;
        }
    while (n_work) {
        uint32_t i = work[--n_work];
        uint8_t now = flags_of(g, i);
        waits[i] = 0;
        if (now == g->flags[i])
            continue;
        g->flags[i] = now;
        for (uint32_t k = from[i]; k < from[i + 1]; k++)
            if (!waits[users[k]]) {
                waits[users[k]] = 1;
                work[n_work++] = users[k];
            }
    }
out:
    tern_free(from);
    tern_free(users);
    tern_free(work);
    tern_free(waits);
    return rc;
}

/* What may be empty may be left out: so no turn of a repetition need be empty. */
static void ease_repeats(tern_grammar *g)
{
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct tern_gr_node *n = &g->nodes[i];
        if (n->op == TERN_GR_REPEAT && g->flags[g->rules[n->x]] & TERN_GR_EMPTY)
            g->counts[n->b].min = 0;
    }
}

/* ---- left recursion ---------------------------------------------------------------------------------------------- */

/* The nodes that come into play at node i before a byte is eaten. */
static int left_of(const tern_grammar *g, uint32_t i, uint32_t out[2])
{
    const struct tern_gr_node *n = &g->nodes[i];
    if (n->op == TERN_GR_FORK) {
        out[0] = n->a;
        out[1] = n->b;
        return 2;
    }
    if (n->op != TERN_GR_CALL && n->op != TERN_GR_REPEAT)
        return 0;
    out[0] = g->rules[n->x];
    out[1] = n->a;
    bool past = g->flags[out[0]] & TERN_GR_EMPTY || (n->op == TERN_GR_REPEAT && g->counts[n->b].min == 0);
    return past ? 2 : 1;
}

static const char *name_of(const tern_grammar *g, uint32_t first)
{
    const char *name;
    json_t *r;
    json_object_foreach(g->names, name, r)
    {
        if (g->rules[json_integer_value(json_array_get(r, 0))] == first)
            return name;
    }
    return NULL;
}

static int refuse_left_recursion(tern_grammar *g, tern_error *err)
{
    enum { NEW, OPEN, DONE };
    int rc = 0;
    uint8_t *color = NULL, *turn = NULL;
    uint32_t *path = NULL, n, next[2];
    TERN_TRY(tern_alloc(&color, g->n_nodes, 1, err));
    TERN_TRY(tern_alloc(&turn, g->n_nodes, 1, err));
    TERN_TRY(tern_alloc(&path, (size_t)g->n_nodes + 1, sizeof *path, err));
    for (uint32_t r = 0; r < g->n_rules; r++) {
        if (color[g->rules[r]] != NEW)
            continue;
        n = 0;
        path[n++] = g->rules[r];
        color[g->rules[r]] = OPEN;
        while (n) {
            uint32_t i = path[n - 1];
            if (turn[i] == left_of(g, i, next)) {
                color[i] = DONE;
                n--;
                continue;
            }
            uint32_t to = next[turn[i]++];
            if (color[to] == OPEN) {
                while (n && path[n - 1] != to && !name_of(g, path[n - 1]))
                    n--;
                const char *name = n ? name_of(g, path[n - 1]) : NULL;
                TERN_FAIL(err, TERN_EINVAL, "%s%.60s%s begins with itself (left recursion), which has no first byte",
                          name ? "rule \"" : "a rule", name ? name : "", name ? "\"" : "");
            }
            if (color[to] == NEW) {
                color[to] = OPEN;
                path[n++] = to;
            }
        }
    }
out:
    tern_free(color);
    tern_free(turn);
    tern_free(path);
    return rc;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static void find_classes(tern_grammar *g)
{
    g->n_classes = 1;
    for (uint32_t i = 0; i < g->n_sets && g->n_classes < 256; i++) {
        int16_t split[256]; /* what becomes of the members of a class that are in the set */
        bool stays[256] = {false};
        memset(split, -1, sizeof split);
        for (int c = 0; c < 256; c++)
            stays[g->class_of[c]] |= !(g->sets[i].w[c / 64] >> (c % 64) & 1);
        for (int c = 0; c < 256; c++) {
            uint8_t is = g->class_of[c];
            if (!(g->sets[i].w[c / 64] >> (c % 64) & 1) || !stays[is])
                continue;
            if (split[is] < 0)
                split[is] = (int16_t)g->n_classes++;
            g->class_of[c] = (uint8_t)split[is];
        }
    }
    for (int c = 255; c >= 0; c--)
        g->byte_of[g->class_of[c]] = (uint8_t)c;
}

static int check(tern_grammar *g, tern_error *err)
{
    int rc = 0;
    remove_jumps(g);
    TERN_TRY(tern_alloc(&g->flags, g->n_nodes, 1, err));
    TERN_TRY(spread_flags(g, err));
    ease_repeats(g);
    TERN_TRY(refuse_left_recursion(g, err));
    if (!(g->flags[g->rules[g->start]] & TERN_GR_ENDS))
        TERN_FAIL(err, TERN_EINVAL, "no text can satisfy it%s%s%s", *g->why ? " (" : "", g->why, *g->why ? ")" : "");
    find_classes(g);
out:
    return rc;
}

void tern_gr_check(tern_grammar *g)
{
    if (g->rc == 0)
        g->rc = check(g, &g->err);
}
