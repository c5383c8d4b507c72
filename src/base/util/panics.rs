//! Panics of libraries on untrusted input: the caller gets an error, and nothing is printed to stderr.
//!
//! For calls that leave no half-changed state that is used afterwards.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// The number of running calls of [`caught`] on this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Calls a function; `None` if it panics. The panic is not printed.
pub fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            // A thread that is ending has no thread-local value.
            match DEPTH.try_with(Cell::get) {
                Ok(1..) => tracing::debug!(%panic, "caught"),
                _ => before(panic),
            }
        }));
    });
    DEPTH.with(|depth| depth.set(depth.get() + 1));
    let result = catch_unwind(AssertUnwindSafe(call));
    DEPTH.with(|depth| depth.set(depth.get() - 1));
    result.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_no_result() {
        assert_eq!(caught(|| 3), Some(3));
        assert_eq!(caught(|| -> u8 { panic!("expected") }), None);
        let inner = || (caught(|| -> u8 { panic!("expected") }), 4);
        assert_eq!(caught(inner), Some((None, 4)));
        DEPTH.with(|depth| assert_eq!(depth.get(), 0));
    }
}
