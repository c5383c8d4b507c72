#!/usr/bin/env bash
# Runs the targets of fuzz/ one after another: scripts/fuzz.sh SECONDS [TARGET ...].
# What is found lies in fuzz/artifacts; executions per second and coverage are printed for each.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?seconds for each target}
shift
command -v cargo-fuzz >/dev/null || {
  echo "cargo-fuzz is missing: cargo install cargo-fuzz (and rustup toolchain install nightly)" >&2
  exit 2
}
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cargo +nightly fuzz list)
failed=()
for target in "${targets[@]}"; do
  mkdir -p "fuzz/corpus/$target"
  log=$(mktemp)
  # An input may take 20 seconds: a constraint is given up after 10.
  if ! nice -n 19 cargo +nightly fuzz run "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
    -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 >"$log" 2>&1; then
    failed+=("$target")
    tail -n 40 "$log"
  fi
  coverage=$(grep -o 'cov: [0-9]*' "$log" | tail -1 || true)
  runs=$(grep -o 'average_exec_per_sec: *[0-9]*' "$log" | grep -o '[0-9]*' || true)
  echo "$target: ${coverage:-no coverage}, ${runs:-?} executions per second"
  rm -f "$log"
done
rm -rf /dev/shm/bench-fuzz-* 2>/dev/null || true
[ ${#failed[@]} -eq 0 ] || { echo "findings: ${failed[*]}" >&2; exit 1; }
