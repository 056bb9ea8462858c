#!/usr/bin/env python3
"""Checks the rules of the house that no compiler knows.  Run by `make house` and in CI.

  edges     include edges follow the layers; a folder is entered through its own headers only
  sizes     lines per file and per function: soft limits are reported, hard limits fail; lines per header; bytes of
            fixtures
  rooms     files per folder
  cycles    no two topics include each other, straight or by way of others; a topic is a source and its header
  headers   every header compiles alone in C, the public ones in C++ too
  symbols   every global symbol of libtern begins with tern_, those of libternkv are what its header declares; nothing in
            them prints, exits or calls a banned function
  links     relative links in Markdown lead somewhere; documents named in comments exist

  tools/house.py [--build DIR] [CHECK ...]      all checks when none is named; `symbols` needs a build
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
INCLUDE = ROOT / "include"

SOFT_FILE, HARD_FILE = 800, 1500
SOFT_FUNCTION, HARD_FUNCTION = 70, 150
FOLDER = 30
ARCHIVES = {"docs/decisions", "bench/results"}  # grow note by note, and are entered by a name or a number
HEADER = 250
TALL_HEADERS = {"tern.h"}  # the whole of what programs see, in one place
# Everybody who clones the repository pays for fixtures for ever: of all of tests/data, and of one file.
DATA_BYTES, DATA_FILE_BYTES = 20 << 20, 3 << 19

# Folder -> what its files may include: a folder name stands for that folder's visible headers, anything else is one
# header.  A folder may always include itself.
LAYERS = {
    "base": ["tern/error.h"],
    "kernel": ["base/cpu.h", "base/err.h", "base/fp16.h"],
    "file": ["base"],
    "text": ["base", "file", "tern/reply.h"],
    "grammar": ["base", "tern/grammar.h"],
    "codec": ["base", "kernel", "file"],
    "kvlib": ["base", "kernel", "codec", "tern/kvq.h"],
    "dev": ["base", "kernel", "codec"],
    "kv": ["base", "codec", "dev"],
    "tier": ["base"],
    "model": ["base", "kernel", "file", "codec", "dev", "kv"],
    "run": ["base", "kernel", "file", "text", "grammar", "codec", "dev", "kv", "tier", "model", "tern"],
    "eval": ["base", "codec", "dev", "kv", "run", "tern"],
    "convert": ["base", "file", "text", "codec", "model", "tern"],
    "server": ["base", "tern"],
    "cli": ["base", "tern", "server"],
}

# The headers of a folder that other folders may include.
VISIBLE = {
    "base": None,  # all
    "tern": None,
    "kernel": {
        "kernel.h",
        "attn.h",
        "attn_impl.h",
        "attn16.h",
        "attn16_impl.h",
        "attn16_softmax_impl.h",
        "delta.h",
        "gemm.h",
        "gemm_few_impl.h",
        "gemm_scales_impl.h",
        "kvq.h",
        "kvq_encode_impl.h",
        "kvq_impl.h",
        "kvq_mix_impl.h",
        "kvq_paths_impl.h",
        "kvq_trellis_impl.h",
        "pack.h",
        "panel.h",
        "prompt.h",
        "prompt_impl.h",
        "vec.h",
    },
    "file": {"file.h", "gguf_write.h", "hf_family.h"},
    "text": {"text.h"},
    "grammar": {"grammar.h"},
    "codec": {"codec.h"},
    "dev": {"dev.h"},
    "kv": {"kv.h"},
    "tier": {"tier.h"},
    "model": {"model.h"},
    "run": {"run.h"},
    "server": {"server.h"},
}

# Room -> its headers that the rest of its folder may include.
ROOM_HEADERS = {
    "model/arch": {"arch.h", "archs.def"},
    "run/prefix": {"prefix.h"},
    "model/block": {"block.h", "ffns.def", "mixers.def", "residuals.def"},
    "run/draft": {"draft.h"},
    "dev/cuda/few": {"hyper.h"},
    "dev/cuda/products": {"products.h"},
    "dev/cuda/together": {"together.h"},
    "server/api": {"ask.h"},
    "server/http": {"http.h"},
}

# Room -> the rooms that it extends, and whose headers it may use.
EXTENDS = {
    "avxvnni": {"avx2"},
    "avx512bf16": {"avx512"},
    "amx": {"avx512", "avx512bf16"},
    "cuda/attn": {"cuda"},
    "cuda/few": {"cuda"},
    "cuda/products": {"cuda"},
    "cuda/together": {"cuda"},
}

# Folders of src/kernel that another compiler than the machine's own may have to read.
ARCHITECTURE = {"avx2": "x86_64", "avxvnni": "x86_64", "avx512": "x86_64", "avx512bf16": "x86_64", "amx": "x86_64", "neon": "aarch64"}

INTRINSICS = re.compile(r"<(\w*intrin|arm_neon|arm_sve)\.h>")

# Functions that a library has no business with (it would print or end the process), or that cannot be used safely.
BANNED = set(
    "printf puts putchar perror exit _exit quick_exit abort system popen gets strcpy strcat strncpy strtok sprintf "
    "vsprintf tmpnam mktemp tempnam rand srand atoi atol atof setlocale signal".split()
)
# Object -> banned functions that it may use, and why.
ALLOWED = {
    "err.c": {"abort"},  # a failed assertion ends the process: that is what it is for
    "ternkv": {"abort"},  # err.c is a part of it
}

problems = []


def problem(where, text):
    problems.append(f"{where}: {text}")


def rel(path):
    return str(Path(path).relative_to(ROOT))


def sources(*suffixes):
    return sorted(p for top in (SRC, INCLUDE) for p in top.rglob("*") if p.suffix in suffixes)


# ---- edges ----------------------------------------------------------------------------------------------------------


def folder_of(path):
    """("kernel", "avx2") of src/kernel/avx2/gemm.c; ("tern", "") of a public header."""
    parts = path.relative_to(INCLUDE if INCLUDE in path.parents else SRC).parts
    return parts[0], "/".join(parts[1:-1])


def edge_problem(top, sub, target):
    """Why a file of src/top/sub may not include "target", or None."""
    parts = target.split("/")
    if len(parts) < 2:
        return "is not written from the include root"
    to_top, to_sub, name = parts[0], "/".join(parts[1:-1]), parts[-1]
    if to_top == top:
        shown = name in ROOM_HEADERS.get(f"{to_top}/{to_sub}", ())
        if to_sub and to_sub != sub and to_sub not in EXTENDS.get(sub, ()) and not shown:
            return f"is private to {to_top}/{to_sub}"
        if top == "kernel" and sub and not to_sub and name not in VISIBLE["kernel"]:
            return "is private to kernel"
        return None
    if to_top not in LAYERS and to_top != "tern":
        return "names no folder of the tree"
    allowed = LAYERS.get(top, [])
    if target in allowed:
        return None
    if to_top not in allowed:
        return f"goes from {top} to {to_top}, which is not among: {', '.join(allowed) or 'nothing'}"
    if to_sub:
        return f"is private to {to_top}"
    if VISIBLE[to_top] is not None and name not in VISIBLE[to_top]:
        return f"is private to {to_top}"
    if name.endswith("_impl.h"):
        return f"is private to {to_top}"
    return None


def check_edges():
    for path in sources(".c", ".h", ".def"):
        top, sub = folder_of(path)
        if top not in LAYERS and top != "tern":
            problem(rel(path), f"src/{top} is not a folder that LAYERS in tools/house.py knows")
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            quoted = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            why = edge_problem(top, sub, quoted[1]) if quoted else None
            if why:
                problem(f"{rel(path)}:{number}", f'the include of "{quoted[1]}" {why}')
            if INTRINSICS.search(line) and not (top == "kernel" and sub):
                problem(f"{rel(path)}:{number}", "vector intrinsics belong in a folder src/kernel/<isa>")


# ---- sizes ----------------------------------------------------------------------------------------------------------


def functions(lines):
    """(name, first line, number of lines) of every function: in this style its braces stand in column 0."""
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line.startswith("}") and start:
            head = start - 1
            while head > 1 and lines[head - 2] and not re.match(r"[}#/ ]|.*[;}]$|.*\*/$", lines[head - 2]):
                head -= 1
            name = re.search(r"(\w+)\s*\(", " ".join(lines[head - 1 : start - 1]))
            yield (name[1] if name else "?", head, number - head + 1)
            start = None


def check_sizes():
    tests = sorted(p for p in (ROOT / "tests").rglob("*.[ch]"))
    soft = []
    for path in sources(".h"):
        n = len(path.read_text(encoding="utf-8").splitlines())
        if n > HEADER and path.name not in TALL_HEADERS:
            problem(rel(path), f"{n} lines, the limit for a header is {HEADER}")
    for path in sources(".c", ".h") + tests:
        if path.stem.endswith("_tab"):
            continue  # data
        lines = path.read_text(encoding="utf-8").splitlines()
        if len(lines) > HARD_FILE:
            problem(rel(path), f"{len(lines)} lines, the limit is {HARD_FILE}")
        elif len(lines) > SOFT_FILE:
            soft.append(f"{rel(path)}: {len(lines)} lines (soft limit {SOFT_FILE})")
        for name, line, n in functions(lines):
            if n > HARD_FUNCTION:
                problem(f"{rel(path)}:{line}", f"{name} has {n} lines, the limit is {HARD_FUNCTION}")
            elif n > SOFT_FUNCTION:
                soft.append(f"{rel(path)}:{line}: {name} has {n} lines (soft limit {SOFT_FUNCTION})")
    for text in soft:
        print("  note:", text)
    check_data()


def check_data():
    data = {p: p.stat().st_size for p in (ROOT / "tests" / "data").rglob("*") if p.is_file()}
    if sum(data.values()) > DATA_BYTES:
        problem("tests/data", f"{sum(data.values())} bytes of fixtures, the limit is {DATA_BYTES}")
    for path, n in data.items():
        if n > DATA_FILE_BYTES:
            problem(rel(path), f"{n} bytes, the limit for a fixture is {DATA_FILE_BYTES}")


# ---- rooms ----------------------------------------------------------------------------------------------------------


def check_rooms():
    """Tests are not counted: each kind of them has one folder, and their data many files.  Nor are records."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        print("  note: this is no git repository: src and include alone are counted")
        names = [rel(p) for top in (SRC, INCLUDE) for p in top.rglob("*") if p.is_file()]
    else:
        names = [name for name in run.stdout.splitlines() if (ROOT / name).is_file()]
    for folder, n in sorted(Counter(os.path.dirname(name) for name in names).items()):
        if n > FOLDER and folder.split("/")[0] != "tests" and folder not in ARCHIVES:
            problem(folder or ".", f"{n} files, the limit for a folder is {FOLDER}")


# ---- cycles ---------------------------------------------------------------------------------------------------------


def topics():
    """Topic -> topics whose headers it includes.  A header with the name of its folder is the folder's face, through
    which its topics see each other: no topic itself."""
    graph = {}
    for path in sources(".c", ".h"):
        own = path.relative_to(INCLUDE if INCLUDE in path.parents else SRC).with_suffix("")
        if own.name == own.parent.name and path.suffix == ".h":
            continue
        edges = graph.setdefault(str(own), set())
        for target in re.findall(r'^\s*#\s*include\s+"([^"]+)\.h"', path.read_text(encoding="utf-8"), re.M):
            if target != str(own) and Path(target).name != Path(target).parent.name:
                edges.add(target)
    return graph


def way_back(graph, start):
    """The shortest way from a topic to itself, or None."""
    ways, seen = [[start]], set()
    for way in ways:
        for to in sorted(graph.get(way[-1], ())):
            if to == start:
                return way + [start]
            if to not in seen:
                seen.add(to)
                ways.append(way + [to])
    return None


def check_cycles():
    graph, told = topics(), set()
    for start in sorted(graph):
        way = way_back(graph, start)
        if way and not told & set(way):
            problem(f"src/{start}", f"includes itself by way of {' -> '.join(way[1:])}")
            told |= set(way)


# ---- headers --------------------------------------------------------------------------------------------------------


def isa_flags():
    """Folder under src/kernel -> its compile flags, as cmake/isa.cmake gives them."""
    text = (ROOT / "cmake" / "isa.cmake").read_text(encoding="utf-8")
    return {m[1]: m[2].split() for m in re.finditer(r"tern_isa\((\w+)(?: NEEDS \w+)?\s+FLAGS ([^)]*)\)", text)}


def compiler_for(sub):
    """The C compiler for headers in src/kernel/<sub>, or None when that needs a cross compiler that is not there."""
    architecture = ARCHITECTURE.get(sub, os.uname().machine)
    if architecture == os.uname().machine:
        return os.environ.get("CC", "gcc")
    return shutil.which(f"{architecture.replace('_', '-')}-linux-gnu-gcc")


def compile_alone(job):
    path, command = job
    run = subprocess.run(command + [str(path)], capture_output=True, text=True)
    return path, command[0], run


def check_headers():
    flags = isa_flags()
    warnings = ["-Wall", "-Wextra", "-Wundef", "-Werror", "-fsyntax-only", f"-I{INCLUDE}"]
    jobs = []
    for path in sources(".h"):
        top, sub = folder_of(path)
        compiler = compiler_for(sub if top == "kernel" else "")
        if not compiler:
            print(f"  note: {rel(path)} is not checked, there is no compiler for it here")
            continue
        c = [compiler, "-x", "c", "-std=gnu11", "-D_GNU_SOURCE", f"-I{SRC}"] + warnings
        jobs.append((path, c + (flags.get(sub, []) if top == "kernel" else [])))
        if top == "tern":
            jobs.append((path, ["g++", "-x", "c++", "-std=c++17", "-Wpedantic"] + warnings))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, compiler, run in pool.map(compile_alone, jobs):
            if run.returncode:
                problem(rel(path), f"does not compile alone with {compiler}:\n{run.stderr.rstrip()}")


# ---- symbols --------------------------------------------------------------------------------------------------------


def nm(library, *options):
    """(object, symbol) pairs."""
    out = subprocess.run(["nm", "-A", *options, str(library)], capture_output=True, text=True, check=True).stdout
    for line in out.splitlines():
        place, _, symbol = line.rpartition(" ")
        yield place.split(":")[1], symbol


def check_symbols(build):
    declared = set(re.findall(r"^TERNKV_API .*?(\w+)\(", (INCLUDE / "tern" / "kvq.h").read_text(encoding="utf-8"), re.M))
    shared = {symbol for _, symbol in nm(Path(build) / "libtern.a", "--defined-only", "--extern-only")} if (
        Path(build) / "libtern.a").exists() else set()
    server = Path(build) / "libternserver.a"
    for name, symbol in nm(server, "--defined-only", "--extern-only") if server.exists() else []:
        if symbol in shared:  # a linker takes the first of two static libraries without a word
            problem(name, f"global symbol {symbol} is in libtern, too")
    for library in (Path(build) / "libtern.a", Path(build) / "libternkv.a"):
        if not library.exists():
            problem(str(library), "does not exist; build it, or leave `symbols` out")
            continue
        defined = list(nm(library, "--defined-only", "--extern-only"))
        for name, symbol in defined:
            if library.name == "libtern.a" and not symbol.startswith("tern_"):
                problem(name, f"global symbol {symbol} does not begin with tern_")
        if library.name == "libternkv.a":
            for symbol in declared ^ {symbol for _, symbol in defined}:
                problem(library.name, f"{symbol} is not both global and in tern/kvq.h")
        for name, symbol in nm(library, "--undefined-only"):
            source = name.removesuffix(".o")
            if symbol.split("@")[0] in BANNED - ALLOWED.get(source, set()):
                problem(name, f"calls {symbol}, which the library must not")


# ---- links ----------------------------------------------------------------------------------------------------------


def slug(heading):
    text = re.sub(r"`|\*|\[|\]\([^)]*\)", "", heading.strip().lower())
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text))


def markdown(path):
    """The text of a document without its code blocks, and its anchors."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    return text, {slug(h) for h in re.findall(r"^#+ (.*)$", text, flags=re.M)}


def tracked_documents():
    tops = [ROOT] + [ROOT / d for d in ("docs", "tests", "bench", "tools")]
    return sorted({p for top in tops for p in (top.glob("*.md") if top == ROOT else top.rglob("*.md"))})


def check_links():
    for path in tracked_documents():
        text, own = markdown(path)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue  # another site: not looked at
            name, _, anchor = target.partition("#")
            to = (path.parent / name).resolve() if name else path
            if not to.exists():
                problem(rel(path), f"link to {target}: there is no such file")
            elif anchor and to.suffix == ".md" and anchor not in (markdown(to)[1] if name else own):
                problem(rel(path), f"link to {target}: there is no such heading")
    for path in sources(".c", ".h", ".def") + sorted((ROOT / "tests").rglob("*.[ch]")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for name in re.findall(r"\bdocs/[\w./-]+\.md\b", line):
                if not (ROOT / name).exists():
                    problem(f"{rel(path)}:{number}", f"names {name}, which does not exist")


def main():
    checks = ["edges", "sizes", "rooms", "cycles", "headers", "symbols", "links"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(ROOT / "build"), help="folder that holds libtern.a")
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=" ".join(checks))
    args = parser.parse_args()
    for name in args.checks:
        if name not in checks:
            parser.error(f"there is no check {name}")
    for name in args.checks or checks:
        before = len(problems)
        check = globals()[f"check_{name}"]
        check(args.build) if name == "symbols" else check()
        n = len(problems) - before
        print(f"house: {name}: {'ok' if n == 0 else f'{n} problem' + 's' * (n > 1)}")
    for text in problems:
        print(text, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
