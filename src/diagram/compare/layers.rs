//! Which kinds of layers correspond, and which sublayers within them.
//!
//! A sublayer is a branch with what stands around it, so that blocks side by side in one slot are matched
//! with blocks one behind the other in several. A norm that several branches share belongs to the first
//! that finds a partner for it.

use std::collections::HashSet;

use crate::arch::Join;
use crate::diagram::{Drawing, Factor, Kind, Part, words};

use super::align::{Aligner, rejoin};
use super::features::{Words, common, score};
use super::parts::{Context, pair_part, stages};
use super::places::title;
use super::{
    Comparison, KindPair, Level, Pair, PartPair, Place, Role, Side, Sublayer, Wire, Wiring,
};

/// Pairs of kinds that are tried; more kinds than that are matched by place.
const KINDS: usize = 1024;
/// Kinds of a drawing that are compared with each other; of more it is not told what they are unlike.
const OWN: usize = KINDS / 16;

/// Aligns two drawings, the first of which is A; nothing is told yet.
pub(super) fn compare<'d>(a: &'d Drawing, b: &'d Drawing) -> Comparison<'d> {
    let aligner = Aligner::new();
    let context = Context::new(&aligner, a, b);
    let mut words = Words::default();
    let rows = match_kinds(a, b, &mut words);
    let mut kinds = Vec::with_capacity(rows.len());
    for kind in rows {
        let [of_a, of_b] = [kind.a, kind.b].map(|kind| kind.map(places).unwrap_or_default());
        let sublayers = self::sublayers(&context, &mut words, &of_a, &of_b);
        kinds.push(KindPair {
            kind,
            sublayers,
            unlike: Vec::new(),
        });
    }
    let [begin, end] =
        [[&a.begin, &b.begin], [&a.end, &b.end]].map(|[a, b]| stages(&context, a, b));
    // What both sides have is aligned first: the cells that are left are for what is told besides.
    unlike(&aligner, [a, b], &mut kinds, &mut words);
    Comparison {
        a,
        b,
        begin,
        kinds,
        end,
        findings: Vec::new(),
    }
}

/// Of each kind that only one side has: how it differs from the nearest of that side.
fn unlike<'d>(
    aligner: &Aligner,
    drawings: [&'d Drawing; 2],
    pairs: &mut [KindPair<'d>],
    words: &mut Words<'d>,
) {
    for (side, own) in [Side::A, Side::B].into_iter().zip(drawings) {
        let alone = pairs.iter_mut().filter_map(|pair| match pair.kind.only() {
            Some((of, kind)) if of == side => Some((*kind, pair)),
            _ => None,
        });
        let mut alone = alone.peekable();
        if own.kinds.len() > OWN || alone.peek().is_none() {
            continue;
        }
        let context = Context::new(aligner, own, own);
        let described: Vec<Vec<u32>> = own.kinds.iter().map(|kind| words.kind(kind)).collect();
        for (kind, pair) in alone {
            if let Some(near) = nearest(&own.kinds, &described, kind) {
                pair.unlike = sublayers(&context, words, &places(near), &places(kind));
            }
        }
    }
}

/// Kinds that are most alike first, each once; then what is left.
fn match_kinds<'d>(a: &'d Drawing, b: &'d Drawing, words: &mut Words<'d>) -> Vec<Pair<&'d Kind>> {
    let (n, m) = (a.kinds.len(), b.kinds.len());
    let mut tried: Vec<(u32, usize, usize)> = Vec::new();
    if n.saturating_mul(m) <= KINDS {
        let of_a: Vec<Vec<u32>> = a.kinds.iter().map(|kind| words.kind(kind)).collect();
        let of_b: Vec<Vec<u32>> = b.kinds.iter().map(|kind| words.kind(kind)).collect();
        for (i, x) in of_a.iter().enumerate() {
            tried.extend(of_b.iter().enumerate().map(|(j, y)| (common(x, y), i, j)));
        }
    } else {
        tried.extend((0..n.min(m)).map(|i| (0, i, i)));
    }
    tried.sort_by_key(|(alike, i, j)| (std::cmp::Reverse(*alike), i.abs_diff(*j), *i));
    let mut partner: Vec<Option<usize>> = vec![None; n];
    let mut taken = vec![false; m];
    for (_, i, j) in tried {
        if partner[i].is_none() && !taken[j] {
            partner[i] = Some(j);
            taken[j] = true;
        }
    }
    let of_a = a.kinds.iter().zip(partner).map(|(kind, j)| Pair {
        a: Some(kind),
        b: j.map(|j| &b.kinds[j]),
    });
    let rest = b.kinds.iter().zip(taken).filter(|(_, taken)| !taken);
    let rest = rest.map(|(kind, _)| Pair {
        a: None,
        b: Some(kind),
    });
    of_a.chain(rest).collect()
}

/// The other one that is most like one of several kinds, each of which is described by words.
fn nearest<'d>(kinds: &'d [Kind], described: &[Vec<u32>], kind: &Kind) -> Option<&'d Kind> {
    let at = kinds.iter().position(|own| std::ptr::eq(own, kind))?;
    let others = (0..kinds.len()).filter(|other| *other != at);
    let rated = others.map(|other| (common(&described[at], &described[other]), other));
    // Of equals the first.
    let best = rated.reduce(|best, next| if next.0 > best.0 { next } else { best });
    best.map(|(_, near)| &kinds[near])
}

/// The branches of a kind in order.
pub(super) fn places(kind: &Kind) -> Vec<Place<'_>> {
    let slots = kind.slots.iter().enumerate();
    let all = slots.flat_map(|(slot_at, slot)| {
        slot.branches.iter().map(move |branch| Place {
            slot,
            slot_at,
            branch,
        })
    });
    all.collect()
}

/// What stands around a block, with a number for each place.
pub(super) fn chain<'d>(place: &Place<'d>) -> impl Iterator<Item = (usize, &'d Part)> + use<'d> {
    let (slot, branch) = (place.slot, place.branch);
    let around = [
        &slot.pre,
        &branch.pre,
        &branch.post,
        &slot.post,
        &slot.after,
    ];
    let parts = around.into_iter().enumerate();
    parts.filter_map(|(at, part)| Some((at, part.as_ref()?)))
}

/// Where the part of a number of [`chain`] stands.
fn role(at: usize) -> Role {
    match at {
        0 | 1 => Role::Before,
        2 | 3 => Role::Behind,
        _ => Role::Stream,
    }
}

fn sublayers<'d>(
    context: &Context<'_>,
    words: &mut Words<'d>,
    a: &[Place<'d>],
    b: &[Place<'d>],
) -> Vec<Sublayer<'d>> {
    let of_a: Vec<Vec<u32>> = a.iter().map(|place| words.sublayer(place)).collect();
    let of_b: Vec<Vec<u32>> = b.iter().map(|place| words.sublayer(place)).collect();
    let rated = |i: usize, j: usize| score(&a[i], &b[j], common(&of_a[i], &of_b[j]));
    let rows = context.aligner.align(a.len(), b.len(), &rated);
    let kind_of = |place: &Place<'_>| place.branch.block.kind;
    let rows = rejoin(rows, &|i| kind_of(&a[i]), &|j| kind_of(&b[j]));
    let mut used = Used::default();
    let mut out: Vec<Sublayer<'d>> = rows
        .iter()
        .map(|(row, is_moved)| Sublayer {
            at: Pair {
                a: row.a.map(|i| a[i]),
                b: row.b.map(|j| b[j]),
            },
            parts: Vec::new(),
            wiring: Vec::new(),
            is_moved: *is_moved,
        })
        .collect();
    // What is on one side only comes last: it has no partner for what it shares with others.
    let (matched, alone): (Vec<usize>, Vec<usize>) =
        (0..out.len()).partition(|at| out[*at].at.matched().is_some());
    for at in matched.into_iter().chain(alone) {
        out[at].parts = parts(context, &out[at].at, &mut used);
        out[at].wiring = wiring(context, &out[at].at);
    }
    beside(&mut out);
    out
}

/// Parts that have been put somewhere.
#[derive(Default)]
struct Used(HashSet<*const Part>);

impl Used {
    /// What stands around a block and has been put nowhere.
    fn left<'d>(&self, place: Option<&Place<'d>>) -> Vec<(usize, &'d Part)> {
        let all = place.into_iter().flat_map(chain);
        all.filter(|(_, part)| !self.0.contains(&std::ptr::from_ref(*part)))
            .collect()
    }

    fn take(&mut self, part: &Part) {
        self.0.insert(std::ptr::from_ref(part));
    }
}

/// The parts of a sublayer: those at the same place, then those with the same role, then what is left.
fn parts<'d>(context: &Context<'_>, at: &Pair<Place<'d>>, used: &mut Used) -> Vec<PartPair<'d>> {
    let mut left = [used.left(at.a.as_ref()), used.left(at.b.as_ref())];
    type Fits = fn(usize, usize) -> bool;
    let passes: [Fits; 3] = [|i, j| i == j, |i, j| role(i) == role(j), |_, _| true];
    let mut rows: Vec<(usize, Pair<(usize, &'d Part)>)> = Vec::new();
    for fits in passes {
        let [of_a, of_b] = &mut left;
        of_a.retain(|(i, part)| {
            let found = of_b.iter().position(|(j, _)| fits(*i, *j));
            let partner = found.map(|at| of_b.remove(at));
            rows.extend(partner.map(|partner| (*i, Pair::both((*i, *part), partner))));
            partner.is_none()
        });
    }
    let [of_a, of_b] = left;
    rows.extend(of_a.into_iter().map(|own| {
        (
            own.0,
            Pair {
                a: Some(own),
                b: None,
            },
        )
    }));
    rows.extend(of_b.into_iter().map(|own| {
        (
            own.0,
            Pair {
                a: None,
                b: Some(own),
            },
        )
    }));
    rows.sort_by_key(|(order, _)| *order);
    for (_, part) in rows.iter().flat_map(|(_, row)| row.a.iter().chain(&row.b)) {
        used.take(part);
    }
    let pair = |row: Pair<(usize, &'d Part)>| {
        pair_part(
            context,
            row.map(|(_, part)| part),
            row.map(|(at, _)| role(at)),
        )
    };
    let (before, behind): (Vec<_>, Vec<_>) = rows
        .into_iter()
        .partition(|(order, _)| role(*order) == Role::Before);
    let mut out: Vec<PartPair<'d>> = before.into_iter().map(|(_, row)| pair(row)).collect();
    let blocks = at.map(|place| &place.branch.block);
    let split = match blocks.matched() {
        Some((a, b)) if a.kind != b.kind => {
            vec![Pair { b: None, ..blocks }, Pair { a: None, ..blocks }]
        }
        _ => vec![blocks],
    };
    let block = |part: Pair<&'d Part>| pair_part(context, part, part.map(|_| Role::Block));
    out.extend(split.into_iter().map(block));
    out.extend(behind.into_iter().map(|(_, row)| pair(row)));
    out
}

/// What differs in how two sublayers are put together.
fn wiring(context: &Context<'_>, at: &Pair<Place<'_>>) -> Vec<Wire> {
    let Some((a, b)) = at.matched() else {
        return Vec::new();
    };
    let mut out = Vec::new();
    let mut wire =
        |what, of: &dyn Fn(&Place<'_>) -> String, level: &dyn Fn(&str, &str) -> Level| {
            let (a, b) = (of(a), of(b));
            let level = if a == b { Level::Same } else { level(&a, &b) };
            if level > Level::Same {
                out.push(Wire { what, a, b, level });
            }
        };
    let computes = |_: &str, _: &str| Level::Computation;
    let factor = |a: &str, b: &str| match a.is_empty() || b.is_empty() {
        true => Level::Computation,
        false => context.texts(a, b),
    };
    wire(Wiring::Input, &input, &computes);
    wire(
        Wiring::Side,
        &|p| p.branch.side.as_deref().map(tapped).unwrap_or_default(),
        &computes,
    );
    let text =
        |factor: &Option<Factor>| factor.as_ref().map_or_else(String::new, |f| f.text.clone());
    wire(Wiring::Factor, &|p| text(&p.branch.gain), &factor);
    wire(Wiring::Factor, &|p| text(&p.slot.scale), &factor);
    wire(Wiring::Join, &|p| join(p.slot.join).to_owned(), &computes);
    wire(
        Wiring::Saved,
        &|p| p.branch.save.clone().unwrap_or_default(),
        &|_, _| Level::Names,
    );
    out
}

/// What a tap is.
fn tapped(name: &str) -> String {
    words::tap(name).trim_start_matches("reads ").to_owned()
}

/// What a block reads, before its norms.
fn input(place: &Place<'_>) -> String {
    match (&place.branch.from, place.slot.from.as_deref()) {
        (Some(name), _) => tapped(name),
        (None, Some(name)) if name != "x" => tapped(name),
        _ => "the stream".into(),
    }
}

fn join(join: Join) -> &'static str {
    match join {
        Join::Add => "is added to the stream",
        Join::Set => "takes the place of the stream",
    }
}

/// Tells of sublayers that are side by side on one side and one behind the other on the other.
fn beside(all: &mut [Sublayer<'_>]) {
    let rows: Vec<(usize, usize, usize)> = all
        .iter()
        .enumerate()
        .filter_map(|(at, sub)| {
            let (a, b) = sub.at.matched()?;
            Some((at, a.slot_at, b.slot_at))
        })
        .collect();
    for pair in rows.windows(2) {
        let [(before, a0, b0), (at, a1, b1)] = pair else {
            continue;
        };
        let together = [a0 == a1, b0 == b1];
        if together[0] == together[1] {
            continue;
        }
        let other = title(&all[*before]);
        let [a, b] = together.map(|is| if is { other.clone() } else { String::new() });
        all[*at].wiring.push(Wire {
            what: Wiring::Beside,
            a,
            b,
            level: Level::Computation,
        });
    }
}
