//! The mode of the terminal between two inputs: what is typed meanwhile is neither shown nor lost.
//!
//! It stays in the terminal's queue for the next inputs. Invariant: the former mode is restored at
//! the end of the conversation, also at a signal that ends the program.

use crate::cli::Failure;

/// Terminals without line editing, as `rustyline` decides.
const PLAIN: [&str; 3] = ["dumb", "cons25", "emacs"];

/// Whether lines of this terminal can be edited.
pub(super) fn is_edited() -> bool {
    let term = std::env::var("TERM").unwrap_or_default();
    !PLAIN.iter().any(|plain| plain.eq_ignore_ascii_case(&term))
}

#[cfg(unix)]
mod unix {
    use std::io::{self, IsTerminal as _, Write as _};

    use rustix::termios::{
        InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr,
        tcgetwinsize, tcsetattr,
    };
    use tokio::signal::unix::SignalKind;

    use super::{Failure, is_edited};
    use crate::cli::output;

    /// Text that is pasted comes between marks from now on.
    const MARK_PASTES: &[u8] = b"\x1b[?2004h";
    const MARK_NO_PASTES: &[u8] = b"\x1b[?2004l";

    /// Writes to the terminal.
    fn control(bytes: &[u8]) {
        let (mut out, mut err) = (io::stdout(), io::stderr());
        // Where the terminal is gone nothing has to be said to it.
        let _ = match (out.is_terminal(), err.is_terminal()) {
            (true, _) => out.write_all(bytes).and_then(|()| out.flush()),
            (false, true) => err.write_all(bytes),
            (false, false) => Ok(()),
        };
    }

    /// Restores the former mode.
    fn restore(before: &Termios, is_edited: bool) {
        if is_edited {
            control(MARK_NO_PASTES);
        }
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
    }

    /// The terminal of stdin. Dropping it restores its mode.
    pub(in super::super) struct Terminal {
        before: Termios,
        is_edited: bool,
    }

    impl Terminal {
        /// Silences the terminal.
        pub(in super::super) fn new() -> Result<Option<Self>, Failure> {
            let Ok(before) = tcgetattr(io::stdin()) else {
                return Ok(None);
            };
            let is_edited = is_edited();
            let ends = [
                SignalKind::terminate(),
                SignalKind::hangup(),
                SignalKind::quit(),
            ];
            let of_signal = before.clone();
            output::end_on_signals(&ends, &[SignalKind::interrupt()], move || {
                restore(&of_signal, is_edited);
            })?;
            let this = Self { before, is_edited };
            if is_edited {
                control(MARK_PASTES);
            }
            this.silence();
            Ok(Some(this))
        }

        /// The mode while nothing is read.
        pub(in super::super) fn silence(&self) {
            let mut mode = self.before.clone();
            mode.local_modes.remove(LocalModes::ECHO);
            // Ctrl-C stops an answer and leaves what was typed.
            mode.local_modes.insert(LocalModes::NOFLSH);
            if self.is_edited {
                // As `rustyline` reads: a line has no maximum length, and keys are not translated.
                let cooked = LocalModes::ICANON | LocalModes::IEXTEN;
                mode.local_modes.remove(cooked);
                mode.input_modes.remove(InputModes::ICRNL);
                mode.special_codes[SpecialCodeIndex::VMIN] = 1;
                mode.special_codes[SpecialCodeIndex::VTIME] = 0;
            }
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &mode);
        }

        /// The mode while a line is read: the former one if lines cannot be edited.
        pub(in super::super) fn listen(&self) {
            if !self.is_edited {
                let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
            }
        }
    }

    impl Drop for Terminal {
        fn drop(&mut self) {
            restore(&self.before, self.is_edited);
        }
    }

    /// Number of columns of the terminal at stdout, if it is one.
    pub(in super::super) fn n_columns() -> Option<usize> {
        let out = io::stdout();
        let size = out.is_terminal().then(|| tcgetwinsize(&out).ok())??;
        // A terminal that does not know its size.
        Some(if size.ws_col == 0 {
            80
        } else {
            usize::from(size.ws_col)
        })
    }
}

#[cfg(not(unix))]
mod other {
    use super::Failure;

    /// The stub for systems without terminal modes.
    pub(in super::super) struct Terminal;

    impl Terminal {
        /// Nothing.
        pub(in super::super) fn new() -> Result<Option<Self>, Failure> {
            Ok(None)
        }

        pub(in super::super) fn silence(&self) {}

        pub(in super::super) fn listen(&self) {}
    }

    pub(in super::super) fn n_columns() -> Option<usize> {
        None
    }
}

#[cfg(not(unix))]
pub(super) use other::{Terminal, n_columns};
#[cfg(unix)]
pub(super) use unix::{Terminal, n_columns};
