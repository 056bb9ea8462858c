#!/usr/bin/env python3
"""Writes src/codec/weight_lattice.c: the published tables of the IQ2 and IQ3 block types, from the gguf package.

    tools/make_lattices.py > src/codec/weight_lattice.c

Needs gguf and numpy.  Every point of a table becomes one 16-bit number: 2 bits per value and 8 values for IQ2, 3 bits
and 4 values for IQ3, the first value in the lowest bits."""
import sys

import gguf
import numpy as np

HEAD = """\
/* The lattices of the IQ2 and IQ3 block types: facts of the GGUF format, as the gguf Python package ({version}, MIT) lists
 * them.  Written by tools/make_lattices.py.  A point is 8 values of 2 bits (IQ2) or 4 of 3 bits (IQ3), the first lowest;
 * what the values mean stands in the tables of weight_blocks.c. */
#include "codec/weight_block.h"
"""
TABLES = (("iq2_xxs", gguf.quants.IQ2_XXS), ("iq2_xs", gguf.quants.IQ2_XS), ("iq2_s", gguf.quants.IQ2_S),
          ("iq3_xxs", gguf.quants.IQ3_XXS), ("iq3_s", gguf.quants.IQ3_S))


def points(kind):
    """Places in grid_map, folded into one number per point."""
    kind.init_grid()
    values = kind.grid.reshape(kind.grid_shape).astype(np.int64)
    codes = np.searchsorted(np.array(kind.grid_map), values)
    assert (np.array(kind.grid_map)[codes] == values).all()
    bits = 2 if kind.grid_shape[1] == 8 else 3
    return (codes << bits * np.arange(kind.grid_shape[1])).sum(axis=1)


def main():
    out = [HEAD.format(version="0.19.0")]
    for name, kind in TABLES:
        numbers = [f"0x{p:04X}," for p in points(kind)]
        rows = [" ".join(numbers[i:i + 14]) for i in range(0, len(numbers), 14)]
        out.append(f"const uint16_t tern_lattice_{name}[{len(numbers)}] = {{")
        out += [f"    {row}" for row in rows] + ["};\n"]
    sys.stdout.write("\n".join(out).rstrip() + "\n")


if __name__ == "__main__":
    main()
