/* l4, l3, l2: random signs, Walsh-Hadamard transform, and the scalar quantiser that is optimal for the normal
 * distribution which that yields (Lloyd, 1982; Max, 1960), with one scale per token and 128 dims.
 *
 * An entry is round(c / unit) of the Lloyd-Max value c for mean 0 and variance 1, where unit = c_max / 127. */
#include "codec/kv_impl.h"

const float tern_kv_levels[2 + 4 + 8 + 16] = {
    -0.79788456f, 0.79788456f,  -1.51041761f, -0.45278003f, 0.45278003f,  1.51041761f,  -2.15194570f, -1.34390928f,
    -0.75600528f, -0.24509418f, 0.24509418f,  0.75600528f,  1.34390928f,  2.15194570f,  -2.73258957f, -2.06901723f,
    -1.61804639f, -1.25623120f, -0.94234046f, -0.65675912f, -0.38804830f, -0.12839503f, 0.12839503f,  0.38804830f,
    0.65675912f,  0.94234046f,  1.25623120f,  1.61804639f,  2.06901723f,  2.73258957f,
};

const struct tern_kv_scheme tern_kv_l4 = {
    .codec = TERN_KV_ROTATED("l4", "4 bits, rotated, Lloyd-Max levels", 4),
    .table = {.bits = 4,
              .unit = 2.73258957f / 127.0f,
              .entry = {-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127}},
};

const struct tern_kv_scheme tern_kv_l3 = {
    .codec = TERN_KV_ROTATED("l3", "3 bits, rotated, Lloyd-Max levels", 3),
    .table = {.bits = 3, .unit = 2.15194570f / 127.0f, .entry = {-127, -79, -45, -14, 14, 45, 79, 127}},
};

const struct tern_kv_scheme tern_kv_l2 = {
    .codec = TERN_KV_ROTATED("l2", "2 bits, rotated, Lloyd-Max levels", 2),
    .table = {.bits = 2, .unit = 1.51041761f / 127.0f, .entry = {-127, -38, 38, 127}},
};
