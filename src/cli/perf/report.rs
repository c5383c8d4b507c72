//! The measurements as text and as JSON.

use serde_json::{Value, json};

use lab_base::util::measure::Summary;
use lab_base::util::wording::bytes;
use lab_core::model::PassCounts;

use super::passes::{DecodeCase, DecodeMeasurement, PrefillMeasurement};
use super::profile::Profile;
use super::requests::{DraftMeasurement, RequestMeasurement};

#[derive(Default)]
pub(super) struct PerfReport {
    pub(super) model: String,
    pub(super) weight_bytes: u64,
    pub(super) cache_bytes: u64,
    pub(super) compute_bytes: u64,
    pub(super) resident_bytes: Option<u64>,
    /// The measurements for each number of threads, at least one.
    pub(super) threads: Vec<ThreadMeasurements>,
}

pub(super) struct ThreadMeasurements {
    pub(super) n_threads: usize,
    /// Bytes per second that these threads read from memory.
    pub(super) bandwidth: f64,
    pub(super) prefill: Vec<PrefillMeasurement>,
    pub(super) decode: Vec<DecodeMeasurement>,
    pub(super) requests: Vec<RequestMeasurement>,
    pub(super) drafts: Vec<DraftMeasurement>,
    pub(super) profiles: Vec<Profile>,
}

impl PerfReport {
    /// The JSON of the report. Top-level fields are those of the first number of threads and the first case of
    /// decoding; everything is in `runs`.
    pub(super) fn to_json(&self) -> Value {
        let first = self.threads.first();
        let decode = first.and_then(|row| Some((row, row.decode.first()?)));
        json!({
            "model": self.model,
            "threads": first.map(|row| row.n_threads),
            "prefill": first.map(ThreadMeasurements::prefill_json),
            "decode": decode.map(|(row, decode)| decode_json(decode, row.bandwidth)),
            "weight_bytes": self.weight_bytes,
            "bandwidth_bytes_per_second": first.map(|row| row.bandwidth),
            "decode_share_of_bandwidth":
                decode.map(|(row, decode)| decode.bytes_per_second() / row.bandwidth),
            "cache_bytes": self.cache_bytes,
            "compute_bytes": self.compute_bytes,
            "resident_bytes": self.resident_bytes,
            "runs": self.threads.iter().map(ThreadMeasurements::to_json).collect::<Vec<_>>(),
        })
    }

    pub(super) fn to_text(&self) -> String {
        let mut text = String::new();
        for row in &self.threads {
            text.push_str(&row.to_text(&self.model));
        }
        let [cache, scratch] = [self.cache_bytes, self.compute_bytes].map(bytes);
        let resident = self.resident_bytes.map_or("unknown".into(), bytes);
        text.push_str(&format!(
            "cache {cache}, scratch {scratch}, resident {resident}\n"
        ));
        for row in &self.threads {
            row.profiles
                .iter()
                .for_each(|p| text.push_str(&p.to_text()));
        }
        text
    }
}

impl ThreadMeasurements {
    fn prefill_json(&self) -> Value {
        let rows = self.prefill.iter().map(|prefill| {
            json!({
                "tokens": prefill.case.n,
                "prompts": prefill.case.prompts,
                "tokens_per_second": prefill.speed(),
                "seconds": summary_json(&prefill.seconds),
            })
        });
        rows.collect()
    }

    fn to_json(&self) -> Value {
        let decode = self.decode.iter();
        json!({
            "threads": self.n_threads,
            "bandwidth_bytes_per_second": self.bandwidth,
            "prefill": self.prefill_json(),
            "decode": decode.map(|d| decode_json(d, self.bandwidth)).collect::<Vec<_>>(),
            "requests": self.requests.iter().map(requests_json).collect::<Vec<_>>(),
            "drafts": self.drafts.iter().map(drafts_json).collect::<Vec<_>>(),
            "profiles": self.profiles.iter().map(Profile::to_json).collect::<Vec<_>>(),
        })
    }

    fn to_text(&self, model: &str) -> String {
        let ms = |seconds: f64| 1e3 * seconds;
        let times = |s: &Summary, digits: usize| {
            let [min, p50, p90, p99] = [s.min, s.p50, s.p90, s.p99].map(ms);
            format!(
                "min {min:.digits$}, p50 {p50:.digits$}, p90 {p90:.digits$}, p99 {p99:.digits$}"
            )
        };
        let mut text = format!("{model}, {} threads\n", self.n_threads);
        for prefill in &self.prefill {
            let (n, speed, s) = (prefill.case.n, prefill.speed(), &prefill.seconds);
            let together = match prefill.case.prompts {
                1 => String::new(),
                n => format!("{n} x; "),
            };
            let (times, n_runs) = (times(s, 2), s.count);
            text.push_str(&format!(
                "prefill {n:5} tokens: {speed:9.2} tokens/s  ({together}ms: {times}; {n_runs} runs)\n"
            ));
        }
        for decode in &self.decode {
            let DecodeCase {
                depth,
                sequences,
                n,
            } = decode.case;
            let (speed, times, rate) = (
                decode.speed(),
                times(&decode.steps, 3),
                decode.bytes_per_second(),
            );
            let (share, rate) = (100.0 * rate / self.bandwidth, bytes(rate as u64));
            text.push_str(&format!(
                "decode  {n:5} tokens: {speed:9.2} tokens/s  ({sequences} x, depth {depth}; step ms: {times}; {rate}/s, {share:.0} % of bandwidth)\n"
            ));
        }
        for requests in &self.requests {
            let case = requests.case;
            text.push_str(&format!(
                "engine  {:5} tokens: {:9.2} tokens/s  ({} requests, depth {}; first token {:.3} ms after its prompt was read)\n",
                case.n, requests.speed, case.sequences, case.depth, ms(requests.first),
            ));
        }
        for drafts in &self.drafts {
            let (case, (read, accepted)) = (drafts.case, drafts.drafts.totals());
            text.push_str(&format!(
                "drafts  {:5} tokens: {:9.2} tokens/s, {:.2} without: {:.2} times as fast  ({} requests, depth {}, {} text; {accepted} of {read} draft tokens accepted)\n",
                case.n, drafts.drafted, drafts.plain, drafts.drafted / drafts.plain, case.sequences, case.depth, drafts.text.name(),
            ));
        }
        let bandwidth = bytes(self.bandwidth as u64);
        text.push_str(&format!("memory bandwidth {bandwidth}/s\n"));
        text
    }
}

fn requests_json(requests: &RequestMeasurement) -> Value {
    let case = requests.case;
    json!({
        "tokens": case.n,
        "requests": case.sequences,
        "depth": case.depth,
        "tokens_per_second": requests.speed,
        "first_token_seconds": requests.first,
    })
}

fn drafts_json(drafts: &DraftMeasurement) -> Value {
    let (case, (read, accepted)) = (drafts.case, drafts.drafts.totals());
    json!({
        "tokens": case.n,
        "requests": case.sequences,
        "depth": case.depth,
        "text": drafts.text.name(),
        "tokens_per_second": drafts.drafted,
        "tokens_per_second_without": drafts.plain,
        "drafted": read,
        "accepted": accepted,
    })
}

fn decode_json(decode: &DecodeMeasurement, bandwidth: f64) -> Value {
    json!({
        "tokens": decode.case.n,
        "sequences": decode.case.sequences,
        "depth": decode.case.depth,
        "tokens_per_second": decode.speed(),
        "seconds": summary_json(&decode.seconds),
        "step_seconds": summary_json(&decode.steps),
        "weight_bytes_per_step": decode.weight_bytes,
        "cache_bytes_per_step": decode.cache_bytes,
        "bytes_per_second": decode.bytes_per_second(),
        "share_of_bandwidth": decode.bytes_per_second() / bandwidth,
        "work_per_step": work_json(&decode.work, decode.case.n),
    })
}

/// What `n` steps did, per step.
fn work_json(work: &PassCounts, n: usize) -> Value {
    let per_step = |of: u64| of as f64 / n.max(1) as f64;
    let runs = &work.runs;
    json!({
        "graphs_built": per_step(work.n_built),
        "graphs_run": per_step(runs.n_runs),
        "graphs_replayed": per_step(runs.n_replayed),
        "operations": per_step(runs.n_ops),
        "attention_views": per_step(work.n_views),
        "passes_prepared": per_step(work.n_prepared),
        "device_waits": per_step(runs.n_waits),
        "bytes_in": per_step(runs.bytes_in),
        "bytes_out": per_step(runs.bytes_out),
    })
}

fn summary_json(summary: &Summary) -> Value {
    json!({
        "count": summary.count,
        "min": summary.min,
        "p50": summary.p50,
        "p90": summary.p90,
        "p99": summary.p99,
        "max": summary.max,
        "mean": summary.mean,
    })
}
