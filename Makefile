# The commands of the project; `make help` lists them.

MODEL ?=
PROMPT ?= 2+2=?
# Further options of scripts/perf_vs_llama_server.py.
PERF ?=
model = $(if $(MODEL),-m $(MODEL))

.DEFAULT_GOAL := help
.PHONY: dist check-packages check-processors check-unit check-targets help run serve test test-png check fmt lint bench soak malformed schema agents lm-eval hub-cache equiv-test llama-server-suite perf-vs-llama perf-families perf-vs-peers perf-types perf-drafts hop-cost cache-cost goldens head-goldens hf-goldens media-goldens models converted-vs-llama metadata-vs-llama diagrams backend-cuda backend-metal backend-vulkan vulkan-check fuzz mutate sanitize drive-page drive-chat-page drive-proxies kv-events-check metrics-check replicas bindings install

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Complete PROMPT with MODEL (default: 2+2=? with the built-in model)
	cargo run --profile quick -- run $(model) "$(PROMPT)"

serve: ## Serve MODEL over HTTP on 127.0.0.1:11116
	cargo run --release -- serve $(model)

# More threads than processors: some tests wait for a server, a worker or a time limit.
test: export RUST_TEST_THREADS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 4)))
test: ## Run all tests, but those of PNG pictures, spans and KV events
	cargo test --workspace

# They are off by default: PNG support takes a fifteenth of the time of a build that has it.
test-png: ## Run the tests of PNG pictures, spans and KV events
	cargo test --workspace --features png,otel,kv-events --test it -- _png without_a_glyph diagram_compare:: spans:: kv_events::

check: fmt lint test test-png ## Formatting, lints and all tests: what must pass before a commit

fmt: ## Check the formatting
	cargo fmt --all --check

lint: ## Run the lints, and check the types of the Python package
	cargo clippy --workspace --all-targets --features png,otel,kv-events -- -D warnings
	scripts/python_package.sh --types

bench: ## Run the criterion benches
	cargo bench -p benches

fuzz: ## Run each fuzz target, or TARGET alone, until it had SECONDS (default 3600) of a processor in all: fuzz/README.md
	scripts/fuzz.py $(or $(SECONDS),3600) $(TARGET)

mutate: ## Compute with N (default 10000) model files that have some bytes changed: errors or logits, no signal
	MUTATIONS=$(or $(N),10000) SEED=$(or $(SEED),1) cargo test --test it -- --nocapture mutated_models

# Modules of tests/it that compute. A process that ends keeps memory, which is no leak; memory that cannot be had is an error, as it is without
# sanitizers.
SANITIZED = goldens:: kept:: shared:: faults:: referee:: mutated_models:: quantised:: lora:: diffusion::
sanitize: export GGML_SANITIZE = address,undefined
sanitize: export CARGO_TARGET_DIR = target/sanitize
sanitize: export ASAN_OPTIONS = detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=1
sanitize: export UBSAN_OPTIONS = print_stacktrace=1
sanitize: ## Run the tests that compute with AddressSanitizer and UndefinedBehaviorSanitizer in all C and C++ code
	cargo test -p lab-base ggml::
	cargo test -p lab-core -- blocks:: model:: engine::
	cargo test --test it -- $(SANITIZED)

soak: ## Clients of all kinds for SECONDS (default 600): memory is stable, the log is empty, plain requests stay fast
	cargo build --release
	python3 scripts/soak.py --bench target/release/bench --seconds $(or $(SECONDS),600) $(if $(MODEL),--model $(MODEL))

malformed: ## Malformed requests over all routes, and clients that leave: no 5xx, no hang, /health stays fast
	cargo build --release
	python3 scripts/malformed_requests.py --bench target/release/bench $(if $(MODEL),--model $(MODEL))

schema: ## Requests that schemathesis makes of /openapi.json: no 5xx, responses match the document
	cargo build --release
	python3 -m venv target/schema-venv
	target/schema-venv/bin/pip install --quiet -r scripts/requirements-schema.txt
	target/schema-venv/bin/python scripts/schema_requests.py --bench target/release/bench $(if $(MODEL),--model $(MODEL))

agents: ## Codex and guidellm, unmodified, against the server (installs some gigabytes below target/agents)
	cargo build --release
	scripts/agents.sh target/release/bench

lm-eval: ## lm-eval against the server: its log-likelihoods are those of bench logits (installs 760 MB)
	cargo build --release
	python3 -m venv target/lm-eval-venv
	target/lm-eval-venv/bin/pip install --quiet -r scripts/requirements-lm-eval.txt
	target/lm-eval-venv/bin/python scripts/lm_eval_client.py --bench target/release/bench

hub-cache: ## bench and huggingface_hub share one cache: each finds what the other downloaded, whole and offline
	cargo build
	cargo build -p lab-hub --example hub_server
	python3 -m venv target/hub-venv
	target/hub-venv/bin/pip install --quiet 'huggingface_hub>=2,<3'
	target/hub-venv/bin/python scripts/hub_cache_client.py --bench target/debug/bench --hub target/debug/examples/hub_server

equiv-test: ## Compare with llama-server (LLAMA_SERVER, the PATH, or else built), token by token
	cargo build --release
	scripts/equiv_test.py --bench target/release/bench --llama-server "$$(scripts/llama_server.sh)" $(if $(MODEL),--model $(MODEL))

llama-server-suite: ## llama-server's own tests against the server, except what scripts/llama_server_suite.toml lists
	cargo build --release
	python3 -m venv target/llama-server-suite/venv
	target/llama-server-suite/venv/bin/pip install --quiet -r scripts/requirements-llama-server-suite.txt
	target/llama-server-suite/venv/bin/python scripts/llama_server_suite.py --bench target/release/bench

perf-vs-llama: ## Measure against llama-server (LLAMA_SERVER, the PATH, or else built): docs/performance.md
	cargo build --release
	scripts/perf_vs_llama_server.py --bench target/release/bench --llama-server "$$(scripts/llama_server.sh)" $(PERF)

perf-families: ## Measure many kinds of models against llama-bench, on files of llama-quantize: docs/performance-families.md
	cargo build --release
	scripts/perf_families.py --bench target/release/bench --llama-bench "$$(scripts/llama_server.sh llama-bench)" \
	    --llama-quantize "$$(scripts/llama_server.sh llama-quantize)" \
	    --llama-speed "$$(scripts/llama_server.sh llama-speed)" $(PERF)

perf-vs-peers: ## Measure against llama.cpp and, where IK_LLAMA names the folder of its programs, ik_llama.cpp: docs/performance-peers.md
	cargo build --release
	scripts/perf_vs_peers.py --bench target/release/bench --llama-quantize "$$(scripts/llama_server.sh llama-quantize)" \
	    --peer "llama.cpp=$$(scripts/llama_server.sh llama-batched-bench)" \
	    $(if $(IK_LLAMA),--peer "ik_llama.cpp=$(IK_LLAMA)/llama-batched-bench" \
	        --peer "ik_llama.cpp with -rtr=$(IK_LLAMA)/llama-batched-bench -rtr") $(PERF)

perf-types: ## Measure decoding against the bandwidth of memory, by type of weights and instruction set: docs/performance-types.md
	GGML_MARCH=all cargo build --release --target-dir target/every-processor
	scripts/perf_types.py --bench target/every-processor/release/bench --march ,x86-64-v3 $(PERF)

perf-drafts: ## Measure draft tokens here and in llama-server (LLAMA_SERVER, the PATH, or else built): docs/speculation.md
	cargo build --release
	python3 -m venv target/perf-drafts-venv
	target/perf-drafts-venv/bin/pip install --quiet 'numpy>=2,<3' 'gguf==0.19.0'
	target/perf-drafts-venv/bin/python scripts/perf_drafts.py --llama-server "$$(scripts/llama_server.sh)" $(PERF)

hop-cost: ## Measure what the engine process of a model and HTTP cost
	cargo build --release
	scripts/hop_cost.py --bench target/release/bench $(if $(MODEL),--model $(MODEL))

cache-cost: ## Measure what quantised keys and values cost: docs/cache-cost.md
	cargo build --release
	scripts/cache_cost.py --bench target/release/bench

goldens: ## Recompute the golden logits with llama.cpp (needs Python with llama-cpp-python, numpy and gguf)
	cargo build --release
	python3 scripts/make_goldens.py --bench target/release/bench

head-goldens: ## Recompute tests/drafters/heads with llama.cpp (needs LLAMA_HEADS, the program of scripts/llama_heads, numpy and gguf)
	cargo build --release
	python3 scripts/make_head_goldens.py --bench target/release/bench --llama-heads $(LLAMA_HEADS)

hf-goldens: ## Recompute tests/hf with transformers (needs scripts/requirements-hf.txt)
	python3 scripts/make_hf_goldens.py

media-goldens: ## Recompute the multimodal folders of tests/media with transformers (needs scripts/requirements-hf.txt, pillow and torchvision)
	python3 scripts/make_media_goldens.py

models: ## Write docs/models.md, all classes of Hugging Face folders with their state, and the tables of docs/media.md
	MODELS_PAGE=1 cargo test --test it models_page

converted-vs-llama: ## Convert the folders of tests/hf and compare with llama.cpp (needs what goldens needs)
	cargo build --release
	python3 scripts/check_converted.py --bench target/release/bench

metadata-vs-llama: ## Change one piece of metadata after another and compare with llama.cpp (needs what goldens needs)
	cargo build --release
	python3 scripts/metadata_vs_llama.py --bench target/release/bench

diagrams: ## Draw all definitions: docs/diagrams
	cargo build --release
	rm -rf docs/diagrams
	target/release/bench diagram --all -o docs/diagrams

drive-page: ## Use pages of bench diagram --html in headless Chromium, with screenshots in target/page
	cargo build --release
	python3 -m venv target/page-venv
	target/page-venv/bin/pip install --quiet -r scripts/requirements-page.txt
	target/page-venv/bin/python scripts/drive_page.py --bench target/release/bench --out target/page

drive-chat-page: ## Use the page of bench serve in headless Chromium, with screenshots in target/chat-page
	cargo build
	python3 -m venv target/page-venv
	target/page-venv/bin/pip install --quiet -r scripts/requirements-page.txt
	target/page-venv/bin/python scripts/drive_chat_page.py --bench target/debug/bench --out target/chat-page

drive-proxies: ## Use the page behind nginx and Caddy (NGINX, CADDY, else the PATH), with screenshots in target/proxies
	cargo build
	python3 -m venv target/page-venv
	target/page-venv/bin/pip install --quiet -r scripts/requirements-page.txt
	target/page-venv/bin/python scripts/proxies.py --bench target/debug/bench --out target/proxies

kv-events-check: ## Read the KV events of the server as a router does, with libzmq and msgspec
	cargo build --release --features kv-events
	python3 -m venv target/kv-events-venv
	target/kv-events-venv/bin/pip install --quiet -r scripts/requirements-kv-events.txt
	target/kv-events-venv/bin/python scripts/kv_events.py --bench target/release/bench

metrics-check: ## Read the metrics and the queries of the dashboard with promtool (PROMTOOL, else the PATH)
	cargo build --release
	scripts/promtool.py --bench target/release/bench

replicas: ## Four servers behind HAProxy (HAPROXY, else the PATH): routing by prefix, and one that is killed
	cargo build --release
	scripts/replicas.py --bench target/release/bench

backend-cuda backend-metal backend-vulkan: backend-%: ## Build a backend as a library next to target/release/bench
	scripts/backend.sh $* target/release

vulkan-check: ## All architectures on ggml's Vulkan backend with Mesa's software driver (Linux, root, debootstrap, about an hour on two cores)
	scripts/vulkan_check.sh

bindings: ## Renew ggml-sys/src/bindings.rs (needs libclang)
	scripts/bindings.sh

dist: ## Write archives, Debian packages and wheels into target/dist: docs/install.md
	packaging/dist.sh

check-packages: ## Install the packages of target/dist on fresh Debian 12 roots and ask them (root, debootstrap, iproute2)
	packaging/check_packages.sh

check-processors: ## Run the program of the packages on processors that QEMU emulates (qemu-user-static)
	packaging/check_processors.sh

check-unit: ## Boot a Debian 12 with systemd in a container that runs the unit (root, debootstrap, systemd-container)
	cargo build --release
	packaging/check_unit.sh

check-targets: ## Check the types for Windows, macOS and Linux on ARM (each after rustup target add)
	packaging/check_targets.sh

install: ## Install the program into cargo's bin folder
	cargo install --features png --path . --locked
