//! `POST /infill`: text for a gap between two texts, with other files before them, in llama-server's shape.
//!
//! The prompt is made of the vocabulary's own fill-in-the-middle tokens. Of the other files, only as many of the last
//! tokens are read as fit into the context; the text around the gap is read whole.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;

use crate::served::ServedModel;

use super::llama_server::NativeParams;
use crate::Pool;
use crate::http::error::{Error, refuse};
use crate::request::fields::{Fields, fields};
use crate::request::object_fields::ObjectFields;

const PREFIX: &str = "input_prefix";
const SHAPES: &[(&str, &ObjectFields)] = &[("input_extra", &ObjectFields::of("text filename"))];
const MAX_FILES: usize = 1024;
/// Number of completion tokens for which room is left if the request has no limit.
const ROOM: u64 = 256;

fields! {
    pub(crate) struct InfillFields prunes SHAPES {
        /// The text before the gap.
        input_prefix: String,
        /// The text after the gap.
        input_suffix: String,
        /// Texts of other files: objects with `text` and `filename`.
        input_extra: Option<Vec<ExtraFile>>,
        /// The text after `input_prefix` with which the completion starts.
        prompt: Option<String>,
        ..parameters: NativeParams,
    }
}

#[derive(Debug, Deserialize)]
struct ExtraFile {
    text: String,
    filename: Option<String>,
}

pub(crate) async fn infill(
    State(pool): State<Arc<Pool>>,
    Fields(gap): Fields<InfillFields>,
) -> Result<Response, Error> {
    let parameters = &gap.parameters;
    parameters.check()?;
    let n_files = gap.input_extra.as_ref().map_or(0, Vec::len);
    if n_files > MAX_FILES {
        return refuse("input_extra", format!(": more than {MAX_FILES} files"));
    }
    let served = pool.get(parameters.model()).await?;
    let most = parameters.most_tokens().unwrap_or(ROOM);
    let tokens = gap.encode(&served, usize::try_from(most).unwrap_or(usize::MAX))?;
    parameters
        .answer(&served, vec![tokens.into()], PREFIX)
        .await
}

impl InfillFields {
    /// The tokens of the prompt. The other files are cut so that room for `n_more` tokens remains, if cutting them
    /// suffices.
    fn encode(&self, served: &ServedModel, n_more: usize) -> Result<Vec<u32>, Error> {
        let fault =
            |error: lab_base::tokenizer::Error| Error::invalid_value(PREFIX, error.to_string());
        let tokenizer = served.handle.tokenizer();
        let before = format!(
            "{}{}",
            self.input_prefix,
            self.prompt.as_deref().unwrap_or("")
        );
        let own = tokenizer.encode_gap(&before, &self.input_suffix);
        let Some(mut own) = own.map_err(fault)? else {
            return Err(Error::Field {
                param: "model".into(),
                message: "the vocabulary has no tokens for fill-in-the-middle".into(),
                code: "unsupported_model",
            });
        };
        let Some(files) = self.input_extra.as_ref().filter(|files| !files.is_empty()) else {
            return Ok(own);
        };
        let is_bos = tokenizer.adds_bos() && own.first().copied() == tokenizer.bos();
        let rest = own.split_off(usize::from(is_bos));
        let mut out = own;
        let repository = tokenizer.encode_repository().map_err(fault)?;
        let mut others = Vec::new();
        for file in files {
            let tokens = tokenizer.encode_file(file.filename.as_deref(), &file.text);
            others.extend(tokens.map_err(fault)?);
        }
        if tokenizer.marks_files() {
            // In a request, the file with the gap has no name.
            others.extend(tokenizer.encode_file(Some("filename"), "").map_err(fault)?);
        }
        let n_taken = out.len() + repository.len() + rest.len();
        let n_ctx = served.handle.limits().n_ctx;
        let room = n_ctx.saturating_sub(n_taken.saturating_add(n_more));
        let start = others.len().saturating_sub(room);
        out.extend(repository);
        out.extend(&others[start..]);
        out.extend(rest);
        Ok(out)
    }
}
