//! The findings about a model as a page of text.
//!
//! All text from a file is clipped, and its control characters are escaped, so that a hostile file can neither flood
//! nor control the terminal.

use lab_base::tokenizer::Tokenizer;
use lab_base::util::wording::{bytes, count, escaped, percent, wrapped};
use lab_base::weights::{TensorInfo, Value};
use lab_core::models::abbreviated;
use lab_inspect::template_probe::{ProbeResult, TemplateProbe};

use super::findings::{
    ContextMemory, Findings, PlanFindings, TensorSizes, cache_types_text, special_tokens,
    tokenizer_text,
};
use super::json;
use crate::cli::plan::device_line;

/// Width of the page, in characters.
const WIDTH: usize = 100;
/// Maximum number of characters of a value from a file.
const CLIP: usize = 72;
/// Maximum number of characters of a reason; most of its text is this program's own.
const REASON: usize = 110;
/// Maximum number of array elements shown.
const SHOWN: usize = 6;

/// Keys that are shown in the summary, by their label.
const ABOUT: [(&str, &[&str]); 5] = [
    ("name", &["general.name", "general.basename"]),
    ("about", &["general.description"]),
    ("by", &["general.organization", "general.author"]),
    ("version", &["general.version", "general.finetune"]),
    ("licence", &["general.license.name", "general.license"]),
];

pub(super) fn of(found: &Findings, all: bool) -> String {
    let mut page = Page(String::new());
    about(&mut page, found);
    match &found.planned {
        Ok(planned) => {
            page.title(&format!("architecture: {}", clip(&planned.plan.arch)));
            page.paragraph(&planned.description);
            page.title("tensors");
            page.table(&by_use(planned), "llrrr");
            unused(&mut page, found, planned);
        }
        Err(error) => {
            page.title("architecture: not known");
            for line in error.lines() {
                page.line(&format!("  {}", escaped(line)));
            }
        }
    }
    texts(&mut page, found);
    media(&mut page, found);
    drafter(&mut page, found);
    if let Ok(planned) = &found.planned {
        memory(&mut page, planned);
        capabilities(&mut page, planned);
    }
    if all {
        everything(&mut page, found);
    }
    page.0
}

/// A text that is built line by line.
struct Page(String);

impl Page {
    fn line(&mut self, text: &str) {
        self.0.push_str(text.trim_end());
        self.0.push('\n');
    }

    fn title(&mut self, text: &str) {
        self.line("");
        self.line(text);
    }

    /// Adds words in lines of the page's width.
    fn paragraph(&mut self, text: &str) {
        self.line(&wrapped(&format!("  {}", escaped(text)), WIDTH, 2));
    }

    /// Adds rows in columns, each aligned to the left (`l`) or to the right (`r`).
    fn table(&mut self, rows: &[Vec<String>], sides: &str) {
        let width = |at: usize| {
            let cells = rows.iter().filter_map(|row| row.get(at));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..sides.len()).map(width).collect();
        for row in rows {
            let mut line = String::new();
            for ((cell, side), width) in row.iter().zip(sides.chars()).zip(&widths) {
                line += &match side {
                    'r' => format!("  {cell:>width$}"),
                    _ => format!("  {cell:width$}"),
                };
            }
            self.line(&line);
        }
    }
}

/// Text of a file in a line, clipped and without control characters.
fn clip(text: &str) -> String {
    clip_to(text, CLIP)
}

fn clip_to(text: &str, most: usize) -> String {
    let mut short: String = text.chars().take(most).collect();
    if short.len() < text.len() {
        short.push('\u{2026}');
    }
    escaped(&short)
}

fn row(name: &str, text: impl Into<String>) -> Vec<String> {
    vec![name.to_owned(), text.into()]
}

fn about(page: &mut Page, found: &Findings) {
    page.line(&escaped(&found.label));
    let mut rows = Vec::new();
    for (name, keys) in ABOUT {
        let values = keys.iter().filter_map(|key| found.metadata.str(key));
        if let Some(value) = values.map(str::trim).find(|value| !value.is_empty()) {
            rows.push(row(name, clip(value)));
        }
    }
    let mut stored = weights(&found.tensors);
    let on_disk = found
        .stored
        .map(|stored| format!("; {} on disk", bytes(stored)));
    stored.extend(on_disk);
    rows.push(row("weights", stored));
    page.table(&rows, "ll");
}

fn weights(tensors: &[TensorInfo]) -> String {
    let of = TensorSizes::of(tensors);
    if of.n_weights == 0 {
        return "none".into();
    }
    let share =
        |(name, part): &(&str, u64)| format!("{name} {}", percent(*part as f64 / of.bytes as f64));
    let types = of.types.iter().map(share).collect::<Vec<_>>().join(", ");
    let (n, size, bits) = (count(of.n_weights), bytes(of.bytes), of.bits);
    format!("{n} in {size}, {bits:.2} bits each: {types}")
}

/// The sizes of tensors by their use.
fn by_use(planned: &PlanFindings) -> Vec<Vec<String>> {
    let whole = planned.plan.weight_bytes().max(1);
    let shares = planned.shares.iter().map(|share| {
        let types = share.types.iter();
        let types: Vec<String> = types.map(|(name, n)| format!("{n} {name}")).collect();
        let part = percent(share.bytes as f64 / whole as f64);
        let (n, size) = (count(share.n_weights), bytes(share.bytes));
        vec![share.what.clone(), types.join(", "), n, size, part]
    });
    shares.collect()
}

fn unused(page: &mut Page, found: &Findings, planned: &PlanFindings) {
    let all = [
        ("nothing expects", &planned.plan.unclaimed),
        ("nothing reads the keys", &found.unread),
    ];
    for (what, names) in all.iter().filter(|(_, names)| !names.is_empty()) {
        let names: Vec<String> = names.iter().map(|name| clip(name)).collect();
        page.paragraph(&format!("{what}: {}", abbreviated(&names)));
    }
}

/// Adds the tokenizer and the chat template.
fn texts(page: &mut Page, found: &Findings) {
    page.title("text");
    let mut rows = vec![row("tokenizer", tokenizer(&found.tokenizer))];
    let special = found.tokenizer.as_ref().ok().map(special);
    let special = special.filter(|special| !special.is_empty());
    rows.extend(special.map(|special| row("tokens", special)));
    match &found.template {
        None => rows.push(row("template", "none")),
        Some(Err(error)) => rows.push(row("template", format!("not usable: {}", clip(error)))),
        Some(Ok(probe)) => rows.extend(template(probe)),
    }
    if found.templates.len() > 1 {
        let names: Vec<String> = found.templates.iter().map(|name| clip(name)).collect();
        rows.push(row("templates", names.join(", ")));
    }
    page.table(&rows, "ll");
}

/// Adds the media that the model takes besides texts.
fn media(page: &mut Page, found: &Findings) {
    if found.towers.is_empty() {
        return;
    }
    page.title("media");
    let rows = found.towers.iter().flat_map(|tower| {
        let cost = clip_to(&tower.sample_phrase(), REASON);
        [row(tower.kind(), escaped(&tower.phrase())), row("", cost)]
    });
    page.table(&rows.collect::<Vec<_>>(), "ll");
}

/// Adds what drafts the next tokens.
fn drafter(page: &mut Page, found: &Findings) {
    if let Some(drafter) = &found.drafter {
        page.title("drafter");
        let memory = clip_to(&drafter.memory_phrase(), REASON);
        let rows = [row("weights", escaped(&drafter.phrase())), row("", memory)];
        page.table(&rows, "ll");
    }
}

fn tokenizer(found: &Result<Tokenizer, String>) -> String {
    let tokenizer = match found {
        Ok(tokenizer) => tokenizer,
        Err(error) => return clip(error),
    };
    let mut text = tokenizer_text(tokenizer);
    let bos = tokenizer.adds_bos().then_some("; begins texts with BOS");
    let eos = tokenizer.adds_eos().then_some("; ends them with EOS");
    text.extend(bos.into_iter().chain(eos));
    text
}

fn special(tokenizer: &Tokenizer) -> String {
    let roles = special_tokens(tokenizer).into_iter().map(|(role, id)| {
        let text = tokenizer.token_text(id).unwrap_or_default();
        let text: String = text.chars().take(20).collect();
        format!("{} {id} {}", role.to_uppercase(), escaped(&text))
    });
    let ends = Vec::from_iter(
        tokenizer
            .ends_of_generation()
            .take(SHOWN)
            .map(|id| id.to_string()),
    );
    let ends = (!ends.is_empty()).then(|| format!("answers end at {}", ends.join(", ")));
    roles.chain(ends).collect::<Vec<String>>().join(", ")
}

/// The features of the chat template, in up to three rows.
fn template(probe: &TemplateProbe) -> Vec<Vec<String>> {
    let probes = [
        ("user", &probe.user),
        ("system", &probe.system),
        ("several turns", &probe.turns),
        ("content in parts", &probe.parts),
        ("tools", &probe.tools),
        ("calls of tools", &probe.tool_calls),
        ("results of tools", &probe.tool_results),
        ("thoughts", &probe.thoughts),
    ];
    let those = |wanted: fn(&ProbeResult) -> bool| -> Vec<&str> {
        let fitting = probes.iter().filter(|(_, probed)| wanted(probed));
        fitting.map(|(name, _)| *name).collect()
    };
    let mut shows = those(ProbeResult::is_yes).join(", ");
    if !probe.switches.is_empty() {
        shows.push_str(&format!("; set by {}", probe.switches.join(", ")));
    }
    let mut rows = vec![row("template", format!("shows {shows}"))];
    let mut lacks = those(|probed| *probed == ProbeResult::Ignored);
    lacks.extend((!probe.opens_answer).then_some("where the answer begins"));
    lacks.extend((!probe.continues).then_some("an answer to be continued"));
    if !lacks.is_empty() {
        rows.push(row("", format!("does not show {}", lacks.join(", "))));
    }
    let refusals = probes.iter().filter_map(|(name, probed)| match probed {
        // Requests with parts are served: the parts are joined for such a template.
        ProbeResult::Refused(_) if std::ptr::eq(*probed, &probe.parts) => {
            Some(format!("gets {name} as one text"))
        }
        ProbeResult::Refused(error) => {
            Some(format!("refuses {name}: {}", clip(&error.to_string())))
        }
        _ => None,
    });
    rows.extend(refusals.take(2).map(|text| row("", text)));
    rows
}

fn memory(page: &mut Page, planned: &PlanFindings) {
    if planned.contexts.is_empty() {
        return;
    }
    let options = &planned.options;
    let types = cache_types_text(options);
    let sequences = match options.n_seqs {
        1 => "one sequence".to_owned(),
        n => format!("{n} sequences"),
    };
    page.title(&format!("memory of {sequences}, cache of {types}"));
    let titles = "context,weights,cache,states,scratch,all,a token reads";
    let mut rows = vec![titles.split(',').map(str::to_owned).collect()];
    let contexts = planned.contexts.iter();
    rows.extend(contexts.map(|context| amounts(planned, context)));
    page.table(&rows, "rrrrrrr");
    for used in &planned.devices {
        page.line(&format!("  {} with the set context", device_line(used)));
    }
}

fn amounts(planned: &PlanFindings, context: &ContextMemory) -> Vec<String> {
    let n_ctx = context.n_ctx.to_string();
    let Some(memory) = &context.memory else {
        return vec![n_ctx, "refused".to_owned()];
    };
    let weights = memory.mapped + memory.copied;
    let all = [weights, memory.cache, memory.compute];
    let all = all.into_iter().fold(0, u64::saturating_add);
    let read = planned.weights_read.zip(context.read);
    let read = read.map(|(weights, rows)| bytes(weights.saturating_add(rows)));
    // Without the bytes of the states, those of the cache are not known either.
    let [cache, states, all] = match context.states {
        None => ["\u{2013}"; 3].map(str::to_owned),
        Some(0) => [bytes(memory.cache), "-".to_owned(), bytes(all)],
        Some(n) => [memory.cache.saturating_sub(n), n, all].map(bytes),
    };
    let read = read.unwrap_or_else(|| "-".to_owned());
    let scratch = bytes(memory.compute);
    vec![n_ctx, bytes(weights), cache, states, scratch, all, read]
}

fn capabilities(page: &mut Page, planned: &PlanFindings) {
    page.title("here");
    let rows = planned.capabilities.iter().map(|own| {
        let can = if own.can { "yes" } else { "no" };
        let why = own.why.lines().next().unwrap_or_default();
        vec![own.what.to_owned(), can.to_owned(), clip_to(why, REASON)]
    });
    page.table(&rows.collect::<Vec<_>>(), "lll");
}

fn everything(page: &mut Page, found: &Findings) {
    page.title(&format!("metadata: {} keys", found.metadata.len()));
    for (key, value) in found.metadata.iter() {
        page.line(&format!("  {} = {}", escaped(key), shown(value)));
    }
    page.title(&format!("all {} tensors", found.tensors.len()));
    let rows = found.tensors.iter().map(|tensor| {
        let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
        let (name, ty) = (escaped(&tensor.name), tensor.ty.name().to_owned());
        vec![name, ty, shape.join(" \u{d7} "), bytes(tensor.bytes)]
    });
    page.table(&rows.collect::<Vec<_>>(), "lllr");
}

/// A metadata value in one line.
fn shown(value: &Value) -> String {
    match value {
        Value::Str(text) => clip(text),
        Value::Array(array) => {
            let items = (0..array.len().min(SHOWN)).filter_map(|i| array.get(i));
            let items: Vec<String> = items.map(|value| shown(&value)).collect();
            match array.len() {
                n if n > SHOWN => format!("[{}, \u{2026}] ({n} in all)", items.join(", ")),
                _ => format!("[{}]", items.join(", ")),
            }
        }
        other => json::value_of(other).to_string(),
    }
}
