#include "model/names.h"

#include <stdio.h>
#include <string.h>

/* ---- architectures ---------------------------------------------------------------------------------------------- */

int tern_names_arch(const struct tern_file *f, struct tern_str *out, tern_error *err)
{
    char key[64] = "general.architecture";
    if (tern_file_kind(f) == TERN_FILE_HF)
        (void)snprintf(key, sizeof key, "%smodel_type", tern_config_root(f));
    int rc = tern_file_get_str(f, key, out, err);
    if (rc == 0 && !out->p)
        rc = tern_err_set(err, TERN_EFORMAT, "%s: metadata key %s is missing", tern_file_path(f), key);
    return rc;
}

bool tern_names_is_arch(const struct tern_file *f, const struct tern_arch *a, struct tern_str name)
{
    const char *list = tern_file_kind(f) == TERN_FILE_HF ? a->model_types : a->name;
    while (list && *list) {
        size_t n = strcspn(list, " ");
        if (n == name.n && memcmp(list, name.p, n) == 0)
            return true;
        list += n + (list[n] == ' ');
    }
    return false;
}

/* ---- tensors ---------------------------------------------------------------------------------------------------- */

struct tern_names tern_names_of(const struct tern_file *f)
{
    static const char *const places[][2] = {
        {"model.", ""}, {"model.language_model.", ""}, {"language_model.model.", "language_model."}, {"", ""}};
    struct tern_names n = {.f = f, .body = "model.", .outer = ""};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "%sembed_tokens.weight", places[i][0]);
        if (tern_file_tensor(f, name)) {
            n.body = places[i][0];
            n.outer = places[i][1];
            break;
        }
    }
    return n;
}

bool tern_names_tensor(const struct tern_names *n, const struct tern_tensor_rule *r, int layer,
                       struct tern_tensor_name *out)
{
    *out = (struct tern_tensor_name){0};
    if (tern_file_kind(n->f) == TERN_FILE_GGUF) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        (void)snprintf(out->text, sizeof out->text, r->name, layer); /* the tables are constants of this program */
#pragma GCC diagnostic pop
        return true;
    }
    if (!r->hf)
        return false;
    const char *hf = r->hf;
    if (strncmp(hf, "1+", 2) == 0) {
        out->add = 1;
        hf += 2;
    }
    if (layer >= 0)
        (void)snprintf(out->text, sizeof out->text, "%slayers.%d.%s", n->body, layer, hf);
    else
        (void)snprintf(out->text, sizeof out->text, "%s%s", r->slot == TERN_HEAD ? n->outer : n->body, hf);
    return true;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

bool tern_names_foreign(const struct tern_names *n, const char *tensor)
{
    static const char *const towers[] = {"vision_tower.", "multi_modal_projector.", "vision_model.",
                                         "model.vision_tower.", "model.multi_modal_projector."};
    if (tern_file_kind(n->f) == TERN_FILE_GGUF)
        return false;
    for (size_t i = 0; i < sizeof towers / sizeof *towers; i++)
        if (strncmp(tensor, towers[i], strlen(towers[i])) == 0)
            return true;
    return ends_with(tensor, ".rotary_emb.inv_freq"); /* the RoPE frequencies, which the configuration gives too */
}
