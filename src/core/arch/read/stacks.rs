//! Reads stacks, their slots, and the branches of slots.
//!
//! Invariant: names of slots and of branches are unique in their table.

use std::collections::BTreeMap;

use super::reader::DefinitionReader;
use crate::arch::definition::{Branch, BranchTokens, Join, Reads, Slot, Stack};
use crate::arch::diagnostic::{Diagnostic, Spanned};
use crate::arch::expr::Expr;
use crate::arch::table::{TableFields, TomlItem, ValueForm};

impl<'a> DefinitionReader<'a> {
    /// The stacks. `of_target` are the slots of a drafter's target.
    pub(super) fn stacks(
        &mut self,
        fields: &mut TableFields<'a>,
        of_target: Option<&[Slot]>,
    ) -> Vec<Stack> {
        let Some(item) =
            fields.take_required("stack", ValueForm::List(&ValueForm::Table("a stack")))
        else {
            self.report(0..0, "the definition has no `[[stack]]`");
            return Vec::new();
        };
        let mut stacks: Vec<Stack> = Vec::new();
        for (table, span) in self.tables(item, "stack") {
            let mut inner = TableFields::new(table, span.clone(), "a stack");
            let name = self.optional_text(&mut inner, "name");
            let prefix = self.optional_text(&mut inner, "prefix");
            let count = self.optional_expr(&mut inner, "count", ValueForm::Number);
            let il = self.optional_number(&mut inner, "il");
            let reads = self.choice(&mut inner, "reads", &Reads::NAMES);
            let slots_of = self.choice(&mut inner, "slots", &[("target", true)]);
            let slots = inner.take("slot", ValueForm::List(&ValueForm::Table("a slot")));
            let slots = match (slots, slots_of) {
                (Some(item), None) => self.slots(item),
                (None, Some(_)) => of_target.unwrap_or_default().to_vec(),
                (Some(item), Some(_)) => {
                    self.report(item.span(), "a stack has `slot` or `slots`, not both");
                    Vec::new()
                }
                (None, None) => {
                    self.report(
                        inner.span.clone(),
                        "a stack has at least one `[[stack.slot]]`",
                    );
                    Vec::new()
                }
            };
            self.finish(inner);
            stacks.push(Stack {
                name_span: name
                    .as_ref()
                    .map_or_else(|| span.clone(), |n| n.span.clone()),
                name: name.map_or_else(|| "layers".into(), |n| n.value),
                prefix_span: prefix.as_ref().map_or(span, |p| p.span.clone()),
                prefix: prefix.map_or_else(|| "blk.{il}.".into(), |p| p.value),
                count: count.unwrap_or_else(|| {
                    Expr::parse("n_layer", 0)
                        .expect("the default number of layers is an expression")
                }),
                il,
                reads: reads.unwrap_or(Reads::Tokens),
                slots,
                has_slots_of_target: slots_of.is_some(),
            });
        }
        stacks
    }

    fn slots(&mut self, item: TomlItem<'a>) -> Vec<Slot> {
        let (mut slots, mut names) = (Vec::new(), Names::default());
        for (table, span) in self.tables(item, "slot") {
            let mut fields = TableFields::new(table, span.clone(), "a slot");
            let name = self.optional_text(&mut fields, "name");
            let when = self.optional_expr(&mut fields, "when", ValueForm::Condition);
            let read = self.optional_name(&mut fields, "read");
            let write = self.optional_name(&mut fields, "write");
            let from = self.optional_text(&mut fields, "from");
            let pre = self.optional_name(&mut fields, "pre");
            let post = self.optional_name(&mut fields, "post");
            let after = self.optional_name(&mut fields, "after");
            let scale = self.optional_number(&mut fields, "scale");
            let join = self.choice(&mut fields, "join", &Join::NAMES);
            let branches = match fields.take_required("branch", ValueForm::List(&ValueForm::Branch))
            {
                Some(item) => self.branches(item),
                None => {
                    self.report(span.clone(), "a slot has at least one branch");
                    Vec::new()
                }
            };
            self.finish(fields);
            self.named_once(name.as_ref(), "slots", &names);
            let name = name
                .map(|n| n.value)
                .or_else(|| branches.first().map(|b| b.name.clone()));
            let name = names.unique(name.unwrap_or_default());
            slots.push(Slot {
                name,
                span,
                when,
                read,
                from,
                pre,
                branches,
                post,
                scale,
                join: join.unwrap_or(Join::Add),
                after,
                write,
            });
        }
        slots
    }

    fn branches(&mut self, item: TomlItem<'a>) -> Vec<Branch> {
        let (mut branches, mut names) = (Vec::new(), Names::default());
        for (table, span) in self.tables(item, "branch") {
            let mut fields = TableFields::new(table, span.clone(), "a branch");
            let name = self.optional_text(&mut fields, "name");
            let when = self.optional_expr(&mut fields, "when", ValueForm::Condition);
            let from = self.optional_text(&mut fields, "from");
            let side = self.optional_text(&mut fields, "side");
            let tokens = self.choice(&mut fields, "tokens", &BranchTokens::NAMES);
            let pre = self.optional_name(&mut fields, "pre");
            let post = self.optional_name(&mut fields, "post");
            let factor = self.optional_number(&mut fields, "factor");
            let save = self.optional_text(&mut fields, "save");
            let append = self.optional_text(&mut fields, "append");
            if let (Some(_), Some(append)) = (&save, &append) {
                self.report(
                    append.span.clone(),
                    "a branch has `save` or `append`, not both",
                );
            }
            let Some(block) = self.required_text(&mut fields, "block") else {
                continue;
            };
            let Some(contract) = self.registry.block(&block.value) else {
                let known = self.registry.blocks.iter().map(|c| c.name);
                self.problems.push(Diagnostic::unknown(
                    block.span,
                    "block",
                    &block.value,
                    known,
                ));
                continue;
            };
            fields.kind = contract.name;
            let Some(instance) = self.instance(fields, contract) else {
                continue;
            };
            self.named_once(name.as_ref(), "branches", &names);
            let name = names.unique(name.map_or_else(|| contract.name.to_owned(), |n| n.value));
            branches.push(Branch {
                name,
                when,
                tokens: tokens.unwrap_or(BranchTokens::All),
                from,
                side,
                pre,
                post,
                factor,
                appends: append.is_some(),
                save: append.or(save),
                block: instance,
            });
        }
        branches
    }

    /// Reports a name that is given twice, since two values would have one path.
    fn named_once(&mut self, name: Option<&Spanned<String>>, what: &str, names: &Names) {
        if let Some(name) = name
            && names.0.contains_key(&name.value)
        {
            self.report(
                name.span.clone(),
                format!("two {what} are named `{}`", name.value),
            );
        }
    }
}

/// The used names, each with the number that its next repetition gets.
#[derive(Default)]
struct Names(BTreeMap<String, usize>);

impl Names {
    /// The name if it is unused, otherwise the name with a number.
    fn unique(&mut self, name: String) -> String {
        let Some(next) = self.0.get(&name).copied() else {
            self.0.insert(name.clone(), 2);
            return name;
        };
        let free = |n: &usize| !self.0.contains_key(&format!("{name}_{n}"));
        let n = (next..).find(free).unwrap_or(next);
        let numbered = format!("{name}_{n}");
        self.0.insert(name, n + 1);
        self.0.insert(numbered.clone(), 2);
        numbered
    }
}
