/* support/json_get.c - checks that standard input is exactly one JSON object and prints parts of it, for shell tests.
 *
 *     json_get                 status 0 when it is one object, else 1 and a message
 *     json_get a.b a.0.c ...   prints each value on a line: strings raw, everything else as JSON; missing: status 1
 *     json_get '#a'            the number of items of a list or object
 *     json_get :a              the type: object list string integer real true false null */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *step(json_t *at, const char *key)
{
    if (json_is_array(at)) {
        char *end;
        unsigned long i = strtoul(key, &end, 10);
        return *key && !*end ? json_array_get(at, i) : NULL;
    }
    return json_object_get(at, key);
}

static json_t *find(json_t *root, const char *path)
{
    char copy[256], *save = NULL;
    (void)snprintf(copy, sizeof copy, "%s", path);
    json_t *at = root;
    for (char *key = strtok_r(copy, ".", &save); at && key; key = strtok_r(NULL, ".", &save))
        at = step(at, key);
    return at;
}

static const char *type_name(const json_t *v)
{
    static const char *const names[] = {"object", "list", "string", "integer", "real", "true", "false", "null"};
    return names[json_typeof(v)];
}

static int show(json_t *root, const char *query)
{
    json_t *v = find(root, query + (*query == '#' || *query == ':'));
    if (!v) {
        (void)fprintf(stderr, "json_get: no %s\n", query);
        return 1;
    }
    if (*query == '#')
        (void)printf("%zu\n", json_is_array(v) ? json_array_size(v) : json_object_size(v));
    else if (*query == ':')
        (void)puts(type_name(v));
    else if (json_is_string(v))
        (void)(fwrite(json_string_value(v), 1, json_string_length(v), stdout), putchar('\n')); /* NUL is text, too */
    else
        (void)(json_dumpf(v, stdout, JSON_ENCODE_ANY | JSON_COMPACT), putchar('\n'));
    return 0;
}

int main(int argc, char **argv)
{
    json_error_t where;
    json_t *root = json_loadf(stdin, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
    if (!json_is_object(root)) {
        (void)fprintf(stderr, "json_get: not one JSON object: line %d: %s\n", root ? 0 : where.line,
                      root ? "another type" : where.text);
        json_decref(root);
        return 1;
    }
    int rc = 0;
    for (int i = 1; i < argc; i++)
        rc |= show(root, argv[i]);
    json_decref(root);
    return rc;
}
