#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"

/* ---- standard output --------------------------------------------------------------------------------------------- */

static int out_failed; /* errno of the first failure; everything after it is dropped */

static int out_error(tern_error *err)
{
    int code = out_failed == EPIPE ? TERN_CLI_REPORTED : TERN_EIO;
    return tern_err_set(err, code, "cannot write to standard output: %s", strerror(out_failed));
}

int tern_out_write(const char *text, size_t n, tern_error *err)
{
    if (out_failed)
        return out_error(err);
    errno = 0;
    if (n && fwrite(text, 1, n, stdout) != n)
        out_failed = errno ? errno : EIO;
    return out_failed ? out_error(err) : 0;
}

int tern_out_printf(tern_error *err, const char *fmt, ...)
{
    if (out_failed)
        return out_error(err);
    va_list ap;
    va_start(ap, fmt);
    errno = 0;
    if (vprintf(fmt, ap) < 0)
        out_failed = errno ? errno : EIO;
    va_end(ap);
    return out_failed ? out_error(err) : 0;
}

int tern_out_flush(tern_error *err)
{
    if (out_failed)
        return out_error(err);
    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout))
        out_failed = errno ? errno : EIO;
    return out_failed ? out_error(err) : 0;
}

/* ---- talk -------------------------------------------------------------------------------------------------------- */

static void (*note_to)(void *user, const char *line);
static void *note_user;

void tern_note_through(void (*to)(void *user, const char *line), void *user)
{
    note_to = to;
    note_user = user;
}

void tern_note(const char *fmt, ...)
{
    char line[2048];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (note_to)
        note_to(note_user, line);
    else
        (void)fprintf(stderr, "tern: %s\n", line); /* one write: other processes may write there, too */
}

size_t tern_utf8_length(const char *p, const char *end)
{
    const unsigned char *u = (const unsigned char *)p;
    size_t left = (size_t)(end - p);
    if (u[0] < 0x80)
        return 1;
    size_t n = u[0] >= 0xC2 && u[0] <= 0xDF ? 2 : (u[0] & 0xF0) == 0xE0 ? 3 : u[0] >= 0xF0 && u[0] <= 0xF4 ? 4 : 0;
    if (n == 0 || left < n)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((u[i] & 0xC0) != 0x80)
            return 0;
    }
    bool overlong = (u[0] == 0xE0 && u[1] < 0xA0) || (u[0] == 0xF0 && u[1] < 0x90);
    bool outside = (u[0] == 0xED && u[1] > 0x9F) || (u[0] == 0xF4 && u[1] > 0x8F);
    return overlong || outside ? 0 : n;
}

const char *tern_shown(const char *text)
{
    static _Thread_local char ring[4][640]; /* a sentence with two paths */
    static _Thread_local int next;
    char *out = ring[next++ & 3];
    size_t used = 0;
    const char *end = text + strlen(text);
    while (text < end && used + 8 < sizeof ring[0]) {
        size_t n = tern_utf8_length(text, end);
        bool control = (unsigned char)*text < 0x20 || *text == 0x7F ||
                       (n == 2 && (unsigned char)*text == 0xC2 && (unsigned char)text[1] < 0xA0);
        if (n == 0 || control) {
            out[used++] = '?';
            text += n ? n : 1;
            continue;
        }
        memcpy(out + used, text, n);
        used += n;
        text += n;
    }
    if (text < end) {
        memcpy(out + used, "...", 3);
        used += 3;
    }
    out[used] = 0;
    return out;
}

const char *tern_size_text(double bytes)
{
    static _Thread_local char ring[4][32];
    static _Thread_local int next;
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    while (bytes >= 1024 && u < 4) {
        bytes /= 1024;
        u++;
    }
    char *out = ring[next++ & 3];
    (void)snprintf(out, sizeof ring[0], u && bytes < 100 ? "%.1f %s" : "%.0f %s", bytes, units[u]);
    return out;
}

const char *tern_csv_text(const char *text)
{
    static char ring[4][512];
    static int next;
    char *out = ring[next++ & 3];
    size_t used = 0;
    out[used++] = '"';
    for (const char *p = tern_shown(text); *p && used + 4 < sizeof ring[0]; p++) {
        if (*p == '"')
            out[used++] = '"';
        out[used++] = *p;
    }
    out[used++] = '"';
    out[used] = 0;
    return out;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

json_t *tern_json_text(const char *text)
{
    if (!text)
        return json_null();
    json_t *plain = json_string(text);
    if (plain)
        return plain;
    struct tern_buf b = {0};
    const char *end = text + strlen(text);
    int rc = 0;
    while (text < end && rc == 0) {
        size_t n = tern_utf8_length(text, end);
        rc = n ? tern_buf_add(&b, text, n, NULL) : tern_buf_add(&b, "\xEF\xBF\xBD", 3, NULL);
        text += n ? n : 1;
    }
    json_t *out = rc == 0 && b.p ? json_stringn(b.p, b.len) : NULL;
    tern_buf_clear(&b);
    return out;
}

json_t *tern_json_spread(const tern_spread *s, double unit)
{
    return json_pack("{sf sf sf}", "median", s->median / unit, "min", s->min / unit, "max", s->max / unit);
}

static int json_chunk(const char *text, size_t n, void *err)
{
    return tern_out_write(text, n, err);
}

int tern_json_print(json_t *object, tern_error *err)
{
    int rc = 0;
    if (!object)
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate the JSON object");
    tern_error inner = {0};
    if (json_dump_callback(object, json_chunk, &inner, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) != 0) {
        if (out_failed)
            rc = out_error(err);
        else
            rc = tern_err_set(err, TERN_ENOMEM, "cannot write the JSON object");
    }
    json_decref(object);
    if (rc == 0)
        rc = tern_out_write("\n", 1, err);
    return rc < 0 ? rc : tern_out_flush(err);
}

/* ---- progress ---------------------------------------------------------------------------------------------------- */

#define BAR_DELAY_S 0.4 /* what is done sooner needs no bar */

int tern_progress_show(void *progress, int done, int total)
{
    struct tern_progress *p = progress;
    if (tern_signals_interrupted())
        return 1;
    double now = tern_now();
    if (p->start == 0)
        p->start = now;
    if (!isatty(STDERR_FILENO) || total <= 0 || (!p->shown && now - p->start < BAR_DELAY_S))
        return 0;
    struct winsize w = {0};
    int columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
    char text[64];
    int used = snprintf(text, sizeof text, " %d/%d", done, total);
    int width = columns - used - (int)strlen(p->what) - 5;
    if (width > 60)
        width = 60;
    if (width < 4)
        return 0;
    int full = (int)((int64_t)width * done / total);
    (void)fprintf(stderr, "\r%s [", p->what);
    for (int i = 0; i < width; i++)
        (void)fputc(i < full ? '#' : '.', stderr);
    (void)fprintf(stderr, "]%s", text);
    (void)fflush(stderr);
    p->shown = true;
    return 0;
}

void tern_progress_end(struct tern_progress *p)
{
    if (p->shown)
        (void)fputs("\r\033[K", stderr);
    p->shown = false;
    p->start = 0;
}

int tern_progress_result(struct tern_progress *p, int rc)
{
    tern_progress_end(p);
    return rc == TERN_ECANCELLED ? TERN_CLI_INTERRUPTED : rc;
}
