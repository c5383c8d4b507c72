//! What an answer must look like, from the command line.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::constraint::Constraint;

use super::Failure;

/// What the answer must look like.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(super) struct ConstraintOptions {
    /// File with a JSON Schema that the answer fits
    #[arg(long, value_name = "FILE")]
    json_schema: Option<PathBuf>,
    /// Regular expression that matches the whole answer
    #[arg(long, value_name = "R")]
    regex: Option<String>,
    /// File with a grammar of the answer: GBNF (.gbnf) or Lark (.lark)
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,
}

impl ConstraintOptions {
    /// The constraint that is asked for.
    pub(super) fn read(&self) -> Result<Option<Constraint>, Failure> {
        if let Some(path) = &self.json_schema {
            let schema = serde_json::from_str(&text(path)?)
                .map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))?;
            return Ok(Some(Constraint::JsonSchema(schema)));
        }
        if let Some(path) = &self.grammar {
            let text = text(path)?;
            let ending = path.extension().and_then(|ending| ending.to_str());
            return Ok(Some(match ending {
                Some("gbnf") => Constraint::Gbnf(text),
                Some("lark") => Constraint::Lark(text),
                _ => Constraint::grammar(&text),
            }));
        }
        Ok(self.regex.clone().map(Constraint::Regex))
    }
}

fn text(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))
}
