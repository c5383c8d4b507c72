//! The compiler of constraints: the limited number of places to compile at once, and the compiled constraint.
//!
//! Invariant: each place is released exactly once.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use llguidance::ParserFactory;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::TokEnv;

use super::deadline::Deadline;
use super::error::first_part;
use super::lark_regex::{lark_literal, regex_message};
use super::limits::{MAX_OVERDUE, STACK_BYTES, TIME_LIMIT, WAIT_LIMIT};
use super::vocabulary::ConstraintVocabulary;
use super::{
    Constraint, Error, MAX_AT_ONCE, MAX_BYTES, MAX_WAITING, Matcher, answer, gbnf, schema,
};
use crate::tokenizer::Tokenizer;
use crate::util::lock::lock;
use crate::util::panics::caught;

/// Compiles constraints for one vocabulary. The tree of tokens is built on first use.
pub struct Compiler {
    pub(super) tokenizer: Arc<Tokenizer>,
    forces: bool,
    factory: OnceLock<Result<ParserFactory, Error>>,
    places: Mutex<CompileSlots>,
    freed: Condvar,
    pub(super) wait_limit: Duration,
    pub(super) n_places: usize,
}

#[derive(Default)]
pub(super) struct CompileSlots {
    pub(super) running: usize,
    /// Compilations past their time limit whose places were given to others.
    pub(super) overdue: usize,
    waiting: usize,
}

impl Compiler {
    /// A compiler for models with the vocabulary of this tokenizer.
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

    /// A compiler whose matchers force no tokens: the model chooses how required text is split into tokens.
    pub fn without_forcing(tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            forces: false,
            ..Self::new(tokenizer)
        }
    }

    pub(super) fn places(&self) -> MutexGuard<'_, CompileSlots> {
        lock(&self.places)
    }

    /// Compiles a constraint. Blocks, usually for milliseconds.
    pub fn compile(self: &Arc<Self>, constraint: Constraint) -> Result<CompiledConstraint, Error> {
        self.compile_with(constraint, true)
    }

    /// The same for completions in which tokens are banned: none is forced, so that required text may be split into
    /// tokens that are allowed.
    pub fn compile_without_forcing(
        self: &Arc<Self>,
        constraint: Constraint,
    ) -> Result<CompiledConstraint, Error> {
        self.compile_with(constraint, false)
    }

    fn compile_with(
        self: &Arc<Self>,
        constraint: Constraint,
        forces: bool,
    ) -> Result<CompiledConstraint, Error> {
        let found = constraint.bytes();
        if found > MAX_BYTES {
            return Err(Error::TooLarge { found });
        }
        let place = CompilePermit::take(self)?;
        let (done, result) = mpsc::sync_channel(1);
        let deadline = Arc::new(Deadline::default());
        let of_thread = Arc::clone(&deadline);
        let is_overdue = Arc::clone(&place.is_overdue);
        // A separate thread: a compilation that never ends costs a place and nothing else.
        std::thread::Builder::new()
            .name("constraint".into())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let compile = || {
                    place
                        .compiler
                        .compile_on_this_thread(constraint, forces, &of_thread)
                };
                let compiled = caught(compile);
                drop(place);
                // After the time limit nobody receives the result.
                let _ = done.send(compiled);
            })
            .map_err(|_| Error::NoThread)?;
        match result.recv_timeout(TIME_LIMIT) {
            Ok(Some(compiled)) => compiled,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                deadline.end();
                self.release_overdue(&is_overdue);
                Err(Error::TooSlow)
            }
            Ok(None) | Err(mpsc::RecvTimeoutError::Disconnected) => Err(Error::Grammar {
                message: "compiling the constraint failed".into(),
            }),
        }
    }

    /// Gives the place of an overdue compilation to others, unless it is released already or too many are overdue.
    pub(super) fn release_overdue(&self, is_overdue: &AtomicBool) {
        let mut places = self.places();
        if places.overdue < MAX_OVERDUE && !is_overdue.swap(true, Ordering::Relaxed) {
            places.running -= 1;
            places.overdue += 1;
            self.freed.notify_one();
        }
    }

    pub(super) fn compile_on_this_thread(
        &self,
        constraint: Constraint,
        forces: bool,
        deadline: &Deadline,
    ) -> Result<CompiledConstraint, Error> {
        let factory = self.factory.get_or_init(|| self.make_factory());
        let factory = factory.as_ref().map_err(Clone::clone)?;
        let in_grammar: fn(String) -> Error = |message| Error::Grammar { message };
        let in_schema: fn(String) -> Error = |message| Error::Schema {
            at: String::new(),
            message,
        };
        let in_regex: fn(String) -> Error = |message| Error::Regex {
            message: regex_message(&message),
        };
        let (mut grammar, refuse) = match constraint {
            Constraint::JsonSchema(schema) => (schema::to_lark(&schema, deadline)?, in_schema),
            Constraint::Regex(text) => (format!("start: {}", lark_literal(&text)), in_regex),
            Constraint::Lark(text) => (text, in_grammar),
            Constraint::Gbnf(text) => (gbnf::to_lark(&text)?, in_grammar),
            Constraint::Answer(answer) => (
                answer::to_lark(&answer, &self.tokenizer, deadline)?,
                in_grammar,
            ),
        };
        if !forces {
            grammar.push_str("\n%llguidance {\"no_forcing\": true}\n");
        }
        let grammar = TopLevelGrammar::from_lark(grammar);
        deadline.check()?;
        let parser = factory
            .create_parser(grammar)
            .map_err(|error| refuse(first_part(&error.to_string())))?;
        deadline.check()?;
        let mut inner = llguidance::Matcher::new(Ok(parser));
        for warning in inner.grammar_warnings() {
            tracing::warn!(warning, "a constraint");
        }
        // Fails early if no token can begin the completion, and fills the caches that all completions share.
        let mut first = Matcher::new(deadline.guard(inner.deep_clone())?);
        first.mask().map_err(|error| match error {
            Error::Broken { message } => {
                refuse(format!("no token can begin the answer: {message}"))
            }
            other => other,
        })?;
        Ok(CompiledConstraint {
            matcher: Matcher::new(inner),
        })
    }

    fn make_factory(&self) -> Result<ParserFactory, Error> {
        let vocabulary: TokEnv = Arc::new(ConstraintVocabulary::new(&self.tokenizer, self.forces)?);
        let mut factory =
            ParserFactory::new_simple(&vocabulary).map_err(|error| Error::Grammar {
                message: error.to_string(),
            })?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            // Each state takes one to two kilobytes: at most about 100 MB for one completion.
            max_lexer_states: 50_000,
            // An object with 1000 optional properties needs some thousands: each of them may be the next one.
            max_items_in_row: 20_000,
            // At most some ten milliseconds for a mask.
            step_max_items: 500_000,
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

pub(super) struct CompilePermit {
    compiler: Arc<Compiler>,
    pub(super) is_overdue: Arc<AtomicBool>,
}

impl CompilePermit {
    pub(super) fn take(compiler: &Arc<Compiler>) -> Result<Self, Error> {
        let is_full = |places: &mut CompileSlots| places.running >= compiler.n_places;
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

impl Drop for CompilePermit {
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
pub struct CompiledConstraint {
    pub(super) matcher: Matcher,
}

impl CompiledConstraint {
    /// A matcher at the beginning of a completion. It shares nothing that grows with other completions.
    pub fn matcher(&self) -> Matcher {
        self.matcher.apart()
    }
}
