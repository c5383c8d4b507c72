//! Tied tensors: output heads that are the token embedding.
//!
//! A tied tensor may also be stored. A copy of the embedding is left out. A tensor that differs from the embedding was
//! trained, whatever the configuration states, and is used. The comparison reads both tensors from their files and ends
//! at the first difference.

use crate::arch::expr::Value;
use lab_base::weights::safetensors::{Checkpoint, StoredTensor};

use super::apply::{MapApplication, RuleAt, StoredSource, StoredSources};
use super::definition::TensorOrigin;
use super::packed::Packing;
use super::recipe::read;

/// The ending with which names without one are compared.
const ENDING: &str = ".weight";
/// Number of elements of different types that are compared at a time.
const CHUNK: usize = 1 << 16;

impl MapApplication<'_> {
    /// Whether a tensor whose `when` is false is stored and differs from that of `else`. An equal tensor is recorded as
    /// used.
    pub(super) fn is_untied(&self, of: RuleAt<'_, '_>, tied_to: &str) -> Result<bool, String> {
        let Some(own) = self.sources(of)? else {
            return Ok(false);
        };
        let rules = of.group.tensors.iter();
        let rules = rules.filter(|other| {
            let name = &other.name.value;
            name == tied_to || name.strip_suffix(ENDING) == Some(tied_to)
        });
        let mut found = None;
        for rule in rules {
            found = found.or(self.sources(RuleAt { rule, ..of })?);
        }
        let found = found.ok_or_else(|| format!("no stored tensor is `{tied_to}`"))?;
        if self.are_equal(&own, &found)? {
            let names = own.into_iter().map(|source| source.name);
            self.used.borrow_mut().extend(names);
            return Ok(false);
        }
        let (name, other) = (&own[0].name, &found[0].name);
        if self.has_no_place(&of.rule.name.value) {
            return Err(format!(
                "`{name}` differs from `{other}`, and {} has no weight for it",
                self.def.name
            ));
        }
        tracing::warn!(
            "`{name}` differs from `{other}`, which the configuration ties it to; the stored `{name}` is used"
        );
        Ok(true)
    }

    /// Whether the definition excludes the weight from its head.
    fn has_no_place(&self, name: &str) -> bool {
        let weights = self.def.head.iter().flat_map(|head| &head.unit.weights);
        let mut own = weights.filter(|weight| weight.tensor.strip_suffix(ENDING) == Some(name));
        own.any(|weight| weight.when.as_literal() == Some(&Value::Bool(false)))
    }

    /// Checks that a tensor whose `when` holds is stored. In a model that contains a text model a missing tensor causes
    /// only a warning: such a model ties its head by its own key or by the default of its class, whatever the text
    /// model's configuration states.
    pub(super) fn is_there(&self, of: RuleAt<'_, '_>, tied_to: &str) -> Result<bool, String> {
        let (None, TensorOrigin::Of(made)) = (self.sources(of)?, &of.rule.made) else {
            return Ok(true);
        };
        let stored = made.parts.first().map_or("", |part| &part.from.value);
        if self.map.is_part {
            tracing::warn!(
                "the folder has no `{stored}`, and its configuration does not tie it; `{tied_to}` is used instead"
            );
            return Ok(true);
        }
        let when = of.rule.when.as_ref();
        let reason = when.map(|when| format!("{when}{}", self.found(when)));
        Err(format!(
            "the folder has no `{stored}`, and it is not tied to `{tied_to}`: {}",
            reason.unwrap_or_default()
        ))
    }

    fn sources<'r>(&'r self, of: RuleAt<'r, '_>) -> StoredSources<'r> {
        let TensorOrigin::Of(made) = &of.rule.made else {
            return Ok(None);
        };
        let ending = match of.rule.name.value.contains('.') {
            true => "",
            false => ENDING,
        };
        self.stored(RuleAt { ending, ..of }, &made.parts, 0..1)
    }

    /// Whether stored tensors have the same elements.
    fn are_equal(&self, a: &[StoredSource<'_>], b: &[StoredSource<'_>]) -> Result<bool, String> {
        if a.len() != b.len() {
            return Ok(false);
        }
        for (a, b) in a.iter().zip(b) {
            let is_plain = |source: &StoredSource<'_>| matches!(source.packing, Packing::Plain);
            if !is_plain(a) || !is_plain(b) || !is_same(self.checkpoint, a.stored, b.stored)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn is_same(checkpoint: &Checkpoint, a: &StoredTensor, b: &StoredTensor) -> Result<bool, String> {
    if a.shape != b.shape {
        return Ok(false);
    }
    let (left, right) = (bytes_of(checkpoint, a)?, bytes_of(checkpoint, b)?);
    if a.dtype == b.dtype {
        return Ok(left == right);
    }
    let (size_a, size_b) = (a.dtype.bitsize() / 8, b.dtype.bitsize() / 8);
    let mut chunks = left
        .chunks(CHUNK * size_a)
        .zip(right.chunks(CHUNK * size_b));
    Ok(chunks.all(|(left, right)| {
        let mut elements = left.chunks(size_a).zip(right.chunks(size_b));
        elements.all(|(x, y)| read(a.dtype, x) == read(b.dtype, y))
    }))
}

pub(super) fn bytes_of<'c>(
    checkpoint: &'c Checkpoint,
    stored: &StoredTensor,
) -> Result<&'c [u8], String> {
    let file = checkpoint.files().nth(stored.file);
    let bytes = file.and_then(|file| file.get(stored.offset..stored.offset + stored.bytes));
    bytes.ok_or_else(|| "a file is missing, or shorter than it was".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hf::Maps;
    use crate::hf::definition::TensorRule;

    /// Name of the head's weight in the architecture.
    const HEAD: &str = "output";
    /// The keys by which a map decides whether the head is tied to the embedding.
    const TIES: [&str; 3] = ["tie_word_embeddings", "is_tied", "weight_tying"];

    /// Whether an expression decides by one of these keys.
    fn asks(expr: &crate::arch::expr::Expr) -> bool {
        let mut asks = false;
        expr.for_each_name(&mut |name, _| asks |= TIES.contains(&name));
        asks
    }

    /// A head for which a map has no rule is an unused tensor, which is refused.
    #[test]
    fn every_map_says_what_becomes_of_a_stored_head() {
        let maps = Maps::open(&[]).expect("sound maps");
        let mut silent = Vec::new();
        let mut n_heads = 0;
        let named = [HEAD];
        for (name, _, map) in maps.sound(&named) {
            let groups = map.chain().flat_map(|map| &map.groups);
            let tensors = groups.flat_map(|group| &group.tensors);
            let is_head = |rule: &&TensorRule| {
                let name = &rule.name.value;
                name.strip_suffix(ENDING).unwrap_or(name) == HEAD
            };
            let rules: Vec<&TensorRule> = tensors.filter(is_head).collect();
            n_heads += rules.len();
            let mut conditions = map.chain().flat_map(|map| &map.rules);
            let is_required = conditions.any(|rule| asks(&rule.holds));
            let is_ruled = rules
                .iter()
                .any(|rule| rule.otherwise.is_some() && rule.when.as_ref().is_some_and(asks));
            if !rules.is_empty() && !is_ruled && !is_required {
                silent.push(name.clone());
            }
        }
        assert!(n_heads > 100, "{n_heads}");
        assert!(
            silent.is_empty(),
            "no rule for a head that is tied: {silent:?}"
        );
    }
}
