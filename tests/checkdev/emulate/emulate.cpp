/* Blocks of threads as fibers.  One block at a time, its warps in turn; of a kernel whose blocks meet, all together.  A
 * warp goes on for as long as its threads need nobody else: their stacks stay in the first cache meanwhile, and what
 * warps do without having met is as far apart as can be. */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include "emulate.h"

/* Stacks are a few lines more than a power of two apart: threads at the same place would share few sets of the cache. */
enum { MOST = 32768, BLOCKS = 48, STACK = (256 << 10) + 17 * 64, SHARED = 256 << 10 };

uint8_t *emulate_shared;
emulate_index emulate_block, emulate_grid, emulate_threads, emulate_thread;

struct fiber {
    void *sp;
    bool done;
    unsigned waits; /* what its warp's, or the block's, count of meetings was when it came; block: in_block */
    bool waiting, in_block, looks; /* looks: in vain, when it gave way */
    bool looked;                   /* the same of the time before */
};

struct warp {
    void *pieces[32];
    const char *what;
    int arrived, left;
    unsigned meetings;
    void (*work)(void *pieces[32]);
};

/* some, often: of those threads that meet by themselves, at each barrier. */
struct block {
    emulate_index at;
    int arrived, left, some[16];
    unsigned meetings, often[16];
};

static fiber fibers[MOST];
static warp warps[MOST / 32];
static block blocks[BLOCKS];
static char *stacks;
static uint8_t *all_shared;
static void *scheduler;
static int now, together; /* the thread at work; blocks */
static int first, end;    /* the threads of its warp */
static int first_of_block;
static bool found; /* the thread at work, since it went on */
static bool moved; /* some thread, since all had their turn */
static bool asks;  /* some thread of the warp at work, for what others do */
static emulate_kernel *kernel;
static const void *kernel_args;

extern "C" void emulate_switch(void **from, void *to);
asm(".text\n.globl emulate_switch\n.hidden emulate_switch\nemulate_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

/* Thread i goes on, in the place of one whose stack pointer goes to `from`. */
static void enter(void **from, int i)
{
    fiber &f = fibers[i];
    f.looked = f.looks;
    f.waiting = f.looks = found = false;
    now = i;
    emulate_thread.x = (unsigned)(i - first_of_block);
    emulate_switch(from, f.sp);
}

static bool waits(const fiber &f, const warp &w, const block &b)
{
    return f.waiting && f.waits == (f.in_block ? b.meetings : w.meetings);
}

/* The first thread from i on of the warp at work that can go on, or `end`. */
static int ready(int i)
{
    const warp &w = warps[first / 32];
    const block &b = blocks[first_of_block / (int)emulate_threads.x];
    while (i < end && (fibers[i].done || waits(fibers[i], w, b)))
        i++;
    return i;
}

/* The thread at work gives way to the warp's next one. */
static void wait(void)
{
    fiber &f = fibers[now];
    moved |= !f.looked || !f.looks || found;
    asks |= !f.waiting && !f.done;
    const int next = ready(now + 1);
    if (next < end)
        enter(&f.sp, next);
    else
        emulate_switch(&f.sp, scheduler);
}

static void finish_warp(warp &w)
{
    w.work(w.pieces);
    w.arrived = 0;
    w.meetings++;
    memset(w.pieces, 0, sizeof w.pieces);
}

void emulate_meet(const char *what, void *piece, void (*work)(void *pieces[32]))
{
    warp &w = warps[now / 32];
    if (w.arrived && w.what != what && strcmp(w.what, what) != 0) {
        fprintf(stderr, "threads of a warp meet at different places: %s, %s\n", w.what, what);
        abort();
    }
    w.what = what;
    w.work = work;
    w.pieces[now % 32] = piece;
    if (++w.arrived == w.left) {
        finish_warp(w);
        return;
    }
    fibers[now].waits = w.meetings;
    fibers[now].waiting = true;
    fibers[now].in_block = false;
    wait();
}

static block &block_now(void)
{
    return blocks[first_of_block / (int)emulate_threads.x];
}

void emulate_meet_block(void)
{
    block &b = block_now();
    if (++b.arrived == b.left) {
        b.arrived = 0;
        b.meetings++;
        return;
    }
    fibers[now].waits = b.meetings;
    fibers[now].waiting = fibers[now].in_block = true;
    wait();
}

void emulate_meet_some(int id, int threads, bool waits)
{
    block &b = block_now();
    const unsigned before = b.often[id];
    if (++b.some[id] == threads) {
        b.some[id] = 0;
        b.often[id]++;
    }
    while (waits && b.often[id] == before)
        emulate_try(false);
    emulate_try(true);
}

void emulate_try(bool there)
{
    fibers[now].looks = !there;
    found |= there;
    if (!there)
        wait();
}

void emulate_pass(void)
{
    wait();
}

uint64_t emulate_elsewhere(void)
{
    timespec t;
    wait();
    sched_yield();
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void body(void)
{
    kernel(kernel_args);
    warp &w = warps[now / 32];
    block &b = block_now();
    fibers[now].done = true;
    b.left--;
    w.left--;
    if (w.left && w.arrived == w.left)
        finish_warp(w);
    if (b.left && b.arrived == b.left) {
        b.arrived = 0;
        b.meetings++;
    }
    wait();
    abort();
}

/* together blocks of n threads; of several, n is a multiple of 32. */
static void start(int n)
{
    for (int i = 0; i < n * together; i++) {
        void **sp = reinterpret_cast<void **>(stacks + (size_t)(i + 1) * STACK) - 2;
        *sp = reinterpret_cast<void *>(body); /* the stack is 16 bytes aligned where a function's return address is pushed */
        fibers[i] = {sp - 6, false, 0, false, false, false, false};
    }
    for (int i = 0; i < (n * together + 31) / 32; i++)
        warps[i] = {{NULL}, "", 0, n * together - 32 * i < 32 ? n * together - 32 * i : 32, 0, NULL};
    for (int i = 0; i < together; i++)
        blocks[i] = {blocks[i].at, 0, n, {}, 0, {}};
    memset(all_shared, 0xFF, (size_t)SHARED * (size_t)together); /* what nobody has written is no number */
}

/* A turn of the warp at work: all that can, and then all again for as long as it has met and nobody asks. */
static void run_warp(void)
{
    const warp &w = warps[first / 32];
    unsigned meetings;
    asks = false;
    do {
        meetings = w.meetings;
        const int i = ready(first);
        if (i < end)
            enter(&scheduler, i);
    } while (w.meetings != meetings && !asks);
}

static void run_blocks(int n)
{
    start(n);
    for (int left = 1; left;) {
        moved = false;
        left = 0;
        for (int i = 0; i < together; i++) {
            first_of_block = i * n;
            emulate_block = blocks[i].at;
            emulate_shared = all_shared + (size_t)SHARED * (size_t)i;
            for (first = i * n; first < (i + 1) * n; first += 32) {
                end = std::min(first + 32, (i + 1) * n);
                run_warp();
            }
            left += blocks[i].left;
        }
        if (!moved && left) {
            fprintf(stderr, "threads of a block wait for each other for ever\n");
            abort();
        }
    }
}

/* Do blocks of this kernel wait for each other?  Then they have no static memory, which all would share here. */
static bool blocks_meet(emulate_kernel *k)
{
    Dl_info info;
    return dladdr(reinterpret_cast<void *>(k), &info) && info.dli_sname &&
           strncmp(info.dli_sname, "tern_cuda_k_chain", strlen("tern_cuda_k_chain")) == 0;
}

void emulate_run(emulate_kernel *k, const void *args, const unsigned grid[3], unsigned threads)
{
    const unsigned all = grid[0] * grid[1] * grid[2];
    if (!stacks) {
        stacks = static_cast<char *>(mmap(NULL, (size_t)MOST * STACK, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        all_shared = static_cast<uint8_t *>(
            mmap(NULL, (size_t)SHARED * BLOCKS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    }
    kernel = k;
    kernel_args = args;
    emulate_grid = {grid[0], grid[1], grid[2]};
    emulate_threads = {threads, 1, 1};
    together = blocks_meet(k) ? (int)all : 1;
    if (together > BLOCKS || (together > 1 && threads % 32) || together * (int)threads > MOST)
        abort();
    for (unsigned i = 0; i < all; i++) {
        blocks[i % (unsigned)together].at = {i % grid[0], i / grid[0] % grid[1], i / grid[0] / grid[1]};
        if ((i + 1) % (unsigned)together == 0)
            run_blocks((int)threads);
    }
}

/* For the driver (fake_driver.c, streams.c). */
#define FOUND extern "C" __attribute__((visibility("default")))
FOUND void *emulate_find(const char *name)
{
    void *volatile p = dlsym(RTLD_DEFAULT, name); /* by a call, whose place says in which copy of the library to look */
    return p;
}
/* Bytes of the arguments of kernel tern_cuda_k_NAME. */
FOUND size_t emulate_args_bytes(const char *name)
{
    char of[64];
    snprintf(of, sizeof of, "tern_cuda_args_%s", name + strlen("tern_cuda_k_"));
    const void *p = dlsym(RTLD_DEFAULT, of);
    if (!p)
        abort();
    return *static_cast<const size_t *>(p);
}
FOUND void emulate_launch(void *k, const void *args, const unsigned grid[3], unsigned threads)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    (void)pthread_mutex_lock(&one);
    emulate_run(reinterpret_cast<emulate_kernel *>(k), args, grid, threads);
    (void)pthread_mutex_unlock(&one);
}
