//! Limits of size, time and number for compiling constraints.

use std::time::Duration;

/// Maximum size of the text of a constraint, in bytes.
pub const MAX_BYTES: usize = 256 << 10;
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of constraints that are compiled at once. If half the number of processors is less, that is the
/// limit.
pub const MAX_AT_ONCE: usize = 4;
/// Maximum number of overdue compilations beyond that, which the library has not stopped.
pub(super) const MAX_OVERDUE: usize = 2;
/// Maximum number of constraints that wait for a place.
pub const MAX_WAITING: usize = 128;
pub(super) const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// Stack size of the thread that compiles a constraint, in bytes: chains of references recurse. Untouched pages take no
/// memory.
pub(super) const STACK_BYTES: usize = 256 << 20;
