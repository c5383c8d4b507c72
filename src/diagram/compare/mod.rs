//! Two drawings as one tree: what is the same in both, what differs, what only one of them has.
//!
//! Sequences are aligned ([`align`]): kinds of layers, sublayers, what stands around a block, weights,
//! operations. Every part, weight and operation of both drawings is in the tree exactly once, matched or
//! on one side. A difference has a [`Level`]: another computation is told apart from other numbers and
//! other names. The order of the two does not matter: exchanging them exchanges the sides and nothing
//! else. It is data: `svg` draws it, [`summary`] tells it.

mod align;
mod features;
mod findings;
mod layers;
mod list;
mod order;
mod parts;
mod pattern;
mod phrases;
mod places;
mod words;

pub use findings::{Finding, Told};
pub use list::{model_rows, summary};
pub(super) use phrases::present;
pub(super) use words::{choice_words, gives};

use super::{Branch, Drawing, Kind, Op, Part, PartOption, Slot, Weight};

/// Something of A, of B, or of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair<T> {
    /// In A.
    pub a: Option<T>,
    /// In B.
    pub b: Option<T>,
}

impl<T> Pair<T> {
    /// In both.
    pub fn both(a: T, b: T) -> Self {
        Self {
            a: Some(a),
            b: Some(b),
        }
    }

    /// What the two sides have, if both have it.
    pub fn matched(&self) -> Option<(&T, &T)> {
        self.a.as_ref().zip(self.b.as_ref())
    }

    /// That of A, or else that of B.
    pub fn either(&self) -> Option<&T> {
        self.a.as_ref().or(self.b.as_ref())
    }

    /// What one side has and the other has not.
    pub fn only(&self) -> Option<(Side, &T)> {
        match (&self.a, &self.b) {
            (Some(a), None) => Some((Side::A, a)),
            (None, Some(b)) => Some((Side::B, b)),
            _ => None,
        }
    }

    /// With the sides exchanged.
    #[must_use]
    pub fn swapped(self) -> Self {
        Self {
            a: self.b,
            b: self.a,
        }
    }

    /// The same of each side.
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> Pair<U> {
        Pair {
            a: self.a.map(&mut f),
            b: self.b.map(&mut f),
        }
    }
}

/// One of the two that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The first.
    A,
    /// The second.
    B,
}

impl Side {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// How much a difference means, least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// None.
    Same,
    /// Something is called otherwise.
    Names,
    /// A size or a factor is another one.
    Numbers,
    /// Something else is computed.
    Computation,
}

/// Two drawings, aligned.
#[derive(Clone, Debug)]
pub struct Comparison<'d> {
    /// The first.
    pub a: &'d Drawing,
    /// The second.
    pub b: &'d Drawing,
    /// Before the layers.
    pub begin: Vec<PartPair<'d>>,
    /// Kinds of layers.
    pub kinds: Vec<KindPair<'d>>,
    /// Behind the layers.
    pub end: Vec<PartPair<'d>>,
    /// What differs, in words.
    findings: Vec<Finding>,
}

/// Kinds of layers that correspond.
#[derive(Clone, Debug)]
pub struct KindPair<'d> {
    /// The kinds.
    pub kind: Pair<&'d Kind>,
    /// What they do, in order.
    pub sublayers: Vec<Sublayer<'d>>,
    /// If only one side has the kind: how it differs from the one of that side that is most like it,
    /// which is `a` of each pair.
    pub unlike: Vec<Sublayer<'d>>,
}

/// A branch with what stands around it.
#[derive(Clone, Debug)]
pub struct Sublayer<'d> {
    /// Where it is.
    pub at: Pair<Place<'d>>,
    /// Norms and block, in order.
    pub parts: Vec<PartPair<'d>>,
    /// What differs in how they are put together.
    pub wiring: Vec<Wire>,
    /// Whether it comes at another place of the order.
    pub is_moved: bool,
}

/// A branch within a layer.
#[derive(Clone, Copy, Debug)]
pub struct Place<'d> {
    /// Its slot.
    pub slot: &'d Slot,
    /// The place of the slot.
    pub slot_at: usize,
    /// The branch.
    pub branch: &'d Branch,
}

/// A difference in the wiring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wire {
    /// Of what.
    pub what: Wiring,
    /// In A, in words or as a value; empty for nothing.
    pub a: String,
    /// In B.
    pub b: String,
    /// How much it means.
    pub level: Level,
}

/// What a layer is wired by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// What is read.
    Input,
    /// What the block reads besides.
    Side,
    /// A factor of the result.
    Factor,
    /// How the result meets the stream.
    Join,
    /// Under which name it is saved.
    Saved,
    /// Which other block reads the same and is added to it.
    Beside,
}

/// Where a part stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Before the block.
    Before,
    /// The block, or a stage of the model.
    Block,
    /// Behind the block, before it meets the stream.
    Behind,
    /// On the stream, behind the addition.
    Stream,
}

/// Parts that correspond.
#[derive(Clone, Debug)]
pub struct PartPair<'d> {
    /// The parts.
    pub part: Pair<&'d Part>,
    /// Where they stand.
    pub role: Pair<Role>,
    /// Choices that differ.
    pub options: Vec<OptionPair<'d>>,
    /// Weights, in order.
    pub weights: Vec<WeightPair<'d>>,
    /// Operations, in order.
    pub ops: Vec<OpPair<'d>>,
    /// Whether equal operations read other ones.
    pub is_rewired: bool,
}

/// A choice that differs.
#[derive(Clone, Copy, Debug)]
pub struct OptionPair<'d> {
    /// In A.
    pub a: &'d PartOption,
    /// In B.
    pub b: &'d PartOption,
    /// How much it means.
    pub level: Level,
}

/// Weights that correspond.
#[derive(Clone, Copy, Debug)]
pub struct WeightPair<'d> {
    /// The weights.
    pub weight: Pair<&'d Weight>,
    /// How much their difference means.
    pub level: Level,
}

/// Operations that correspond.
#[derive(Clone, Copy, Debug)]
pub struct OpPair<'d> {
    /// The operations.
    pub op: Pair<&'d Op>,
    /// How much their difference means.
    pub level: Level,
    /// Whether it comes at another place of the order.
    pub is_moved: bool,
}

impl PartPair<'_> {
    /// The most that differs.
    pub fn level(&self) -> Level {
        let roles = self.role.matched().is_some_and(|(a, b)| a != b);
        if self.part.matched().is_none() || roles || self.is_rewired {
            return Level::Computation;
        }
        let options = self.options.iter().map(|o| o.level);
        let weights = self.weights.iter().map(|w| w.level);
        let ops = self.ops.iter().map(|o| o.level);
        let all = options.chain(weights).chain(ops);
        all.max().unwrap_or(Level::Same)
    }

    fn swap(&mut self) {
        self.part = self.part.swapped();
        self.role = self.role.swapped();
        for option in &mut self.options {
            std::mem::swap(&mut option.a, &mut option.b);
        }
        for weight in &mut self.weights {
            weight.weight = weight.weight.swapped();
        }
        for op in &mut self.ops {
            op.op = op.op.swapped();
        }
    }
}

impl Sublayer<'_> {
    /// The most that differs.
    pub fn level(&self) -> Level {
        if self.is_moved || self.at.matched().is_none() {
            return Level::Computation;
        }
        let wiring = self.wiring.iter().map(|wire| wire.level);
        let parts = self.parts.iter().map(PartPair::level);
        wiring.chain(parts).max().unwrap_or(Level::Same)
    }

    fn swap(&mut self) {
        self.at = self.at.swapped();
        self.parts.iter_mut().for_each(PartPair::swap);
        for wire in &mut self.wiring {
            std::mem::swap(&mut wire.a, &mut wire.b);
        }
    }
}

impl KindPair<'_> {
    /// The most that differs.
    pub fn level(&self) -> Level {
        if self.kind.matched().is_none() {
            return Level::Computation;
        }
        let all = self.sublayers.iter().map(Sublayer::level);
        all.max().unwrap_or(Level::Same)
    }
}

impl<'d> Comparison<'d> {
    /// Aligns two drawings.
    pub fn new(a: &'d Drawing, b: &'d Drawing) -> Self {
        // Ties are decided by order, so the two are always aligned in the same one.
        let mut aligned = match order::order(a, b).is_le() {
            true => layers::compare(a, b),
            false => layers::compare(b, a).swapped(),
        };
        aligned.findings = findings::findings(&aligned);
        aligned
    }

    /// With A and B exchanged.
    #[must_use]
    pub fn swapped(mut self) -> Self {
        std::mem::swap(&mut self.a, &mut self.b);
        let stages = self.begin.iter_mut().chain(&mut self.end);
        stages.for_each(PartPair::swap);
        for kind in &mut self.kinds {
            kind.kind = kind.kind.swapped();
            kind.sublayers.iter_mut().for_each(Sublayer::swap);
        }
        for finding in &mut self.findings {
            finding.told.swap();
        }
        self
    }

    /// Every pair of parts, in the order of execution.
    pub fn parts(&self) -> impl Iterator<Item = &PartPair<'d>> {
        let sublayers = self.kinds.iter().flat_map(|kind| &kind.sublayers);
        let parts = sublayers.flat_map(|sublayer| &sublayer.parts);
        self.begin.iter().chain(parts).chain(&self.end)
    }

    /// What differs, in words, what means most first.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// What the two are called, in one line each: their names, and letters where those are the same.
    pub fn names(&self) -> [String; 2] {
        let tidy = |drawing: &Drawing| drawing.name.replace(char::is_control, " ");
        let names = [self.a, self.b].map(tidy);
        match names[0] == names[1] {
            true => ["A", "B"].map(|side| format!("{} ({side})", names[0])),
            false => names,
        }
    }

    /// The number of the pair that a kind of a side is in, counted from 1.
    pub fn number(&self, side: Side, kind: usize) -> usize {
        let drawing = self.drawing(side);
        let letter = drawing.kinds.get(kind).map(|kind| &kind.letter);
        let of_side = |pair: &KindPair<'d>| match side {
            Side::A => pair.kind.a,
            Side::B => pair.kind.b,
        };
        let at = self
            .kinds
            .iter()
            .position(|pair| of_side(pair).map(|kind| &kind.letter) == letter);
        at.map_or(0, |at| at + 1)
    }

    /// One of the two.
    pub fn drawing(&self, side: Side) -> &'d Drawing {
        match side {
            Side::A => self.a,
            Side::B => self.b,
        }
    }
}
