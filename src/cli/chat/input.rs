//! The user's input: lines, blocks of several lines, commands.
//!
//! In a terminal, lines are edited and kept in a history; otherwise they are read as they are.

use std::io::{self, IsTerminal as _};

use rustyline::error::ReadlineError;
use rustyline::{Behavior, Config, DefaultEditor};

use crate::cli::Failure;
use crate::common::reading::{self, MAX_TEXT};

/// An input of the user.
pub(super) enum Entry {
    /// Text for the model.
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

/// The source of lines.
pub(super) enum Input {
    Terminal(Box<DefaultEditor>),
    Lines,
}

/// The mark that starts and ends a block of lines.
const BLOCK: &str = "\"\"\"";
/// The prompt for the further lines of a text.
const MORE: &str = ". ";

impl Input {
    pub(super) fn new(is_terminal: bool) -> Result<Self, Failure> {
        if !is_terminal {
            return Ok(Self::Lines);
        }
        // If stdout is a file, prompts must not be written to it.
        let behavior = match io::stdout().is_terminal() {
            true => Behavior::Stdio,
            false => Behavior::PreferTerm,
        };
        let config = Config::builder().auto_add_history(true).behavior(behavior);
        let editor = DefaultEditor::with_config(config.build())?;
        Ok(Self::Terminal(Box::new(editor)))
    }

    /// Reads a text or a command.
    pub(super) fn read(&mut self, prompt: &str) -> Result<Entry, Failure> {
        let mut text = match self.line(prompt)? {
            Entry::Text(line) => line,
            other => return Ok(other),
        };
        if let Some(rest) = text.strip_prefix(BLOCK) {
            return self.block(rest.to_owned());
        }
        while text.ends_with('\\') {
            text.pop();
            match self.line(MORE)? {
                Entry::Text(line) => {
                    text.push('\n');
                    text.push_str(&line);
                }
                Entry::End => break,
                other => return Ok(other),
            }
        }
        Ok(match text.strip_prefix('/') {
            None => Entry::Text(text),
            // The second slash escapes the first: the text itself starts with a slash.
            Some(rest) if rest.starts_with('/') => Entry::Text(rest.to_owned()),
            Some(command) => Entry::Command(command.to_owned()),
        })
    }

    /// Reads the text up to the mark that ends a block; `text` is its first line.
    fn block(&mut self, mut text: String) -> Result<Entry, Failure> {
        loop {
            if let Some(whole) = text.trim_end().strip_suffix(BLOCK) {
                let whole = whole.strip_prefix('\n').unwrap_or(whole);
                let whole = whole.strip_suffix('\n').unwrap_or(whole);
                return Ok(Entry::Text(whole.to_owned()));
            }
            match self.line(MORE)? {
                Entry::Text(line) => {
                    text.push('\n');
                    text.push_str(&line);
                }
                Entry::End => {
                    let fault = format!("the input ended before the {BLOCK} that ends a block");
                    return Ok(Entry::Fault(fault));
                }
                other => return Ok(other),
            }
        }
    }

    fn line(&mut self, prompt: &str) -> Result<Entry, Failure> {
        match self {
            Self::Terminal(editor) => match editor.readline(prompt) {
                Ok(line) => Ok(Entry::Text(line)),
                Err(ReadlineError::Interrupted) => Ok(Entry::Interrupted),
                Err(ReadlineError::Eof) => Ok(Entry::End),
                Err(error) => Err(error.into()),
            },
            Self::Lines => {
                let line = reading::line(&mut io::stdin().lock(), MAX_TEXT)?;
                Ok(line.map_or(Entry::End, |line| {
                    line.map_or_else(Entry::Fault, Entry::Text)
                }))
            }
        }
    }
}
