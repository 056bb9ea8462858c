/* Records in a directory: whatever happens to it, what is read is what was written, or a miss and a line. */
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <xxhash.h>
#include "base/rng.h"
#include "faults.h"
#include "scratch.h"
#include "tier/tier_impl.h"

enum { PAGES = 5, PART = 96, CAP = 4096 };

static const struct tern_origin origin = {7, 8, 9, "test f32", "0", "t4"};
static int32_t tokens[64 * PAGES + 10];
static struct tern_say quiet;
static int n_lines;
static char last_line[1200];

static void note_line(void *user, const char *line)
{
    (void)user;
    n_lines++;
    (void)snprintf(last_line, sizeof last_line, "%s", line);
    if (getenv("TERN_TEST_SHOW"))
        print_message("%s\n", line);
}

/* Record i of the chain: pages, and behind the last of them an end. */
struct made {
    union {
        struct tern_record h;
        uint8_t bytes[CAP];
    };
    size_t n;
    struct tern_record_name name;
};

static void make(struct made *m, int i)
{
    struct tern_key key;
    memset(m, 0, sizeof *m);
    tern_origin_key(&origin, &key);
    for (int k = 0; k < i && k < PAGES; k++)
        tern_page_key(&key, tokens + 64 * k, &key);
    m->h = (struct tern_record){.kind = i < PAGES ? TERN_RECORD_PAGE : TERN_RECORD_END,
                                .index = (uint32_t)i,
                                .n_tokens = i < PAGES ? 64 : 10,
                                .n_parts = i < PAGES ? 2 : 1,
                                .has = i < PAGES ? 5 : 0,
                                .parent = key,
                                .origin = origin,
                                .part_bytes = {PART + (uint64_t)i, i < PAGES ? 40 : 0}};
    if (i < PAGES)
        tern_page_key(&key, tokens + 64 * i, &m->h.key);
    else
        tern_end_key(&key, tokens + 64 * PAGES, 10, TERN_RECORD_END, &m->h.key);
    m->n = tern_record_bytes(&m->h);
    for (size_t b = sizeof m->h; b < m->n; b++)
        m->bytes[b] = (uint8_t)(b * 7 + (size_t)i);
    tern_record_seal(m->bytes);
    m->name = tern_record_name_of(&m->h);
}

static int make_folder(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        tokens[i] = (int32_t)(i * 31 % 1000);
    tern_say_init(&quiet, note_line, NULL);
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[200];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command); // NOLINT(cert-env33-c)
}

static struct tern_disk *open_disk(const char *name, size_t limit, size_t min_free)
{
    struct tern_disk *d;
    tern_error err = {0};
    if (tern_disk_open(&d, in_dir(name), limit, min_free, &quiet, &err) < 0)
        fail_msg("%s", err.msg);
    quiet.n = 0;
    return d;
}

static struct tern_tier_stats stats_of(struct tern_disk *d)
{
    struct tern_tier_stats s;
    tern_disk_get_stats(d, &s);
    return s;
}

static void write_records(struct tern_disk *d)
{
    struct made m;
    for (int i = 0; i <= PAGES; i++) {
        make(&m, i);
        tern_disk_write(d, m.bytes, m.n);
    }
}

/* Is what is read of record i exactly what was made? */
static bool read_back(struct tern_disk *d, int i)
{
    static struct made m;
    static uint8_t got[CAP];
    make(&m, i);
    if (!tern_disk_read(d, &m.name, &origin, got, sizeof got))
        return false;
    assert_memory_equal(got, m.bytes, m.n);
    return true;
}

static char *path_of(const char *folder, int i)
{
    static char path[400];
    char name[TERN_RECORD_NAME];
    struct made m;
    make(&m, i);
    tern_record_name_text(&m.name, name);
    (void)snprintf(path, sizeof path, "%s/%s", in_dir(folder), name);
    return path;
}

/* ---- names and keys ---------------------------------------------------------------------------------------------- */

static void test_names(void **state)
{
    static const char *const bad[] = {"", "lock", "new", "00-1-64.page", "aside"};
    char text[TERN_RECORD_NAME], longer[TERN_RECORD_NAME + 8];
    struct tern_record_name back;
    (void)state;
    for (int i = 0; i <= PAGES; i++) {
        struct made m;
        make(&m, i);
        tern_record_name_text(&m.name, text);
        assert_true(tern_record_name_parse(&back, text));
        assert_memory_equal(&back.key, &m.name.key, sizeof back.key);
        assert_int_equal(back.index, m.name.index);
        assert_int_equal(back.kind, m.name.kind);
        (void)snprintf(longer, sizeof longer, "%s~", text);
        assert_false(tern_record_name_parse(&back, longer));
        text[3] = 'G';
        assert_false(tern_record_name_parse(&back, text));
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(tern_record_name_parse(&back, bad[i]));
}

/* FIPS 180-4 and its examples. */
static void test_sha256(void **state)
{
    static const struct {
        const char *text;
        uint8_t first[4];
    } known[] = {{"", {0xe3, 0xb0, 0xc4, 0x42}},
                 {"abc", {0xba, 0x78, 0x16, 0xbf}},
                 {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", {0x24, 0x8d, 0x6a, 0x61}}};
    uint8_t out[TERN_SHA256], cut[TERN_SHA256], block[300];
    struct tern_sha256 s, t;
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        tern_sha256_init(&s);
        tern_sha256_add(&s, known[i].text, strlen(known[i].text));
        tern_sha256_get(&s, out);
        assert_memory_equal(out, known[i].first, 4);
    }
    memset(block, 'a', sizeof block);
    for (size_t n = 0; n < sizeof block; n++) { /* however it is cut */
        tern_sha256_init(&s);
        tern_sha256_add(&s, block, n);
        tern_sha256_get(&s, out);
        tern_sha256_init(&t);
        tern_sha256_add(&t, block, n / 3);
        tern_sha256_get(&t, cut);
        tern_sha256_add(&t, block, n - n / 3);
        tern_sha256_get(&t, cut);
        assert_memory_equal(out, cut, sizeof out);
    }
}

/* All that changes the bytes changes the key. */
static void test_origin(void **state)
{
    struct tern_key a, b;
    tern_error err = {0};
    struct tern_origin o[6];
    (void)state;
    for (int i = 0; i < 6; i++)
        o[i] = origin;
    o[1].weights++;
    o[2].layout++;
    o[3].rope++;
    o[4].arithmetic[0] = 'x';
    o[5].version[0] = '1';
    tern_origin_key(&o[0], &a);
    o[0].kv[0] = '?'; /* in words: for people alone */
    tern_origin_key(&o[0], &b);
    assert_memory_equal(&a, &b, sizeof a);
    for (int i = 1; i < 6; i++) {
        static const char *const said[] = {"", "weights", "--kv", "rotary", "arithmetic", "version"};
        tern_origin_key(&o[i], &b);
        assert_memory_not_equal(&a, &b, sizeof a);
        assert_int_equal(tern_origin_check(&o[i], &origin, &err), TERN_EMISMATCH);
        assert_non_null(strstr(err.msg, said[i]));
    }
}

/* ---- a directory ------------------------------------------------------------------------------------------------- */

static void test_round_trip(void **state)
{
    struct stat st;
    (void)state;
    struct tern_disk *d = open_disk("trip", 1 << 20, 0);
    for (int i = 0; i <= PAGES; i++)
        assert_false(read_back(d, i));
    write_records(d);
    write_records(d); /* what is there is not written again */
    assert_int_equal(stats_of(d).written, PAGES + 1);
    assert_int_equal(stats_of(d).entries, PAGES + 1);
    tern_disk_close(d);
    d = open_disk("trip", 1 << 20, 0);
    assert_int_equal(stats_of(d).entries, PAGES + 1);
    for (int i = 0; i <= PAGES; i++)
        assert_true(read_back(d, i));
    assert_int_equal(stat(in_dir("trip"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(stat(path_of("trip", 0), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(stats_of(d).damaged, 0);
    tern_disk_close(d);
}

static void flip(const char *path, size_t at)
{
    uint8_t b;
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &b, 1, (off_t)at), 1);
    b ^= 0x10;
    assert_int_equal(pwrite(fd, &b, 1, (off_t)at), 1);
    (void)close(fd);
}

/* A miss and one line, and the file is out of the way. */
static void check_damage(struct tern_disk *d, int i, const char *what, size_t at)
{
    struct stat st;
    const int before = n_lines;
    const uint64_t damaged = stats_of(d).damaged;
    if (read_back(d, i))
        fail_msg("record %d, %s at byte %zu: not found out", i, what, at);
    assert_int_equal(n_lines, before + 1);
    assert_int_equal(stats_of(d).damaged, damaged + 1);
    assert_true(stat(path_of("bad", i), &st) < 0);
    assert_false(read_back(d, i));
    assert_int_equal(n_lines, before + 1);
    quiet.n = 0;
}

static void test_every_byte(void **state)
{
    struct made m;
    (void)state;
    struct tern_disk *d = open_disk("bad", 1 << 20, 0);
    for (int i = 0; i <= PAGES; i += PAGES) {
        make(&m, i);
        for (size_t at = 0; at < m.n; at++) {
            tern_disk_write(d, m.bytes, m.n);
            flip(path_of("bad", i), at);
            check_damage(d, i, "a flipped bit", at);
        }
        for (size_t n = 0; n < m.n; n += n < 520 ? 37 : 1) {
            tern_disk_write(d, m.bytes, m.n);
            assert_int_equal(truncate(path_of("bad", i), (off_t)n), 0);
            check_damage(d, i, "cut", n);
        }
        tern_disk_write(d, m.bytes, m.n);
        assert_int_equal(truncate(path_of("bad", i), (off_t)m.n + 1), 0);
        check_damage(d, i, "a byte too much", m.n);
        tern_disk_write(d, m.bytes, m.n);
        assert_int_equal(truncate(path_of("bad", i), (off_t)1 << 30), 0);
        check_damage(d, i, "far too long", m.n);
    }
    tern_disk_close(d);
}

static int count_files(const char *folder, size_t *bytes)
{
    int n = 0;
    struct stat st;
    struct tern_record_name name;
    char path[700];
    DIR *d = opendir(folder);
    *bytes = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (!tern_record_name_parse(&name, e->d_name))
            continue;
        (void)snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        assert_int_equal(stat(path, &st), 0);
        *bytes += (size_t)st.st_size;
        n++;
    }
    (void)closedir(d);
    return n;
}

static void test_aside_is_few(void **state)
{
    int n = 0;
    (void)state;
    DIR *d = opendir(in_dir("bad/aside"));
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    (void)closedir(d);
    assert_in_range(n, 1, 8);
}

/* Another record under its name, one that is none, a link, a folder, a pipe. */
static void test_strange_files(void **state)
{
    char from[400];
    (void)state;
    struct tern_disk *d = open_disk("bad", 1 << 20, 0);
    write_records(d);
    (void)snprintf(from, sizeof from, "%s", path_of("bad", 1));
    assert_int_equal(rename(from, path_of("bad", 2)), 0);
    check_damage(d, 2, "another record", 0);
    write_records(d);
    assert_int_equal(unlink(path_of("bad", 3)), 0);
    assert_int_equal(symlink("/etc/passwd", path_of("bad", 3)), 0);
    assert_false(read_back(d, 3));
    assert_int_equal(unlink(path_of("bad", 3)), 0);
    assert_int_equal(mkfifo(path_of("bad", 3), 0600), 0);
    assert_false(read_back(d, 3));
    (void)unlink(path_of("bad", 3));
    assert_int_equal(mkdir(path_of("bad", 3), 0700), 0);
    assert_false(read_back(d, 3));
    tern_disk_close(d);
    write_text("bad/other", "of somebody else");
    const int lines = n_lines;
    d = open_disk("bad", 1 << 20, 0);
    assert_true(n_lines > lines);
    assert_int_equal(access(in_dir("bad/other"), F_OK), 0);
    tern_disk_close(d);
}

static void test_read_only(void **state)
{
    (void)state;
    struct tern_disk *d = open_disk("ro", 1 << 20, 0);
    write_records(d);
    tern_disk_close(d);
    assert_int_equal(unlink(in_dir("ro/lock")), 0); /* a folder in its place: not even root can open it to write */
    assert_int_equal(mkdir(in_dir("ro/lock"), 0700), 0);
    int lines = n_lines;
    d = open_disk("ro", 1 << 20, 0);
    assert_int_equal(n_lines, lines + 1);
    assert_true(stats_of(d).read_only);
    assert_false(tern_disk_writes(d));
    for (int i = 0; i <= PAGES; i++)
        assert_true(read_back(d, i));
    assert_int_equal(unlink(path_of("ro", 0)), 0);
    write_records(d);
    assert_false(read_back(d, 0));
    tern_disk_close(d);
}

/* A directory that is removed comes back, another one in its place is used; one that was moved away is used there. */
static void test_other_directory(void **state)
{
    char command[300];
    (void)state;
    struct tern_disk *d = open_disk("gone", 1 << 20, 0);
    write_records(d);
    (void)snprintf(command, sizeof command, "rm -r %s", in_dir("gone"));
    assert_int_equal(system(command), 0); // NOLINT(cert-env33-c)
    assert_false(read_back(d, 0));
    const int lines = n_lines;
    write_records(d);
    assert_int_equal(n_lines, lines + 1);
    assert_int_equal(stats_of(d).entries, PAGES + 1);
    for (int i = 0; i <= PAGES; i++)
        assert_true(read_back(d, i));
    struct tern_disk *other = open_disk("gone", 1 << 20, 0); /* they are where a new process looks */
    assert_true(read_back(other, PAGES));
    tern_disk_close(other);
    tern_disk_close(d);

    d = open_disk("moved", 1 << 20, 0);
    assert_int_equal(rename(in_dir("moved"), in_dir("elsewhere")), 0);
    write_records(d);
    assert_int_equal(access(path_of("elsewhere", PAGES), R_OK), 0);
    assert_int_equal(access(in_dir("moved"), F_OK), -1);
    assert_int_equal(mkdir(in_dir("moved"), 0700), 0);
    assert_true(read_back(d, 0));
    write_records(d);
    assert_int_equal(access(path_of("moved", PAGES), R_OK), 0);
    tern_disk_close(d);
}

/* ---- caps -------------------------------------------------------------------------------------------------------- */

static void test_cap(void **state)
{
    struct made m;
    size_t bytes;
    (void)state;
    make(&m, 0);
    const size_t limit = 20 * m.n;
    struct tern_disk *d = open_disk("cap", limit, 0);
    for (int i = 0; i < 200; i++) {
        tokens[0] = i; /* another chain each time */
        make(&m, 0);
        tern_disk_write(d, m.bytes, m.n);
        (void)count_files(in_dir("cap"), &bytes);
        assert_true(bytes <= limit);
        assert_true(read_back(d, 0));
    }
    assert_true(stats_of(d).evictions > 100);
    assert_int_equal(stats_of(d).bytes, bytes);
    tern_disk_close(d);
    d = open_disk("cap", m.n - 1, 0); /* less than a page */
    int lines = n_lines;
    tokens[0] = 1000;
    make(&m, 0);
    tern_disk_write(d, m.bytes, m.n);
    assert_int_equal(n_lines, lines + 1);
    assert_int_equal(stats_of(d).dropped, 1);
    tern_disk_close(d);
    d = open_disk("cap2", 1 << 20, (size_t)1 << 62); /* a disk that may not be filled */
    tern_disk_write(d, m.bytes, m.n);
    assert_int_equal(count_files(in_dir("cap2"), &bytes), 0);
    tern_disk_close(d);
}

/* What was used longest ago goes first; of a chain its end; whatever the clock says. */
static void test_order(void **state)
{
    struct made m;
    (void)state;
    tokens[0] = 5;
    make(&m, PAGES - 1);
    const size_t limit = (size_t)PAGES * m.n;
    struct tern_disk *d = open_disk("order", limit, 0);
    for (int i = 0; i < PAGES; i++) {
        make(&m, i);
        tern_disk_write(d, m.bytes, m.n);
    }
    for (int i = 0; i < PAGES; i++) {
        const struct timespec t[2] = {{.tv_sec = 1000000}, {.tv_sec = 1000000 + i}};
        assert_int_equal(utimensat(AT_FDCWD, path_of("order", i), t, 0), 0);
    }
    tokens[64 * PAGES - 1]++; /* another last page */
    make(&m, PAGES - 1);
    tern_disk_write(d, m.bytes, m.n);
    assert_true(read_back(d, PAGES - 1));
    tokens[64 * PAGES - 1]--;
    assert_false(read_back(d, PAGES - 1));
    assert_true(read_back(d, 0));
    const struct timespec ahead[2] = {{.tv_sec = 1000000}, {.tv_sec = 4000000000}};
    assert_int_equal(utimensat(AT_FDCWD, path_of("order", 0), ahead, 0), 0); /* the clock was set back */
    assert_true(read_back(d, 0));
    tern_disk_close(d);
    d = open_disk("order", limit, 0);
    assert_true(read_back(d, 0));
    tern_disk_close(d);
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

/* Writes and reads while the n-th call fails: what is read is right or a miss; later all is well. */
static void run_with(enum fault kind)
{
    bool fired = true;
    for (int n = 1; fired && n < 200; n++) {
        char name[40];
        struct tern_disk *d;
        tern_error err = {0};
        (void)snprintf(name, sizeof name, "%s-%d", fault_names[kind], n);
        fault_arm(kind, n);
        const int rc = tern_disk_open(&d, in_dir(name), 1 << 20, 0, &quiet, &err);
        if (rc == 0) {
            write_records(d);
            for (int i = 0; i <= PAGES; i++)
                (void)read_back(d, i);
            tern_disk_close(d);
        } else {
            assert_true(err.msg[0]);
        }
        fired = fault_disarm();
        d = open_disk(name, 1 << 20, 0);
        write_records(d);
        for (int i = 0; i <= PAGES; i++)
            if (!read_back(d, i))
                fail_msg("%s %d: record %d is gone for good", fault_names[kind], n, i);
        tern_disk_close(d);
    }
    assert_false(fired);
}

static void test_faults(void **state)
{
    static const enum fault kinds[] = {FAULT_MEMORY,    FAULT_OPEN, FAULT_STAT,   FAULT_READ,     FAULT_SHORT,
                                       FAULT_INTERRUPT, FAULT_LOCK, FAULT_RENAME, FAULT_DISK_FULL};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        run_with(kinds[i]);
}

/* A disk that fails is left alone after a few times. */
static void test_read_errors(void **state)
{
    (void)state;
    struct tern_disk *d = open_disk("eio", 1 << 20, 0);
    write_records(d);
    for (int i = 0; i < 3; i++) {
        assert_false(stats_of(d).off);
        fault_arm(FAULT_READ, 1);
        assert_false(read_back(d, i));
        assert_true(fault_disarm());
    }
    assert_true(stats_of(d).off);
    assert_int_equal(stats_of(d).errors, 3);
    assert_false(read_back(d, 4)); /* nobody asks it */
    tern_disk_close(d);
    d = open_disk("eio", 1 << 20, 0);
    for (int i = 0; i <= PAGES; i++) /* and nothing was set aside for it */
        assert_true(read_back(d, i));
    tern_disk_close(d);
}

/* ---- several processes, and their ends --------------------------------------------------------------------------- */

enum { CHAINS = 40 };

static void write_for_ever(uint64_t seed, const char *folder, size_t limit, int rounds)
{
    struct tern_rng g = {seed};
    struct made m;
    struct tern_disk *d = open_disk(folder, limit, 0);
    for (int i = 0; i != rounds; i++) {
        tokens[0] = (int32_t)(tern_rng_u64(&g) % CHAINS);
        const int k = (int)(tern_rng_u64(&g) % (PAGES + 1));
        make(&m, k);
        tern_disk_write(d, m.bytes, m.n);
        if (tern_rng_u64(&g) % 4 == 0)
            (void)read_back(d, k);
    }
    tern_disk_close(d);
}

/* All that is there is what it says, and no more than may be. */
static void check_folder(const char *folder, size_t limit)
{
    size_t bytes;
    struct tern_disk *d = open_disk(folder, limit, 0);
    const int n = count_files(in_dir(folder), &bytes), lines = n_lines;
    int good = 0;
    assert_true(bytes <= limit);
    for (tokens[0] = 0; tokens[0] < CHAINS; tokens[0]++)
        for (int i = 0; i <= PAGES; i++)
            good += read_back(d, i);
    assert_int_equal(good, n);
    assert_int_equal(n_lines, lines);
    assert_true(access(in_dir("kill/new"), F_OK) < 0);
    tern_disk_close(d);
}

static void test_kill(void **state)
{
    const char *more = getenv("TERN_TEST_LONG");
    const int times = more ? 1000 : 100;
    struct made m;
    struct tern_rng g = {41};
    (void)state;
    make(&m, 0);
    const size_t limit = 60 * m.n;
    for (int i = 0; i < times; i++) {
        pid_t p[2];
        for (int k = 0; k < 2; k++) {
            p[k] = fork();
            assert_true(p[k] >= 0);
            if (p[k] == 0) {
                write_for_ever((uint64_t)(2 * i + k), "kill", limit, -1);
                _exit(0);
            }
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = (long)(tern_rng_u64(&g) % 6000000)}, NULL);
        for (int k = 0; k < 2; k++) {
            int status;
            (void)kill(p[k], SIGKILL);
            assert_int_equal(waitpid(p[k], &status, 0), p[k]);
            assert_true(WIFSIGNALED(status));
        }
        check_folder("kill", limit);
    }
}

static void test_two_processes(void **state)
{
    struct made m;
    (void)state;
    make(&m, 0);
    const size_t limit = 100 * m.n;
    pid_t p[3];
    for (int k = 0; k < 3; k++) {
        p[k] = fork();
        if (p[k] == 0) {
            write_for_ever((uint64_t)k + 7, "two", limit, 300);
            _exit(0);
        }
    }
    for (int k = 0; k < 3; k++) {
        int status;
        assert_int_equal(waitpid(p[k], &status, 0), p[k]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    check_folder("two", limit);
}

static struct tern_disk *moves; /* its directory is exchanged when a file was read; NULL: none is */

/* What the tier calls between reading a file and checking it. */
int futimens(int fd, const struct timespec times[2])
{
    struct tern_disk *d = moves;
    if (d) {
        char to[400];
        moves = NULL;
        (void)snprintf(to, sizeof to, "%s", in_dir("moved-away"));
        assert_int_equal(rename(in_dir("moving"), to), 0);
        assert_int_equal(mkdir(in_dir("moving"), 0700), 0);
        write_records(d);
    }
    return (int)syscall(SYS_utimensat, fd, NULL, times, 0);
}

/* A damaged file was read, and then the directory is another one: what has the same name there stays. */
static void test_moved_between(void **state)
{
    (void)state;
    struct tern_disk *d = open_disk("moving", 1 << 20, 0);
    write_records(d);
    flip(path_of("moving", 1), 300);
    moves = d;
    assert_false(read_back(d, 1));
    assert_null(moves);
    assert_int_equal(stats_of(d).damaged, 1);
    assert_non_null(strstr(last_line, "another one has taken its place"));
    assert_true(read_back(d, 1));
    assert_true(read_back(d, 0));
    tern_disk_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_sha256),
        cmocka_unit_test(test_origin),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_every_byte),
        cmocka_unit_test(test_aside_is_few),
        cmocka_unit_test(test_strange_files),
        cmocka_unit_test(test_read_only),
        cmocka_unit_test(test_cap),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_read_errors),
        cmocka_unit_test(test_kill),
        cmocka_unit_test(test_two_processes),
        cmocka_unit_test(test_other_directory),
        cmocka_unit_test(test_moved_between),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
