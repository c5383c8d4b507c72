//! Adds a budget to compiled templates: instructions that create or read data are replaced or preceded by filters.
//!
//! The engine counts instructions, but one instruction may double a text or search a long one, and its operators are
//! not Python's. So operators become filters of `operators`, and values that are compared, stored or iterated over go
//! through a filter that charges for them. Long literal text is written by the formatter, which also charges.
//! Invariant: each replacement takes the same values from the stack and leaves the same ones as the instruction, and
//! jumps lead to the start of a replacement.

use std::collections::HashSet;

use minijinja::Value;
use minijinja::machinery::Instruction as I;
use minijinja::machinery::{Instruction, Instructions};

use super::operators::NAMES;
use super::preprocess::UNFOLDED;

/// Maximum length of literal text that is not charged for: fuel bounds how often it is written.
const FREE_LITERAL: usize = 16;
/// Number of filters that the engine can cache per template, by their number.
const N_CACHED: u8 = 50;
/// The number of a filter that the engine looks up at each use.
const UNCACHED: u8 = u8::MAX;

/// The guarded instructions, without the variables between operators and their operands.
pub(super) fn guarded<'s>(code: &Instructions<'s>) -> Instructions<'s> {
    let mut old: Vec<Instruction<'s>> = (0..).map_while(|at| code.get(at).cloned()).collect();
    let targets = old.iter_mut().filter_map(|step| target(step).copied());
    let targets: HashSet<u32> = targets.collect();
    let ids = old.iter().filter_map(|instruction| match instruction {
        I::ApplyFilter(_, _, id) if *id != UNCACHED => Some(id + 1),
        _ => None,
    });
    let first_id = ids.max().unwrap_or(0);

    let mut starts = Vec::with_capacity(old.len() + 1);
    let mut steps = Vec::with_capacity(old.len() * 2);
    for (at, instruction) in (0..).zip(&old) {
        starts.push(steps.len() as u32);
        let before = old[..at as usize].last();
        let replacement = match (before, instruction) {
            (_, I::Lookup(UNFOLDED)) | (Some(I::Lookup(UNFOLDED)), _) => Vec::new(),
            // An item of a loop is part of a value that was checked.
            (Some(I::Iterate(_)), I::StoreLocal(_)) => vec![instruction.clone()],
            // A short literal is found or compared at once, if no jump leads here with another value on top.
            (Some(I::LoadConst(literal)), I::GetItem | I::Eq | I::Ne | I::In)
                if is_short(literal) && !targets.contains(&at) =>
            {
                vec![instruction.clone()]
            }
            _ => replacement(instruction, first_id),
        };
        steps.extend(replacement.into_iter().map(|step| (at, step)));
    }
    starts.push(steps.len() as u32);

    let mut out = Instructions::new(code.name(), code.source());
    for (at, mut step) in steps {
        if let Some(target) = target(&mut step) {
            *target = starts[*target as usize];
        }
        match (code.get_span(at), code.get_line(at)) {
            (Some(span), _) => out.add_with_span(step, span),
            (None, Some(line)) => out.add_with_line(step, u16::try_from(line).unwrap_or(u16::MAX)),
            (None, None) => out.add(step),
        };
    }
    out
}

fn target<'a>(instruction: &'a mut Instruction<'_>) -> Option<&'a mut u32> {
    match instruction {
        I::Iterate(target)
        | I::Jump(target)
        | I::JumpIfFalse(target)
        | I::JumpIfFalseOrPop(target)
        | I::JumpIfTrueOrPop(target)
        | I::BuildMacro(_, target, _) => Some(target),
        _ => None,
    }
}

/// Whether a literal is compared, or finds its item, in constant time: a short text or a small number, because items of
/// texts are found by counting.
fn is_short(literal: &Value) -> bool {
    match literal.as_str() {
        Some(text) => text.len() < 64,
        None => literal.as_i64().is_some_and(|int| int < 1000),
    }
}

/// Whether a comparison needs an order; its type has no public name.
fn is_order(operator: &impl std::fmt::Debug) -> bool {
    ["Gt", "Gte", "Lt", "Lte"].contains(&format!("{operator:?}").as_str())
}

fn replacement<'s>(instruction: &Instruction<'s>, first_id: u8) -> Vec<Instruction<'s>> {
    let filter = |name: &'static str, n_args| {
        let position = NAMES.split(' ').position(|other| other == name);
        let id = position.map(|position| first_id.saturating_add(position as u8));
        let id = id.filter(|id| *id < N_CACHED).unwrap_or(UNCACHED);
        I::ApplyFilter(name, Some(n_args), id)
    };
    let same = || instruction.clone();
    match instruction {
        I::EmitRaw(text) if text.len() > FREE_LITERAL => {
            vec![I::LoadConst(Value::from(*text)), I::Emit]
        }
        I::Add => vec![filter("__add", 2)],
        I::Mul => vec![filter("__mul", 2)],
        I::Rem => vec![filter("__mod", 2)],
        I::StringConcat => vec![filter("__concat", 2)],
        I::GetItem => vec![filter("__item", 2)],
        I::Slice => vec![filter("__slice", 4)],
        // The limit on tokens in a tag bounds the number of pairs.
        I::BuildMap(n) => vec![filter("__map", 2 * *n as u16)],
        I::StoreLocal(_) => vec![filter("__keep", 1), same()],
        I::SetAttr(_) => vec![I::Swap, filter("__keep_inside", 1), I::Swap, same()],
        I::PushLoop(_) => vec![filter("__iterate", 1), same()],
        I::Gt => vec![filter("__gt", 2)],
        I::Gte => vec![filter("__gte", 2)],
        I::Lt => vec![filter("__lt", 2)],
        I::Lte => vec![filter("__lte", 2)],
        // The operands of a chain stay on the stack, so their order is checked in a list of both.
        I::CompareAndPreserve(operator) if is_order(operator) => vec![
            I::BuildList(Some(2)),
            filter("__ordered", 1),
            I::UnpackList(2),
            I::Swap,
            same(),
        ],
        // The value on top is compared, searched or, for a call of a loop, iterated over again.
        I::Eq
        | I::Ne
        | I::In
        | I::CompareAndPreserve(_)
        | I::FastRecurse
        | I::CallFunction("loop", _) => vec![filter("__walk", 1), same()],
        _ => vec![same()],
    }
}
