/* tests/support/speed_test.h - what the tests of measurements share, none of which depends on how fast anything is. */
#ifndef TERN_TEST_SPEED_TEST_H
#define TERN_TEST_SPEED_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tern/eval.h"

static inline void is_spread(tern_spread s)
{
    assert_true(s.min > 0 && s.min <= s.median && s.median <= s.max && isfinite(s.max));
}

/* Two of tern_progress_fn: the first stops what counts its calls in `user`, the second keeps there what is left. */
static inline int stop_at_third(void *user, int done, int total)
{
    int *calls = user;
    assert_true(done == ++*calls && done <= total);
    return done == 3;
}

static inline int count_left(void *user, int done, int total)
{
    int *left = user;
    *left = total - done;
    return 0;
}

#endif
