//! `GET /metrics`: counters and gauges of the engines, as text for Prometheus.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use axum::Extension;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use lab_base::ggml::build_info;
use lab_core::engine::stats::{ClientCounts, EngineLoad, Histogram, Stats};
use lab_core::engine::{DraftTotals, DrafterKind};
use lab_core::plan::BLOCK_LEN;

use crate::Pool;
use crate::http::client::name_of;
use crate::http::request_counts::RequestCounts;
use crate::pool::{HostMode, ModelSnapshot};
use crate::process::forward;
use crate::request::object_fields::has_word;
use crate::served::ServedModel;

/// The metrics: name, type and meaning.
const METRICS: &[&str] = &[
    "bench_accepted_tokens_by_position_total counter Draft tokens that were accepted, by their positions in a draft, from 0; the last position stands for all from it on.",
    "bench_accepted_tokens_total counter Draft tokens that were accepted, by drafter.",
    "bench_active_sequences gauge Sequences that are active.",
    "bench_attention_views_total counter Attention operations over runs of the KV cache, of one layer.",
    "bench_build_info gauge What the program was built from and for, as labels.",
    "bench_cached_tokens_total counter Tokens of prompts that were in the prefix cache, by where it had them.",
    "bench_completion_tokens_total counter Tokens of completions.",
    "bench_device_bytes_total counter Bytes of inputs that were written, and of results that were read from devices other than the processor.",
    "bench_device_waits_total counter Times that the host waited for a device other than the processor.",
    "bench_draft_seconds_saved gauge Seconds that draft tokens saved, by the measured times of passes; below 0 if they cost more than they brought.",
    "bench_drafted_tokens_by_position_total counter Draft tokens that were read, by their positions in a draft, from 0; the last position stands for all from it on.",
    "bench_drafted_tokens_total counter Draft tokens that were read, by drafter.",
    "bench_engine_deaths_total counter Times that the engine process of a model died.",
    "bench_graphs_built_total counter Graphs of passes that were built.",
    "bench_graphs_replayed_total counter Graphs that ran again with other inputs and nothing else changed.",
    "bench_graphs_run_total counter Graphs that ran.",
    "bench_http_requests_total counter Responses by method, route and status; a route is its pattern, and `other` what no route has.",
    "bench_inter_token_seconds histogram Time between two tokens of a completion, in seconds.",
    "bench_key_completion_tokens_total counter Tokens of completions, by the name of the API key.",
    "bench_key_prompt_tokens_total counter Tokens of prompts, by the name of the API key.",
    "bench_key_requests_total counter Complete requests of the engine, by the name of the API key.",
    "bench_kv_blocks gauge KV blocks in all.",
    "bench_kv_blocks_used gauge KV blocks in use.",
    "bench_model_loaded gauge Whether a model is loaded.",
    "bench_model_loads_total counter Times that a model was loaded, by how that ended.",
    "bench_operations_total counter Operations of the graphs that ran, without views.",
    "bench_prefix_lookups_total counter Lookups of prompts, by tier of the prefix cache and by why no more was found (`none`: all was found).",
    "bench_prefix_store_bytes gauge Bytes of stored prefixes, in the host's memory and in the folder.",
    "bench_prefix_store_segments_total counter Segments of prefixes that were written to files, that could not be, and files that were dropped because they did not fit.",
    "bench_passes_launched_ahead_total counter Prepared passes that were launched before the tokens of the pass before were read.",
    "bench_passes_prepared_total counter Passes that were prepared while devices computed the pass before.",
    "bench_passes_undone_total counter Prepared passes that were not used, because the next batch was another.",
    "bench_preemptions_total counter Times that a request gave its place up for others.",
    "bench_prompt_tokens_total counter Tokens of prompts.",
    "bench_queue_length gauge Requests that wait in the queue.",
    "bench_request_completion_tokens histogram Tokens of the completion of a request.",
    "bench_request_prefill_seconds histogram \
     Time from the first step of a request to the end of its prompt, in seconds.",
    "bench_request_prompt_tokens histogram Tokens of the prompt of a request.",
    "bench_request_queue_seconds histogram \
     Time from the arrival of a request to its first step, in seconds.",
    "bench_request_seconds histogram Time from the arrival of a request to its end, in seconds.",
    "bench_requests_total counter Requests of the engine by outcome, one for each completion or text.",
    "bench_time_to_first_token_seconds histogram \
     Time from the arrival of a request to its first token, in seconds.",
    // Those of the processes, under the names of Prometheus' own clients.
    "process_cpu_seconds_total counter Time that a process spent on processors, in seconds.",
    "process_max_fds gauge Maximum number of open files of a process.",
    "process_open_fds gauge Open files of a process.",
    "process_resident_memory_bytes gauge Memory of a process, mapped files that it has read included.",
    "process_start_time_seconds gauge When a process began to serve, in seconds since 1970.",
    "process_threads gauge Threads of a process.",
    "process_virtual_memory_bytes gauge Addresses that a process has reserved, in bytes.",
    // What routers read, under vLLM's names.
    "vllm:cache_config_info gauge Tokens of a KV block and number of blocks, as labels.",
    "vllm:generation_tokens_total counter Tokens of completions.",
    "vllm:inter_token_latency_seconds histogram \
     Time between two tokens of a completion, in seconds.",
    "vllm:kv_cache_usage_perc gauge Part of the KV blocks that is in use, at most 1.",
    "vllm:lora_requests_info gauge Adapters of running and of waiting requests and how many can run at once, as labels; \
     the value is the time, in seconds since 1970.",
    "vllm:num_requests_running gauge Sequences that are active.",
    "vllm:num_requests_waiting gauge Requests that wait in the queue.",
    "vllm:prompt_tokens_total counter Tokens of prompts.",
    "vllm:time_to_first_token_seconds histogram \
     Time from the arrival of a request to its first token, in seconds.",
];

/// Metrics of the server. The page of an engine process has them too; `add` leaves them out.
const SERVER_METRICS: &str = "bench_build_info bench_http_requests_total bench_model_loads_total bench_model_loaded bench_engine_deaths_total";

/// The lines of each metric, one or more per model.
#[derive(Default)]
struct MetricsPage(BTreeMap<&'static str, String>);

/// The text of a label value, with characters escaped that would end it.
fn label(name: &str) -> String {
    let escaped = name.replace('\\', "\\\\").replace('"', "\\\"");
    escaped.replace('\n', "\\n")
}

impl MetricsPage {
    fn number(&mut self, name: &'static str, labels: &str, value: impl Display) {
        let lines = self.0.entry(name).or_default();
        let _ = writeln!(lines, "{name}{{{labels}}} {value}");
    }

    fn outcomes(&mut self, name: &'static str, model: &str, all: &[(&str, u64)]) {
        for (outcome, n) in all {
            self.number(name, &format!("{model},outcome=\"{outcome}\""), *n);
        }
    }

    fn histogram(&mut self, name: &'static str, model: &str, histogram: &Histogram) {
        let lines = self.0.entry(name).or_default();
        let mut count = 0;
        for (bound, n) in histogram.cumulative() {
            let bound = match bound.is_finite() {
                true => bound.to_string(),
                false => "+Inf".to_owned(),
            };
            let _ = writeln!(lines, "{name}_bucket{{{model},le=\"{bound}\"}} {n}");
            count = n;
        }
        let _ = writeln!(lines, "{name}_sum{{{model}}} {}", histogram.sum());
        let _ = writeln!(lines, "{name}_count{{{model}}} {count}");
    }

    fn loads(&mut self, info: &ModelSnapshot, model: &str) {
        let loads = [("loaded", info.n_loads), ("failed", info.n_failures)];
        self.outcomes("bench_model_loads_total", model, &loads);
        self.number("bench_engine_deaths_total", model, info.n_deaths);
        let is_loaded = info.served.is_some() || info.process.is_some();
        self.number("bench_model_loaded", model, u64::from(is_loaded));
    }

    fn engine(&mut self, stats: &Stats, model: &str) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let requests = [
            ("stop", read(&stats.n_stopped)),
            ("length", read(&stats.n_cut)),
            ("failed", read(&stats.n_failed)),
            ("cancelled", read(&stats.n_cancelled)),
            ("refused", read(&stats.n_refused)),
        ];
        self.outcomes("bench_requests_total", model, &requests);
        let now = stats.now();
        for (name, n) in [
            ("bench_prompt_tokens_total", read(&stats.prompt_tokens)),
            (
                "bench_completion_tokens_total",
                read(&stats.completion_tokens),
            ),
            ("bench_preemptions_total", read(&stats.n_preempted)),
            ("bench_queue_length", now.n_waiting as u64),
            ("bench_active_sequences", now.active.len() as u64),
        ] {
            self.number(name, model, n);
        }
        let work = stats.work();
        for (name, n) in [
            ("bench_attention_views_total", work.n_views),
            ("bench_device_waits_total", work.runs.n_waits),
            ("bench_graphs_built_total", work.n_built),
            ("bench_graphs_replayed_total", work.runs.n_replayed),
            ("bench_graphs_run_total", work.runs.n_runs),
            ("bench_operations_total", work.runs.n_ops),
            ("bench_passes_launched_ahead_total", work.n_ahead),
            ("bench_passes_prepared_total", work.n_prepared),
            ("bench_passes_undone_total", work.n_undone),
        ] {
            self.number(name, model, n);
        }
        for (direction, n) in [("in", work.runs.bytes_in), ("out", work.runs.bytes_out)] {
            let labels = format!("{model},direction=\"{direction}\"");
            self.number("bench_device_bytes_total", &labels, n);
        }
        if let Some((used, all)) = now.blocks {
            self.number("bench_kv_blocks_used", model, used as u64);
            self.number("bench_kv_blocks", model, all as u64);
        }
        self.drafts(&stats.drafts(), model);
        self.prefixes(stats, model);
        self.clients(stats, model);
        for (name, histogram) in [
            ("bench_time_to_first_token_seconds", &stats.first_token),
            ("bench_inter_token_seconds", &stats.between_tokens),
            ("bench_request_seconds", &stats.request_time),
            ("bench_request_queue_seconds", &stats.queue_time),
            ("bench_request_prefill_seconds", &stats.prefill_time),
            ("bench_request_prompt_tokens", &stats.prompt_lengths),
            ("bench_request_completion_tokens", &stats.completion_lengths),
        ] {
            self.histogram(name, model, histogram);
        }
        self.routed(stats, &now, &model.replacen("model=", "model_name=", 1));
    }

    /// Draft tokens, by what made them and by their positions.
    fn drafts(&mut self, drafts: &DraftTotals, model: &str) {
        for (at, kind) in DrafterKind::ALL.into_iter().enumerate() {
            let labels = format!("{model},drafter=\"{}\"", kind.name());
            self.number(
                "bench_drafted_tokens_total",
                &labels,
                drafts.counts.drafted[at],
            );
            self.number(
                "bench_accepted_tokens_total",
                &labels,
                drafts.counts.accepted[at],
            );
        }
        for (at, [drafted, accepted]) in drafts.by_position.into_iter().enumerate() {
            let labels = format!("{model},position=\"{at}\"");
            self.number("bench_drafted_tokens_by_position_total", &labels, drafted);
            self.number("bench_accepted_tokens_by_position_total", &labels, accepted);
        }
        self.number("bench_draft_seconds_saved", model, drafts.seconds_saved);
    }

    /// The prefix cache and what outlives it.
    fn prefixes(&mut self, stats: &Stats, model: &str) {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let stored = [&stats.host_tokens, &stats.disk_tokens].map(read);
        let cached = read(&stats.cached_tokens).saturating_sub(stored.iter().sum());
        let labels = format!("{model},tier=\"memory\"");
        self.number("bench_cached_tokens_total", &labels, cached);
        for ((tier, result), n) in stats.lookups() {
            let labels = format!("{model},tier=\"{tier}\",result=\"{result}\"");
            self.number("bench_prefix_lookups_total", &labels, n);
        }
        let Some(store) = stats.store() else {
            return;
        };
        for (tier, tokens, bytes) in [
            ("host", stored[0], store.host_bytes),
            ("disk", stored[1], store.disk_bytes),
        ] {
            let labels = format!("{model},tier=\"{tier}\"");
            self.number("bench_cached_tokens_total", &labels, tokens);
            self.number("bench_prefix_store_bytes", &labels, bytes);
        }
        let outcomes = [
            ("written", store.n_written),
            ("failed", store.n_failed),
            ("dropped", store.n_dropped),
        ];
        self.outcomes("bench_prefix_store_segments_total", model, &outcomes);
    }

    /// What routers between servers read, such as the endpoint picker of the Gateway API: vLLM's names and labels.
    fn routed(&mut self, stats: &Stats, now: &EngineLoad, model: &str) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for (name, n) in [
            ("vllm:num_requests_running", now.active.len() as u64),
            ("vllm:num_requests_waiting", now.n_waiting as u64),
            ("vllm:prompt_tokens_total", read(&stats.prompt_tokens)),
            (
                "vllm:generation_tokens_total",
                read(&stats.completion_tokens),
            ),
        ] {
            self.number(name, model, n);
        }
        let (used, all) = now.blocks.unwrap_or((0, 0));
        let share = used as f64 / all.max(1) as f64;
        self.number("vllm:kv_cache_usage_perc", model, share);
        let labels = format!("{model},block_size=\"{BLOCK_LEN}\",num_gpu_blocks=\"{all}\"");
        self.number("vllm:cache_config_info", &labels, 1);
        self.histogram(
            "vllm:time_to_first_token_seconds",
            model,
            &stats.first_token,
        );
        self.histogram(
            "vllm:inter_token_latency_seconds",
            model,
            &stats.between_tokens,
        );
    }

    /// The adapters that requests choose by their names, as vLLM reports them.
    fn adapters(&mut self, served: &ServedModel, model: &str) {
        let (now, all) = (served.handle.stats().now(), served.handle.adapters().all());
        let names = |ids: &BTreeSet<usize>| {
            let named = ids.iter().filter_map(|id| all.get(*id)?.name.as_deref());
            named.map(label).collect::<Vec<_>>().join(",")
        };
        let (running, waiting) = (names(&now.active_adapters), names(&now.waiting_adapters));
        let labels = format!(
            "{model},max_lora=\"{}\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\"",
            served.handle.limits().n_parallel,
        );
        self.number(
            "vllm:lora_requests_info",
            &labels,
            since_1970(SystemTime::now()),
        );
    }

    /// The figures of this process. `labels`: which one it is.
    fn process(&mut self, labels: &str, began: SystemTime) {
        self.number("process_start_time_seconds", labels, since_1970(began));
        #[cfg(target_os = "linux")]
        {
            use rustix::process::{Resource, getrlimit};
            use rustix::time::{ClockId, clock_gettime};
            let spent = clock_gettime(ClockId::ProcessCPUTime);
            let seconds = spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9;
            self.number("process_cpu_seconds_total", labels, seconds);
            if let Some(most) = getrlimit(Resource::Nofile).current {
                self.number("process_max_fds", labels, most);
            }
            if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
                // One of them reads the folder.
                self.number("process_open_fds", labels, open.count().saturating_sub(1));
            }
            let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
            for (name, key, unit) in [
                ("process_resident_memory_bytes", "VmRSS:", 1024),
                ("process_virtual_memory_bytes", "VmSize:", 1024),
                ("process_threads", "Threads:", 1),
            ] {
                let line = status.lines().find_map(|line| line.strip_prefix(key));
                let first = line.and_then(|rest| rest.split_whitespace().next());
                if let Some(n) = first.and_then(|n| n.parse::<u64>().ok()) {
                    self.number(name, labels, n * unit);
                }
            }
        }
    }

    fn build(&mut self) {
        let info = build_info();
        let labels = [
            ("version", info.version.to_owned()),
            ("commit", info.commit.to_owned()),
            ("ggml", info.ggml.to_owned()),
            ("target", info.target.to_owned()),
            ("features", info.features.join(" ")),
            ("instruction_sets", info.computes_with().join(" ")),
        ];
        let labels = labels.map(|(name, value)| format!("{name}=\"{}\"", label(&value)));
        self.number("bench_build_info", &labels.join(","), 1);
    }

    fn requests(&mut self, counts: &RequestCounts) {
        for ((method, route, status), n) in counts.all() {
            let labels = format!("method=\"{method}\",route=\"{route}\",status=\"{status}\"");
            self.number("bench_http_requests_total", &labels, n);
        }
    }

    /// The counts of API keys by their names; those without a name are one. Without keys, clients are their addresses, of which
    /// there can be any number, so there is nothing.
    fn clients(&mut self, stats: &Stats, model: &str) {
        let mut by_name: BTreeMap<String, ClientCounts> = BTreeMap::new();
        let all = stats.clients();
        if all.keys().any(|owner| owner.starts_with('@')) {
            return;
        }
        for (owner, counts) in all {
            if !owner.is_empty() {
                let name = name_of(&owner).unwrap_or("unnamed").to_owned();
                *by_name.entry(name).or_default() += counts;
            }
        }
        for (name, counts) in by_name {
            let labels = format!("{model},key=\"{}\"", label(&name));
            for (metric, n) in [
                ("bench_key_requests_total", counts.n_requests),
                ("bench_key_prompt_tokens_total", counts.prompt_tokens),
                (
                    "bench_key_completion_tokens_total",
                    counts.completion_tokens,
                ),
            ] {
                self.number(metric, &labels, n);
            }
        }
    }

    /// Adds the metrics of another page, except those of the server.
    fn add(&mut self, page: &str) {
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let found = line.split('{').next().unwrap_or_default();
            let mut names = METRICS.iter().filter_map(|row| row.split(' ').next());
            let name = names.find(|name| {
                let part = found.strip_prefix(name);
                part.is_some_and(|part| ["", "_bucket", "_sum", "_count"].contains(&part))
            });
            if let Some(name) = name.filter(|name| !has_word(SERVER_METRICS, name)) {
                let _ = writeln!(self.0.entry(name).or_default(), "{line}");
            }
        }
    }

    fn text(&self) -> String {
        let mut out = String::new();
        for row in METRICS {
            let mut words = row.splitn(3, ' ');
            let mut word = || words.next().unwrap_or_default();
            let (name, kind, help) = (word(), word(), word());
            if let Some(lines) = self.0.get(name) {
                let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
            }
        }
        out
    }
}

fn since_1970(time: SystemTime) -> f64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_millis() as f64 / 1e3)
}

pub(crate) async fn metrics(
    State(pool): State<Arc<Pool>>,
    Extension(counts): Extension<RequestCounts>,
) -> Response {
    let mut page = MetricsPage::default();
    page.build();
    page.requests(&counts);
    let own = match pool.config.mode {
        HostMode::EngineProcess => {
            let names = pool.infos().into_iter().map(|info| label(&info.name));
            format!("process=\"engine\",model=\"{}\"", names.collect::<String>())
        }
        HostMode::InProcess | HostMode::Server => "process=\"server\",model=\"\"".to_owned(),
    };
    page.process(&own, counts.began());
    for info in pool.infos() {
        let model = format!("model=\"{}\"", label(&info.name));
        page.loads(&info, &model);
        if let Some(process) = info.process
            && let Some(own) = forward::metrics(process).await
        {
            page.add(&own);
        }
        if let Some(served) = &info.served {
            page.engine(served.handle.stats(), &model);
            page.adapters(served, &model.replacen("model=", "model_name=", 1));
        }
    }
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], page.text()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_engine_processes_become_one() {
        let page = |model: &str| {
            let mut page = MetricsPage::default();
            page.number("bench_model_loaded", model, 3);
            page.number("bench_kv_blocks_used", model, 3);
            let lines = page.0.entry("bench_inter_token_seconds").or_default();
            let _ = writeln!(lines, "bench_inter_token_seconds_sum{{{model}}} 0");
            page.text()
        };
        let mut all = MetricsPage::default();
        all.number("bench_model_loaded", "a", 1);
        all.add(&page("a"));
        all.add(&page("b"));
        let text = all.text();
        let lines = |start: &str| -> Vec<&str> {
            let lines = text.lines();
            lines.filter(|line| line.starts_with(start)).collect()
        };
        assert_eq!(lines("bench_model_loaded"), ["bench_model_loaded{a} 1"]);
        let used = ["bench_kv_blocks_used{a} 3", "bench_kv_blocks_used{b} 3"];
        assert_eq!(lines("bench_kv_blocks"), used);
        let sums = [
            "bench_inter_token_seconds_sum{a} 0",
            "bench_inter_token_seconds_sum{b} 0",
        ];
        assert_eq!(lines("bench_inter_token_seconds_sum"), sums);
        assert_eq!(lines("# TYPE").len(), 3, "{text}");
    }

    #[test]
    fn a_label_stays_within_its_quotes() {
        assert_eq!(label("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
