//! Regular expressions as position automata, and the comparison of two of them on the same text.
//!
//! A position is an occurrence of a character class (Glushkov 1961). Two questions decide whether two expressions may
//! both be lexemes: can they match the same text, and with which bytes can one continue after the other has ended.
//! Where an answer is not exact, it reports a conflict.

use super::chars::{ByteSet, CharSet};
use super::parse::Expr;

/// An automaton without an initial state of its own.
#[derive(Clone, Debug, Default)]
pub(super) struct Automaton {
    classes: Vec<CharSet>,
    /// For each position, the positions that may follow it.
    follow: Vec<Vec<usize>>,
    first: Vec<usize>,
    last: Vec<usize>,
    pub(super) is_nullable: bool,
}

#[derive(Default)]
struct Part {
    first: Vec<usize>,
    last: Vec<usize>,
    is_nullable: bool,
}

impl Automaton {
    /// The automaton of an expression. Its rules are looked up in `bodies` and must not be recursive.
    pub(super) fn new(expr: &Expr, bodies: &[Expr]) -> Self {
        let mut this = Self::default();
        let part = this.add(expr, bodies);
        this.first = part.first;
        this.last = part.last;
        this.is_nullable = part.is_nullable;
        this
    }

    fn add(&mut self, expr: &Expr, bodies: &[Expr]) -> Part {
        match expr {
            Expr::Class(chars) => {
                let position = self.classes.len();
                self.classes.push(chars.clone());
                self.follow.push(Vec::new());
                Part {
                    first: vec![position],
                    last: vec![position],
                    is_nullable: false,
                }
            }
            Expr::Rule(rule) => self.add(&bodies[*rule], bodies),
            Expr::Alt(all) => {
                let mut out = Part::default();
                for part in all {
                    let part = self.add(part, bodies);
                    out.first.extend(part.first);
                    out.last.extend(part.last);
                    out.is_nullable |= part.is_nullable;
                }
                out
            }
            Expr::Seq(all) => {
                let mut out = empty();
                for part in all {
                    let part = self.add(part, bodies);
                    out = self.join(out, part);
                }
                out
            }
            Expr::Repeat(inner, min, max) => self.repeat(inner, *min, *max, bodies),
        }
    }

    fn repeat(&mut self, inner: &Expr, min: u32, max: Option<u32>, bodies: &[Expr]) -> Part {
        let mut out = empty();
        // Without a maximum, the last copy may follow itself.
        let copies = max.unwrap_or(min.max(1));
        for copy in 0..copies {
            let mut part = self.add(inner, bodies);
            if part.first.is_empty() {
                // Only the empty text: further copies add nothing, however many they are.
                return out;
            }
            if max.is_none() && copy + 1 == copies {
                self.link(&part.last, &part.first);
            }
            part.is_nullable |= copy >= min;
            out = self.join(out, part);
        }
        out
    }

    fn join(&mut self, mut left: Part, mut right: Part) -> Part {
        self.link(&left.last, &right.first);
        if left.is_nullable {
            left.first.extend(&right.first);
        }
        if right.is_nullable {
            right.last.extend(left.last);
        }
        Part {
            first: left.first,
            last: right.last,
            is_nullable: left.is_nullable && right.is_nullable,
        }
    }

    fn link(&mut self, from: &[usize], to: &[usize]) {
        for position in from {
            let follow = &mut self.follow[*position];
            follow.extend(to);
            follow.sort_unstable();
            follow.dedup();
        }
    }

    pub(super) fn leads(&self) -> ByteSet {
        self.leads_of(&self.first)
    }

    fn leads_of(&self, positions: &[usize]) -> ByteSet {
        let mut leads = ByteSet::default();
        for position in positions {
            leads.add(self.classes[*position].first_bytes());
        }
        leads
    }
}

fn empty() -> Part {
    Part {
        is_nullable: true,
        ..Part::default()
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Overlap {
    /// Whether some non-empty text matches both.
    pub(super) is_shared: bool,
    /// Bytes with which a match of the second may continue after a text that matches the first.
    pub(super) goes_on: ByteSet,
}

/// Compares two automata on all texts. Each step takes one from `work`; `None` if it runs out.
pub(super) fn overlap(left: &Automaton, right: &Automaton, work: &mut usize) -> Option<Overlap> {
    let width = right.classes.len();
    let mut seen = vec![false; left.classes.len().checked_mul(width)?];
    *work = work.checked_sub(seen.len())?;
    let mut open = Vec::new();
    let mut enter = |from: &[usize], to: &[usize], open: &mut Vec<(usize, usize)>| {
        *work = work.checked_sub(from.len() * to.len())?;
        for &p in from {
            for &q in to {
                let is_new = !std::mem::replace(&mut seen[p * width + q], true);
                if is_new && left.classes[p].meets(&right.classes[q]) {
                    open.push((p, q));
                }
            }
        }
        Some(())
    };
    enter(&left.first, &right.first, &mut open)?;
    let is_last = |automaton: &Automaton| {
        let mut flags = vec![false; automaton.classes.len()];
        automaton.last.iter().for_each(|p| flags[*p] = true);
        flags
    };
    let (left_last, right_last) = (is_last(left), is_last(right));
    let mut out = Overlap::default();
    while let Some((p, q)) = open.pop() {
        if left_last[p] {
            out.is_shared |= right_last[q];
            out.goes_on.add(right.leads_of(&right.follow[q]));
        }
        enter(&left.follow[p], &right.follow[q], &mut open)?;
    }
    Some(out)
}
