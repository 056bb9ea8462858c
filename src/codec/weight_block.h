/* codec/weight_block.h - private to the codec's weight files: what file formats are in terms of packed panels.
 *
 * Each quantised type and each form of several tensors knows how to take one block of a row apart into plain numbers
 * (struct weight_block); packing is then the same code for all of them.  Codes travel as 32-bit words of four
 * consecutive inputs, lowest byte first, because a word is exactly one row's share of a panel vector. */
#ifndef TERN_CODEC_WEIGHT_BLOCK_H
#define TERN_CODEC_WEIGHT_BLOCK_H

#include <stdint.h>
#include "codec/codec.h"
#include "kernel/panel.h"

struct weight_block {
    uint32_t quad[TERN_SUPER / 4]; /* codes, four inputs a word */
    uint32_t d[4], m;              /* bits of the scales (one per group, where groups are smaller) and of region m */
    uint8_t a[16];                 /* K kinds: what stands in region a, group by group */
    uint8_t b[8];                  /* K32: minimum factor of each 32 */
    size_t d_at, m_at;             /* forms of several tensors: byte offsets of d in the scales and of m in the zeros */
};

/* A type of TERN_FORM_PLAIN. */
struct weight_type {
    int type;
    int elems, bytes; /* of a block in the file */
    void (*unpack)(struct weight_block *out, const uint8_t *block);
    struct tern_packed kind; /* all but n, k, panel_bytes and data */
};

/* NULL for a type that has no packed form. */
const struct weight_type *tern_weight_type(int type);

/* The other forms: blocks of TERN_BLOCK inputs. */
int tern_weight_form_plan(struct tern_packed *w, const struct tern_weight_source *s, int64_t n, int64_t k,
                          tern_error *err);
void tern_weight_form_read(struct weight_block *out, const struct tern_packed *w, const struct tern_weight_source *s,
                           size_t row, size_t block);

/* What tern_weight_rows does to those forms. */
bool tern_weight_form_divides(const struct tern_weight_source *s, int64_t row0);
void tern_weight_form_rows(struct tern_weight_source *s, int64_t row0, int64_t k);

/* The values of E2M1, doubled. */
#define WEIGHT_E2M1                                             \
    {                                                           \
        0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 \
    }

/* Six-bit scale a and minimum factor b of each 32 inputs out of the 12 bytes of a Q4_K or Q5_K block. */
void tern_weight_k_scales(uint8_t a[8], uint8_t b[8], const uint8_t s[12]);

/* Points of the lattice types: see weight_lattice.c. */
extern const uint16_t tern_lattice_iq2_xxs[256], tern_lattice_iq2_xs[512], tern_lattice_iq2_s[1024];
extern const uint16_t tern_lattice_iq3_xxs[256], tern_lattice_iq3_s[512];

/* The eight signs that the lattice types store in seven bits: the number of minus signs is even. */
static inline unsigned tern_lattice_signs(unsigned seven)
{
    return seven | (unsigned)__builtin_parity(seven) << 7;
}

#endif
