/* support/make_npy.c - writes normal random numbers as an .npy file, for shell tests.
 *
 *     make_npy FILE ROWS COLUMNS SEED [TYPE]      TYPE: the descr of the header, '<f4' unless told (data stay float32)
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/rng.h"

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    struct tern_rng rng = {.state = strtoull(argv[4], NULL, 10)};
    long rows = strtol(argv[2], NULL, 10), columns = strtol(argv[3], NULL, 10);
    char head[119];
    FILE *f = fopen(argv[1], "wb");
    if (!f)
        return 1;
    (void)snprintf(head, sizeof head, "{'descr': '%s', 'fortran_order': False, 'shape': (%ld, %ld), }",
                   argc > 5 ? argv[5] : "<f4", rows, columns);
    (void)fwrite("\x93NUMPY\x01\x00\x76\x00", 1, 10, f);
    (void)fprintf(f, "%-117s\n", head);
    for (long i = 0; i < rows * columns; i++) {
        double u = 1 - tern_rng_f64(&rng), v = tern_rng_f64(&rng);
        float x = (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
        (void)fwrite(&x, sizeof x, 1, f);
    }
    return fclose(f) != 0;
}
