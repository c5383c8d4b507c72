//! The passages of a request: the tokens of texts and of pairs of texts, and how they are cut.
//!
//! A pair is tokenized as in transformers: both texts with the special tokens of the vocabulary. For a model with a
//! reranking template both become one text. A text that occurs in many pairs is tokenized once. Not here: the results
//! of the model.

use crate::served::ServedModel;
use lab_base::tokenizer;
use lab_base::tokenizer::{Frame, Tokenizer};
use lab_core::engine::Passage;

use super::fields::fields;
use super::input::{TextOrTokens, check_ids};
use crate::http::error::{Error, invalid, quoted, refuse};

fields! {
    pub(crate) struct TextTruncation {
        /// Whether a text that does not fit is cut rather than refused (TEI).
        truncate: Option<bool>,
        /// The side that is cut: `right` only (TEI).
        truncation_direction: Option<String>,
        /// Number of tokens, special ones included, to which a text is cut; -1 = as many as fit (vLLM).
        truncate_prompt_tokens: Option<i64>,
    }
}

impl TextTruncation {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let side = self.truncation_direction.as_deref().unwrap_or("right");
        if side.eq_ignore_ascii_case("right") {
            return Ok(());
        }
        let param = "truncation_direction";
        let message = format!("`{param}` is `{}`, expected `right`", quoted(side));
        Err(Error::unsupported(param, message))
    }

    /// Maximum number of tokens per passage, if passages are cut.
    fn limit(&self, n_ctx: usize) -> Result<Option<usize>, Error> {
        let param = "truncate_prompt_tokens";
        match (self.truncate_prompt_tokens, self.truncate) {
            (None, Some(true)) | (Some(-1), _) => Ok(Some(n_ctx)),
            (None, _) => Ok(None),
            (Some(n), _) => match usize::try_from(n) {
                Ok(n) if (1..=n_ctx).contains(&n) => Ok(Some(n)),
                _ => refuse(param, format!(" is {n}, expected -1 or 1 to {n_ctx}")),
            },
        }
    }
}

/// A placeholder in a template for pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Placeholder {
    First,
    Second,
}

/// The fixed tokens of all pairs, each part with the placeholder after it.
type TemplateParts = Vec<(Vec<u32>, Option<Placeholder>)>;

pub(crate) struct PassageTokenizer<'a> {
    served: &'a ServedModel,
    frame: Frame,
    parts: TemplateParts,
    n_ctx: usize,
    limit: Option<usize>,
}

pub(crate) struct FirstText(Vec<u32>);

fn fault(field: &str, error: &tokenizer::Error) -> Error {
    Error::invalid_value(field, format!("`{field}`: {error}"))
}

impl<'a> PassageTokenizer<'a> {
    /// A reader for a model, which cuts texts as `truncation` says. `field` is the field that holds them.
    pub(crate) fn new(
        served: &'a ServedModel,
        truncation: &TextTruncation,
        field: &str,
    ) -> Result<Self, Error> {
        let tokenizer = served.handle.tokenizer();
        let n_ctx = served.handle.limits().n_ctx;
        let limit = truncation.limit(n_ctx)?;
        let template = served.rerank_template.as_deref();
        // Without a tokenizer, texts are refused where they are read, and token ids are accepted.
        let frame = tokenizer.frame().unwrap_or_default();
        let parts = match template {
            Some(template) => template_parts(template, tokenizer),
            None => Ok(framed(&frame)),
        };
        let parts = parts.map_err(|error| fault(field, &error))?;
        Ok(Self {
            served,
            frame,
            parts,
            n_ctx,
            limit,
        })
    }

    /// Refuses a limit that is too small for the special tokens.
    fn check_limit(&self, n_special: usize) -> Result<(), Error> {
        match self.limit {
            Some(limit) if limit < n_special => {
                let param = "truncate_prompt_tokens";
                let message = format!("{limit} tokens do not hold the {n_special} special tokens");
                invalid(param, message)
            }
            _ => Ok(()),
        }
    }

    /// Number of tokens of a pair in addition to those of its texts.
    fn n_special(&self) -> usize {
        self.parts.iter().map(|(tokens, _)| tokens.len()).sum()
    }

    fn tokenizer(&self) -> &'a Tokenizer {
        self.served.handle.tokenizer()
    }

    /// A passage of one text, after `prefix`. `adds_special`: it gets special tokens. `field` is the field that holds
    /// it.
    pub(crate) fn single(
        &self,
        (prefix, input): (&str, TextOrTokens),
        adds_special: bool,
        field: &str,
    ) -> Result<Passage, Error> {
        let (mut tokens, n_after) = match input {
            TextOrTokens::Tokens(tokens) => {
                check_ids(field, &tokens, self.served)?;
                (tokens, 0)
            }
            TextOrTokens::Text(text) => {
                let text = format!("{prefix}{text}");
                let tokens = self.tokenizer().encode(&text, adds_special, false);
                let Frame { start, end, .. } = &self.frame;
                let (n_before, n_after) = match adds_special {
                    true => (start.len(), end.len()),
                    false => (0, 0),
                };
                self.check_limit(n_before + n_after)?;
                (tokens.map_err(|error| fault(field, &error))?, n_after)
            }
        };
        if let Some(limit) = self.limit.filter(|limit| tokens.len() > *limit) {
            let n_cut = tokens.len() - limit;
            let end = tokens.len() - n_after;
            tokens.drain(end.saturating_sub(n_cut)..end);
        }
        Ok(Passage {
            tokens,
            second: None,
        })
    }

    /// The tokens of a text, without special ones.
    fn inner(&self, text: &str, field: &str) -> Result<Vec<u32>, Error> {
        let tokens = self.tokenizer().encode(text, true, false);
        let tokens = tokens.map_err(|error| fault(field, &error))?;
        Ok(self.frame.inner(&tokens).to_vec())
    }

    pub(crate) fn first(&self, text: &str, field: &'static str) -> Result<FirstText, Error> {
        self.check_limit(self.n_special())?;
        let mut tokens = self.inner(text, field)?;
        match self.limit {
            Some(limit) => tokens.truncate(limit),
            None if tokens.len() > self.n_ctx => {
                let error = Error::ContextLength {
                    found: tokens.len(),
                    limit: self.n_ctx,
                    param: field,
                    most: None,
                };
                return Err(error.with_trained_length(self.served));
            }
            None => {}
        }
        Ok(FirstText(tokens))
    }

    /// A pair of texts; `field` is the field of the second.
    pub(crate) fn pair(
        &self,
        first: &FirstText,
        second: &str,
        field: &str,
    ) -> Result<Passage, Error> {
        let second = self.inner(second, field)?;
        let (n_first, n_second) = self.kept(first.0.len(), second.len());
        let (first, second) = (&first.0[..n_first], &second[..n_second]);
        let (mut tokens, mut at) = (Vec::new(), None);
        for (part, hole) in &self.parts {
            tokens.extend_from_slice(part);
            match hole {
                Some(Placeholder::First) => tokens.extend_from_slice(first),
                Some(Placeholder::Second) => {
                    at.get_or_insert(tokens.len());
                    tokens.extend_from_slice(second);
                }
                None => {}
            }
        }
        // A template makes one text of both, so there is no second part.
        let at = at.filter(|_| self.served.rerank_template.is_none());
        Ok(Passage { tokens, second: at })
    }

    /// Numbers of tokens that are kept of the two texts of a pair; the longer one is cut first.
    fn kept(&self, n_first: usize, n_second: usize) -> (usize, usize) {
        let Some(limit) = self.limit else {
            return (n_first, n_second);
        };
        let holes = |hole| {
            self.parts
                .iter()
                .filter(|(_, of)| *of == Some(hole))
                .count()
        };
        let most = holes(Placeholder::First)
            .max(holes(Placeholder::Second))
            .max(1);
        let n = limit.saturating_sub(self.n_special()) / most;
        longest_first(n_first, n_second, n)
    }
}

/// The lengths of two texts, cut to `n` together; the longer one is cut first.
fn longest_first(a: usize, b: usize, n: usize) -> (usize, usize) {
    let half = n / 2;
    if a + b <= n {
        (a, b)
    } else if a <= half {
        (a, n - a)
    } else if b <= half {
        (n - b, b)
    } else if a > b {
        (n - half, half)
    } else {
        (half, n - half)
    }
}

/// The fixed tokens of a pair between the special tokens of a vocabulary.
fn framed(frame: &Frame) -> TemplateParts {
    vec![
        (frame.start.clone(), Some(Placeholder::First)),
        (frame.between.clone(), Some(Placeholder::Second)),
        (frame.end.clone(), None),
    ]
}

fn template_parts(
    template: &str,
    tokenizer: &Tokenizer,
) -> Result<TemplateParts, tokenizer::Error> {
    let part = |(text, hole)| Ok((tokenizer.encode(text, false, true)?, hole));
    texts_of(template).map(part).collect()
}

/// The fixed texts of a template, each with the placeholder after it.
fn texts_of(template: &str) -> impl Iterator<Item = (&str, Option<Placeholder>)> {
    const HOLES: [(&str, Placeholder); 2] = [
        ("{query}", Placeholder::First),
        ("{document}", Placeholder::Second),
    ];
    let mut rest = Some(template);
    std::iter::from_fn(move || {
        let text = rest?;
        let found = HOLES
            .iter()
            .filter_map(|(mark, hole)| Some((text.find(mark)?, mark.len(), *hole)));
        match found.min_by_key(|(at, ..)| *at) {
            Some((at, len, hole)) => {
                rest = Some(&text[at + len..]);
                Some((&text[..at], Some(hole)))
            }
            None => {
                rest = None;
                Some((text, None))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_cut_at_its_holes_once() {
        let parts: Vec<_> = texts_of("a{query}b{document}").collect();
        let (first, second) = (Some(Placeholder::First), Some(Placeholder::Second));
        assert_eq!(parts, [("a", first), ("b", second), ("", None)]);
        let parts: Vec<_> = texts_of("plain").collect();
        assert_eq!(parts, [("plain", None)]);
    }

    #[test]
    fn the_longer_text_is_cut_first() {
        // The results of `LongestFirst` in the library `tokenizers`.
        for (lengths, n, kept) in [
            ((3, 4), 7, (3, 4)),
            ((3, 9), 8, (3, 5)),
            ((9, 3), 8, (5, 3)),
            ((9, 8), 7, (4, 3)),
            ((8, 9), 7, (3, 4)),
            ((5, 5), 4, (2, 2)),
            ((5, 0), 0, (0, 0)),
        ] {
            assert_eq!(longest_first(lengths.0, lengths.1, n), kept, "{lengths:?}");
        }
    }

    #[test]
    fn texts_are_cut_if_that_is_asked_for() {
        let of = |truncate, truncate_prompt_tokens| TextTruncation {
            truncate,
            truncation_direction: None,
            truncate_prompt_tokens,
        };
        let limit = |of: &TextTruncation| of.limit(100).ok();
        assert_eq!(limit(&of(None, None)), Some(None));
        assert_eq!(limit(&of(Some(false), None)), Some(None));
        assert_eq!(limit(&of(Some(true), None)), Some(Some(100)));
        assert_eq!(limit(&of(None, Some(-1))), Some(Some(100)));
        assert_eq!(limit(&of(Some(true), Some(7))), Some(Some(7)));
        for bad in [0, -2, 101, i64::MIN] {
            assert_eq!(limit(&of(None, Some(bad))), None, "{bad}");
        }
    }
}
