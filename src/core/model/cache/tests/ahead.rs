//! Passes that are prepared while the pass before is computed.

use super::*;

/// What becomes of a prepared pass.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// It is used, with this token of each sequence; one of them may have ended.
    Used(u32, Option<SequenceId>),
    Undone,
    /// The pass before fails.
    Failed,
}

pub(super) fn fates() -> impl Strategy<Value = Fate> {
    prop_oneof![
        (0..2u32, prop::option::of(0..N_SEQS)).prop_map(|(token, ended)| Fate::Used(token, ended)),
        Just(Fate::Undone),
        Just(Fate::Failed),
    ]
}

impl Mirror {
    fn next_places(&self) -> Vec<(SequenceId, u32)> {
        let next = (0..N_SEQS).map(|id| (id, self.block_manager.next(id)));
        next.filter(|(_, position)| *position > 0).collect()
    }

    /// All running sequences read a token. Before that pass has ended, the next one is prepared.
    pub(super) fn ahead(&mut self, fate: Fate) {
        let before = self.next_places();
        let one: Vec<(SequenceId, &[u32])> = before.iter().map(|(id, _)| (*id, &[1][..])).collect();
        // States are not prepared.
        if self.n_rows.is_some() || one.is_empty() || !self.pass(&one, false) {
            return;
        }
        let (places, free) = (self.next_places(), self.block_manager.free());
        let Some(given) = self.block_manager.prepare_ahead(&places) else {
            return;
        };
        self.copied(given);
        let n_ahead = self.block_manager.n_ahead(&places);
        assert_eq!(self.block_manager.free_with(&n_ahead), free);
        match fate {
            Fate::Used(token, ended) => self.used(&places, token, ended),
            Fate::Undone => self.block_manager.give_back(&places),
            Fate::Failed => {
                self.block_manager.give_back(&places);
                self.block_manager.roll_back(&before);
                for (id, position) in before {
                    let next = self.block_manager.next(id);
                    assert_eq!(next, position);
                    self.texts.entry(id).or_default().truncate(next as usize);
                }
            }
        }
    }

    /// What was made before tokens were known is what the pass over them reads and writes.
    fn used(&mut self, places: &[(SequenceId, u32)], token: u32, ended: Option<SequenceId>) {
        let slots = self.block_manager.slots(places);
        let rows = |manager: &BlockManager, pool: usize, own: &[(SequenceId, u32)]| {
            let mut rows = Vec::new();
            for place in own {
                for view in manager.views_of(pool, &[*place]) {
                    let mask: Vec<f32> = manager.mask(pool, &view, &[*place]);
                    rows.push((*place, view.first, mask));
                }
            }
            rows
        };
        let pools = 0..self.groups.len();
        let prepared: Vec<_> = pools
            .map(|at| rows(&self.block_manager, at, places))
            .collect();
        if let Some(id) = ended {
            self.block_manager.release(id);
            self.texts.remove(&id);
        }
        let left = |(id, _): &(SequenceId, u32)| Some(*id) != ended;
        let own: Vec<(SequenceId, u32)> = places.iter().copied().filter(left).collect();
        self.block_manager.accept(&own, &vec![token; own.len()]);
        for (id, position) in &own {
            let text = self.texts.entry(*id).or_default();
            text.push(token);
            assert_eq!(text.len(), *position as usize + 1);
        }
        for (pool, slots) in slots.into_iter().enumerate() {
            for (place, slot) in places.iter().zip(slots) {
                // The row of one that has ended writes what nobody is to read.
                let text = match left(place) {
                    true => self.texts[&place.0].clone(),
                    false => vec![u32::MAX],
                };
                self.slots.insert((pool, slot), text);
            }
        }
        for (pool, rows) in prepared.into_iter().enumerate() {
            for (place, first, mask) in rows.into_iter().filter(|(place, ..)| left(place)) {
                self.check_row(pool, place, first, &mask);
            }
        }
    }
}
