//! `bench tokenize` and `bench detokenize`: text to ids and back, also of vocabulary-only files.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde::Deserialize;
use serde_json::json;

use lab_base::tokenizer::Tokenizer;
use lab_core::models::{self, Definitions};

use super::hub::model_source;
use super::input_file::answer_lines;
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The model; default: tiny-chat, which is built in
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Encode the text of special tokens as plain text
    #[arg(long)]
    no_parse_special: bool,
    /// Do not add the BOS and EOS tokens that the vocabulary requires
    #[arg(long)]
    no_add_special: bool,
    /// Read one JSON request per line from stdin and write one result per line to stdout
    #[arg(long, conflicts_with = "text")]
    jsonl: bool,
    /// The text
    #[arg(required_unless_present = "jsonl")]
    text: Option<String>,
}

#[derive(Debug, ClapArgs)]
pub(super) struct DetokenizeArgs {
    /// The model; default: tiny-chat, which is built in
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Token ids, separated by commas, or a JSON array
    ids: String,
}

/// A request on one line of `--jsonl`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EncodeRequest {
    text: String,
    #[serde(default = "yes")]
    add_special: bool,
    #[serde(default = "yes")]
    parse_special: bool,
}

fn yes() -> bool {
    true
}

fn tokenizer(model: Option<&PathBuf>) -> Result<Tokenizer, Failure> {
    let definitions = Definitions::open(&[])?;
    let contents = models::read(&model_source(model.map(PathBuf::as_path))?, &definitions)?;
    let label = contents.weights.label().to_owned();
    let tokenizer = contents.tokenizer();
    tokenizer.map_err(|e| anyhow::anyhow!("{label}: {e}"))
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let tokenizer = tokenizer(args.model.as_ref())?;
    if !args.jsonl {
        let text = args.text.as_deref().unwrap_or_default();
        let ids = tokenizer.encode(text, !args.no_add_special, !args.no_parse_special)?;
        return output::line(serde_json::to_string(&ids)?);
    }
    answer_lines(|line| {
        let request: EncodeRequest = serde_json::from_str(line)?;
        let ids = tokenizer.encode(&request.text, request.add_special, request.parse_special)?;
        let pieces: Vec<&[u8]> = ids.iter().map(|id| tokenizer.piece(*id)).collect();
        Ok(json!({ "ids": ids, "pieces": String::from_utf8_lossy(&pieces.concat()) }))
    })
}

pub(super) fn detokenize(args: &DetokenizeArgs) -> Result<(), Failure> {
    let list = args.ids.trim().trim_start_matches('[');
    let ids = list.trim_end_matches(']').split(',').map(str::trim);
    let ids = ids.filter(|id| !id.is_empty()).map(|id| {
        let parsed = id.parse::<u32>();
        parsed.map_err(|_| anyhow::anyhow!("`{id}` is not a token id"))
    });
    let ids = ids.collect::<Result<Vec<u32>, _>>()?;
    let tokenizer = tokenizer(args.model.as_ref())?;
    let n = tokenizer.vocab_len();
    if let Some(id) = ids.iter().find(|id| **id as usize >= n) {
        anyhow::bail!("token {id} is not in the vocabulary of {n}");
    }
    output::line(String::from_utf8_lossy(&tokenizer.decode(&ids)))
}
