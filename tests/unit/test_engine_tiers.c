/* What outlives a loop: cold = found = restored from a directory = restored from a store = batched = after a cancel, to
 * the last bit, whatever happens to the files in between.
 *
 *     test_engine_tiers [PATTERN]     TERN_TEST_LONG=1: thousands of operations, with seeds of the day */
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include "loop_case.h"
#include "run/loop.h"
#include "served.h"
#include "scratch.h"

enum { LONG = 700, CTX = 900, REPLY = 12, AT_ONCE = 3 };

static const char *const models[] = {"llama-tied", "gemma3-w70", "deepseek2-lite", "qwen35", "deepseek4"};

struct fixture {
    struct tiny t;
    tern_engine *cold;
    tern_engine *e[2]; /* two servers on one directory */
    tern_loop *loop[2];
    tern_events *q;
    size_t cache_bytes;
    const char *folder, *shared;
    int32_t ids[LONG];
    int n_lines;
};

static void note_line(void *user, const char *line)
{
    struct fixture *f = user;
    f->n_lines++;
    if (getenv("TERN_TEST_SHOW"))
        print_message("   %s\n", line);
}

static tern_engine *open_engine(struct tiny *t, int seqs)
{
    tern_engine *e;
    tern_error err = {0};
    tern_engine_params p = {.n_threads = 2, .max_seqs = seqs, .chunk = 96, .ctx = CTX, .kv = "t4"};
    tiny_ok(tern_engine_open(&e, t->model, &p, &err), &err);
    return e;
}

static void open_loop(struct fixture *f, int i)
{
    tern_error err = {0};
    char path[400];
    (void)snprintf(path, sizeof path, "%s/%s", dir, f->folder ? f->folder : "");
    const tern_loop_params p = {.cache_bytes = f->cache_bytes,
                                .cache_dir = f->folder ? path : NULL,
                                .cache_dir_bytes = (size_t)64 << 20,
                                .cache_shared = f->shared && *f->shared ? f->shared : NULL,
                                .on_notice = note_line,
                                .notice_user = f};
    tiny_ok(tern_loop_open(&f->loop[i], f->e[i], &p, &err), &err);
}

static void open_all(struct fixture *f, const char *model, const char *folder, const char *shared)
{
    tern_error err = {0};
    memset(f, 0, sizeof *f);
    tiny_open(&f->t, model, model, model);
    f->t.model->net->desc.ctx = CTX; /* more than it says; no RoPE scaling depends on it */
    lc_random_ids(f->ids, LONG, 7, f->t.n_vocab);
    f->folder = folder;
    f->shared = shared;
    f->cache_bytes = (size_t)64 << 20;
    f->cold = open_engine(&f->t, 1);
    tiny_ok(tern_events_new(&f->q, &err), &err);
    for (int i = 0; i < 2; i++)
        f->e[i] = open_engine(&f->t, 5);
}

static void close_all(struct fixture *f)
{
    for (int i = 0; i < 2; i++) {
        tern_loop_close(&f->loop[i]);
        lc_close_engine(&f->e[i]);
    }
    tern_events_free(f->q);
    tern_engine_close(&f->cold);
    tiny_close(&f->t);
}

static tern_cache_stats stats_of(tern_loop *l)
{
    tern_loop_stats s;
    tern_loop_get_stats(l, &s);
    return s.cache;
}

static tern_request request(const int32_t *ids, int n)
{
    return lc_greedy(ids, n, REPLY);
}

static struct lc_request *submit(struct fixture *f, int loop, const tern_request *r, uint64_t *id)
{
    return lc_submit(f->loop[loop], f->q, r, id);
}

/* The tokens that it gives by itself, on an engine without any cache. */
static void check_alone(struct fixture *f, const tern_request *r, const struct lc_request *rec)
{
    int32_t want[LC_TOKENS];
    for (int k = 0; k < r->n_choices; k++) {
        const struct lc_choice *c = &rec->c[k];
        const int n = lc_alone(f->cold, r, k, want);
        if (c->n > n || (rec->rc == 0 && c->n != n) || memcmp(c->ids, want, (size_t)c->n * sizeof *want) != 0)
            fail_msg("prompt of %d tokens, %d found: other tokens than alone", r->n_prompt, rec->end.n_cached);
    }
}

/* Returns how much of it was found. */
static int ask(struct fixture *f, int loop, const int32_t *ids, int n)
{
    tern_request r = request(ids, n);
    struct lc_request *rec = submit(f, loop, &r, NULL);
    lc_wait(f->q, &rec, 1);
    assert_int_equal(rec->rc, 0);
    check_alone(f, &r, rec);
    const int found = rec->end.n_cached;
    free(rec);
    return found;
}

/* ---- restarts ---------------------------------------------------------------------------------------------------- */

static void restart(struct fixture *f, int i)
{
    tern_loop_close(&f->loop[i]);
    open_loop(f, i);
}

static void test_restart(void **state)
{
    static const int lengths[] = {1, 63, 64, 65, 128, 150, LONG};
#ifdef TERN_TEST_FEW /* one, one page and more, several pages: sanitizers see the same code at the other lengths */
    const size_t by = 3;
#else
    const size_t by = 1;
#endif
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models && served(models[m]); m++) {
        struct fixture f;
        int32_t longer[CTX];
        open_all(&f, models[m], models[m], NULL);
        open_loop(&f, 0);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i += by) {
            const int n = lengths[i];
            assert_true(ask(&f, 0, f.ids, n) < n);
            restart(&f, 0);
            assert_int_equal(ask(&f, 0, f.ids, n), n);
            restart(&f, 0);
            memcpy(longer, f.ids, (size_t)n * sizeof *longer);
            for (int k = 0; k < 40; k++)
                longer[n + k] = f.ids[(k * 7 + n) % LONG];
            assert_in_range(ask(&f, 0, longer, n + 40), n, n + 39);
            restart(&f, 0);
        }
        open_loop(&f, 1); /* another server, on the same directory */
        assert_int_equal(ask(&f, 1, f.ids, LONG), LONG);
        tern_cache_stats s = stats_of(f.loop[1]);
        print_message("%s: %d files, %d bytes; %d came back\n", models[m], (int)s.disk.entries, (int)s.disk.bytes,
                      (int)s.fetched);
        assert_true(s.fetched > 0 && s.disk.read == s.fetched && s.disk.damaged == 0);
        close_all(&f);
        assert_int_equal(f.n_lines, 0);
    }
}

/* Files of another plan, another model, other weights, are never taken. */
static void test_strangers(void **state)
{
    struct fixture f;
    (void)state;
    open_all(&f, "llama-tied", "strange", NULL);
    open_loop(&f, 0);
    (void)ask(&f, 0, f.ids, 200);
    tern_loop_close(&f.loop[0]);
    f.t.model->net->whole++;
    open_loop(&f, 0);
    assert_int_equal(ask(&f, 0, f.ids, 200), 0);
    tern_loop_close(&f.loop[0]);
    f.t.model->net->whole--;
    open_loop(&f, 0);
    assert_int_equal(ask(&f, 0, f.ids, 200), 200);
    close_all(&f);
    open_all(&f, "deepseek2-lite", "strange", NULL);
    open_loop(&f, 0);
    assert_int_equal(ask(&f, 0, f.ids, 64), 0);
    close_all(&f);
}

static int n_spoiled;

/* A bit of every file, or its end. */
static void spoil(const char *folder, uint64_t seed, bool all)
{
    struct tern_rng g = {seed};
    char path[800];
    DIR *d = opendir(in_dir(folder));
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st;
        uint8_t b;
        (void)snprintf(path, sizeof path, "%s/%s", in_dir(folder), e->d_name);
        if (strlen(e->d_name) < 64 || stat(path, &st) < 0 || st.st_size == 0 || !(all || tern_rng_u64(&g) % 16 == 0))
            continue;
        const int fd = open(path, O_RDWR);
        const off_t at = (off_t)(tern_rng_u64(&g) % (uint64_t)st.st_size);
        if (tern_rng_u64(&g) % 4 == 0) {
            assert_int_equal(ftruncate(fd, at), 0);
        } else {
            assert_int_equal(pread(fd, &b, 1, at), 1);
            b ^= (uint8_t)(1 << tern_rng_u64(&g) % 8);
            assert_int_equal(pwrite(fd, &b, 1, at), 1);
        }
        (void)close(fd);
        n_spoiled++;
    }
    (void)closedir(d);
}

static void test_damage(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models && served(models[m]); m++) {
        struct fixture f;
        open_all(&f, models[m], "damage", NULL);
        for (int round = 0; round < 3; round++) {
            open_loop(&f, 0);
            (void)ask(&f, 0, f.ids, 300);
            tern_loop_close(&f.loop[0]);
            spoil("damage", (uint64_t)round + 5, true);
            f.n_lines = 0;
            open_loop(&f, 0);
            assert_int_equal(ask(&f, 0, f.ids, 300), 0);
            assert_true(f.n_lines > 0);
            tern_loop_close(&f.loop[0]);
            open_loop(&f, 0);
            (void)ask(&f, 0, f.ids, 300);
            tern_loop_close(&f.loop[0]);
        }
        close_all(&f);
    }
}

/* ---- at random --------------------------------------------------------------------------------------------------- */

static void draw(struct fixture *f, struct tern_rng *g, int32_t *ids, tern_request *r)
{
    static const int edges[] = {1, 63, 64, 65, 127, 128, 129, 192};
    int n = tern_rng_u64(g) % 2 ? edges[tern_rng_u64(g) % 8] : 1 + (int)(tern_rng_u64(g) % 330);
    int text = (int)(tern_rng_u64(g) % 3) * 200, at = tern_rng_u64(g) % 2 ? n : (int)(tern_rng_u64(g) % (uint64_t)n);
    for (int i = 0; i < n; i++)
        ids[i] = f->ids[(i < at ? text + i : text + 200 + i) % LONG];
    *r = request(ids, n);
    r->max_tokens = tern_rng_u64(g) % 6 ? (int)(tern_rng_u64(g) % 40) : 0;
    r->sampler.temperature = tern_rng_u64(g) % 2 ? 0.8f : 0;
    r->sampler.seed = tern_rng_u64(g) % 100;
    r->n_choices = tern_rng_u64(g) % 6 ? 1 : 2; /* a fork */
}

static void some_requests(struct fixture *f, struct tern_rng *g)
{
    static int32_t ids[AT_ONCE][400];
    tern_request r[AT_ONCE];
    struct lc_request *rec[AT_ONCE];
    uint64_t id[AT_ONCE];
    int loop[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) {
        tern_event e;
        draw(f, g, ids[i], &r[i]);
        loop[i] = (int)(tern_rng_u64(g) % 2);
        rec[i] = submit(f, loop[i], &r[i], &id[i]);
        for (int k = (int)(tern_rng_u64(g) % 10); k > 0 && tern_events_next(f->q, &e, 2); k--)
            lc_note(&e);
        if (tern_rng_u64(g) % 5 == 0) {
            const int k = (int)(tern_rng_u64(g) % (uint64_t)(i + 1));
            tern_loop_cancel(f->loop[loop[k]], id[k]);
        }
    }
    lc_wait(f->q, rec, AT_ONCE);
    for (int i = 0; i < AT_ONCE; i++) {
        assert_true(rec[i]->rc == 0 || rec[i]->rc == TERN_ECANCELLED);
        check_alone(f, &r[i], rec[i]);
        free(rec[i]);
    }
}

static uint64_t all_fetched;

static void run_random(const char *model, uint64_t seed, size_t cache_bytes, const char *folder, const char *shared,
                       int n_ops)
{
    struct fixture f;
    struct tern_rng g = {seed};
    uint64_t fetched = 0, hits = 0, damaged = 0;
    print_message("%s, seed %llu, cache %zu%s%s, %d operations\n", model, (unsigned long long)seed, cache_bytes,
                  folder ? ", directory" : "", shared ? ", store" : "", n_ops);
    open_all(&f, model, folder, shared);
    f.cache_bytes = cache_bytes;
    open_loop(&f, 0);
    open_loop(&f, 1);
    for (int op = 0; op < n_ops; op += AT_ONCE) {
        some_requests(&f, &g);
        const int i = (int)(tern_rng_u64(&g) % 2);
        if (tern_rng_u64(&g) % 4 == 0) {
            tern_cache_stats s = stats_of(f.loop[i]);
            fetched += s.fetched;
            hits += s.hits;
            damaged += s.disk.damaged;
            restart(&f, i);
        }
        if (folder && tern_rng_u64(&g) % 8 == 0)
            spoil(folder, tern_rng_u64(&g), false);
    }
    close_all(&f);
    print_message("   %d found, %d came back, %d damaged\n", (int)hits, (int)fetched, (int)damaged);
    assert_true(hits > 0);
    all_fetched += fetched;
}

static void test_random(void **state)
{
    const bool more = getenv("TERN_TEST_LONG") != NULL;
    const uint64_t seed = more ? (uint64_t)time(NULL) : 1;
    const int n = more ? 3000 : 60;
    char name[40];
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models && served(models[m]); m++)
        for (int little = 0; little < 2; little++) {
            (void)snprintf(name, sizeof name, "random-%d-%d", (int)m, little);
            run_random(models[m], seed + 10 * m + (uint64_t)little, little ? 300000 : (size_t)64 << 20, name, NULL, n);
        }
    assert_true(all_fetched > 0);
}

/* ---- a store ----------------------------------------------------------------------------------------------------- */

static pid_t store;
static int store_port;

static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    (void)close(fd);
    return ntohs(a.sin_port);
}

static bool answers(int port)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const bool ok = connect(fd, (struct sockaddr *)&a, sizeof a) == 0;
    (void)close(fd);
    return ok;
}

/* false: there is no redis-server here. */
static bool start_store(char address[64])
{
    char port[16];
    if (system("command -v redis-server >/dev/null") != 0) // NOLINT(cert-env33-c)
        return false;
    store_port = store_port ? store_port : free_port();
    (void)snprintf(port, sizeof port, "%d", store_port);
    (void)snprintf(address, 64, "redis://127.0.0.1:%d", store_port);
    store = fork();
    if (store == 0) {
        const int null = open("/dev/null", O_WRONLY);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* whatever becomes of the test */
        (void)dup2(null, 1);
        (void)execlp("redis-server", "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "",
                     "--appendonly", "no", "--dir", dir, (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 500 && !answers(store_port); i++)
        (void)nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    return true;
}

static void stop_store(void)
{
    int status;
    if (store <= 0)
        return;
    (void)kill(store, SIGKILL);
    (void)waitpid(store, &status, 0);
    store = 0;
}

/* false: tern knows none, or there is no redis-server here. */
static bool store_is_here(char address[64])
{
    struct fixture f;
    tern_error err = {0};
    const tern_loop_params bad = {.cache_bytes = 1000000, .cache_shared = "redis://"};
    open_all(&f, "llama-tied", NULL, NULL);
    const int rc = tern_loop_open(&f.loop[0], f.e[0], &bad, &err);
    close_all(&f);
    assert_true(rc == TERN_EINVAL || rc == TERN_EUNSUPPORTED);
    if (rc != TERN_EUNSUPPORTED && start_store(address))
        return true;
    print_message("without a store: %s\n", rc == TERN_EUNSUPPORTED ? err.msg : "redis-server is not installed");
    return false;
}

static void test_store(void **state)
{
    char address[64];
    struct fixture f;
    (void)state;
    if (!store_is_here(address))
        return;
    for (size_t m = 0; m < sizeof models / sizeof *models && served(models[m]); m++) {
        open_all(&f, models[m], NULL, address);
        open_loop(&f, 0);
        (void)ask(&f, 0, f.ids, 300);
        tern_loop_close(&f.loop[0]);
        open_loop(&f, 1); /* another server */
        assert_int_equal(ask(&f, 1, f.ids, 300), 300);
        assert_true(stats_of(f.loop[1]).shared.read > 0);
        close_all(&f);
        assert_int_equal(f.n_lines, 0);
    }
    run_random("llama-tied", 3, 300000, NULL, address, 60);
    run_random("qwen35", 4, (size_t)64 << 20, "both", address, 60);
    stop_store();
}

/* One that is gone, one that says nothing, one that comes back. */
static void test_store_is_dead(void **state)
{
    char address[64], mute_address[64];
    struct fixture f;
    (void)state;
    if (!store_is_here(address))
        return;
    open_all(&f, "llama-tied", NULL, address);
    open_loop(&f, 0);
    (void)ask(&f, 0, f.ids, 200);
    stop_store();
    for (int i = 0; i < 6; i++)
        assert_in_range(ask(&f, 0, f.ids + 10 * i + 10, 200), 0, 199);
    tern_cache_stats s = stats_of(f.loop[0]);
    assert_true(s.shared.errors >= 3 && s.shared.off);
    assert_true(f.n_lines >= 1);
    close_all(&f);
    const int mute = socket(AF_INET, SOCK_STREAM, 0); /* takes connections and never answers */
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    assert_int_equal(bind(mute, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(mute, 20), 0);
    assert_int_equal(getsockname(mute, (struct sockaddr *)&a, &n), 0);
    (void)snprintf(mute_address, sizeof mute_address, "redis://127.0.0.1:%d", ntohs(a.sin_port));
    open_all(&f, "llama-tied", NULL, mute_address);
    open_loop(&f, 0);
    for (int i = 0; i < 5; i++)
        (void)ask(&f, 0, f.ids + 10 * i, 200);
    s = stats_of(f.loop[0]);
    assert_true(s.shared.errors >= 3 && s.shared.off && s.shared.read == 0);
    close_all(&f);
    (void)close(mute);
}

/* ---- kill -9 ----------------------------------------------------------------------------------------------------- */

/* The program once more, as a server on the same directory and store that asks itself until it is killed. */
static pid_t start_victim(const char *model, uint64_t seed, const char *folder, const char *shared)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    const pid_t p = fork();
    if (p == 0) {
        const int null = open("/dev/null", O_WRONLY);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(null, 1);
        (void)dup2(null, 2);
        (void)execl("/proc/self/exe", "test_engine_tiers", "ask-for-ever", model, text, dir, folder, shared,
                    (char *)NULL);
        _exit(127);
    }
    assert_true(p > 0);
    return p;
}

static void ask_for_ever(void **state)
{
    char *const *args = *state;
    struct fixture f;
    struct tern_rng g = {strtoull(args[3], NULL, 10)};
    open_all(&f, args[2], args[5], args[6]);
    open_loop(&f, 0);
    open_loop(&f, 1);
    for (;;)
        some_requests(&f, &g);
}

static void end_victim(pid_t *p)
{
    int status;
    if (*p <= 0)
        return;
    (void)kill(*p, SIGKILL);
    assert_int_equal(waitpid(*p, &status, 0), *p);
    assert_true(WIFSIGNALED(status)); /* not by itself: what it asked was answered rightly, too */
    *p = 0;
}

/* Two servers that are asked, one that is killed, and a store that comes and goes, all on one directory. */
static void run_killed(const char *model, uint64_t seed, int n_ops, char *address)
{
    struct fixture f;
    struct tern_rng g = {seed};
    char folder[40];
    pid_t victim = 0;
    int kills = 0, stores = 0;
    uint64_t hits = 0, fetched = 0, damaged = 0;
    (void)snprintf(folder, sizeof folder, "killed-%s", model);
    open_all(&f, model, folder, address);
    f.cache_bytes = 300000;
    open_loop(&f, 0);
    open_loop(&f, 1);
    for (int op = 0; op < n_ops; op += AT_ONCE) {
        if (!victim) {
            victim = start_victim(model, seed + (uint64_t)op + 1, folder, address);
        } else if (tern_rng_u64(&g) % 2 == 0) {
            end_victim(&victim);
            kills++;
        }
        some_requests(&f, &g);
        const int i = (int)(tern_rng_u64(&g) % 2);
        if (tern_rng_u64(&g) % 3 == 0) {
            const tern_cache_stats s = stats_of(f.loop[i]);
            hits += s.hits;
            fetched += s.fetched;
            damaged += s.disk.damaged + s.shared.damaged;
            restart(&f, i);
        }
        if (*address && tern_rng_u64(&g) % 6 == 0) {
            stop_store();
            stores++;
            if (tern_rng_u64(&g) % 2 == 0)
                some_requests(&f, &g);
            assert_true(start_store(address));
        }
    }
    end_victim(&victim);
    close_all(&f);
    print_message("%s, seed %llu, %d operations: %d killed, the store %d times; %d found, %d came back, %d damaged\n",
                  model, (unsigned long long)seed, n_ops, kills, stores, (int)hits, (int)fetched, (int)damaged);
    assert_true(kills > 0 && fetched > 0);
    assert_int_equal(damaged, 0);
}

static void test_killed(void **state)
{
    const bool more = getenv("TERN_TEST_LONG") != NULL;
    const uint64_t seed = more ? (uint64_t)time(NULL) : 7;
    char address[64] = "";
    (void)state;
    if (!store_is_here(address))
        *address = 0;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        run_killed(models[m], seed + m, more ? 600 : 45, address);
    stop_store();
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* A disk that is as slow as the test wants: what is fetched for prompts of SLOW tokens comes when `open`. */
enum { QUICK = 60, SLOW = 400, GROWS = 330 };
static struct {
    struct tern_prefix real;
    atomic_bool open;
    atomic_int n_begun, n_over;
    _Atomic(void *) held[8];
} gate;

static void *gate_fetch(void *self, int plan, const int32_t *tokens, int n)
{
    void *fetch = gate.real.fetch(self, plan, tokens, n);
    if (fetch && n == SLOW)
        atomic_store(&gate.held[atomic_fetch_add(&gate.n_begun, 1)], fetch);
    return fetch;
}

static bool gate_holds(const void *fetch)
{
    bool is_slow = false;
    for (int i = 0; i < atomic_load(&gate.n_begun); i++)
        is_slow = is_slow || atomic_load(&gate.held[i]) == fetch;
    return is_slow;
}

static bool gate_over(const void *fetch)
{
    for (int i = 0; i < atomic_load(&gate.n_begun); i++)
        if (atomic_load(&gate.held[i]) == fetch) {
            atomic_store(&gate.held[i], NULL);
            (void)atomic_fetch_add(&gate.n_over, 1);
            return true;
        }
    return false;
}

static bool gate_fetched(void *self, void *fetch)
{
    const bool slow = gate_holds(fetch);
    if ((slow && !atomic_load(&gate.open)) || !gate.real.fetched(self, fetch))
        return false;
    (void)gate_over(fetch);
    return true;
}

static void gate_drop(void *self, void *fetch)
{
    (void)gate_over(fetch);
    gate.real.drop(self, fetch);
}

static size_t room_of(tern_loop *l, const tern_request *r, int reply)
{
    struct tern_request_run q = {.r = *r};
    l->p.reply_tokens = reply;
    tern_room_of_new(l, &q);
    return q.reserve;
}

/* Both fit when they begin, and half of what the first grows by. */
static void limit_room(tern_loop *l, const tern_request r[2])
{
    (void)pthread_mutex_lock(&l->lock);
    const size_t grown = room_of(l, &r[0], GROWS), begun = room_of(l, &r[0], 1);
    l->p.kv_bytes = begun + room_of(l, &r[1], 1) + (grown - begun) / 2;
    assert_true(l->p.kv_bytes >= grown);
    (void)pthread_mutex_unlock(&l->lock);
}

static void put_gate(tern_loop *l)
{
    gate.real = l->prefix;
    atomic_store(&gate.open, false);
    atomic_store(&gate.n_begun, 0);
    atomic_store(&gate.n_over, 0);
    struct tern_prefix slow = gate.real;
    slow.fetch = gate_fetch;
    slow.fetched = gate_fetched;
    slow.drop = gate_drop;
    tern_loop_set_prefix(l, &slow);
}

/* One reply grows until there is no room, while a younger request waits for its pages: that gives up what it has not
 * got yet, waits again, and gets what it gets alone; or is cancelled. */
static void run_waiting(const char *model, const char *folder, bool cancel)
{
    struct fixture f;
    tern_loop_stats stats;
    uint64_t id[2];
    struct lc_request *rec[2];
    open_all(&f, model, folder, NULL);
    open_loop(&f, 0);
    assert_int_equal(ask(&f, 0, f.ids, SLOW), 0);
    tern_loop_close(&f.loop[0]); /* all is in files */
    open_loop(&f, 0);
    tern_request r[2] = {request(f.ids + SLOW, QUICK), request(f.ids, SLOW)};
    r[0].max_tokens = GROWS;
    tern_loop *l = f.loop[0];
    limit_room(l, r);
    put_gate(l);
    for (int i = 0; i < 2; i++)
        rec[i] = submit(&f, 0, &r[i], &id[i]);
    lc_wait(f.q, rec, 1);
    tern_loop_get_stats(l, &stats);
    assert_int_equal(stats.preempted, 1);
    assert_int_equal(rec[1]->starts, 0); /* it has waited all the time */
    assert_in_range(atomic_load(&gate.n_begun), 1, 2);
    if (cancel)
        tern_loop_cancel(l, id[1]);
    else
        atomic_store(&gate.open, true);
    lc_wait(f.q, rec, 2);
    assert_int_equal(rec[1]->rc, cancel ? TERN_ECANCELLED : 0);
    for (int i = 0; i < (cancel ? 1 : 2); i++)
        check_alone(&f, &r[i], rec[i]);
    tern_loop_get_stats(l, &stats);
    assert_int_equal(stats.kv_reserved, 0);
    assert_int_equal(atomic_load(&gate.n_begun), cancel ? atomic_load(&gate.n_begun) : 2);
    assert_int_equal(atomic_load(&gate.n_over), atomic_load(&gate.n_begun));
    if (!cancel)
        assert_int_equal(rec[1]->end.n_cached, SLOW);
    atomic_store(&gate.open, true);
    assert_int_equal(ask(&f, 0, f.ids, SLOW), SLOW);
    assert_int_equal(stats_of(l).disk.damaged, 0);
    free(rec[0]);
    free(rec[1]);
    close_all(&f);
}

static void test_waiting(void **state)
{
    char name[40];
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models && served(models[m]); m++)
        for (int cancel = 0; cancel < 2; cancel++) {
            (void)snprintf(name, sizeof name, "waiting-%d-%d", (int)m, cancel);
            run_waiting(models[m], name, cancel);
        }
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[200];
    (void)state;
    stop_store();
    (void)snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command); // NOLINT(cert-env33-c)
}

int main(int argc, char **argv)
{
    if (argc == 7 && strcmp(argv[1], "ask-for-ever") == 0) {
        const struct CMUnitTest one[] = {cmocka_unit_test_prestate(ask_for_ever, argv)};
        if (strlen(argv[4]) == strlen(dir))
            memcpy(dir, argv[4], sizeof dir);
        return cmocka_run_group_tests(one, NULL, NULL);
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_restart), cmocka_unit_test(test_strangers), cmocka_unit_test(test_damage),
        cmocka_unit_test(test_random),  cmocka_unit_test(test_store),     cmocka_unit_test(test_store_is_dead),
        cmocka_unit_test(test_killed),  cmocka_unit_test(test_waiting),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
