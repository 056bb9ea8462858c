/* tests/fuzz/recommended.h - whatever sampling a file recommends is one that the sampler takes, or a sentence. */
#ifndef TERN_FUZZ_RECOMMENDED_H
#define TERN_FUZZ_RECOMMENDED_H

#include <stdlib.h>
#include <string.h>

#include "run/run.h"

/* The file stands in for a model's: no weights are loaded. */
static inline void check_recommended(struct tern_file *f, const uint8_t *p, size_t n)
{
    static tern_model m;
    const struct tern_str generation = {(const char *)p, n};
    tern_sampler_params params;
    tern_sampler *s;
    tern_error err = {0};
    memset(&m, 0, sizeof m);
    m.file = f;
    int rc = tern_model_load_recommended(&m, &generation, &err);
    if (rc < 0 && (err.code != rc || !strstr(err.msg, "generation_config.json")))
        abort();
    tern_sampler_defaults(&params);
    (void)tern_model_recommends(&m, &params);
    if (tern_sampler_new(&s, 3, &params, &err) < 0)
        abort();
    tern_sampler_free(s);
}

#endif
