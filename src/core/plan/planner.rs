//! The state of planning: the parts that are planned so far, and all problems.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;

use super::facts::{FileFacts, LayerScope};
use super::{CachePlan, TensorPlan, Unit};
use crate::arch::expr::{Expr, Scope, Value};
use crate::arch::{ContractUse, Diagnostic, Diagnostics, OF_FILE, Resource, Setting, Span};

/// Number of problems after which planning stops.
const MAX_PROBLEMS: usize = 1 << 14;

/// A problem was reported, so what it belongs to has no plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reported;

/// A planned part, unless a problem of it was reported.
pub(super) type Planned<T> = Result<T, Reported>;

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

    pub(super) fn report(&mut self, message: String) {
        if !self.has_too_many_problems() && self.reported.insert(message.clone()) {
            self.problems.push(message);
        }
    }

    pub(super) fn problem<T>(&mut self, message: String) -> Planned<T> {
        self.report(message);
        Err(Reported)
    }

    /// Whether there are too many problems to continue.
    pub(super) fn has_too_many_problems(&self) -> bool {
        self.problems.len() >= MAX_PROBLEMS
    }

    /// Reports a problem with its place in the definition, once for each `key`.
    pub(super) fn problem_at<T>(&mut self, span: &Span, key: &str, message: &str) -> Planned<T> {
        if !self.has_too_many_problems() && self.reported.insert(format!("{}:{key}", span.start)) {
            let text = self.facts.def.text.as_ref();
            let problem = vec![Diagnostic::new(span.clone(), message)];
            let shown = Diagnostics::new(&text.path, &text.source, problem).to_string();
            self.problems.push(shown.replace('\n', "\n  "));
        }
        Err(Reported)
    }

    pub(super) fn number(&mut self, scope: &LayerScope<'_>, name: &str) -> Planned<u64> {
        match self.facts.param(name, scope, false) {
            Ok(Value::Int(n)) if n > 0 => Ok(n as u64),
            Ok(other) => self.problem(format!("`{name}` is {other}, expected a positive integer")),
            Err(error) => self.problem(error),
        }
    }

    /// The name that a setting gives: that of a norm or a mix.
    pub(super) fn name(
        &mut self,
        setting: &Setting,
        kind: Resource,
        (path, scope): (&str, &LayerScope<'_>),
    ) -> Planned<String> {
        match self.evaluate(&setting.expr, scope, &path)? {
            Value::Str(name) => Ok(name),
            other => self.problem(format!(
                "{path}: expected the name of a {}, found `{other}`",
                kind.name()
            )),
        }
    }

    /// The resource of this name: a declared one, or the default with the weights of that name.
    pub(super) fn named(&mut self, kind: Resource, name: &str, path: &str) -> Planned<ContractUse> {
        let declared = |name: &str| {
            let name = name.strip_prefix(OF_FILE).unwrap_or(name);
            self.facts.def.resource(kind, name)
        };
        let Some(instance) = declared(name).or_else(|| declared("default")) else {
            return self.problem(format!("{path}: there is no `[{}.default]`", kind.name()));
        };
        let mut instance = instance.clone();
        for weight in &mut instance.weights {
            weight.tensor = weight.tensor.replace("{name}", name);
        }
        Ok(instance)
    }

    /// The value of an expression; if it has none, a problem that starts with `what` is reported.
    pub(super) fn evaluate(
        &mut self,
        expr: &Expr,
        scope: &dyn Scope,
        what: &dyn Display,
    ) -> Planned<Value> {
        match expr.evaluate(scope) {
            Ok(value) => Ok(value),
            // A missing key is missing for all expressions: it is reported once.
            Err(error) => match self.facts.missing_key(&error) {
                Some(key) if !self.reported.insert(key.clone()) => Err(Reported),
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
