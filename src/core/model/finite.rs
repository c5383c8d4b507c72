//! Finds the first value of a pass that is not a finite number.
//!
//! Logits are checked where they are used. If they are not finite, the same tokens run again, alone and without a
//! cache, with all values captured, to find the first such value. Called by the engine and `bench logits`.

use std::fmt;

use super::batch::Batch;
use super::cache::SequenceId;
use super::error::{Error, Result};
use super::lifecycle::Model;
use super::named_value::NamedValue;
use super::options::Options;

/// Maximum number of tokens that are run again, because all their values are stored at once.
const MAX_TOKENS: usize = 4096;

/// The first value of a computation that is not a finite number.
#[derive(Clone, Debug, PartialEq)]
pub struct NotFinite {
    /// The path of the value, such as `layers.3.attn.q`.
    pub path: String,
    /// Index of the first such element, from 0, with the fastest dimension first.
    pub index: usize,
    /// The element: NaN or infinity.
    pub found: f32,
    /// Index of its token, from 0, if the value has a row for each token.
    pub token: Option<usize>,
}

impl NotFinite {
    /// The first such value in the order of computation. Minus infinity is no fault, because masks contain it.
    pub fn first_of(values: &[NamedValue]) -> Option<Self> {
        values.iter().find_map(|value| {
            let elements = &value.elements;
            if is_finite(elements) {
                return None;
            }
            let index = elements
                .iter()
                .position(|e| e.is_nan() || *e == f32::INFINITY)?;
            let n_tokens = value.shape.last().filter(|_| value.is_per_token);
            let row = n_tokens.map(|n| (elements.len() / (*n).max(1) as usize).max(1));
            Some(Self {
                path: value.path.clone(),
                index,
                found: elements[index],
                token: row.map(|row| index / row),
            })
        })
    }
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = if self.found.is_nan() {
            "NaN"
        } else {
            "infinity"
        };
        write!(
            f,
            "`{}` is the first value that is not finite: {found}",
            self.path
        )?;
        match self.token {
            Some(token) => write!(f, " at token {token}"),
            None => Ok(()),
        }
    }
}

/// Whether no element is NaN or plus infinity. Minus infinity marks masked elements.
pub fn is_finite(elements: &[f32]) -> bool {
    // Chunks without an early exit compile to vector instructions.
    let mut parts = elements.chunks(1024);
    parts.all(|part| part.iter().fold(true, |all, e| all & (*e < f32::INFINITY)))
}

impl Model {
    /// The first value that is not finite when these tokens of a sequence run in one pass, alone and without a
    /// cache.
    ///
    /// # Errors
    /// There are too many tokens, memory for all values is missing, or a computation fails.
    pub fn first_not_finite(
        &self,
        sequence: SequenceId,
        tokens: &[u32],
    ) -> Result<Option<NotFinite>> {
        if tokens.len() > MAX_TOKENS {
            return Err(Error::Batch {
                found: format!("{} tokens", tokens.len()),
                expected: format!("at most {MAX_TOKENS}"),
            });
        }
        let source = self.sources.of(sequence);
        let options = Options {
            n_ctx: 0,
            n_seqs: 1,
            n_checkpoints: 0,
            n_batch: tokens.len().max(source.len()),
            n_outputs: 0,
            deterministic: false,
            capture: true,
            ..self.options.clone()
        };
        let mut captured = Self::of_loaded(
            self.plan.clone(),
            self.loaded.clone(),
            self.adapters.clone(),
            options,
        )?;
        match source.as_rows() {
            Some(rows) => captured.set_source_rows(sequence, rows)?,
            None if self.reads_source() => captured.set_source(sequence, &source.tokens)?,
            None => {}
        }
        let mut batch = Batch::default();
        for (position, token) in (0..).zip(tokens) {
            batch.push(*token, sequence, position, true);
        }
        captured.forward(&batch)?;
        Ok(NotFinite::first_of(&captured.values()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_is_named_with_its_token_and_masks_are_no_fault() {
        let value = |path: &str, elements: &[f32], is_per_token| NamedValue {
            path: path.into(),
            shape: vec![2, elements.len() as u64 / 2],
            is_per_token,
            elements: elements.into(),
        };
        let values = [
            value("a", &[1.0, f32::NEG_INFINITY, 0.0, 2.0], true),
            value("b", &[1.0, 2.0, 3.0, f32::INFINITY], true),
            value("c", &[f32::NAN; 4], false),
        ];
        let found = NotFinite::first_of(&values).expect("there is one");
        assert_eq!(
            (found.path.as_str(), found.index, found.token),
            ("b", 3, Some(1))
        );
        assert_eq!(
            found.to_string(),
            "`b` is the first value that is not finite: infinity at token 1"
        );
        let found = NotFinite::first_of(&values[2..]).expect("there is one");
        assert_eq!(
            found.to_string(),
            "`c` is the first value that is not finite: NaN"
        );
        assert_eq!(NotFinite::first_of(&values[..1]), None);
    }

    #[test]
    fn one_element_among_many_is_found() {
        let mut row = vec![0.5; 5000];
        assert!(is_finite(&row) && is_finite(&[]));
        row[4097] = f32::NAN;
        assert!(!is_finite(&row));
    }
}
