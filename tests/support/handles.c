/* What the host may do with handles, and what does not compile: every LOOK but 0. */
#include "dev/dev.h"

size_t look(const struct tern_dev_rows *r, const struct tern_dev_weight *w);

size_t look(const struct tern_dev_rows *r, const struct tern_dev_weight *w)
{
#if LOOK == 0
    return r->at + r->stride + (size_t)w->n;
#elif LOOK == 1
    return (size_t)r->mem->p;
#elif LOOK == 2
    return sizeof *r->mem;
#elif LOOK == 3
    return (size_t)w->form->m.data;
#elif LOOK == 4
    return (size_t)((const float *)r->mem[0])[r->at];
#endif
}
