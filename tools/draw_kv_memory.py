#!/usr/bin/env python3
"""Draws docs/kv-memory.svg: the KV cache of a model with 8 billion parameters at 32,768 tokens, by scheme.

    tools/draw_kv_memory.py            writes the picture
    tools/draw_kv_memory.py --check    1 when the picture there is another one

Nothing is measured: a value takes its code and its share of a 16-bit scale per head and token (docs/kv-page.md).  First
tokens and the open page, which stay in 16 bits, are 0.2 % at this length and left out.
"""
import sys
from pathlib import Path

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "kv-memory.svg"

LAYERS, KV_HEADS, HEAD, TOKENS = 32, 8, 128, 32768
VALUES = 2 * LAYERS * KV_HEADS * HEAD * TOKENS

# Scheme, what it is, bits of a code, bits of scales per head and token.
SCHEMES = [
    ("f16", "16 bits, as everywhere", 16, 0),
    ("q8", "8 bits", 8, 16),
    ("t4", "4 bits, the default", 4, 16),
    ("t3", "3 bits", 3, 16),
    ("t2", "2 bits", 2, 16),
]

WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 720, 190, 70, 44, 34, 20

STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2328 }
  .title { font-weight: 600 }
  .what { fill: #59636e; font-size: 12px }
  .wide { fill: #9aa4af }
  .coded { fill: #1a7f64 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .what { fill: #9198a1 }
    .wide { fill: #6e7681 }
    .coded { fill: #3fb68b }
  }
"""


def gib(code, scale):
    return VALUES * (code + scale / HEAD) / 8 / 2**30


def picture():
    height = TOP + ROW * len(SCHEMES) + 8
    most = gib(*SCHEMES[0][2:])
    told = ", ".join(f"{name} {gib(code, scale):.2f} GiB" for name, _, code, scale in SCHEMES)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="t d">',
        '<title id="t">KV cache of an 8B model at 32K tokens</title>',
        f'<desc id="d">{told}</desc>',
        f"<style>{STYLE}</style>",
        '<text class="title" x="8" y="24">KV cache of an 8B model (Llama 3.1) at 32,768 tokens, GiB</text>',
    ]
    for i, (name, what, code, scale) in enumerate(SCHEMES):
        y = TOP + i * ROW
        wide = (WIDTH - LEFT - RIGHT) * gib(code, scale) / most
        lines += [
            f'<text x="8" y="{y + 15}">{name}</text>',
            f'<text class="what" x="40" y="{y + 15}">{what}</text>',
            f'<rect class="{"coded" if scale else "wide"}" x="{LEFT}" y="{y}" width="{wide:.1f}" height="{BAR}" rx="3"/>',
            f'<text x="{LEFT + wide + 8:.1f}" y="{y + 15}">{gib(code, scale):.2f}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    if sys.argv[1:]:
        same = PICTURE.read_text(encoding="utf-8") == picture()
        if not same:
            print("docs/kv-memory.svg is not what tools/draw_kv_memory.py draws: run it", file=sys.stderr)
        return 0 if same else 1
    PICTURE.write_text(picture(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
