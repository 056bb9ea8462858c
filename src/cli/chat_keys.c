#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/chat.h"

#define ESCAPE       0x1b
#define BEGIN        "\033[200~"
#define END          "\033[201~"
#define MARK_LENGTH  6
#define MARK_MS      50 /* the bytes of a mark come together; a person who presses Escape waits that long */
#define PASTE_MS     2000
#define MAX_PASTE    ((size_t)1 << 28)
#define SHORT_ENOUGH 1000 /* bytes of one line that are edited like typed ones */

void tern_keys_begin(struct tern_keys *k)
{
    for (size_t i = 0; i < k->n_pastes; i++)
        tern_buf_clear(&k->pastes[i]);
    k->n_pastes = 0;
    k->failed = false;
    if (k->marks)
        (void)!write(k->terminal, "\033[?2004h", 8);
}

void tern_keys_end(const struct tern_keys *k)
{
    if (k->marks)
        (void)!write(k->terminal, "\033[?2004l", 8);
}

void tern_keys_clear(struct tern_keys *k)
{
    for (size_t i = 0; i < k->n_pastes; i++)
        tern_buf_clear(&k->pastes[i]);
    tern_free(k->pastes);
    tern_buf_clear(&k->paste);
}

bool tern_keys_pasted(const struct tern_keys *k)
{
    return k->n_pastes > 0 || k->failed;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static void wake(int sig)
{
    (void)sig;
}

/* libedit's handler of SIGWINCH ends itself with its first signal; the next one has to end the wait, too. */
static bool resized(struct tern_keys *k)
{
    struct winsize w = {0};
    if (ioctl(STDIN_FILENO, TIOCGWINSZ, &w) != 0)
        return false;
    const bool changed = k->looked && (w.ws_col != k->columns || w.ws_row != k->rows);
    k->looked = true;
    k->columns = w.ws_col;
    k->rows = w.ws_row;
    if (changed) {
        struct sigaction act = {.sa_handler = wake};
        sigemptyset(&act.sa_mask);
        (void)sigaction(SIGWINCH, &act, NULL);
    }
    return changed;
}

/* A byte: 1, 0 (end of input, Ctrl-C, or ms milliseconds without any; ms < 0: waits), -1, TERN_KEYS_RESIZED.  A Ctrl-C
 * must drop the line wherever it arrives: SIGINT is blocked while a line is edited and let through only inside ppoll,
 * so none can slip in between the look at the flag and the wait. */
static int next_byte(struct tern_keys *k, unsigned char *c, int ms)
{
    struct pollfd fd = {.fd = STDIN_FILENO, .events = POLLIN};
    const struct timespec wait = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    sigset_t waiting;
    if (k->next_held < k->n_held) {
        *c = k->held[k->next_held++];
        return 1;
    }
    (void)pthread_sigmask(SIG_BLOCK, NULL, &waiting);
    sigdelset(&waiting, SIGINT);
    for (;;) {
        if (tern_signals_interrupted())
            return 0;
        if (ms < 0 && resized(k))
            return TERN_KEYS_RESIZED;
        int ready = ppoll(&fd, 1, ms < 0 ? NULL : &wait, &waiting);
        if (ready < 0 && errno != EINTR)
            return -1;
        if (ready < 0)
            continue;
        if (ready == 0)
            return 0;
        ssize_t n = read(STDIN_FILENO, c, 1);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        return (int)n;
    }
}

/* Are the next bytes the rest of this mark, whose Escape was read?  If not they are held. */
static bool is_mark(struct tern_keys *k, const char *mark)
{
    unsigned char read[MARK_LENGTH];
    int n = 0;
    bool same = true;
    while (same && n < MARK_LENGTH - 1 && next_byte(k, &read[n], MARK_MS) == 1) {
        same = read[n] == (unsigned char)mark[n + 1];
        n++;
    }
    if (same && n == MARK_LENGTH - 1)
        return true;
    unsigned char rest[sizeof k->held];
    int left = k->n_held - k->next_held;
    memcpy(rest, k->held + k->next_held, (size_t)left);
    memcpy(k->held, read, (size_t)n);
    memcpy(k->held + n, rest, (size_t)left);
    k->next_held = 0;
    k->n_held = n + left;
    return false;
}

/* ---- pastes ------------------------------------------------------------------------------------------------------ */

/* Terminals send a line's end as the Enter key does. */
static void read_paste(struct tern_keys *k)
{
    unsigned char c, last = 0;
    tern_buf_reset(&k->paste);
    k->paste.max = MAX_PASTE;
    while (next_byte(k, &c, PASTE_MS) == 1) {
        if (c == ESCAPE && is_mark(k, END))
            return;
        if (c == '\n' && last == '\r') { /* one line's end in two bytes */
            last = c;
            continue;
        }
        last = c;
        if (tern_buf_addc(&k->paste, c == '\r' ? '\n' : (char)c, NULL) < 0)
            k->failed = true;
    }
}

static bool is_short_line(const struct tern_buf *b)
{
    if (b->len > SHORT_ENOUGH)
        return false;
    for (size_t i = 0; i < b->len; i++)
        if ((unsigned char)b->p[i] < 0x20 || b->p[i] == 0x7f)
            return false;
    return true;
}

static void write_mark(char *out, size_t n, const struct tern_buf *paste, size_t i)
{
    size_t lines = 1;
    for (size_t j = 0; j < paste->len; j++)
        lines += paste->p[j] == '\n' && j + 1 < paste->len;
    (void)snprintf(out, n, "[pasted %zu line%s #%zu]", lines, lines == 1 ? "" : "s", i + 1);
}

/* What is edited in place of the paste: itself, when it is a short line. */
static void take_paste(struct tern_keys *k)
{
    read_paste(k);
    k->n_mark = 0;
    k->in_mark = true;
    k->mark[0] = 0;
    if (is_short_line(&k->paste))
        return;
    if (tern_grow(&k->pastes, &k->cap_pastes, k->n_pastes + 1, sizeof *k->pastes, NULL) < 0) {
        k->failed = true;
        return;
    }
    write_mark(k->mark, sizeof k->mark, &k->paste, k->n_pastes);
    k->pastes[k->n_pastes++] = k->paste;
    k->paste = (struct tern_buf){0};
}

int tern_keys_expand(const struct tern_keys *k, const char *line, size_t n, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    const char *p = line, *end = line + n;
    char mark[sizeof k->mark];
    if (k->failed)
        return tern_err_set(err, TERN_ELIMIT, "what was pasted does not fit into memory");
    for (size_t i = 0; i < k->n_pastes; i++) {
        write_mark(mark, sizeof mark, &k->pastes[i], i);
        const char *at = memmem(p, (size_t)(end - p), mark, strlen(mark));
        if (!at) /* deleted again, or moved before another one */
            continue;
        TERN_TRY(tern_buf_add(out, p, (size_t)(at - p), err));
        TERN_TRY(tern_buf_add(out, k->pastes[i].p ? k->pastes[i].p : "", k->pastes[i].len, err));
        p = at + strlen(mark);
    }
    TERN_TRY(tern_buf_add(out, p, (size_t)(end - p), err));
out:
    return rc;
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* The next byte of the text in place of a paste; 0: it is over. */
static int next_of_mark(struct tern_keys *k, unsigned char *c)
{
    const char *text = k->mark[0] ? k->mark : k->paste.p ? k->paste.p : "";
    size_t n = k->mark[0] ? strlen(k->mark) : k->paste.len;
    if (k->n_mark >= n) {
        k->in_mark = false;
        return 0;
    }
    *c = (unsigned char)text[k->n_mark++];
    return 1;
}

int tern_keys_next(struct tern_keys *k, wchar_t *key)
{
    mbstate_t state = {0};
    for (;;) {
        unsigned char c = 0;
        if (!k->in_mark || !next_of_mark(k, &c)) {
            int rc = next_byte(k, &c, -1);
            if (rc != 1)
                return rc;
            if (c == ESCAPE && k->next_held == k->n_held && is_mark(k, BEGIN)) {
                take_paste(k);
                continue;
            }
        }
        size_t used = mbrtowc(key, (const char *)&c, 1, &state);
        if (used == (size_t)-1)
            memset(&state, 0, sizeof state); /* not UTF-8: the byte is dropped */
        else if (used != (size_t)-2)
            return 1;
    }
}
