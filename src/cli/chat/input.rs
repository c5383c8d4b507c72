//! The user's input: lines, blocks of several lines, commands.
//!
//! In a terminal, lines are edited and kept in a history; otherwise they are read as they are. Invariant: what is typed
//! or pasted while nothing is read is kept for the next inputs.

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{
    Behavior, Cmd, CompletionType, ConditionalEventHandler, Config, Editor, Event, EventContext,
    EventHandler, KeyEvent, RepeatCount,
};

use crate::cli::Failure;
use lab_base::util::limited_read::{self, MAX_TEXT};

use super::complete::CommandCompleter;
use super::terminal::Terminal;

pub(super) enum InputEntry {
    Text(String),
    /// A command, without the slash.
    Command(String),
    /// The user pressed Ctrl-C.
    Interrupted,
    /// An invalid input, with the reason.
    Fault(String),
    /// The end of the input, or Ctrl-D.
    End,
}

pub(super) enum Input {
    Terminal(Box<TerminalLines>),
    Stdin,
}

pub(super) struct TerminalLines {
    editor: Editor<CommandCompleter, DefaultHistory>,
    terminal: Option<Terminal>,
    /// Whether Ctrl-C ended the line.
    is_interrupted: Arc<AtomicBool>,
    history: Option<PathBuf>,
}

/// Ctrl-C as a key that ends a line. As an error, as which the editor has it, it would lose what was typed after it.
struct Interrupt(Arc<AtomicBool>);

impl ConditionalEventHandler for Interrupt {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, _: &EventContext<'_>) -> Option<Cmd> {
        self.0.store(true, Ordering::Relaxed);
        Some(Cmd::AcceptLine)
    }
}

/// Number of entries of the history.
const MAX_HISTORY: usize = 1000;
/// Maximum size of an entry of the history, in bytes.
const MAX_ENTRY: usize = 16 << 10;

/// The mark that starts and ends a block of lines.
const BLOCK: &str = "\"\"\"";
/// The prompt for the further lines of a text.
const MORE: &str = ". ";

impl Input {
    /// The lines of a terminal, with a history across conversations if one is kept, or of stdin.
    pub(super) fn new(is_terminal: bool, has_history: bool) -> Result<Self, Failure> {
        if !is_terminal {
            return Ok(Self::Stdin);
        }
        // If stdout is a file, prompts must not be written to it.
        let behavior = match io::stdout().is_terminal() {
            true => Behavior::Stdio,
            false => Behavior::PreferTerm,
        };
        let config = Config::builder()
            .behavior(behavior)
            .bracketed_paste(false)
            .completion_type(CompletionType::List)
            .history_ignore_space(true)
            .max_history_size(MAX_HISTORY)?;
        let mut editor = Editor::with_config(config.build())?;
        editor.set_helper(Some(CommandCompleter));
        let is_interrupted = Arc::new(AtomicBool::new(false));
        let interrupt = Interrupt(Arc::clone(&is_interrupted));
        let key = KeyEvent::ctrl('C');
        editor.bind_sequence(key, EventHandler::Conditional(Box::new(interrupt)));
        let history = history_file().filter(|_| has_history);
        if let Some(path) = &history {
            // A history that cannot be read is begun anew.
            let _ = editor.load_history(path);
        }
        Ok(Self::Terminal(Box::new(TerminalLines {
            editor,
            terminal: Terminal::new()?,
            is_interrupted,
            history,
        })))
    }

    pub(super) fn read(&mut self, prompt: &str) -> Result<InputEntry, Failure> {
        let mut text = match self.line(prompt)? {
            InputEntry::Text(line) => line,
            other => return Ok(other),
        };
        if let Some(rest) = text.strip_prefix(BLOCK) {
            return self.block(rest.to_owned());
        }
        while text.ends_with('\\') {
            text.pop();
            match self.line(MORE)? {
                InputEntry::Text(line) => {
                    text.push('\n');
                    text.push_str(&line);
                }
                InputEntry::End => break,
                other => return Ok(other),
            }
        }
        Ok(match text.strip_prefix('/') {
            None => InputEntry::Text(text),
            // The second slash escapes the first: the text itself starts with a slash.
            Some(rest) if rest.starts_with('/') => InputEntry::Text(rest.to_owned()),
            Some(command) => InputEntry::Command(command.to_owned()),
        })
    }

    /// Reads the text up to the mark that ends a block; `text` is its first line.
    fn block(&mut self, mut text: String) -> Result<InputEntry, Failure> {
        loop {
            if let Some(whole) = text.trim_end().strip_suffix(BLOCK) {
                let whole = whole.strip_prefix('\n').unwrap_or(whole);
                let whole = whole.strip_suffix('\n').unwrap_or(whole);
                return Ok(InputEntry::Text(whole.to_owned()));
            }
            match self.line(MORE)? {
                InputEntry::Text(line) => {
                    text.push('\n');
                    text.push_str(&line);
                }
                InputEntry::End => {
                    let fault = format!("the input ended before the {BLOCK} that ends a block");
                    return Ok(InputEntry::Fault(fault));
                }
                other => return Ok(other),
            }
        }
    }

    fn line(&mut self, prompt: &str) -> Result<InputEntry, Failure> {
        match self {
            Self::Terminal(lines) => lines.next(prompt),
            Self::Stdin => {
                let line = limited_read::line(&mut io::stdin().lock(), MAX_TEXT)?;
                Ok(line.map_or(InputEntry::End, |line| {
                    line.map_or_else(InputEntry::Fault, InputEntry::Text)
                }))
            }
        }
    }
}

impl TerminalLines {
    fn next(&mut self, prompt: &str) -> Result<InputEntry, Failure> {
        if let Some(terminal) = &self.terminal {
            terminal.listen();
        }
        let read = self.editor.readline(prompt);
        if let Some(terminal) = &self.terminal {
            terminal.silence();
        }
        let is_interrupted = self.is_interrupted.swap(false, Ordering::Relaxed);
        match read {
            Ok(_) if is_interrupted => Ok(InputEntry::Interrupted),
            Ok(line) => {
                self.remember(&line);
                Ok(InputEntry::Text(line))
            }
            Err(ReadlineError::Interrupted) => Ok(InputEntry::Interrupted),
            Err(ReadlineError::Eof) => Ok(InputEntry::End),
            Err(error) => Err(error.into()),
        }
    }

    /// Adds a line to the history. Without a place for its file the history ends with the conversation.
    fn remember(&mut self, line: &str) {
        if line.len() > MAX_ENTRY || !matches!(self.editor.add_history_entry(line), Ok(true)) {
            return;
        }
        let Some(path) = &self.history else { return };
        let kept = folder_of_user(path)
            .and_then(|()| self.editor.append_history(path).map_err(io::Error::other));
        if let Err(error) = kept {
            tracing::warn!("{}: the history is not kept: {error}", path.display());
            self.history = None;
        }
    }
}

/// The file of the history, in the user's data folder.
fn history_file() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let data = set("XDG_DATA_HOME").map(PathBuf::from);
    // By the rules of the variable a relative path does not count.
    let data = data.filter(|path| path.is_absolute());
    let data = data.or_else(|| Some(Path::new(&set("HOME")?).join(".local/share")))?;
    Some(data.join("bench/chat-history"))
}

/// Creates the folder of a file, for its owner alone.
fn folder_of_user(path: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    path.parent()
        .map_or(Ok(()), |folder| builder.create(folder))
}
