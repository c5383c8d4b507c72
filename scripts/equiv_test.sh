#!/bin/sh
# Runs scripts/equiv_test.py with a reference: llama-server where there is one, else
# llama-cpp-python in a virtual environment under target/.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
python=python3
if [ -z "${LLAMA_SERVER:-}" ] && ! command -v llama-server >/dev/null; then
    venv=$here/target/equiv-venv
    python=$venv/bin/python
    if ! "$python" -c 'import llama_cpp, numpy' 2>/dev/null; then
        echo "no llama-server: building llama-cpp-python in $venv, which takes minutes" >&2
        python3 -m venv "$venv"
        "$python" -m pip install --quiet llama-cpp-python numpy
    fi
fi
exec "$python" "$here/scripts/equiv_test.py" "$@"
