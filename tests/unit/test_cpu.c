/* Levels, names, and the core count on made-up /proc and /sys trees.  The source is included so that the tests can hand
 * its readers a root of their own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../../src/base/cpu.c"

static char root[] = "/tmp/tern-test-cpu-XXXXXX";

/* Writes `text` to root/path, making the folders on the way. */
static void put_file(const char *path, const char *text)
{
    char full[1024];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(full, 0700);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int remove_one(const char *path, const struct stat *s, int flag, struct FTW *w)
{
    (void)s;
    (void)flag;
    (void)w;
    return remove(path);
}

static int make_root(void **state)
{
    (void)state;
    strcpy(root + sizeof root - 7, "XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int drop_root(void **state)
{
    (void)state;
    return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static const struct {
    unsigned bit;
    const char *word;
} known[] = {
#define X(bit, name, word) {bit, word},
    TERN_CPU_LIST(X)
#undef X
};

static void test_parse(void **state)
{
    unsigned m = 99;
    tern_error err = {0};
    (void)state;
    assert_int_equal(tern_cpu_parse("c", &m, &err), 0);
    assert_int_equal(m, 0);
    unsigned below = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        below |= known[i].bit;
        assert_int_equal(tern_cpu_parse(known[i].word, &m, &err), 0);
        assert_int_equal(m, (below & ~TERN_CPU_BESIDE) | known[i].bit);
        assert_int_equal(m, tern_cpu_mask(known[i].bit));
    }
    assert_int_equal(tern_cpu_parse("all", &m, &err), 0);
    assert_int_equal(m, below);
    static const char *const bad[] = {"", "sse9", "AVX2", "avx", "c "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        m = 99;
        assert_int_equal(tern_cpu_parse(bad[i], &m, &err), TERN_EINVAL);
        assert_non_null(strstr(err.msg, bad[i]));
        assert_int_equal(m, 99);
    }
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(tern_cpu_name(0), "c");
    unsigned below = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        below |= known[i].bit;
        assert_string_equal(tern_cpu_name(below), known[i].word);
    }
}

/* A level of this machine that the compiler's own detection does not see would end in a trap. */
static void test_detect(void **state)
{
    unsigned m = tern_cpu_detect();
    (void)state;
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
    assert_int_equal(!!(m & TERN_CPU_AVX2), avx2);
    assert_int_equal(!!(m & TERN_CPU_AVX512), avx512);
    assert_true(!(m & TERN_CPU_AVX512) || (m & TERN_CPU_AVX2));
    assert_true(!(m & TERN_CPU_AVXVNNI) || (m & TERN_CPU_AVX2));
#elif defined(__aarch64__)
    uint64_t isar0; /* the kernel shows the identification registers to programs that ask */
    __asm__("mrs %0, id_aa64isar0_el1" : "=r"(isar0));
    assert_int_equal(!!(m & TERN_CPU_NEON), (isar0 >> 44 & 15) != 0);
#else
    assert_int_equal(m, 0);
#endif
#if defined(__x86_64__)
    assert_true(!(m & TERN_CPU_AVX512) || (m & TERN_CPU_AVX2));
    assert_true(!(m & TERN_CPU_AMX) || (m & TERN_CPU_AVX512));
    assert_true(!(m & TERN_CPU_AMX) || !tern_cpu_refused());
#endif
    assert_true(strlen(tern_cpu_model()) > 0);
    assert_ptr_equal(tern_cpu_model(), tern_cpu_model());
    assert_true(tern_cpu_cores() >= 1 && tern_cpu_cores() <= sysconf(_SC_NPROCESSORS_CONF));
}

#if defined(__x86_64__)
/* What the system says of the processor: AMD's families from 26 on. */
static void test_asks_near(void **state)
{
    char line[512], vendor[64] = "";
    int family = 0;
    FILE *f = fopen("/proc/cpuinfo", "re");
    (void)state;
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        (void)sscanf(line, "vendor_id : %63s", vendor);
        (void)sscanf(line, "cpu family : %d", &family);
    }
    (void)fclose(f);
    assert_int_equal(tern_cpu_asks_near(), !strcmp(vendor, "AuthenticAMD") && family >= 26);
}

/* Whatever the system answers: a refusal has its sentence, a permission has none. */
static void test_tiles_asked(void **state)
{
    (void)state;
    refused[0] = 0;
    if (tiles_granted())
        assert_string_equal(refused, "");
    else
        assert_non_null(strstr(refused, "does not let this process use AMX"));
}
#endif

static void test_model(void **state)
{
    char name[32];
    (void)state;
    find_model(root, name, sizeof name);
    assert_string_equal(name, "unknown");
    put_file("/proc/cpuinfo",
             "processor\t: 0\nvendor_id\t: Some\nmodel name\t: A Processor 9000 @ 1GHz\nmodel name\t: B\n");
    find_model(root, name, sizeof name);
    assert_string_equal(name, "A Processor 9000 @ 1GHz");
    put_file("/proc/cpuinfo", "model name\t:\nprocessor\t: 0\n");
    find_model(root, name, sizeof name);
    assert_string_equal(name, "unknown");
    put_file("/proc/cpuinfo", "model name : 0123456789012345678901234567890123456789\n");
    find_model(root, name, sizeof name);
    assert_int_equal(strlen(name), sizeof name - 1);
}

static void assert_quota(double want)
{
    double got = cgroup_quota(root);
    if (got < want - 1e-9 || got > want + 1e-9)
        fail_msg("quota %g, expected %g", got, want);
}

static void test_quota_v2(void **state)
{
    (void)state;
    assert_quota(0);
    put_file("/proc/self/mountinfo", "24 1 0:20 / /proc rw - proc proc rw\n"
                                     "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
    put_file("/proc/self/cgroup", "0::/user/job\n");
    assert_quota(0);
    put_file("/sys/fs/cgroup/user/job/cpu.max", "max 100000\n");
    assert_quota(0);
    put_file("/sys/fs/cgroup/user/job/cpu.max", "250000 100000\n");
    assert_quota(2.5);
    put_file("/sys/fs/cgroup/user/cpu.max", "150000 100000\n"); /* the ancestor is stricter */
    assert_quota(1.5);
    put_file("/sys/fs/cgroup/cpu.max", "900000 100000\n");
    assert_quota(1.5);
    put_file("/sys/fs/cgroup/user/cpu.max", "garbage\n");
    assert_quota(2.5);
    /* A container sees its own group as the mount's root. */
    put_file("/proc/self/mountinfo", "30 24 0:26 /user/job /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    assert_quota(9);
    /* A path outside the mount says nothing about where below it we are. */
    put_file("/proc/self/cgroup", "0::/elsewhere\n");
    assert_quota(9);
}

static void test_quota_v1(void **state)
{
    (void)state;
    put_file("/proc/self/mountinfo", "31 24 0:27 / /cg/memory rw - cgroup cgroup rw,memory\n"
                                     "32 24 0:28 / /cg/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
                                     "33 24 0:29 / /cg/cpuset rw - cgroup cgroup rw,cpuset\n");
    put_file("/proc/self/cgroup", "5:cpuset:/other\n4:cpu,cpuacct:/job\n0::/\n");
    put_file("/cg/cpuset/other/cpu.cfs_quota_us", "100000\n"); /* not the cpu controller */
    put_file("/cg/cpuset/other/cpu.cfs_period_us", "100000\n");
    assert_quota(0);
    put_file("/cg/cpu/job/cpu.cfs_quota_us", "-1\n");
    put_file("/cg/cpu/job/cpu.cfs_period_us", "100000\n");
    assert_quota(0);
    put_file("/cg/cpu/job/cpu.cfs_quota_us", "350000\n");
    assert_quota(3.5);
    put_file("/cg/cpu/job/cpu.cfs_period_us", "0\n");
    assert_quota(0);
}

static void put_core(int cpu, int package, int core)
{
    char path[128], text[16];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/physical_package_id", cpu);
    snprintf(text, sizeof text, "%d\n", package);
    put_file(path, text);
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/core_id", cpu);
    snprintf(text, sizeof text, "%d\n", core);
    put_file(path, text);
}

static void test_cores(void **state)
{
    cpu_set_t set;
    (void)state;
    CPU_ZERO(&set);
    assert_int_equal(usable_cores(root, &set, sizeof set), 1); /* never none */
    for (int i = 0; i < 8; i++)
        CPU_SET(i, &set);
    assert_int_equal(usable_cores(root, &set, sizeof set), 8); /* topology unknown */
    for (int i = 0; i < 8; i++)
        put_core(i, i / 4, i % 2); /* two packages of two cores of two threads */
    assert_int_equal(usable_cores(root, &set, sizeof set), 4);
    CPU_CLR(0, &set); /* its sibling 2 remains */
    assert_int_equal(usable_cores(root, &set, sizeof set), 4);
    CPU_CLR(2, &set);
    assert_int_equal(usable_cores(root, &set, sizeof set), 3);
    put_file("/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    put_file("/proc/self/cgroup", "0::/\n");
    put_file("/sys/fs/cgroup/cpu.max", "290000 100000\n");
    assert_int_equal(usable_cores(root, &set, sizeof set), 2);
    put_file("/sys/fs/cgroup/cpu.max", "50000 100000\n");
    assert_int_equal(usable_cores(root, &set, sizeof set), 1);
    put_file("/sys/fs/cgroup/cpu.max", "1200000 100000\n");
    assert_int_equal(usable_cores(root, &set, sizeof set), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_detect),
#if defined(__x86_64__)
        cmocka_unit_test(test_asks_near),
        cmocka_unit_test(test_tiles_asked),
#endif
        cmocka_unit_test_setup_teardown(test_model, make_root, drop_root),
        cmocka_unit_test_setup_teardown(test_quota_v2, make_root, drop_root),
        cmocka_unit_test_setup_teardown(test_quota_v1, make_root, drop_root),
        cmocka_unit_test_setup_teardown(test_cores, make_root, drop_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
