//! Dependencies between the parameters of a definition: cycles, and chains too long to be evaluated.
//!
//! Every parameter is visited once, without recursion: chains may be as long as a file.

use std::collections::{BTreeMap, BTreeSet};

use super::definition::{Param, ParamSource};
use super::diagnostic::{Diagnostic, MANY};
use super::expr::Expr;

pub(super) fn param_exprs(param: &Param) -> impl Iterator<Item = &Expr> {
    match &param.source {
        ParamSource::Derived(expr) => [Some(expr), None],
        ParamSource::Key { default, synth, .. } => [default.as_ref(), synth.as_ref()],
    }
    .into_iter()
    .flatten()
}

/// The names, and those of the parameters from which they follow by some expressions of each.
pub(super) fn reached<'p, E: IntoIterator<Item = &'p Expr>>(
    params: &'p BTreeMap<String, Param>,
    names: impl IntoIterator<Item = String>,
    exprs: impl Fn(&'p Param) -> E,
) -> BTreeSet<String> {
    let mut open: Vec<String> = names.into_iter().collect();
    let mut reached = BTreeSet::new();
    while let Some(name) = open.pop() {
        for expr in params.get(&name).into_iter().flat_map(&exprs) {
            if !reached.contains(&name) {
                expr.for_each_name(&mut |other, _| open.push(other.to_owned()));
            }
        }
        reached.insert(name);
    }
    reached
}

/// Maximum length of a chain of parameters that follow from each other: evaluation recurses through it.
const MAX_CHAIN: usize = 32;

#[derive(Default)]
struct Chains<'a> {
    /// The number of parameters of the longest chain that starts with each parameter.
    lengths: BTreeMap<&'a str, usize>,
    /// The first parameter of each cycle that was found, and the path from it back to itself.
    cycles: Vec<(&'a str, Vec<&'a str>)>,
}

pub(super) fn problems(params: &BTreeMap<String, Param>) -> Vec<Diagnostic> {
    let span = |name: &str| params[name].span.clone();
    let chains = Chains::of(params);
    let mut problems = Vec::new();
    for (name, cycle) in chains.cycles {
        let message = format!("`{name}` depends on itself: {}", cycle.join(" -> "));
        problems.push(Diagnostic::new(span(name).unwrap_or_default(), message));
    }
    let lengths = chains.lengths.into_iter();
    let long = lengths.filter_map(|(name, n)| Some((n, name, span(name)?)));
    // Only the shortest chain is reported: longer ones that depend on it need no message.
    let first = long
        .filter(|(n, ..)| *n > MAX_CHAIN)
        .min_by_key(|(n, ..)| *n);
    problems.extend(first.map(|(n, name, span)| {
        let message = format!(
            "`{name}` follows from {n} parameters that follow from each other, expected at most {MAX_CHAIN}"
        );
        Diagnostic::new(span, message)
    }));
    problems
}

impl<'a> Chains<'a> {
    fn of(params: &'a BTreeMap<String, Param>) -> Self {
        let users = |name: &str| {
            let mut names = Vec::new();
            for expr in params.get(name).into_iter().flat_map(param_exprs) {
                expr.for_each_name(&mut |other, _| {
                    names.extend(params.get_key_value(other).map(|(name, _)| name.as_str()));
                });
            }
            names
        };
        let mut found = Self::default();
        for start in params.keys().map(String::as_str) {
            // The path to a parameter; each entry has the dependencies of a parameter that are not visited yet.
            let mut way: Vec<(&str, Vec<&str>)> = Vec::new();
            let mut on_way = BTreeSet::new();
            let mut next = (!found.lengths.contains_key(start)).then_some(start);
            loop {
                if let Some(name) = next.take() {
                    on_way.insert(name);
                    way.push((name, users(name)));
                }
                let Some((name, left)) = way.last_mut() else {
                    break;
                };
                let name = *name;
                match left.pop() {
                    Some(other) if on_way.contains(other) => {
                        let names = way.iter().map(|(name, _)| *name);
                        let mut circle: Vec<&str> =
                            names.skip_while(|name| *name != other).collect();
                        // The cycle starts with a name of the definition, so the message is the same wherever the cycle
                        // was entered.
                        let is_common = |name: &str| params[name].span.is_none();
                        let first =
                            (0..circle.len()).min_by_key(|i| (is_common(circle[*i]), circle[*i]));
                        circle.rotate_left(first.unwrap_or(0));
                        circle.push(circle[0]);
                        if found.cycles.len() < MANY {
                            found.cycles.push((circle[0], circle));
                        }
                    }
                    Some(other) if found.lengths.contains_key(other) => {}
                    Some(other) => next = Some(other),
                    None => {
                        let lengths = users(name)
                            .into_iter()
                            .filter_map(|other| found.lengths.get(other));
                        let length = 1 + lengths.max().copied().unwrap_or(0);
                        found.lengths.insert(name, length);
                        on_way.remove(name);
                        way.pop();
                    }
                }
            }
        }
        found
    }
}
