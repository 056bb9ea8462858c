"""What the comparing scripts share: the machine in words, runs of tern bench, ratios round by round.

A comparison has two sides that take turns, and every other round the second side comes first.  A line of a side is what
it measured of one thing (test, depth, plan ...) in one round.
"""
import csv
import datetime
import io
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What tells one line of `tern bench --csv`, or of `bench kv` and `bench weights`, from another, and what is measured.
KEYS = ("test", "depth", "kv", "ctx", "threads", "batch", "type", "rows", "class")
VALUES = ("median", "gb_per_s")


def fail(text):
    sys.exit(f"{Path(sys.argv[0]).name}: {text}")


def output_of(command, what):
    """Standard output of a command that must succeed; its errors pass through."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    except OSError as e:
        fail(f"{what}: cannot run {command[0]}: {e.strerror}")
    if done.returncode:
        fail(f"{what}: status {done.returncode} of: {' '.join(map(str, command))}")
    return done.stdout


def machine(tern):
    """Lines that begin results: what was measured on, when, with which sources."""
    report = json.loads(output_of([tern, "doctor", "--json"], "machine"))
    m = report["machine"]
    cpus = ",".join(str(c) for c in sorted(os.sched_getaffinity(0)))
    git = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True,
                         check=False)
    compiler = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=False)
    return [
        f"date: {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
        f"processor: {m['cpu']}, {m['cores']} cores (CPUs {cpus}), kernels {m['isa']} of {m['isa_detected']}",
        f"memory: {m['memory_bytes'] / 2**30:.1f} GiB",
        f"system: {platform.system()} {platform.release()}, {compiler.stdout.splitlines()[0] if compiler.stdout else 'no cc'}",
        f"tern: {report['version']}, tree {git.stdout.strip() or 'without git'}",
        f"load when started: {os.getloadavg()[0]:.2f}",
    ]


def bench(tern, options):
    """One run of `tern bench`: {key: (value, share of reading or None)}, keys being pairs of name and text."""
    out = output_of([tern, "bench", *options, "--csv"], "tern bench")
    lines = {}
    for row in csv.DictReader(io.StringIO(out)):
        value = next((v for v in VALUES if row.get(v)), None)
        if value is None:
            fail(f"tern bench: no column {' or '.join(VALUES)}: {out.splitlines()[0]}")
        share = row.get("read_share")
        lines[tuple((k, row[k]) for k in KEYS if row.get(k))] = (float(row[value]), float(share) if share else None)
    if not lines:
        fail("tern bench printed no lines")
    return lines


class Comparison:
    """Two sides, line by line."""

    def __init__(self, sides):
        self.sides = sides
        self.rows = []  # (round, side, key, value, share)

    def add(self, number, side, lines):
        self.rows += [(number, side, key, value, share) for key, (value, share) in lines.items()]

    def in_common(self):
        """{key: {side: [(value, share) by round]}} of what both sides have, in order of appearance.  A key loses the
        names that one side does not know: a revision may have columns that another one has not."""
        names = [{name for row in self.rows if row[1] == side for name, _ in row[2]} for side in self.sides]
        lines = {}
        for _, side, key, value, share in sorted(self.rows, key=lambda row: row[0]):
            short = tuple(pair for pair in key if pair[0] in names[0] & names[1])
            lines.setdefault(short, {}).setdefault(side, []).append((value, share))
        lines = {key: sides for key, sides in lines.items() if len(sides) == 2}
        rounds = len({row[0] for row in self.rows})
        if any(len(values) != rounds for sides in lines.values() for values in sides.values()):
            fail(f"{' and '.join(self.sides)} do not tell the same lines apart; compare fewer at once")
        return lines

    def print(self, out=sys.stdout):
        """Medians, and the ratio of the second side to the first: median of the rounds, least and most."""
        a, b = self.sides
        lines = self.in_common()
        if not lines:
            fail(f"{a} and {b} have no line in common")
        width = max(len(" ".join(v for _, v in key)) for key in lines)
        columns = max(12, len(a), len(b))
        print(f"{'':{width}}  {a:>{columns}}  {b:>{columns}}   ratio     min     max  of read", file=out)
        for key, sides in lines.items():
            x, y = ([value for value, _ in sides[side]] for side in self.sides)
            ratios = [q / p for p, q in zip(x, y)]
            shares = [[share for _, share in sides[side] if share is not None] for side in self.sides]
            of_read = ", ".join(f"{statistics.median(s):.0%}" if s else "-" for s in shares)
            print(f"{' '.join(v for _, v in key):{width}}  {statistics.median(x):{columns}.2f}  "
                  f"{statistics.median(y):{columns}.2f}  {statistics.median(ratios):6.3f}  {min(ratios):6.3f}  "
                  f"{max(ratios):6.3f}  {of_read}", file=out)

    def write(self, path, about):
        """Every round, under lines of comment that tell the machine."""
        names = [k for k in dict.fromkeys(name for row in self.rows for name, _ in row[2])]
        try:
            with open(path, "w", encoding="utf-8", newline="") as f:
                f.writelines(f"# {line}\n" for line in about)
                w = csv.writer(f, lineterminator="\n")
                w.writerow(["round", "side", *names, "value", "read_share"])
                for number, side, key, value, share in self.rows:
                    have = dict(key)
                    w.writerow([number, side, *(have.get(n, "") for n in names), f"{value:.3f}",
                                "" if share is None else f"{share:.4f}"])
        except OSError as e:
            fail(f"{path}: {e.strerror}")


def turns(rounds):
    """(round, which side) in the order of measuring."""
    for number in range(rounds):
        for side in ((0, 1), (1, 0))[number % 2]:
            yield number, side
