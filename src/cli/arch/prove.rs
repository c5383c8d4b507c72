//! `bench arch prove`: compares a model, on every execution path, with logits of another program.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args as ClapArgs};
use serde_json::{Value, json};

use crate::cli::arch::llama_server::{self, LlamaServer};
use crate::cli::compare::index;
use crate::cli::hub::model_source;
use crate::cli::options::ModelOptions;
use crate::cli::{Failure, output};
use lab_base::tokenizer::Tokenizer;
use lab_base::util::wording;
use lab_core::arch::{Mode, fits_pattern};
use lab_core::artifacts::npy;
use lab_core::models::{self, OpenedModel};
use lab_inspect::idle_keys::idle_keys;
use lab_inspect::paths::InputTokens;
use lab_inspect::prove::{self, Divergence, PathOutcome, Reference};

/// Number of token ids in a proof without given ones.
const N_TOKENS: u64 = 32;
/// Minimum difference of log-probabilities that counts, in nats.
const FLOOR: f64 = 1e-3;
/// Maximum difference of log-probabilities, as a multiple of the noise of an f16 cache.
const NOISE_FACTOR: f64 = 3.0;

#[derive(Debug, ClapArgs)]
#[command(group = ArgGroup::new("of").required(true))]
pub(in crate::cli) struct ProveArgs {
    /// The model, in place of `-m`
    #[arg(value_name = "MODEL", required_unless_present = "model")]
    model_path: Option<PathBuf>,
    /// The model: a file or a folder
    #[arg(short, long, value_name = "MODEL", conflicts_with = "model_path")]
    model: Option<PathBuf>,
    /// Logits as float32 [n_tokens, n_vocab] in NPY format, or an NPZ archive of `logits`, `tokens` and, of a model that
    /// reads one, `source`
    #[arg(long = "ref", value_name = "FILE", group = "of")]
    reference: Option<PathBuf>,
    /// Compare with llama.cpp the log-probabilities of the 20 most probable tokens at each position; SERVER: the
    /// llama-server program to start, or http://HOST:PORT of one that has loaded this model; default: `llama-server`
    #[arg(
        long,
        group = "of",
        value_name = "SERVER",
        num_args = 0..=1,
        default_missing_value = llama_server::PROGRAM
    )]
    llama: Option<String>,
    /// Token ids, separated by commas; default: `tokens` of the NPZ archive, with --llama 32 ids of the vocabulary
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    tokens: Vec<u32>,
    /// Token ids of the encoder input (source) of an encoder-decoder model, separated by commas; default: `source` of the NPZ archive
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    source: Vec<u32>,
    /// Maximum NMSE (normalised mean squared error) of paths that compute in f32, default 1e-6; 100 times as much for
    /// an f16 KV cache. With --llama the maximum difference of log-probabilities in nats; default: three times the
    /// effect of an f16 KV cache, at least 0.001
    #[arg(long, value_name = "N")]
    tolerance: Option<f64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: ModelOptions,
}

impl ProveArgs {
    /// The path of the model, which clap requires.
    fn model(&self) -> &Path {
        let path = self.model.as_deref().or(self.model_path.as_deref());
        path.unwrap_or(Path::new(""))
    }
}

/// The input of a proof: token ids, those of the source, and the result of another program.
struct ProofInput {
    tokens: Vec<u32>,
    source: Vec<u32>,
    reference: Reference,
}

/// Reads token ids and logits from a file. Ids on the command line take precedence.
fn read(path: &Path, args: &ProveArgs) -> Result<ProofInput, Failure> {
    let at = |error: npy::Error| anyhow::anyhow!("{}: {error}", path.display());
    let is_archive = path.extension().is_some_and(|ending| ending == "npz");
    let of_archive = |name: &str| match is_archive {
        true => npy::read_archive(path, name).map_err(at),
        false => Ok(None),
    };
    let ids = |given: &[u32], name: &str| -> Result<Vec<u32>, Failure> {
        let stored = match given {
            [] => of_archive(name)?,
            given => return Ok(given.to_vec()),
        };
        let stored = stored.into_iter().flat_map(|array| array.elements);
        Ok(stored.map(|id| id as u32).collect())
    };
    let tokens = ids(&args.tokens, "tokens")?;
    let array = match is_archive {
        true => of_archive("logits")?,
        false => Some(npy::read(path).map_err(at)?),
    };
    let array = array.ok_or_else(|| anyhow::anyhow!("{}: no array `logits`", path.display()))?;
    let (n, place) = (tokens.len(), path.display());
    if n == 0 {
        anyhow::bail!("{place}: there are no token ids: --tokens IDS gives them");
    }
    if array.shape.first() != Some(&(n as u64)) {
        anyhow::bail!("{place}: {n} token ids, found an array {:?}", array.shape);
    }
    Ok(ProofInput {
        tokens,
        source: ids(&args.source, "source")?,
        reference: Reference::Logits(array.elements),
    })
}

/// A token of the file's vocabulary whose text consists of letters.
fn plain_token(opened: &OpenedModel) -> Option<u32> {
    let tokenizer = Tokenizer::from_metadata(opened.weights.metadata()).ok()?;
    (0..opened.plan.n_vocab as u32).find(|id| {
        let piece = tokenizer.piece(*id);
        let is_text = !piece.is_empty() && piece.iter().all(u8::is_ascii_alphabetic);
        is_text && !tokenizer.is_control(*id)
    })
}

/// Token ids, and the results of a llama-server for them.
fn ask(args: &ProveArgs, server: &str, opened: &OpenedModel) -> Result<ProofInput, Failure> {
    let plan = &opened.plan;
    let is_plain = plan.mode == Mode::Causal && plan.source.is_none() && plan.n_vocab > 0;
    if !is_plain {
        anyhow::bail!(
            "--llama compares next-token probabilities, which llama-server gives of causal models without a source alone; \
             --ref compares with an array"
        );
    }
    let tokens = match args.tokens.as_slice() {
        // Ids that are far apart, because the first tokens of a vocabulary are often special.
        [] => (1..=N_TOKENS)
            .map(|i| (i * 2_654_435_761 % plan.n_vocab) as u32)
            .collect(),
        given => given.to_vec(),
    };
    let n_ctx = (tokens.len() + 1).next_multiple_of(256);
    let server = LlamaServer::open(server, args.model(), n_ctx)?;
    let tops = server.tops(&tokens, plain_token(opened))?;
    Ok(ProofInput {
        tokens,
        source: Vec::new(),
        reference: Reference::Tops(tops),
    })
}

pub(super) fn run(args: &ProveArgs) -> Result<(), Failure> {
    // Reading the array first reports its faults before the model is opened.
    let stored = args.reference.as_ref().map(|path| read(path, args));
    let stored = stored.transpose()?;
    let opened = args.load.open(&model_source(Some(args.model()))?)?;
    let threads = args.load.threads();
    let ProofInput {
        tokens,
        source,
        reference,
    } = match (stored, &args.llama) {
        (Some(stored), _) => stored,
        (None, server) => ask(args, server.as_deref().unwrap_or_default(), &opened)?,
    };
    let bounds = match (&reference, args.tolerance) {
        (Reference::Logits(_), given) => {
            given.map_or(prove::BOUNDS, |tolerance| [tolerance, 100.0 * tolerance])
        }
        (Reference::Tops(_), Some(given)) => [given; 2],
        (Reference::Tops(tops), None) => {
            let noise = prove::cache_noise(&opened, &tokens, tops, threads)?;
            [FLOOR.max(NOISE_FACTOR * noise); 2]
        }
    };
    let mut written = Ok(());
    let mut each = |outcome: &PathOutcome| {
        if !args.json && written.is_ok() {
            written = output::line(line(outcome));
        }
    };
    let text = InputTokens {
        tokens: &tokens,
        source: &source,
    };
    let outcomes = prove::prove(&opened, text, &reference, bounds, threads, &mut each)?;
    written?;
    let mut hints = prove::hints(&outcomes, &reference, prove::is_f32(&opened.plan));
    let parting = prove::first_divergence(&opened, text, &outcomes, threads)?;
    hints.extend(parting.as_ref().map(described));
    let unread = UnusedParts::of(&opened);
    if args.json {
        let paths = outcomes.iter().map(|outcome| to_json(outcome, &reference));
        // JSON has no infinity: such a number is null.
        let report = json!({
            "measure": reference.measure(),
            "bounds": bounds,
            "paths": paths.collect::<Value>(),
            "hints": hints,
            "first_divergence": parting.as_ref().map(|parting| json!({
                "path": parting.path, "value": parting.value.path, "nmse": parting.value.nmse,
                "choice": parting.is_choice,
            })),
            "unread": { "keys": unread.keys, "idle": unread.idle, "tensors": unread.tensors, "ignored": unread.ignored },
        });
        output::json(&report)?;
    } else {
        output::line(format!(
            "{} of {} positions; up to {:.1e} counts as equal",
            reference.measure(),
            tokens.len(),
            bounds[0]
        ))?;
        for hint in hints.into_iter().chain(unread.lines()) {
            output::line(hint)?;
        }
    }
    let (wrong, n) = (
        outcomes.iter().filter(|own| !own.is_proven()),
        outcomes.len(),
    );
    match wrong.count() {
        0 => Ok(()),
        n_wrong => anyhow::bail!("{n_wrong} of {n} paths differ from the reference"),
    }
}

/// The first value in which a path differs from one pass, with its interpretation.
fn described(parting: &Divergence) -> String {
    let (path, value) = (parting.path, &parting.value);
    let mut text = format!("{path}: the first value that differs is `{}`", value.path);
    if let Some((at, whole, apart)) = value.first {
        let place = index(at, &value.shape);
        text.push_str(&format!(", {whole} and {apart} at {place}"));
    }
    text.push_str(match parting.is_choice {
        true => {
            ". It is a choice: if the scores before it are nearly equal, rounding can change it, which is not a fault. \
             `bench lab run` shows the scores, and the result with one of the two excluded"
        }
        false => ". Report it",
    });
    text
}

struct UnusedParts {
    /// Keys that nothing reads, although they may have a meaning.
    keys: Vec<String>,
    /// Keys that are read but do not affect the computation.
    idle: Vec<String>,
    /// Keys that the definition ignores, with its reasons.
    ignored: Vec<(String, String)>,
    tensors: Vec<String>,
}

impl UnusedParts {
    fn of(opened: &OpenedModel) -> Self {
        let (def, metadata) = (&opened.def, opened.weights.metadata());
        // Keys that all definitions ignore are not listed.
        let prefix = format!("{}.", def.name);
        let ignored = metadata.iter().filter_map(|(key, _)| {
            let relative = key.strip_prefix(&prefix)?;
            let mut own = def.ignore.keys.iter().filter(|(_, own)| !own.is_common);
            let (_, ignored) = own.find(|(pattern, _)| fits_pattern(pattern, relative))?;
            Some((key.to_owned(), ignored.reason.clone()))
        });
        Self {
            keys: models::unread_keys(&opened.plan, metadata),
            idle: idle_keys(opened),
            ignored: ignored.collect(),
            tensors: wording::by_layer(&opened.plan.unclaimed, &wording::without_layer),
        }
    }

    fn lines(self) -> Vec<String> {
        let states = |key: &str, what: &str| format!("the file states `{key}`, which {what}");
        let unread = "nothing reads: no result depends on it";
        let keys = self.keys.iter().map(|key| states(key, unread));
        let idle = "is read: another value would change nothing";
        let idle = self.idle.iter().map(|key| states(key, idle));
        let ignored = self.ignored.iter();
        let ignored =
            ignored.map(|(key, why)| states(key, &format!("the definition ignores: {why}")));
        let tensors = self.tensors.iter();
        let tensors =
            tensors.map(|name| format!("the file has the tensor {name}, which nothing uses"));
        keys.chain(idle).chain(ignored).chain(tensors).collect()
    }
}

fn line(outcome: &PathOutcome) -> String {
    let Some(error) = outcome.error else {
        return format!("- {:28} does not apply", outcome.path);
    };
    let sign = if outcome.is_proven() { "=" } else { "≠" };
    let mut text = format!("{sign} {:28} {error:9.1e}", outcome.path);
    if let (false, Some((at, error))) = (outcome.is_proven(), outcome.first_wrong) {
        let other = outcome.n_other_best;
        text.push_str(&format!(
            "  first at position {at} ({error:.1e}); another best token at {other} positions"
        ));
    }
    text
}

fn to_json(outcome: &PathOutcome, reference: &Reference) -> Value {
    let name = match reference {
        Reference::Logits(_) => "nmse",
        Reference::Tops(_) => "difference",
    };
    json!({
        "path": outcome.path,
        "applies": outcome.error.is_some(),
        name: outcome.error,
        "bound": outcome.bound,
        "proven": outcome.is_proven(),
        "first_wrong_position": outcome.first_wrong.map(|(at, _)| at),
        "other_best_tokens": outcome.n_other_best,
    })
}
