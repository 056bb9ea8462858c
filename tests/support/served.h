/* tests/support/served.h - models that need operations which not every device has: tests leave them out there. */
#ifndef TERN_TEST_SERVED_H
#define TERN_TEST_SERVED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "dev/dev.h"

/* Does the device under test compute the model of this name?  Others are refused when they are opened. */
static inline bool served(const char *model)
{
    return (strncmp(model, "deepseek4", 9) != 0 && strncmp(model, "deepseek_v4", 11) != 0) ||
           tern_dev_at(0)->hyper_read != NULL;
}

/* The same, and says so where it does not. */
static inline bool served_or_said(const char *model)
{
    const bool yes = served(model);
    if (!yes)
        print_message("left out: the device %s does not compute %s\n", tern_dev_at(0)->name, model);
    return yes;
}

/* A plan that keeps first tokens beside a window: a device without `firsts` refuses it. */
static inline bool served_firsts(void)
{
    if (!tern_dev_at(0)->firsts)
        print_message("left out: the device %s knows no first tokens beside a window\n", tern_dev_at(0)->name);
    return tern_dev_at(0)->firsts;
}

/* A test that takes sequences out of plans with codes. */
static inline void needs_decodes(void)
{
    if (tern_dev_at(0)->decodes)
        return;
    print_message("skipped: the device %s reads no codes back\n", tern_dev_at(0)->name);
    skip();
}

/* A test that forks: a driver that the parent opened is of no use to the child. */
static inline void needs_fork(void)
{
    if (!tern_dev_at(0)->probe)
        return;
    print_message("skipped: the driver of the device %s does not survive a fork\n", tern_dev_at(0)->name);
    skip();
}

#endif
