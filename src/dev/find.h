/* dev/find.h - which devices there are, and which one is meant. */
#ifndef TERN_DEV_FIND_H
#define TERN_DEV_FIND_H

#include <stdbool.h>
#include "base/err.h"

struct tern_dev_ops;

/* What "auto" stands for. */
struct tern_dev_choice {
    const struct tern_dev_ops *first; /* the first of devs.def that is there */
    const struct tern_dev_ops
        *then;      /* it is a card, and this one serves what it refuses; NULL: nothing else is tried */
    tern_error why; /* about one before it that cannot be used; code 0: there is none */
};
void tern_dev_auto(struct tern_dev_choice *out);
/* The device called `name`; NULL or "auto": the first of tern_dev_auto.  TERN_EINVAL, listing them, for another name;
 * what probe says where it is not there. */
int tern_dev_find(const struct tern_dev_ops **out, const char *name, tern_error *err);
bool tern_dev_is_card(const struct tern_dev_ops *ops); /* its memory is its own, and limited */
const struct tern_dev_ops *tern_dev_host(void);        /* the first of devs.def that is no card */
const struct tern_dev_ops *tern_dev_at(int i);         /* NULL behind the last */
/* For tests: one more device, which "auto" tries first from now on.  Before anything is opened. */
void tern_dev_add_first(const struct tern_dev_ops *ops);
/* For tests of a device: what it refuses is refused, and computed by no other. */
void tern_dev_try_one(void);

#endif
