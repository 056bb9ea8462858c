/* What is wrong with a request, in the shape that its API has for it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "server/server_impl.h"

int tern_fault_set(struct tern_fault *f, int status, const char *code, const char *param, const char *fmt, ...)
{
    va_list ap;
    *f = (struct tern_fault){.status = status, .code = code};
    (void)snprintf(f->param, sizeof f->param, "%s", param ? param : "");
    va_start(ap, fmt);
    (void)vsnprintf(f->text, sizeof f->text, fmt, ap);
    va_end(ap);
    tern_one_line(f->param); /* both may have words of the request in them */
    tern_one_line(f->text);
    return -1;
}

int tern_fault_from(struct tern_fault *f, const tern_error *err, const char *param)
{
    int status = 500;
#define TERN_STATUS(name, value, text, http) status = err->code == (name) ? (http) : status;
    TERN_ERROR_LIST(TERN_STATUS)
#undef TERN_STATUS
    return tern_fault_set(f, status, status == 400 ? "invalid_value" : NULL, param, "%s", err->msg);
}

static const char *openai_type(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    default:
        return status < 500 ? "invalid_request_error" : status == 503 ? "service_unavailable_error" : "server_error";
    }
}

static const char *anthropic_type(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
        return "overloaded_error";
    default:
        return status < 500 ? "invalid_request_error" : "api_error";
    }
}

json_t *tern_fault_json(const struct tern_fault *f, enum tern_shape shape)
{
    if (shape == TERN_SHAPE_OLLAMA)
        return json_pack("{so}", "error", tern_json_cstr(f->text));
    if (shape == TERN_SHAPE_ANTHROPIC)
        return json_pack("{ss s{ss so}}", "type", "error", "error", "type", anthropic_type(f->status), "message",
                         tern_json_cstr(f->text));
    json_t *e = json_pack("{so ss so so}", "message", tern_json_cstr(f->text), "type", openai_type(f->status), "param",
                          tern_json_cstr(f->param[0] ? f->param : NULL), "code", tern_json_cstr(f->code));
    if (f->n_ctx) {
        (void)json_object_set_new(e, "n_prompt_tokens", json_integer(f->n_prompt));
        (void)json_object_set_new(e, "n_ctx", json_integer(f->n_ctx));
    }
    return json_pack("{so}", "error", e);
}

void tern_fault_reply(struct tern_http_call *c, const struct tern_fault *f, enum tern_shape shape)
{
    (void)tern_json_lacked();
    if (f->retry_after > 0) {
        char seconds[24];
        (void)snprintf(seconds, sizeof seconds, "%.0f", ceil(f->retry_after));
        tern_http_header(c, "Retry-After", seconds);
    }
    if (f->status == 504) /* the same work would take as long again */
        tern_http_header(c, "x-should-retry", "false");
    if (f->status == 401)
        tern_http_header(c, "WWW-Authenticate", "Bearer");
    tern_reply_json(c, f->status, tern_fault_json(f, shape));
}
