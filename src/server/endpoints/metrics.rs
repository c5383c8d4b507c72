//! `GET /metrics`: counters and gauges of the engines, as text for Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use lab_core::engine::stats::{EngineLoad, Histogram, Stats};

use crate::Pool;
use crate::pool::ModelSnapshot;
use crate::process::forward;

/// The lines of a metric, one or more per model.
#[derive(Default)]
struct Metric {
    kind: String,
    help: String,
    lines: String,
}

/// Metrics of the server. The page of an engine process has them too; `add` leaves them out.
static SERVER_METRICS: &[&str] = &[
    "bench_model_loads_total",
    "bench_model_loaded",
    "bench_engine_deaths_total",
];

#[derive(Default)]
struct MetricsPage(BTreeMap<String, Metric>);

/// The text of a label value, with characters escaped that would end it.
fn label(name: &str) -> String {
    let escaped = name.replace('\\', "\\\\").replace('"', "\\\"");
    escaped.replace('\n', "\\n")
}

impl MetricsPage {
    fn metric(
        &mut self,
        name: &'static str,
        kind: &'static str,
        help: &'static str,
    ) -> &mut String {
        let metric = self.0.entry(name.to_owned()).or_default();
        if metric.kind.is_empty() {
            (metric.kind, metric.help) = (kind.to_owned(), help.to_owned());
        }
        &mut metric.lines
    }

    fn number(
        &mut self,
        name: &'static str,
        kind: &'static str,
        help: &'static str,
        (labels, value): (&str, u64),
    ) {
        let lines = self.metric(name, kind, help);
        let _ = writeln!(lines, "{name}{{{labels}}} {value}");
    }

    fn histogram(&mut self, name: &'static str, help: &'static str, of: (&str, &Histogram)) {
        let (model, histogram) = of;
        let lines = self.metric(name, "histogram", help);
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
        const LOADS: &str = "Times that a model was loaded, by how that ended.";
        for (outcome, n) in [("loaded", info.n_loads), ("failed", info.n_failures)] {
            let labels = format!("{model},outcome=\"{outcome}\"");
            self.number("bench_model_loads_total", "counter", LOADS, (&labels, n));
        }
        let help = "Times that the engine process of a model died.";
        let deaths = (model, info.n_deaths);
        self.number("bench_engine_deaths_total", "counter", help, deaths);
        let is_loaded = info.served.is_some() || info.process.is_some();
        let is_loaded = u64::from(is_loaded);
        let help = "Whether a model is loaded.";
        self.number("bench_model_loaded", "gauge", help, (model, is_loaded));
    }

    fn counters(&mut self, stats: &Stats, model: &str) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let outcomes = [
            ("stop", &stats.n_stopped),
            ("length", &stats.n_cut),
            ("failed", &stats.n_failed),
            ("cancelled", &stats.n_cancelled),
            ("refused", &stats.n_refused),
        ];
        for (outcome, counter) in outcomes {
            let labels = format!("{model},outcome=\"{outcome}\"");
            let help = "Requests of the engine by outcome, one for each completion or text.";
            let of = (labels.as_str(), read(counter));
            self.number("bench_requests_total", "counter", help, of);
        }
        let tokens = [
            (
                "bench_prompt_tokens_total",
                "Tokens of prompts.",
                &stats.prompt_tokens,
            ),
            (
                "bench_cached_tokens_total",
                "Tokens of prompts that were in the prefix cache.",
                &stats.cached_tokens,
            ),
            (
                "bench_completion_tokens_total",
                "Tokens of completions.",
                &stats.completion_tokens,
            ),
            (
                "bench_drafted_tokens_total",
                "Draft tokens that were read.",
                &stats.drafted_tokens,
            ),
            (
                "bench_accepted_tokens_total",
                "Draft tokens that were accepted.",
                &stats.accepted_tokens,
            ),
        ];
        for (name, help, counter) in tokens {
            self.number(name, "counter", help, (model, read(counter)));
        }
    }

    fn now(&mut self, now: &EngineLoad, model: &str) {
        let waiting = now.n_waiting as u64;
        let help = "Requests that wait in the queue.";
        self.number("bench_queue_length", "gauge", help, (model, waiting));
        let active = now.active.len() as u64;
        let help = "Sequences that are active.";
        self.number("bench_active_sequences", "gauge", help, (model, active));
        if let Some((used, all)) = now.blocks {
            let help = "KV blocks in use.";
            self.number("bench_kv_blocks_used", "gauge", help, (model, used as u64));
            let help = "KV blocks in all.";
            self.number("bench_kv_blocks", "gauge", help, (model, all as u64));
        }
    }

    /// Adds the metrics of another page, except those of the server.
    fn add(&mut self, page: &str) {
        let mut name = "";
        for line in page.lines() {
            let mut words = line.splitn(4, ' ');
            let heading = (words.next(), words.next(), words.next(), words.next());
            match heading {
                (Some("#"), Some("HELP"), Some(of), help) => {
                    name = if SERVER_METRICS.contains(&of) { "" } else { of };
                    let metric = self.0.entry(name.to_owned()).or_default();
                    help.unwrap_or_default().clone_into(&mut metric.help);
                }
                (Some("#"), Some("TYPE"), Some(_), Some(kind)) => {
                    let metric = self.0.entry(name.to_owned()).or_default();
                    kind.clone_into(&mut metric.kind);
                }
                _ => {
                    let metric = self.0.entry(name.to_owned()).or_default();
                    let _ = writeln!(metric.lines, "{line}");
                }
            }
        }
        self.0.remove("");
    }

    fn text(&self) -> String {
        let mut out = String::new();
        for (name, metric) in &self.0 {
            let Metric { kind, help, lines } = metric;
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
        }
        out
    }
}

pub(crate) async fn metrics(State(pool): State<Arc<Pool>>) -> Response {
    let mut page = MetricsPage::default();
    for info in pool.infos() {
        let model = format!("model=\"{}\"", label(&info.name));
        page.loads(&info, &model);
        if let Some(process) = info.process
            && let Some(own) = forward::metrics(process).await
        {
            page.add(&own);
        }
        if let Some(served) = &info.served {
            let stats = served.handle.stats();
            page.counters(stats, &model);
            page.now(&stats.now(), &model);
            let first = "Time from the arrival of a request to its first token, in seconds.";
            let of_first = (model.as_str(), &stats.first_token);
            page.histogram("bench_time_to_first_token_seconds", first, of_first);
            let between = "Time between two tokens of a completion, in seconds.";
            let of_between = (model.as_str(), &stats.between_tokens);
            page.histogram("bench_inter_token_seconds", between, of_between);
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
            let of = (model, 3);
            page.number("bench_model_loaded", "gauge", "Loaded.", of);
            page.number("bench_some_total", "counter", "Some of them.", of);
            page
        };
        let mut all = MetricsPage::default();
        all.number("bench_model_loaded", "gauge", "Loaded.", ("a", 1));
        all.add(&page("a").text());
        all.add(&page("b").text());
        let expected = "# HELP bench_model_loaded Loaded.\n# TYPE bench_model_loaded gauge\nbench_model_loaded{a} 1\n\
            # HELP bench_some_total Some of them.\n# TYPE bench_some_total counter\n\
            bench_some_total{a} 3\nbench_some_total{b} 3\n";
        assert_eq!(all.text(), expected);
    }

    #[test]
    fn a_label_stays_within_its_quotes() {
        assert_eq!(label("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
