#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/chat.h"

#define MAX_MESSAGE_BYTES ((size_t)1 << 28)

struct tern_input {
    EditLine *el; /* NULL: plain lines */
    History *history;
    char *line; /* of getline */
    size_t cap;
    bool more; /* the prompt of a continuation line */
    struct tern_keys keys;
    struct tern_buf line_with_pastes;
};

static char *show_prompt(EditLine *el)
{
    static char first[] = "> ", more[] = ". ";
    void *in = NULL;
    (void)el_get(el, EL_CLIENTDATA, &in);
    return in && ((struct tern_input *)in)->more ? more : first;
}

/* libedit decodes keys by the locale; anything but UTF-8 would break every letter beyond ASCII. */
static void use_utf8(void)
{
    (void)setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        (void)setlocale(LC_CTYPE, "C.UTF-8");
}

/* libedit asks for keys one by one, and the window may have changed meanwhile. */
static int read_key(EditLine *el, wchar_t *key)
{
    void *in = NULL;
    (void)el_get(el, EL_CLIENTDATA, &in);
    for (;;) {
        int rc = tern_keys_next(&((struct tern_input *)in)->keys, key);
        if (rc != TERN_KEYS_RESIZED)
            return rc;
        el_resize(el);
        (void)el_set(el, EL_REFRESH);
    }
}

/* Where the line that is typed is shown; NULL: nowhere.  Replies may go to a file, and that shall hold nothing else. */
static FILE *terminal_of(void)
{
    return !isatty(STDIN_FILENO) ? NULL : isatty(STDOUT_FILENO) ? stdout : isatty(STDERR_FILENO) ? stderr : NULL;
}

static int start_editor(struct tern_input *in, FILE *to, tern_error *err)
{
    HistEvent event;
    const char *term = getenv("TERM");
    use_utf8();
    in->keys.terminal = fileno(to);
    in->keys.marks = term && *term && strcmp(term, "dumb") != 0;
    in->el = el_init("tern", stdin, to, stderr);
    in->history = history_init();
    if (!in->el || !in->history)
        return tern_err_set(err, TERN_EIO, "cannot start the line editor");
    (void)history(in->history, &event, H_SETSIZE, 1000);
    (void)history(in->history, &event, H_SETUNIQUE, 1);
    (void)el_set(in->el, EL_CLIENTDATA, in);
    (void)el_set(in->el, EL_PROMPT, show_prompt);
    (void)el_set(in->el, EL_EDITOR, "emacs");
    (void)el_set(in->el, EL_HIST, history, in->history);
    (void)el_set(in->el, EL_SIGNAL, 1); /* restores the terminal before a signal is delivered */
    (void)el_set(in->el, EL_GETCFN, read_key);
    (void)el_source(in->el, NULL); /* the user's ~/.editrc */
    return 0;
}

int tern_input_new(struct tern_input **out, tern_error *err)
{
    *out = NULL;
    struct tern_input *in = calloc(1, sizeof *in);
    if (!in)
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate the line reader");
    FILE *to = terminal_of();
    int rc = to ? start_editor(in, to, err) : 0;
    if (rc < 0)
        tern_input_free(in);
    else
        *out = in;
    return rc;
}

void tern_input_free(struct tern_input *in)
{
    if (!in)
        return;
    if (in->el)
        el_end(in->el);
    if (in->history)
        history_end(in->history);
    tern_keys_clear(&in->keys);
    tern_buf_clear(&in->line_with_pastes);
    free(in->line);
    free(in);
}

bool tern_input_interactive(const struct tern_input *in)
{
    return in->el != NULL;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static const char *edited_line(struct tern_input *in, int *n)
{
    sigset_t interrupt, old;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, &interrupt, &old);
    (void)el_set(in->el, EL_PREP_TERM,
                 1); /* el_gets would prompt first: a quick Ctrl-D would still mean the old mode */
    tern_keys_begin(&in->keys);
    const char *line = el_gets(in->el, n);
    tern_keys_end(&in->keys);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return line;
}

/* One line without its end into *line; a tern_input_result or an error. */
static int next_line(struct tern_input *in, const char **line, size_t *len, tern_error *err)
{
    if (in->el) {
        int n = 0;
        *line = edited_line(in, &n);
        if (tern_signals_interrupted()) {
            tern_signals_hold();
            el_reset(in->el);
            (void)fputc('\n', stderr);
            return TERN_INPUT_INTERRUPTED;
        }
        if (!*line || n <= 0)
            return TERN_INPUT_END;
        *len = (size_t)n;
        if (tern_keys_pasted(&in->keys)) {
            tern_buf_reset(&in->line_with_pastes);
            int rc = tern_keys_expand(&in->keys, *line, *len, &in->line_with_pastes, err);
            if (rc < 0)
                return rc;
            *line = in->line_with_pastes.p;
            *len = in->line_with_pastes.len;
        }
    } else {
        errno = 0;
        ssize_t n = getline(&in->line, &in->cap, stdin);
        if (n < 0 && ferror(stdin))
            return tern_err_set(err, TERN_EIO, "cannot read standard input: %s", strerror(errno));
        if (n < 0)
            return TERN_INPUT_END;
        *line = in->line;
        *len = (size_t)n;
    }
    if (*len && (*line)[*len - 1] == '\n')
        (*len)--;
    if (*len && (*line)[*len - 1] == '\r')
        (*len)--;
    return TERN_INPUT_MESSAGE;
}

static bool is_fence(const char *line, size_t len)
{
    return len == 3 && memcmp(line, "\"\"\"", 3) == 0;
}

static void remember(struct tern_input *in, const struct tern_buf *message)
{
    HistEvent event;
    if (in->el && message->len)
        (void)history(in->history, &event, H_ENTER, message->p);
}

static int read_message(struct tern_input *in, struct tern_buf *out, tern_error *err)
{
    const char *line = NULL;
    size_t len = 0;
    bool block = false;
    tern_buf_reset(out);
    out->max = MAX_MESSAGE_BYTES;
    for (int n_lines = 0;; n_lines++) {
        int rc = next_line(in, &line, &len, err);
        if (rc == TERN_INPUT_END && n_lines > 0)
            return TERN_INPUT_MESSAGE; /* an unfinished block at the end of a file still counts */
        if (rc != TERN_INPUT_MESSAGE)
            return rc;
        if (n_lines == 0 && is_fence(line, len)) {
            block = in->more = true;
            continue;
        }
        if (block && is_fence(line, len)) {
            if (out->len)
                out->p[--out->len] = 0; /* the line break before the closing fence is the fence's */
            return TERN_INPUT_MESSAGE;
        }
        bool joined = !block && len && line[len - 1] == '\\';
        rc = tern_buf_add(out, line, joined ? len - 1 : len, err);
        if (rc == 0 && (block || joined))
            rc = tern_buf_addc(out, '\n', err);
        if (rc < 0)
            return rc;
        if (!block && !joined)
            return TERN_INPUT_MESSAGE;
        in->more = true;
    }
}

int tern_input_message(struct tern_input *in, struct tern_buf *out, tern_error *err)
{
    in->more = false;
    int rc = read_message(in, out, err);
    if (rc == TERN_INPUT_MESSAGE)
        remember(in, out);
    return rc;
}
