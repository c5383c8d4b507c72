//! A prompt with media: markers of media become their texts, and the places of their rows.

use serde::Deserialize;

use crate::layout::Piece;

/// What a prompt with media has besides them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PromptText {
    /// Text after the last medium.
    pub after_last: String,
    /// Text at the end.
    pub end: String,
}

/// A medium of a prompt.
#[derive(Clone, Copy, Debug)]
pub struct Medium<'a> {
    /// The text in whose place it stands.
    pub marker: &'a str,
    /// The token that holds the place of a row.
    pub row_token: &'a str,
    /// What stands there.
    pub layout: &'a [Piece],
}

/// The reason why media do not fit a prompt.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PromptError {
    /// The prompt has fewer markers than media.
    #[error("the prompt has {found} places for media, expected {expected}")]
    Missing {
        /// Places in the prompt.
        found: usize,
        /// Media.
        expected: usize,
    },
    /// The prompt has more markers than media.
    #[error("the prompt has a further `{0}`, which stands for no medium")]
    Further(String),
}

/// The prompt in which each medium, in the order of their places, is text and a token for each of its rows. `text` is what
/// else a prompt with media has. Row `i` of all media belongs to the `i`th of these tokens.
///
/// # Errors
/// The number of places is not that of media.
pub fn expand(
    prompt: &str,
    media: &[Medium<'_>],
    text: &PromptText,
) -> Result<String, PromptError> {
    let (mut out, mut rest) = (String::with_capacity(prompt.len()), prompt);
    for (found, medium) in media.iter().enumerate() {
        let Some((before, after)) = rest.split_once(medium.marker) else {
            let expected = media.len();
            return Err(PromptError::Missing { found, expected });
        };
        out.push_str(before);
        for piece in medium.layout {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Rows { rows, .. } => out.push_str(&medium.row_token.repeat(rows.len())),
            }
        }
        rest = after;
    }
    if let Some(medium) = media.iter().find(|medium| rest.contains(medium.marker)) {
        return Err(PromptError::Further(medium.marker.to_owned()));
    }
    if !media.is_empty() {
        out.push_str(&text.after_last);
    }
    out.push_str(rest);
    if !media.is_empty() {
        out.push_str(&text.end);
    }
    Ok(out)
}
