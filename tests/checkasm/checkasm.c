#include "checkasm.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include "base/cpu.h"
#include "base/fp16.h"
#include "base/rng.h"

#define POISON   0xFF
#define MAX_BUFS 64
#define RED_ZONE 256
#define PAGE     4096
#define ROUNDS   15
#define LEVELS   6 /* plain C, and what TERN_CPU_LIST has at most */

struct tern_kernels check_ref, check_below;

static struct {
    uint64_t seed;
    const char *only; /* --test: substring of the part's name */
    const char *only_family;
    bool json, bench;

    unsigned levels[LEVELS]; /* masks */
    int n_levels;
    int level;        /* index of the current level */
    unsigned beneath; /* a level asked for alone: the one that proves the kernels which both have; 0: all are its own */

    struct tern_rng rng;
    const char *part;
    char where[256]; /* the open case */
    int part_failures;
    int n_parts, n_failed, n_benches;
} st;

struct buf {
    uint8_t *map, *start;
    size_t map_bytes, bytes;
    size_t red; /* poisoned bytes in front of start */
};
static struct buf bufs[MAX_BUFS];
static int n_bufs;
static size_t bufs_made;

static sigjmp_buf escape;
static volatile sig_atomic_t armed;

static const char *level_name(int i)
{
    return tern_cpu_name(st.levels[i]);
}

static void use_level(int i)
{
    st.level = i;
    tern_kernels_init(st.levels[i]);
}

/* ---- failures ---- */

void check_fail(const char *fmt, ...)
{
    if (st.part_failures++)
        return;
    char what[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    fprintf(stderr, "FAIL %s at %s, case {%s}: %s (--seed %llu)\n", st.part, level_name(st.level), st.where, what,
            (unsigned long long)st.seed);
    if (st.json)
        printf("%s{\"part\":\"%s\",\"level\":\"%s\",\"ok\":false,\"case\":\"%s\",\"why\":\"%s\"}",
               st.n_parts ? "," : "", st.part, level_name(st.level), st.where, what);
}

/* ---- memory ---- */

static void verify_red(const struct buf *b, const uint8_t *p, size_t n, const char *side)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] == POISON)
            continue;
        check_fail("buffer of %zu bytes: byte at offset %td, %s it, was written", b->bytes, p + i - b->start, side);
        return;
    }
}

static void release_bufs(bool verify)
{
    for (int i = 0; i < n_bufs; i++) {
        const struct buf *b = &bufs[i];
        if (verify) {
            verify_red(b, b->start - b->red, b->red, "before");
            verify_red(b, b->start + b->bytes, (size_t)(b->map + b->map_bytes - PAGE - b->start) - b->bytes, "after");
        }
        munmap(b->map, b->map_bytes);
    }
    n_bufs = 0;
}

void *check_buf(size_t bytes, size_t align)
{
    if (n_bufs == MAX_BUFS || !align || align > PAGE || (align & (align - 1))) {
        fprintf(stderr, "check_buf: bad use\n");
        abort();
    }
    struct buf *b = &bufs[n_bufs];
    size_t body = (RED_ZONE + bytes + 2 * align + PAGE - 1) / PAGE * PAGE;
    b->map_bytes = body + PAGE;
    b->map = mmap(NULL, b->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->map == MAP_FAILED || mprotect(b->map + body, PAGE, PROT_NONE)) {
        perror("check_buf");
        abort();
    }
    b->bytes = bytes;
    b->start = b->map + body - (bytes + align - 1) / align * align;
    /* Every other buffer trades the tight end for an address that is no better aligned than the contract says. */
    if (bufs_made++ % 2 && ((uintptr_t)b->start & (2 * align - 1)) == 0)
        b->start -= align;
    size_t front = (size_t)(b->start - b->map);
    b->red = front < RED_ZONE ? front : RED_ZONE;
    memset(b->start - b->red, POISON, (size_t)(b->map + body - b->start) + b->red);
    n_bufs++;
    return b->start;
}

void check_poison(void *p, size_t bytes)
{
    memset(p, POISON, bytes);
}

bool check_unwritten(const char *what, const void *p, size_t bytes)
{
    const uint8_t *b = p;
    for (size_t i = 0; i < bytes; i++) {
        if (b[i] != POISON) {
            check_fail("%s: padding byte %zu was written", what, i);
            return false;
        }
    }
    return true;
}

/* ---- random numbers and fills ---- */

uint64_t check_rand(void)
{
    return tern_rng_u64(&st.rng);
}

int check_range(int lo, int hi)
{
    return lo + (int)(check_rand() % (uint64_t)((int64_t)hi - lo + 1));
}

double check_uniform(void)
{
    return tern_rng_f64(&st.rng);
}

double check_gauss(void)
{
    double u = 1.0 - check_uniform(), v = check_uniform();
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

const char *check_fill_name(enum check_fill kind)
{
    static const char *const names[] = {"gauss",  "zero",    "negzero", "equal", "onehot",   "ties",
                                        "spread", "outlier", "tiny",    "huge",  "nonfinite"};
    return names[kind];
}

static double fill_value(enum check_fill kind, size_t i, size_t hot, double common, bool half)
{
    double sign = check_rand() & 1 ? -1.0 : 1.0;
    switch (kind) {
    case CHECK_ZERO:
        return 0.0;
    case CHECK_NEGZERO:
        return copysign(0.0, sign);
    case CHECK_EQUAL:
        return common;
    case CHECK_ONEHOT:
        return i == hot ? common : 0.0;
    case CHECK_TIES:
        return 0.5 * check_range(-255, 255);
    case CHECK_SPREAD:
        return sign * ldexp(1.0 + check_uniform(), check_range(-14, 9));
    case CHECK_OUTLIER:
        return check_gauss() * (i == hot ? 1000.0 : 1.0);
    case CHECK_TINY:
        return sign * check_uniform() * (half ? 0x1.0p-14 : FLT_MIN);
    case CHECK_HUGE:
        return sign * (half ? 60000.0 : 1e18) * check_uniform();
    case CHECK_NONFINITE:
        switch (check_rand() % 8) {
        case 0:
            return sign * INFINITY;
        case 1:
            return NAN;
        default:
            return check_gauss();
        }
    default:
        return check_gauss();
    }
}

void check_fill_f32(float *x, size_t n, enum check_fill kind)
{
    size_t hot = n ? check_rand() % n : 0;
    double common = check_gauss();
    for (size_t i = 0; i < n; i++)
        x[i] = (float)fill_value(kind, i, hot, common, false);
}

void check_fill_f16(uint16_t *x, size_t n, enum check_fill kind)
{
    size_t hot = n ? check_rand() % n : 0;
    double common = check_gauss();
    for (size_t i = 0; i < n; i++)
        x[i] = tern_f32_to_f16((float)fill_value(kind, i, hot, common, true));
}

void check_fill_bytes(void *p, size_t n)
{
    uint8_t *b = p;
    for (size_t i = 0; i < n; i++)
        b[i] = (uint8_t)(check_rand() >> 32);
}

/* ---- verdicts ---- */

bool check_same_f32(const char *what, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (tern_f32_bits(got[i]) == tern_f32_bits(want[i]) || (isnan(got[i]) && isnan(want[i])))
            continue;
        check_fail("%s[%zu of %zu] = %.9g (%08x), expected %.9g (%08x)", what, i, n, got[i], tern_f32_bits(got[i]),
                   want[i], tern_f32_bits(want[i]));
        return false;
    }
    return true;
}

bool check_same_bytes(const char *what, const void *got, const void *want, size_t n)
{
    const uint8_t *a = got, *b = want;
    for (size_t i = 0; i < n; i++) {
        if (a[i] == b[i])
            continue;
        check_fail("%s: byte %zu of %zu is %02x, expected %02x", what, i, n, a[i], b[i]);
        return false;
    }
    return true;
}

/* Share of its budget that one value uses: 0 when exact, infinite when a non-finite value does not match. */
static double share_of(float got, double oracle, double budget)
{
    if (isnan(oracle))
        return isnan(got) ? 0 : INFINITY;
    if (isinf(oracle) || fabs(oracle) > FLT_MAX)
        return (double)got == (oracle > 0 ? INFINITY : -INFINITY) ? 0 : INFINITY;
    double e = fabs((double)got - oracle);
    if (e == 0)
        return 0;
    return e <= 1e300 ? e / budget : INFINITY;
}

bool check_budget(const char *what, const float *got, const double *oracle, const double *budget, size_t n,
                  const float *ref, double k)
{
    double worst = 0, worst_ref = 1.0 / 64;
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        double s = share_of(got[i], oracle[i], budget[i]);
        if (!(s <= 1)) {
            check_fail("%s[%zu of %zu] = %.9g, exact %.17g, error is %.3g of its budget %.3g", what, i, n, got[i],
                       oracle[i], s, budget[i]);
            return false;
        }
        if (s > worst) {
            worst = s;
            at = i;
        }
        if (ref) {
            double r = share_of(ref[i], oracle[i], budget[i]);
            worst_ref = r > worst_ref ? r : worst_ref;
        }
    }
    if (ref && worst > k * worst_ref) {
        check_fail("%s[%zu of %zu] = %.9g uses %.3g of its budget, plain C at most %.3g", what, at, n, got[at], worst,
                   worst_ref);
        return false;
    }
    return true;
}

/* ---- parts ---- */

void check_case(const char *fmt, ...)
{
    release_bufs(true);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(st.where, sizeof st.where, fmt, ap);
    va_end(ap);
}

static void on_signal(int sig)
{
    if (!armed) {
        signal(sig, SIG_DFL);
        raise(sig);
        return;
    }
    armed = 0;
    siglongjmp(escape, sig);
}

static void catch_signals(void)
{
    static uint8_t stack[65536];
    stack_t alt = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alt, NULL);
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    static const int sigs[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
    for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++)
        sigaction(sigs[i], &sa, NULL);
}

void check_part(const char *name, void (*fn)(void))
{
    if (st.only && !strstr(name, st.only))
        return;
    uint64_t h = st.seed;
    for (const char *p = name; *p; p++)
        h = tern_hash64(h ^ (uint8_t)*p);
    st.rng.state = h;
    st.part = name;
    st.where[0] = 0;
    st.part_failures = 0;
    bufs_made = 0;

    int sig = sigsetjmp(escape, 1);
    if (!sig) {
        armed = 1;
        fn();
        armed = 0;
    } else {
        check_fail("signal %d (%s)", sig, strsignal(sig));
    }
    release_bufs(!sig);
    if (st.part_failures)
        st.n_failed++;
    else if (st.json)
        printf("%s{\"part\":\"%s\",\"level\":\"%s\",\"ok\":true}", st.n_parts ? "," : "", name, level_name(st.level));
    else
        printf("ok   %-20s %s\n", name, level_name(st.level));
    fflush(stdout);
    st.n_parts++;
}

static void run_checks(void)
{
    memset(&check_below, 0, sizeof check_below);
    if (st.beneath) {
        tern_kernels_init(st.beneath);
        check_below = tern_k;
    }
    for (int i = 0; i < st.n_levels; i++) {
        use_level(i);
#define X(family)                                                \
    if (!st.only_family || strcmp(st.only_family, #family) == 0) \
        check_##family();
#include "check_list.h"
#undef X
        check_below = tern_k;
    }
}

/* ---- benches ---- */

/* Processor time of this thread: what other programs take away meanwhile does not count. */
static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds and work per call of `fn`, from a batch of calls that takes at least 2 ms. */
static void time_calls(double (*fn)(void *), void *ctx, double *sec, double *work)
{
    for (int n = 1;; n *= 2) {
        double t0 = now();
        *work = 0;
        for (int i = 0; i < n; i++)
            *work += fn(ctx);
        *sec = (now() - t0) / n;
        *work /= n;
        if (*sec * n >= 2e-3)
            return;
    }
}

static double rate_of(double (*fn)(void *), void *ctx)
{
    double sec, work;
    time_calls(fn, ctx, &sec, &work);
    return work / sec;
}

static void report_bench(const struct check_timing *t, int level, double *sec, double *rate, double *share)
{
    qsort(sec, ROUNDS, sizeof *sec, by_value);
    qsort(rate, ROUNDS, sizeof *rate, by_value);
    qsort(share, ROUNDS, sizeof *share, by_value);
    double med = sec[ROUNDS / 2] * 1e9, lo = sec[0] * 1e9, hi = sec[ROUNDS - 1] * 1e9, r = rate[ROUNDS / 2] * 1e-9;
    if (st.json) {
        printf("%s{\"bench\":\"%s\",\"level\":\"%s\",\"ns\":%.1f,\"ns_min\":%.1f,\"ns_max\":%.1f,\"rate\":%.3f,"
               "\"unit\":\"G%s/s\"",
               st.n_benches ? "," : "", t->label, level_name(level), med, lo, hi, r, t->unit);
        if (t->roof)
            printf(",\"share\":%.3f,\"share_min\":%.3f,\"share_max\":%.3f", share[ROUNDS / 2], share[0],
                   share[ROUNDS - 1]);
        printf("}");
    } else {
        printf("%-34s %-6s %11.0f ns [%.0f-%.0f] %7.2f G%s/s", t->label, level_name(level), med, lo, hi, r, t->unit);
        if (t->roof)
            printf("  %3.0f %% of roof [%.0f-%.0f]", 100 * share[ROUNDS / 2], 100 * share[0], 100 * share[ROUNDS - 1]);
        printf("\n");
    }
    fflush(stdout);
    st.n_benches++;
}

void check_bench(const struct check_timing *t)
{
    if (st.only && !strstr(t->label, st.only))
        return;
    static double sec[LEVELS][ROUNDS], rate[LEVELS][ROUNDS], share[LEVELS][ROUNDS];
    for (int i = 0; i < st.n_levels; i++) { /* warm-up */
        use_level(i);
        t->fn(t->ctx);
    }
    for (int r = 0; r < ROUNDS; r++) {
        for (int i = 0; i < st.n_levels; i++) {
            double work;
            use_level(i);
            /* The limit before and after the call, so that a change of clock falls on both sides. */
            double before = t->roof ? rate_of(t->roof, t->roof_ctx) : 1;
            time_calls(t->fn, t->ctx, &sec[i][r], &work);
            double after = t->roof ? rate_of(t->roof, t->roof_ctx) : 1;
            rate[i][r] = work / sec[i][r];
            share[i][r] = rate[i][r] / (0.5 * (before + after));
        }
    }
    for (int i = 0; i < st.n_levels; i++)
        report_bench(t, i, sec[i], rate[i], share[i]);
}

static void run_benches(void)
{
#define X(family)       \
    if (bench_##family) \
        bench_##family();
#include "check_list.h"
#undef X
}

/* ---- program ---- */

static int usage(const char *why)
{
    fprintf(stderr,
            "%s\nusage: checkasm [--cpu-mask " TERN_CPU_WORDS
            "] [--family NAME] [--test NAME] [--seed N] [--bench] [--json]\n"
            "  --cpu-mask  check this level alone; all (default): every level of this machine; a level that the\n"
            "              machine lacks ends with status 77\n"
            "  --family    only what check_NAME.c checks\n"
            "  --test      only parts and benches whose name contains NAME\n",
            why);
    return 2;
}

/* Levels to walk: all of them, or the one asked for.  Plain C always comes first as the reference of the others. */
static int choose_levels(const char *mask_text)
{
    unsigned have = tern_cpu_detect(), mask = 0;
    tern_error err;
    bool all = !strcmp(mask_text, "all");
    if (!all && tern_cpu_parse(mask_text, &mask, &err) < 0)
        return usage(err.msg);
    if (!all && (mask & ~have)) {
        fprintf(stderr, "this machine does not have %s\n", mask_text);
        return 77;
    }
    if (all || !mask)
        st.levels[st.n_levels++] = 0;
#define X(bit, name, text)                                      \
    if (!all && mask == tern_cpu_mask(bit))                     \
        st.beneath = mask & ~(unsigned)(bit);                   \
    if (all ? (have & (bit)) != 0 : mask == tern_cpu_mask(bit)) \
        st.levels[st.n_levels++] = tern_cpu_mask(bit);
    TERN_CPU_LIST(X)
#undef X
    return 0;
}

int main(int argc, char **argv)
{
    const char *mask = "all";
    st.seed = 1;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (!strcmp(a, "--bench"))
            st.bench = true;
        else if (!strcmp(a, "--json"))
            st.json = true;
        else if (i + 1 == argc)
            return usage(a);
        else if (!strcmp(a, "--cpu-mask"))
            mask = argv[++i];
        else if (!strcmp(a, "--test"))
            st.only = argv[++i];
        else if (!strcmp(a, "--family"))
            st.only_family = argv[++i];
        else if (!strcmp(a, "--seed"))
            st.seed = strtoull(argv[++i], NULL, 0);
        else
            return usage(a);
    }
    int rc = choose_levels(mask);
    if (rc)
        return rc;
    catch_signals();
    tern_kernels_init(0);
    check_ref = tern_k;
    if (st.json)
        printf("{\"cpu\":\"%s\",\"seed\":%llu,\"parts\":[", tern_cpu_model(), (unsigned long long)st.seed);
    run_checks();
    if (st.json)
        printf("],\"benches\":[");
    if (st.bench)
        run_benches();
    if (st.json)
        printf("],\"failed\":%d}\n", st.n_failed);
    else
        printf("%d parts, %d failed, seed %llu, %s\n", st.n_parts, st.n_failed, (unsigned long long)st.seed,
               tern_cpu_model());
    if (st.only_family && !st.n_parts)
        return 77; /* nothing of the family at this level */
    return st.n_failed || !st.n_parts ? 1 : 0;
}
