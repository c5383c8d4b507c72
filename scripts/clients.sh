#!/usr/bin/env bash
# Runs the official client packages for Python and Node, unmodified, against a server. They are installed into a folder
# of their own. python3 has to be on the machine; without node (18 or newer) and npm its clients are left out.
# Usage: scripts/clients.sh http://127.0.0.1:11116 [FOLDER [URL of a server with --parallel 1 --queue 1
#     [URL of a server whose model takes pictures [URL of one that makes transcripts]]]]
set -euo pipefail

url=$1
folder=${2:-target/clients}
small=${3:-}
seeing=${4:-}
hearing=${5:-}
here=$(cd "$(dirname "$0")" && pwd)
wanted=$here/requirements-clients.txt
venv=$folder/venv
if ! cmp -s "$wanted" "$venv/installed.txt"; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$wanted"
    cp "$wanted" "$venv/installed.txt"
fi
"$venv/bin/python" "$here/openai_client.py" "$url/v1"
"$venv/bin/python" "$here/openai_agents_client.py" "$url/v1"
"$venv/bin/python" "$here/anthropic_client.py" "$url"
"$venv/bin/python" "$here/langchain_client.py" "$url/v1"
"$venv/bin/python" "$here/huggingface_client.py" "$url/v1"
"$venv/bin/python" "$here/guidance_client.py" "$url/v1"
"$venv/bin/python" "$here/ollama_client.py" "$url"
picture=$here/../tests/media/llava-small/a.png
if [ -n "$seeing" ]; then
    "$venv/bin/python" "$here/media_clients.py" "$seeing" "$picture"
fi
if [ -n "$hearing" ]; then
    "$venv/bin/python" "$here/transcripts_client.py" "$hearing"
fi

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    echo "NOT RUN: there is no node with npm on this machine"
    exit
fi
wanted=$here/node_clients/package.json
node=$folder/node
if ! cmp -s "$wanted" "$node/installed.json"; then
    mkdir -p "$node"
    cp "$wanted" "$node/package.json"
    npm install --prefix "$node" --silent --no-audit --no-fund --no-update-notifier
    cp "$wanted" "$node/installed.json"
fi
export NODE_MODULES=$node/node_modules
node "$here/openai_client.mjs" "$url/v1" ${small:+"$small/v1"}
node "$here/ai_sdk_client.mjs" "$url/v1"
node "$here/huggingface_client.mjs" "$url/v1"
node "$here/ollama_client.mjs" "$url"
if [ -n "$seeing" ]; then
    node "$here/media_clients.mjs" "$seeing" "$picture"
fi
if [ -n "$hearing" ]; then
    node "$here/transcripts_client.mjs" "$hearing"
fi
