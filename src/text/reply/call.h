/* text/reply/call.h - between reply.c, the machine; formats.c, its tables; and call_*.c, which read one call. */
#ifndef TERN_TEXT_REPLY_CALL_H
#define TERN_TEXT_REPLY_CALL_H

#include <jansson.h>
#include "text/text.h"

#define TERN_CALL_MAX_BYTES ((size_t)1 << 20) /* text of one call, marks included */
#define TERN_CALL_MAX_NAME  256
#define TERN_CALL_MAX_DEPTH 64 /* values inside values, where we read them ourselves */

struct tern_call {
    struct tern_buf name, id, args; /* args: a JSON object; id is empty when the model gave none */
};

/* What one marked stretch holds: one call, in some formats several. */
struct tern_call_list {
    struct tern_call *v;
    size_t n, cap;
    const json_t *tools; /* the array of definitions, or NULL */
};
void tern_call_list_reset(struct tern_call_list *l); /* frees the calls, keeps tools */
/* A new call at the end of the list.  Name and id (empty: none) are words. */
int tern_call_add(struct tern_call_list *l, struct tern_call **out, struct tern_str name, struct tern_str id,
                  tern_error *err);
/* The definition of a tool of that name; NULL: there is none. */
const json_t *tern_call_tool(const json_t *tools, const char *name);
/* Arguments that are JSON: kept as they are written, when they are an object or the text of one. */
int tern_call_args(struct tern_call *c, struct tern_str args, tern_error *err);
/* Adds `key: value` to arguments that are being put together; `value` is what stands between marks: a string where the
 * tool's definition says so or where it is no JSON. */
int tern_call_member(struct tern_buf *args, struct tern_str key, struct tern_str value, const json_t *tool,
                     tern_error *err);
int tern_call_string(struct tern_buf *out, struct tern_str s, tern_error *err); /* adds s as JSON */
/* Adds a literal of Python (or JSON) as JSON.  TERN_EFORMAT: it is none; then out does not count. */
int tern_call_literal(struct tern_buf *out, struct tern_str s, tern_error *err);
bool tern_call_python_name(char c); /* may be part of the name of a function */
/* The JSON of True, False, None and of JSON's own words; NULL: it is none of them. */
const char *tern_call_python_word(struct tern_str s);
/* Is s one JSON value (an object, with `object`)?  Numbers of any length count. */
bool tern_call_is_json(struct tern_str s, bool object);

static inline bool tern_call_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

struct tern_str tern_call_trim(const char *p, size_t n);
/* The text of s before `mark`, s moves behind it; p is NULL when there is no mark. */
struct tern_str tern_call_until(struct tern_str *s, const char *mark);

/* Reads the text between the marks.  TERN_EFORMAT with a sentence when it is no call; then the list does not count. */
typedef int tern_call_parser(struct tern_call_list *l, const char *p, size_t n, tern_error *err);
tern_call_parser tern_call_json, tern_call_list_json, tern_call_mistral, tern_call_deepseek, tern_call_kimi,
    tern_call_function, tern_call_xml, tern_call_dsml, tern_call_glm, tern_call_gemma, tern_call_python;

struct tern_calls_format {
    const char *name, *sign, *open, *close, *frame[2];
    char bare;
    const char *quotes;
    tern_call_parser *parse;
};

struct tern_reasoning_format {
    const char *name, *sign, *open, *close, *skip;
};

#endif
