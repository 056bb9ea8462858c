/* Calls that are JSON, or JSON behind a name; and what all formats share. */
#include "text/reply/call.h"

#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/utf8.h"

/* Numbers are passed on as they are written, however long. */
#define AS_WRITTEN   (JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL)
#define PART_OF_TEXT (AS_WRITTEN | JSON_DISABLE_EOF_CHECK)

/* ---- texts ------------------------------------------------------------------------------------------------------ */

struct tern_str tern_call_trim(const char *p, size_t n)
{
    while (n && tern_call_blank(*p)) {
        p++;
        n--;
    }
    while (n && tern_call_blank(p[n - 1]))
        n--;
    return (struct tern_str){p, n};
}

struct tern_str tern_call_until(struct tern_str *s, const char *mark)
{
    size_t n = strlen(mark);
    const char *at = s->n >= n ? memmem(s->p, s->n, mark, n) : NULL;
    if (!at)
        return (struct tern_str){0};
    struct tern_str head = {s->p, (size_t)(at - s->p)};
    s->n -= head.n + n;
    s->p = at + n;
    return head;
}

bool tern_call_is_json(struct tern_str s, bool object)
{
    json_t *j = json_loadb(s.p, s.n, AS_WRITTEN, NULL);
    bool ok = j && (!object || json_is_object(j));
    json_decref(j);
    return ok;
}

int tern_call_string(struct tern_buf *out, struct tern_str s, tern_error *err)
{
    int rc = 0;
    json_t *j = json_stringn(s.p, s.n);
    char *text = j ? json_dumps(j, JSON_ENCODE_ANY) : NULL;
    if (!text)
        TERN_FAIL(err, TERN_EFORMAT, "a text in a call is not UTF-8");
    TERN_TRY(tern_buf_add(out, text, strlen(text), err));
out:
    free(text);
    json_decref(j);
    return rc;
}

/* ---- lists of calls --------------------------------------------------------------------------------------------- */

void tern_call_list_reset(struct tern_call_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        tern_buf_clear(&l->v[i].name);
        tern_buf_clear(&l->v[i].id);
        tern_buf_clear(&l->v[i].args);
    }
    tern_free(l->v);
    *l = (struct tern_call_list){.tools = l->tools};
}

/* Adds a name or id to out: visible characters, without the signs that marks and JSON are made of. */
static int add_word(struct tern_buf *out, const char *what, struct tern_str word, tern_error *err)
{
    struct tern_str s = tern_call_trim(word.p, word.n);
    if (s.n > TERN_CALL_MAX_NAME)
        return tern_err_set(err, TERN_EFORMAT, "the %s of a call has %zu bytes", what, s.n);
    if (tern_utf8_valid(s.p, s.n) < s.n)
        return tern_err_set(err, TERN_EFORMAT, "the %s of a call is not UTF-8", what);
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] <= ' ' || strchr("<>{}\"\\\177", s.p[i]))
            return tern_err_set(err, TERN_EFORMAT, "the %s of a call has a sign at byte %zu that none has", what, i);
    return tern_buf_add(out, s.p, s.n, err);
}

int tern_call_add(struct tern_call_list *l, struct tern_call **out, struct tern_str name, struct tern_str id,
                  tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_grow(&l->v, &l->cap, l->n + 1, sizeof *l->v, err));
    l->v[l->n] = (struct tern_call){0};
    *out = &l->v[l->n++];
    if (name.n)
        TERN_TRY(add_word(&(*out)->name, "name", name, err));
    if (!(*out)->name.len)
        TERN_FAIL(err, TERN_EFORMAT, "a call has no name");
    if (id.n)
        TERN_TRY(add_word(&(*out)->id, "id", id, err));
out:
    return rc;
}

const json_t *tern_call_tool(const json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *f = json_object_get(tool, "function");
        if (!json_is_object(f))
            f = tool;
        const char *is = json_string_value(json_object_get(f, "name"));
        if (is && strcmp(is, name) == 0)
            return f;
    }
    return NULL;
}

/* What a tool's definition says about a parameter: "string", another type, or NULL for none or several types. */
static const char *type_of(const json_t *tool, const char *key)
{
    const json_t *properties = json_object_get(json_object_get(tool, "parameters"), "properties");
    const json_t *type = json_object_get(json_object_get(properties, key), "type");
    return json_string_value(type);
}

int tern_call_member(struct tern_buf *args, struct tern_str key, struct tern_str value, const json_t *tool,
                     tern_error *err)
{
    int rc = 0;
    struct tern_buf literal = {0};
    json_t *name = json_stringn(key.p, key.n);
    const char *type = name ? type_of(tool, json_string_value(name)) : NULL;
    bool string = type && strcmp(type, "string") == 0;
    struct tern_str trimmed = tern_call_trim(value.p, value.n);
    TERN_TRY(tern_buf_add(args, args->len ? ", " : "{", args->len ? 2 : 1, err));
    TERN_TRY(tern_call_string(args, key, err));
    TERN_TRY(tern_buf_add(args, ": ", 2, err));
    if (!string && tern_call_is_json(trimmed, false))
        TERN_TRY(tern_buf_add(args, trimmed.p, trimmed.n, err));
    else if (type && !string &&
             tern_call_literal(&literal, trimmed, NULL) == 0) /* True, ['a']: some templates say so */
        TERN_TRY(tern_buf_add(args, literal.p, literal.len, err));
    else
        TERN_TRY(tern_call_string(args, value, err));
out:
    tern_buf_clear(&literal);
    json_decref(name);
    return rc;
}

int tern_call_args(struct tern_call *c, struct tern_str args, tern_error *err)
{
    int rc = 0;
    struct tern_str s = tern_call_trim(args.p, args.n);
    json_t *text = s.n && *s.p == '"' ? json_loadb(s.p, s.n, JSON_DECODE_ANY, NULL) : NULL;
    if (text) /* a JSON text in a JSON string */
        s = tern_call_trim(json_string_value(text), json_string_length(text));
    if (!tern_call_is_json(s, true))
        TERN_FAIL(err, TERN_EFORMAT, "the arguments of a call are no JSON object");
    TERN_TRY(tern_buf_add(&c->args, s.p, s.n, err));
out:
    json_decref(text);
    return rc;
}

/* ---- parts of JSON as it is written ------------------------------------------------------------------------------ */

/* Takes the value at the beginning of s, which is known to be well-formed, and what stands before the next. */
static struct tern_str take_value(struct tern_str *s)
{
    size_t i = 0, depth = 0;
    bool quoted = false;
    for (; i < s->n; i++) {
        char c = s->p[i];
        if (quoted) {
            i += c == '\\';
            quoted = c != '"';
        } else if (depth == 0 && strchr(",:]}", c)) {
            break;
        } else {
            quoted = c == '"';
            depth += c == '{' || c == '[';
            depth -= c == '}' || c == ']';
        }
    }
    struct tern_str value = tern_call_trim(s->p, i);
    size_t used = i < s->n ? i + 1 : s->n;
    s->p += used;
    s->n -= used;
    return value;
}

/* The value of a key of an object that is known to be well-formed, as it is written; p is NULL when it has none. */
static struct tern_str find_member(struct tern_str object, const char *key)
{
    size_t n = strlen(key);
    struct tern_str rest = tern_call_trim(object.p, object.n);
    rest.p++;
    rest.n--;
    while (rest.n) {
        struct tern_str k = take_value(&rest), v = take_value(&rest);
        if (k.n == n + 2 && memcmp(k.p + 1, key, n) == 0)
            return v;
    }
    return (struct tern_str){0};
}

/* ---- formats ---------------------------------------------------------------------------------------------------- */

/* {"name" or "tool_name": .., "arguments" or "parameters": {..}, perhaps "id": ..} */
static int object_call(struct tern_call_list *l, struct tern_str s, tern_error *err)
{
    int rc = 0;
    struct tern_call *c;
    if (!tern_call_is_json(s, true))
        TERN_FAIL(err, TERN_EFORMAT, "a call is no JSON object");
    struct tern_str name = find_member(s, "name"), id = find_member(s, "id"), args = find_member(s, "arguments");
    if (!args.p)
        args = find_member(s, "parameters");
    if (!args.p)
        TERN_FAIL(err, TERN_EFORMAT, "a call has no arguments");
    if (!name.p)
        name = find_member(s, "tool_name");
    if (!name.p || *name.p != '"')
        TERN_FAIL(err, TERN_EFORMAT, "a call has no name");
    id = id.p && *id.p == '"' ? (struct tern_str){id.p + 1, id.n - 2} : (struct tern_str){0};
    TERN_TRY(tern_call_add(l, &c, (struct tern_str){name.p + 1, name.n - 2}, id, err));
    TERN_TRY(tern_call_args(c, args, err));
out:
    return rc;
}

/* [{..}, ..], the text of which is known to be well-formed */
static int object_list(struct tern_call_list *l, struct tern_str s, tern_error *err)
{
    int rc = 0;
    s = (struct tern_str){s.p + 1, s.n - 1};
    while (s.n > 1 || !l->n)
        TERN_TRY(object_call(l, take_value(&s), err));
out:
    return rc;
}

/* A list of such objects, or objects one after the other. */
int tern_call_list_json(struct tern_call_list *l, const char *p, size_t n, tern_error *err)
{
    int rc = 0;
    struct tern_str s = tern_call_trim(p, n);
    if (s.n && *s.p == '[') {
        if (!tern_call_is_json(s, false))
            return tern_err_set(err, TERN_EFORMAT, "a list of calls is no JSON");
        return object_list(l, s, err);
    }
    while (s.n || !l->n) {
        json_error_t e = {0};
        json_t *j = json_loadb(s.p, s.n, PART_OF_TEXT, &e);
        if (!j)
            TERN_FAIL(err, TERN_EFORMAT, "a call is no JSON object");
        json_decref(j);
        TERN_TRY(object_call(l, (struct tern_str){s.p, (size_t)e.position}, err));
        s = tern_call_trim(s.p + e.position, s.n - (size_t)e.position);
    }
out:
    return rc;
}

int tern_call_json(struct tern_call_list *l, const char *p, size_t n, tern_error *err)
{
    return object_call(l, tern_call_trim(p, n), err);
}

/* [{"name": .., "arguments": ..}, ..]   or   name[CALL_ID]id[ARGS]{..}, where both marks may be missing */
int tern_call_mistral(struct tern_call_list *l, const char *p, size_t n, tern_error *err)
{
    int rc = 0;
    struct tern_call *c;
    struct tern_str s = tern_call_trim(p, n), id = {0};
    if (s.n && *s.p == '[') {
        if (!tern_call_is_json(s, false))
            TERN_FAIL(err, TERN_EFORMAT, "a list of calls is no JSON");
        return object_list(l, s, err);
    }
    const char *object = s.n ? memchr(s.p, '{', s.n) : NULL;
    if (!object)
        TERN_FAIL(err, TERN_EFORMAT, "a call has no arguments");
    struct tern_str whole = {s.p, (size_t)(object - s.p)}, name = tern_call_until(&whole, "[ARGS]");
    if (!name.p)
        name = whole;
    s = (struct tern_str){object, s.n - (size_t)(object - s.p)};
    struct tern_str rest = name, head = tern_call_until(&rest, "[CALL_ID]");
    if (head.p) {
        name = head;
        id = rest;
    }
    TERN_TRY(tern_call_add(l, &c, name, id, err));
    TERN_TRY(tern_call_args(c, s, err));
out:
    return rc;
}

/* name<sep>{..}   or   function<sep>name, a new line and {..} between fences */
int tern_call_deepseek(struct tern_call_list *l, const char *p, size_t n, tern_error *err)
{
    static const char begin[] = "```json", end[] = "```";
    int rc = 0;
    struct tern_call *c;
    struct tern_str s = {p, n}, name = tern_call_until(&s, "<｜tool▁sep｜>");
    struct tern_str kind = tern_call_trim(name.p, name.n), rest = s, line = tern_call_until(&rest, "\n");
    if (kind.n == 8 && memcmp(kind.p, "function", 8) == 0 && line.p && !memchr(line.p, '{', line.n)) {
        name = line;
        s = tern_call_trim(rest.p, rest.n);
        if (s.n >= strlen(begin) && memcmp(s.p, begin, strlen(begin)) == 0)
            s = (struct tern_str){s.p + strlen(begin), s.n - strlen(begin)};
        if (s.n >= strlen(end) && memcmp(s.p + s.n - strlen(end), end, strlen(end)) == 0)
            s.n -= strlen(end);
    }
    TERN_TRY(tern_call_add(l, &c, name, (struct tern_str){0}, err));
    TERN_TRY(tern_call_args(c, s, err));
out:
    return rc;
}

/* functions.name:0<|tool_call_argument_begin|>{..}, where the front part is the id */
int tern_call_kimi(struct tern_call_list *l, const char *p, size_t n, tern_error *err)
{
    static const char space[] = "functions.";
    int rc = 0;
    struct tern_call *c;
    struct tern_str s = {p, n}, head = tern_call_until(&s, "<|tool_call_argument_begin|>");
    if (!head.p)
        TERN_FAIL(err, TERN_EFORMAT, "a call has no arguments");
    struct tern_str id = tern_call_trim(head.p, head.n), name = id;
    while (name.n && name.p[name.n - 1] >= '0' && name.p[name.n - 1] <= '9')
        name.n--;
    name.n = name.n && name.p[name.n - 1] == ':' ? name.n - 1 : id.n;
    if (name.n > strlen(space) && memcmp(name.p, space, strlen(space)) == 0)
        name = (struct tern_str){name.p + strlen(space), name.n - strlen(space)};
    TERN_TRY(tern_call_add(l, &c, name, id, err));
    TERN_TRY(tern_call_args(c, s, err));
out:
    return rc;
}

/* name>{..} */
int tern_call_function(struct tern_call_list *l, const char *p, size_t n, tern_error *err)
{
    int rc = 0;
    struct tern_call *c;
    struct tern_str s = {p, n}, name = tern_call_until(&s, ">");
    TERN_TRY(tern_call_add(l, &c, name, (struct tern_str){0}, err));
    TERN_TRY(tern_call_args(c, s, err));
out:
    return rc;
}
