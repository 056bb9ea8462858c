/* dev/weight.h - where weights come from, and what files that keep them say about them. */
#ifndef TERN_DEV_WEIGHT_H
#define TERN_DEV_WEIGHT_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "codec/codec.h"
#include "dev/handle.h"

/* Where a weight comes from: matrix i of its stack, and that matrix' name for messages.  Called by any thread. */
#define TERN_DEV_NAME 160
struct tern_dev_source {
    int (*matrix)(const void *user, int i, struct tern_weight_source *out, char name[TERN_DEV_NAME], tern_error *err);
    const void *user;
};

/* How operations use a weight. */
enum tern_dev_use {
    TERN_DEV_OUTPUTS, /* columns of its product are of use: queries, gate and up, what is added to the stream */
    TERN_DEV_WHOLE,   /* its product is small, and wanted whole at once */
    TERN_DEV_EXPERTS, /* a stack of experts */
    TERN_DEV_HEADS    /* a stack with a matrix for each head, or group of heads */
};

/* What a file that keeps a weight's bytes says about their form; alike forms take each other's bytes. */
struct tern_dev_about {
    size_t unit_bytes; /* of one panel, or what the device packs by */
    int codes, scales, zero, group, d_type, m_type;
    float unit;
    int8_t table[TERN_TABLE];
};

/* For devices that keep weights as the panels of kernel/pack.h: weight_plan but for the form, and weight_about. */
int tern_dev_panels_plan(struct tern_packed *out, const struct tern_weight_source *s, int64_t n, int64_t k, int stack,
                         tern_error *err);
void tern_dev_panels_about(const struct tern_packed *m, struct tern_dev_about *out);

#endif
