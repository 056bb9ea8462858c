/* tests/support/served.h - models that need operations which not every device has: tests leave them out there. */
#ifndef TERN_TEST_SERVED_H
#define TERN_TEST_SERVED_H

#include <stdbool.h>
#include <string.h>
#include "dev/dev.h"

/* Does the device under test compute the model of this name?  Others are refused when they are opened. */
static inline bool served(const char *model)
{
    return (strncmp(model, "deepseek4", 9) != 0 && strncmp(model, "deepseek_v4", 11) != 0) ||
           tern_dev_at(0)->hyper_read != NULL;
}

#endif
