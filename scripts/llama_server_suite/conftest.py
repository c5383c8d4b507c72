"""llama-server's own tests against `bench serve`: takes the place of the suite's conftest.py.

Starts `bench serve` where the suite starts llama-server, with the options that it has a counterpart for. Options that are
values of requests here (temperature, seed, length) are sent with each request that has none. An option that it lacks fails the
test. Writes the outcome of each test to SUITE_RESULTS.
"""

import hashlib
import json
import os
import subprocess
import time

import pytest
import utils

BENCH, MODELS, RESULTS = (os.environ[name] for name in ("SUITE_BENCH", "SUITE_MODELS", "SUITE_RESULTS"))

# The models of the suite, and those that stand in for them.
STAND_INS = {
    "ggml-org/test-model-stories260K": "text",
    "ggml-org/test-model-stories260K-infill": "infill",
    "bert-bge-small/ggml-model-f16.gguf": "vectors",
}

# Options that change nothing a client of `bench serve` sees: how the work is done, what is always on.
WITHOUT_EFFECT = {
    "backend_sampling", "debug", "external_server", "fa", "jinja", "kv_unified", "log_path", "model_hf_file",
    "model_hf_repo", "n_batch", "n_threads", "n_ubatch", "offline", "process", "ready", "server_continuous_batching",
    "server_embeddings", "server_metrics", "server_reranking", "server_slots", "swa_full", "_log",
}
# Those that the adapter takes.
TAKEN = {
    "api_key", "chat_template", "chat_template_file", "cors_origins", "model_alias", "n_ctx", "n_predict", "n_slots", "pooling",
    "reasoning", "seed", "server_host", "server_port", "temperature",
}
POOLINGS = {"mean": 1, "cls": 2, "last": 3}
# Of llama-server's templates with a name, those whose text is short.
TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
              "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "llama3": "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>{% endfor %}"
              "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
}
# Routes whose requests have the values that the suite gives as options.
TEXT_ROUTES = ("/completion", "/completions", "/infill", "/v1/completions", "/chat/completions", "/v1/chat/completions")


def stand_in(server):
    """The path of the model that stands in for the one a test asks for."""
    # A server without a model of its own is a router, which tests of other things use as well.
    name = server.model_hf_file if server.model_hf_file in STAND_INS else server.model_hf_repo or "ggml-org/test-model-stories260K"
    assert name in STAND_INS, f"no model stands in for {server.model_hf_repo} {server.model_hf_file}"
    path = os.path.join(MODELS, STAND_INS[name] + ".gguf")
    template = server.chat_template
    if server.chat_template_file:
        with open(server.chat_template_file, encoding="utf-8") as file:
            template = file.read()
    if template:
        text = TEMPLATES.get(template, template)
        assert server.chat_template_file or template in TEMPLATES or " " in text, f"no text of the template {template} is known"
        path = variant(path, f"tokenizer.chat_template={text}")
    if server.pooling:
        assert server.pooling in POOLINGS, f"there is no pooling `{server.pooling}`"
        path = variant(path, f"bert.pooling_type={POOLINGS[server.pooling]}")
    # Its name is that of the file.
    alias = server.model_alias or os.path.splitext(os.path.basename(path))[0]
    folder = os.path.join(MODELS, "named", os.path.basename(path))
    os.makedirs(folder, exist_ok=True)
    named = os.path.join(folder, alias + ".gguf")
    if not os.path.exists(named):
        os.symlink(path, named)
        # llama-server takes any name of a model.
        with open(named + ".toml", "w", encoding="utf-8") as file:
            file.write("[aliases]\n")
            file.writelines(f'"{name}" = "{alias}"\n' for name in os.environ["SUITE_NAMES"].split("\n") if name != alias)
    return named


def variant(path, pair):
    """A model with a piece of metadata that is otherwise."""
    out = f"{path[:-5]}-{hashlib.sha256(pair.encode()).hexdigest()[:12]}.gguf"
    if not os.path.exists(out):
        arch, *options = json.loads(os.environ["SUITE_STAND_INS"])[os.path.basename(path)[:-5]]
        key, value = pair.split("=", 1)
        option = "--set" if key == "bert.pooling_type" else "--meta"
        subprocess.run([BENCH, "synth", arch, "-o", out, *options, option, f"{key}={value}"], check=True, stdout=subprocess.DEVNULL)
    return out


def start(server, timeout_seconds=30):
    options = {name for name, value in vars(server).items() if value not in (None, False)}
    lacking = sorted(options - WITHOUT_EFFECT - TAKEN)
    assert not lacking, f"bench serve has no such options: {', '.join(lacking)}"
    # The suite's contexts are shared by all slots.
    n_slots = server.n_slots or 1
    n_ctx = (server.n_ctx or 4096) // (1 if server.kv_unified else n_slots)
    model = stand_in(server)
    command = [BENCH, "serve", "--port", server.server_port, "--host", server.server_host, "--model", model,
               "--parallel", n_slots, "--ctx", n_ctx, "--threads", 1, "--config", model + ".toml"]
    if server.api_key:
        command += ["--api-key", server.api_key]
    for origin in (server.cors_origins or "").split(","):
        command += ["--cors-origin", origin] if origin else []
    command = [str(word) for word in command]
    print("tests: starting server with:", " ".join(command))
    server._log = open(server.log_path or os.path.join(MODELS, "server.log"), "a")
    server.process = subprocess.Popen(command, stdout=server._log, stderr=server._log)
    utils.server_instances.add(server)
    until = time.time() + timeout_seconds
    while time.time() < until:
        if server.process.poll() is not None:
            raise RuntimeError(f"the server ended with {server.process.returncode}")
        try:
            key = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else None
            if server.make_request("GET", "/health", headers=key, timeout=2).status_code == 200:
                return
        except Exception:
            time.sleep(0.02)
    raise TimeoutError("the server did not start")


def with_defaults(server, path, data):
    """A request with the values that the suite gives llama-server as options."""
    if not isinstance(data, dict):
        return data
    data = dict(data)
    if server.reasoning and path in (*TEXT_ROUTES, "/apply-template"):
        # llama-server sets the variable; here it is set by requests alone.
        data.setdefault("chat_template_kwargs", {"enable_thinking": server.reasoning != "off"})
    if path not in TEXT_ROUTES:
        return data
    if server.debug and path.endswith("/chat/completions") and not data.get("stream"):
        data.setdefault("verbose", True)
    data.setdefault("temperature", server.temperature)
    data.setdefault("seed", server.seed)
    lengths = ("n_predict", "max_tokens", "max_completion_tokens")
    if server.n_predict and not any(name in data for name in lengths):
        data["n_predict"] = server.n_predict
    return data


def adapted(method):
    def send(server, verb, path, data=None, *args, **kwargs):
        return method(server, verb, path, with_defaults(server, path, data), *args, **kwargs)
    return send


utils.ServerProcess.start = start
utils.ServerProcess.make_request = adapted(utils.ServerProcess.make_request)
utils.ServerProcess.make_stream_request = adapted(utils.ServerProcess.make_stream_request)
utils.DEFAULT_REQUEST_TIMEOUT = 60


@pytest.fixture(autouse=True)
def stop_server_after_each_test():
    yield
    for server in set(utils.server_instances):
        server.stop()


def pytest_runtest_logreport(report):
    """One line for each outcome; a test whose start fails has failed, one that passed has passed its call."""
    is_outcome = report.when == "call" or report.outcome != "passed"
    if is_outcome:
        line = {"test": report.nodeid.removeprefix("unit/"), "outcome": report.outcome, "why": str(report.longrepr or "")[-600:]}
        with open(RESULTS, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
