//! What the model file decides, and a drawing without one cannot know.
//!
//! Without a file a made-up model is drawn. A choice that follows from a file's key or tensors is then told
//! as the definition has it, with what is drawn for it; but where layers choose differently, each kind of
//! layer is drawn with its own choice and its condition.

use std::collections::BTreeSet;

use crate::arch::expr::Expr;
use crate::arch::{ArchDef, Instance, ParamSource, Resolved};
use crate::plan::Unit;

use super::build::Maker;
use super::variants::conditionals;

/// What an expression depends on, through derived parameters too.
#[derive(Default)]
pub(super) struct Needs {
    /// Parameters and options.
    pub(super) names: BTreeSet<String>,
    /// The texts of all expressions on the way.
    pub(super) texts: Vec<String>,
}

impl Needs {
    /// What `expr` depends on.
    pub(super) fn of(def: &ArchDef, expr: &Expr) -> Self {
        let mut needs = Self::default();
        needs.add(def, expr);
        needs
    }

    fn add(&mut self, def: &ArchDef, expr: &Expr) {
        self.texts.push(expr.source().to_owned());
        let mut own = Vec::new();
        expr.for_each_name(&mut |name, _| own.push(name.to_owned()));
        for name in own {
            if !self.names.insert(name.clone()) {
                continue;
            }
            match def.params.get(&name).map(|param| &param.source) {
                Some(ParamSource::Derived(inner)) => self.add(def, inner),
                Some(ParamSource::Key { default, .. }) => {
                    default.iter().for_each(|inner| self.add(def, inner));
                }
                None => {}
            }
        }
    }

    /// Parameters that the file gives.
    pub(super) fn keys<'n>(&'n self, def: &'n ArchDef) -> impl Iterator<Item = &'n str> {
        let is_key = |name: &&String| {
            let source = def.params.get(*name).map(|param| &param.source);
            matches!(source, Some(ParamSource::Key { .. }))
        };
        self.names.iter().filter(is_key).map(String::as_str)
    }

    /// Whether the file's tensors matter.
    fn has_tensors(&self) -> bool {
        let asks = |text: &String| ["has(", "dim("].iter().any(|ask| text.contains(ask));
        self.texts.iter().any(asks)
    }
}

impl Maker<'_> {
    /// The text of a choice that the file decides; none if it is known.
    pub(super) fn open(&self, unit: &Unit, instance: &Instance, at: usize) -> Option<String> {
        let setting = &instance.options[at];
        let is_choice = !matches!(unit.options[at], Resolved::Int(_) | Resolved::Float(_));
        if !self.is_symbolic || !is_choice || setting.span.is_none() {
            return None;
        }
        let needs = Needs::of(self.def, &setting.expr);
        if needs.keys(self.def).next().is_none() && !needs.has_tensors() {
            return None;
        }
        let mut likes = self.plan.units().filter(|other| {
            let own = self.instance(&other.path);
            own.is_some_and(|own| std::ptr::eq(own, instance))
        });
        let is_same = likes.all(|like| like.options[at] == unit.options[at]);
        let text = setting.expr.as_name().unwrap_or(setting.expr.source());
        is_same.then(|| text.to_owned())
    }

    /// Parameters of the file by which layers differ.
    pub(super) fn order_from(&self) -> Vec<String> {
        let n_all = self.plan.layers.len();
        let all = conditionals(self.def, self.plan);
        let some = all.iter().filter(|c| 0 < c.n_layers && c.n_layers < n_all);
        let mut keys = BTreeSet::new();
        for conditional in some {
            let needs = Needs::of(self.def, conditional.when);
            keys.extend(needs.keys(self.def).map(str::to_owned));
        }
        keys.remove("block_count");
        keys.into_iter().collect()
    }
}
