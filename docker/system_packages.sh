#!/usr/bin/env bash
# Installs what pkb-gym needs of a Debian or Ubuntu system and what is missing: continuous integration and both Dockerfiles
# run it. Without root it names the packages and fails. PYTHON is the interpreter that .venv is made with.
set -euo pipefail

PYTHON=${PYTHON:-python3}

missing=()
for need in bwrap:bubblewrap g++:g++ make:make "$PYTHON:python3"; do
    command -v "${need%%:*}" >/dev/null || missing+=("${need#*:}")
done
if command -v "$PYTHON" >/dev/null; then
    "$PYTHON" -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    # Triton, and solutions that build extensions of torch, compile against it.
    "$PYTHON" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
        missing+=(python3-dev)
else
    missing+=(python3-venv python3-dev)
fi

if ((${#missing[@]} == 0)); then
    exit 0
fi
if (($(id -u) != 0)); then
    echo "missing: ${missing[*]}; install them (apt-get install ${missing[*]}) and run this again" >&2
    exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
