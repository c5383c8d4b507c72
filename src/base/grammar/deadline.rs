//! The time limit for compiling a constraint.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use llguidance::CancellationHandle;

use super::Error;
use crate::util::lock::lock;

#[derive(Default)]
pub(super) struct Deadline {
    is_over: AtomicBool,
    /// The handle that stops the library's work, where it can be stopped.
    handle: Mutex<Option<CancellationHandle>>,
}

impl Deadline {
    fn handle(&self) -> MutexGuard<'_, Option<CancellationHandle>> {
        lock(&self.handle)
    }

    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(handle) = &*self.handle() {
            handle.cancel();
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        match self.is_over.load(Ordering::Relaxed) {
            true => Err(Error::TooSlow),
            false => Ok(()),
        }
    }

    pub(super) fn guard(&self, matcher: llguidance::Matcher) -> Result<llguidance::Matcher, Error> {
        let matcher = matcher.into_cancellable();
        *self.handle() = matcher.cancellation_handle();
        self.check().map(|()| matcher)
    }
}
