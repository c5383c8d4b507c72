//! Which parts of a grammar become lexemes.
//!
//! GBNF describes text by characters. The library first splits a text into lexemes, each as long as possible. This is
//! far faster but excludes some derivations: after `[a-z]+`, an `x` never belongs to the next part. So a part becomes a
//! lexeme only if no text is lost: wherever the part may end, none of the lexemes allowed there continues with a byte
//! with which the rest of the grammar may begin. A part that fails this is split, in the worst case down to single
//! characters, which never continue.
//!
//! Invariant: the grammar of lexemes matches exactly the texts of the grammar of characters.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::automaton::{Automaton, Overlap, overlap};
use super::chars::ByteSet;
use super::parse::{Expr, GbnfRules};

/// Maximum number of positions of a lexeme, and its maximum nesting.
const MAX_POSITIONS: usize = 600;
const MAX_DEPTH: usize = 60;
/// Maximum numbers of lexemes, of sets of lexemes that are allowed together, and of steps of the search.
const MAX_LEXEMES: usize = 400;
const MAX_STATES: usize = 1000;
const MAX_WORK: usize = 20_000_000;
const MAX_ROUNDS: usize = 100;

#[derive(Clone, Debug)]
pub(super) enum Node {
    Lexeme(usize),
    Seq(Vec<Self>),
    Alt(Vec<Self>),
    Repeat(Box<Self>, u32, Option<u32>),
    Rule(usize),
}

#[derive(Debug)]
pub(super) struct Lexed {
    /// The expression of each lexeme. Its rules refer to the grammar of characters.
    pub(super) lexemes: Vec<Expr>,
    pub(super) rules: HashMap<usize, Node>,
    pub(super) root: usize,
    index: HashMap<Expr, usize>,
}

pub(super) fn lex(grammar: &GbnfRules) -> Lexed {
    let sizes = Sizes::of(grammar);
    let mut work = MAX_WORK;
    let mut split = HashSet::new();
    for _ in 0..MAX_ROUNDS {
        let lexed = Builder::build(grammar, &sizes, |expr| split.contains(expr));
        let Some(conflicts) = Analysis::conflicts(&lexed, &grammar.bodies, &mut work) else {
            break;
        };
        if conflicts.is_empty() {
            return lexed;
        }
        split.extend(conflicts.into_iter().map(|i| lexed.lexemes[i].clone()));
    }
    // The grammar is too large to analyse. Single characters as lexemes are always correct.
    Builder::build(grammar, &sizes, |expr| !matches!(expr, Expr::Class(_)))
}

/// The size of each rule as a regular expression: positions and depth; `None` for a recursive rule.
struct Sizes(Vec<Option<(usize, usize)>>);

impl Sizes {
    fn of(grammar: &GbnfRules) -> Self {
        let mut sizes = Self(vec![None; grammar.bodies.len()]);
        // A rule whose parts are all known becomes known. Rules that never become known are recursive.
        loop {
            let mut is_changed = false;
            for (i, body) in grammar.bodies.iter().enumerate() {
                if sizes.0[i].is_none()
                    && let Some(size) = sizes.size(body)
                {
                    sizes.0[i] = Some(size);
                    is_changed = true;
                }
            }
            if !is_changed {
                return sizes;
            }
        }
    }

    fn size(&self, expr: &Expr) -> Option<(usize, usize)> {
        match expr {
            Expr::Class(_) => Some((1, 1)),
            Expr::Rule(rule) => self.0[*rule],
            Expr::Seq(all) | Expr::Alt(all) => {
                let mut out = (0usize, 0);
                for part in all {
                    let (positions, depth) = self.size(part)?;
                    out = (out.0.saturating_add(positions), out.1.max(depth));
                }
                Some((out.0, out.1 + 1))
            }
            Expr::Repeat(inner, min, max) => {
                let (positions, depth) = self.size(inner)?;
                let copies = max.unwrap_or(*min).max(1) as usize;
                Some((positions.saturating_mul(copies), depth + 1))
            }
        }
    }

    fn fits(&self, expr: &Expr) -> bool {
        self.size(expr)
            .is_some_and(|(n, depth)| (1..=MAX_POSITIONS).contains(&n) && depth <= MAX_DEPTH)
    }
}

struct Builder<'a, F> {
    sizes: &'a Sizes,
    is_split: F,
    out: Lexed,
    /// Reachable rules that are not built yet.
    open: Vec<usize>,
}

impl<'a, F: Fn(&Expr) -> bool> Builder<'a, F> {
    fn build(grammar: &'a GbnfRules, sizes: &'a Sizes, is_split: F) -> Lexed {
        let mut this = Self {
            sizes,
            is_split,
            out: Lexed {
                lexemes: Vec::new(),
                rules: HashMap::new(),
                root: grammar.root,
                index: HashMap::new(),
            },
            open: vec![grammar.root],
        };
        while let Some(rule) = this.open.pop() {
            if !this.out.rules.contains_key(&rule) {
                let node = this.node(&grammar.bodies[rule]);
                this.out.rules.insert(rule, node);
            }
        }
        this.out
    }

    fn can_be_lexeme(&self, expr: &Expr) -> bool {
        self.sizes.fits(expr) && !(self.is_split)(expr)
    }

    fn lexeme(&mut self, expr: &Expr) -> Node {
        let next = self.out.lexemes.len();
        let index = *self.out.index.entry(expr.clone()).or_insert(next);
        if index == next {
            self.out.lexemes.push(expr.clone());
        }
        Node::Lexeme(index)
    }

    fn node(&mut self, expr: &Expr) -> Node {
        if self.can_be_lexeme(expr) {
            return self.lexeme(expr);
        }
        match expr {
            Expr::Class(_) => self.lexeme(expr),
            Expr::Rule(rule) => {
                self.open.push(*rule);
                Node::Rule(*rule)
            }
            Expr::Repeat(inner, min, max) => Node::Repeat(Box::new(self.node(inner)), *min, *max),
            Expr::Seq(all) => Node::Seq(self.runs(all)),
            Expr::Alt(all) => {
                let (regular, rest): (Vec<_>, Vec<_>) =
                    all.iter().partition(|part| self.can_be_lexeme(part));
                let together = Expr::Alt(regular.iter().map(|&part| part.clone()).collect());
                let mut out = Vec::new();
                if regular.len() > 1 && self.can_be_lexeme(&together) {
                    out.push(self.lexeme(&together));
                } else {
                    out.extend(regular.into_iter().map(|part| self.lexeme(part)));
                }
                out.extend(rest.into_iter().map(|part| self.node(part)));
                Node::Alt(out)
            }
        }
    }

    /// How many parts at the start of a sequence fit into one lexeme, at least two.
    fn longest(&self, all: &[Expr]) -> Option<usize> {
        let (mut positions, mut longest) = (0usize, None);
        for (n, part) in (1..).zip(all).take(MAX_POSITIONS) {
            // A sequence is one level deeper than its parts.
            let size = self.sizes.size(part);
            let size = size.filter(|(_, depth)| self.can_be_lexeme(part) && *depth < MAX_DEPTH);
            positions = positions.saturating_add(size.map_or(usize::MAX, |(n, _)| n));
            if positions > MAX_POSITIONS {
                break;
            }
            longest = Some(n).filter(|n| *n > 1);
        }
        longest
    }

    /// The parts of a sequence. Neighbours that fit into one lexeme are joined.
    fn runs(&mut self, all: &[Expr]) -> Vec<Node> {
        let mut out = Vec::new();
        let mut rest = all;
        while let Some(part) = rest.first() {
            let longest = self.longest(rest);
            let join = |n: usize| Expr::Seq(rest[..n].to_vec());
            match longest.map(join) {
                Some(joined) if !(self.is_split)(&joined) => out.push(self.lexeme(&joined)),
                Some(_) => {
                    let parts = &rest[..longest.unwrap_or(1)];
                    out.extend(parts.iter().map(|part| self.lexeme(part)));
                }
                None => out.push(self.node(part)),
            }
            rest = &rest[longest.unwrap_or(1)..];
        }
        out
    }
}

type Set = BTreeSet<usize>;

struct Analysis<'a> {
    lexed: &'a Lexed,
    automata: Vec<Automaton>,
    nullable: HashSet<usize>,
    first: HashMap<usize, Set>,
    follow: HashMap<usize, Set>,
    next: Vec<Set>,
    overlaps: HashMap<(usize, usize), Overlap>,
}

impl<'a> Analysis<'a> {
    /// The lexemes that may continue where the grammar may need another lexeme; `None` if the search takes too many
    /// steps.
    fn conflicts(lexed: &'a Lexed, bodies: &[Expr], work: &mut usize) -> Option<Set> {
        if lexed.lexemes.len() > MAX_LEXEMES {
            return None;
        }
        let automata = lexed
            .lexemes
            .iter()
            .map(|expr| Automaton::new(expr, bodies));
        let mut this = Self {
            lexed,
            automata: automata.collect(),
            nullable: HashSet::new(),
            first: HashMap::new(),
            follow: HashMap::new(),
            next: vec![Set::new(); lexed.lexemes.len()],
            overlaps: HashMap::new(),
        };
        this.find_first(work)?;
        this.find_next(work)?;
        let mut conflicts = Set::new();
        for state in this.states(work)? {
            for &ended in &state {
                let followers = this.leads_after(ended);
                for &other in &state {
                    if this.overlap(ended, other, work)?.goes_on.meets(followers) {
                        conflicts.insert(other);
                    }
                }
            }
        }
        Some(conflicts)
    }

    fn find_first(&mut self, work: &mut usize) -> Option<()> {
        loop {
            let mut is_changed = false;
            for (&rule, node) in &self.lexed.rules {
                *work = work.checked_sub(1)?;
                let (first, is_nullable) = self.first_of(node);
                is_changed |= is_nullable && self.nullable.insert(rule);
                let known = self.first.entry(rule).or_default();
                let before = known.len();
                known.extend(first);
                is_changed |= known.len() != before;
            }
            if !is_changed {
                return Some(());
            }
        }
    }

    fn first_of(&self, node: &Node) -> (Set, bool) {
        match node {
            Node::Lexeme(lexeme) => (Set::from([*lexeme]), self.automata[*lexeme].is_nullable),
            Node::Rule(rule) => (
                self.first.get(rule).cloned().unwrap_or_default(),
                self.nullable.contains(rule),
            ),
            Node::Repeat(inner, min, _) => {
                let (first, is_nullable) = self.first_of(inner);
                (first, is_nullable || *min == 0)
            }
            Node::Alt(all) => {
                let mut out = (Set::new(), false);
                for part in all {
                    let (first, is_nullable) = self.first_of(part);
                    out.0.extend(first);
                    out.1 |= is_nullable;
                }
                out
            }
            Node::Seq(all) => {
                let mut out = (Set::new(), true);
                for part in all {
                    let (first, is_nullable) = self.first_of(part);
                    out.0.extend(first);
                    out.1 = is_nullable;
                    if !is_nullable {
                        break;
                    }
                }
                out
            }
        }
    }

    fn find_next(&mut self, work: &mut usize) -> Option<()> {
        loop {
            let mut is_changed = false;
            for (rule, node) in &self.lexed.rules {
                let followers = self.follow.get(rule).cloned().unwrap_or_default();
                is_changed |= self.spread(node, &followers, work)?;
            }
            if !is_changed {
                return Some(());
            }
        }
    }

    /// Adds the followers of a node to its parts. Returns whether any was new; `None` if `work` runs out.
    fn spread(&mut self, node: &Node, followers: &Set, work: &mut usize) -> Option<bool> {
        *work = work.checked_sub(1 + followers.len())?;
        let mut is_changed = false;
        match node {
            Node::Lexeme(lexeme) => is_changed |= grow(&mut self.next[*lexeme], followers),
            Node::Rule(rule) => {
                is_changed |= grow(self.follow.entry(*rule).or_default(), followers);
            }
            Node::Alt(all) => {
                for part in all {
                    is_changed |= self.spread(part, followers, work)?;
                }
            }
            Node::Repeat(inner, _, max) => {
                let mut followers = followers.clone();
                if *max != Some(1) {
                    followers.extend(self.first_of(inner).0);
                }
                is_changed |= self.spread(inner, &followers, work)?;
            }
            Node::Seq(all) => {
                let mut followers = followers.clone();
                for part in all.iter().rev() {
                    is_changed |= self.spread(part, &followers, work)?;
                    let (first, is_nullable) = self.first_of(part);
                    if !is_nullable {
                        followers.clear();
                    }
                    followers.extend(first);
                }
            }
        }
        Some(is_changed)
    }

    fn states(&mut self, work: &mut usize) -> Option<HashSet<Set>> {
        let start = self.first.get(&self.lexed.root).cloned();
        let mut open = vec![start.unwrap_or_default()];
        let mut seen = HashSet::new();
        while let Some(state) = open.pop() {
            if !seen.insert(state.clone()) {
                continue;
            }
            if seen.len() > MAX_STATES {
                return None;
            }
            for &lexeme in &state {
                let mut next = Set::new();
                for &other in &state {
                    if self.overlap(lexeme, other, work)?.is_shared {
                        next.extend(&self.next[other]);
                    }
                }
                open.push(next);
            }
        }
        Some(seen)
    }

    fn overlap(&mut self, left: usize, right: usize, work: &mut usize) -> Option<Overlap> {
        *work = work.checked_sub(1)?;
        if let Some(known) = self.overlaps.get(&(left, right)) {
            return Some(*known);
        }
        let found = overlap(&self.automata[left], &self.automata[right], work)?;
        self.overlaps.insert((left, right), found);
        Some(found)
    }

    fn leads_after(&self, lexeme: usize) -> ByteSet {
        let mut leads = ByteSet::default();
        for next in &self.next[lexeme] {
            leads.add(self.automata[*next].leads());
        }
        leads
    }
}

fn grow(set: &mut Set, more: &Set) -> bool {
    let before = set.len();
    set.extend(more);
    set.len() != before
}
