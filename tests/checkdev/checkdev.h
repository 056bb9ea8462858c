/* checkdev: every operation of a device against the CPU's, over random shapes; a line for each case.
 *
 * Numbers lie in memory of both devices at once (struct both).  An operation runs on each; what it wrote is compared
 * by ||a - b|| / ||b||, b being the CPU's, and by the largest difference in units of b's mean square root. */
#ifndef TERN_CHECKDEV_H
#define TERN_CHECKDEV_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/rng.h"
#include "dev/dev.h"
#include "kernel/delta.h"

enum { OTHER, CPU, DEVICES };

struct checkdev {
    struct tern_dev *d[DEVICES];
    struct tern_pool *pool;
    struct tern_rng rng;
    const char *filter;
    int cases, failures;
};

/* Memory of n numbers on both devices, all random in [-1, 1) or as given. */
struct both {
    struct tern_dev_mem *m[DEVICES];
    size_t n;
};

void check_rows(struct checkdev *c);
void check_products(struct checkdev *c);
void check_experts(struct checkdev *c);
void check_delta(struct checkdev *c);
void check_hyper(struct checkdev *c);
void check_spans(struct checkdev *c);
void check_best(struct checkdev *c);
void check_speed(struct checkdev *c);
void check_picks(struct checkdev *c);
void check_chain(struct checkdev *c);
void check_cards(struct checkdev *c);

void *checkdev_get(size_t n, size_t size);
float checkdev_noise(struct checkdev *c);
/* A plain matrix [n, k] of random bytes, in which every 16-bit float is finite and of some size; they are the caller's.
 * And a source (struct tern_dev_source) of nothing but that. */
uint8_t *checkdev_source(struct checkdev *c, struct tern_weight_source *out, int type, int n, int k);
int checkdev_source_of(const void *user, int i, struct tern_weight_source *out, char name[TERN_DEV_NAME],
                       tern_error *err);
struct both checkdev_random(struct checkdev *c, size_t n);
struct both checkdev_bytes(struct checkdev *c, const void *host, size_t bytes);
void checkdev_free(struct checkdev *c, struct both *b);
/* What `which` holds. */
void checkdev_out(struct checkdev *c, const struct both *b, int which, void *to, size_t bytes);
/* Prepares both devices anew. */
void checkdev_prepare(struct checkdev *c, const struct tern_dev_limits *l);
/* Are cases of this name wanted? */
bool checkdev_wants(const struct checkdev *c, const char *name);
/* Compares columns [0, width) of rows of both; one line. */
void checkdev_compare(struct checkdev *c, const char *name, const char *about, const struct both *b, size_t stride,
                      int width, int n_rows, double most);
/* A step on each device in turn, i: of n rows, whose tokens and positions are `rows`. */
void checkdev_begin(struct checkdev *c, int i, const struct tern_row *rows, int n);
#define CHECKDEV_EACH(c, i, rows, n)                              \
    for (int i = (checkdev_begin(c, 0, rows, n), 0); i < DEVICES; \
         (c)->d[i]->ops->end((c)->d[i]), i++, i < DEVICES ? checkdev_begin(c, i, rows, n) : (void)0)
void checkdev_line(struct checkdev *c, const char *name, const char *about, double error, double most);

static inline struct tern_dev_rows rows_of(const struct both *b, int which, size_t stride, int width)
{
    return (struct tern_dev_rows){b->m[which], 0, stride, width};
}

static inline struct tern_dev_vec vec_of(const struct both *b, int which)
{
    return (struct tern_dev_vec){b->m[which], 0};
}

static inline size_t stride_of(int width)
{
    return tern_round_up((size_t)width, 16);
}

#endif
