//! The state of planning: the parts that are planned so far, and all problems.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;

use super::facts::{FileFacts, LayerScope};
use super::{CachePlan, TensorPlan, Unit};
use crate::arch::expr::{Expr, Scope, Value};
use crate::arch::{Diagnostic, Diagnostics, Span};

/// Number of problems after which planning stops.
const MAX_PROBLEMS: usize = 1 << 14;

pub(super) struct Planner<'a> {
    pub(super) facts: &'a FileFacts<'a>,
    pub(super) tensors: Vec<TensorPlan>,
    pub(super) tensor_index: HashMap<String, usize>,
    pub(super) norms: Vec<Unit>,
    pub(super) acts: Vec<Unit>,
    pub(super) ropes: Vec<Unit>,
    pub(super) caches: Vec<CachePlan>,
    pub(super) selections: Vec<Unit>,
    pub(super) problems: Vec<String>,
    /// The keys of reported problems, to report each once.
    reported: HashSet<String>,
    /// Number of elements of the rows of each tap.
    pub(super) taps: HashMap<String, u64>,
    /// Number of elements of the rows of each tap that layers that read the source saved.
    pub(super) source_taps: HashMap<String, u64>,
    /// Paths of the blocks whose keys are made of a tap in `source_taps`.
    pub(super) source_keys: HashSet<String>,
    /// Number of hidden states of a token after the parts planned so far.
    pub(super) states: u64,
    /// The adapters in the file, between which tokens switch.
    pub(super) adapters: Option<FileAdapters>,
}

/// The adapters in the file.
#[derive(Clone, Copy)]
pub(super) struct FileAdapters {
    pub(super) rank: u64,
    /// Number of adapters, including the one of texts without a switch.
    pub(super) count: u64,
}

impl<'a> Planner<'a> {
    pub(super) fn new(facts: &'a FileFacts<'a>) -> Self {
        Self {
            facts,
            tensors: Vec::new(),
            tensor_index: HashMap::new(),
            norms: Vec::new(),
            acts: Vec::new(),
            ropes: Vec::new(),
            caches: Vec::new(),
            selections: Vec::new(),
            problems: Vec::new(),
            reported: HashSet::new(),
            taps: HashMap::new(),
            source_taps: HashMap::new(),
            source_keys: HashSet::new(),
            states: 1,
            adapters: None,
        }
    }

    pub(super) fn problem<T>(&mut self, message: String) -> Option<T> {
        if !self.has_too_many_problems() && self.reported.insert(message.clone()) {
            self.problems.push(message);
        }
        None
    }

    /// Whether there are too many problems to continue.
    pub(super) fn has_too_many_problems(&self) -> bool {
        self.problems.len() >= MAX_PROBLEMS
    }

    /// Reports a problem with its place in the definition, once for each `key`.
    pub(super) fn problem_at<T>(&mut self, span: &Span, key: &str, message: &str) -> Option<T> {
        if !self.has_too_many_problems() && self.reported.insert(format!("{}:{key}", span.start)) {
            let text = self.facts.def.text.as_ref();
            let problem = vec![Diagnostic::new(span.clone(), message)];
            let shown = Diagnostics::new(&text.path, &text.source, problem).to_string();
            self.problems.push(shown.replace('\n', "\n  "));
        }
        None
    }

    pub(super) fn number(&mut self, scope: &LayerScope<'_>, name: &str) -> Option<u64> {
        match self.facts.param(name, scope, false) {
            Ok(Value::Int(n)) if n > 0 => Some(n as u64),
            Ok(other) => self.problem(format!("`{name}` is {other}, expected a positive integer")),
            Err(error) => self.problem(error),
        }
    }

    /// The value of an expression; if it has none, a problem that starts with `what` is reported.
    pub(super) fn evaluate(
        &mut self,
        expr: &Expr,
        scope: &dyn Scope,
        what: &dyn Display,
    ) -> Option<Value> {
        match expr.evaluate(scope) {
            Ok(value) => Some(value),
            // A missing key is missing for all expressions: it is reported once.
            Err(error) => match self.facts.missing_key(&error) {
                Some(key) if !self.reported.insert(key.clone()) => None,
                _ => self.problem(format!("{what}: {error}")),
            },
        }
    }
}

/// The index of an item that equals this one; if there is none, the item is added.
pub(super) fn index_of<T: PartialEq>(items: &mut Vec<T>, item: T) -> usize {
    if let Some(at) = items.iter().position(|other| *other == item) {
        return at;
    }
    items.push(item);
    items.len() - 1
}
