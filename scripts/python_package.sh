#!/usr/bin/env bash
# Installs the package of clients/python into a virtual environment of its own, checks its types and runs its tests,
# the notebooks among them. They start the servers that they need. python3 has to be on the machine.
# Usage: scripts/python_package.sh target/debug/bench [FOLDER]
set -euo pipefail

program=$(realpath "$1")
folder=${2:-target/clients}
package=$(cd "$(dirname "$0")/../clients/python" && pwd)
mkdir -p "$folder"
venv=$(realpath "$folder")/package
if ! cmp -s "$package/pyproject.toml" "$venv/installed.toml"; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --editable "$package[types]"
    cp "$package/pyproject.toml" "$venv/installed.toml"
fi
cd "$package"
"$venv/bin/python" -m mypy --cache-dir "$venv/mypy"
BENCH=$program PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" -W error -m unittest discover -s tests
echo "Python package: content"
