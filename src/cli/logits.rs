//! `bench logits`: writes the raw logits of every position as an NPY file.

use std::path::Path;

use clap::Args as ClapArgs;

use lab_base::util::atomic_file::PartFile;
use lab_core::artifacts::npy;
use lab_core::model::{Batch, DraftRequest, is_finite};
use lab_core::plan::Pooling;
use lab_inspect::paths::passes;

use super::Failure;
use super::media_prompt::MediaPrompt;
use super::options::{LoadDefaults, LoadOptions, ModelArg, SourceTokens};
use super::output::{ForceOption, OutputFile, at};
use super::values::some_tokens;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Token ids, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        required_unless_present = "messages",
        conflicts_with = "messages",
        value_name = "IDS"
    )]
    tokens: Vec<u32>,
    #[command(flatten)]
    media: MediaPrompt,
    #[command(flatten)]
    source: SourceTokens,
    /// NPY file to write: float32 [n_tokens, n_vocab]; for a model without an output head, the hidden
    /// states of all tokens, [n_tokens, n_embd]
    #[arg(short, long, value_name = "OUT.npy")]
    output: OutputFile,
    #[command(flatten)]
    force: ForceOption,
    /// Number of tokens per pass, 1 or more; default: all in one pass
    #[arg(long, value_name = "N", value_parser = some_tokens)]
    chunk: Option<usize>,
    /// Use no KV cache: compute the whole sequence again for each chunk
    #[arg(long)]
    stateless: bool,
    /// Bidirectional attention: every token attends to all tokens of the pass
    #[arg(long)]
    non_causal: bool,
    /// Write one embedding of the sequence, float32 [n_embd], with the pooling of the model; for a
    /// classifier or reranker the scores of its classes, float32 [n_classes]. A classifier of tokens
    /// has scores for each token, float32 [n_tokens, n_classes], with and without this option
    #[arg(long)]
    embedding: bool,
    /// Write the logits of the model's drafter, float32 [n_tokens - 2 + N, n_vocab]: after each token but the first, which it reads with
    /// values of the model at the token before, then after each token of a draft of N but the last; of a drafter that reads
    /// tokens alone [n_tokens - 1 + N, n_vocab]
    #[arg(long, value_name = "N", value_parser = some_tokens, conflicts_with_all = ["stateless", "embedding", "chunk"])]
    drafted: Option<usize>,
    #[command(flatten)]
    load: LoadOptions,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut opened = args.load.open(&args.model.source()?)?;
    let mut prompt = args.media.read(&mut opened, &args.load)?;
    let tokens = prompt
        .as_ref()
        .map_or_else(|| args.tokens.clone(), |prompt| prompt.tokens.clone());
    // The output is created first: without it, computing would be useless.
    let part = PartFile::new(args.force.target(&args.output));
    let part = part.map_err(|error| at(&args.output, error))?;
    let n = tokens.len();
    let chunk = args.chunk.unwrap_or(n).clamp(1, n.max(1));
    let n_rows = opened.n_source_rows;
    let n_batch = args.source.n_batch(if args.stateless { n } else { chunk });
    let defaults = LoadDefaults::exact(n_batch);
    let mut options = args.load.resolve(&opened, defaults)?;
    options.non_causal = args.non_causal;
    let scores_tokens = opened.plan.pooling() == Pooling::Each;
    options.embeddings = args.embedding || scores_tokens;
    let n_all = args.source.len() + n_rows + n;
    if n_all > options.n_ctx {
        anyhow::bail!(
            "{n_all} tokens exceed the context of {} (--ctx N sets a longer one)",
            options.n_ctx
        );
    }
    if args.load.context(&opened.plan).is_none() {
        // Frequency factors of a RoPE can depend on the context length, so it is the number of tokens.
        options.n_ctx_seq = n;
    }
    if args.stateless {
        options.n_ctx = 0;
    } else {
        // Only as many KV slots as there are positions.
        options.n_ctx = options.n_ctx.min(n_all.next_multiple_of(256));
    }
    let drafter = opened.drafter.take().filter(|_| args.drafted.is_some());
    options.for_drafter = drafter.as_ref().and_then(|of| of.plan.target.clone());
    let mut model = args.load.load(opened, options)?;
    if let Some(drafter) = drafter {
        model.load_drafter(drafter)?;
    }
    args.source.set(&mut model)?;
    if let Some(prompt) = &mut prompt {
        prompt.set(&args.media, &mut model)?;
    }

    let width = model.row_width();
    let mut logits: Vec<f32> = Vec::with_capacity(n * width);
    let mut batch = Batch::default();
    for (first, start, end) in passes(n, chunk, args.stateless) {
        batch.clear();
        for (i, token) in tokens.iter().enumerate().take(end).skip(first) {
            batch.push(*token, 0, i as u32, i >= start);
        }
        logits.extend_from_slice(model.forward(&batch)?);
    }
    if !is_finite(&logits) {
        let place = match model.first_not_finite(0, &tokens)? {
            Some(found) => found.to_string(),
            None => "in one pass of their own all values are finite".to_owned(),
        };
        anyhow::bail!("results are not finite numbers: {place}");
    }
    if let Some(most) = args.drafted {
        let request = DraftRequest {
            sequence: 0,
            tokens: &tokens,
            most,
        };
        let (drafted, width) = model.draft_logits(&request)?;
        return finish(
            part,
            &args.output,
            &drafted,
            &[drafted.len() / width, width],
        );
    }
    if scores_tokens {
        let scores = model.pool(&logits)?;
        return finish(part, &args.output, &scores, &[n, scores.len() / n]);
    }
    if args.embedding {
        let vector = model.pool(&logits)?;
        return finish(part, &args.output, &vector, &[vector.len()]);
    }
    finish(part, &args.output, &logits, &[n, width])
}

fn finish(mut part: PartFile, path: &Path, values: &[f32], shape: &[usize]) -> Result<(), Failure> {
    let written = part.write(&npy::bytes_of(values, shape));
    written
        .and_then(|()| part.finish())
        .map_err(|error| at(path, error))
}
