//! The types of least cost within a budget of bytes.
//!
//! Each tensor has candidates with a size and a cost, and costs add up. The choice is that of a Lagrangian: every tensor takes
//! the candidate with the least cost for the bytes at one common price of a byte. What is left of the budget goes to the changes
//! that save most, of one tensor, or of two of which one makes room for the other.

/// A type that a tensor may get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub bytes: u64,
    /// What it costs, such as the divergence that it causes; 0 or more.
    pub cost: f64,
}

/// For each tensor the number of a candidate: the choice with a low sum of costs whose bytes are at most `budget`. `None` if the
/// smallest candidates exceed it.
pub fn cheapest(tensors: &[Vec<Candidate>], budget: u64) -> Option<Vec<usize>> {
    let hulls: Vec<Vec<usize>> = tensors.iter().map(|all| hull(all)).collect();
    let mut chosen: Vec<usize> = hulls
        .iter()
        .map(|hull| hull.first().copied())
        .collect::<Option<_>>()?;
    let mut bytes: u64 = tensors
        .iter()
        .zip(&chosen)
        .map(|(all, at)| all[*at].bytes)
        .sum();
    if bytes > budget {
        return None;
    }
    // Along a hull each further byte saves less than the one before, so the steps of all tensors are taken by what a byte saves.
    let mut steps: Vec<(f64, usize, usize)> = Vec::new();
    for (tensor, (all, hull)) in tensors.iter().zip(&hulls).enumerate() {
        for pair in hull.windows(2) {
            let [from, to] = [all[pair[0]], all[pair[1]]];
            let saved = (from.cost - to.cost) / (to.bytes - from.bytes) as f64;
            steps.push((saved, tensor, pair[1]));
        }
    }
    steps.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut is_full = vec![false; tensors.len()];
    for (_, tensor, to) in steps {
        let more = tensors[tensor][to].bytes - tensors[tensor][chosen[tensor]].bytes;
        match !is_full[tensor] && bytes + more <= budget {
            true => {
                bytes += more;
                chosen[tensor] = to;
            }
            false => is_full[tensor] = true,
        }
    }
    // What no step of a hull fits into may fit a candidate off the hull, or one tensor's place with less of another one's.
    while let Some(changes) = improvement(tensors, &chosen, budget - bytes) {
        for (tensor, at) in changes {
            bytes = bytes - tensors[tensor][chosen[tensor]].bytes + tensors[tensor][at].bytes;
            chosen[tensor] = at;
        }
    }
    Some(chosen)
}

/// The change of one tensor, or else of two, that saves most and takes at most `left` bytes more: tensors with their new candidates.
fn improvement(
    tensors: &[Vec<Candidate>],
    chosen: &[usize],
    left: u64,
) -> Option<Vec<(usize, usize)>> {
    /// Savings that are no roundings of sums.
    const LEAST: f64 = 1e-12;
    // Of each change what it saves and how many bytes more it takes.
    let all = tensors.iter().zip(chosen).enumerate();
    let mut changes: Vec<(f64, i128, usize, usize)> = all
        .flat_map(|(tensor, (all, now))| {
            let now = all[*now];
            let of = move |(at, to): (usize, &Candidate)| {
                let more = i128::from(to.bytes) - i128::from(now.bytes);
                (now.cost - to.cost, more, tensor, at)
            };
            all.iter().enumerate().map(of)
        })
        .collect();
    let left = i128::from(left);
    let alone = changes
        .iter()
        .filter(|(saved, more, ..)| *saved > LEAST && *more <= left);
    if let Some((.., tensor, at)) = alone.max_by(|a, b| a.0.total_cmp(&b.0)) {
        return Some(vec![(*tensor, *at)]);
    }
    // The partner of a change is the best one that takes few enough bytes, of another tensor.
    changes.sort_by_key(|(_, more, ..)| *more);
    let mut partners: Vec<[Option<usize>; 2]> = Vec::with_capacity(changes.len());
    let mut two: [Option<usize>; 2] = [None; 2];
    for (at, (saved, _, tensor, _)) in changes.iter().enumerate() {
        let is_less = |of: Option<usize>| of.is_none_or(|of| changes[of].0 < *saved);
        two = match two {
            [Some(first), _] if changes[first].2 == *tensor => match is_less(Some(first)) {
                true => [Some(at), two[1]],
                false => two,
            },
            [first, _] if is_less(first) => [Some(at), first],
            [first, second] if is_less(second) => [first, Some(at)],
            both => both,
        };
        partners.push(two);
    }
    let mut best = (LEAST, None);
    for (saved, more, tensor, at) in changes.iter().filter(|(saved, ..)| *saved > LEAST) {
        let n = changes.partition_point(|(_, other, ..)| *other <= left - more);
        let known = n.checked_sub(1).map_or([None; 2], |last| partners[last]);
        let partner = known.into_iter().flatten().map(|of| changes[of]);
        let Some((lost, _, other, to)) = partner.into_iter().find(|of| of.2 != *tensor) else {
            continue;
        };
        if saved + lost > best.0 {
            best = (saved + lost, Some(vec![(*tensor, *at), (other, to)]));
        }
    }
    best.1
}

/// The candidates on the lower convex hull of cost over bytes, from the smallest on.
fn hull(all: &[Candidate]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by(|a, b| {
        let (a, b) = (all[*a], all[*b]);
        a.bytes.cmp(&b.bytes).then(a.cost.total_cmp(&b.cost))
    });
    let mut hull: Vec<usize> = Vec::new();
    for at in order {
        let new = all[at];
        if hull
            .last()
            .is_some_and(|last| all[*last].cost <= new.cost || all[*last].bytes == new.bytes)
        {
            continue;
        }
        while let [.., a, b] = hull[..] {
            let slope = |from: Candidate, to: Candidate| {
                (from.cost - to.cost) / (to.bytes - from.bytes) as f64
            };
            if slope(all[a], all[b]) > slope(all[b], new) {
                break;
            }
            hull.pop();
        }
        hull.push(at);
    }
    hull
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(seed: &mut u64) -> u64 {
        *seed = lab_base::util::random::scatter(*seed);
        *seed
    }

    fn total(tensors: &[Vec<Candidate>], chosen: &[usize]) -> (u64, f64) {
        let all = tensors.iter().zip(chosen).map(|(all, at)| all[*at]);
        all.fold((0, 0.0), |(bytes, cost), one| {
            (bytes + one.bytes, cost + one.cost)
        })
    }

    /// The least cost within the budget, of all choices.
    fn least(tensors: &[Vec<Candidate>], budget: u64) -> Option<f64> {
        let Some((first, rest)) = tensors.split_first() else {
            return Some(0.0);
        };
        let fits = first.iter().filter(|candidate| candidate.bytes <= budget);
        let costs = fits.filter_map(|c| Some(c.cost + least(rest, budget - c.bytes)?));
        costs.min_by(f64::total_cmp)
    }

    #[test]
    fn the_choice_fits_and_is_near_the_best_of_all() {
        let mut seed = 7;
        for round in 0..200 {
            let tensors: Vec<Vec<Candidate>> = (0..5)
                .map(|_| {
                    let sensitivity = (1 + random(&mut seed) % 50) as f64;
                    let size = 1 + random(&mut seed) % 9;
                    (1..6)
                        .map(|bits| Candidate {
                            bytes: size * bits,
                            cost: sensitivity * 0.25f64.powi(bits as i32),
                        })
                        .collect()
                })
                .collect();
            let smallest: u64 = tensors.iter().map(|all| all[0].bytes).sum();
            let budget = smallest * (1 + random(&mut seed) % 4) + random(&mut seed) % 7;
            let chosen = cheapest(&tensors, budget).expect("the smallest fit");
            let (bytes, cost) = total(&tensors, &chosen);
            let best = least(&tensors, budget).expect("the smallest fit");
            assert!(bytes <= budget, "round {round}");
            assert!(cost <= 1.35 * best, "round {round}: {cost} and {best}");
            assert_eq!(cheapest(&tensors, smallest - 1), None);
        }
    }

    #[test]
    fn a_candidate_that_costs_more_and_is_larger_is_never_chosen() {
        let all = vec![
            Candidate {
                bytes: 4,
                cost: 1.0,
            },
            Candidate {
                bytes: 5,
                cost: 2.0,
            },
            Candidate {
                bytes: 5,
                cost: 0.5,
            },
            Candidate {
                bytes: 6,
                cost: 0.4,
            },
            Candidate {
                bytes: 7,
                cost: 0.0,
            },
        ];
        let chosen = |budget| cheapest(std::slice::from_ref(&all), budget);
        assert_eq!(chosen(3), None);
        assert_eq!(chosen(4), Some(vec![0]));
        assert_eq!(chosen(5), Some(vec![2]));
        // Not on the hull, and better than what is.
        assert_eq!(chosen(6), Some(vec![3]));
        assert_eq!(chosen(9), Some(vec![4]));
    }
}
