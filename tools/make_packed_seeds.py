#!/usr/bin/env python3
"""Writes the seeds of tests/fuzz/fuzz_packed.c: edits of a file that fits (that source says how they are read).

  tools/make_packed_seeds.py [FOLDER]      default: tests/fuzz/corpus/packed
"""
import struct
import sys
from pathlib import Path

HEADER, BEYOND = 64, 0xFFFFFFFF
REPAIR_HEAD, REPAIR_TENSORS, REPAIR_STAMP = 1, 2, 4


def seed(flags, *edits):
    return bytes([flags]) + b"".join(struct.pack("<IQ", *e) for e in edits)


SEEDS = {
    "nothing": b"",
    "fits": seed(0),
    "other-version": seed(REPAIR_HEAD, (8, 0x0102030400000002)),
    "other-layout": seed(REPAIR_HEAD, (16, 2)),
    "offset-beyond": seed(REPAIR_HEAD, (32, 1 << 63)),
    "offset-small": seed(REPAIR_HEAD, (32, HEADER)),
    "bytes-beyond": seed(REPAIR_HEAD, (40, 0xFFFFFFFFFFFFFFC0)),
    "overlap": seed(REPAIR_HEAD, (HEADER + 64 + 24, 0)),
    "panel-bytes": seed(REPAIR_HEAD, (HEADER + 40, 1)),
    "other-source": seed(REPAIR_HEAD, (HEADER + 8, 1)),
    "other-source-stamped": seed(REPAIR_HEAD | REPAIR_STAMP, (HEADER + 8, 1)),
    "no-stamp": seed(0, (56, 0)),
    "damaged-weights": seed(0, (4096, 0xFFFFFFFFFFFFFFFF)),
    "other-weights": seed(REPAIR_HEAD | REPAIR_TENSORS, (4096, 0xFFFFFFFFFFFFFFFF)),
    "nan-vector": seed(REPAIR_HEAD | REPAIR_TENSORS, (16167, 0xFFFF2DFFF92BC100)),
    "cut-header": seed(0, (BEYOND, 63)),
    "cut-table": seed(REPAIR_HEAD, (BEYOND, 100)),
    "cut-weights": seed(REPAIR_HEAD | REPAIR_TENSORS, (BEYOND, 5000)),
}


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent / "tests/fuzz/corpus/packed")
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in SEEDS.items():
        (folder / name).write_bytes(data)


main()
