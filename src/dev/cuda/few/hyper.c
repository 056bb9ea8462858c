/* Operations of DeepSeek-V4: residual streams that mix, grids of few bits, clamped gates. */
#include "dev/cuda/few/hyper.h"
#include "base/mem.h"
#include "dev/cuda/cuda.h"

_Static_assert(TERN_MAX_STREAMS == 8, "hyper.cu keeps so many");

static unsigned blocks(size_t n, size_t of)
{
    return (unsigned)((n + of - 1) / of);
}

void tern_cuda_clamp(struct tern_dev *dev, struct tern_dev_rows gate, struct tern_dev_rows up, int n_rows, float limit)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    const struct tern_cuda_clamp_args a = {.gate = tern_cuda_rows_at(gate),
                                           .gate_stride = gate.stride,
                                           .up = tern_cuda_rows_at(up),
                                           .up_stride = up.stride,
                                           .n = gate.width,
                                           .limit = limit};
    tern_cuda_wrote(d, gate);
    tern_cuda_wrote(d, up);
    tern_cuda_launch(d, TERN_CUDA_K_clamp, (unsigned)n_rows, blocks((size_t)gate.width, TERN_CUDA_CLAMP), 1, 256, 0, &a,
                     sizeof a);
}

void tern_cuda_grid(struct tern_dev *dev, struct tern_dev_rows x, enum tern_grid grid, int n_heads, int n_rows)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    const struct tern_cuda_grid_args a = {.x = tern_cuda_rows_at(x),
                                          .stride = x.stride,
                                          .n_heads = n_heads,
                                          .dim = x.width / n_heads,
                                          .n_rows = n_rows,
                                          .fp4 = grid == TERN_GRID_FP4};
    if (grid == TERN_GRID_NONE)
        return;
    TERN_ASSERT(!a.fp4 || (a.dim & (a.dim - 1)) == 0);
    tern_cuda_wrote(d, x);
    tern_cuda_launch(d, TERN_CUDA_K_grid, blocks((size_t)n_rows * (size_t)n_heads, TERN_CUDA_GRID_WARPS), 1, 1,
                     32 * TERN_CUDA_GRID_WARPS, TERN_CUDA_GRID_WARPS * (unsigned)a.dim * (unsigned)sizeof(float), &a,
                     sizeof a);
}

static struct tern_cuda_hyper_args args_of(const struct tern_hyper *h, struct tern_dev_rows m,
                                           struct tern_dev_rows streams, struct tern_dev_rows x)
{
    TERN_ASSERT(h->n >= 1 && h->n <= TERN_MAX_STREAMS);
    return (struct tern_cuda_hyper_args){.m = tern_cuda_rows_at(m),
                                         .m_stride = m.stride,
                                         .streams = tern_cuda_rows_at(streams),
                                         .stream_stride = streams.stride,
                                         .x = tern_cuda_rows_at(x),
                                         .x_stride = x.stride,
                                         .base = tern_cuda_vec_at(h->base),
                                         .scale = tern_cuda_vec_at(h->scale),
                                         .n = h->n,
                                         .dim = h->dim,
                                         .iterations = h->iterations,
                                         .eps = h->eps,
                                         .norm_eps = h->norm_eps};
}

void tern_cuda_hyper_read(struct tern_dev *dev, const struct tern_hyper *h, struct tern_dev_rows m,
                          struct tern_dev_rows streams, struct tern_dev_rows x, int n_rows)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    const struct tern_cuda_hyper_args a = args_of(h, m, streams, x);
    tern_cuda_wrote(d, m);
    tern_cuda_wrote(d, x);
    tern_cuda_launch(d, TERN_CUDA_K_hyper_read, (unsigned)n_rows, 1, 1, TERN_CUDA_HYPER_THREADS, 0, &a, sizeof a);
}

void tern_cuda_hyper_write(struct tern_dev *dev, const struct tern_hyper *h, struct tern_dev_rows streams,
                           struct tern_dev_rows m, struct tern_dev_rows t, int n_rows)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    const struct tern_cuda_hyper_args a = args_of(h, m, streams, t);
    tern_cuda_wrote(d, streams);
    tern_cuda_launch(d, TERN_CUDA_K_hyper_write, (unsigned)n_rows, blocks((size_t)h->dim, TERN_CUDA_HYPER_COLUMNS), 1,
                     TERN_CUDA_HYPER_COLUMNS, 0, &a, sizeof a);
}
