//! The end of the time for compiling a constraint.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use llguidance::CancellationHandle;

use super::Error;

/// The end of the time for compiling a constraint.
#[derive(Default)]
pub(super) struct Deadline {
    is_over: AtomicBool,
    /// Ends the library's work, where it can be ended.
    handle: Mutex<Option<CancellationHandle>>,
}

impl Deadline {
    fn handle(&self) -> MutexGuard<'_, Option<CancellationHandle>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// A matcher that ends with the time.
    pub(super) fn guard(&self, matcher: llguidance::Matcher) -> Result<llguidance::Matcher, Error> {
        let matcher = matcher.into_cancellable();
        *self.handle() = matcher.cancellation_handle();
        self.check().map(|()| matcher)
    }
}
