/* model/resident.h - experts larger than memory: of a mapped file of packed weights, which experts are in memory.
 *
 * A step says for each layer which experts its rows go to, before it multiplies by them: what is missing is asked for
 * at once, and what has to go for that goes.  Layers that choose by token say so at the step's beginning.  The limit
 * holds for all engines of the model together, but for experts that several layers' steps use at the same time.
 *
 * docs/decisions/039-experts-resident.md.  Any thread may call; who asks with `want` ends with `done`. */
#ifndef TERN_MODEL_RESIDENT_H
#define TERN_MODEL_RESIDENT_H

#include "model/load_impl.h"

/* data: the block of weights in net->packed, which stays mapped until free; path: of that file.  limit: bytes of
 * experts in memory, of whole pages that hold nothing else.  What a step could not keep in them is refused. */
int tern_resident_new(struct tern_resident **out, const struct tern_net *net, const struct tern_weight_block *b,
                      const uint8_t *data, const char *path, size_t limit, tern_error *err);
void tern_resident_free(struct tern_resident *r); /* before the file is unmapped; NULL is legal */

/* Bytes of the experts of all places that are experts' matrices. */
size_t tern_resident_bytes(const struct tern_weight_block *b);
/* Is this place of an expert, or of a stack of them? */
bool tern_resident_covers(const struct tern_weight_place *p);

/* A step of these rows begins: what their tokens choose is read ahead, as far as there is room. */
void tern_resident_begin(struct tern_resident *r, const struct tern_row *rows, int n_rows);
/* ids[n]: what the layer's rows go to, one more than once.  The missing ones are asked for, and all are held.  Fails,
 * holding nothing, when the file is no longer what was mapped. */
int tern_resident_want(struct tern_resident *r, int layer, const int32_t *ids, int n, tern_error *err);
/* Waits until they are there; fails when they cannot be read. */
int tern_resident_wait(struct tern_resident *r, int layer, const int32_t *ids, int n, tern_error *err);
void tern_resident_done(struct tern_resident *r, int layer, const int32_t *ids, int n);

#endif
