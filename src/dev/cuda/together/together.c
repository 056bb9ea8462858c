/* Cards that compute one model together: they reach each other's memory, and gather rows by one kernel on each. */
#include "dev/cuda/together/together.h"
#include <string.h>
#include "base/mem.h"
#include "dev/cuda/cuda.h"
#include "dev/cuda/products/products.h"
#include "dev/cuda/together/for_products.h"

#define FLAGS ((size_t)TERN_CUDA_TOGETHER * TERN_CUDA_TOGETHER_FLAGS * sizeof(uint64_t))
#define STAGES                                                                                            \
    (((size_t)TERN_CUDA_TOGETHER_STAGE * 2 + (size_t)TERN_CUDA_TOGETHER_CHAIN * TERN_CUDA_TOGETHER_ROW) * \
     sizeof(uint64_t)) /* with the places of chains */
#define PENDING 400    /* kernels that wait to be queued, behind which a gather starts them */
#define MOST    4096   /* gathers of a step */
#define SOON    400    /* gathers before numbers wrap for the first time: soon, so that no test leaves it out */

_Static_assert(TERN_CUDA_TOGETHER == TERN_DEV_CARDS, "a card each");

/* The driver takes about a thousand kernels of a card, then it waits itself.  Cards wait for each other, so all need
 * theirs up to a gather before any gets more than that behind it.  An operation may be so many kernels alone: where
 * lists are long, they go out up to the last gather first, which is never more than PENDING and what came with one. */
void tern_cuda_start(struct tern_dev *const *devs, int n)
{
    bool turns = false;
    for (int i = 0; i < n; i++)
        turns = turns || tern_cuda_of(devs[i])->list.n > TERN_CUDA_TURN;
    for (int i = 0; turns && i < n; i++)
        tern_cuda_flush_before(tern_cuda_of(devs[i]), tern_cuda_of(devs[i])->together.behind);
    for (int i = 0; i < n; i++)
        tern_cuda_flush(tern_cuda_of(devs[i]));
}

/* May the one work in the other's memory? */
static int reach(const struct tern_cuda *from, const struct tern_cuda *to, tern_error *err)
{
    int can = 0;
    if (from->card == to->card)
        return 0;
    int rc = tern_cu_error(tern_cu.cuDeviceCanAccessPeer(&can, from->card->device, to->card->device),
                           "asking whether cards reach each other", err);
    if (rc < 0)
        return rc;
    if (!can)
        return tern_err_set(err, TERN_EUNSUPPORTED, "cuda:%d cannot reach the memory of cuda:%d", from->card->number,
                            to->card->number);
    tern_cuda_enter(from);
    const tern_cu_result got = tern_cu.cuCtxEnablePeerAccess(to->card->context, 0);
    return got == TERN_CU_PEER_ALREADY ? 0 : tern_cu_error(got, "letting cards reach each other", err);
}

int tern_cuda_join(struct tern_dev *const *devs, int n, tern_error *err)
{
    int rc = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            TERN_TRY(reach(tern_cuda_of(devs[i]), tern_cuda_of(devs[j]), err));
    for (int i = 0; i < n; i++) {
        struct tern_cuda *d = tern_cuda_of(devs[i]);
        tern_cuda_enter(d);
        d->together.n = n;
        d->together.number = UINT32_MAX - MOST - SOON;
        TERN_TRY(tern_cuda_take(d, &d->together.flags, FLAGS, err));
        TERN_TRY(tern_cuda_take(d, &d->together.stage, STAGES, err));
        TERN_TRY(tern_cu_error(tern_cu.cuStreamSynchronize(d->stream), "taking memory of the card", err));
    }
out:
    return rc;
}

void tern_cuda_together_close(struct tern_cuda *d)
{
    tern_cuda_give(d, d->together.flags);
    tern_cuda_give(d, d->together.stage);
}

/* Words say the lower half of a gather's number alone.  Where it would wrap within the step, the step begins behind
 * that, and the stages forget what they hold: nobody sends here before all cards have met (gather_rows), and what was
 * sent before has been received, by kernels that are over when the stages are cleared. */
static void wrap(struct tern_cuda *d)
{
    if ((uint32_t)d->together.number <= UINT32_MAX - MOST)
        return;
    d->together.number = (d->together.number | UINT32_MAX) + 2;
    d->together.cleared = 1;
    (void)tern_cuda_ok(d, tern_cu.cuMemsetD8Async(d->together.stage, 0, STAGES, d->stream),
                       "clearing memory of the card");
}

/* The number of the step's first gather goes with its tables. */
void tern_cuda_together_begin(struct tern_cuda *d)
{
    if (!d->together.n)
        return;
    d->together.number += (uint64_t)d->together.which;
    d->together.which = 0;
    wrap(d);
    d->together.at = tern_cuda_send(d, &d->together.number, sizeof d->together.number);
}

/* Cards make a chain or none of them does, so nobody asks for itself: what it depends on may be another soon. */
static bool all_chain(struct tern_dev *const *devs, int n)
{
    bool all = true;
    for (int i = 0; i < n; i++)
        all = all && tern_cuda_may_chain(tern_cuda_of(devs[i])) &&
              tern_cuda_of(devs[i])->card->shared_most == tern_cuda_of(devs[0])->card->shared_most;
    return all;
}

/* Where all cards have rows, flags and, staged, stages. */
static void tell_cards(struct tern_cuda_together *a, struct tern_dev *const *devs, int n, const struct tern_dev_rows *x,
                       bool staged)
{
    TERN_ASSERT(tern_cuda_of(devs[0])->together.which < MOST);
    for (int i = 0; i < n; i++) {
        const struct tern_cuda *d = tern_cuda_of(devs[i]);
        a->x[i] = tern_cuda_rows_at(x[i]);
        a->flags[i] = d->together.flags;
        a->stage[i] = staged ? d->together.stage : 0;
    }
}

/* And which of them this is.  Nothing is gated, yet. */
static void tell_self(struct tern_cuda_together *a, struct tern_cuda *d, int self)
{
    a->self = self;
    a->number = d->together.at;
    a->which = d->together.which++;
    d->quantized.x = 0;
    a->up = a->up_stride = 0;
    a->op = 0;
}

static void queue(struct tern_dev *const *devs, int n, const struct tern_dev_rows *x, const int *bound, int n_rows,
                  bool staged)
{
    struct tern_cuda_together a = {.stride = x[0].stride, .n_cards = n, .n_rows = n_rows};
    a.pitch = tern_round_up((size_t)bound[n], 128);
    size_t most = 1;
    bool blocks = true;
    a.meets = !staged;
    a.chains = all_chain(devs, n);
    for (int i = 0; i <= n; i++) {
        a.bound[i] = bound[i];
        blocks = blocks && bound[i] % TERN_BLOCK == 0;
    }
    for (int i = 0; i < n; i++) {
        const size_t pieces = (size_t)((bound[i + 1] - bound[i] + 1023) / 1024) * (size_t)n_rows;
        most = pieces > most ? pieces : most;
        a.meets |= bound[i] == bound[i + 1];
    }
    tell_cards(&a, devs, n, x, staged);
    most = most < TERN_CUDA_TOGETHER_BLOCKS ? most : TERN_CUDA_TOGETHER_BLOCKS;
    for (int i = 0; i < n; i++) {
        struct tern_cuda *d = tern_cuda_of(devs[i]);
        struct tern_dev_rows whole = x[i];
        whole.width = bound[n];
        tell_self(&a, d, i);
        a.row_bytes = d->q8_row_bytes;
        a.lanes = tern_cuda_lanes(n_rows);
        a.q8 = staged && blocks && n_rows ? tern_cuda_as_q8(d, whole, n_rows) : 0;
        tern_cuda_gate_inside(d, &a);
        tern_cuda_launch(d, TERN_CUDA_K_together, (unsigned)most, 1, 1, 256, 0, &a, sizeof a);
    }
}

/* Are they multiplied as halves, and is there a word for each row and card? */
static bool may_halve(const struct tern_cuda *d, int n_rows)
{
    return n_rows > 0 && !d->limits.exact && (size_t)n_rows * TERN_CUDA_TOGETHER * 2 <= TERN_CUDA_TOGETHER_STAGE;
}

/* Rows as halves, for the product that comes next. */
static void for_product(struct tern_dev *const *devs, int n, const struct tern_dev_rows *x, const int *bound,
                        int n_rows)
{
    struct tern_cuda_for_products a = {.g = {.stride = x[0].stride, .n_cards = n, .n_rows = n_rows, .meets = 1}};
    /* A row waits for the other cards, and another row of the processor goes on meanwhile. */
    int blocks = n_rows < TERN_CUDA_TOGETHER_FLAGS ? n_rows : TERN_CUDA_TOGETHER_FLAGS;
    for (int i = 0; i < n; i++)
        blocks =
            blocks < 2 * tern_cuda_of(devs[i])->card->processors ? blocks : 2 * tern_cuda_of(devs[i])->card->processors;
    memcpy(a.g.bound, bound, (size_t)(n + 1) * sizeof *bound);
    a.pitch = tern_cuda_pitch(bound[n]);
    tell_cards(&a.g, devs, n, x, true);
    for (int i = 0; i < n; i++)
        a.half[i] = tern_cuda_of(devs[i])->half;
    for (int i = 0; i < n; i++) {
        struct tern_cuda *d = tern_cuda_of(devs[i]);
        tell_self(&a.g, d, i);
        a.scale = d->half_scale;
        tern_cuda_gate_inside(d, &a.g);
        d->halved = a.g.x[i];
        tern_cuda_launch(d, TERN_CUDA_K_for_products, (unsigned)blocks, 1, 1, 512, 0, &a, sizeof a);
    }
}

static const int none[TERN_DEV_CARDS + 1]; /* bounds of a gather of nothing, by which cards meet */

/* The call by which card i multiplied just its columns of these rows, if it is its last one and could write them to all
 * cards. */
static const struct tern_cuda_gemm *product_of(const struct tern_cuda *d, struct tern_dev_rows x, const int *bound,
                                               int i, int n_rows)
{
    const struct tern_cuda_gemm *a = tern_cuda_last_call(d, TERN_CUDA_K_gemm_90);
    const tern_cu_address rows = tern_cuda_rows_at(x);
    return a && a->n_out == 1 && a->n_rows == n_rows && a->n == bound[i + 1] - bound[i] &&
                   a->out[0].y == rows + (size_t)bound[i] * sizeof(float) && a->out[0].y_stride == x.stride &&
                   rows % 16 == 0 && x.stride % 4 == 0 && bound[i] % 4 == 0
               ? a
               : NULL;
}

/* Rows that a product has just been asked for go to all cards as it makes them: false where they cannot. */
static bool send_product(struct tern_dev *const *devs, int n, const struct tern_dev_rows *x, const int *bound,
                         int n_rows)
{
    struct tern_cuda_call call[TERN_DEV_CARDS];
    struct tern_cuda_gemm a[TERN_DEV_CARDS];
    for (int i = 0; i < n; i++) {
        const struct tern_cuda *d = tern_cuda_of(devs[i]);
        const struct tern_cuda_gemm *own = product_of(d, x[i], bound, i, n_rows);
        if (!own)
            return false;
        call[i] = d->list.calls[d->list.n - 1];
        a[i] = *own;
        a[i].n_to = n;
        for (int j = 0; j < n; j++)
            a[i].to[j] = tern_cuda_rows_at(x[j]) + (size_t)bound[i] * sizeof(float);
    }
    for (int i = 0; i < n; i++)
        tern_cuda_drop_last(tern_cuda_of(devs[i]));
    queue(devs, n, x, none, 0, false); /* all are done with what these rows held */
    for (int i = 0; i < n; i++)
        tern_cuda_launch(tern_cuda_of(devs[i]), TERN_CUDA_K_gemm_90_sent, call[i].grid[0], 1, 1, call[i].block,
                         call[i].shared, &a[i], sizeof a[i]);
    queue(devs, n, x, none, 0, false); /* and have what they hold now */
    return true;
}

/* A gather ends: kernels go out where there are many. */
static void end_gather(struct tern_dev *const *devs, int n)
{
    bool now = false;
    for (int i = 0; i < n; i++)
        now = now || tern_cuda_of(devs[i])->list.n >= PENDING;
    if (now)
        tern_cuda_start(devs, n);
    for (int i = 0; i < n; i++)
        tern_cuda_of(devs[i])->together.behind = tern_cuda_of(devs[i])->list.n;
}

/* Through the stages; or straight, when all have said that they are done with what the rows held. */
bool tern_cuda_gather_rows(struct tern_dev *const *devs, int n, const struct tern_dev_rows *x, const int *bound,
                           int n_rows, bool product)
{
    const bool staged = (size_t)n_rows * tern_round_up((size_t)bound[n], 128) <= TERN_CUDA_TOGETHER_STAGE;
    product = product && may_halve(tern_cuda_of(devs[0]), n_rows);
    const bool sent = !staged && !product && send_product(devs, n, x, bound, n_rows);
    if (!sent && ((!staged && !product) || tern_cuda_of(devs[0])->together.cleared))
        queue(devs, n, x, none, 0, false);
    for (int i = 0; i < n; i++)
        tern_cuda_of(devs[i])->together.cleared = 0;
    if (product)
        for_product(devs, n, x, bound, n_rows);
    else if (!sent)
        queue(devs, n, x, bound, n_rows, staged);
    end_gather(devs, n);
    return !product;
}
