"""The examples of docs/serving.md that ask a server, as written but for the port."""
import json
import os
import re
import shutil
import subprocess
import sys

if not shutil.which("curl"):
    sys.exit(77)

from serve_lib import Server, check, finish  # noqa: E402

DOCUMENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/serving.md")

with open(DOCUMENT, encoding="utf-8") as f:
    blocks = re.findall(r"^```sh\n(.*?)^```", f.read(), re.S | re.M)
commands = [c for block in blocks for c in re.findall(r"^curl (?:[^\n']|'[^']*')*$", block, re.M)]
check(len(commands) >= 8, "examples with curl", commands)
with Server() as s:
    for command in commands:
        run = subprocess.run(["sh", "-c", command.replace(":8080", f":{s.port}") + " --silent --fail-with-body"],
                             capture_output=True, text=True)
        check(run.returncode == 0, command, run.stdout[:300], run.stderr[:300])
        try:
            json.loads(run.stdout)
        except ValueError:
            check(False, command, "answers", run.stdout[:300])
finish()
