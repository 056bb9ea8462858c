/* Rows and columns that GGUF has in another order than directories have. */
#include "convert/convert_impl.h"

#include <stdio.h>
#include <string.h>

#include "model/model.h"

enum { MOST_HEADS = 65536, MOST_DIM = 1 << 16 };

int64_t tern_convert_moved(const struct order *o, int64_t i)
{
    if (o->kind == ORDER_PAIRS) { /* j of the first half and j of the second become 2j and 2j + 1 */
        const int64_t in_head = i % o->size, j = in_head - o->skip;
        return j < 0 ? i : i - j + j / 2 + j % 2 * ((o->size - o->skip) / 2);
    }
    if (o->kind == ORDER_HEADS && i >= o->skip) { /* head g*m + j becomes j*n + g, of n groups of m */
        const int64_t head = (i - o->skip) / o->size, m = o->heads / o->groups;
        return o->skip + (head % o->groups * m + head / o->groups) * o->size + (i - o->skip) % o->size;
    }
    return i;
}

static int need(const struct plan *p, const char *name, int64_t most, int64_t *out, tern_error *err)
{
    char key[160];
    return tern_file_need_int(p->f, tern_arch_key(key, sizeof key, p->arch, name), 1, most, out, err);
}

/* Of q and k, and their biases. */
static int order_of_heads(const struct plan *p, struct order *out, tern_error *err)
{
    int rc = 0;
    char key[160];
    int64_t heads, embd, dim;
    TERN_TRY(need(p, "attention.head_count", MOST_HEADS, &heads, err));
    TERN_TRY(need(p, "embedding_length", 1 << 24, &embd, err));
    TERN_TRY(tern_file_get_int(p->f, tern_arch_key(key, sizeof key, p->arch, "attention.key_length"), embd / heads, 1,
                               MOST_DIM, &dim, err));
    *out = (struct order){.kind = ORDER_PAIRS, .size = dim};
out:
    return rc;
}

/* Latent attention: what is rotated comes last, in each head of q and in what is cached. */
static int order_of_latents(const struct plan *p, bool q, struct order *out, tern_error *err)
{
    int rc = 0;
    int64_t all, rotated;
    TERN_TRY(need(p, q ? "attention.key_length_mla" : "attention.key_length", MOST_DIM, &all, err));
    TERN_TRY(need(p, "rope.dimension_count", all, &rotated, err));
    *out = (struct order){.kind = ORDER_PAIRS, .size = all, .skip = all - rotated};
out:
    return rc;
}

/* Value heads of the delta rule: those of a key head stand together in a directory, and each with the same of the
 * others in GGUF. */
static int order_of_values(const struct plan *p, const char *word, struct order *out, tern_error *err)
{
    int rc = 0;
    int64_t groups, heads, dim, inner;
    const bool vectors = starts_with(word, "ssm_a") || starts_with(word, "ssm_beta.") || starts_with(word, "ssm_dt.");
    const bool behind_keys = starts_with(word, "attn_qkv.") || starts_with(word, "ssm_conv1d.");
    if (!vectors && !behind_keys && !starts_with(word, "attn_gate.") && !starts_with(word, "ssm_out."))
        return 0;
    TERN_TRY(need(p, "ssm.group_count", MOST_HEADS, &groups, err));
    TERN_TRY(need(p, "ssm.time_step_rank", MOST_HEADS, &heads, err));
    TERN_TRY(need(p, "ssm.state_size", MOST_DIM, &dim, err));
    TERN_TRY(need(p, "ssm.inner_size", (int64_t)MOST_HEADS * MOST_DIM, &inner, err));
    if (heads % groups || inner % heads)
        TERN_FAIL(err, TERN_EFORMAT, "%s: %lld value heads of %lld dims altogether are not those of %lld key heads",
                  tern_path_show(tern_file_path(p->f)), (long long)heads, (long long)inner, (long long)groups);
    if (heads != groups)
        *out = (struct order){.kind = ORDER_HEADS,
                              .columns = starts_with(word, "ssm_out."),
                              .size = vectors ? 1 : inner / heads,
                              .skip = behind_keys ? 2 * groups * dim : 0,
                              .heads = heads,
                              .groups = groups};
out:
    return rc;
}

int tern_convert_order(const struct plan *p, struct piece *o, tern_error *err)
{
    int rc = 0;
    char key[160];
    struct order *order = &o->order;
    if (!starts_with(o->name, "blk."))
        return 0;
    const char *word = o->name + strcspn(o->name + 4, ".") + 5;
    const bool q = starts_with(word, "attn_q.");
    if (p->grouped)
        TERN_TRY(order_of_values(p, word, order, err));
    else if (p->permuted && p->latent && (q || starts_with(word, "attn_q_b.") || starts_with(word, "attn_kv_a_mqa.")))
        TERN_TRY(order_of_latents(p, !starts_with(word, "attn_kv_a_mqa."), order, err));
    else if (p->permuted && !p->latent && (q || starts_with(word, "attn_k.")))
        TERN_TRY(order_of_heads(p, order, err));
    if (order->kind == ORDER_KEPT)
        return 0;
    const bool pairs = order->kind == ORDER_PAIRS;
    const int64_t n = o->n_dims == 1 || order->columns ? o->dims[0] : o->dims[1];
    if (pairs ? (order->size - order->skip) % 2 || n % order->size : n != order->skip + order->heads * order->size)
        return tern_convert_fail(p, o->t, TERN_EFORMAT, err, "its rows are not whole heads");
    if (pairs && !p->latent && tern_file_meta(p->f, tern_arch_key(key, sizeof key, p->arch, "rope.dimension_count")))
        return tern_convert_fail(p, o->t, TERN_EUNSUPPORTED, err, "heads that are rotated in part are not converted");
    if (o->n_dims == 1) {
        o->k = 1;
        o->matrix_rows = o->source_rows = o->rows = o->dims[0];
    }
out:
    return rc;
}
