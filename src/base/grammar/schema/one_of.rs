//! `oneOf`: whether a value that one option allows can fit another one. Only options that exclude each other are
//! enforced, because a grammar has no "but not".

use std::collections::HashSet;

use llguidance::derivre::RegexAst;

use super::super::Error;
use super::alternatives::{ArrayRules, Object, SchemaSet, ValueType};
use super::reachable::{ReachableValues, Variant};
use super::read::schema_error;
use super::strings::is_empty;

const MAX_DEPTH: usize = 8;
const MAX_PAIRS: usize = 1 << 21;

pub(super) fn check(values: &mut ReachableValues<'_>, nodes: &[SchemaSet]) -> Result<(), Error> {
    let mut pairs = OptionComparison {
        values,
        apart: HashSet::new(),
        n: 0,
    };
    for node in nodes {
        let ways = pairs.values.ways(node)?;
        let tagged = ways
            .iter()
            .filter(|way| !way.alternative.options.is_empty());
        let tagged: Vec<&Variant> = tagged.filter(|way| pairs.values.ends(way)).collect();
        for (i, a) in tagged.iter().enumerate() {
            for b in &tagged[i + 1..] {
                let Some((group, one, other)) = a.alternative.rivals(&b.alternative) else {
                    continue;
                };
                if !(pairs.apart(a, b, 0)? && pairs.apart(b, a, 0)?) {
                    let message = format!(
                        "the options {one} and {other} may fit the same value, which cannot be enforced; `anyOf` can"
                    );
                    return Err(schema_error(
                        &pairs.values.schemas.groups[group as usize].clone(),
                        message,
                    ));
                }
            }
        }
    }
    Ok(())
}

struct OptionComparison<'v, 'a> {
    values: &'v mut ReachableValues<'a>,
    /// Values of which none is in both.
    apart: HashSet<(SchemaSet, SchemaSet)>,
    n: usize,
}

impl OptionComparison<'_, '_> {
    /// Whether no value that is written one way fits the other, by the specification: there, an object may have
    /// properties that nothing names.
    fn apart(&mut self, written: &Variant, other: &Variant, depth: usize) -> Result<bool, Error> {
        self.values.schemas.in_time()?;
        self.n += 1;
        if self.n > MAX_PAIRS {
            return Err(schema_error("", "`oneOf` has too many options"));
        }
        let undecided = |message: String| schema_error("", message);
        Ok(match (&written.alternative.kind, &other.alternative.kind) {
            (ValueType::Null, ValueType::Null) => false,
            (ValueType::Bool(a), ValueType::Bool(b)) => a != b,
            (ValueType::Number(a), ValueType::Number(b)) => a.both(b).is_empty(),
            (ValueType::Text(a), ValueType::Text(b)) => match (&a.constant, &b.constant) {
                (Some(a), Some(b)) => a != b,
                _ => is_empty(&RegexAst::And(vec![a.texts(), b.texts()])).map_err(undecided)?,
            },
            (ValueType::ArrayRules(a), ValueType::ArrayRules(b)) => {
                self.arrays_apart(a, b, depth)?
            }
            (ValueType::ObjectRules(_), ValueType::ObjectRules(b)) => {
                self.objects_apart(written, b, depth)?
            }
            _ => true,
        })
    }

    fn nodes_apart(
        &mut self,
        written: &SchemaSet,
        other: &SchemaSet,
        depth: usize,
    ) -> Result<bool, Error> {
        let pair = (written.clone(), other.clone());
        if self.apart.contains(&pair) {
            return Ok(true);
        }
        if depth == MAX_DEPTH || other.is_empty() || written == other {
            return Ok(false);
        }
        let (a, b) = (self.values.ways(written)?, self.values.ways(other)?);
        for a in a.iter() {
            for b in b.iter() {
                if !self.apart(a, b, depth + 1)? {
                    return Ok(false);
                }
            }
        }
        self.apart.insert(pair);
        Ok(true)
    }

    fn arrays_apart(
        &mut self,
        a: &ArrayRules,
        b: &ArrayRules,
        depth: usize,
    ) -> Result<bool, Error> {
        let is_short = |a: &ArrayRules, b: &ArrayRules| a.max.is_some_and(|max| max < b.min);
        if is_short(a, b) || is_short(b, a) {
            return Ok(true);
        }
        // All items after the longer prefix are the same.
        let n = a.min.max(b.min) as usize;
        for i in 0..n.min(a.prefix.len().max(b.prefix.len()) + 1) {
            if self.nodes_apart(a.item(i), b.item(i), depth)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn objects_apart(
        &mut self,
        written: &Variant,
        other: &Object,
        depth: usize,
    ) -> Result<bool, Error> {
        let Some(fields) = &written.fields else {
            return Ok(false);
        };
        let is_required = |name: &str| other.required.iter().any(|known| **known == *name);
        for (name, node, needed) in &fields.named {
            if !needed && !is_required(name) {
                continue;
            }
            let theirs = ReachableValues::property(other, name)
                .map_err(|message| schema_error("", message))?;
            if self.nodes_apart(node, &theirs, depth)? {
                return Ok(true);
            }
        }
        let named = |name: &str| fields.named.iter().any(|(known, ..)| **known == *name);
        let missing = other.required.iter().any(|name| !named(name));
        let n_max = fields.named.len() as u32;
        Ok(fields.free.is_empty() && (missing || other.min > n_max))
    }
}
