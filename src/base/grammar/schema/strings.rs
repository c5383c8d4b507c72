//! Strings of a schema: their lengths, patterns and constants, and the expressions over their JSON texts.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use llguidance::derivre::{Regex, RegexAst, RegexBuilder};
use serde_json::Value;

use super::char_classes::ANY;
use super::pattern;

/// Work of one decision about an expression; the library counts it.
const FUEL: u64 = 200_000;
/// Maximum size of all patterns together, as expressions over JSON text, in bytes.
const MAX_BYTES: usize = 4 << 20;

pub(super) struct Pattern {
    pub(super) texts: RegexAst,
    matcher: RefCell<Option<Regex>>,
}

impl Pattern {
    /// The pattern, and the size of its expression; one that no value matches fits no string.
    fn of(source: &str) -> Result<(Self, usize), String> {
        let inner = pattern::to_json(source)?;
        let n_bytes = inner.as_ref().map_or(0, String::len);
        let texts = match inner {
            Some(inner) => RegexAst::Regex(format!("\"{inner}\"")),
            None => RegexAst::NoMatch,
        };
        let matcher = RefCell::default();
        Ok((Self { texts, matcher }, n_bytes))
    }

    pub(super) fn matches(&self, value: &str) -> Result<bool, String> {
        let mut matcher = self.matcher.borrow_mut();
        let matcher = match &mut *matcher {
            Some(matcher) => matcher,
            none => none.insert(regex(&self.texts)?),
        };
        Ok(matcher.is_match(&json(value)))
    }
}

#[derive(Default)]
pub(super) struct PatternCache {
    known: HashMap<String, Rc<Pattern>>,
    n_bytes: usize,
}

impl PatternCache {
    /// A pattern of ECMA-262; the same one for the same text.
    pub(super) fn of(&mut self, source: &str) -> Result<Rc<Pattern>, String> {
        if let Some(known) = self.known.get(source) {
            return Ok(Rc::clone(known));
        }
        let (pattern, n_bytes) = Pattern::of(source)?;
        self.n_bytes += n_bytes;
        if self.n_bytes > MAX_BYTES {
            return Err("the patterns are too large to be enforced".into());
        }
        let pattern = Rc::new(pattern);
        self.known.insert(source.to_owned(), Rc::clone(&pattern));
        Ok(pattern)
    }
}

/// A string as JSON text, as the expressions of patterns have it.
pub(super) fn json(value: &str) -> String {
    Value::from(value).to_string()
}

fn regex(texts: &RegexAst) -> Result<Regex, String> {
    let undecided = |_| "too complex to be decided".to_owned();
    let mut builder = RegexBuilder::new();
    let expression = builder.mk(texts).map_err(|error| error.to_string())?;
    builder
        .into_regex_limited(expression, FUEL)
        .map_err(undecided)
}

pub(super) fn is_empty(texts: &RegexAst) -> Result<bool, String> {
    match texts {
        RegexAst::NoMatch => Ok(true),
        RegexAst::Literal(_) | RegexAst::Regex(_) => Ok(false),
        _ => Ok(regex(texts)?.always_empty()),
    }
}

#[derive(Clone, Default)]
pub(super) struct StringRules {
    pub(super) constant: Option<Rc<str>>,
    pub(super) min: u32,
    pub(super) max: Option<u32>,
    pub(super) patterns: Vec<Rc<Pattern>>,
}

impl StringRules {
    /// The strings that fit both; `None` if their constants differ.
    pub(super) fn both(&self, other: &Self) -> Option<Self> {
        if let (Some(a), Some(b)) = (&self.constant, &other.constant)
            && a != b
        {
            return None;
        }
        let mut patterns = self.patterns.clone();
        for pattern in &other.patterns {
            if !patterns.iter().any(|known| Rc::ptr_eq(known, pattern)) {
                patterns.push(Rc::clone(pattern));
            }
        }
        Some(Self {
            constant: self.constant.clone().or_else(|| other.constant.clone()),
            min: self.min.max(other.min),
            max: self.max.into_iter().chain(other.max).min(),
            patterns,
        })
    }

    /// Whether no string fits. A constant that fits has no other conditions from then on.
    pub(super) fn settle(&mut self) -> Result<bool, String> {
        if let Some(constant) = self.constant.clone() {
            let n = constant.chars().count() as u64;
            let mut fits = n >= self.min.into() && self.max.is_none_or(|max| n <= max.into());
            for pattern in &self.patterns {
                fits = fits && pattern.matches(&constant)?;
            }
            *self = Self {
                constant: Some(constant),
                ..Self::default()
            };
            return Ok(!fits);
        }
        Ok(self.max.is_some_and(|max| max < self.min) || is_empty(&self.texts())?)
    }

    pub(super) fn texts(&self) -> RegexAst {
        if let Some(constant) = &self.constant {
            return RegexAst::Literal(json(constant));
        }
        let mut all: Vec<_> = self
            .patterns
            .iter()
            .map(|pattern| pattern.texts.clone())
            .collect();
        if self.min > 0 || self.max.is_some() {
            let max = self.max.map_or(String::new(), |max| max.to_string());
            all.push(RegexAst::Regex(format!("\"{ANY}{{{},{max}}}\"", self.min)));
        }
        match all.len() {
            0 => RegexAst::Regex(format!("\"{ANY}*\"")),
            1 => all.remove(0),
            _ => RegexAst::And(all),
        }
    }
}
