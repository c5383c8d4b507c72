//! Constraints on the completion, from the command line.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use super::Failure;
use super::input_file::{read_json, read_text};
use lab_base::grammar::Constraint;

/// Constraint on the completion.
#[derive(Debug, Args)]
#[group(multiple = false)]
#[command(next_help_heading = "Constrained output")]
pub(super) struct ConstraintOptions {
    /// Constrained decoding: JSON Schema of the completion, in a file or, from its `{` on, as it is
    #[arg(long, value_name = "FILE")]
    json_schema: Option<PathBuf>,
    /// Constrained decoding: regular expression that matches the whole completion
    #[arg(long, value_name = "R")]
    regex: Option<String>,
    /// Constrained decoding: file with a grammar of the completion, GBNF (.gbnf) or Lark (.lark)
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,
}

impl ConstraintOptions {
    /// The constraint that the options define, if any.
    pub(super) fn read(&self) -> Result<Option<Constraint>, Failure> {
        if let Some(path) = &self.json_schema {
            return Ok(Some(Constraint::JsonSchema(schema(path)?)));
        }
        if let Some(path) = &self.grammar {
            let text = read_text(path)?;
            let ending = path.extension().and_then(|ending| ending.to_str());
            return Ok(Some(match ending {
                Some("gbnf") => Constraint::Gbnf(text),
                Some("lark") => Constraint::Lark(text),
                _ => Constraint::grammar(&text),
            }));
        }
        Ok(self.regex.clone().map(Constraint::Regex))
    }

    pub(super) fn field(&self) -> Result<Option<(String, Value)>, Failure> {
        if let Some(path) = &self.json_schema {
            return Ok(Some(("json_schema".into(), schema(path)?)));
        }
        if let Some(path) = &self.grammar {
            return Ok(Some(("grammar".into(), read_text(path)?.into())));
        }
        let regex = self.regex.as_deref();
        Ok(regex.map(|regex| ("guided_regex".into(), regex.into())))
    }
}

/// The JSON value in a file, or the schema that stands in place of the file's name.
fn schema(path: &Path) -> Result<Value, Failure> {
    let own = path
        .to_str()
        .filter(|text| text.trim_start().starts_with('{'));
    match own {
        Some(text) => serde_json::from_str(text).map_err(|e| anyhow::anyhow!("--json-schema: {e}")),
        None => read_json(path),
    }
}
