/* Limits of memory that the system gives a process through cgroups. */
#include "scratch.h"

#include <sys/stat.h>
#include "base/mem.h"

static void make(const char *name)
{
    assert_int_equal(mkdir(in_dir(name), 0700), 0);
}

static size_t limit(const char *self)
{
    write_text("self", self);
    return tern_cgroup_memory(in_dir("groups"), in_dir("self"));
}

static int set_groups(void **state)
{
    if (set_up(state) != 0)
        return -1;
    make("groups");
    make("groups/system.slice");
    make("groups/system.slice/tern.service");
    make("groups/memory");
    make("groups/memory/box");
    return 0;
}

/* A limit holds for its own group and for all below it; "max" is none. */
static void test_tree(void **state)
{
    (void)state;
    assert_true(limit("0::/system.slice/tern.service\n") == SIZE_MAX);
    write_text("groups/system.slice/tern.service/memory.max", "max\n");
    assert_true(limit("0::/system.slice/tern.service\n") == SIZE_MAX);
    write_text("groups/system.slice/memory.max", "3000000\n");
    assert_true(limit("0::/system.slice/tern.service\n") == 3000000);
    write_text("groups/system.slice/tern.service/memory.max", "2000000\n");
    assert_true(limit("0::/system.slice/tern.service\n") == 2000000);
    assert_true(limit("0::/system.slice\n") == 3000000);
    assert_true(limit("0::/\n") == SIZE_MAX);
    write_text("groups/memory.max", "1000000\n");
    assert_true(limit("0::/system.slice/tern.service\n") == 1000000 && limit("0::/\n") == 1000000);
    assert_true(limit("0::/elsewhere\n") == 1000000);
    assert_int_equal(unlink(in_dir("groups/memory.max")), 0);
}

static void test_older_version(void **state)
{
    (void)state;
    write_text("groups/memory/box/memory.limit_in_bytes", "5000\n");
    assert_true(limit("12:cpu,cpuacct:/box\n4:memory:/box/inner\n1:name=systemd:/\n") == 5000);
    assert_true(limit("12:cpu:/box\n") == SIZE_MAX);
}

static void test_nothing(void **state)
{
    (void)state;
    assert_true(limit("") == SIZE_MAX && limit("nonsense\n:\n::\n") == SIZE_MAX);
    assert_true(tern_cgroup_memory(in_dir("groups"), in_dir("no such file")) == SIZE_MAX);
}

static int remove_groups(void **state)
{
    static const char *const files[] = {"groups/system.slice/tern.service/memory.max", "groups/system.slice/memory.max",
                                        "groups/memory/box/memory.limit_in_bytes"};
    static const char *const folders[] = {"groups/system.slice/tern.service", "groups/system.slice",
                                          "groups/memory/box", "groups/memory", "groups"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        (void)unlink(in_dir(files[i]));
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        (void)rmdir(in_dir(folders[i]));
    return tear_down(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tree), cmocka_unit_test(test_older_version),
                                       cmocka_unit_test(test_nothing)};
    return cmocka_run_group_tests(tests, set_groups, remove_groups);
}
