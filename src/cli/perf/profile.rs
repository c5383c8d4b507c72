//! The time of each block and operation of a pass.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use lab_base::ggml::{self, Cost, MisplacedOp, PlaceCost};
use lab_core::model::Model;

use super::passes::{self, DecodeCase};
use crate::cli::Failure;

/// The costs of a kind of pass.
pub(super) struct Profile {
    what: String,
    /// Number of measured passes.
    passes: u64,
    /// Seconds per pass without the profiler.
    plain: f64,
    /// Seconds per pass when every operation runs by itself, on one thread.
    clocked: f64,
    /// Costs by kind of block: its name, the number of times it was computed, its cost.
    kinds: Vec<(String, Option<u64>, Cost)>,
    ops: Vec<(String, Cost)>,
    /// Costs by unit or other place in the graph, with its operations in order.
    places: Vec<PlaceCost>,
    /// Operations of a pass that run elsewhere because the device of their unit lacks them, with their numbers.
    elsewhere: BTreeMap<String, usize>,
}

pub(super) fn prefill(model: &mut Model, n: usize) -> Result<Profile, Failure> {
    let whole = |model: &mut Model| {
        model.forget(0, 0);
        passes::read(model, 0, 0, n, true)
    };
    let profile = measure(model, format!("prefill {n} tokens"), 2, whole)?;
    model.forget(0, 0);
    Ok(profile)
}

pub(super) fn decode(model: &mut Model, case: DecodeCase) -> Result<Profile, Failure> {
    passes::begin(model, case)?;
    passes::step(model, case, 0)?;
    let what = format!("decode, {} sequences, depth {}", case.sequences, case.depth);
    // Every pass decodes the last position again, so that all do the same work.
    let again = |model: &mut Model| {
        passes::go_back(model, case)?;
        passes::step(model, case, 0)
    };
    let profile = measure(model, what, case.n, again)?;
    passes::forget(model, case.sequences);
    Ok(profile)
}

/// Runs `pass` once to warm up, `n` times as it is, and `n` times with timers.
fn measure(
    model: &mut Model,
    what: String,
    n: usize,
    mut pass: impl FnMut(&mut Model) -> Result<(), Failure>,
) -> Result<Profile, Failure> {
    pass(model)?;
    let start = Instant::now();
    for _ in 0..n {
        pass(model)?;
    }
    let plain = start.elapsed().as_secs_f64() / n as f64;
    model.start_profile();
    let start = Instant::now();
    for _ in 0..n {
        pass(model)?;
    }
    let clocked = start.elapsed().as_secs_f64() / n as f64;
    let found = model
        .end_profile()
        .ok_or_else(|| anyhow::anyhow!("the profile was ended by something else"))?;
    let mut profile = Profile::new(what, n as u64, plain, clocked, &found);
    for MisplacedOp { op, kind, .. } in model.misplaced() {
        *profile
            .elsewhere
            .entry(format!("{op} of {kind}"))
            .or_default() += 1;
    }
    Ok(profile)
}

impl Profile {
    fn new(what: String, passes: u64, plain: f64, clocked: f64, found: &ggml::Profile) -> Self {
        let mut kinds: BTreeMap<&str, Cost> = BTreeMap::new();
        let mut ops: BTreeMap<String, Cost> = BTreeMap::new();
        for (kind, op, cost) in found.costs() {
            kinds.entry(kind).or_default().add(&cost);
            ops.entry(op).or_default().add(&cost);
        }
        let mut kinds: Vec<_> = kinds
            .into_iter()
            .map(|(kind, cost)| (kind.to_owned(), found.uses().get(kind).copied(), cost))
            .collect();
        let mut ops: Vec<_> = ops.into_iter().collect();
        kinds.sort_by_key(|(_, _, cost)| std::cmp::Reverse(cost.time));
        ops.sort_by_key(|(_, cost)| std::cmp::Reverse(cost.time));
        Self {
            what,
            passes,
            plain,
            clocked,
            kinds,
            ops,
            places: found.places().to_vec(),
            elsewhere: BTreeMap::new(),
        }
    }

    fn total(&self) -> Duration {
        self.ops.iter().map(|(_, cost)| cost.time).sum()
    }

    pub(super) fn to_text(&self) -> String {
        let total = self.total().as_secs_f64();
        let per_pass = |seconds: f64| 1e3 * seconds / self.passes as f64;
        let mut text = format!(
            "\nprofile: {} ({} passes)\n\
             a pass takes {:.3} ms; {:.3} ms with every operation by itself on one thread, of which operations {:.3} ms\n",
            self.what,
            self.passes,
            1e3 * self.plain,
            1e3 * self.clocked,
            per_pass(total),
        );
        let line = |name: &str, uses: Option<u64>, cost: &Cost| {
            let seconds = cost.time.as_secs_f64();
            let uses = uses.map_or("-".into(), |uses| (uses / self.passes).to_string());
            let bytes = cost.weight_bytes as f64;
            format!(
                "{name:16} {uses:>6} {:7} {:10.3} {:6.1} % {:11.2} {:8.2}\n",
                cost.calls / self.passes,
                per_pass(seconds),
                100.0 * seconds / total.max(f64::MIN_POSITIVE),
                bytes / self.passes as f64 / 1e6,
                bytes / seconds.max(f64::MIN_POSITIVE) / 1e9,
            )
        };
        let head = |what: &str| {
            format!(
                "{what:16} {:>6} {:>7} {:>10} {:>8} {:>11} {:>8}\n",
                "uses", "ops", "ms", "share", "weights MB", "GB/s"
            )
        };
        text.push_str(&head("block"));
        for (kind, uses, cost) in &self.kinds {
            text.push_str(&line(kind, *uses, cost));
        }
        text.push_str(&head("operation"));
        for (op, cost) in &self.ops {
            text.push_str(&line(op, None, cost));
        }
        if !self.elsewhere.is_empty() {
            text.push_str("operations that the device of their layer lacks, of a pass:\n");
        }
        for (op, n) in &self.elsewhere {
            text.push_str(&format!("{n:6} {op}\n"));
        }
        text
    }

    pub(super) fn to_json(&self) -> Value {
        let total = self.total().as_secs_f64();
        let row = |name: &str, uses: Option<u64>, cost: &Cost| {
            let seconds = cost.time.as_secs_f64();
            json!({
                "name": name,
                "uses": uses.map(|uses| uses / self.passes),
                "operations": cost.calls / self.passes,
                "seconds": seconds / self.passes as f64,
                "share": seconds / total.max(f64::MIN_POSITIVE),
                "weight_bytes": cost.weight_bytes / self.passes,
                "weight_bytes_per_second": cost.weight_bytes as f64 / seconds.max(f64::MIN_POSITIVE),
            })
        };
        let kinds = self
            .kinds
            .iter()
            .map(|(kind, uses, cost)| row(kind, *uses, cost));
        let ops = self.ops.iter().map(|(op, cost)| row(op, None, cost));
        json!({
            "what": self.what,
            "passes": self.passes,
            "seconds_per_pass": self.plain,
            "seconds_per_pass_by_operation": self.clocked,
            "threads_by_operation": 1,
            "seconds_in_operations": total / self.passes as f64,
            "blocks": kinds.collect::<Vec<_>>(),
            "operations": ops.collect::<Vec<_>>(),
            "operations_elsewhere": self.elsewhere,
            "places": self.places.iter().map(|place| self.place_json(place)).collect::<Vec<_>>(),
        })
    }

    /// A place with the seconds per pass of each of its operations.
    fn place_json(&self, place: &PlaceCost) -> Value {
        let ops = place.ops.iter().map(|(name, cost)| {
            json!({ "name": name, "seconds": cost.time.as_secs_f64() / self.passes as f64 })
        });
        json!({
            "kind": place.kind,
            "path": place.path,
            "use": place.nth,
            "operations": ops.collect::<Vec<_>>(),
        })
    }
}
