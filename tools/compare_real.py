#!/usr/bin/env python3
"""Compare the logits of tern with reference logits on a real model.

    compare_real.py MODEL.gguf REFERENCE.npy --ids @IDS.txt [--tern build/tern] [--kv SPEC] [--exact] [--rows N]

Runs `tern eval logits` on the ids and prints, against the reference (tools/reference_logits.py): the largest and the
mean absolute difference of a logit, the mean and the largest Kullback-Leibler divergence KL(reference || tern) in nats,
and how often the most likely token agrees.  --max-diff, --max-kld and --min-top1 make the exit status 1 when a bound is
missed.  Needs numpy only.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np


def run_tern(args, out):
    command = [args.tern, "eval", "logits", "-m", args.model, "--ids", args.ids, "--out", str(out)]
    if args.kv:
        command += ["--kv", args.kv]
    if args.exact:
        command.append("--exact")
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr.rstrip()}")
    return np.load(out, mmap_mode="r")


def log_softmax(row):
    row = row - row.max()
    return row - np.log(np.exp(row).sum())


def compare(want, got):
    """Row by row in float64, so that a vocabulary of 262144 does not need a second copy of everything."""
    diff, mean_diff, kld, same = [], [], [], []
    for a, b in zip(want, got, strict=True):
        a, b = a.astype(np.float64), b.astype(np.float64)
        la, lb = log_softmax(a), log_softmax(b)
        diff.append(np.abs(a - b).max())
        mean_diff.append(np.abs(a - b).mean())
        kld.append((np.exp(la) * (la - lb)).sum())
        same.append(a.argmax() == b.argmax())
    return np.array(diff), np.array(mean_diff), np.array(kld), np.array(same)


def main():
    parser = argparse.ArgumentParser(description="compare tern with reference logits on a real model")
    parser.add_argument("model")
    parser.add_argument("reference", help="float32 .npy [ids, vocabulary], or the last rows of it")
    parser.add_argument("--ids", required=True, help="1,2,3 or @FILE")
    parser.add_argument("--tern", default=str(pathlib.Path(__file__).resolve().parent.parent / "build" / "tern"))
    parser.add_argument("--kv", help="KV cache spec, passed on")
    parser.add_argument("--exact", action="store_true", help="float32 arithmetic instead of integer dots")
    parser.add_argument("--got", help="compare this .npy instead of running tern")
    parser.add_argument("--rows", type=int, default=0, help="also print the N positions with the largest difference")
    parser.add_argument("--max-diff", type=float)
    parser.add_argument("--max-kld", type=float)
    parser.add_argument("--min-top1", type=float, help="per cent")
    args = parser.parse_args()

    want = np.load(args.reference, mmap_mode="r")
    with tempfile.TemporaryDirectory() as folder:
        got = np.load(args.got, mmap_mode="r") if args.got else run_tern(args, pathlib.Path(folder) / "got.npy")
        if got.ndim != 2 or got.shape[1:] != want.shape[1:] or got.shape[0] < want.shape[0]:
            raise SystemExit(f"shapes do not fit: reference {want.shape}, tern {got.shape}")
        first = got.shape[0] - want.shape[0]
        bad = int((~np.isfinite(got)).sum())
        if bad:
            raise SystemExit(f"tern produced {bad} logits that are not finite")
        diff, mean_diff, kld, same = compare(want, got[first:])

    top1 = 100 * same.mean()
    settings = " ".join(word for word in (f"kv={args.kv}" if args.kv else "", "exact" if args.exact else "") if word)
    print(f"{'model':36} {'settings':16} {'rows':>5} {'max |d|':>9} {'mean |d|':>9} {'mean KLD':>9} {'max KLD':>9} "
          f"{'top-1 %':>7}")
    print(f"{pathlib.Path(args.model).name:36.36} {settings or '-':16} {len(diff):5} {diff.max():9.2e} "
          f"{mean_diff.mean():9.2e} {kld.mean():9.2e} {kld.max():9.2e} {top1:7.2f}")
    for at in np.argsort(-diff)[:args.rows]:
        verdict = "same" if same[at] else "differs"
        print(f"  position {first + at}: max |d| {diff[at]:.2e}, KLD {kld[at]:.2e}, top-1 {verdict}")

    misses = [text for text, missed in (
        (f"max |d| {diff.max():.2e} > {args.max_diff}", args.max_diff is not None and diff.max() > args.max_diff),
        (f"mean KLD {kld.mean():.2e} > {args.max_kld}", args.max_kld is not None and kld.mean() > args.max_kld),
        (f"top-1 {top1:.2f} % < {args.min_top1}", args.min_top1 is not None and top1 < args.min_top1)) if missed]
    for text in misses:
        print(f"missed: {text}", file=sys.stderr)
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
