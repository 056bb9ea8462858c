/* dev/weight.h - where weights come from, and what files that keep them say about them. */
#ifndef TERN_DEV_WEIGHT_H
#define TERN_DEV_WEIGHT_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "codec/codec.h"

/* Where a weight comes from: matrix i of its stack, and that matrix' name for messages.  Called by any thread. */
#define TERN_DEV_NAME 160
struct tern_dev_source {
    int (*matrix)(const void *user, int i, struct tern_weight_source *out, char name[TERN_DEV_NAME], tern_error *err);
    const void *user;
};

/* What a file that keeps a weight's bytes says about their form; alike forms take each other's bytes. */
struct tern_dev_about {
    size_t unit_bytes; /* of one panel, or what the device packs by */
    int codes, scales, zero, group, d_type, m_type;
    float unit;
    int8_t table[TERN_TABLE];
};

#endif
