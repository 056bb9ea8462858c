/* Calls whose arguments stand between marks, one by one. */
#include "text/reply/call.h"

#include <string.h>

static bool starts(struct tern_str s, const char *mark)
{
    return s.n >= strlen(mark) && memcmp(s.p, mark, strlen(mark)) == 0;
}

/* Drops the mark that s begins with. */
static bool take(struct tern_str *s, const char *mark)
{
    if (!starts(*s, mark))
        return false;
    s->p += strlen(mark);
    s->n -= strlen(mark);
    return true;
}

static void trim(struct tern_str *s)
{
    *s = tern_call_trim(s->p, s->n);
}

static int finish(struct tern_call *c, struct tern_buf *args, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_buf_add(args, args->len ? "}" : "{}", args->len ? 1 : 2, err));
    TERN_TRY(tern_call_args(c, (struct tern_str){args->p, args->len}, err));
out:
    return rc;
}

/* <function=NAME> <parameter=KEY> value </parameter> .. </function> */
int tern_call_xml(struct tern_call_list *l, const char *p, size_t n, tern_error *err)
{
    int rc = 0;
    struct tern_call *c;
    struct tern_buf args = {0};
    struct tern_str s = tern_call_trim(p, n);
    if (!take(&s, "<function="))
        TERN_FAIL(err, TERN_EFORMAT, "a call does not begin with <function=");
    TERN_TRY(tern_call_add(l, &c, tern_call_until(&s, ">"), (struct tern_str){0}, err));
    const json_t *tool = tern_call_tool(l->tools, c->name.p);
    for (trim(&s); take(&s, "<parameter="); trim(&s)) {
        struct tern_str key = tern_call_until(&s, ">"), value = tern_call_until(&s, "</parameter>");
        if (!key.p || !value.p)
            TERN_FAIL(err, TERN_EFORMAT, "a parameter of a call has no end");
        (void)take(&value, "\n");
        value.n -= value.n && value.p[value.n - 1] == '\n';
        TERN_TRY(tern_call_member(&args, tern_call_trim(key.p, key.n), value, tool, err));
    }
    if (!take(&s, "</function>") || s.n)
        TERN_FAIL(err, TERN_EFORMAT, "a call does not end with </function>");
    TERN_TRY(finish(c, &args, err));
out:
    tern_buf_clear(&args);
    return rc;
}

/* name <arg_key>key</arg_key> <arg_value>value</arg_value> .. */
int tern_call_glm(struct tern_call_list *l, const char *p, size_t n, tern_error *err)
{
    int rc = 0;
    struct tern_call *c;
    struct tern_buf args = {0};
    struct tern_str s = {p, n}, rest = s, name = tern_call_until(&rest, "<arg_key>");
    if (!name.p)
        name = s;
    TERN_TRY(tern_call_add(l, &c, name, (struct tern_str){0}, err));
    const json_t *tool = tern_call_tool(l->tools, c->name.p);
    s.p += name.n;
    s.n -= name.n;
    for (trim(&s); take(&s, "<arg_key>"); trim(&s)) {
        struct tern_str key = tern_call_until(&s, "</arg_key>"), gap = tern_call_until(&s, "<arg_value>"),
                        value = tern_call_until(&s, "</arg_value>");
        if (!key.p || !gap.p || tern_call_trim(gap.p, gap.n).n || !value.p)
            TERN_FAIL(err, TERN_EFORMAT, "an argument of a call is not between its marks");
        TERN_TRY(tern_call_member(&args, tern_call_trim(key.p, key.n), value, tool, err));
    }
    if (s.n)
        TERN_FAIL(err, TERN_EFORMAT, "there is text behind the arguments of a call");
    TERN_TRY(finish(c, &args, err));
out:
    tern_buf_clear(&args);
    return rc;
}

/* A value of DSML: what stands there, or JSON, as its mark says. */
static int add_parameter(struct tern_buf *args, struct tern_str key, struct tern_str kind, struct tern_str value,
                         tern_error *err)
{
    int rc = 0;
    const bool text = kind.n == 4 && memcmp(kind.p, "true", 4) == 0;
    if (!text && (kind.n != 5 || memcmp(kind.p, "false", 5) != 0))
        TERN_FAIL(err, TERN_EFORMAT, "a parameter of a call is neither a string nor none");
    if (!text && !tern_call_is_json(tern_call_trim(value.p, value.n), false))
        TERN_FAIL(err, TERN_EFORMAT, "a parameter of a call is no JSON");
    TERN_TRY(tern_buf_add(args, args->len ? ", " : "{", args->len ? 2 : 1, err));
    TERN_TRY(tern_call_string(args, key, err));
    TERN_TRY(tern_buf_add(args, ": ", 2, err));
    if (text)
        return tern_call_string(args, value, err);
    value = tern_call_trim(value.p, value.n);
    TERN_TRY(tern_buf_add(args, value.p, value.n, err));
out:
    return rc;
}

/* name="NAME"> then, each between marks, name="KEY" string="true|false">value */
int tern_call_dsml(struct tern_call_list *l, const char *p, size_t n, tern_error *err)
{
    static const char end[] = "</｜DSML｜parameter>";
    int rc = 0;
    struct tern_call *c;
    struct tern_buf args = {0};
    struct tern_str s = tern_call_trim(p, n);
    if (!take(&s, "name=\""))
        TERN_FAIL(err, TERN_EFORMAT, "a call does not begin with its name");
    TERN_TRY(tern_call_add(l, &c, tern_call_until(&s, "\">"), (struct tern_str){0}, err));
    for (trim(&s); take(&s, "<｜DSML｜parameter name=\""); trim(&s)) {
        const struct tern_str key = tern_call_until(&s, "\" string=\""), kind = tern_call_until(&s, "\">");
        const struct tern_str value = tern_call_until(&s, end);
        if (!key.p || !kind.p || !value.p)
            TERN_FAIL(err, TERN_EFORMAT, "a parameter of a call has no end");
        TERN_TRY(add_parameter(&args, key, kind, value, err));
    }
    if (s.n)
        TERN_FAIL(err, TERN_EFORMAT, "there is text behind the arguments of a call");
    TERN_TRY(finish(c, &args, err));
out:
    tern_buf_clear(&args);
    return rc;
}

/* ---- call:name{key:<|"|>text<|"|>,other:3} ----------------------------------------------------------------------- */

static const char quote[] = "<|\"|>";

static int add_value(struct tern_str *s, struct tern_buf *out, int depth, tern_error *err);

static int add_quoted(struct tern_str *s, struct tern_buf *out, tern_error *err)
{
    struct tern_str text = tern_call_until(s, quote);
    if (!text.p)
        return tern_err_set(err, TERN_EFORMAT, "a text in a call has no end");
    return tern_call_string(out, text, err);
}

/* What stands up to the next sign of punctuation. */
static struct tern_str take_word(struct tern_str *s)
{
    size_t n = 0;
    while (n < s->n && !strchr(",:{}[]", s->p[n]))
        n++;
    struct tern_str word = tern_call_trim(s->p, n);
    s->p += n;
    s->n -= n;
    return word;
}

static int add_key(struct tern_str *s, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    trim(s);
    TERN_TRY(take(s, quote) ? add_quoted(s, out, err) : tern_call_string(out, take_word(s), err));
    trim(s);
    if (!take(s, ":"))
        TERN_FAIL(err, TERN_EFORMAT, "a key in a call has no value");
    TERN_TRY(tern_buf_add(out, ": ", 2, err));
out:
    return rc;
}

/* The members of an object or list, whose opening bracket is gone. */
static int add_members(struct tern_str *s, struct tern_buf *out, bool object, int depth, tern_error *err)
{
    int rc = 0;
    const char *close = object ? "}" : "]";
    TERN_TRY(tern_buf_addc(out, object ? '{' : '[', err));
    trim(s);
    for (bool first = true; !take(s, close); first = false) {
        if (!first && !take(s, ","))
            TERN_FAIL(err, TERN_EFORMAT, "the arguments of a call are cut short or lack a comma");
        TERN_TRY(tern_buf_add(out, ", ", first ? 0 : 2, err));
        if (object)
            TERN_TRY(add_key(s, out, err));
        TERN_TRY(add_value(s, out, depth + 1, err));
        trim(s);
    }
    TERN_TRY(tern_buf_addc(out, *close, err));
out:
    return rc;
}

static int add_value(struct tern_str *s, struct tern_buf *out, int depth, tern_error *err)
{
    if (depth > TERN_CALL_MAX_DEPTH)
        return tern_err_set(err, TERN_EFORMAT, "the arguments of a call are nested more than %d deep",
                            TERN_CALL_MAX_DEPTH);
    trim(s);
    if (take(s, quote))
        return add_quoted(s, out, err);
    if (take(s, "{"))
        return add_members(s, out, true, depth, err);
    if (take(s, "["))
        return add_members(s, out, false, depth, err);
    struct tern_str word = take_word(s);
    const char *other = tern_call_python_word(word); /* the family's template writes None */
    if (other)
        return tern_buf_add(out, other, strlen(other), err);
    if (!tern_call_is_json(word, false))
        return tern_err_set(err, TERN_EFORMAT, "a value in a call is neither a text between marks nor a number");
    return tern_buf_add(out, word.p, word.n, err);
}

int tern_call_gemma(struct tern_call_list *l, const char *p, size_t n, tern_error *err)
{
    int rc = 0;
    struct tern_call *c;
    struct tern_buf args = {0};
    struct tern_str s = tern_call_trim(p, n);
    if (!take(&s, "call:"))
        TERN_FAIL(err, TERN_EFORMAT, "a call does not begin with call:");
    TERN_TRY(tern_call_add(l, &c, take_word(&s), (struct tern_str){0}, err));
    if (!starts(s, "{"))
        TERN_FAIL(err, TERN_EFORMAT, "a call has no arguments");
    TERN_TRY(add_value(&s, &args, 0, err));
    if (s.n)
        TERN_FAIL(err, TERN_EFORMAT, "there is text behind the arguments of a call");
    TERN_TRY(tern_call_args(c, (struct tern_str){args.p, args.len}, err));
out:
    tern_buf_clear(&args);
    return rc;
}
