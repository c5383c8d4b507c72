#!/usr/bin/env python3
"""Prometheus' own linter on the metrics of `bench serve`, and its parser on the queries of the dashboard.

vLLM's names have colons, which promtool keeps for rules, and abbreviations; of these only what else it finds is a fault.

Needs promtool (PROMTOOL, else the PATH; Debian: prometheus).
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path

from bench_server import ROOT, Failure, Server, found, options, program


def main():
    args = options(__doc__).parse_args()
    promtool = found("promtool", "prometheus")
    with Server(args.bench, "--log-level", "error", "serve", "--threads", "1", "--draft", "2") as server:
        server.json("/v1/completions", {"prompt": "1", "max_tokens": 4})
        server.ask("/nothing")
        page = server.ask("/metrics")[1].decode()
    done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True)
    faults = [line for line in (done.stdout + done.stderr).splitlines() if line and not re.match(r"vllm:\S+ (metric names should not contain|abbreviated)", line)]
    if done.returncode not in (0, 3) or faults:
        raise Failure(f"promtool: {done.returncode} {faults}")
    print(f"metrics: {page.count('# TYPE ')} of {len(page)} bytes")
    board = json.loads((ROOT / "deploy/grafana/bench.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    # As rules, which promtool parses; Grafana's variables are replaced.
    rules = [{"record": f"query:{i}", "expr": re.sub(r"\$__rate_interval", "5m", query).replace("$instance", ".*").replace("$model", ".*")} for i, query in enumerate(queries)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rules.yaml"
        path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
        done = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"promtool: {(done.stdout + done.stderr)[-1000:]}")
    print(f"dashboard: {len(queries)} queries")


if __name__ == "__main__":
    program(main)
