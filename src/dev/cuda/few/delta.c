/* Layers with a recurrent state. */
#include "dev/cuda/few/delta.h"
#include "base/mem.h"
#include "dev/cuda/cuda.h"

#define MOST_DK 1024 /* delta.cu keeps so many numbers of a column */

void tern_cuda_delta(struct tern_dev *dev, int layer, const struct tern_delta *l, const struct tern_delta_io *io,
                     int n_rows)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    const int channels = 2 * l->n_k * l->dk + l->n_v * l->dv;
    struct tern_cuda_delta_args a = {.t = d->tables,
                                     .x = tern_cuda_rows_at(io->x),
                                     .stride = io->x.stride,
                                     .decay = tern_cuda_rows_at(io->decay),
                                     .beta = tern_cuda_rows_at(io->beta),
                                     .gate_stride = io->decay.stride,
                                     .out = tern_cuda_rows_at(io->out),
                                     .out_stride = io->out.stride,
                                     .conv = tern_cuda_vec_at(l->conv),
                                     .a = tern_cuda_vec_at(l->a),
                                     .dt = tern_cuda_vec_at(l->dt),
                                     .n_k = l->n_k,
                                     .n_v = l->n_v,
                                     .dk = l->dk,
                                     .dv = l->dv,
                                     .width = l->width,
                                     .grouped = l->grouped,
                                     .channels = channels};
    TERN_ASSERT(l->dk <= MOST_DK && l->width <= TERN_DELTA_WIDTH);
    a.state_off = d->state_off + (size_t)layer * (size_t)d->step.n_caches * sizeof(uint64_t);
    const unsigned jobs = (unsigned)d->step.n_jobs;
    tern_cuda_launch(d, TERN_CUDA_K_delta_conv, (unsigned)((channels + 127) / 128), jobs, 1, 128, 0, &a, sizeof a);
    tern_cuda_launch(d, TERN_CUDA_K_delta_gates, (unsigned)n_rows, 1, 1, 256, 0, &a, sizeof a);
    tern_cuda_launch(d, TERN_CUDA_K_delta_scan, (unsigned)(l->n_v * (l->dv / TERN_DELTA_COLS)), jobs, 1, 256, 0, &a,
                     sizeof a);
    tern_cuda_wrote(d, io->x);
    tern_cuda_wrote(d, io->out);
}
