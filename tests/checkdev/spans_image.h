/* What a sequence has in a cache, as bytes that do not hang on where they lie, nor on what lay there before: for
 * checks of devices.  Of one KV head. */
#ifndef TERN_CHECKDEV_SPANS_IMAGE_H
#define TERN_CHECKDEV_SPANS_IMAGE_H

#include "checkdev.h"
#include "kv/kv.h"

enum what { PAGE, TILE, FIRST, STATE };

/* Of a span a closed page, the rows of a raw tile that are there, keys [dim][rows] and then values [rows][dim], or
 * first tokens; of a layer its state. */
struct piece {
    enum what what;
    int span, page, rows;
    size_t at, n;
};

struct image {
    uint8_t *p;
    struct piece *pieces;
    size_t n, cap, most;
    int n_pieces;
};

static inline void image_ok(int rc, const tern_error *err)
{
    if (rc < 0) {
        (void)fprintf(stderr, "%s\n", err->msg);
        exit(1);
    }
}

static inline uint8_t *add_piece(struct image *im, enum what what, int span, int page, int rows, size_t n)
{
    tern_error err;
    image_ok(tern_grow(&im->p, &im->cap, im->n + n, 1, &err), &err);
    image_ok(tern_grow(&im->pieces, &im->most, (size_t)im->n_pieces + 1, sizeof *im->pieces, &err), &err);
    im->pieces[im->n_pieces++] = (struct piece){what, span, page, rows, im->n, n};
    im->n += n;
    return im->p + im->n - n;
}

static inline void clear_image(struct image *im)
{
    tern_free(im->p);
    tern_free(im->pieces);
    *im = (struct image){0};
}

/* The rows of a raw tile, sizes in elements of 2 or 4 bytes. */
static inline void add_tile(struct image *im, const struct tern_kv_layer *y, const uint8_t *tile, int span, int page,
                            int rows)
{
    const size_t key = y->k.raw32 ? 4 : 2, value = y->v.raw32 ? 4 : 2, n = (size_t)rows;
    uint8_t *to = add_piece(im, TILE, span, page, rows, n * ((size_t)y->k.dim * key + (size_t)y->v.dim * value));
    for (int d = 0; d < y->k.dim; d++, to += n * key)
        memcpy(to, tile + (size_t)d * TERN_PAGE * key, n * key);
    memcpy(to, tile + y->tile_v_off, n * (size_t)y->v.dim * value);
}

static inline void add_span(const struct tern_kv_cache *c, const struct tern_kv_seq *s, struct image *im, int span)
{
    const struct tern_kv_layout *l = c->layout;
    const struct tern_kv_layer *y = &l->layers[span];
    const int group = l->group_of[span];
    const struct tern_kv_group *g = &l->groups[group];
    const struct tern_kv_table *table = &s->table[group];
    const int closed = tern_kv_closed(g, s->n_tokens), open = tern_kv_open_rows(g, s->n_tokens);
    uint8_t *tile = checkdev_get(y->tile_bytes, 1);
    for (int i = 0; i < table->n; i++)
        tern_kv_block_read(&c->pool[group], table->pages[i], y->layer_off,
                           add_piece(im, PAGE, span, table->first + i, TERN_PAGE, y->head_bytes), y->head_bytes);
    for (int page = s->raw_from[group]; page < closed + (open > 0); page++) {
        tern_kv_block_read(&c->tiles, s->tile, y->tile_layer_off + (size_t)(page % y->ring) * y->tile_bytes, tile,
                           y->tile_bytes);
        add_tile(im, y, tile, span, page, page < closed ? TERN_PAGE : open);
    }
    const size_t first = (size_t)y->first * (size_t)y->v.dim * (y->v.raw32 ? 4 : 2);
    if (y->first && s->sink != TERN_NO_BLOCK)
        tern_kv_block_read(&c->sinks, s->sink, y->sink_layer_off + y->sink_v_off,
                           add_piece(im, FIRST, span, 0, y->first, first), first);
    tern_free(tile);
}

static inline struct image image_of(const struct tern_kv_cache *c, const struct tern_kv_seq *s)
{
    struct image im = {0};
    const struct tern_kv_layout *l = c->layout;
    for (int i = 0; i < l->n_spans; i++)
        add_span(c, s, &im, i);
    for (int i = 0; i < l->n_layers; i++) {
        const size_t n = tern_kv_layer_state(l, i);
        if (n)
            tern_kv_block_read(&c->states, s->state, l->state_off[i], add_piece(&im, STATE, i, 0, 0, n), n);
    }
    return im;
}

static inline const struct piece *find_piece(const struct image *im, const struct piece *like)
{
    for (int i = 0; i < im->n_pieces; i++) {
        const struct piece *p = &im->pieces[i];
        if (p->what == like->what && p->span == like->span && p->page == like->page)
            return p;
    }
    return NULL;
}

/* Row `row` of a piece of a span of rows or keys, all in f32. */
static inline void row_in(const struct tern_kv_layer *y, const struct image *im, const struct piece *p, int row,
                          float *x)
{
    const float *from = (const float *)(const void *)(im->p + p->at);
    const size_t n = (size_t)p->rows, at = (size_t)row;
    if (p->what == PAGE)
        from += (y->v.dim ? y->v_off : y->k_off) / sizeof *from;
    for (int d = 0; d < y->k.dim + y->v.dim; d++)
        x[d] = from[y->v.dim ? at * (size_t)y->v.dim + (size_t)d : (size_t)d * n + at];
}

#endif
