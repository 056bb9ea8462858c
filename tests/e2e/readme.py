"""README's examples: every command of "Use" as it is written, on a tiny model, and the program of "As a library".

The commands run in a folder that looks like a checkout: build/tern is the program under test, and tools/fetch-model
answers with the tiny model.
"""
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
SANITIZED = "TERN_TEST_SANITIZED" in os.environ
complaints = []
checks = 0


def check(ok, *what):
    global checks
    checks += 1
    if not ok:
        complaints.append(what)
        print("FAILED:", *what, flush=True)


def checkout(folder):
    os.makedirs(f"{folder}/build")
    os.makedirs(f"{folder}/tools")
    os.symlink(os.environ["TERN"], f"{folder}/build/tern")
    os.symlink(f"{ROOT}/examples", f"{folder}/examples")
    shutil.copy(f"{ROOT}/README.md", folder)
    shutil.copy(os.environ["TOOLS_MODEL"], f"{folder}/model.gguf")
    with open(f"{folder}/tools/fetch-model", "w", encoding="utf-8") as f:
        f.write(f"#!/bin/sh\necho {shlex.quote(folder)}/model.gguf\n")
    os.chmod(f"{folder}/tools/fetch-model", 0o755)


def serves(first, command, folder):
    """A server runs until it is told to end."""
    command = command.split("#")[0] + " --port 0"
    p = subprocess.Popen(["sh", "-c", f"{first}; exec {command}"], cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
                         text=True)
    line = ""
    for line in p.stdout:
        if "listening" in line:
            break
    check("listening" in line, command, "says where it listens")
    p.send_signal(signal.SIGTERM)
    said = p.communicate(timeout=60)
    check(p.returncode == 0, command, p.returncode, *said)


def use(text, folder):
    lines = re.search(r"^## Use\n+```sh\n(.*?)^```", text, re.S | re.M)[1].splitlines()
    first, commands = lines[0], lines[1:]
    check(len(commands) > 10, "commands", commands)
    for command in commands:
        if SANITIZED and " bench" in command:
            continue  # speed says nothing there, and takes long
        if re.search(r"\$tern serve ", command):
            serves(first, command, folder)
            continue
        start = time.monotonic()
        run = subprocess.run(["sh", "-c", f"{first}\n{command}"], cwd=folder, capture_output=True, text=True, input="",
                             timeout=300, check=False)
        check(run.returncode == 0, command, "status", run.returncode, run.stderr[-600:])
        if os.environ.get("VERBOSE"):
            print(f"{time.monotonic() - start:6.1f} s  {command}")
    plan = subprocess.run(["sh", "-c", f"{first}\n$tern inspect $model --kv plan=plan.txt"], cwd=folder, capture_output=True,
                          text=True, check=False)
    check(plan.returncode == 0, "plan.txt as a plan", plan.stderr)


def library(text, folder):
    """What needs an installed tern is built against this build's library."""
    program = re.search(r"^```c\n(.*?)^```", text, re.S | re.M)[1]
    with open(f"{folder}/app.c", "w", encoding="utf-8") as f:
        f.write(program)
    build = os.environ["BUILD"]
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "jansson", "libpcre2-8", "libutf8proc", "libxxhash"],
                           capture_output=True, text=True, check=True).stdout.split()
    if SANITIZED:
        flags.append("-fsanitize=address,undefined")
    made = subprocess.run([os.environ["CC"], "-Wall", "-Werror", "app.c", f"-I{ROOT}/include", f"{build}/libtern.a", *flags, "-lm",
                           "-pthread", "-o", "app"], cwd=folder, capture_output=True, text=True, check=False)
    check(made.returncode == 0, "README's program compiles", made.stderr[-1500:])
    if made.returncode == 0:
        run = subprocess.run(["./app", "model.gguf"], cwd=folder, capture_output=True, check=False, timeout=120)
        check(run.returncode == 0 and run.stdout, "README's program answers", run.returncode, run.stderr[-500:])


def main():
    with open(f"{ROOT}/README.md", encoding="utf-8") as f:
        text = f.read()
    folder = tempfile.mkdtemp(prefix="tern-readme.")
    os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
    try:
        checkout(folder)
        use(text, folder)
        library(text, folder)
    finally:
        shutil.rmtree(folder)
    print(f"{checks} checks, {len(complaints)} complaints")
    return 1 if complaints else 0


sys.exit(main())
