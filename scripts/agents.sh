#!/usr/bin/env bash
# Runs large client programs, unmodified, against a server of its own: Codex (two questions of one session) and
# guidellm (eight requests, none of which may fail). They are installed below FOLDER and take some gigabytes there.
# Needs python3 and node with npm.
# Usage: scripts/agents.sh target/release/bench [FOLDER]
set -euo pipefail

bench=$(realpath "$1")
mkdir -p "${2:-target/agents}"
folder=$(realpath "${2:-target/agents}")
[ -x "$folder/node_modules/.bin/codex" ] || npm install --prefix "$folder" --silent --no-audit --no-fund @openai/codex
if [ ! -x "$folder/venv/bin/guidellm" ]; then
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install --quiet --disable-pip-version-check guidellm
fi

scratch=$(mktemp -d)
"$bench" serve --port 0 --ctx 65536 --log "$scratch/log" > "$scratch/address" &
trap 'kill %1; rm -rf "$scratch"' EXIT
until url=$(grep -oE 'http://[^ ]+' "$scratch/address"); do
    kill -0 %1
    sleep 0.1
done

mkdir "$scratch/work" "$scratch/codex"
cat > "$scratch/codex/config.toml" <<END
model = "default"
model_provider = "bench"

[model_providers.bench]
name = "bench"
base_url = "$url/v1"
wire_api = "responses"
END
# Codex reads further input from its standard input.
ask() {
    (cd "$scratch/work" && CODEX_HOME=$scratch/codex timeout 300 "$folder/node_modules/.bin/codex" exec --skip-git-repo-check \
        --json "$@" < /dev/null > "$scratch/events" 2> "$scratch/errors") || { cat "$scratch/events" "$scratch/errors"; exit 1; }
    for event in turn.completed agent_message; do
        grep -q "\"$event\"" "$scratch/events" || { cat "$scratch/events"; exit 1; }
    done
}
ask "2+2=?"
ask resume --last "And 3+3?"
echo "Codex: content"

printf '{"prompt": "%d+%d=?"}\n' $(seq 16) > "$scratch/prompts.jsonl"
timeout 300 "$folder/venv/bin/guidellm" run --backend "kind=openai_http,target=$url" --profile kind=concurrent,streams=2 \
    --constraint kind=max_requests,count=8 --data "kind=json_file,path=$scratch/prompts.jsonl" \
    --output "kind=json,path=$scratch/report.json" --disable-console > "$scratch/guidellm" 2>&1 || { cat "$scratch/guidellm"; exit 1; }
"$folder/venv/bin/python" - "$scratch/report.json" <<'END'
import json
import sys

requests = json.load(open(sys.argv[1]))["benchmarks"][0]["requests"]
counts = {state: len(of_state or []) for state, of_state in requests.items()}
assert counts["successful"] == 8 and counts["errored"] == 0, counts
assert all(request["output"] for request in requests["successful"]), requests
END
echo "guidellm: content"
