/* Finding the driver. */
#include "dev/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tern_cu tern_cu;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static tern_error why; /* code 0: it is there */

#define OLDEST 12000 /* 12.0, as cuDriverGetVersion says it */

static void *open_library(void)
{
    /* A test's own driver, say; an empty name hides the one that is there. */
    const char *name = getenv("TERN_CUDA_DRIVER");
    if (name)
        return *name ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : NULL;
    return dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
}

static int find_functions(void *library)
{
#define FIND(name, args)                                                                                           \
    {                                                                                                              \
        void *f = dlsym(library, #name);                                                                           \
        if (!f)                                                                                                    \
            return tern_err_set(&why, TERN_EUNSUPPORTED,                                                           \
                                "the NVIDIA driver has no " #name ": a driver of version 525 or later is needed"); \
        memcpy(&tern_cu.name, &f, sizeof f);                                                                       \
    }
    TERN_CU_LIST(FIND)
#undef FIND
    return 0;
}

static void load(void)
{
    int version = 0;
    void *library = open_library();
    if (!library) {
        (void)tern_err_set(&why, TERN_ENOENT, "no NVIDIA driver was found (libcuda.so.1)");
        return;
    }
    if (find_functions(library) < 0)
        return;
    const tern_cu_result rc = tern_cu.cuInit(0);
    if (rc == TERN_CU_NO_CARD)
        (void)tern_err_set(&why, TERN_ENOENT, "the NVIDIA driver sees no card");
    else if (rc)
        (void)tern_cu_error(rc, "starting the NVIDIA driver", &why);
    else if (tern_cu.cuDriverGetVersion(&version) || version < OLDEST)
        (void)tern_err_set(&why, TERN_EUNSUPPORTED, "the NVIDIA driver is of CUDA %d.%d, and 12.0 is needed",
                           version / 1000, version % 1000 / 10);
}

int tern_cu_load(tern_error *err)
{
    (void)pthread_once(&once, load);
    if (why.code && err)
        *err = why;
    return why.code;
}

int tern_cu_error(tern_cu_result rc, const char *doing, tern_error *err)
{
    const char *text = NULL;
    if (!rc)
        return 0;
    if (!tern_cu.cuGetErrorString || tern_cu.cuGetErrorString(rc, &text) || !text)
        text = "unknown error";
    return tern_err_set(err, rc == TERN_CU_OUT_OF_MEMORY ? TERN_ENOMEM : TERN_EIO, "%s failed: %s (CUDA error %d)",
                        doing, text, rc);
}
