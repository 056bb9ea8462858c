/* --config FILE: options from a file, one a line, by the names that they have on the command line:
 *
 *     # comment
 *     model = /models/model.gguf
 *     kv t4
 *     insecure
 *
 * A flag stands alone or is true or false.  What the command line says comes after, so it counts where one value does.
 * Each line is tried by itself first, and an error names it. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"

#define MAX_FILE ((size_t)1 << 20)

/* The strings live as long as the process, as those of the command line do. */
static struct tern_buf text;
static char **joined;

/* Value of --config in argv, NULL: not given. */
static const char *find_config(int argc, char **argv)
{
    const char *path = NULL;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strncmp(argv[i], "--config=", 9) == 0)
            path = argv[i] + 9;
        else if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
            path = argv[++i];
    }
    return path;
}

static char *trim(char *s)
{
    while (isspace((unsigned char)*s))
        s++;
    size_t n = strlen(s);
    while (n > 0 && isspace((unsigned char)s[n - 1]))
        s[--n] = 0;
    return s;
}

static bool is_flag(const struct tern_command *c, const char *name)
{
    for (int id = 0; id < TERN_N_OPTIONS; id++)
        if (tern_options[id].kind == TERN_KIND_FLAG && (tern_options[id].commands & (1u << c->id)) &&
            strcmp(tern_options[id].name, name) == 0)
            return true;
    return false;
}

/* Would the command line take this option alone? */
static int try_option(const struct tern_command *c, char *name, char *value, tern_error *err)
{
    char *argv[] = {(char *)"tern", name, value ? value : (char *)"--help", value ? (char *)"--help" : NULL, NULL};
    char **given = argv;
    int argc = value ? 4 : 3;
    struct tern_args a;
    int rc = tern_foreign_options(c, &argc, &given, err);
    rc = rc < 0 ? rc : tern_args_parse(&a, c, argc, given, err);
    if (rc == 0)
        tern_args_clear(&a);
    return rc;
}

/* A line into option and value (NULL: none); *name NULL: there is nothing in it. */
static int read_line(const struct tern_command *c, char *line, char **name, char **value, tern_error *err)
{
    *name = *value = NULL;
    line = trim(line);
    if (!*line || *line == '#')
        return 0;
    size_t n = strcspn(line, "= \t");
    char *rest = line + n;
    while (isspace((unsigned char)*rest))
        rest++;
    rest = trim(*rest == '=' ? rest + 1 : rest);
    line[n] = 0;
    if (strncmp(line, "-", 1) == 0)
        return tern_cli_usage(err, "\"%.40s\": names stand without dashes here", line);
    if (strcmp(line, "config") == 0 || strcmp(line, "help") == 0)
        return tern_cli_usage(err, "%s belongs to the command line", line);
    if (is_flag(c, line)) {
        if (strcmp(rest, "false") == 0)
            return 0;
        if (*rest && strcmp(rest, "true") != 0)
            return tern_cli_usage(err, "%s is true or false, not \"%.40s\"", line, rest);
        rest = NULL;
    } else if (!*rest) {
        return tern_cli_usage(err, "%.40s has no value", line);
    }
    /* Two dashes before the name: the line has room, for it is moved to the front of a copy. */
    if (tern_alloc(name, n + 3, 1, err) < 0)
        return TERN_ENOMEM;
    (void)snprintf(*name, n + 3, "--%s", line);
    *value = rest;
    return try_option(c, *name, *value, err);
}

int tern_config_options(const struct tern_command *c, int *argc, char ***argv, tern_error *err)
{
    int rc = 0, n = 1, number = 0;
    const char *path = c->id == TERN_CMD_SERVE ? find_config(*argc, *argv) : NULL;
    size_t lines = 1;
    if (!path)
        return 0;
    TERN_TRY(tern_buf_read_file(&text, path, MAX_FILE, err));
    for (size_t i = 0; i < text.len; i++)
        lines += text.p[i] == '\n';
    TERN_TRY(tern_alloc(&joined, 2 * lines + (size_t)*argc + 1, sizeof *joined, err));
    joined[0] = (*argv)[0];
    for (char *line = text.p, *end; line && *line; line = end) {
        tern_error why = {0};
        char *name, *value;
        end = line + strcspn(line, "\n");
        end += *end ? (*end = 0, 1) : 0;
        number++;
        rc = read_line(c, line, &name, &value, &why);
        if (name)
            joined[n++] = name;
        if (rc != 0) {
            (void)tern_err_set(err, TERN_EINVAL, "%s:%d: %s", path, number, why.msg);
            rc = TERN_CLI_USAGE;
            goto out;
        }
        if (name && value)
            joined[n++] = value;
    }
    for (int i = 1; i < *argc; i++)
        joined[n++] = (*argv)[i];
    joined[n] = NULL;
    *argc = n;
    *argv = joined;
out:
    return rc;
}
