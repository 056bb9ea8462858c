/* support/json_schema.c - holds a JSON report to the tables of docs/json.md.
 *
 *     json_schema docs/json.md SECTION <report
 *
 * A section is a heading with a table of fields below it.  A field has a name, "(optional)" where it may be missing,
 * and a type: text, whole number, number, yes or no, a link to the section that describes the object; "list of" and
 * "map of" these; "or null".  The report has the fields of its section and those of "Every report", no others, and all
 * that are not optional.  Status 0 when that is so, else a line for each difference. */
#include <ctype.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct field {
    char section[40], name[40], type[60];
    bool optional;
};

static struct field fields[400];
static int n_fields, n_wrong;

static void wrong(const char *path, const char *what, const char *more)
{
    (void)printf("%s: %s%s\n", path, what, more);
    n_wrong++;
}

/* The text of a table's cell without blanks around it; *p goes behind it. */
static void cell(char **p, char *out, size_t n)
{
    char *end = strchr(*p, '|');
    size_t len = end ? (size_t)(end - *p) : strlen(*p);
    while (len && isspace((unsigned char)**p)) {
        (*p)++;
        len--;
    }
    while (len && isspace((unsigned char)(*p)[len - 1]))
        len--;
    (void)snprintf(out, n, "%.*s", (int)len, *p);
    *p = end ? end + 1 : *p + len;
}

/* "[model](#model)" becomes "model". */
static void without_link(char *type)
{
    char *open = strchr(type, '['), *close = open ? strstr(open, "](") : NULL, *end = close ? strchr(close, ')') : NULL;
    if (!end)
        return;
    memmove(close, end + 1, strlen(end + 1) + 1);
    memmove(open, open + 1, strlen(open));
}

static void read_doc(FILE *f)
{
    char line[1024], section[40] = "", name[80];
    while (fgets(line, sizeof line, f)) {
        if (*line == '#') {
            char *p = line + strspn(line, "# ");
            (void)snprintf(section, sizeof section, "%.*s", (int)strcspn(p, "\n"), p);
        }
        if (strncmp(line, "| `", 3) != 0)
            continue;
        struct field *d = &fields[n_fields++];
        char *p = line + 1;
        cell(&p, name, sizeof name);
        cell(&p, d->type, sizeof d->type);
        without_link(d->type);
        d->optional = strstr(name, "(optional)") != NULL;
        (void)snprintf(d->section, sizeof d->section, "%s", section);
        (void)snprintf(d->name, sizeof d->name, "%.*s", (int)strcspn(name + 1, "`"), name + 1);
        if (n_fields == 400)
            abort();
    }
}

static bool has_section(const char *section)
{
    for (int i = 0; i < n_fields; i++)
        if (strcasecmp(fields[i].section, section) == 0)
            return true;
    return false;
}

static void check_object(const json_t *o, const char *section, const char *and_section, const char *path);

static void check(const json_t *v, const char *type, const char *path)
{
    char sub[300], less[60];
    size_t n = strlen(type);
    if (n > 8 && strcmp(type + n - 8, " or null") == 0) {
        if (json_is_null(v))
            return;
        (void)snprintf(less, sizeof less, "%.*s", (int)(n - 8), type);
        type = less;
    }
    if (strncmp(type, "list of ", 8) == 0) {
        if (!json_is_array(v))
            wrong(path, "is no ", type);
        for (size_t i = 0; i < json_array_size(v); i++) {
            (void)snprintf(sub, sizeof sub, "%s[%zu]", path, i);
            check(json_array_get(v, i), type + 8, sub);
        }
    } else if (strncmp(type, "map of ", 7) == 0) {
        const char *key;
        json_t *item;
        if (!json_is_object(v))
            wrong(path, "is no ", type);
        json_object_foreach((json_t *)v, key, item)
        {
            (void)snprintf(sub, sizeof sub, "%s.%s", path, key);
            check(item, type + 7, sub);
        }
    } else if (has_section(type)) {
        if (!json_is_object(v))
            wrong(path, "is no object: ", type);
        else
            check_object(v, type, NULL, path);
    } else if (!(strcmp(type, "text") == 0           ? json_is_string(v)
                 : strcmp(type, "whole number") == 0 ? json_is_integer(v)
                 : strcmp(type, "number") == 0       ? json_is_number(v)
                                                     : strcmp(type, "yes or no") == 0 && json_is_boolean(v))) {
        wrong(path, "is no ", type);
    }
}

static void check_object(const json_t *o, const char *section, const char *and_section, const char *path)
{
    char sub[300];
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)o, key, item)
    {
        const struct field *found = NULL;
        for (int i = 0; i < n_fields; i++)
            if (strcmp(fields[i].name, key) == 0 && (strcasecmp(fields[i].section, section) == 0 ||
                                                     (and_section && strcasecmp(fields[i].section, and_section) == 0)))
                found = &fields[i];
        (void)snprintf(sub, sizeof sub, "%s.%s", path, key);
        if (found)
            check(item, found->type, sub);
        else
            wrong(sub, "is not described under ", section);
    }
    for (int i = 0; i < n_fields; i++)
        if ((strcasecmp(fields[i].section, section) == 0 ||
             (and_section && strcasecmp(fields[i].section, and_section) == 0)) &&
            !fields[i].optional && !json_object_get(o, fields[i].name)) {
            (void)snprintf(sub, sizeof sub, "%s.%s", path, fields[i].name);
            wrong(sub, "is missing; described under ", fields[i].section);
        }
}

int main(int argc, char **argv)
{
    json_error_t where;
    FILE *f = argc == 3 ? fopen(argv[1], "r") : NULL;
    json_t *root = f ? json_loadf(stdin, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where) : NULL;
    if (!f || !json_is_object(root)) {
        (void)fprintf(stderr, "usage: json_schema docs/json.md SECTION <report: %s\n", f ? where.text : "no document");
        return 2;
    }
    read_doc(f);
    (void)fclose(f);
    if (!has_section(argv[2]))
        wrong(argv[2], "has no table", "");
    check_object(root, argv[2], "Every report", "");
    json_decref(root);
    return n_wrong > 0;
}
