/* codec/weight_block.h - private to the codec's weight files: what the file types are in terms of packed panels.
 *
 * Each quantised type knows how to take one of its blocks apart into plain numbers (struct weight_block); packing is
 * then the same code for all of them.  Codes travel as 32-bit words of four consecutive inputs, lowest byte first,
 * because a word is exactly one row's share of a panel vector. */
#ifndef TERN_CODEC_WEIGHT_BLOCK_H
#define TERN_CODEC_WEIGHT_BLOCK_H

#include <stdint.h>
#include "kernel/gemm.h"
#include "kernel/pack.h"

struct weight_block {
    uint32_t quad[TERN_SUPER / 4]; /* codes, four inputs a word */
    uint16_t d, m;                 /* f16 scale and minimum */
    uint8_t a[16];                 /* K32: scale of each 32; K16: signed scale of each 16 */
    uint8_t b[8];                  /* K32: minimum factor of each 32 */
};

struct weight_type {
    int type;
    enum tern_codes codes;
    enum tern_scales scales;
    int zero;
    int elems, bytes; /* of a block in the file */
    void (*unpack)(struct weight_block *out, const uint8_t *block);
};

/* NULL for a type that has no packed form. */
const struct weight_type *tern_weight_type(int type);

/* Six-bit scale a and minimum factor b of each 32 inputs out of the 12 bytes of a Q4_K or Q5_K block. */
void tern_weight_k_scales(uint8_t a[8], uint8_t b[8], const uint8_t s[12]);

#endif
