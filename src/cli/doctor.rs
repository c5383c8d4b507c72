//! `bench doctor`: reports in about ten lines whether a model runs here, for which uses, with how much memory, and what
//! is missing.
//!
//! The command draws conclusions from the findings of `inspect`; nothing is loaded. It accepts any path: for a path
//! that is not a model it says what the path is, and the next step. Exit code 1 if the model does not run here.

use clap::Args as ClapArgs;
use serde::Serialize;
use serde_json::{Value as Json, json};

use lab_base::util::granted_memory;
use lab_base::util::wording::{bytes, count, listed};
use lab_base::weights::TensorInfo;
use lab_core::models::ModelSource;

use lab_inspect::towers::TowerReport;

use super::inspect::{
    self, Findings, PlanFindings, TensorSizes, cache_bytes, cache_types_text, tokenizer_text,
};
use super::options::{LoadOptions, ModelArg};
use super::plan::device_line;
use super::sequences::{ParallelOption, room_text};
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sequences: ParallelOption,
    #[command(flatten)]
    load: LoadOptions,
}

/// Number of tokens for which the size of the KV cache is reported.
const STEP: u64 = 1024;
/// Number of unused tensors and keys that are listed by name.
const SHOWN: usize = 3;
/// Maximum number of characters of a text from a file or an error.
const CLIP: usize = 800;

/// The findings, as lines of text and as JSON fields.
#[derive(Default)]
struct DoctorReport {
    path: String,
    /// How a command names the model.
    name: String,
    rows: Vec<(&'static str, String)>,
    uses: Vec<&'static str>,
    /// The reason why the model does not run here.
    problem: Option<String>,
    fields: serde_json::Map<String, Json>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let source = args.model.source()?;
    let mut report = DoctorReport {
        path: source.path(),
        name: match &source {
            ModelSource::Named { name, .. } => name.clone(),
            other => other.path(),
        },
        ..DoctorReport::default()
    };
    match inspect::findings(&source, &args.sequences, &args.load) {
        Ok(found) => report.of(&found),
        Err(error) => report.problem = Some(error.to_string()),
    }
    let runs = report.problem.is_none();
    match args.json {
        true => output::json(&report.json())?,
        false => output::bytes(report.text().as_bytes())?,
    }
    match runs {
        true => Ok(()),
        false => anyhow::bail!("{}: does not run here", report.name),
    }
}

impl DoctorReport {
    fn row(&mut self, name: &'static str, text: impl Into<String>) {
        self.rows.push((name, text.into()));
    }

    fn field(&mut self, name: &str, value: impl Serialize) {
        self.fields.insert(name.to_owned(), json!(value));
    }

    fn of(&mut self, found: &Findings) {
        self.sizes(&found.tensors, found.stored);
        match &found.planned {
            Ok(planned) => {
                self.architecture(planned, &found.unread);
                self.memory(planned, &found.towers);
                self.texts(found);
                self.media(&found.towers);
                self.capabilities(planned);
            }
            Err(error) => {
                let arch = found.metadata.str("general.architecture");
                self.row("kind", arch.unwrap_or("no architecture is named"));
                self.field("architecture", arch);
                self.texts(found);
                self.problem = Some(error.clone());
            }
        }
    }

    /// Reports the number of weights, and the types that most of them have. `stored`: their bytes in the file, if they are
    /// converted while they are loaded.
    fn sizes(&mut self, tensors: &[TensorInfo], stored: Option<u64>) {
        let TensorSizes {
            n_weights,
            bytes: all,
            types,
            bits,
        } = TensorSizes::of(tensors);
        let names: Vec<&str> = types.iter().take(3).map(|(name, _)| *name).collect();
        let (n, types) = (count(n_weights), listed(&names));
        let loaded = format!("{types}, {bits:.1} bits each");
        let size = bytes(all);
        let size = match stored {
            None => format!("{size} on disk"),
            Some(stored) => format!("{} on disk, loaded as {size}", bytes(stored)),
        };
        self.row("size", format!("{n} parameters, {size} ({loaded})"));
        stored
            .into_iter()
            .for_each(|n| self.field("stored_bytes", n));
        self.field("parameters", n_weights);
        self.field("bytes", all);
        self.field("types", names);
    }

    fn architecture(&mut self, planned: &PlanFindings, unread: &[String]) {
        let plan = &planned.plan;
        let mode = plan.mode.name();
        let kind = plan.diffusion.map_or(mode, |_| "text diffusion");
        let text = format!("{}, {} layers, {kind}", plan.arch, plan.layers.len());
        self.rows.insert(0, ("kind", text));
        self.field("architecture", &plan.arch);
        self.field("context", plan.n_ctx_train);
        let context = match plan.n_ctx_train {
            0 => "length unknown".to_owned(),
            n => format!("{n} tokens"),
        };
        self.row("context", context);
        let unused = &plan.unclaimed;
        let more = match unused.len().saturating_sub(SHOWN) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        for (what, all, more) in [
            ("unused tensors", unused.as_slice(), &*more),
            ("metadata that nothing reads", unread, ""),
        ] {
            let names = listed(&all[..all.len().min(SHOWN)]);
            if !all.is_empty() {
                self.row("warning", format!("{what}: {names}{more}"));
            }
        }
        self.field("unused", unused);
        self.field("unread", unread);
    }

    fn memory(&mut self, planned: &PlanFindings, towers: &[TowerReport]) {
        let (plan, options) = (&planned.plan, &planned.options);
        let here = granted_memory::available();
        let types = [options.k_type, options.v_type];
        let grown = [STEP, 2 * STEP].map(|n| cache_bytes(plan, n, types));
        let step = match grown {
            [Some(one), Some(two)] => Some(two.saturating_sub(one)),
            _ => None,
        };
        let of_towers = towers.iter().map(|tower| tower.weight_bytes);
        let weights = of_towers.fold(plan.weight_bytes(), u64::saturating_add);
        let step_text = step.map_or_else(|| "an unknown size".to_owned(), bytes);
        let kind = cache_types_text(options);
        let all = planned.memory.as_ref().map(|used| {
            let parts = [used.mapped, used.copied, used.cache, used.compute];
            parts.into_iter().fold(0, u64::saturating_add)
        });
        let size = bytes(weights);
        let mut text =
            format!("{size} of weights, {step_text} of {kind} KV cache for each {STEP} tokens");
        if let Some(all) = all.map(bytes) {
            text += &format!("; {all} in all with {}", room_text(options));
        }
        text.extend(here.map(|here| format!("; {} free here", bytes(here))));
        self.row("memory", text);
        for used in &planned.devices {
            self.row("device", device_line(used));
        }
        self.field("devices", &planned.devices);
        self.field("weight_bytes", weights);
        self.field("cache_bytes_per_1024", step);
        self.field("free_bytes", here);
        self.field("bytes_in_all", all);
        self.field("n_ctx", options.n_ctx_seq);
        self.field("parallel", options.n_seqs);
    }

    fn texts(&mut self, found: &Findings) {
        let tokenizer = match &found.tokenizer {
            Ok(tokenizer) => tokenizer_text(tokenizer),
            Err(error) => format!("none: {error}"),
        };
        let template = match &found.template {
            None => "no chat template".to_owned(),
            Some(Err(error)) => format!("chat template not usable: {error}"),
            Some(Ok(probe)) => match probe.tools.is_yes() {
                true => "chat template, with tools".to_owned(),
                false => "chat template".to_owned(),
            },
        };
        self.row("text", format!("{tokenizer}; {template}"));
        self.field("tokenizer", found.tokenizer.is_ok());
        let has_template = matches!(found.template, Some(Ok(_)));
        self.field("template", has_template);
    }

    /// Reports the media that the model takes besides texts.
    fn media(&mut self, towers: &[TowerReport]) {
        for tower in towers {
            self.row("media", format!("{}: {}", tower.kind(), tower.phrase()));
        }
        let kinds = towers.iter().map(|tower| tower.media);
        self.field("media", kinds.collect::<Vec<_>>());
    }

    /// Reports the possible uses, or why the model cannot be loaded.
    fn capabilities(&mut self, planned: &PlanFindings) {
        let capability = |what: &str| planned.capabilities.iter().find(|own| own.what == what);
        for what in ["loading", "memory"] {
            if let Some(refused) = capability(what).filter(|capability| !capability.can) {
                self.problem = Some(refused.why.clone());
                return;
            }
        }
        let can = |what: &&str| capability(what).is_some_and(|capability| capability.can);
        let named = |what| if what == "text" { "completion" } else { what };
        let all = ["chat", "text", "embeddings", "scores"].into_iter();
        self.uses = all.filter(can).map(named).collect();
        let mut lacking = ["text", "chat"].into_iter().filter_map(capability);
        if let Some(lacking) = lacking.find(|capability| !capability.can) {
            let text = format!("no {}: {}", named(lacking.what), lacking.why);
            self.row("missing", text);
        }
    }

    fn text(&self) -> String {
        let mut out = format!("{}\n", shown(&self.name));
        let mut line = |name: &str, text: &str| {
            out.push_str(&format!("  {name:<9}{}\n", shown(text)));
        };
        for (name, text) in &self.rows {
            line(name, text);
        }
        match &self.problem {
            Some(problem) => {
                line("problem", problem);
                line("here", "does not run");
            }
            None => line("here", &format!("runs: {}", self.how())),
        }
        out
    }

    /// The uses, and a command that tries the first one.
    fn how(&self) -> String {
        let (uses, name) = (listed(&self.uses), &self.name);
        match self.uses.first() {
            Some(&("chat" | "completion")) => format!("{uses} (`bench run -m {name} \"Hello\"`)"),
            Some(_) => format!("{uses} (`bench serve -m {name}`)"),
            None => format!("logits (`bench logits -m {name} --tokens 1,2,3 -o OUT.npy`)"),
        }
    }

    fn json(&self) -> Json {
        let mut fields = Json::Object(self.fields.clone());
        fields["name"] = json!(self.name);
        fields["path"] = json!(self.path);
        fields["runs"] = json!(self.problem.is_none());
        fields["uses"] = json!(self.uses);
        fields["problem"] = json!(self.problem);
        fields
    }
}

/// The lines of a text, without those that quote a source: of these the place stays, after the message, and the help.
fn plain_lines(text: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut is_quoting = false;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
        match (line.strip_prefix("--> "), out.last_mut()) {
            (Some(place), Some(message)) => {
                let text = message.strip_prefix("error: ").unwrap_or(message);
                *message = format!("{text} ({place})");
                is_quoting = true;
            }
            _ if is_quoting && number.trim_start().starts_with('|') => {}
            _ => {
                let help = line.strip_prefix("= help: ").filter(|_| is_quoting);
                is_quoting &= help.is_some();
                out.push(help.unwrap_or(line).to_owned());
            }
        }
    }
    out
}

/// Text of a file in one line, clipped, with control characters escaped.
fn shown(text: &str) -> String {
    let one_line = plain_lines(text).join("; ").replace(":; ", ": ");
    let mut short: String = one_line.chars().take(CLIP).collect();
    if short.len() < one_line.len() {
        short.push('\u{2026}');
    }
    let kept = |c: char| match c.is_control() {
        true => c.escape_debug().collect(),
        false => c.to_string(),
    };
    short.chars().map(kept).collect()
}
