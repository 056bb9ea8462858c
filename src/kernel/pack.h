/* kernel/pack.h - where everything lies inside a panel of packed weights.
 *
 * A panel holds 16 consecutive output rows of the matrix, all k inputs:
 *
 *   [codes][scale region][scale region] ...       each padded to 64 bytes, in the order given below
 *
 * Codes come in blocks of 32 inputs.  The unit is a vector of 64 bytes = 16 rows x 4 consecutive inputs (a `quad`):
 * byte 4*row + i belongs to input 4*quad + i of the block.  That is what dot-product instructions want: each 32-bit
 * lane is one row, and the four activations of a quad are broadcast to all lanes.  A block has quads 0..7.
 *
 *   S8   512 bytes  vector q is quad q, signed bytes
 *   E4M3 512 bytes  as S8, eight-bit floats
 *   U2   128 bytes  vectors v (0, 1) whose bits 2t, 2t+1 of each byte are quad 4v+t
 *   U3   192 bytes  as U2, then a vector whose bit q of each byte is bit 2 of quad q's code
 *   U4   256 bytes  vector j (0..3): low nibbles are quad j, high nibbles quad j+4
 *   U5   320 bytes  as U4, then a vector whose bit q of each byte is bit 4 of quad q's code
 *   U6   384 bytes  as U4, then two vectors v (0, 1) whose bits 2t, 2t+1 of each byte are bits 4, 5 of quad 4v+t
 *   T3, T4          as U3, U4: the codes are places in the table
 *   float codes     no blocks: element (input, row) lies at index 16*input + row
 *
 * Scale regions (blocks = k/32, supers = k/256, groups = k/group rounded up; every row of a region has 16 entries, one
 * per output row):
 *   F16    f16 d[blocks]
 *   F16M   f16 d[blocks], f16 m[blocks]
 *   K32    f16 d[supers], f16 dmin[supers], u8 a[blocks], u8 b[blocks]
 *   K16M   f16 d[supers], f16 dmin[supers], u8 ba[2*blocks]: a in the low bits, b in the high ones
 *   K32S   f16 d[supers], i8 s[blocks]
 *   K16    f16 d[supers], i8 s[2*blocks]
 *   G16    d_type d[2*blocks], f32 u[1]
 *   G32    d_type d[groups]
 *   G32M   d_type d[groups], m_type m[groups]
 *
 * Only static inline arithmetic here, so that every instruction-set folder may include it. */
#ifndef TERN_KERNEL_PACK_H
#define TERN_KERNEL_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/fp16.h"
#include "kernel/gemm.h"

#define TERN_PACK_LAYOUT 2 /* number of this layout, in files that keep panels: raised with every change of it */

#define TERN_BLOCK 32  /* inputs that share an activation scale */
#define TERN_SUPER 256 /* inputs that share d of the K kinds */
#define TERN_VEC   64  /* bytes of one vector of the layout */

/* X(codes, scales): the combinations that exist, without the float codes; first those that have a narrow product. */
#define TERN_NARROW_KINDS(X) \
    X(U4, F16)               \
    X(U4, F16M)              \
    X(U4, K32)               \
    X(U5, F16)               \
    X(U5, F16M)              \
    X(U5, K32)               \
    X(U6, K16)               \
    X(S8, F16)               \
    X(U2, K16M)              \
    X(U3, K16)               \
    X(T3, K32S)              \
    X(T3, K16)               \
    X(T4, K32S)              \
    X(T4, G16)               \
    X(T4, G32)               \
    X(U2, G32M)              \
    X(U3, G32M)              \
    X(U4, G32M)              \
    X(U5, G32M)              \
    X(U6, G32M)              \
    X(S8, G32M)
#define TERN_QUANT_KINDS(X) TERN_NARROW_KINDS(X) X(E4M3, G32)

/* Byte offsets inside a panel; those that the scale kind does not have are 0. */
struct tern_panel_layout {
    size_t d, m, a, b; /* m: minimum, dmin or u; a: small scales of the K kinds; b: minimum factors of K32 */
    size_t bytes;
};

/* ---- what kinds have in common, for kernels in which they are constants ---- */

/* Do codes mean signed bytes? */
static inline bool tern_codes_signed(enum tern_codes codes)
{
    return codes >= TERN_CODES_S8;
}

static inline bool tern_codes_table(enum tern_codes codes)
{
    return codes >= TERN_CODES_T3;
}

/* Has each half of a block a scale of its own? */
static inline bool tern_scales_halves(enum tern_scales scales)
{
    return scales == TERN_SCALES_K16M || scales == TERN_SCALES_K16 || scales == TERN_SCALES_G16;
}

/* Is d shared by 256 inputs? */
static inline bool tern_scales_super(enum tern_scales scales)
{
    return scales >= TERN_SCALES_K32 && scales <= TERN_SCALES_K16;
}

/* Is there a minimum: dmin*b, to be subtracted, or m, to be added? */
static inline bool tern_scales_minus(enum tern_scales scales)
{
    return scales == TERN_SCALES_K32 || scales == TERN_SCALES_K16M;
}

static inline bool tern_scales_plus(enum tern_scales scales)
{
    return scales == TERN_SCALES_F16M || scales == TERN_SCALES_G32M;
}

static inline bool tern_scales_minimum(enum tern_scales scales)
{
    return tern_scales_minus(scales) || tern_scales_plus(scales);
}

/* Is `zero` subtracted? */
static inline bool tern_scales_zero(enum tern_scales scales)
{
    return !tern_scales_minus(scales) && scales != TERN_SCALES_F16M;
}

static inline bool tern_codes_float(enum tern_codes codes)
{
    return codes <= TERN_CODES_BF16;
}

/* Bytes of a block of 32 inputs x 16 rows, or of one input x 16 rows of float codes. */
static inline size_t tern_codes_unit(enum tern_codes codes)
{
    switch (codes) {
    case TERN_CODES_F32:
        return TERN_PANEL * 4;
    case TERN_CODES_F16:
    case TERN_CODES_BF16:
        return TERN_PANEL * 2;
    case TERN_CODES_U2:
        return 2 * TERN_VEC;
    case TERN_CODES_U3:
    case TERN_CODES_T3:
        return 3 * TERN_VEC;
    case TERN_CODES_U4:
    case TERN_CODES_T4:
        return 4 * TERN_VEC;
    case TERN_CODES_U5:
        return 5 * TERN_VEC;
    case TERN_CODES_U6:
        return 6 * TERN_VEC;
    case TERN_CODES_E4M3:
    case TERN_CODES_S8:
        break;
    }
    return 8 * TERN_VEC;
}

static inline size_t tern_number_bytes(enum tern_number type)
{
    return type == TERN_NUMBER_F32 ? 4 : type <= TERN_NUMBER_BF16 ? 2 : 1;
}

/* Appends a region of `bytes` and returns its offset. */
static inline size_t tern_panel_region(size_t *end, size_t bytes)
{
    size_t at = *end;
    *end = (at + bytes + TERN_VEC - 1) / TERN_VEC * TERN_VEC;
    return at;
}

/* Reads the kinds, k and group of w. */
static inline struct tern_panel_layout tern_panel_layout(const struct tern_packed *w)
{
    size_t blocks = (size_t)w->k / TERN_BLOCK, supers = (size_t)w->k / TERN_SUPER, end = 0;
    size_t groups = w->group ? ((size_t)w->k + (size_t)w->group - 1) / (size_t)w->group : 0;
    struct tern_panel_layout l = {0};
    tern_panel_region(&end, tern_codes_unit(w->codes) * (tern_codes_float(w->codes) ? (size_t)w->k : blocks));
    switch (w->scales) {
    case TERN_SCALES_NONE:
        break;
    case TERN_SCALES_F16:
        l.d = tern_panel_region(&end, blocks * TERN_PANEL * 2);
        break;
    case TERN_SCALES_F16M:
        l.d = tern_panel_region(&end, blocks * TERN_PANEL * 2);
        l.m = tern_panel_region(&end, blocks * TERN_PANEL * 2);
        break;
    case TERN_SCALES_K32:
        l.d = tern_panel_region(&end, supers * TERN_PANEL * 2);
        l.m = tern_panel_region(&end, supers * TERN_PANEL * 2);
        l.a = tern_panel_region(&end, blocks * TERN_PANEL);
        l.b = tern_panel_region(&end, blocks * TERN_PANEL);
        break;
    case TERN_SCALES_K16M:
        l.d = tern_panel_region(&end, supers * TERN_PANEL * 2);
        l.m = tern_panel_region(&end, supers * TERN_PANEL * 2);
        l.a = tern_panel_region(&end, 2 * blocks * TERN_PANEL);
        break;
    case TERN_SCALES_K32S:
    case TERN_SCALES_K16:
        l.d = tern_panel_region(&end, supers * TERN_PANEL * 2);
        l.a = tern_panel_region(&end, blocks * TERN_PANEL * (w->scales == TERN_SCALES_K16 ? 2 : 1));
        break;
    case TERN_SCALES_G16:
        l.d = tern_panel_region(&end, groups * TERN_PANEL * tern_number_bytes(w->d_type));
        l.m = tern_panel_region(&end, TERN_PANEL * 4);
        break;
    case TERN_SCALES_G32:
    case TERN_SCALES_G32M:
        l.d = tern_panel_region(&end, groups * TERN_PANEL * tern_number_bytes(w->d_type));
        if (w->scales == TERN_SCALES_G32M)
            l.m = tern_panel_region(&end, groups * TERN_PANEL * tern_number_bytes(w->m_type));
        break;
    }
    l.bytes = end;
    return l;
}

static inline int tern_panels(const struct tern_packed *w)
{
    return (int)(((size_t)w->n + TERN_PANEL - 1) / TERN_PANEL);
}

#endif
