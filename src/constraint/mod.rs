//! Constrained decoding: JSON Schema, regular expressions, context-free grammars.
//!
//! A [`Constraint`] is text from a request. A [`Compiler`], one for each model, compiles it into a
//! [`Compiled`], or reports what is wrong with it and where. Each completion gets its own [`Matcher`],
//! which gives the token mask and the forced tokens. GBNF becomes Lark in `gbnf`; the rest is the
//! library llguidance, under limits of time and memory that a hostile request cannot exceed. Not
//! here: models, logits, and when a mask is computed (the engine).
//!
//! Invariant: the tokens that a matcher allows form a prefix of a text that fits the constraint.

mod answer;
mod gbnf;
mod matcher;
mod schema;
mod vocabulary;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::TokEnv;
use llguidance::{CancellationHandle, ParserFactory};
use serde_json::Value;

use crate::common::panics::caught;
use crate::text::tokenizer::Tokenizer;

pub use answer::{Answer, Content, Thought};
pub use matcher::Matcher;

use vocabulary::Vocabulary;

/// Longest text of a constraint, in bytes.
pub const MAX_BYTES: usize = 256 << 10;
/// Maximum time for compiling a constraint.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of constraints that are compiled at once; half as many as there are processors, if that is less.
pub const MAX_AT_ONCE: usize = 4;
/// Maximum number of constraints beyond that whose time is over and which the library does not give up.
const MAX_OVERDUE: usize = 2;
/// Maximum number of constraints that wait for that.
pub const MAX_WAITING: usize = 128;
/// Maximum time that one waits.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// Stack size of the thread that compiles one, in bytes: chains of references recurse. Untouched
/// pages take no memory.
const STACK_BYTES: usize = 256 << 20;

/// Constraint on a completion.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// JSON that fits a JSON Schema.
    JsonSchema(Value),
    /// Text that a regular expression matches as a whole.
    Regex(String),
    /// Text of a grammar in the variant of Lark that llguidance reads.
    Lark(String),
    /// Text of a grammar in llama.cpp's GBNF.
    Gbnf(String),
    /// A whole answer: reasoning, then content or calls of tools.
    Answer(Box<Answer>),
}

impl Constraint {
    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::JsonSchema(serde_json::json!({ "type": "object" }))
    }

    /// A grammar in the notation of its first rule: GBNF has `name ::=`, Lark has `name:`.
    pub fn grammar(text: &str) -> Self {
        if gbnf::is_gbnf(text) {
            Self::Gbnf(text.to_owned())
        } else {
            Self::Lark(text.to_owned())
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::JsonSchema(schema) => schema.to_string().len(),
            Self::Regex(text) | Self::Lark(text) | Self::Gbnf(text) => text.len(),
            Self::Answer(answer) => answer.bytes(),
        }
    }
}

/// Why a constraint cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Its text is too long.
    #[error("the constraint has {found} bytes, expected at most {MAX_BYTES}")]
    TooLarge {
        /// Bytes of the text.
        found: usize,
    },
    /// A JSON Schema that is wrong or goes beyond what can be enforced.
    #[error("schema{at}: {message}")]
    Schema {
        /// JSON pointer of the place; empty for the whole.
        at: String,
        /// What is wrong.
        message: String,
    },
    /// A regular expression that is wrong or goes beyond what can be enforced.
    #[error("regular expression: {message}")]
    Regex {
        /// What is wrong.
        message: String,
    },
    /// A GBNF grammar that is wrong.
    #[error("grammar, line {line}, column {column}: {message}")]
    Gbnf {
        /// Line, from 1.
        line: usize,
        /// Character of the line, from 1.
        column: usize,
        /// What is wrong.
        message: String,
    },
    /// A Lark grammar that is wrong, or any grammar too large to be enforced.
    #[error("grammar: {message}")]
    Grammar {
        /// What is wrong, and where.
        message: String,
    },
    /// Compiling it took too long.
    #[error("the constraint is too complex: it was not ready after {} seconds", TIME_LIMIT.as_secs())]
    TooSlow,
    /// Too many others are being compiled.
    #[error("too many other constraints are being prepared; try again later")]
    Busy,
    /// The model's vocabulary does not fit into the tree of tokens.
    #[error("a vocabulary of {n_tokens} tokens cannot be constrained")]
    Vocabulary {
        /// Tokens of the vocabulary.
        n_tokens: usize,
    },
    /// The operating system gave no thread.
    #[error("no thread to prepare the constraint on")]
    NoThread,
    /// The grammar cannot continue the completion.
    #[error("the constraint cannot be followed any further: {message}")]
    Broken {
        /// What the library says.
        message: String,
    },
}

impl Error {
    fn broken(error: &dyn fmt::Display) -> Self {
        Self::Broken {
            message: first_part(&error.to_string()),
        }
    }
}

/// A message of the library without the dumps of its state that follow; it asserts some of its limits.
fn first_part(message: &str) -> String {
    if let Some(assertion) = message.strip_prefix("panic: ") {
        tracing::debug!(assertion, "a constraint");
        return "too large for what enforces it".into();
    }
    let end = message.find("\n<").unwrap_or(message.len());
    message[..end].trim_end().to_owned()
}

/// Compiles constraints for one vocabulary. The tree of its tokens is built when it is first needed.
pub struct Compiler {
    tokenizer: Arc<Tokenizer>,
    forces: bool,
    factory: OnceLock<Result<ParserFactory, Error>>,
    places: Mutex<Places>,
    freed: Condvar,
    wait_limit: Duration,
    /// Maximum number that are compiled at once in time.
    n_places: usize,
}

/// How many constraints are being compiled, and how many wait for that.
#[derive(Default)]
struct Places {
    running: usize,
    /// Those whose time is over, as far as their places were given to others.
    overdue: usize,
    waiting: usize,
}

/// The end of the time for compiling a constraint.
#[derive(Default)]
struct Deadline {
    is_over: AtomicBool,
    /// Ends the library's work, where it can be ended.
    handle: Mutex<Option<CancellationHandle>>,
}

impl Deadline {
    fn handle(&self) -> MutexGuard<'_, Option<CancellationHandle>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(handle) = &*self.handle() {
            handle.cancel();
        }
    }

    fn check(&self) -> Result<(), Error> {
        match self.is_over.load(Ordering::Relaxed) {
            true => Err(Error::TooSlow),
            false => Ok(()),
        }
    }

    /// A matcher that ends with the time.
    fn guard(&self, matcher: llguidance::Matcher) -> Result<llguidance::Matcher, Error> {
        let matcher = matcher.into_cancellable();
        *self.handle() = matcher.cancellation_handle();
        self.check().map(|()| matcher)
    }
}

impl Compiler {
    /// For completions of models with this vocabulary.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let n_processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            tokenizer,
            forces: true,
            factory: OnceLock::new(),
            places: Mutex::default(),
            freed: Condvar::new(),
            wait_limit: WAIT_LIMIT,
            n_places: (n_processors / 2).clamp(1, MAX_AT_ONCE),
        }
    }

    /// One whose matchers force no tokens: the model chooses how text that must come is split into tokens.
    pub fn without_forcing(tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            forces: false,
            ..Self::new(tokenizer)
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compiles a constraint. Blocks, in most cases for milliseconds.
    ///
    /// # Errors
    /// Any reason why it cannot be enforced exactly.
    pub fn compile(self: &Arc<Self>, constraint: Constraint) -> Result<Compiled, Error> {
        let found = constraint.bytes();
        if found > MAX_BYTES {
            return Err(Error::TooLarge { found });
        }
        let place = Place::take(self)?;
        let (done, result) = mpsc::sync_channel(1);
        let deadline = Arc::new(Deadline::default());
        let of_thread = Arc::clone(&deadline);
        let is_overdue = Arc::clone(&place.is_overdue);
        // A thread of its own, so that one that never ends costs a place and nothing else.
        std::thread::Builder::new()
            .name("constraint".into())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let compile = || place.compiler.compile_here(constraint, &of_thread);
                let compiled = caught(compile);
                drop(place);
                // Nobody waits once the time is over.
                let _ = done.send(compiled);
            })
            .map_err(|_| Error::NoThread)?;
        match result.recv_timeout(TIME_LIMIT) {
            Ok(Some(compiled)) => compiled,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                deadline.end();
                self.lend(&is_overdue);
                Err(Error::TooSlow)
            }
            Ok(None) | Err(mpsc::RecvTimeoutError::Disconnected) => Err(Error::Grammar {
                message: "preparing it failed".into(),
            }),
        }
    }

    /// Gives the place of a constraint whose time is over to others, unless it is free already or too many are.
    fn lend(&self, is_overdue: &AtomicBool) {
        let mut places = self.places();
        if places.overdue < MAX_OVERDUE && !is_overdue.swap(true, Ordering::Relaxed) {
            places.running -= 1;
            places.overdue += 1;
            self.freed.notify_one();
        }
    }

    fn compile_here(&self, constraint: Constraint, deadline: &Deadline) -> Result<Compiled, Error> {
        let factory = self.factory.get_or_init(|| self.make_factory());
        let factory = factory.as_ref().map_err(Clone::clone)?;
        let (grammar, refuse): (_, fn(String) -> Error) = match constraint {
            Constraint::JsonSchema(schema) => (
                TopLevelGrammar::from_json_schema(schema::prepare(schema)?),
                |message| Error::Schema {
                    at: String::new(),
                    message,
                },
            ),
            Constraint::Regex(text) => (regex(&text), |message| Error::Regex {
                message: of_regex(&message),
            }),
            Constraint::Lark(text) => (TopLevelGrammar::from_lark(text), |message| {
                Error::Grammar { message }
            }),
            Constraint::Gbnf(text) => (
                TopLevelGrammar::from_lark(gbnf::to_lark(&text)?),
                |message| Error::Grammar { message },
            ),
            Constraint::Answer(answer) => (
                TopLevelGrammar::from_lark(answer::to_lark(&answer, &self.tokenizer)?),
                |message| Error::Grammar { message },
            ),
        };
        deadline.check()?;
        let parser = factory
            .create_parser(grammar)
            .map_err(|error| refuse(first_part(&error.to_string())))?;
        deadline.check()?;
        let mut inner = llguidance::Matcher::new(Ok(parser));
        for warning in inner.grammar_warnings() {
            tracing::warn!(warning, "a constraint");
        }
        // Tells at once what no token can begin, and warms what all answers share.
        let mut first = Matcher::new(deadline.guard(inner.deep_clone())?);
        first.mask().map_err(|error| match error {
            Error::Broken { message } => {
                refuse(format!("no token can begin the answer: {message}"))
            }
            other => other,
        })?;
        Ok(Compiled {
            matcher: Matcher::new(inner),
        })
    }

    fn make_factory(&self) -> Result<ParserFactory, Error> {
        let vocabulary: TokEnv = Arc::new(Vocabulary::new(&self.tokenizer, self.forces)?);
        let mut factory =
            ParserFactory::new_simple(&vocabulary).map_err(|error| Error::Grammar {
                message: error.to_string(),
            })?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            // One to two kilobytes each: at most about 100 MB for one answer.
            max_lexer_states: 50_000,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(factory)
    }
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiler")
            .field("n_tokens", &self.tokenizer.vocab_len())
            .finish_non_exhaustive()
    }
}

/// One of the places for constraints that are being compiled.
struct Place {
    compiler: Arc<Compiler>,
    /// Whether it was given to others; it is given back once.
    is_overdue: Arc<AtomicBool>,
}

impl Place {
    /// Waits for a place.
    fn take(compiler: &Arc<Compiler>) -> Result<Self, Error> {
        let is_full = |places: &mut Places| places.running >= compiler.n_places;
        let mut places = compiler.places();
        if is_full(&mut places) {
            if places.waiting >= MAX_WAITING {
                return Err(Error::Busy);
            }
            places.waiting += 1;
            let limit = compiler.wait_limit;
            let waited = compiler.freed.wait_timeout_while(places, limit, is_full);
            places = waited.unwrap_or_else(PoisonError::into_inner).0;
            places.waiting -= 1;
            if is_full(&mut places) {
                return Err(Error::Busy);
            }
        }
        places.running += 1;
        Ok(Self {
            compiler: Arc::clone(compiler),
            is_overdue: Arc::default(),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.compiler.places();
        match self.is_overdue.swap(true, Ordering::Relaxed) {
            true => places.overdue -= 1,
            false => places.running -= 1,
        }
        drop(places);
        self.compiler.freed.notify_one();
    }
}

/// A compiled constraint, for any number of completions.
#[derive(Clone, Debug)]
pub struct Compiled {
    matcher: Matcher,
}

impl Compiled {
    /// A matcher at the beginning of a completion; shares nothing that grows with other completions.
    pub fn matcher(&self) -> Matcher {
        self.matcher.apart()
    }
}

/// A regular expression that must match the whole completion; anchors at its ends are redundant.
fn regex(text: &str) -> TopLevelGrammar {
    let inner = text.strip_prefix('^').unwrap_or(text);
    let inner = match inner.strip_suffix('$') {
        Some(rest) if !ends_in_escape(rest) => rest,
        _ => inner,
    };
    if inner.is_empty() {
        return TopLevelGrammar::from_lark("start: \"\"".into());
    }
    TopLevelGrammar::from_regex(inner)
}

/// What is wrong with a regular expression, without the grammar that was made from it.
fn of_regex(message: &str) -> String {
    let inner = message
        .split_once("(in regex): ")
        .map_or(message, |(_, rest)| rest);
    let inner = inner
        .split_once("\n   1 | start:")
        .map_or(inner, |(rest, _)| rest);
    inner.trim_end().to_owned()
}

/// Whether the next character would be escaped.
fn ends_in_escape(text: &str) -> bool {
    let backslashes = text.bytes().rev().take_while(|b| *b == b'\\').count();
    backslashes % 2 == 1
}
