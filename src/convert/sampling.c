/* generation_config.json in GGUF's words, so that the new file recommends what the directory does (run/recommend.c). */
#include "convert/convert_impl.h"

#include <jansson.h>

#include "text/text.h"

enum setting {
#define SETTING(name, gguf, hf, min, max) SET_##name,
    TERN_SAMPLING_LIST(SETTING)
#undef SETTING
        N_SETTINGS
};

static const struct {
    const char *gguf, *hf;
    double min, max;
} settings[N_SETTINGS] = {
#define SETTING(name, gguf, hf, min, max) {gguf, hf, min, max},
    TERN_SAMPLING_LIST(SETTING)
#undef SETTING
};

struct values {
    bool said[N_SETTINGS];
    double v[N_SETTINGS];
};

static void set(struct values *x, enum setting i, double v)
{
    x->said[i] = true;
    x->v[i] = v;
}

/* What a directory says without a word, and where a word says nothing. */
static void settle(struct values *x, const json_t *root)
{
    const json_t *sample = json_object_get(root, "do_sample");
    const bool kept = x->said[SET_TOP_K] || x->said[SET_TOP_P] || x->said[SET_MIN_P];
    if (json_is_false(sample)) {
        x->said[SET_TOP_K] = x->said[SET_TOP_P] = x->said[SET_MIN_P] = false;
        set(x, SET_TEMPERATURE, 0);
    } else if (!x->said[SET_TEMPERATURE] && (json_is_true(sample) || kept)) {
        set(x, SET_TEMPERATURE, 1);
    }
    if (x->said[SET_REPETITION])
        set(x, SET_LAST, -1);
}

int tern_convert_sampling(struct plan *p, const char *text, size_t n, tern_error *err)
{
    int rc = 0;
    struct values x = {0};
    json_error_t e;
    json_t *root = text ? json_loadb(text, n, 0, &e) : NULL;
    if (!text)
        return 0;
    if (!json_is_object(root))
        TERN_FAIL(err, TERN_EFORMAT, "%s: generation_config.json is not a JSON object",
                  tern_path_show(tern_file_path(p->f)));
    for (int i = 0; i < N_SETTINGS; i++) {
        const json_t *j = settings[i].hf ? json_object_get(root, settings[i].hf) : NULL;
        const double v = json_number_value(j);
        if (json_is_number(j) && v <= settings[i].max && v >= settings[i].min && (double)(float)v >= settings[i].min)
            set(&x, (enum setting)i, v);
    }
    settle(&x, root);
    for (int i = 0; i < N_SETTINGS; i++)
        if (x.said[i] && (i == SET_TOP_K || i == SET_LAST))
            TERN_TRY(tern_gguf_put_i32(&p->head, settings[i].gguf, (int32_t)x.v[i], err));
        else if (x.said[i])
            TERN_TRY(tern_gguf_put_f32(&p->head, settings[i].gguf, (float)x.v[i], err));
out:
    json_decref(root);
    return rc;
}
