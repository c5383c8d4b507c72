#!/usr/bin/env bash
# Runs the official client packages, unmodified, against a server, in a virtual environment of their own.
# Usage: scripts/clients.sh http://127.0.0.1:11116 [VENV_FOLDER]
set -euo pipefail

url=$1
venv=${2:-target/clients-venv}
here=$(cd "$(dirname "$0")" && pwd)
wanted=$here/requirements-clients.txt

if ! cmp -s "$wanted" "$venv/installed.txt"; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$wanted"
    cp "$wanted" "$venv/installed.txt"
fi
"$venv/bin/python" "$here/openai_client.py" "$url/v1"
"$venv/bin/python" "$here/anthropic_client.py" "$url"
"$venv/bin/python" "$here/langchain_client.py" "$url/v1"
