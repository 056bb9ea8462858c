#!/bin/sh
# Runs a Python script, or reports "skipped" (77) where there is no Python 3.
command -v python3 >/dev/null 2>&1 || exit 77
exec python3 "$@"
