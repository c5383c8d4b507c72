//! The deaths of a model's engine processes: what is reported of them, and when restarts are suspended.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lab_base::util::lock::lock;

use super::{LoadState, ModelEntry};
use crate::http::error::Error;

/// Number of deaths within [`WINDOW`] after which no process is started until the first of them is older than that.
const MAX: usize = 3;
const WINDOW: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct CrashHistory {
    n: u64,
    /// The times of the last `MAX` deaths.
    times: VecDeque<Instant>,
    last: Option<String>,
    /// Whether a process was started after the last death.
    is_over: bool,
}

impl CrashHistory {
    pub(crate) fn note(&mut self, how: &str) {
        self.note_at(how, Instant::now());
    }

    fn note_at(&mut self, how: &str, now: Instant) {
        self.n += 1;
        self.last = Some(how.to_owned());
        self.is_over = false;
        self.times.push_back(now);
        while self.times.len() > MAX {
            self.times.pop_front();
        }
    }

    pub(crate) fn end(&mut self) {
        self.is_over = true;
    }

    /// The number of deaths, and how the last process died unless another was started since.
    pub(crate) fn report(&self) -> (u64, Option<String>) {
        (self.n, self.last.clone().filter(|_| !self.is_over))
    }

    /// The remaining time in which no process is started.
    fn rest(&self, now: Instant) -> Option<Duration> {
        let first = self.times.front().filter(|_| self.times.len() == MAX)?;
        let left = WINDOW.checked_sub(now.saturating_duration_since(*first))?;
        (!left.is_zero()).then_some(left)
    }
}

impl ModelEntry {
    pub(crate) fn check_restart(&self) -> Result<(), Error> {
        if !matches!(*lock(&self.state), LoadState::NotLoaded) {
            return Ok(());
        }
        let deaths = lock(&self.crashes);
        match (deaths.rest(Instant::now()), &deaths.last) {
            (Some(after), Some(how)) => Err(Error::EngineSuspended {
                name: self.name.clone(),
                how: how.clone(),
                n: MAX,
                after,
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_deaths_within_a_minute_are_too_many() {
        let (mut deaths, start) = (CrashHistory::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        deaths.note_at("a", at(0));
        deaths.note_at("b", at(30));
        assert_eq!(deaths.rest(at(30)), None);
        deaths.note_at("c", at(50));
        assert_eq!(deaths.rest(at(51)), Some(Duration::from_secs(9)));
        assert_eq!(deaths.rest(at(60)), None);
        // Less than a minute after the second death.
        deaths.note_at("d", at(80));
        assert_eq!(deaths.rest(at(80)), Some(Duration::from_secs(10)));
        assert_eq!(deaths.rest(at(91)), None);
        assert_eq!(deaths.report(), (4, Some("d".into())));
        deaths.end();
        assert_eq!(deaths.report(), (4, None));
    }
}
