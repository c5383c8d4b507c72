#!/usr/bin/env python3
"""Uses the page and the API of `bench serve` behind nginx and Caddy, with their default settings, at the root and below a path.

In headless Chromium a person chats, stops an answer and comes back. Then: a stream arrives piece by piece, the address of a client is that which a
trusted proxy tells and not what the client does, a name that is not allowed is refused, and an OpenAPI document names the path.

Needs scripts/requirements-page.txt, a Chromium (CHROMIUM, else the PATH), and nginx and Caddy (NGINX, CADDY, else the PATH).
"""

import contextlib
import http.client
import json
import os
import pathlib
import tempfile
import time

from playwright.sync_api import Error

from bench_server import Failure, Server, found, free_port, options, program, running
from drive import chromium
from drive_chat_page import Drive, chats, models, stops

NGINX = """
daemon off; error_log stderr; pid FOLDER/nginx.pid;
events {}
http {
    access_log off; gzip on;
    client_body_temp_path FOLDER/body; proxy_temp_path FOLDER/proxy; fastcgi_temp_path FOLDER/f; uwsgi_temp_path FOLDER/u; scgi_temp_path FOLDER/s;
    server {
        listen 127.0.0.1:PORT;
        location / { proxy_pass http://127.0.0.1:SERVER; }
        location /llm/ {
            proxy_pass http://127.0.0.1:SERVER/;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Prefix /llm;
        }
    }
}
"""
CADDY = """
{
    admin off
}
http://127.0.0.1:PORT, http://chat.example:PORT {
    redir /llm /llm/
    handle_path /llm/* {
        reverse_proxy 127.0.0.1:SERVER {
            header_up X-Forwarded-Prefix /llm
        }
    }
    reverse_proxy 127.0.0.1:SERVER
}
"""


@contextlib.contextmanager
def proxy(name, server, folder):
    """The port of a proxy in front of a server."""
    port = free_port()
    text = {"nginx": NGINX, "caddy": CADDY}[name]
    path = folder / f"{name}.conf"
    path.write_text(text.replace("FOLDER", str(folder)).replace("PORT", str(port)).replace("SERVER", str(server.port)))
    words = [found(name), "-p", folder, "-c", path] if name == "nginx" else [found(name), "run", "--adapter", "caddyfile", "--config", path]
    with running(words, folder / f"{name}.log", port, "/health", env={**os.environ, "HOME": str(folder)}):
        yield port


def ask(port, method, path, body=None, headers=(), source="127.0.0.1"):
    """Status and body of an answer to a client of this address."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(source, 0))) as connection:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json", **dict(headers)})
        response = connection.getresponse()
        return response.status, response.read()


def streams(port, path):
    """The seconds until the first event of a stream and until its end."""
    body = {"model": "tiny-chat", "prompt": "1 2 3", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        begin = time.perf_counter()
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise Failure(f"{path}: {response.status} {response.read()[:300]}")
        line = response.readline()
        first = time.perf_counter() - begin
        rest = response.read()
    if not line.startswith(b"data: ") or not rest.rstrip().endswith(b"data: [DONE]"):
        raise Failure(f"{path}: {line[:100]} .. {rest[-100:]}")
    return first, time.perf_counter() - begin


def returns(drive):
    """The conversation is there after a reload."""
    drive.page.wait_for_timeout(400)
    had = drive.texts()
    drive.reload()
    drive.check(had and drive.texts() == had, f"{drive.texts()} after a reload, {had} before")


def drives(browser, port, path, out, name):
    """A person uses the page."""
    url = f"http://127.0.0.1:{port}{path}"
    drive = Drive(browser, url, out, permissions=["clipboard-read", "clipboard-write"])
    drive.allowed, drive.name = (url, f"blob:http://127.0.0.1:{port}/"), f"{name}."
    try:
        for step in [chats, stops, returns]:
            step(drive)
            drive.complain(step.__name__)
    except (AssertionError, Error) as error:
        drive.shot("FAILED")
        raise Failure(f"{name}: {error}") from error
    drive.page.context.close()
    print(f"{name}: {drive.checks} checks of the page", flush=True)


def check(is_right, what):
    if not is_right:
        raise Failure(what)


def main():
    parser = options(__doc__, None)
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for screenshots")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "models").mkdir()
        models(folder / "models", args.bench)
        own = ["--models", folder / "models", "--ctx", "4096", "--config", folder / "models/bench.toml"]
        words = [args.bench, "--log", folder / "log", "serve", "--threads", "1", *own]
        with Server(*words) as server:
            for name in ["nginx", "caddy"]:
                with proxy(name, server, folder) as port:
                    for path in ["/", "/llm/"]:
                        drives(browser, port, path, args.out, f"{name}{path.replace('/', '.').rstrip('.')}")
                        first, all_of = streams(port, f"{path}v1/completions")
                        check(first < all_of / 2, f"{name}{path}: the first event of a stream came after {first:.2f} of {all_of:.2f} s")
                    # A proxy passes this name on, and nobody has allowed it.
                    status, text = ask(port, "GET", "/v1/models", headers={"Host": "chat.example"})
                    refused = status == 403 and b"host_not_allowed" in text
                    check(refused or name == "nginx", f"{name}: {status} {text[:200]}")
        trusting = folder / "trusting"
        words = [args.bench, "--log", trusting, "--log-format", "json", "serve", "--threads", "1", "--trusted-proxy", "127.0.0.1"]
        with Server(*words, "--allow-host", "chat.example") as server:
            for name in ["nginx", "caddy"]:
                with proxy(name, server, folder) as port:
                    lie = {"X-Forwarded-For": "9.9.9.9", "X-Request-Id": f"asked-by-{name}"}
                    status, text = ask(port, "POST", "/llm/v1/completions", {"prompt": "1", "max_tokens": 1}, lie, "127.0.0.2")
                    check(status == 200, f"{name}: {status} {text[:200]}")
                    status, text = ask(port, "GET", "/llm/openapi.json")
                    check(json.loads(text).get("servers") == [{"url": "/llm"}], f"{name}: the document does not name its path")
                    if name == "caddy":
                        page = {"Host": "chat.example", "Origin": "http://chat.example"}
                        status, text = ask(port, "GET", "/v1/models", headers=page)
                        check(status == 200, f"a page of the site: {status} {text[:200]}")
                        status, text = ask(port, "GET", "/v1/models", headers={**page, "Origin": "http://evil.example"})
                        check(status == 403, f"a page of another site: {status} {text[:200]}")
            time.sleep(1)
        lines = [json.loads(line) for line in trusting.read_text().splitlines() if "asked-by" in line]
        clients = {line.get("id"): line.get("client") for line in lines}
        # nginx adds the address of the client to what the client said, Caddy drops what it said.
        check(clients == {"asked-by-nginx": "127.0.0.2", "asked-by-caddy": "127.0.0.2"}, f"clients: {clients}")
    print("good")


if __name__ == "__main__":
    program(main)
