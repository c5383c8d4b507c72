//! What a user writes for a model: `owner/repo`, with a quantisation or a file and with a revision.

use std::fmt;
use std::str::FromStr;

use crate::HubError;

/// `[hf.co/]owner/repo[:QUANT | :FILE.gguf][@revision]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName {
    /// `owner/repo`.
    pub repo: String,
    /// A quantisation (`Q4_K_M`), or the path of a GGUF file in the repository.
    pub variant: Option<String>,
    /// A branch, tag or commit; none: `main`.
    pub revision: Option<String>,
}

/// What may stand before a name.
const PREFIXES: [&str; 5] = [
    "https://huggingface.co/",
    "https://hf.co/",
    "huggingface.co/",
    "hf.co/",
    "hf://",
];

impl ModelName {
    /// The branch, tag or commit.
    #[must_use]
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }

    /// Whether a text has the form of a name, so that it is worth asking a Hub: not a path (`./x`, `/x`, `~/x`, `x.gguf`) and with one slash.
    #[must_use]
    pub fn is_name(text: &str) -> bool {
        let is_address = PREFIXES.iter().any(|p| text.starts_with(p));
        is_address || (!text.starts_with(['.', '/', '~', '\\']) && text.parse::<Self>().is_ok())
    }
}

impl FromStr for ModelName {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let refuse = |reason| HubError::Name {
            name: text.to_owned(),
            reason,
        };
        let short = PREFIXES
            .iter()
            .find_map(|p| text.strip_prefix(p))
            .unwrap_or(text)
            .trim_end_matches('/');
        let (owner, rest) = short
            .split_once('/')
            .ok_or_else(|| refuse("it has no owner"))?;
        // A revision may hold slashes (`refs/pr/3`), a file of a variant folders.
        let end_of_repo = rest.find([':', '@']).unwrap_or(rest.len());
        let (name, mut rest) = rest.split_at(end_of_repo);
        for part in [owner, name] {
            let is_plain = part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
            if part.is_empty()
                || part.len() > 96
                || !is_plain
                || part.starts_with(['.', '-'])
                || part.contains("..")
                || part.contains("--")
            {
                return Err(refuse(
                    "owner and repository are letters, digits, `-`, `_` and `.`",
                ));
            }
        }
        let (mut variant, mut revision) = (None, None);
        while let Some(kind) = rest.chars().next() {
            let other = if kind == ':' { '@' } else { ':' };
            let value = &rest[1..];
            let end = value.find(other).unwrap_or(value.len());
            let slot = if kind == ':' {
                &mut variant
            } else {
                &mut revision
            };
            let value = &value[..end];
            if value.is_empty()
                || value.starts_with('/')
                || value
                    .split('/')
                    .any(|p| p.is_empty() || p == "." || p == "..")
            {
                return Err(refuse(
                    "what follows `:` or `@` is empty or not a plain path",
                ));
            }
            if !value
                .chars()
                .all(|c| c.is_ascii_graphic() && !matches!(c, '?' | '#' | '%' | '\\' | ':' | '@'))
            {
                return Err(refuse(
                    "what follows `:` or `@` has characters that names do not have",
                ));
            }
            if slot.replace(value.to_owned()).is_some() {
                return Err(refuse("`:` or `@` stands there twice"));
            }
            rest = &rest[1 + end..];
        }
        Ok(Self {
            repo: format!("{owner}/{name}"),
            variant,
            revision,
        })
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        for (mark, part) in [(':', &self.variant), ('@', &self.revision)] {
            if let Some(part) = part {
                write!(f, "{mark}{part}")?;
            }
        }
        Ok(())
    }
}
