#!/usr/bin/env bash
# Fills in the formula for Homebrew and the manifests for winget.
# Usage: packaging/templates.sh FOLDER HOMEPAGE SOURCE_URL SOURCE_FILE [WINDOWS_URL WINDOWS_FILE]
# The files are what the addresses give; their checksums are written. Without the last two no manifests for winget are written.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# != 4 ] && [ $# != 6 ]; then
    sed -n '2,4s/^# //p' "packaging/templates.sh" >&2
    exit 2
fi
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)

# filled TEMPLATE NAME=VALUE...
filled() {
    local text pair
    text=$(cat "$1")
    for pair in "VERSION=$version" "${@:2}"; do
        text=${text//"@${pair%%=*}@"/"${pair#*=}"}
    done
    if [[ $text =~ @[A-Z_0-9]+@ ]]; then
        echo "error: $1: no value for ${BASH_REMATCH[0]}" >&2
        exit 1
    fi
    printf '%s\n' "$text"
}

sum() { sha256sum < "$1" | cut -d ' ' -f 1; }

mkdir -p "$1"
filled packaging/homebrew/inference-lab-bench.rb.in "HOMEPAGE=$2" "SOURCE_URL=$3" "SOURCE_SHA256=$(sum "$4")" > "$1/inference-lab-bench.rb"
if [ $# = 6 ]; then
    for kind in installer locale.en-US version; do
        name=InferenceLabBench.Bench.$kind.yaml
        filled "packaging/winget/$kind.yaml.in" "HOMEPAGE=$2" "WINDOWS_URL=$5" "WINDOWS_SHA256=$(sum "$6")" > "$1/${name/.version/}"
    done
fi
