#include "text/jinja/jinja.h"

#include <stdlib.h>
#include <string.h>

enum { SMALL_CHUNK = 64 << 10, LARGE_BLOCK = 16 << 10 };

/* `size` counts the bytes behind the header.  The header keeps the payload aligned to 16 bytes. */
struct jchunk {
    struct jchunk *next, *prev;
    size_t size;
    size_t pad;
};

static char *payload(struct jchunk *c)
{
    return (char *)(c + 1);
}

static void link_chunk(struct jarena *a, struct jchunk *c)
{
    c->prev = NULL;
    c->next = a->chunks;
    if (c->next)
        c->next->prev = c;
    a->chunks = c;
}

static struct jchunk *new_chunk(struct jarena *a, size_t n)
{
    if (n > a->budget - a->used)
        return NULL;
    struct jchunk *c = malloc(sizeof *c + n);
    a->no_memory = !c;
    if (!c)
        return NULL;
    c->size = n;
    a->used += n;
    link_chunk(a, c);
    return c;
}

void *tern_jarena_alloc(struct jarena *a, size_t n)
{
    if (n > a->budget)
        return NULL;
    n = n ? (n + 15) & ~(size_t)15 : 16;
    if (n >= LARGE_BLOCK) { /* its own chunk, so that regrow can hand it to realloc */
        struct jchunk *c = new_chunk(a, n);
        return c ? payload(c) : NULL;
    }
    if ((size_t)(a->end - a->at) < n) {
        struct jchunk *c = new_chunk(a, SMALL_CHUNK);
        if (!c)
            return NULL;
        a->at = payload(c);
        a->end = a->at + SMALL_CHUNK;
    }
    void *p = a->at;
    a->at += n;
    return p;
}

void *tern_jarena_regrow(struct jarena *a, void *old, size_t old_n, size_t n)
{
    size_t rounded = (old_n + 15) & ~(size_t)15;
    if (!old || rounded < LARGE_BLOCK || n <= old_n) {
        void *p = tern_jarena_alloc(a, n);
        if (p && old)
            memcpy(p, old, old_n < n ? old_n : n);
        return p;
    }
    struct jchunk *c = (struct jchunk *)old - 1;
    size_t size = (n + 15) & ~(size_t)15;
    if (n > a->budget || size - c->size > a->budget - a->used)
        return NULL;
    if (c->prev)
        c->prev->next = c->next;
    else
        a->chunks = c->next;
    if (c->next)
        c->next->prev = c->prev;
    struct jchunk *grown = realloc(c, sizeof *c + size);
    a->no_memory = !grown;
    if (!grown) {
        link_chunk(a, c);
        return NULL;
    }
    a->used += size - grown->size;
    grown->size = size;
    link_chunk(a, grown);
    return payload(grown);
}

void tern_jarena_clear(struct jarena *a)
{
    for (struct jchunk *c = a->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    *a = (struct jarena){.budget = a->budget};
}
