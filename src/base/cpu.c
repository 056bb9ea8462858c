#include "base/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

/* ---- levels ---- */

static char refused[128];

#if defined(__x86_64__)
/* Which register files the operating system saves on a context switch.  Without it a set CPUID bit is a trap. */
static uint64_t read_xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static bool all_bits(uint32_t reg, uint32_t bits)
{
    return (reg & bits) == bits;
}

/* May this process use tiles?  Their registers are large, so Linux saves them only for processes that ask (5.16 and
 * up). The codec library multiplies no matrices and leaves its host as it is. */
static bool tiles_granted(void)
{
#ifdef TERN_KV_ONLY
    return false;
#else
    const long request = 0x1023, tile_data = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    if (syscall(SYS_arch_prctl, request, tile_data) == 0)
        return true;
    (void)snprintf(refused, sizeof refused, "the system does not let this process use AMX: system error %d", errno);
    return false;
#endif
}

/* Bits of EAX of leaf 7, part 1; given that leaf 7 is there. */
static bool more_bits(uint32_t bits)
{
    uint32_t a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && all_bits(a, bits);
}

/* Given that avx512 is there. */
static bool detect_bf16(void)
{
#ifdef TERN_KV_ONLY
    return false; /* nothing of it is of use to the codec */
#else
    return more_bits(1u << 5);
#endif
}

/* Given that avx512bf16 is there; d7: EDX of leaf 7. */
static bool detect_amx(uint32_t d7, uint64_t saved)
{
    if (!all_bits(d7, 1u << 24 | 1u << 22)) /* AMX-TILE and AMX-BF16 */
        return false;
    if ((saved & 0x60000) != 0x60000) { /* tile configuration and tiles */
        (void)snprintf(refused, sizeof refused, "the system does not support AMX");
        return false;
    }
    return tiles_granted();
}

static unsigned detect(void)
{
    uint32_t a, b1, b7, c1, c7, d;
    if (!__get_cpuid(1, &a, &b1, &c1, &d) || !all_bits(c1, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C))
        return 0;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d) || !all_bits(b7, bit_AVX2 | bit_BMI2))
        return 0;
    uint64_t saved = read_xcr0();
    const uint64_t ymm = 0x06, zmm = 0xE6; /* XMM and YMM; and mask registers, upper halves, upper sixteen */
    if ((saved & ymm) != ymm)
        return 0;
    const unsigned ymm_levels = TERN_CPU_AVX2 | (more_bits(1u << 4) ? TERN_CPU_AVXVNNI : 0);
    if ((saved & zmm) != zmm || !all_bits(b7, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) ||
        !all_bits(c7, bit_AVX512VNNI | bit_AVX512VBMI))
        return ymm_levels;
    if (!detect_bf16())
        return ymm_levels | TERN_CPU_AVX512;
    return ymm_levels | TERN_CPU_AVX512 | TERN_CPU_AVX512BF16 | (detect_amx(d, saved) ? TERN_CPU_AMX : 0);
}
#elif defined(__aarch64__)
/* Advanced SIMD itself is part of every AArch64 Linux machine. */
static unsigned detect(void)
{
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? TERN_CPU_NEON : 0;
}
#else
static unsigned detect(void)
{
    return 0;
}
#endif

/* AMD numbers generations by families: 25 is Zen 3 and Zen 4, 26 Zen 5. */
static bool detect_near(void)
{
#if defined(__x86_64__)
    uint32_t a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d) || b != signature_AMD_ebx || c != signature_AMD_ecx || d != signature_AMD_edx)
        return false;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return false;
    const uint32_t base = a >> 8 & 15, more = a >> 20 & 255; /* added where the first is full */
    return base == 15 && base + more >= 26;
#else
    return false;
#endif
}

unsigned tern_cpu_mask(unsigned bit)
{
    unsigned below = 0;
#define X(b, name, word)                         \
    if (bit == (b))                              \
        return (below & ~TERN_CPU_BESIDE) | bit; \
    below |= b;
    TERN_CPU_LIST(X)
#undef X
    return 0;
}

int tern_cpu_parse(const char *text, unsigned *mask, tern_error *err)
{
    unsigned all = 0;
    if (!strcmp(text, "c")) {
        *mask = 0;
        return 0;
    }
#define X(bit, name, word)          \
    all |= bit;                     \
    if (!strcmp(text, word)) {      \
        *mask = tern_cpu_mask(bit); \
        return 0;                   \
    }
    TERN_CPU_LIST(X)
#undef X
    if (!strcmp(text, "all")) {
        *mask = all;
        return 0;
    }
#define X(bit, name, word) ", " word
    return tern_err_set(err, TERN_EINVAL, "CPU level \"%s\" is not known (c" TERN_CPU_LIST(X) " or all)", text);
#undef X
}

const char *tern_cpu_name(unsigned mask)
{
    const char *best = "c";
#define X(bit, name, word) \
    if (mask & bit)        \
        best = word;
    TERN_CPU_LIST(X)
#undef X
    return best;
}

/* ---- small files of /proc and /sys ---- */

/* Every reader below takes `root`, a prefix of all paths: "" in the program, a made-up tree in the tests. */

static FILE *open_under(const char *root, const char *path)
{
    char full[1024];
    int n = snprintf(full, sizeof full, "%s%s", root, path);
    return n > 0 && (size_t)n < sizeof full ? fopen(full, "re") : NULL;
}

/* The first line of a file without its newline; false when there is none. */
static bool read_line(const char *root, const char *path, char *line, size_t size)
{
    FILE *f = open_under(root, path);
    if (!f)
        return false;
    bool ok = fgets(line, (int)size, f) != NULL;
    (void)fclose(f);
    if (ok)
        line[strcspn(line, "\n")] = 0;
    return ok;
}

static void find_model(const char *root, char *model, size_t size)
{
    char line[512];
    (void)snprintf(model, size, "unknown");
    FILE *f = open_under(root, "/proc/cpuinfo");
    if (!f)
        return;
    while (fgets(line, sizeof line, f)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        value += 1 + strspn(value + 1, " \t");
        value[strcspn(value, "\n")] = 0;
        if (*value)
            (void)snprintf(model, size, "%s", value);
        break;
    }
    (void)fclose(f);
}

/* ---- control group quota ---- */

/* Quota of the one group at `dir`, in processors; 0 when it has none.  Version 2 says "max 100000" or "150000 100000"
 * in one file, version 1 has two files and -1 for no limit. */
static double group_quota(const char *root, const char *dir, bool v2)
{
    char path[900], line[128];
    double quota = 0, period = 0;
    if (v2) {
        (void)snprintf(path, sizeof path, "%s/cpu.max", dir);
        if (!read_line(root, path, line, sizeof line) || sscanf(line, "%lf %lf", &quota, &period) != 2)
            return 0;
    } else {
        (void)snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir);
        if (!read_line(root, path, line, sizeof line) || sscanf(line, "%lf", &quota) != 1)
            return 0;
        (void)snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
        if (!read_line(root, path, line, sizeof line) || sscanf(line, "%lf", &period) != 1)
            return 0;
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

/* Smallest quota from the group `mount`/`path` up to the mount point: an ancestor's limit binds as well. */
static double tree_quota(const char *root, const char *mount, const char *path, bool v2)
{
    char dir[768];
    double best = 0;
    size_t base = strlen(mount);
    int n = snprintf(dir, sizeof dir, "%s%s", mount, path);
    if (n < 0 || (size_t)n >= sizeof dir)
        return 0;
    for (;;) {
        double q = group_quota(root, dir, v2);
        if (q > 0 && (best == 0 || q < best))
            best = q;
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < base)
            return best;
        *slash = 0;
    }
}

/* Does the comma-separated list contain the word? */
static bool list_has(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',') {
        if (strcspn(p, ",") == n && !memcmp(p, word, n))
            return true;
    }
    return false;
}

/* This process's group in the hierarchy (version 2, or the version 1 hierarchy with the cpu controller). */
static bool own_group(const char *root, bool v2, char *path, size_t size)
{
    char line[600];
    bool found = false;
    FILE *f = open_under(root, "/proc/self/cgroup");
    if (!f)
        return false;
    while (!found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        controllers++;
        if (v2 ? !*controllers : list_has(controllers, "cpu")) {
            (void)snprintf(path, size, "%s", strcmp(group, "/") != 0 ? group : "");
            found = true;
        }
    }
    (void)fclose(f);
    return found;
}

/* A line of mountinfo: "36 35 98:0 /root /mount/point options [more ...] - type source superoptions". */
static bool parse_mount(char *line, char *mount_root, char *mount, char *type, char *super)
{
    char *dash = strstr(line, " - ");
    return dash && sscanf(line, "%*s %*s %*s %511s %511s", mount_root, mount) == 2 &&
           sscanf(dash + 3, "%63s %*s %255s", type, super) == 2;
}

/* The part of a group's path below what is mounted.  Inside a container the mount may start at our own group; a path
 * that does not lie below the mount says nothing, so its top is taken. */
static const char *below_mount(const char *path, const char *mount_root)
{
    size_t cut = strlen(mount_root);
    if (!strcmp(mount_root, "/"))
        return path;
    return !strncmp(path, mount_root, cut) && (!path[cut] || path[cut] == '/') ? path + cut : "";
}

/* Processors that the control groups grant, 0 for no limit. */
static double cgroup_quota(const char *root)
{
    char line[4096], mount_root[512], mount[512], type[64], super[256], path[600];
    double best = 0;
    FILE *f = open_under(root, "/proc/self/mountinfo");
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f)) {
        if (!parse_mount(line, mount_root, mount, type, super))
            continue;
        bool v2 = !strcmp(type, "cgroup2");
        if ((!v2 && (strcmp(type, "cgroup") != 0 || !list_has(super, "cpu"))) ||
            !own_group(root, v2, path, sizeof path))
            continue;
        double q = tree_quota(root, mount, below_mount(path, mount_root), v2);
        if (q > 0 && (best == 0 || q < best))
            best = q;
    }
    (void)fclose(f);
    return best;
}

/* ---- cores ---- */

static long read_number(const char *root, int cpu, const char *what)
{
    char path[128], line[64], *end;
    (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, what);
    if (!read_line(root, path, line, sizeof line))
        return -1;
    long v = strtol(line, &end, 10);
    return end == line ? -1 : v;
}

/* Distinct (package, core) pairs among the processors of `set`; one whose topology is unknown counts as a core. */
static int distinct_cores(const char *root, const cpu_set_t *set, size_t set_bytes)
{
    static const int max = 8 * 1024;
    int n = 0;
    uint64_t *seen = malloc((size_t)max * sizeof *seen);
    if (!seen)
        return CPU_COUNT_S(set_bytes, set);
    for (int cpu = 0; cpu < max && (size_t)cpu < 8 * set_bytes; cpu++) {
        if (!CPU_ISSET_S((size_t)cpu, set_bytes, set))
            continue;
        long package = read_number(root, cpu, "physical_package_id"), core = read_number(root, cpu, "core_id");
        uint64_t key = core < 0 ? UINT64_MAX - (uint64_t)cpu : (uint64_t)(package + 1) << 32 | (uint32_t)core;
        int i = 0;
        while (i < n && seen[i] != key)
            i++;
        if (i == n)
            seen[n++] = key;
    }
    free(seen);
    return n;
}

/* A fraction of a processor is dropped: threads that spin for each other lose far more to throttling than the fraction
 * would give. */
static int usable_cores(const char *root, const cpu_set_t *set, size_t set_bytes)
{
    int n = distinct_cores(root, set, set_bytes);
    double quota = cgroup_quota(root);
    if (quota > 0 && quota < n)
        n = (int)quota;
    return n > 0 ? n : 1;
}

int tern_cpu_cores(void)
{
    int cores = 1;
    /* The kernel refuses a mask that is smaller than its own, so grow it. */
    for (size_t cpus = 1024; cpus <= 64 * 1024; cpus *= 4) {
        cpu_set_t *set = CPU_ALLOC(cpus);
        size_t bytes = CPU_ALLOC_SIZE(cpus);
        if (!set)
            break;
        CPU_ZERO_S(bytes, set);
        bool ok = sched_getaffinity(0, bytes, set) == 0;
        if (ok)
            cores = usable_cores("", set, bytes);
        CPU_FREE(set);
        if (ok)
            break;
    }
    return cores;
}

/* ---- once per process ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static unsigned levels;
static bool near;
static char model[128];

static void fill_once(void)
{
    levels = detect();
    near = detect_near();
    find_model("", model, sizeof model);
}

unsigned tern_cpu_detect(void)
{
    pthread_once(&once, fill_once);
    return levels;
}

bool tern_cpu_asks_near(void)
{
    pthread_once(&once, fill_once);
    return near;
}

const char *tern_cpu_refused(void)
{
    pthread_once(&once, fill_once);
    return refused[0] ? refused : NULL;
}

const char *tern_cpu_model(void)
{
    pthread_once(&once, fill_once);
    return model;
}
