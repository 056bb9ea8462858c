#include "base/options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/cpu.h"

const struct tern_command tern_commands[TERN_N_COMMANDS] = {
#define TERN_COMMAND(id, name, usage, n_operands, hidden, summary, about) \
    {TERN_CMD_##id, name, usage, n_operands, hidden, summary, about},
#include "base/options.def"
};

const struct tern_option tern_options[TERN_N_OPTIONS] = {
#define TERN_GROUP(id, title) {title, 0, TERN_KIND_GROUP, NULL, 0, 0, 0, 0, NULL, NULL},
#define TERN_OPTION(id, name, letter, kind, def, min, max, commands, required, metavar, help) \
    {name, letter, TERN_KIND_##kind, def, min, max, commands, required, metavar, help},
#include "base/options.def"
};

/* getopt_long returns this plus the option id, clear of every letter. */
#define LONG_BASE 256

/* "bench kv" goes before "bench". */
const struct tern_command *tern_command_find(int argc, char **argv, int *words)
{
    const struct tern_command *found = NULL;
    for (int i = 0; i < TERN_N_COMMANDS && argc > 1; i++) {
        const char *name = tern_commands[i].name;
        const char *space = strchr(name, ' ');
        size_t n = space ? (size_t)(space - name) : strlen(name);
        if (strlen(argv[1]) != n || strncmp(argv[1], name, n) != 0)
            continue;
        if (space && (argc < 3 || strcmp(argv[2], space + 1) != 0))
            continue;
        if (found && !space)
            continue;
        *words = space ? 2 : 1;
        found = &tern_commands[i];
    }
    return found;
}

/* ---- values --------------------------------------------------------------------------------------------------- */

/* How messages name an option: the letter first, because that is what people type. */
static void label(const struct tern_option *o, char *out, size_t n)
{
    if (o->letter)
        (void)snprintf(out, n, "-%c (--%s)", o->letter, o->name);
    else
        (void)snprintf(out, n, "--%s", o->name);
}

/* A decimal integer that spans text[0..n) completely. */
static bool read_int(const char *text, size_t n, int64_t *out)
{
    if (n == 0 || isspace((unsigned char)text[0]))
        return false;
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (errno || end != text + n)
        return false;
    *out = v;
    return true;
}

static int bad_int(const struct tern_option *o, const char *what, int len, const char *text, tern_error *err)
{
    char name[64];
    label(o, name, sizeof name);
    return tern_err_set(err, TERN_EINVAL, "%s must be %s from %.0f to %.0f, not \"%.*s\"", name, what, o->min, o->max,
                        len < 80 ? len : 80, text);
}

static int set_int(const struct tern_option *o, struct tern_arg *a, const char *text, tern_error *err)
{
    size_t n = strlen(text);
    if (!read_int(text, n, &a->i) || (double)a->i < o->min || (double)a->i > o->max)
        return bad_int(o, "an integer", (int)(n < 80 ? n : 80), text, err);
    return 0;
}

static int set_ints(const struct tern_option *o, struct tern_arg *a, const char *text, tern_error *err)
{
    char name[64];
    label(o, name, sizeof name);
    if (!a->ints)
        a->ints = calloc(TERN_OPT_MAX_INTS, sizeof *a->ints);
    if (!a->ints)
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate the values of %s", name);
    a->n_items = 0;
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, ",");
        int64_t v = 0;
        if (!read_int(p, n, &v) || (double)v < o->min || (double)v > o->max)
            return bad_int(o, "a list of integers", (int)strlen(text), text, err);
        if (a->n_items == TERN_OPT_MAX_INTS)
            return tern_err_set(err, TERN_EINVAL, "%s takes at most %d values", name, TERN_OPT_MAX_INTS);
        a->ints[a->n_items++] = v;
        p += n;
        if (!*p)
            return 0;
    }
}

static int set_float(const struct tern_option *o, struct tern_arg *a, const char *text, tern_error *err)
{
    char *end;
    a->f = strtod(text, &end);
    bool read = *text && !isspace((unsigned char)*text) && !*end && isfinite(a->f);
    if (!read || a->f < o->min || a->f > o->max) {
        char name[64];
        label(o, name, sizeof name);
        return tern_err_set(err, TERN_EINVAL, "%s must be a number from %g to %g, not \"%.80s\"", name, o->min, o->max,
                            text);
    }
    return 0;
}

static int set_choice(const struct tern_option *o, struct tern_arg *a, const char *text, tern_error *err)
{
    for (const char *p = o->metavar;; p++) {
        size_t n = strcspn(p, "|");
        if (strlen(text) == n && memcmp(p, text, n) == 0) {
            a->s = text;
            return 0;
        }
        p += n;
        if (!*p)
            break;
    }
    char name[64];
    label(o, name, sizeof name);
    return tern_err_set(err, TERN_EINVAL, "%s must be one of %s, not \"%.80s\"", name, o->metavar, text);
}

static int set_once(const struct tern_option *o, struct tern_arg *a, const char *text, tern_error *err)
{
    char name[64];
    label(o, name, sizeof name);
    if (a->n)
        return tern_err_set(err, TERN_EINVAL, "%s is given twice: \"%.80s\" and \"%.80s\"", name, a->s, text);
    a->s = text;
    return 0;
}

static int add_to_list(struct tern_arg *a, const char *text, tern_error *err)
{
    const char **p = realloc(a->ss, ((size_t)a->n_items + 1) * sizeof *p);
    if (!p)
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate an option list");
    a->ss = p;
    a->ss[a->n_items++] = text;
    return 0;
}

/* Does the option name a file or a folder, perhaps among other things?  A list of ids may come from a file. */
static bool names_file(const struct tern_option *o)
{
    const char *m = o->metavar;
    return m && (strncmp(m, "FILE", 4) == 0 || strstr(m, "|FILE") || strstr(m, "]FILE") || strcmp(m, "DIR") == 0 ||
                 strcmp(m, "PATH") == 0);
}

static int set_value(const struct tern_option *o, struct tern_arg *a, const char *text, tern_error *err)
{
    if (names_file(o) && !*text) { /* of a variable that is not set, for one */
        char name[64];
        label(o, name, sizeof name);
        return tern_err_set(err, TERN_EINVAL, "%s must not be empty: it is %s", name, o->metavar);
    }
    switch (o->kind) {
    case TERN_KIND_INT:
        return set_int(o, a, text, err);
    case TERN_KIND_INTS:
        return set_ints(o, a, text, err);
    case TERN_KIND_FLOAT:
        return set_float(o, a, text, err);
    case TERN_KIND_CHOICE:
        return set_choice(o, a, text, err);
    case TERN_KIND_STRING:
        a->s = text;
        return 0;
    case TERN_KIND_ONCE:
        return set_once(o, a, text, err);
    case TERN_KIND_LIST:
        return add_to_list(a, text, err);
    case TERN_KIND_FLAG:
    case TERN_KIND_GROUP:
        break;
    }
    return 0;
}

/* ---- the command line ------------------------------------------------------------------------------------------- */

/* getopt's own tables for one command. */
struct table {
    struct option longs[TERN_N_OPTIONS + 1];
    char letters[2 * TERN_N_OPTIONS + 2];
    int by_letter[128]; /* option id or -1 */
};

static void make_table(struct table *t, const struct tern_command *c)
{
    memset(t, 0, sizeof *t);
    for (int i = 0; i < 128; i++)
        t->by_letter[i] = -1;
    size_t n_long = 0, n_letter = 0;
    t->letters[n_letter++] = ':'; /* tells a missing value from an unknown option */
    for (int id = 0; id < TERN_N_OPTIONS; id++) {
        const struct tern_option *o = &tern_options[id];
        if (o->kind == TERN_KIND_GROUP || !(o->commands & (1u << c->id)))
            continue;
        bool flag = o->kind == TERN_KIND_FLAG;
        t->longs[n_long++] = (struct option){o->name, flag ? no_argument : required_argument, NULL, LONG_BASE + id};
        if (!o->letter)
            continue;
        t->by_letter[(unsigned char)o->letter & 127] = id;
        t->letters[n_letter++] = o->letter;
        if (!flag)
            t->letters[n_letter++] = ':';
    }
}

static int option_id(const struct table *t, int code)
{
    if (code >= LONG_BASE)
        return code - LONG_BASE;
    return code > 0 && code < 128 ? t->by_letter[code] : -1;
}

/* The sentence for what getopt refused; `code` is its return value. */
static int refuse(const struct table *t, int code, char **argv, tern_error *err)
{
    int id = option_id(t, optopt);
    char name[64];
    if (id >= 0) {
        label(&tern_options[id], name, sizeof name);
        if (code == ':')
            return tern_err_set(err, TERN_EINVAL, "%s needs a value (%s)", name, tern_options[id].metavar);
        return tern_err_set(err, TERN_EINVAL, "%s takes no value", name);
    }
    if (optopt)
        return tern_err_set(err, TERN_EINVAL, "unknown option -%c", isprint(optopt) ? optopt : '?');
    return tern_err_set(err, TERN_EINVAL, "unknown or ambiguous option %.*s", (int)strcspn(argv[optind - 1], "="),
                        argv[optind - 1]);
}

static int apply_defaults(struct tern_args *a, tern_error *err)
{
    for (int id = 0; id < TERN_N_OPTIONS; id++) {
        const struct tern_option *o = &tern_options[id];
        if (!a->v[id].n && o->def) {
            int rc = set_value(o, &a->v[id], o->def, err);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

static int check_complete(const struct tern_args *a, tern_error *err)
{
    const struct tern_command *c = a->command;
    for (int id = 0; id < TERN_N_OPTIONS; id++) {
        const struct tern_option *o = &tern_options[id];
        if (!(o->required & (1u << c->id)) || a->v[id].n)
            continue;
        char name[64];
        label(o, name, sizeof name);
        return tern_err_set(err, TERN_EINVAL, "%s %s is missing", name, o->metavar);
    }
    for (int i = 0; i < a->n_operands; i++)
        if (!*a->operands[i] && strcmp(c->name, "run") != 0 && strcmp(c->name, "cache build") != 0)
            return tern_err_set(err, TERN_EINVAL, "an argument is empty, where a name is wanted");
    const int most = abs(c->n_operands);
    if (a->n_operands > most)
        return tern_err_set(err, TERN_EINVAL, "unexpected argument \"%.80s\"", a->operands[most]);
    if (a->n_operands < c->n_operands)
        return tern_err_set(err, TERN_EINVAL, "%.*s is missing", (int)strcspn(c->usage, " "), c->usage);
    return 0;
}

int tern_args_parse(struct tern_args *a, const struct tern_command *c, int argc, char **argv, tern_error *err)
{
    int rc = 0, code;
    struct table t;
    make_table(&t, c);
    *a = (struct tern_args){.command = c};
    optind = 0; /* glibc: start over, and forget the state of an earlier parse */
    opterr = 0;
    while ((code = getopt_long(argc, argv, t.letters, t.longs, NULL)) != -1) {
        if (code == '?' || code == ':') {
            rc = refuse(&t, code, argv, err);
            goto out;
        }
        int id = option_id(&t, code);
        TERN_TRY(set_value(&tern_options[id], &a->v[id], optarg, err));
        a->v[id].n++;
    }
    a->operands = argv + optind;
    a->n_operands = argc - optind;
    TERN_TRY(apply_defaults(a, err));
    if (!a->v[TERN_OPT_HELP].n)
        TERN_TRY(check_complete(a, err));
out:
    if (rc < 0)
        tern_args_clear(a);
    return rc;
}

void tern_args_clear(struct tern_args *a)
{
    for (int id = 0; id < TERN_N_OPTIONS; id++) {
        free(a->v[id].ints);
        free(a->v[id].ss);
    }
    *a = (struct tern_args){0};
}

/* ---- help ------------------------------------------------------------------------------------------------------- */

int tern_option_spelling(const struct tern_option *o, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    if (o->letter)
        TERN_TRY(tern_buf_addf(out, err, "-%c, ", o->letter));
    TERN_TRY(tern_buf_addf(out, err, "--%s", o->name));
    if (o->metavar)
        TERN_TRY(tern_buf_addf(out, err, " %s", o->metavar));
out:
    return rc;
}

int tern_text_wrap(struct tern_buf *out, const char *text, int column, int indent, int width, tern_error *err)
{
    int rc = 0;
    for (const char *p = text; *p;) {
        int gap = (int)strspn(p, " "), n = (int)strcspn(p + gap, " \n");
        if (n && column > indent && column + gap + n > width) {
            TERN_TRY(tern_buf_addf(out, err, "\n%*s", indent, ""));
            column = indent;
        } else if (n) {
            TERN_TRY(tern_buf_add(out, p, (size_t)gap, err));
            column += gap;
        }
        p += gap;
        TERN_TRY(tern_buf_add(out, p, (size_t)n, err));
        column += n;
        p += n;
        if (*p == '\n') {
            TERN_TRY(tern_buf_addf(out, err, "\n%*s", indent, ""));
            column = indent;
            p++;
        }
    }
out:
    return rc;
}

#define HELP_COLUMN 28
#define HELP_WIDTH  100

static int help_option(const struct tern_option *o, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    size_t start = out->len;
    TERN_TRY(tern_buf_addf(out, err, o->letter ? "  " : "      "));
    TERN_TRY(tern_option_spelling(o, out, err));
    int column = (int)(out->len - start);
    if (column > HELP_COLUMN - 2) {
        TERN_TRY(tern_buf_addf(out, err, "\n"));
        column = 0;
    }
    TERN_TRY(tern_buf_addf(out, err, "%*s", HELP_COLUMN - column, ""));
    TERN_TRY(tern_text_wrap(out, o->help, HELP_COLUMN, HELP_COLUMN, HELP_WIDTH, err));
    if (o->def)
        TERN_TRY(tern_buf_addf(out, err, " [%s]", o->def));
    TERN_TRY(tern_buf_addf(out, err, "\n"));
out:
    return rc;
}

int tern_command_help(const struct tern_command *c, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    const struct tern_option *group = NULL;
    TERN_TRY(tern_buf_addf(out, err, "usage: tern %s %s\n\n", c->name, c->usage));
    TERN_TRY(tern_text_wrap(out, c->about, 0, 0, HELP_WIDTH, err));
    TERN_TRY(tern_buf_addf(out, err, "\n"));
    for (int id = 0; id < TERN_N_OPTIONS; id++) {
        const struct tern_option *o = &tern_options[id];
        if (o->kind == TERN_KIND_GROUP) {
            group = o;
        } else if (o->commands & (1u << c->id)) {
            if (group)
                TERN_TRY(tern_buf_addf(out, err, "\n%s:\n", group->name));
            group = NULL;
            TERN_TRY(help_option(o, out, err));
        }
    }
out:
    return rc;
}
