//! Compiled templates with a budget: instructions that make or read data are replaced or preceded.
//!
//! The engine counts instructions, but one instruction may double a text or search a long one, and
//! its operators are not Python's. So the operators become filters of `operators`, and what is
//! compared, stored or iterated over goes through a filter that charges for it. Long literal text is
//! written by the formatter, which charges, too. Invariant: each instruction's replacement takes from
//! the stack and leaves on it what the instruction does, and jumps lead to the start of a replacement.

use std::collections::HashSet;

use minijinja::Value;
use minijinja::machinery::Instruction as I;
use minijinja::machinery::{Instruction, Instructions};

use super::operators::names;
use super::source::Literals;

/// Longest literal text that is not charged for: fuel bounds how often it is written.
const FREE_LITERAL: usize = 16;
/// How many filters the engine finds once per template, by number.
const N_CACHED: u8 = 50;
/// The number of a filter that it looks up at each use.
const UNCACHED: u8 = u8::MAX;

/// `code` with its guards, and with the literals instead of the variables that stand for them.
pub(super) fn guarded<'s>(code: &Instructions<'s>, literals: &Literals) -> Instructions<'s> {
    let mut old: Vec<Instruction<'s>> = (0..).map_while(|at| code.get(at).cloned()).collect();
    let targets: HashSet<u32> = old
        .iter_mut()
        .filter_map(|instruction| target(instruction).copied())
        .collect();
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
        let is_harmless = match (before, instruction) {
            // An item of a loop is a part of what was checked.
            (Some(I::Iterate(_)), I::StoreLocal(_)) => true,
            // A short literal is found or compared at once, where nothing else can be on top.
            (Some(I::Lookup(name)), I::GetItem | I::Eq | I::Ne | I::In) => {
                literals.is_short(name) && !targets.contains(&at)
            }
            _ => false,
        };
        if is_harmless {
            steps.push((at, instruction.clone()));
        } else {
            let replacement = replacement(instruction, literals, first_id);
            steps.extend(replacement.into_iter().map(|step| (at, step)));
        }
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

/// Where an instruction may lead besides the next one.
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

/// What stands in the place of one instruction.
fn replacement<'s>(
    instruction: &Instruction<'s>,
    literals: &Literals,
    first_id: u8,
) -> Vec<Instruction<'s>> {
    let filter = |name: &'static str, n_args| {
        let position = names::ALL.iter().position(|other| *other == name);
        let id = position.map_or(UNCACHED, |position| first_id + position as u8);
        let id = if id < N_CACHED { id } else { UNCACHED };
        I::ApplyFilter(name, Some(n_args), id)
    };
    let same = || instruction.clone();
    match instruction {
        I::Lookup(name) => vec![literals.get(name).map_or_else(same, I::LoadConst)],
        I::EmitRaw(text) if text.len() > FREE_LITERAL => {
            vec![I::LoadConst(Value::from(*text)), I::Emit]
        }
        I::Add => vec![filter(names::ADD, 2)],
        I::Sub => vec![filter(names::SUB, 2)],
        I::Mul => vec![filter(names::MUL, 2)],
        I::Rem => vec![filter(names::MOD, 2)],
        I::StringConcat => vec![filter(names::CONCAT, 2)],
        I::GetItem => vec![filter(names::ITEM, 2)],
        I::Slice => vec![filter(names::SLICE, 4)],
        // A tag has too few tokens for more pairs than this.
        I::BuildMap(n) => vec![filter(names::MAP, 2 * *n as u16)],
        I::StoreLocal(_) => vec![filter(names::KEEP, 1), same()],
        I::SetAttr(_) => vec![I::Swap, filter(names::KEEP_INSIDE, 1), I::Swap, same()],
        I::PushLoop(_) => vec![filter(names::ITERATE, 1), same()],
        // The value on top is compared, searched or, by calling a loop, iterated over again.
        I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte | I::In => {
            vec![filter(names::WALK, 1), same()]
        }
        I::CompareAndPreserve(_) | I::FastRecurse | I::CallFunction("loop", _) => {
            vec![filter(names::WALK, 1), same()]
        }
        _ => vec![same()],
    }
}
