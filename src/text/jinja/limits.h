/* text/jinja/limits.h - the limits of templates, and how failures are passed on. */
#ifndef TERN_TEXT_JINJA_LIMITS_H
#define TERN_TEXT_JINJA_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/err.h"
#include "text/text.h"

#define JINJA_MAX_SOURCE      ((size_t)1 << 20) /* bytes of template text */
#define JINJA_MAX_NEST        300       /* grammar rules inside each other in the parser; a bracket costs three */
#define JINJA_MAX_TREE        400       /* height of an expression tree: a + b + c + ... grows to the left */
#define JINJA_MAX_DEPTH       2000      /* nested evaluations at run time, macro calls included */
#define JINJA_MAX_VALUE_DEPTH 200       /* lists in lists when printed, compared or dumped */
#define JINJA_MAX_STEPS       10000000u /* see above; about a second */
#define JINJA_MAX_TEXT        ((size_t)64 << 20)  /* bytes of output, and of any one string */
#define JINJA_MAX_MEMORY      ((size_t)256 << 20) /* bytes of values alive in one render */
#define JINJA_MAX_RANGE       100000              /* items of one range(): the figure of Jinja's sandbox */
#define JINJA_MAX_NAMES       1024                /* different variable names in one template */
#define JINJA_MAX_JSON        ((size_t)1 << 20) /* bytes of text given to from_json: the parser needs 70 times as much */
#define JINJA_MAX_KWARGS      256               /* keyword arguments of one call */

#define JTRY(expr)          \
    do {                    \
        int jtry_ = (expr); \
        if (jtry_ < 0)      \
            return jtry_;   \
    } while (0)

#endif
