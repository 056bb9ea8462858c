/* Characters as bytes of UTF-8, and as they stand in JSON. */
#include "grammar/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

#define LAST 0x10FFFF

void tern_gr_chars_add(tern_grammar *g, struct tern_gr_chars *c, uint32_t from, uint32_t to)
{
    if (g->rc == 0)
        g->rc = tern_grow(&c->v, &c->cap, c->n + 1, sizeof *c->v, &g->err);
    if (g->rc == 0 && from <= to)
        c->v[c->n++] = (struct tern_gr_range){from, to < LAST ? to : LAST};
}

void tern_gr_chars_clear(struct tern_gr_chars *c)
{
    tern_free(c->v);
    *c = (struct tern_gr_chars){0};
}

static int compare(const void *a, const void *b)
{
    const struct tern_gr_range *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

static void sort(struct tern_gr_chars *c)
{
    size_t n = 0;
    if (c->n == 0)
        return;
    qsort(c->v, c->n, sizeof *c->v, compare);
    for (size_t i = 1; i < c->n; i++)
        if (c->v[i].from <= c->v[n].to + 1)
            c->v[n].to = c->v[i].to > c->v[n].to ? c->v[i].to : c->v[n].to;
        else
            c->v[++n] = c->v[i];
    c->n = n + 1;
}

void tern_gr_chars_not(tern_grammar *g, struct tern_gr_chars *c)
{
    struct tern_gr_chars out = {0};
    uint32_t from = 0;
    sort(c);
    for (size_t i = 0; i < c->n; i++) {
        if (c->v[i].from > from)
            tern_gr_chars_add(g, &out, from, c->v[i].from - 1);
        from = c->v[i].to + 1;
    }
    if (from <= LAST)
        tern_gr_chars_add(g, &out, from, LAST);
    tern_gr_chars_clear(c);
    *c = out;
}

/* ---- UTF-8 ------------------------------------------------------------------------------------------------------- */

static int encode(uint32_t cp, uint8_t out[4])
{
    int n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const uint8_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (int i = n - 1; i > 0; i--, cp >>= 6)
        out[i] = (uint8_t)(0x80 | (cp & 0x3F));
    out[0] = (uint8_t)(lead[n] | cp);
    return n;
}

static void either(tern_grammar *g, struct tern_gr_frag *all, bool *any, struct tern_gr_frag f)
{
    *all = *any ? tern_gr_or(g, *all, f) : f;
    *any = true;
}

/* Code points from..to, whose encodings are equally long, as sequences of ranges of bytes: cut so that all bytes behind
 * the first that differs run through all their values. */
static void add_multibyte(tern_grammar *g, uint32_t from, uint32_t to, struct tern_gr_frag *all, bool *any)
{
    while (from <= to && !tern_gr_failed(g)) {
        uint8_t a[4] = {0}, b[4] = {0};
        uint32_t end = to;
        for (int bits = 18; bits > 0; bits -= 6) {
            uint32_t low = ((uint32_t)1 << bits) - 1;
            if ((from & ~low) == (end & ~low))
                continue;
            if (from & low)
                end = from | low;
            else if ((end & low) != low)
                end = (end & ~low) - 1;
        }
        int n = encode(from, a);
        (void)encode(end, b);
        struct tern_gr_frag f = tern_gr_span(g, a[0], b[0]);
        for (int i = 1; i < n; i++)
            f = tern_gr_then(g, f, tern_gr_span(g, a[i], b[i]));
        either(g, all, any, f);
        from = end + 1;
    }
}

/* The bytes 0..7F of c and everything else of it. */
static void add_all(tern_grammar *g, struct tern_gr_chars *c, const struct tern_gr_set *without,
                    struct tern_gr_frag *all, bool *any)
{
    static const uint32_t cuts[][2] = {{0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, LAST}};
    struct tern_gr_set ascii = {0};
    sort(c);
    for (size_t i = 0; i < c->n; i++)
        for (uint32_t cp = c->v[i].from; cp <= c->v[i].to && cp < 0x80; cp++)
            ascii.w[cp / 64] |= (uint64_t)1 << (cp % 64);
    ascii.w[0] &= ~without->w[0];
    ascii.w[1] &= ~without->w[1];
    if (ascii.w[0] | ascii.w[1])
        either(g, all, any, tern_gr_set(g, &ascii));
    for (size_t i = 0; i < c->n; i++)
        for (size_t k = 0; k < 4; k++) {
            uint32_t from = c->v[i].from > cuts[k][0] ? c->v[i].from : cuts[k][0];
            uint32_t to = c->v[i].to < cuts[k][1] ? c->v[i].to : cuts[k][1];
            if (from <= to)
                add_multibyte(g, from, to, all, any);
        }
}

struct tern_gr_frag tern_gr_char(tern_grammar *g, struct tern_gr_chars *c)
{
    struct tern_gr_frag all = {0};
    bool any = false;
    add_all(g, c, &(struct tern_gr_set){0}, &all, &any);
    return any ? all : tern_gr_never(g);
}

static bool has(const struct tern_gr_chars *c, uint32_t cp)
{
    for (size_t i = 0; i < c->n; i++)
        if (cp >= c->v[i].from && cp <= c->v[i].to)
            return true;
    return false;
}

struct tern_gr_frag tern_gr_char_quoted(tern_grammar *g, struct tern_gr_chars *c)
{
    static const char short_ones[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    struct tern_gr_set without = {{0xFFFFFFFFu | (uint64_t)1 << '"', (uint64_t)1 << ('\\' - 64), 0, 0}};
    struct tern_gr_frag all = {0};
    bool any = false;
    add_all(g, c, &without, &all, &any);
    for (uint32_t cp = 1; cp < 0x80; cp++) { /* NUL has no place in a text here */
        char text[8];
        const char *s = strchr(short_ones, (int)cp);
        if (!(without.w[cp / 64] >> (cp % 64) & 1) || !has(c, cp))
            continue;
        if (s)
            (void)snprintf(text, sizeof text, "\\%c", s[1]);
        else
            (void)snprintf(text, sizeof text, "\\u%04x", (unsigned)cp);
        either(g, &all, &any, tern_gr_text(g, text));
    }
    return any ? all : tern_gr_never(g);
}
