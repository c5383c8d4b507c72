//! Work in pieces: all cores make them, and the calling thread takes them in order.
//!
//! The only code that starts threads for a loop over pieces of data. It knows nothing of tensors. Callers are the code
//! that reads, converts, loads and checks weights.
//!
//! Invariant: at most three pieces for each core are held at a time, however slowly they are taken.

use std::sync::{LazyLock, mpsc};

/// The number of cores, queried once: the system reads several files for the answer.
fn n_cores() -> usize {
    static N: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    *N
}

/// Makes the pieces `0..n` on all cores and passes them to `take` one after another, in order. A panic
/// of `make` continues in the caller.
///
/// # Errors
/// The error of the first piece that has one. Later pieces may have been made and are dropped.
pub fn in_order<T: Send, E: Send>(
    n: usize,
    make: impl Fn(usize) -> Result<T, E> + Sync,
    mut take: impl FnMut(T) -> Result<(), E>,
) -> Result<(), E> {
    let n_threads = if n > 1 { n_cores().min(n) } else { n };
    if n_threads <= 1 {
        return (0..n).try_for_each(|i| take(make(i)?));
    }
    std::thread::scope(|scope| {
        let start = |first: usize| {
            let (send, results) = mpsc::sync_channel(1);
            let make = &make;
            let work = move || {
                for i in (first..n).step_by(n_threads) {
                    let made = make(i);
                    // Pieces after an error are not taken.
                    if made.is_err() | send.send(made).is_err() {
                        return;
                    }
                }
            };
            (scope.spawn(work), results)
        };
        let (mut workers, results): (Vec<_>, Vec<_>) = (0..n_threads).map(start).unzip();
        for i in 0..n {
            match results[i % n_threads].recv() {
                Ok(made) => take(made?)?,
                // A worker ends early only after an error, which was returned, or by a panic.
                Err(_) => match workers.swap_remove(i % n_threads).join() {
                    Err(panic) => std::panic::resume_unwind(panic),
                    Ok(()) => unreachable!("piece {i} was sent"),
                },
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn pieces_are_taken_in_order() {
        for n in [0, 1, 2, 1000] {
            let mut taken = Vec::new();
            let all = in_order(
                n,
                |i| Ok::<_, ()>(i * i),
                |piece| {
                    taken.push(piece);
                    Ok(())
                },
            );
            assert_eq!(all, Ok(()));
            assert_eq!(taken, (0..n).map(|i| i * i).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_first_error_wins_and_ends_the_work() {
        let made = AtomicUsize::new(0);
        let mut taken = 0;
        let make = |i: usize| {
            made.fetch_add(1, Ordering::Relaxed);
            if i >= 5 { Err(i) } else { Ok(i) }
        };
        let take = |_| {
            taken += 1;
            Ok(())
        };
        assert_eq!(in_order(100_000, make, take), Err(5));
        assert_eq!(taken, 5);
        assert!(made.load(Ordering::Relaxed) < 1000);

        let refused = in_order(100_000, Ok, |i: usize| if i == 7 { Err(i) } else { Ok(()) });
        assert_eq!(refused, Err(7));
    }

    #[test]
    fn a_panic_goes_on_in_the_caller() {
        let all = || {
            in_order(
                50,
                |i| {
                    if i == 20 {
                        std::panic::panic_any("piece 20");
                    }
                    Ok::<_, ()>(())
                },
                Ok,
            )
        };
        let panic = std::panic::catch_unwind(all).expect_err("a panic");
        assert_eq!(panic.downcast_ref(), Some(&"piece 20"));
    }
}
