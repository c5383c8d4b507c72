//! The clients whose requests share an engine: how many places each may take, and whose turn it is.
//!
//! Not here: who a client is. The name of one that is not known is empty.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use lab_base::util::lock::lock;

/// Maximum number of clients without requests of which it is known what was computed for them.
const MAX_CLIENTS: usize = 4096;

/// A client, by a name that says nothing of its key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Client {
    pub name: Arc<str>,
    /// Maximum part of the places for requests that it may take, above 0 and at most 1; none: all.
    pub queue_share: Option<f64>,
}

/// The places of waiting and active requests that are taken, by client.
#[derive(Debug, Default)]
pub(super) struct TakenPlaces(Mutex<BTreeMap<Arc<str>, usize>>);

/// A place among the waiting and active requests, given back when the last of its completions drops it.
pub(super) struct QueuePermit {
    places: Arc<TakenPlaces>,
    client: Arc<str>,
}

impl QueuePermit {
    /// Takes a place of `limit`. All completions of a request share one place, so that a request with many of them leaves
    /// places for others. A client with fewer places than an equal part gets one even if others have taken all, so
    /// that no client shuts out another: at most twice as many places are taken.
    ///
    /// # Errors
    /// The number of places that the client may take; they are taken.
    pub(super) fn take(
        places: &Arc<TakenPlaces>,
        client: &Client,
        limit: usize,
    ) -> Result<Arc<Self>, usize> {
        let mut taken = lock(&places.0);
        let all: usize = taken.values().sum();
        let own = taken.get(&client.name).copied().unwrap_or(0);
        let n_clients = taken.len() + usize::from(own == 0);
        let share = client.queue_share.unwrap_or(1.0).clamp(0.0, 1.0);
        let most = ((limit as f64 * share) as usize).max(1);
        // Of more clients than places, each would be behind.
        let is_behind = all < 2 * limit && own < (limit / n_clients).max(1);
        if own >= most || (all >= limit && !is_behind) {
            return Err(most);
        }
        taken.insert(Arc::clone(&client.name), own + 1);
        drop(taken);
        Ok(Arc::new(Self {
            places: Arc::clone(places),
            client: Arc::clone(&client.name),
        }))
    }

    /// The name of the client.
    pub(super) fn client(&self) -> &Arc<str> {
        &self.client
    }
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        let mut taken = lock(&self.places.0);
        match taken.get_mut(&self.client) {
            Some(n) if *n > 1 => *n -= 1,
            _ => {
                taken.remove(&self.client);
            }
        }
    }
}

/// How many tokens were computed for each client, so that the one with the fewest comes first.
///
/// A client that had no requests is set to the least of those that have: it cannot save up turns. What it had above that is
/// kept until the others have caught up, so that leaving does not help either, unless there are too many of them.
#[derive(Debug, Default)]
pub(super) struct Turns(BTreeMap<Arc<str>, u64>);

impl Turns {
    /// Notes that a client without requests has one. `present`: the clients that have some.
    pub(super) fn enter(&mut self, client: &Arc<str>, present: &BTreeSet<Arc<str>>) {
        let least = present.iter().map(|one| self.computed(one)).min();
        let least = least.unwrap_or(0);
        self.0
            .retain(|one, n| present.contains(one) || (*n > least && !present.is_empty()));
        if self.0.len() >= MAX_CLIENTS {
            self.0.retain(|one, _| present.contains(one));
        }
        let own = self.0.entry(Arc::clone(client)).or_default();
        *own = (*own).max(least);
    }

    /// Counts tokens that were computed for a client.
    pub(super) fn charge(&mut self, client: &Arc<str>, n: usize) {
        let own = self.0.entry(Arc::clone(client)).or_default();
        *own = own.saturating_add(n as u64);
    }

    /// Number of tokens that count for a client.
    pub(super) fn computed(&self, client: &Arc<str>) -> u64 {
        self.0.get(client).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn client(name: &str) -> Client {
        Client {
            name: name.into(),
            queue_share: None,
        }
    }

    #[test]
    fn any_number_of_clients_takes_at_most_twice_the_places() {
        let places = Arc::default();
        let take = |i: usize| QueuePermit::take(&places, &client(&i.to_string()), 4);
        let taken: Vec<_> = (0..100).filter_map(|i| take(i).ok()).collect();
        assert_eq!(taken.len(), 8);
    }

    #[test]
    fn clients_that_come_once_are_forgotten() {
        let (mut turns, stays) = (Turns::default(), Arc::<str>::from("stays"));
        let present = BTreeSet::from([Arc::clone(&stays)]);
        turns.enter(&stays, &BTreeSet::new());
        for i in 0..3 * MAX_CLIENTS {
            let one = i.to_string().into();
            turns.enter(&one, &present);
            turns.charge(&one, 10);
        }
        assert!(turns.0.len() <= MAX_CLIENTS + 1, "{}", turns.0.len());
        assert_eq!(turns.computed(&stays), 0);
    }

    #[test]
    fn a_client_with_all_places_leaves_one_for_another() {
        let places = Arc::default();
        let take = |client: &Client| QueuePermit::take(&places, client, 4);
        let a: Vec<_> = (0..4)
            .map(|_| take(&client("a")).expect("a place"))
            .collect();
        assert_eq!(take(&client("a")).err(), Some(4));
        let b: Vec<_> = (0..2).map(|_| take(&client("b")).expect("half")).collect();
        assert!(take(&client("b")).is_err());
        drop(a);
        assert!(take(&client("b")).is_ok());
        drop(b);
        let half = Client {
            queue_share: Some(0.5),
            ..client("c")
        };
        let _c = [take(&half), take(&half)].map(|place| place.expect("a place"));
        assert_eq!(take(&half).err(), Some(2));
        assert_eq!(
            lock(&places.0).len(),
            1,
            "places that are free are forgotten"
        );
    }

    #[test]
    fn a_client_that_was_away_has_no_more_turns_than_others() {
        let names = ["a", "b"].map(Arc::<str>::from);
        let mut turns = Turns::default();
        turns.enter(&names[0], &BTreeSet::new());
        turns.charge(&names[0], 1000);
        let a = BTreeSet::from([Arc::clone(&names[0])]);
        turns.enter(&names[1], &a);
        assert_eq!(turns.computed(&names[1]), 1000);
        // It computes much and leaves: what it had is remembered.
        turns.charge(&names[1], 500);
        turns.charge(&names[0], 100);
        turns.enter(&names[1], &a);
        assert_eq!(turns.computed(&names[1]), 1500);
        // Nobody is left: nothing is remembered.
        turns.enter(&"c".into(), &BTreeSet::new());
        assert_eq!(turns.0.len(), 1);
    }

    proptest! {
        /// While clients wait, the tokens computed for them differ by at most a request.
        #[test]
        fn clients_get_the_same_number_of_tokens(
            sizes in prop::collection::vec((1..500usize, 1..500usize), 10..100),
        ) {
            let names = ["a", "b"].map(Arc::<str>::from);
            let mut turns = Turns::default();
            turns.enter(&names[0], &BTreeSet::new());
            turns.enter(&names[1], &BTreeSet::from([Arc::clone(&names[0])]));
            for (a, b) in sizes {
                let is_first = turns.computed(&names[0]) <= turns.computed(&names[1]);
                let (name, n) = if is_first { (&names[0], a) } else { (&names[1], b) };
                turns.charge(name, n);
                let found = names.each_ref().map(|name| turns.computed(name));
                prop_assert!(found[0].abs_diff(found[1]) <= 500, "{:?}", found);
            }
        }
    }
}
