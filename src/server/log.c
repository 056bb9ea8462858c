/* What a server that is asked to leaves about each request: figures, not texts. */
#include <stdlib.h>
#include <time.h>

#include "server/server_impl.h"

void tern_log_job(const struct tern_job *j)
{
    const struct tern_server *s = j->server;
    char when[32], stamp[48];
    struct timespec now;
    struct tm t;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &t);
    (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &t);
    (void)snprintf(stamp, sizeof stamp, "%s.%03dZ", when, (int)(now.tv_nsec / 1000000));
    (void)tern_json_lacked();
    json_t *o =
        json_pack("{ss ss ss so si sb si si si sf sf sf sf}", "time", stamp, "event", "request", "id", j->id, "path",
                  tern_json_cstr(j->path), "status", j->status, "stream", (int)j->stream, "prompt_tokens", j->n_prompt,
                  "cached_tokens", j->n_cached, "completion_tokens", j->n_generated, "queue_s", j->queue_s, "prompt_s",
                  j->prompt_s, "decode_s", j->decode_s, "total_s", tern_now() - j->began);
    if (j->served)
        (void)json_object_set_new(o, "model", tern_json_cstr(j->served->name));
    if (j->waited_s > 0)
        (void)json_object_set_new(o, "load_s", json_real(j->waited_s));
    if (j->fault.status)
        (void)json_object_set_new(o, "error", tern_json_cstr(j->fault.text));
    if (s->p.log_prompts && j->root)
        (void)json_object_set(o, "body", j->root);
    char *line = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(6));
    if (line && !tern_json_lacked())
        s->p.log(s->p.user, line);
    free(line);
    json_decref(o);
}
