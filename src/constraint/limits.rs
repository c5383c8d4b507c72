//! Limits of size, time and number for compiling constraints.

use std::time::Duration;

/// Longest text of a constraint, in bytes.
pub const MAX_BYTES: usize = 256 << 10;
/// Maximum time for compiling a constraint.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of constraints that are compiled at once; half as many as there are processors, if that is less.
pub const MAX_AT_ONCE: usize = 4;
/// Maximum number of constraints beyond that whose time is over and which the library does not give up.
pub(super) const MAX_OVERDUE: usize = 2;
/// Maximum number of constraints that wait for that.
pub const MAX_WAITING: usize = 128;
/// Maximum time that one waits.
pub(super) const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// Stack size of the thread that compiles one, in bytes: chains of references recurse. Untouched
/// pages take no memory.
pub(super) const STACK_BYTES: usize = 256 << 20;
