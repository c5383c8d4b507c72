#!/usr/bin/env bash
# Runs scripts/openai_client.py with the official `openai` package in a virtual environment of its own.
# Usage: scripts/openai_client.sh http://127.0.0.1:11116/v1 [VENV_FOLDER]
set -euo pipefail

url=$1
venv=${2:-target/openai-venv}
here=$(cd "$(dirname "$0")" && pwd)

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import openai' 2>/dev/null; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check 'openai>=2,<4'
fi
exec "$venv/bin/python" "$here/openai_client.py" "$url"
