#!/usr/bin/env bash
# Asks Codex, unmodified, a question of a server, and a second one in the same session.
# Usage: scripts/codex_client.sh http://127.0.0.1:11116 FOLDER (of node_modules with @openai/codex)
set -euo pipefail

url=$1
codex=$2/.bin/codex
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
mkdir "$home/work" "$home/codex"
cat > "$home/codex/config.toml" <<END
model = "default"
model_provider = "bench"

[model_providers.bench]
name = "bench"
base_url = "$url/v1"
wire_api = "responses"
END
cd "$home/work"
export CODEX_HOME=$home/codex
# Codex reads further input from its standard input.
ask() {
    timeout 300 "$codex" exec --skip-git-repo-check --json "$@" < /dev/null > "$home/events" || { cat "$home/events"; exit 1; }
    for event in turn.completed agent_message; do
        grep -q "\"$event\"" "$home/events" || { cat "$home/events"; exit 1; }
    done
}
ask "2+2=?"
ask resume --last "And 3+3?"
echo "Codex: content"
