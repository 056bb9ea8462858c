/* A driver for machines without one: cards that hold memory, copy it, and compute nothing.  FAKE_CUDA in the
 * environment says what is wrong with it, in words with commas between: none: no card   hidden: no card, said at the
 * start   old: one of compute capability 7.5   ancient: the driver itself is   locked: the card cannot be opened
 * small: 64 MiB of memory   lost: every launch fails, and all after   nine: compute capability 9.0, 512 MiB (with peers
 * more)   FAKE_FULL=n: the nth time that memory is taken there is none   FAKE_PROCESSORS=n: each card has n
 * FAKE_SHARED=n: a block of threads may have n KiB of shared memory   Memory is the host's, so that its address is the
 * card's.
 *
 * With FAKE_RUNS kernels run on the processor (emulate/), as on a card of compute capability 8.0, or of 9.0; and with
 * FAKE_CUDA=peers on cards that reach each other, each of which has a thread. */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "dev/cuda/driver.h"
#include "emulate/streams.h"

#define FAKE                   __attribute__((visibility("default")))
#define TABLE_ONLY(name, args) FAKE tern_cu_result name args;
TERN_CU_LIST(TABLE_ONLY)
#undef TABLE_ONLY

#ifdef FAKE_RUNS
extern void *emulate_find(const char *name);
extern void emulate_launch(void *kernel, const void *args, const unsigned grid[3], unsigned threads);
#define MAJOR 8
#define RUNS  true
#else
#define MAJOR 9
#define RUNS  false
#endif

enum { OK, INVALID = 1, FULL = 2, LOST = 700 };

static size_t used;
static bool lost;

/* Is it one of the words there? */
static bool is(const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = getenv("FAKE_CUDA"); at; at = strchr(at, ','), at += at != NULL)
        if (strncmp(at, word, n) == 0 && (at[n] == 0 || at[n] == ','))
            return true;
    return false;
}

/* Does each card do what is queued by itself? */
static bool apart(void)
{
    return RUNS && is("peers");
}

static size_t room(void)
{
    return (is("small") ? (size_t)64 : is("nine") && !apart() ? (size_t)640 : (size_t)4096) << 20;
}

static tern_cu_result now(void)
{
    return lost ? LOST : OK;
}

static void *at(tern_cu_address p)
{
    return (void *)(uintptr_t)p;
}

/* from NULL: bytes b. */
static tern_cu_result copy(tern_cu_stream s, void *to, const void *from, int b, size_t n)
{
    if (lost)
        return LOST;
    if (apart()) {
        stream_copy((struct stream *)s, to, from, b, n);
        return OK;
    }
    (void)s;
    if (from)
        memcpy(to, from, n);
    else
        memset(to, b, n);
    return OK;
}

/* How far a queue is to come. */
struct event {
    struct stream *s;
    unsigned long until;
};

tern_cu_result cuInit(unsigned flags)
{
    return is("hidden") ? TERN_CU_NO_CARD : flags ? INVALID : OK;
}
tern_cu_result cuDriverGetVersion(int *v)
{
    *v = is("ancient") ? 11040 : 13000;
    return OK;
}
tern_cu_result cuGetErrorString(tern_cu_result rc, const char **text)
{
    *text = rc == FULL ? "out of memory" : rc == LOST ? "an illegal memory access was encountered" : "invalid argument";
    return OK;
}
tern_cu_result cuDeviceGetCount(int *n)
{
    *n = is("none") ? 0 : apart() ? 3 : 2;
    return OK;
}
tern_cu_result cuDeviceGet(tern_cu_device *d, int i)
{
    *d = i;
    return OK;
}
tern_cu_result cuDeviceGetName(char *s, int n, tern_cu_device d)
{
    (void)d;
    strncpy(s, "Fake card", (size_t)n);
    return OK;
}
static int setting(const char *name, int otherwise)
{
    const char *n = getenv(name);
    return n ? atoi(n) : otherwise;
}

tern_cu_result cuDeviceGetAttribute(int *v, int which, tern_cu_device d)
{
    (void)d;
    *v = which == TERN_CU_MAJOR          ? (is("old")    ? 7
                                            : is("nine") ? 9
                                                         : MAJOR)
         : which == TERN_CU_MINOR        ? (is("old") ? 5 : 0)
         : which == TERN_CU_SHARED_OPTIN ? setting("FAKE_SHARED", 227) << 10
         : which == TERN_CU_PROCESSORS   ? setting("FAKE_PROCESSORS", 1)
                                         : 1;
    return OK;
}
tern_cu_result cuDeviceTotalMem_v2(size_t *n, tern_cu_device d)
{
    (void)d;
    *n = room();
    return OK;
}
/* Bytes of a thread's stack: for tests, which find it in this library. */
static size_t stack = 1024;
FAKE size_t fake_stack(void)
{
    return stack;
}
tern_cu_result cuDevicePrimaryCtxGetState(tern_cu_device d, unsigned *flags, int *active)
{
    (void)d;
    *flags = 0;
    *active = is("shared") || is("tight");
    if (is("tight")) /* as others in the program have set it */
        stack = 512;
    return OK;
}
tern_cu_result cuDevicePrimaryCtxRetain(tern_cu_context *c, tern_cu_device d)
{
    (void)d;
    *c = (tern_cu_context)c;
    return is("locked") ? INVALID : OK;
}
tern_cu_result cuDevicePrimaryCtxRelease_v2(tern_cu_device d)
{
    (void)d;
    return OK;
}
tern_cu_result cuCtxSetCurrent(tern_cu_context c)
{
    (void)c;
    return OK;
}
tern_cu_result cuCtxGetLimit(size_t *n, int which)
{
    *n = which == TERN_CU_LIMIT_STACK ? stack : 0;
    return which == TERN_CU_LIMIT_STACK ? OK : INVALID;
}
tern_cu_result cuCtxSetLimit(int which, size_t n)
{
    if (which == TERN_CU_LIMIT_STACK)
        stack = n;
    return which == TERN_CU_LIMIT_STACK ? OK : INVALID;
}
/* Most do not reach each other, so that rows are gathered through the host. */
tern_cu_result cuDeviceCanAccessPeer(int *can, tern_cu_device a, tern_cu_device b)
{
    *can = a == b || apart();
    return OK;
}
tern_cu_result cuCtxEnablePeerAccess(tern_cu_context c, unsigned flags)
{
    (void)c, (void)flags;
    return apart() ? OK : INVALID;
}
tern_cu_result cuMemGetInfo_v2(size_t *left, size_t *all)
{
    *all = room();
    *left = room() - used;
    return OK;
}

/* Is this the time that the test asked for?  The variable counts down. */
static bool fails_now(void)
{
    const char *text = getenv("FAKE_FULL");
    char next[24];
    const int n = text ? atoi(text) : 0;
    if (n <= 0)
        return false;
    snprintf(next, sizeof next, "%d", n - 1);
    setenv("FAKE_FULL", next, 1);
    return n == 1;
}

/* A piece of memory knows its size. */
static tern_cu_result take(void **out, size_t n)
{
    if (lost || n > room() - used || fails_now())
        return lost ? LOST : FULL;
    size_t *p = malloc(n + 64);
    if (!p)
        return FULL;
    p[0] = n;
    used += n;
    *out = (char *)p + 64;
    return OK;
}
tern_cu_result cuMemAlloc_v2(tern_cu_address *p, size_t n)
{
    void *m = NULL;
    const tern_cu_result rc = take(&m, n);
    *p = (tern_cu_address)(uintptr_t)m;
    return rc;
}
tern_cu_result cuMemFree_v2(tern_cu_address p)
{
    stream_wait_all();
    size_t *m = (size_t *)(void *)((char *)at(p) - 64);
    used -= m[0];
    free(m);
    return OK;
}
tern_cu_result cuMemHostAlloc(void **p, size_t n, unsigned f)
{
    (void)f;
    *p = malloc(n);
    return *p ? OK : FULL;
}
tern_cu_result cuMemFreeHost(void *p)
{
    stream_wait_all();
    free(p);
    return OK;
}
/* One piece at a time: who registers has to take it back. */
static void *registered;
tern_cu_result cuMemHostRegister_v2(void *p, size_t n, unsigned f)
{
    (void)n, (void)f;
    if (registered || fails_now())
        return INVALID;
    registered = p;
    return OK;
}
tern_cu_result cuMemHostUnregister(void *p)
{
    stream_wait_all();
    if (p != registered)
        return INVALID;
    registered = NULL;
    return OK;
}
tern_cu_result cuMemAddressReserve(tern_cu_address *p, size_t n, size_t a, tern_cu_address h, unsigned long long f)
{
    (void)a, (void)h, (void)f;
    void *m = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *p = (tern_cu_address)(uintptr_t)m;
    return m == MAP_FAILED ? FULL : OK;
}
tern_cu_result cuMemAddressFree(tern_cu_address p, size_t n)
{
    (void)munmap(at(p), n);
    return OK;
}
tern_cu_result cuMemCreate(unsigned long long *h, size_t n, const struct tern_cu_memory_kind *k, unsigned long long f)
{
    (void)k, (void)f;
    if (n > room() - used || fails_now())
        return FULL;
    used += n;
    *h = n;
    return OK;
}
tern_cu_result cuMemRelease(unsigned long long h)
{
    used -= h;
    return OK;
}
tern_cu_result cuMemMap(tern_cu_address p, size_t n, size_t o, unsigned long long h, unsigned long long f)
{
    (void)o, (void)h, (void)f;
    return mprotect(at(p), n, PROT_READ | PROT_WRITE) ? INVALID : OK;
}
tern_cu_result cuMemUnmap(tern_cu_address p, size_t n)
{
    stream_wait_all();
    (void)madvise(at(p), n, MADV_DONTNEED);
    return mprotect(at(p), n, PROT_NONE) ? INVALID : OK;
}
tern_cu_result cuMemSetAccess(tern_cu_address p, size_t n, const struct tern_cu_memory_access *a, size_t k)
{
    (void)p, (void)n, (void)a, (void)k;
    return OK;
}
tern_cu_result cuMemcpyHtoDAsync_v2(tern_cu_address p, const void *h, size_t n, tern_cu_stream s)
{
    if (apart()) {
        stream_copy_now((struct stream *)s, at(p), h, n);
        return now();
    }
    return copy(s, at(p), h, 0, n);
}
tern_cu_result cuMemcpyDtoHAsync_v2(void *h, tern_cu_address p, size_t n, tern_cu_stream s)
{
    return copy(s, h, at(p), 0, n);
}
tern_cu_result cuMemcpyDtoDAsync_v2(tern_cu_address to, tern_cu_address p, size_t n, tern_cu_stream s)
{
    return copy(s, at(to), at(p), 0, n);
}
tern_cu_result cuMemsetD8Async(tern_cu_address p, unsigned char b, size_t n, tern_cu_stream s)
{
    return copy(s, at(p), NULL, b, n);
}
tern_cu_result cuStreamCreate(tern_cu_stream *s, unsigned f)
{
    if (apart()) {
        *s = (tern_cu_stream)stream_new();
        return *s ? OK : INVALID;
    }
    (void)f;
    *s = (tern_cu_stream)s;
    return OK;
}
tern_cu_result cuStreamDestroy_v2(tern_cu_stream s)
{
    if (apart()) {
        stream_free((struct stream *)s);
        return OK;
    }
    (void)s;
    return OK;
}
tern_cu_result cuStreamSynchronize(tern_cu_stream s)
{
    if (apart()) {
        stream_wait((struct stream *)s, stream_queued((struct stream *)s));
        return now();
    }
    (void)s;
    return now();
}
tern_cu_result cuStreamBeginCapture_v2(tern_cu_stream s, int mode)
{
    (void)s, (void)mode;
    return INVALID;
}
tern_cu_result cuStreamEndCapture(tern_cu_stream s, tern_cu_graph *g)
{
    (void)s;
    *g = NULL;
    return INVALID;
}
tern_cu_result cuEventCreate(tern_cu_event *e, unsigned f)
{
    if (apart()) {
        *e = calloc(1, sizeof(struct event));
        return *e ? OK : FULL;
    }
    (void)f;
    *e = (tern_cu_event)e;
    return OK;
}
tern_cu_result cuEventDestroy_v2(tern_cu_event e)
{
    if (apart()) {
        free(e);
        return OK;
    }
    (void)e;
    return OK;
}
tern_cu_result cuEventRecord(tern_cu_event e, tern_cu_stream s)
{
    if (apart()) {
        *(struct event *)e = (struct event){(struct stream *)s, stream_queued((struct stream *)s)};
        return now();
    }
    (void)e, (void)s;
    return now();
}
tern_cu_result cuEventSynchronize(tern_cu_event e)
{
    if (apart()) {
        struct event *of = (struct event *)e;
        if (of->s)
            stream_wait(of->s, of->until);
        return now();
    }
    (void)e;
    return now();
}
tern_cu_result cuEventElapsedTime(float *t, tern_cu_event a, tern_cu_event b)
{
    (void)a, (void)b;
    *t = 1;
    return OK;
}
tern_cu_result cuModuleLoadData(tern_cu_module *m, const void *p)
{
    *m = (tern_cu_module)m;
    return p ? OK : INVALID;
}
tern_cu_result cuModuleUnload(tern_cu_module m)
{
    (void)m;
    return OK;
}
tern_cu_result cuModuleGetFunction(tern_cu_function *f, tern_cu_module m, const char *name)
{
    (void)m;
#ifdef FAKE_RUNS
    if (apart()) { /* each queue has its own of that name */
        *f = (tern_cu_function)name;
        return emulate_find(name) ? OK : INVALID;
    }
    *f = (tern_cu_function)emulate_find(name);
    return *f ? OK : INVALID;
#else
    *f = (tern_cu_function)f;
    return strncmp(name, "tern_cuda_k_", 12) ? INVALID : OK;
#endif
}
/* Stacks: one kernel needs more than others. */
tern_cu_result cuFuncGetAttribute(int *v, int a, tern_cu_function f)
{
    static tern_cu_function first;
    if (!first)
        first = f;
    *v = f == first ? 600 : 8;
    return a == TERN_CU_FUNCTION_LOCAL ? OK : INVALID;
}
tern_cu_result cuFuncSetAttribute(tern_cu_function f, int a, int v)
{
    (void)f, (void)a, (void)v;
    return OK;
}
/* Launches of the kernel of that name, on all cards: for tests, which find it in this library.  -1: cards are not such
 * as send each other rows of chains. */
static struct {
    const char *name;
    int n;
} launched[512];
FAKE int fake_launched(const char *name)
{
    if (!apart() || !is("nine"))
        return -1;
    for (int i = 0; launched[i].name; i++)
        if (strcmp(launched[i].name, name) == 0)
            return launched[i].n;
    return 0;
}

static void count_launch(const char *name)
{
    int i = 0;
    while (launched[i].name && strcmp(launched[i].name, name) != 0)
        i++;
    launched[i].name = name;
    launched[i].n++;
}

tern_cu_result cuLaunchKernelEx(const struct tern_cu_launch *l, tern_cu_function f, void **args, void **extra)
{
    if (apart()) {
        count_launch((const char *)f);
        stream_launch((struct stream *)l->stream, (const char *)f, args[0], l->grid, l->block[0]);
        return now();
    }
    (void)l, (void)f, (void)args, (void)extra;
    lost |= is("lost");
#ifdef FAKE_RUNS
    if (!lost)
        emulate_launch(f, args[0], l->grid, l->block[0]);
#endif
    return now();
}
tern_cu_result cuGraphInstantiateWithFlags(tern_cu_graph_exec *e, tern_cu_graph g, unsigned long long f)
{
    (void)e, (void)g, (void)f;
    return INVALID;
}
tern_cu_result cuGraphLaunch(tern_cu_graph_exec e, tern_cu_stream s)
{
    (void)e, (void)s;
    return INVALID;
}
tern_cu_result cuGraphExecDestroy(tern_cu_graph_exec e)
{
    (void)e;
    return OK;
}
tern_cu_result cuGraphDestroy(tern_cu_graph g)
{
    (void)g;
    return OK;
}
