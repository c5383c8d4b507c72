#!/usr/bin/env bash
# Installs the package of clients/python into a virtual environment of its own and runs its tests, the notebooks among
# them, which start the servers that they need; or checks its types. python3 has to be on the machine.
# Usage: scripts/python_package.sh target/debug/bench [FOLDER]
#        scripts/python_package.sh --types [FOLDER]
set -euo pipefail

folder=${2:-target/clients}
package=$(cd "$(dirname "$0")/../clients/python" && pwd)
mkdir -p "$folder"
if [ "$1" = --types ]; then
    venv=$(realpath "$folder")/types
    extra="[types]"
else
    program=$(realpath "$1")
    venv=$(realpath "$folder")/package
    extra=
fi
if ! cmp -s "$package/pyproject.toml" "$venv/installed.toml"; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --editable "$package$extra"
    cp "$package/pyproject.toml" "$venv/installed.toml"
fi
cd "$package"
if [ "$1" = --types ]; then
    exec "$venv/bin/python" -m mypy --cache-dir "$venv/mypy"
fi
BENCH=$program PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" -W error -m unittest discover -s tests
echo "Python package: content"
