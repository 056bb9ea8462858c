/* Cards: which there are, whether they can serve, and the kernels on them. */
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "dev/cuda/cuda.h"

#define CARDS 16

/* One for each .cu file, in order of their first kernel; the build makes the objects. */
#define TERN_CUDA_KERNEL(file, name) extern const uint8_t tern_cuda_fatbin_##file[];
#include "dev/cuda/kernels.def"
#undef TERN_CUDA_KERNEL

static const struct {
    const uint8_t *fatbin;
    const char *name;
} kernels[] = {
#define TERN_CUDA_KERNEL(file, name) {tern_cuda_fatbin_##file, "tern_cuda_k_" #name},
#include "dev/cuda/kernels.def"
#undef TERN_CUDA_KERNEL
    {NULL, NULL},
};

const char *tern_cuda_kernel_name(enum tern_cuda_kernel k)
{
    return kernels[k].name;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tern_cuda_card cards[CARDS];
static bool opened[CARDS];

/* Files stay loaded: the process uses them until it ends. */
static int load_kernels(struct tern_cuda_card *c, tern_error *err)
{
    const uint8_t *loaded = NULL;
    tern_cu_module module = NULL;
    for (int i = 0; i < TERN_CUDA_KERNELS; i++) {
        tern_cu_result rc = 0;
        if (kernels[i].fatbin != loaded)
            rc = tern_cu.cuModuleLoadData(&module, kernels[i].fatbin);
        loaded = kernels[i].fatbin;
        if (rc)
            return tern_cu_error(rc, "loading this program's CUDA kernels", err);
        if ((rc = tern_cu.cuModuleGetFunction(&c->kernel[i], module, kernels[i].name)))
            return tern_cu_error(rc, kernels[i].name, err);
    }
    return 0;
}

/* The driver holds a stack for every thread that the card can have at once, 1 KiB each: 264 MiB of an H200.  So it is
 * as much as our largest kernel needs.  With less the driver would wait for the card at that kernel's first launch, and
 * cards that wait for each other would wait for ever. */
static int fit_stacks(const struct tern_cuda_card *c, bool shared, tern_error *err)
{
    int most = 0;
    size_t have = 0;
    for (int i = 0; i < TERN_CUDA_KERNELS; i++) {
        int bytes = 0;
        const tern_cu_result rc = tern_cu.cuFuncGetAttribute(&bytes, TERN_CU_FUNCTION_LOCAL, c->kernel[i]);
        if (rc)
            return tern_cu_error(rc, kernels[i].name, err);
        most = bytes > most ? bytes : most;
    }
    const size_t need = tern_round_up((size_t)most, 64);
    const bool enough = !tern_cu.cuCtxGetLimit(&have, TERN_CU_LIMIT_STACK) && have >= need;
    if (enough && shared) /* with other parts of the program, whose kernels may need more */
        return 0;
    const tern_cu_result rc = tern_cu.cuCtxSetLimit(TERN_CU_LIMIT_STACK, need);
    return enough ? 0 : tern_cu_error(rc, "fitting the card's stacks", err);
}

static int attribute(const struct tern_cuda_card *c, int which)
{
    int v = 0;
    return tern_cu.cuDeviceGetAttribute(&v, which, c->device) ? 0 : v;
}

static int look(struct tern_cuda_card *c, int number, tern_error *err)
{
    int rc = 0, n = 0;
    TERN_TRY(tern_cu_error(tern_cu.cuDeviceGetCount(&n), "counting the cards of this machine", err));
    if (!n)
        TERN_FAIL(err, TERN_ENOENT, "the NVIDIA driver sees no card");
    if (number >= n || number >= CARDS)
        TERN_FAIL(err, TERN_EINVAL, "there is no card cuda:%d: this machine has %d, from cuda:0 on", number, n);
    c->number = number;
    TERN_TRY(tern_cu_error(tern_cu.cuDeviceGet(&c->device, number), "finding the card", err));
    TERN_TRY(tern_cu_error(tern_cu.cuDeviceGetName(c->name, sizeof c->name, c->device), "finding the card", err));
    TERN_TRY(tern_cu_error(tern_cu.cuDeviceTotalMem_v2(&c->memory, c->device), "measuring the card", err));
    c->major = attribute(c, TERN_CU_MAJOR);
    c->minor = attribute(c, TERN_CU_MINOR);
    c->processors = attribute(c, TERN_CU_PROCESSORS);
    c->shared_most = attribute(c, TERN_CU_SHARED_OPTIN);
    if (c->major < 8)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s has compute capability %d.%d, and 8.0 is needed (cards from the A100 on)",
                  c->name, c->major, c->minor);
    if (!attribute(c, TERN_CU_MAPPABLE))
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s cannot map memory piece by piece, which the KV cache needs", c->name);
    c->granularity = (size_t)2 << 20;
out:
    return rc;
}

/* Kept free for what the driver takes by the way: graphs, kernels that are loaded late, stacks. */
static size_t margin(size_t left)
{
    const size_t part = left / 32, most = (size_t)1 << 30;
    return part < most ? part : most;
}

/* What others have taken of the card is theirs. */
static int measure(struct tern_cuda_card *c, tern_error *err)
{
    size_t left = 0, all = 0;
    int rc = tern_cu_error(tern_cu.cuMemGetInfo_v2(&left, &all), "measuring the card", err);
    c->free = left - margin(left);
    atomic_store_explicit(&c->limit, c->free, memory_order_relaxed);
    return rc;
}

bool tern_cuda_card_take(struct tern_cuda_card *c, size_t bytes)
{
    size_t used = atomic_load_explicit(&c->used, memory_order_relaxed);
    do {
        const size_t limit = atomic_load_explicit(&c->limit, memory_order_relaxed);
        if (bytes > limit || used > limit - bytes)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&c->used, &used, used + bytes, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

void tern_cuda_card_give(struct tern_cuda_card *c, size_t bytes)
{
    const size_t before = atomic_fetch_sub_explicit(&c->used, bytes, memory_order_relaxed);
    TERN_ASSERT(before >= bytes);
}

static int open_card(struct tern_cuda_card *c, int number, tern_error *err)
{
    int rc = 0, shared = 0;
    unsigned flags = 0;
    TERN_TRY(tern_cu_load(err));
    TERN_TRY(look(c, number, err));
    TERN_TRY(tern_cu_error(tern_cu.cuDevicePrimaryCtxGetState(c->device, &flags, &shared), "opening the card", err));
    TERN_TRY(tern_cu_error(tern_cu.cuDevicePrimaryCtxRetain(&c->context, c->device), "opening the card", err));
    TERN_TRY(tern_cu_error(tern_cu.cuCtxSetCurrent(c->context), "opening the card", err));
    TERN_TRY(load_kernels(c, err));
    TERN_TRY(fit_stacks(c, shared, err));
    TERN_TRY(measure(c, err));
out:
    if (rc < 0 && c->context)
        (void)tern_cu.cuDevicePrimaryCtxRelease_v2(c->device);
    return rc;
}

int tern_cuda_card(struct tern_cuda_card **out, int number, tern_error *err)
{
    int rc = 0;
    *out = NULL;
    if (number < 0 || number >= CARDS)
        return tern_err_set(err, TERN_EINVAL, "there is no card cuda:%d: cards are numbered 0 to %d", number,
                            CARDS - 1);
    (void)pthread_mutex_lock(&lock);
    if (!opened[number]) {
        memset(&cards[number], 0, sizeof cards[number]);
        rc = open_card(&cards[number], number, err);
        opened[number] = rc == 0;
    }
    (void)pthread_mutex_unlock(&lock);
    if (rc == 0)
        *out = &cards[number];
    return rc;
}
