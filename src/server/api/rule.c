/* What the output must follow: a schema, a pattern, a grammar, a list of texts, calls; under all the names that clients
 * know.  Compiled by the worker that prepares the request. */
#include <stdlib.h>
#include <string.h>

#include "server/api/ask.h"

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Takes text, which json_dumps or strdup made. */
static int set_rule(struct tern_ask *g, enum tern_ask_rule rule, char *text, const char *param, struct tern_fault *f)
{
    if (!text)
        return tern_fault_set(f, 503, NULL, NULL, "out of memory");
    if (g->rule != TERN_RULE_NONE) {
        free(text);
        return tern_fault_set(f, 400, "invalid_value", param, "%s and %s exclude each other", g->rule_param, param);
    }
    g->rule = rule;
    g->rule_text = text;
    g->rule_param = param;
    return 0;
}

static char *dump(const json_t *v)
{
    return json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
}

/* A schema, or its text. */
static int set_schema(struct tern_ask *g, const json_t *v, const char *param, struct tern_fault *f)
{
    if (json_is_string(v))
        return set_rule(g, TERN_RULE_SCHEMA, strdup(json_string_value(v)), param, f);
    if (!json_is_object(v) && !json_is_boolean(v))
        return tern_fault_set(f, 400, "invalid_type", param, "%s must be a JSON schema", param);
    return set_rule(g, TERN_RULE_SCHEMA, dump(v), param, f);
}

static int set_text(struct tern_ask *g, enum tern_ask_rule rule, const char *text, const char *param,
                    struct tern_fault *f)
{
    return text ? set_rule(g, rule, strdup(text), param, f) : 0;
}

/* {"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": ..}}; the schema may
 * stand in the object itself, as newer APIs have it. */
static int read_format(struct tern_ask *g, struct tern_fault *f)
{
    const char *type = json_string_value(json_object_get(g->format, "type")), *param = g->format_param;
    const json_t *inner = json_object_get(g->format, "json_schema");
    const json_t *schema = json_object_get(inner ? inner : g->format, "schema");
    if (!type)
        return tern_fault_set(f, 400, "invalid_value", param, "%s has no type", param);
    if (strcmp(type, "text") == 0)
        return 0;
    if (strcmp(type, "json_object") == 0 && !schema)
        return set_text(g, TERN_RULE_JSON, "", param, f);
    if (strcmp(type, "json_schema") != 0 && strcmp(type, "json_object") != 0)
        return tern_fault_set(f, 400, "unsupported_value", param,
                              "%s must be of type \"text\", \"json_object\" or \"json_schema\", not \"%.40s\"", param,
                              type);
    if (!schema)
        return tern_fault_set(f, 400, "invalid_value", param, "%s has no schema", param);
    return set_schema(g, schema, param, f);
}

static int set_choice(struct tern_ask *g, const json_t *list, const char *param, struct tern_fault *f)
{
    if (!json_is_array(list))
        return tern_fault_set(f, 400, "invalid_type", param, "%s must be a list of strings", param);
    return set_rule(g, TERN_RULE_CHOICE, dump(list), param, f);
}

/* vLLM's newer shape: one of its members. */
static int read_structured(struct tern_ask *g, struct tern_fault *f)
{
    const char *key;
    json_t *v;
    int rc = 0;
    json_object_foreach(g->structured, key, v)
    {
        bool text = json_is_string(v);
        if (rc < 0 || json_is_null(v) || json_is_false(v))
            continue;
        if (strcmp(key, "json") == 0)
            rc = set_schema(g, v, "structured_outputs.json", f);
        else if (strcmp(key, "regex") == 0 && text)
            rc = set_text(g, TERN_RULE_REGEX, json_string_value(v), "structured_outputs.regex", f);
        else if (strcmp(key, "grammar") == 0 && text)
            rc = set_text(g, TERN_RULE_GRAMMAR, json_string_value(v), "structured_outputs.grammar", f);
        else if (strcmp(key, "choice") == 0)
            rc = set_choice(g, v, "structured_outputs.choice", f);
        else if (strcmp(key, "json_object") == 0 && json_is_true(v))
            rc = set_text(g, TERN_RULE_JSON, "", "structured_outputs.json_object", f);
        else
            rc = tern_fault_set(f, 400, "unsupported_parameter", "structured_outputs",
                                "structured_outputs.%.40s is not known here, or of a wrong type", key);
    }
    return rc;
}

int tern_rule_read(struct tern_ask *g, struct tern_fault *f)
{
    if ((g->format && read_format(g, f) < 0) || (g->structured && read_structured(g, f) < 0) ||
        (g->guided_json && set_schema(g, g->guided_json, "guided_json", f) < 0) ||
        (g->json_schema && set_schema(g, g->json_schema, "json_schema", f) < 0) ||
        (json_array_size(g->guided_choice) && set_choice(g, g->guided_choice, "guided_choice", f) < 0) ||
        set_text(g, TERN_RULE_REGEX, g->guided_regex, "guided_regex", f) < 0 ||
        set_text(g, TERN_RULE_GRAMMAR, g->guided_grammar, "guided_grammar", f) < 0 ||
        (g->grammar && *g->grammar && set_text(g, TERN_RULE_GRAMMAR, g->grammar, "grammar", f) < 0))
        return -1;
    return 0;
}

/* ---- use --------------------------------------------------------------------------------------------------------- */

static int check_beside(const struct tern_ask *g, const char *param, struct tern_fault *f)
{
    if (g->ignore_eos)
        return tern_fault_set(f, 400, "invalid_value", "ignore_eos", "ignore_eos goes on where %s must end", param);
    if (g->min_tokens > 0)
        return tern_fault_set(f, 400, "invalid_value", "min_tokens",
                              "min_tokens cannot be promised beside %s, which may end sooner", param);
    if (g->allowed_ids)
        return tern_fault_set(f, 400, "invalid_value", "allowed_token_ids",
                              "allowed_token_ids may lack what %s needs, and is not supported beside it", param);
    return 0;
}

static int compile(const struct tern_ask *g, tern_grammar **out, const tern_grammar_reply *reply, tern_error *err)
{
    const char *tools = g->tools_json ? g->tools_json : "[]";
    size_t n = g->rule_text ? strlen(g->rule_text) : 0;
    const tern_grammar_calls calls = {.function = g->call_function,
                                      .required = g->call_required,
                                      .otherwise = g->rule == TERN_RULE_JSON ? "{\"type\":\"object\"}" : g->rule_text,
                                      .several = tern_calls_several(g)};
    switch (g->tools_json ? TERN_RULE_NONE : g->rule) {
    case TERN_RULE_JSON:
        return tern_grammar_new_json(out, reply, err);
    case TERN_RULE_SCHEMA:
        return tern_grammar_new_schema(out, g->rule_text, n, reply, err);
    case TERN_RULE_REGEX:
        return tern_grammar_new_regex(out, g->rule_text, n, reply, err);
    case TERN_RULE_GRAMMAR:
        return tern_grammar_new_gbnf(out, g->rule_text, n, reply, err);
    case TERN_RULE_CHOICE:
        return tern_grammar_new_choice(out, g->rule_text, n, reply, err);
    default:
        return tern_grammar_new_calls(out, tools, strlen(tools), &calls, reply, err);
    }
}

int tern_rule_apply(struct tern_job *j, struct tern_lane *lane, struct tern_fault *f)
{
    struct tern_ask *g = j->ask;
    const tern_model *m = j->served->model;
    const bool json = g->rule == TERN_RULE_JSON || g->rule == TERN_RULE_SCHEMA,
               calls = g->tools_json && (g->call_required || g->strict_tools);
    const char *param = !calls ? g->rule_param : g->call_required ? "tool_choice" : "tools";
    const tern_grammar_reply reply = {m, lane->ids.p, (int)lane->ids.len};
    tern_error err = {0};
    int rc = 0;
    if (g->rule == TERN_RULE_NONE && !calls)
        return 0;
    if (g->rule != TERN_RULE_NONE && g->tools_json && (!json || g->call_required))
        return tern_fault_set(
            f, 400, "unsupported_value", g->rule_param,
            "%s beside a call that is required, or a rule other than JSON beside tools, is not supported",
            g->rule_param);
    if (check_beside(g, param, f) < 0)
        return -1;
    if (!g->compiled) /* several prompts are no conversations: one grammar will do */
        rc = compile(g, &g->compiled, g->request.reply ? &reply : NULL, &err);
    rc = rc < 0 ? rc : tern_constraint_new(&lane->constraint, m, g->compiled, &err);
    if (rc == 0)
        return 0;
    tern_error named = {.code = err.code};
    (void)snprintf(named.msg, sizeof named.msg, "%s: %.340s", param, err.msg);
    return tern_fault_from(f, &named, param);
}
