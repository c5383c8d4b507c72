#!/usr/bin/env python3
"""Requests that schemathesis makes of a server's own `/openapi.json`, sound and wrong ones, over all routes.

Fails if an answer is 5xx, has a status, a type or a shape that the document does not have, if a method that is not in
the document is served, if fewer requests were made than `--requests`, or if the log has an error.
Needs scripts/requirements-schema.txt; `make schema` installs it under target/.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_server import Server, options, report
from malformed_requests import MANAGING

CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance",
          "response_headers_conformance", "response_schema_conformance", "unsupported_method"]


def main():
    parser = options(__doc__, None, "the model (default: the built-in one)")
    parser.add_argument("--requests", type=int, default=3000, help="fewest requests")
    parser.add_argument("--examples", type=int, default=8, help="random requests of each kind per route")
    parser.add_argument("--seed", type=int, default=21)
    args = parser.parse_args()
    schemathesis = Path(sys.executable).parent / "schemathesis"
    with tempfile.TemporaryDirectory() as folder:
        server = Server.ours(args.bench, folder=folder, model=args.model)
        # These end or change what the others need; scripts/malformed_requests.py asks them.
        managing = "^(" + "|".join(re.escape(path) for path in sorted(MANAGING)) + ")$"
        command = [schemathesis, "run", f"{server.url}/openapi.json",
                   "--exclude-path-regex", managing, "--checks", ",".join(CHECKS),
                   "--phases", "examples,coverage,fuzzing", "--max-examples", args.examples, "--seed", args.seed,
                   "--request-timeout", 30, "--continue-on-failure", "--no-shrink", "--no-color", "--warnings", "off"]
        start = time.monotonic()
        try:
            done = subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, text=True)
            is_alive = server.is_alive()
        finally:
            faults = server.end()
        took = time.monotonic() - start
    found = re.search(r"(\d+) generated", done.stdout)
    n_requests = int(found[1]) if found else 0
    operations = re.search(r"Tested: (\d+)", done.stdout)
    print(f"{n_requests} requests over {operations[1] if operations else 0} operations in {took:.0f} s")
    if done.returncode != 0:
        faults.append(done.stdout[-12000:] + done.stderr[-2000:])
    if n_requests < args.requests:
        faults.append(f"{n_requests} requests were made, expected at least {args.requests}")
    if not is_alive:
        faults.append(f"the server ended with {server.process.returncode}")
    report(faults)


if __name__ == "__main__":
    main()
