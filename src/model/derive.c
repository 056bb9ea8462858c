/* What follows from the tensors of a model that is loaded: rotary frequencies, scales, what identifies it. */
#include <string.h>
#include <xxhash.h>
#include "base/mem.h"
#include "model/load_impl.h"

int tern_net_vector(float **out, const struct tern_net *net, struct tern_dev_vec v, size_t n, tern_error *err)
{
    int rc = 0;
    const struct tern_dev_ops *ops = net->dev->ops;
    struct tern_dev *dev = NULL; /* of this thread's own */
    *out = NULL;
    TERN_TRY(ops->open(&dev, ops, NULL, err));
    TERN_TRY(tern_alloc(out, n, sizeof **out, err));
    ops->copy_out(dev, *out, v.mem, v.at * sizeof **out, n * sizeof **out);
    ops->sync(dev);
out:
    tern_dev_close(dev);
    return rc;
}

/* What rotary frequencies are divided by; *out NULL where the file says nothing. */
static int read_divisors(float **out, const struct tern_net *net, int global, const struct tern_file *f,
                         tern_error *err)
{
    const struct tern_dev_vec v = net->globals[global].vec;
    const int n = net->desc.ropes[0].n_rot / 2;
    *out = NULL;
    int rc = v.mem ? tern_net_vector(out, net, v, (size_t)n, err) : 0;
    for (int i = 0; rc == 0 && *out && i < n; i++)
        if (!((*out)[i] > 0))
            return tern_err_set(err, TERN_EFORMAT, "%s: divisor %d of the rotary frequencies is %g", tern_file_path(f),
                                i, (double)(*out)[i]);
    return rc;
}

int tern_load_ropes(struct tern_net *net, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    float *divisors[3] = {NULL};
    for (int i = 0; i < 3; i++)
        TERN_TRY(read_divisors(&divisors[i], net, TERN_ROPE_FACTORS + i, f, err));
    for (int r = 0; r < net->desc.n_ropes; r++) {
        struct tern_rope *rope = &net->desc.ropes[r];
        const bool longrope = rope->scaling == TERN_ROPE_LONG;
        enum tern_global factors = longrope ? TERN_ROPE_FACTORS_SHORT : TERN_ROPE_FACTORS;
        TERN_TRY(tern_rope_make(rope, longrope || rope->use_factors ? divisors[factors - TERN_ROPE_FACTORS] : NULL,
                                longrope ? divisors[TERN_ROPE_FACTORS_LONG - TERN_ROPE_FACTORS] : NULL, err));
    }
out:
    for (int i = 0; i < 3; i++)
        tern_free(divisors[i]);
    return rc;
}

int tern_load_scales(struct tern_net *net, tern_error *err)
{
    int rc = 0;
    const int n = net->desc.n_layers + net->desc.n_mtp;
    TERN_TRY(tern_alloc(&net->out_scales, (size_t)n, sizeof *net->out_scales, err));
    for (int i = 0; i < n; i++) {
        const struct tern_dev_vec v = net->layers[i][TERN_SLOT_OUT_SCALE].vec;
        net->out_scales[i] = 1;
        if (v.mem)
            net->dev->ops->copy_out(net->dev, &net->out_scales[i], v.mem, v.at * sizeof(float), sizeof(float));
    }
    net->dev->ops->sync(net->dev);
out:
    return rc;
}

/* Both ends of the data: hashing all of it would read the whole file. */
static XXH64_hash_t hash_ends(const struct tern_file *f, const struct tern_tensor *t, XXH64_hash_t h)
{
    size_t sample = t->n_bytes < 4096 ? t->n_bytes : 4096;
    h = XXH3_64bits_withSeed(t->data, sample, h);
    h = XXH3_64bits_withSeed((const char *)t->data + t->n_bytes - sample, sample, h);
    tern_file_forget(f, t); /* the system maps much more around each byte that is read */
    return h;
}

/* Identifies the weights well enough to refuse another model's session: names, types, shapes, and samples of the data,
 * in the order of the file, so that it does not depend on this program's tables. */
uint64_t tern_load_digest(const struct tern_file *f)
{
    XXH64_hash_t h = 1;
    for (size_t i = 0; i < tern_file_n_tensors(f); i++) {
        const struct tern_tensor *t = tern_file_tensor_at(f, i);
        const struct tern_tensor *parts[TERN_TENSOR_PARTS];
        h = XXH3_64bits_withSeed(t->name, strlen(t->name), h);
        h = XXH3_64bits_withSeed(t->dims, sizeof t->dims, h + (uint64_t)t->type);
        h = hash_ends(f, t, h);
        if (t->quant)
            h = XXH3_64bits_withSeed(t->quant->about, strlen(t->quant->about), h + t->quant->zero_plus_one);
        for (int n = tern_tensor_parts(t, parts), j = 0; j < n; j++)
            h = hash_ends(f, parts[j], h);
    }
    return h;
}
