//! `bench lab collect`: the captures of a plan for thousands of prompts, in the files of a folder.
//!
//! Values are written shard by shard, and the index after each shard: an interrupted run resumes after the last shard
//! in the index. Memory holds one shard and the running prompts, however many prompts there are.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::Digest;

use crate::cli::Failure;
use crate::cli::options::{LoadOptions, ModelArg, progress_bar};
use crate::cli::output::{self, ForceOption, OutputPlace, at};
use crate::cli::values::{byte_count, positive, tokens};
use lab_base::util::atomic_file::{self, OutputPath};
use lab_base::util::inputs::{forget_input, refuse_input};
use lab_base::util::limited_read::{self, MAX_TEXT};
use lab_base::util::moments::Moments;
use lab_core::arch::PointParts;
use lab_core::artifacts::arrays::{self, ArrayFormat, Elements, NamedArray};
use lab_core::engine::{CapturedPoint, LabResult, Reduction};

use super::prompt_lines::PromptLines;
use super::runner::{LabRunner, PlanOptions, plan};

const INDEX: &str = "index.json";
const LOCK: &str = "lock";
/// The prefix of the names of files with values.
const SHARD: &str = "shard-";
/// The prefix of the names of statistics files.
const STATISTICS: &str = "statistics-";
/// The position of a value that was computed from all rows of a prompt.
const NO_POSITION: u32 = i32::MAX as u32;

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct CollectArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Prompts, one on each line as JSON: a string, token ids, or an object with either as `prompt`
    #[arg(long, value_name = "FILE.jsonl")]
    prompts: PathBuf,
    /// Lab plan file (not a plan of `bench plan`): the object `lab` of a request (docs/lab.md) as TOML, or as JSON if
    /// its name ends in .json
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
    /// Folder for the values; an interrupted run is resumed in it. With `--force` a collection in it is replaced
    #[arg(short, long, value_name = "DIR")]
    output: OutputPlace,
    #[command(flatten)]
    force: ForceOption,
    /// Maximum number of completion tokens of each prompt; 0 = only the prompts are read
    #[arg(short = 'n', long, default_value = "0", value_name = "N", value_parser = tokens)]
    max_tokens: usize,
    /// Also compute the covariance of the elements of each value
    #[arg(long)]
    covariance: bool,
    /// Size of the values, in bytes such as 256M, at which a file is complete; 0 = a file for each prompt
    #[arg(long, default_value = "256M", value_name = "BYTES", value_parser = byte_count)]
    shard_bytes: u64,
    /// Maximum number of prompts per batch, 1 or more
    #[arg(long, default_value = "32", value_name = "N", value_parser = positive)]
    parallel: usize,
    #[command(flatten)]
    values: PlanOptions,
    #[command(flatten)]
    load: LoadOptions,
}

/// The identity of a collection. Two runs into one folder must have the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CollectionIdentity {
    model: String,
    model_sha256: String,
    definition_sha256: String,
    types: String,
    prompts_sha256: String,
    n_prompts: usize,
    max_tokens: usize,
    covariance: bool,
    plan: Map<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Shard {
    file: String,
    /// The index of its first prompt, from 0.
    first: usize,
    prompts: usize,
    /// Number of rows of each array.
    rows: BTreeMap<String, usize>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CollectionIndex {
    #[serde(flatten)]
    subject: CollectionIdentity,
    /// Whether all prompts were processed.
    complete: bool,
    /// The file with the mean of each value over all rows, and its covariance.
    statistics: Option<String>,
    shards: Vec<Shard>,
}

impl CollectionIndex {
    /// Number of prompts whose values were written.
    fn n_done(&self) -> usize {
        self.shards.iter().map(|shard| shard.prompts).sum()
    }
}

/// The values of one point that were not written yet.
struct ValueBuffer {
    name: String,
    /// Dimensions of a row, slowest first.
    row: Vec<u64>,
    is_half: bool,
    elements: Vec<f32>,
    places: Vec<u32>,
    positions: Vec<u32>,
    prompts: Vec<u32>,
}

struct Collection<'a> {
    folder: &'a Path,
    index: CollectionIndex,
    buffers: Vec<ValueBuffer>,
    /// Moments by the name of the value. Features of rows have none.
    moments: BTreeMap<String, Moments>,
    n_buffered: usize,
}

impl Collection<'_> {
    fn add(&mut self, runner: &LabRunner, result: &LabResult) -> Result<(), Failure> {
        let prompt = self.index.n_done() + self.n_buffered;
        self.n_buffered += 1;
        let all = runner.request.captured(result);
        if self.buffers.is_empty() {
            self.buffers = all.iter().map(ValueBuffer::new).collect();
        }
        let is_full = self.index.subject.covariance;
        for (buffer, (name, captured, _)) in self.buffers.iter_mut().zip(&all) {
            let width = buffer.row.iter().product::<u64>().max(1) as usize;
            let n = captured.elements.len() / width;
            buffer.elements.extend_from_slice(&captured.elements);
            buffer.places.extend_from_slice(&captured.places);
            // A value that was computed from all rows of a prompt has no position.
            let is_one = matches!(captured.reduce, Reduction::Mean | Reduction::Max);
            match is_one {
                true => buffer.positions.extend(std::iter::repeat_n(NO_POSITION, n)),
                false => buffer.positions.extend_from_slice(&captured.positions),
            }
            buffer.prompts.extend(std::iter::repeat_n(prompt as u32, n));
            if captured.places.is_empty() {
                let moments = self.moments.entry(name.clone());
                let moments = moments.or_insert_with(|| Moments::new(width, is_full));
                captured
                    .elements
                    .chunks_exact(width)
                    .for_each(|row| moments.add(row));
            }
        }
        Ok(())
    }

    fn n_bytes(&self) -> u64 {
        let all = self.buffers.iter();
        all.map(|b| 4 * (b.elements.len() + b.places.len() + 2 * b.prompts.len()) as u64)
            .sum()
    }

    /// Writes the buffered values as a shard, then the index.
    fn flush(&mut self, is_last: bool) -> Result<(), Failure> {
        let at = self.index.shards.len();
        let n = std::mem::take(&mut self.n_buffered);
        if n > 0 {
            let buffers = self.buffers.iter();
            let rows = buffers.clone().map(|b| (b.name.clone(), b.prompts.len()));
            let shard = Shard {
                file: format!("{SHARD}{at:05}.safetensors"),
                first: self.index.n_done(),
                prompts: n,
                rows: rows.collect(),
            };
            let arrays = buffers.flat_map(ValueBuffer::arrays).collect::<Vec<_>>();
            self.write(&shard.file, &arrays)?;
            let statistics = format!("{STATISTICS}{at:05}.safetensors");
            self.write_statistics(&statistics)?;
            self.index.statistics = Some(statistics);
            self.index.shards.push(shard);
            for buffer in &mut self.buffers {
                buffer.elements.clear();
                buffer.places.clear();
                buffer.positions.clear();
                buffer.prompts.clear();
            }
        } else if !is_last {
            return Ok(());
        }
        self.index.complete = is_last;
        self.write_index()?;
        self.remove_old_statistics()
    }

    fn write(&self, name: &str, arrays: &[NamedArray<'_>]) -> Result<(), Failure> {
        let path = self.folder.join(name);
        let subject = &self.index.subject;
        let plan = Value::Object(subject.plan.clone()).to_string();
        let texts = [
            ("model", &subject.model),
            ("model_sha256", &subject.model_sha256),
            ("definition_sha256", &subject.definition_sha256),
            ("types", &subject.types),
            ("plan", &plan),
        ];
        let texts = texts.map(|(name, text)| (name.to_owned(), text.clone().into()));
        let texts = texts.into_iter();
        // An interrupted run may have left a file that the index does not name.
        let target = OutputPath::replacing(&path);
        let written = arrays::write(target, ArrayFormat::Safetensors, arrays, &texts.collect());
        written.map_err(|error| at(&path, error))
    }

    fn write_statistics(&self, name: &str) -> Result<(), Failure> {
        let of = |(name, moments): (&String, &Moments)| {
            (name.clone(), [moments.n() as f64], moments.covariance())
        };
        let computed: Vec<_> = self.moments.iter().map(of).collect();
        let mut all = Vec::new();
        for ((name, n, covariance), moments) in computed.iter().zip(self.moments.values()) {
            let width = moments.mean().len() as u64;
            let named = |what: &str, shape: Vec<u64>, elements| NamedArray {
                name: format!("{name}.{what}"),
                shape,
                elements: Elements::F64(elements),
            };
            all.push(named("n", vec![1], &n[..]));
            all.push(named("mean", vec![width], moments.mean()));
            if let Some(covariance) = covariance {
                all.push(named("covariance", vec![width, width], covariance));
            }
        }
        self.write(name, &all)
    }

    /// Removes statistics that the index does not name, including those of a run that ended before it wrote the index.
    fn remove_old_statistics(&self) -> Result<(), Failure> {
        for entry in fs::read_dir(self.folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(STATISTICS) && self.index.statistics.as_ref() != Some(&name) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    fn write_index(&self) -> Result<(), Failure> {
        let path = self.folder.join(INDEX);
        let text = serde_json::to_vec_pretty(&self.index)?;
        atomic_file::write(OutputPath::replacing(&path), &text).map_err(|error| at(&path, error))
    }
}

impl ValueBuffer {
    /// An empty buffer for a value; its name and shape come from the first capture.
    fn new((name, captured, is_half): &(String, Cow<'_, CapturedPoint>, bool)) -> Self {
        Self {
            name: name.clone(),
            row: captured.shape.iter().rev().copied().collect(),
            is_half: *is_half,
            elements: Vec::new(),
            places: Vec::new(),
            positions: Vec::new(),
            prompts: Vec::new(),
        }
    }

    /// The arrays of the buffer: the rows, and for each row its prompt and its position, 2^31 - 1 for none.
    fn arrays(&self) -> Vec<NamedArray<'_>> {
        let n = self.prompts.len() as u64;
        let rows: Vec<u64> = [n].into_iter().chain(self.row.iter().copied()).collect();
        let named = |end: &str, shape: Vec<u64>, elements| NamedArray {
            name: format!("{}{end}", self.name),
            shape,
            elements,
        };
        let elements = match self.is_half {
            true => Elements::F16(&self.elements),
            false => Elements::F32(&self.elements),
        };
        let mut all = vec![
            named("", rows.clone(), elements),
            named(".prompt", vec![n], Elements::I32(&self.prompts)),
            named(".position", vec![n], Elements::I32(&self.positions)),
        ];
        if !self.places.is_empty() {
            all.push(named(".indices", rows, Elements::I32(&self.places)));
        }
        all
    }
}

/// Refuses plans whose values are not rows of one width, and statistics that need too much memory.
fn check(args: &CollectArgs, runner: &LabRunner) -> Result<(), Failure> {
    let points = runner.served.handle.points();
    let mut n_bytes = 0u64;
    for pattern in runner.request.patterns() {
        for at in points.find(pattern)? {
            let point = &points.all[at];
            if point.spec.parts == PointParts::Pairs {
                let path = &point.path;
                anyhow::bail!(
                    "`{path}`: rows of attention weights differ in their length; `bench lab run` captures them"
                );
            }
            let width = point.width();
            let full = if args.covariance { 1 + width } else { 1 };
            n_bytes = n_bytes.saturating_add(8 * width.saturating_mul(full));
        }
    }
    if n_bytes > args.values.bytes.lab_bytes {
        let limit = args.values.bytes.lab_bytes;
        anyhow::bail!(
            "the means and covariances take {n_bytes} bytes, the limit is {limit} (--lab-bytes)"
        );
    }
    Ok(())
}

/// Removes the collection in a folder. Other files stay.
fn remove(folder: &Path) -> Result<(), Failure> {
    let mut own = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_array = name.starts_with(SHARD) || name.starts_with(STATISTICS);
        if name == INDEX || is_array && name.ends_with(".safetensors") {
            own.push(entry.path());
        }
    }
    let each = |act: &dyn Fn(&Path) -> std::io::Result<()>| {
        let mut all = own.iter();
        all.try_for_each(|path| act(path).map_err(|error| at(path, error)))
    };
    each(&refuse_input)?;
    each(&|path| fs::remove_file(path))
}

fn found(folder: &Path, subject: &CollectionIdentity) -> Result<Option<CollectionIndex>, Failure> {
    let path = folder.join(INDEX);
    let text = match limited_read::text(&path, MAX_TEXT) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let mut others = fs::read_dir(folder)?.flatten();
            if others.any(|entry| entry.file_name() != LOCK) {
                anyhow::bail!(
                    "{}: is not empty, and has no {INDEX}; another folder is needed, or --force to write beside what is there",
                    folder.display()
                );
            }
            return Ok(None);
        }
        Err(error) => anyhow::bail!("{}: {error}", path.display()),
    };
    forget_input(&path);
    let at = |what: &str| anyhow::anyhow!("{}: {what}", path.display());
    let index: CollectionIndex =
        serde_json::from_str(&text).map_err(|error| at(&error.to_string()))?;
    if index.subject != *subject {
        if index.shards.is_empty() {
            return Ok(None);
        }
        return Err(at(
            "is of another model, plan or file of prompts; another folder is needed, or --force to replace the collection",
        ));
    }
    Ok(Some(index))
}

pub(super) fn run(args: &CollectArgs) -> Result<(), Failure> {
    let plan = plan(&args.plan)?;
    let others = ["lens", "attribution"];
    if let Some(other) = others.iter().find(|key| plan.contains_key(**key)) {
        let path = args.plan.display();
        anyhow::bail!(
            "{path}: `{other}` is not supported by `bench lab collect`; expected a plan without `lens` and `attribution`"
        );
    }
    let mut lines = PromptLines::open(&args.prompts, true)?;
    let mut n_prompts = 0;
    while lines.line()?.is_some() {
        n_prompts += 1;
    }
    let digest = lines.hash.take().unwrap_or_default().finalize();
    let values = (&args.values.bytes, args.values.lab_vectors.as_slice());
    let (model, n) = (args.model.source()?, args.parallel);
    let runner = LabRunner::start(&args.load, &model, plan.clone(), n, values)?;
    check(args, &runner)?;
    let identity = runner.served.identity.clone();
    let subject = CollectionIdentity {
        model: runner.served.name.clone(),
        model_sha256: identity.model,
        definition_sha256: identity.definition,
        types: identity.types,
        prompts_sha256: format!("{digest:x}"),
        n_prompts,
        max_tokens: args.max_tokens,
        covariance: args.covariance,
        plan,
    };
    fs::create_dir_all(&args.output).map_err(|error| at(&args.output, error))?;
    let folder = args.output.display();
    let lock = args.output.join(LOCK);
    let opened = File::options().append(true).create(true).open(&lock);
    let lock = opened.map_err(|error| at(&lock, error))?;
    if lock.try_lock().is_err() {
        anyhow::bail!("{folder}: another command collects into it");
    }
    let index = match args.force.force {
        true => remove(&args.output).map(|()| None)?,
        false => found(&args.output, &subject)?,
    };
    let index = index.unwrap_or_else(|| CollectionIndex {
        subject,
        complete: false,
        statistics: None,
        shards: Vec::new(),
    });
    let moments = match &index.statistics {
        Some(file) => moments(&args.output.join(file), args.covariance)?,
        None => BTreeMap::new(),
    };
    let n_done = index.n_done();
    let mut collecting = Collection {
        folder: &args.output,
        index,
        buffers: Vec::new(),
        moments,
        n_buffered: 0,
    };
    // From here on, an interrupted run can be resumed.
    collecting.write_index()?;
    collecting.remove_old_statistics()?;
    let mut lines = PromptLines::open(&args.prompts, false)?;
    for _ in 0..n_done {
        lines.line()?;
    }
    let bar = progress_bar("collecting", &runner.served.name);
    bar.set_style(
        indicatif::ProgressStyle::with_template("{prefix} {msg} {bar:30} {pos}/{len} {eta}")
            .unwrap_or_else(|_| indicatif::ProgressStyle::default_bar()),
    );
    bar.set_length(n_prompts as u64);
    bar.set_position(n_done as u64);
    let prompts = std::iter::from_fn(|| lines.tokens(&runner).transpose());
    runner.each(n_done, prompts, args.max_tokens, |result| {
        collecting.add(&runner, &result)?;
        bar.inc(1);
        match collecting.n_bytes() >= args.shard_bytes {
            true => collecting.flush(false),
            false => Ok(()),
        }
    })?;
    collecting.flush(true)?;
    bar.finish_and_clear();
    let n_shards = collecting.index.shards.len();
    let of_before = match n_done {
        0 => String::new(),
        n => format!(", {n} of them before"),
    };
    let plural = |n: usize| if n == 1 { "" } else { "s" };
    output::line(format!(
        "{folder}: values of {n_prompts} prompt{}{of_before}, {n_shards} file{}",
        plural(n_prompts),
        plural(n_shards)
    ))
}

/// Reads the statistics of an earlier run.
fn moments(path: &Path, is_full: bool) -> Result<BTreeMap<String, Moments>, Failure> {
    let weights = lab_base::weights::folder::plain(path)?;
    let numbers = |name: &str| -> Result<Vec<f64>, Failure> {
        let missing = || anyhow::anyhow!("{}: tensor `{name}` is missing", path.display());
        let tensor = weights.tensor(name).ok_or_else(missing)?;
        let bytes = weights.data(tensor)?;
        let numbers = bytes.as_chunks::<8>().0.iter();
        Ok(numbers.map(|b| f64::from_le_bytes(*b)).collect())
    };
    let counts = weights.tensors().iter();
    let mut all = BTreeMap::new();
    for name in counts.filter_map(|t| t.name.strip_suffix(".n")) {
        let n = numbers(&format!("{name}.n"))?;
        let n = n.first().copied().unwrap_or(0.0);
        let covariance = is_full.then(|| numbers(&format!("{name}.covariance")));
        let covariance = covariance.transpose()?;
        let found = Moments::of(n as u64, numbers(&format!("{name}.mean"))?, covariance);
        let found = found.ok_or_else(|| anyhow::anyhow!("{}: `{name}` is damaged", path.display()));
        all.insert(name.to_owned(), found?);
    }
    Ok(all)
}
