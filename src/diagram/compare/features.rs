//! How alike sublayers and kinds of layers are: what they have in common of all they are made of.
//!
//! A measure for the alignment, not a verdict: names of slots count a little, sizes not at all.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::arch::StateSpec;
use crate::blocks::REGISTRY;
use crate::diagram::{Kind, Part};

use super::Place;
use super::layers::{chain, places};

/// A block of the same contract.
const SAME: u32 = 200;
/// Another block for the same purpose.
const ALIKE: u32 = 80;
/// Greatest share of what is in common.
const WHOLE: u32 = 200;
/// The same name of the slot.
const NAMED: u32 = 10;

/// Texts as numbers.
#[derive(Default)]
pub(super) struct Words<'d> {
    known: HashMap<[&'d str; 3], u32>,
}

impl<'d> Words<'d> {
    fn number(&mut self, text: [&'d str; 3]) -> u32 {
        let next = self.known.len() as u32;
        *self.known.entry(text).or_insert(next)
    }

    /// What a part is made of.
    fn part(&mut self, part: &'d Part, out: &mut Vec<u32>) {
        out.push(self.number(["part", part.kind, ""]));
        for option in &part.options {
            let value = match (option.is_number, option.is_off) {
                (false, _) => &option.value,
                (true, true) => "off",
                (true, false) => "on",
            };
            out.push(self.number(["option", &option.name, value]));
        }
        for weight in &part.weights {
            out.push(self.number(["weight", weight_key(part.kind, &weight.key), ""]));
        }
        for op in &part.ops {
            let first = op.ops.first().map_or("", String::as_str);
            out.push(self.number(["op", part.kind, first]));
        }
    }

    /// What a sublayer is made of, sorted.
    pub(super) fn sublayer(&mut self, place: &Place<'d>) -> Vec<u32> {
        let mut out = vec![self.number(["slot", &place.slot.name, ""])];
        for (_, part) in chain(place) {
            self.part(part, &mut out);
        }
        self.part(&place.branch.block, &mut out);
        out.sort_unstable();
        out
    }

    /// What a kind of layer is made of, sorted.
    pub(super) fn kind(&mut self, kind: &'d Kind) -> Vec<u32> {
        let places = places(kind);
        let mut out: Vec<u32> = places.iter().flat_map(|p| self.sublayer(p)).collect();
        out.sort_unstable();
        out
    }
}

/// The key of a weight; those of a norm are called by their tensors, and are its gain and its offset.
pub(super) fn weight_key<'k>(kind: &str, key: &'k str) -> &'k str {
    match (kind, key.ends_with(".bias")) {
        ("norm", true) => "bias",
        ("norm", false) => "weight",
        _ => key,
    }
}

/// What two sorted lists have in common, of [`WHOLE`].
pub(super) fn common(a: &[u32], b: &[u32]) -> u32 {
    let (mut i, mut j, mut n) = (0, 0, 0u32);
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        match x.cmp(y) {
            Ordering::Less => i += 1,
            Ordering::Greater => j += 1,
            Ordering::Equal => (i, j, n) = (i + 1, j + 1, n + 1),
        }
    }
    let all = a.len().max(b.len()).max(1) as u32;
    n * WHOLE / all
}

/// Whether a block looks at other positions, or has a hidden layer, or is something of its own.
fn purpose(contract: &'static str) -> &'static str {
    let found = REGISTRY.blocks.iter().find(|block| block.name == contract);
    let Some(block) = found else { return contract };
    if !matches!(block.state, StateSpec::None) {
        return "mixes positions";
    }
    match block.option("act") {
        Some(_) => "has a hidden layer",
        None => contract,
    }
}

/// How well two sublayers match; 0: not at all.
pub(super) fn score(a: &Place<'_>, b: &Place<'_>, in_common: u32) -> u32 {
    let kinds = [a, b].map(|place| place.branch.block.kind);
    let block = match kinds[0] == kinds[1] {
        true => SAME,
        false if purpose(kinds[0]) == purpose(kinds[1]) => ALIKE,
        false => return 0,
    };
    let named = if a.slot.name == b.slot.name { NAMED } else { 0 };
    block + in_common + named
}
