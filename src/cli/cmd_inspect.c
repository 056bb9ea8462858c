/* tern inspect: what a file holds and what its KV cache comes to. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* ---- tensor types ------------------------------------------------------------------------------------------------ */

struct type_sum {
    const char *type;
    size_t n, file_bytes, memory_bytes;
};
#define MAX_TYPES 64

static int sum_types(const tern_model *m, struct type_sum *sums)
{
    int n = 0;
    for (size_t i = 0; i < tern_model_n_tensors(m); i++) {
        tern_tensor_info t;
        tern_model_tensor(m, i, &t);
        int k = 0;
        while (k < n && strcmp(sums[k].type, t.type) != 0)
            k++;
        if (k == MAX_TYPES)
            continue;
        if (k == n)
            sums[n++] = (struct type_sum){.type = t.type};
        sums[k].n++;
        sums[k].file_bytes += t.file_bytes;
        sums[k].memory_bytes += t.memory_bytes;
    }
    return n;
}

/* Room for the longest name. */
static int type_width(const struct type_sum *sums, int n)
{
    size_t width = 6;
    for (int k = 0; k < n; k++)
        width = strlen(sums[k].type) > width ? strlen(sums[k].type) : width;
    return (int)width;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static int print_model(const tern_model *m, tern_error *err)
{
    int rc = 0;
    const tern_model_info *i = tern_model_get_info(m);
    TERN_TRY(
        tern_out_printf(err, "file            %s (%s)\n", tern_shown(i->path), tern_size_text((double)i->file_bytes)));
    TERN_TRY(tern_out_printf(err, "container       %s\n", i->container));
    TERN_TRY(tern_out_printf(err, "architecture    %s\n", tern_shown(i->arch)));
    if (i->name[0])
        TERN_TRY(tern_out_printf(err, "name            %s\n", tern_shown(i->name)));
    TERN_TRY(tern_out_printf(err, "parameters      %.4g M, %s in memory\n", (double)i->n_params * 1e-6,
                             tern_size_text((double)i->weight_bytes)));
    TERN_TRY(tern_out_printf(err, "packed          %s\n", i->packed ? tern_shown(i->packed) : "no file is mapped"));
    TERN_TRY(tern_out_printf(err, "layers          %d, width %d, feed-forward %d\n", i->n_layers, i->n_embd, i->n_ff));
    if (i->n_mtp_layers)
        TERN_TRY(tern_out_printf(err,
                                 "                and %d for multi-token prediction (--draft mtp), %.4g M parameters\n",
                                 i->n_mtp_layers, (double)i->n_mtp_params * 1e-6));
    TERN_TRY(
        tern_out_printf(err, "attention       %d heads, %d KV heads of %d\n", i->n_heads, i->n_kv_heads, i->head_dim));
    TERN_TRY(tern_out_printf(err, "context         %d tokens\n", i->ctx));
    TERN_TRY(tern_out_printf(err, "tokenizer       %s, %d tokens\n", tern_shown(i->tokenizer), i->n_vocab));
    TERN_TRY(tern_out_printf(err, "chat template   %s\n", i->has_template ? "yes" : "no"));
    tern_sampler_params p;
    tern_sampler_defaults(&p);
    if (tern_model_recommends(m, &p))
        TERN_TRY(tern_out_printf(err, "sampling        %s (recommended)\n", tern_sampling_text(&p)));
    if (i->sampling_left_out)
        TERN_TRY(tern_out_printf(err, "                recommended too, but not known here: %s\n",
                                 tern_shown(i->sampling_left_out)));
out:
    return rc;
}

static int print_types(const tern_model *m, tern_error *err)
{
    int rc = 0;
    struct type_sum sums[MAX_TYPES];
    int n = sum_types(m, sums), width = type_width(sums, n);
    TERN_TRY(tern_out_printf(err, "\ntensors         %zu\n", tern_model_n_tensors(m)));
    for (int k = 0; k < n; k++)
        TERN_TRY(tern_out_printf(err, "  %-*s %5zu  %10s in the file  %10s in memory\n", width,
                                 tern_shown(sums[k].type), sums[k].n, tern_size_text((double)sums[k].file_bytes),
                                 tern_size_text((double)sums[k].memory_bytes)));
out:
    return rc;
}

static int print_tensors(const tern_model *m, tern_error *err)
{
    int rc = 0;
    struct type_sum sums[MAX_TYPES];
    const int width = type_width(sums, sum_types(m, sums));
    TERN_TRY(tern_out_printf(err, "\n"));
    for (size_t i = 0; i < tern_model_n_tensors(m); i++) {
        tern_tensor_info t;
        tern_model_tensor(m, i, &t);
        char shape[96];
        int used = 0;
        for (int d = 0; d < t.n_dims && d < 4; d++)
            used += snprintf(shape + used, sizeof shape - (size_t)used, "%s%lld", d ? " x " : "", (long long)t.dims[d]);
        TERN_TRY(tern_out_printf(err, "  %-36s %-*s %-20s %12zu bytes  %12zu in memory%s\n", tern_shown(t.name), width,
                                 tern_shown(t.type), shape, t.file_bytes, t.memory_bytes,
                                 t.memory_bytes ? "" : " (not used)"));
    }
out:
    return rc;
}

static int print_text(const tern_model *m, const tern_kv_plan *plan, const struct tern_args *a, int ctx,
                      tern_error *err)
{
    int rc = 0;
    size_t bytes, f16;
    tern_kv_plan_full(plan, ctx, &bytes, &f16);
    TERN_TRY(print_model(m, err));
    TERN_TRY(print_types(m, err));
    if (a->v[TERN_OPT_TENSORS].n)
        TERN_TRY(print_tensors(m, err));
    TERN_TRY(tern_out_printf(err, "\nKV cache        --kv %s\n", tern_shown(tern_kv_plan_text(plan))));
    TERN_TRY(tern_plan_print(plan, stdout, err));
    TERN_TRY(tern_out_printf(err, "  %d tokens: %s (16 bit: %s)\n", ctx, tern_size_text((double)bytes),
                             tern_size_text((double)f16)));
out:
    return rc;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *types_json(const tern_model *m)
{
    struct type_sum sums[MAX_TYPES];
    int n = sum_types(m, sums);
    json_t *list = json_object();
    for (int k = 0; k < n; k++)
        json_object_set_new(list, sums[k].type,
                            json_pack("{sI sI sI}", "n_tensors", (json_int_t)sums[k].n, "file_bytes",
                                      (json_int_t)sums[k].file_bytes, "memory_bytes",
                                      (json_int_t)sums[k].memory_bytes));
    return list;
}

static json_t *tensors_json(const tern_model *m)
{
    json_t *list = json_array();
    for (size_t i = 0; i < tern_model_n_tensors(m); i++) {
        tern_tensor_info t;
        tern_model_tensor(m, i, &t);
        json_t *dims = json_array();
        for (int d = 0; d < t.n_dims && d < 4; d++)
            json_array_append_new(dims, json_integer(t.dims[d]));
        json_array_append_new(list, json_pack("{so so so sI sI}", "name", tern_json_text(t.name), "type",
                                              tern_json_text(t.type), "dims", dims, "file_bytes",
                                              (json_int_t)t.file_bytes, "memory_bytes", (json_int_t)t.memory_bytes));
    }
    return list;
}

static int print_json(const tern_model *m, const tern_kv_plan *plan, const struct tern_args *a, int ctx,
                      tern_error *err)
{
    size_t bytes, f16;
    tern_kv_plan_full(plan, ctx, &bytes, &f16);
    json_t *kv = tern_report_kv_layers(plan);
    json_object_set_new(kv, "full_bytes", json_integer((json_int_t)bytes));
    json_object_set_new(kv, "full_f16_bytes", json_integer((json_int_t)f16));
    json_t *out = json_pack("{so si so}", "tensor_types", types_json(m), "ctx", ctx, "kv", kv);
    if (a->v[TERN_OPT_TENSORS].n)
        json_object_set_new(out, "tensors", tensors_json(m));
    return tern_report_print(tern_report_json("inspect", m, 0), out, err);
}

int tern_cmd_inspect(const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    struct tern_setup s = {0};
    tern_kv_plan *plan = NULL;
    bool strict = strcmp(a->v[TERN_OPT_KV_POLICY].s, "strict") == 0;
    TERN_TRY(tern_setup_model(&s, a, a->operands[0], err));
    TERN_TRY(tern_kv_plan_new(&plan, s.model, tern_setup_kv(a, s.model), strict, err));
    tern_plan_notes(plan);
    int ctx = a->v[TERN_OPT_CTX].i ? (int)a->v[TERN_OPT_CTX].i : tern_model_get_info(s.model)->ctx;
    TERN_TRY(a->v[TERN_OPT_JSON].n ? print_json(s.model, plan, a, ctx, err) : print_text(s.model, plan, a, ctx, err));
out:
    tern_kv_plan_free(plan);
    tern_setup_clear(&s);
    return rc;
}
