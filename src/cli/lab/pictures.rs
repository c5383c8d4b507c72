//! `bench lab lens`, `patch`, `routing`, `attention`, `attention-map` and `attribution`: lab results of a prompt, as JSON and as a
//! picture.

use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, ValueEnum};
use serde_json::{Map, Value, json};

use lab_base::util::atomic_file;
use lab_core::arch::PointParts;
use lab_core::model::{Point, Points};
use lab_inspect::pictures::LabPicture;
use lab_inspect::pictures::{self, ChartFilter, PromptPicture};
use lab_server::LabRequest;

use crate::cli::Failure;
use crate::cli::diagram::check_png;
use crate::cli::options::{LoadOptions, ModelArg};
use crate::cli::output::{self, ForceOption, OutputFile, at};

use super::runner::{BytesOption, LabRunner};
use super::{MediaPromptOptions, read_text};

/// Maximum number of runs of a grid that share a step.
const PARALLEL: usize = 32;

/// Where the numbers come from, and where they go.
#[derive(Debug, ClapArgs)]
struct FileOptions {
    #[command(flatten)]
    model: ModelArg,
    /// Draw this response of the HTTP API (docs/lab.md) in place of running a model
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["model", "model_path"])]
    from: Option<PathBuf>,
    /// Write an SVG picture
    #[arg(long, value_name = "FILE")]
    svg: Option<OutputFile>,
    /// Write a self-contained HTML page with the picture
    #[arg(long, value_name = "FILE")]
    html: Option<OutputFile>,
    /// Write a PNG picture, with a built-in font
    #[arg(long, value_name = "FILE")]
    png: Option<OutputFile>,
    /// Write the JSON response of the HTTP API to this file; without any output file it is printed
    #[arg(long, value_name = "FILE")]
    json: Option<OutputFile>,
    #[command(flatten)]
    force: ForceOption,
    /// Layers that are drawn, separated by commas; default: all
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    layers: Vec<u64>,
    #[command(flatten)]
    bytes: BytesOption,
    #[command(flatten)]
    load: LoadOptions,
}

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct LensArgs {
    #[command(flatten)]
    text: MediaPromptOptions,
    /// Number of most probable tokens in the JSON, 1 to 1000; the picture shows the first of them
    #[arg(long, default_value_t = 5, value_name = "N")]
    top_k: usize,
    #[command(flatten)]
    files: FileOptions,
}

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct PatchArgs {
    /// The clean prompt: its values are patched into the runs of the corrupt prompt; required without --from
    #[arg(long, value_name = "TEXT", required_unless_present = "from")]
    clean: Option<String>,
    /// The corrupt prompt, with as many tokens as the clean one; required without --from
    #[arg(long, value_name = "TEXT", required_unless_present = "from")]
    corrupt: Option<String>,
    /// Text of the token that is measured, exactly one token: its log-probability after the last token of the prompt;
    /// required without --from
    #[arg(long, value_name = "TEXT", required_unless_present = "from")]
    token: Option<String>,
    /// Text of a second token: measure the logit of the first less the logit of this one, instead of a
    /// log-probability
    #[arg(long, value_name = "TEXT")]
    against: Option<String>,
    /// Values to patch: names that `bench points` prints, or patterns with `*`, separated by spaces; default: the
    /// hidden state after every layer
    #[arg(long, value_delimiter = ' ', value_name = "NAMES")]
    points: Vec<String>,
    #[command(flatten)]
    files: FileOptions,
}

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct RoutingArgs {
    #[command(flatten)]
    text: MediaPromptOptions,
    #[command(flatten)]
    files: FileOptions,
}

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct AttentionArgs {
    #[command(flatten)]
    text: MediaPromptOptions,
    /// Heads that are drawn, separated by commas; default: all
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    heads: Vec<usize>,
    #[command(flatten)]
    files: FileOptions,
}

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct AttentionMapArgs {
    #[command(flatten)]
    text: MediaPromptOptions,
    /// Heads that are drawn, each by itself, separated by commas; default: the mean of all
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    heads: Vec<usize>,
    /// Position of the token that attends; below 0 = from the end of the prompt; default: the last of the prompt
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    position: Option<i64>,
    #[command(flatten)]
    files: FileOptions,
}

/// Components of a logit.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum AttributionUnit {
    /// Layers, after each token
    Layers,
    /// Attention and MLP of each layer, after each token
    Slots,
    /// Attention heads and MLPs, after the last token of the prompt
    Heads,
}

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct AttributionArgs {
    #[command(flatten)]
    text: MediaPromptOptions,
    /// Text of the token whose logit is split, exactly one token; required without --from
    #[arg(long, value_name = "TEXT", required_unless_present = "from")]
    of: Option<String>,
    /// Components into which the logit is split
    #[arg(long, value_enum, default_value_t = AttributionUnit::Heads)]
    to: AttributionUnit,
    #[command(flatten)]
    files: FileOptions,
}

pub(super) fn attribution(args: &AttributionArgs) -> Result<(), Failure> {
    let (to, positions) = match args.to {
        AttributionUnit::Layers => ("layers", "prompt"),
        AttributionUnit::Slots => ("slots", "prompt"),
        AttributionUnit::Heads => ("heads", "last"),
    };
    let plan = |_: &Points| {
        Ok(json!({ "attribution": { "of": args.of, "to": to, "positions": positions } }))
    };
    let n_cells = |points: &Points| {
        let is_state = |point: &&Point| point.spec.name == "x" && point.tower.is_none();
        let n = points.all.iter().filter(is_state).count();
        [if positions == "prompt" { n as u64 } else { 0 }, 0]
    };
    let response = || args.files.read(&args.text, plan, n_cells);
    args.files
        .draw(LabPicture::Attribution, ChartFilter::default(), response)
}

pub(super) fn lens(args: &LensArgs) -> Result<(), Failure> {
    let plan = |_: &Points| {
        let mut lens = json!({ "positions": "prompt", "top_k": args.top_k });
        if !args.files.layers.is_empty() {
            lens["layers"] = args.files.layers.as_slice().into();
        }
        Ok(json!({ "lens": lens }))
    };
    let n_cells = |points: &Points| {
        let layers = points.find("layers.*.out").map_or(0, |all| all.len());
        let chosen = args.files.layers.len();
        [if chosen > 0 { chosen } else { layers } as u64, 0]
    };
    let response = || args.files.read(&args.text, plan, n_cells);
    args.files
        .draw(LabPicture::Lens, ChartFilter::default(), response)
}

pub(super) fn routing(args: &RoutingArgs) -> Result<(), Failure> {
    let plan = |points: &Points| {
        let routed = chosen(points, ".picked", PointParts::Indices, &args.files.layers);
        let captures = routed.iter().flat_map(|point| {
            let path = point.trim_end_matches(".picked");
            let of = |name: &str, positions: &str| {
                let own = format!("{path}.{name}");
                let is_there = points.find(&own).is_ok();
                is_there.then(|| json!({ "point": own, "positions": positions }))
            };
            // The row of the router has one element for each expert.
            let all = [
                of("picked", "prompt"),
                of("weights", "prompt"),
                of("router", "last"),
            ];
            all.into_iter().flatten()
        });
        let captures: Vec<Value> = captures.collect();
        if captures.is_empty() {
            anyhow::bail!("no layer that was asked for has a router of experts");
        }
        Ok(json!({ "captures": captures }))
    };
    let n_cells = |points: &Points| {
        let routers = chosen(points, ".router", PointParts::Experts, &args.files.layers);
        let found = routers.iter().filter_map(|router| points.find(router).ok());
        [found.map(|at| points.all[at[0]].width()).sum(), 0]
    };
    let response = || args.files.read(&args.text, plan, n_cells);
    args.files
        .draw(LabPicture::Routing, ChartFilter::default(), response)
}

pub(super) fn attention(args: &AttentionArgs) -> Result<(), Failure> {
    let plan = |points: &Points| attention_plan(points, &args.files.layers, &json!("prompt"));
    let n_cells = |points: &Points| {
        let all = chosen(points, ".weights", PointParts::Pairs, &args.files.layers);
        let found = all.iter().filter_map(|point| points.find(point).ok());
        let n_heads = found.map(|at| points.all[at[0]].width());
        let each = n_heads.map(|n| match args.heads.is_empty() {
            true => n,
            false => n.min(args.heads.len() as u64),
        });
        [0, each.sum()]
    };
    let response = || args.files.read(&args.text, plan, n_cells);
    let filter = ChartFilter {
        heads: args.heads.clone(),
        ..ChartFilter::default()
    };
    args.files.draw(LabPicture::Attention, filter, response)
}

pub(super) fn attention_map(args: &AttentionMapArgs) -> Result<(), Failure> {
    let positions = match args.position {
        Some(position) => json!([position]),
        None => json!("last"),
    };
    let plan = |points: &Points| attention_plan(points, &args.files.layers, &positions);
    let response = || args.files.read(&args.text, plan, |_| [0, 0]);
    let pictures = args
        .text
        .media
        .pictures()?
        .into_iter()
        .map(|(path, bytes)| {
            let picture = PromptPicture::read(&bytes);
            picture.map_err(|error| at(path, error))
        });
    let filter = ChartFilter {
        heads: args.heads.clone(),
        pictures: pictures.collect::<Result<_, _>>()?,
        ..ChartFilter::default()
    };
    args.files.draw(LabPicture::AttentionMap, filter, response)
}

/// Captures of the attention weights of the chosen layers.
fn attention_plan(points: &Points, layers: &[u64], positions: &Value) -> Result<Value, Failure> {
    let all = chosen(points, ".weights", PointParts::Pairs, layers);
    let captures = all
        .iter()
        .map(|point| json!({ "point": point, "positions": positions }));
    let captures: Vec<Value> = captures.collect();
    if captures.is_empty() {
        anyhow::bail!("no layer that was asked for has attention weights that can be captured");
    }
    Ok(json!({ "captures": captures }))
}

pub(super) fn patch(args: &PatchArgs) -> Result<(), Failure> {
    let response = || {
        let files = &args.files;
        let mut asked = json!({
            "clean": args.clean, "corrupt": args.corrupt,
            "metric": { "token": args.token, "against": args.against },
        });
        let layers = &files.layers;
        if !args.points.is_empty() {
            asked["points"] = args.points.as_slice().into();
        } else if !layers.is_empty() {
            let points = layers.iter().map(|n| format!("layers.{n}.out"));
            asked["points"] = points.collect();
        }
        let runner = files.start(Map::new(), PARALLEL)?;
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let (runtime, served) = (runtime.enable_all().build()?, runner.served);
        let found = runtime.block_on(lab_server::lab_patch(&served, object(asked)));
        found.map_err(Failure::msg)
    };
    args.files
        .draw(LabPicture::Patch, ChartFilter::default(), response)
}

/// The capturable points of the chosen layers whose path ends with `ending` and whose parts are `parts`.
fn chosen<'a>(points: &'a Points, ending: &str, parts: PointParts, layers: &[u64]) -> Vec<&'a str> {
    let chosen = ChartFilter {
        layers: layers.to_vec(),
        ..ChartFilter::default()
    };
    let own = points.all.iter().filter(|point| {
        let path = &point.path;
        point.spec.parts == parts
            && point.is_capturable()
            && path.ends_with(ending)
            && chosen.has(path)
    });
    own.map(|point| point.path.as_str()).collect()
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

impl FileOptions {
    fn start(&self, plan: Map<String, Value>, n_parallel: usize) -> Result<LabRunner, Failure> {
        LabRunner::start(
            &self.load,
            &self.model.source()?,
            plan,
            n_parallel,
            (&self.bytes, &[]),
        )
    }

    /// The response of `POST /v1/lab/run` for one prompt and a plan. `n_cells` returns the number of cells in the
    /// picture for each token, and for each pair of tokens.
    fn read(
        &self,
        text: &MediaPromptOptions,
        plan: impl Fn(&Points) -> Result<Value, Failure>,
        n_cells: impl Fn(&Points) -> [u64; 2],
    ) -> Result<Value, Failure> {
        let (media, text) = (&text.media, text.text.read()?);
        let mut runner = self.start(Map::new(), 1)?;
        let plan = object(plan(runner.served.handle.points())?);
        runner.request = LabRequest::new(plan).map_err(Failure::msg)?;
        let prompt = runner.prompt(text, media)?;
        let tokens = prompt.tokens.clone();
        if self.is_drawn() {
            let n = tokens.len() as u64;
            let [each, pairs] = n_cells(runner.served.handle.points());
            let n_cells = each.saturating_mul(n);
            let n_cells = n_cells.saturating_add(pairs.saturating_mul(n.saturating_mul(n)));
            pictures::check_cells(n_cells)?;
        }
        let result = runner.one(prompt, 0)?;
        let served = &runner.served;
        Ok(json!({
            "object": "lab.run", "model": served.name, "tokens": tokens,
            "pieces": lab_server::lab_pieces(&tokens, served),
            "results": [{ "index": 0, "lab": runner.request.json(&result, served) }],
        }))
    }

    fn is_drawn(&self) -> bool {
        let files = [&self.svg, &self.html, &self.png];
        files.into_iter().any(Option::is_some)
    }

    /// Writes the files of a response. With `--from`, the response is read from its file.
    fn draw(
        &self,
        picture: LabPicture,
        filter: ChartFilter,
        response: impl FnOnce() -> Result<Value, Failure>,
    ) -> Result<(), Failure> {
        check_png(self.png.is_some())?;
        let (response, place) = match &self.from {
            Some(path) => {
                let response = serde_json::from_str(&read_text(path)?);
                let response = response.map_err(|error| at(path, error))?;
                (response, format!("{}: ", path.display()))
            }
            None => (response()?, String::new()),
        };
        let text = serde_json::to_string_pretty(&response)?;
        if let Some(path) = &self.json {
            self.write(path, text.as_bytes())?;
        }
        if !self.is_drawn() {
            return match self.json {
                Some(_) => Ok(()),
                None => output::line(text),
            };
        }
        let chosen = ChartFilter {
            layers: self.layers.clone(),
            ..filter
        };
        let chart = pictures::chart(picture, &response, &chosen);
        let chart = chart.map_err(|problem| anyhow::anyhow!("{place}{problem}"))?;
        if let Some(path) = &self.svg {
            self.write(path, pictures::svg(&chart).as_bytes())?;
        }
        if let Some(path) = &self.html {
            self.write(path, pictures::page(&chart).as_bytes())?;
        }
        #[cfg(feature = "png")]
        if let Some(path) = &self.png {
            let png = lab_inspect::diagram::png::png(&pictures::svg(&chart))?;
            self.write(path, &png)?;
        }
        Ok(())
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), Failure> {
        let written = atomic_file::write(self.force.target(path), bytes);
        written.map_err(|error| at(path, error))?;
        let outputs = [&self.svg, &self.html, &self.png, &self.json];
        // Nothing is mixed into an output.
        let is_mixed = |own: &OutputFile| atomic_file::is_stdout(own);
        match outputs.into_iter().flatten().any(is_mixed) {
            true => Ok(()),
            false => output::line(path.display().to_string()),
        }
    }
}
