//! Constraints of active requests: a thread that advances matchers while passes run.
//!
//! A chosen token goes to the [`ConstraintWorker`] with its matcher. The forced tokens come back first, because they belong
//! to the next pass. The mask for the token after them is computed while that pass runs. The engine waits only for
//! the reply that it needs next. Each engine has one thread, which starts with the first constraint and ends with
//! the engine. Nothing here knows the model.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use lab_base::grammar;
use lab_base::grammar::{CompiledConstraint, Matcher};

use super::event::Failure;

/// Why a constrained completion cannot continue.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConstraintError {
    /// The grammar allows no further token.
    #[error(transparent)]
    Constraint(#[from] grammar::Error),
    /// The thread that advances matchers has ended.
    #[error("the thread for constraints has ended")]
    NoWorker,
}

impl From<ConstraintError> for Failure {
    fn from(fault: ConstraintError) -> Self {
        match fault {
            ConstraintError::Constraint(error) => Self::Constraint(error.to_string()),
            ConstraintError::NoWorker => Self::Computation(fault.to_string()),
        }
    }
}

/// The tokens that must come next.
#[derive(Debug)]
pub(super) struct ForcedTokens {
    pub(super) tokens: Vec<u32>,
    /// Whether the completion ends after them.
    pub(super) is_complete: bool,
}

/// A matcher, what to do with it, and where the replies go.
struct MatcherJob {
    matcher: MatcherOrigin,
    replies: SyncSender<Reply>,
}

enum MatcherOrigin {
    /// The matcher of a new completion.
    New(CompiledConstraint),
    /// The matcher of a completion, and its chosen token.
    Chosen(Matcher, u32),
}

enum Reply {
    Forced(ForcedTokens),
    Mask(Vec<u32>, Box<Matcher>),
    Fault(grammar::Error),
}

#[derive(Default)]
pub(super) struct ConstraintWorker {
    jobs: OnceLock<Option<Sender<MatcherJob>>>,
}

impl ConstraintWorker {
    /// The constraint of a new completion. Its matcher starts at once.
    pub(super) fn start(&self, compiled: &CompiledConstraint) -> ActiveConstraint {
        let jobs = self.jobs.get_or_init(spawn);
        let mut this = ActiveConstraint {
            jobs: jobs.clone(),
            state: State::Lost,
        };
        this.send(MatcherOrigin::New(compiled.clone()));
        this
    }
}

/// Starts the thread. Without it only constrained requests fail.
fn spawn() -> Option<Sender<MatcherJob>> {
    let (jobs, queue) = channel();
    let thread = std::thread::Builder::new()
        .name("constraints".into())
        .spawn(move || work(&queue));
    match thread {
        Ok(_) => Some(jobs),
        Err(error) => {
            tracing::error!(%error, "no thread for constraints");
            None
        }
    }
}

/// Serves jobs until the engine ends. Forced tokens come before any mask, because passes wait for them.
fn work(queue: &Receiver<MatcherJob>) {
    let mut open = VecDeque::new();
    loop {
        let job = if open.is_empty() {
            match queue.recv() {
                Ok(job) => Some(job),
                Err(_) => return,
            }
        } else {
            queue.try_recv().ok()
        };
        match job {
            Some(MatcherJob { matcher, replies }) => {
                if let Some(matcher) = advance(matcher, &replies) {
                    open.push_back((matcher, replies));
                }
            }
            None => {
                if let Some((mut matcher, replies)) = open.pop_front() {
                    let reply = match matcher.mask() {
                        Ok(mask) => Reply::Mask(mask, Box::new(matcher)),
                        Err(error) => Reply::Fault(error),
                    };
                    // Nobody waits for the mask of a cancelled request.
                    let _ = replies.send(reply);
                }
            }
        }
    }
}

/// Advances a matcher over the chosen token and the forced tokens after it. Returns the matcher if tokens remain to
/// be chosen.
fn advance(origin: MatcherOrigin, replies: &SyncSender<Reply>) -> Option<Matcher> {
    let advanced = match origin {
        MatcherOrigin::New(compiled) => Ok(compiled.matcher()),
        MatcherOrigin::Chosen(mut matcher, token) => matcher.accept(token).map(|()| matcher),
    };
    let forced = advanced.and_then(|mut matcher| matcher.forced().map(|tokens| (matcher, tokens)));
    match forced {
        Ok((matcher, tokens)) => {
            let is_complete = matcher.is_stopped();
            let forced = ForcedTokens {
                tokens,
                is_complete,
            };
            let is_wanted = replies.send(Reply::Forced(forced)).is_ok();
            (is_wanted && !is_complete).then_some(matcher)
        }
        Err(error) => {
            let _ = replies.send(Reply::Fault(error));
            None
        }
    }
}

pub(super) struct ActiveConstraint {
    jobs: Option<Sender<MatcherJob>>,
    state: State,
}

enum State {
    /// The forced tokens have not been received.
    Moving(Receiver<Reply>),
    /// The forced tokens have been received and not been given.
    Forced(ForcedTokens, Receiver<Reply>),
    /// The mask has not been received.
    Masking(Receiver<Reply>),
    /// A token can be chosen.
    Ready(Vec<u32>, Box<Matcher>),
    /// The completion is complete.
    Complete,
    /// An error occurred and was reported.
    Lost,
}

impl ActiveConstraint {
    /// The tokens that must come next, received once after each choice; `None` if they were received before. Waits
    /// for the worker.
    pub(super) fn forced(&mut self) -> Result<Option<ForcedTokens>, ConstraintError> {
        self.receive()?;
        match std::mem::replace(&mut self.state, State::Lost) {
            State::Forced(forced, replies) => {
                self.state = if forced.is_complete {
                    State::Complete
                } else {
                    State::Masking(replies)
                };
                Ok(Some(forced))
            }
            other => {
                self.state = other;
                Ok(None)
            }
        }
    }

    /// Whether the next token is to be chosen: no token is forced, and the completion goes on. Waits for the worker.
    pub(super) fn is_free(&mut self) -> Result<bool, ConstraintError> {
        self.receive()?;
        let is_forced = match &self.state {
            State::Forced(forced, _) => forced.is_complete || !forced.tokens.is_empty(),
            State::Complete => true,
            _ => false,
        };
        if !is_forced {
            self.forced()?;
        }
        Ok(!is_forced)
    }

    /// Receives the forced tokens if they have not been.
    fn receive(&mut self) -> Result<(), ConstraintError> {
        let State::Moving(replies) = &self.state else {
            return match self.state {
                State::Lost => Err(ConstraintError::NoWorker),
                _ => Ok(()),
            };
        };
        let reply = replies.recv();
        match (reply, std::mem::replace(&mut self.state, State::Lost)) {
            (Ok(Reply::Forced(forced)), State::Moving(replies)) => {
                self.state = State::Forced(forced, replies);
                Ok(())
            }
            (Ok(Reply::Fault(error)), _) => Err(error.into()),
            _ => Err(ConstraintError::NoWorker),
        }
    }

    /// The mask over `n_vocab` logits for the next choice. Waits for the worker.
    pub(super) fn mask(&mut self, n_vocab: usize) -> Result<&[u32], ConstraintError> {
        if let State::Masking(replies) = &self.state {
            self.state = match replies.recv() {
                Ok(Reply::Mask(mut mask, matcher)) => {
                    // A model may have more logits than its vocabulary has tokens.
                    mask.resize(n_vocab.div_ceil(32), 0);
                    State::Ready(mask, matcher)
                }
                Ok(Reply::Fault(error)) => {
                    self.state = State::Lost;
                    return Err(error.into());
                }
                _ => State::Lost,
            };
        }
        match &self.state {
            State::Ready(mask, _) => Ok(mask),
            _ => Err(ConstraintError::NoWorker),
        }
    }

    /// Accepts the token that was chosen under the mask.
    pub(super) fn choose(&mut self, token: u32) {
        if let State::Ready(_, matcher) = std::mem::replace(&mut self.state, State::Lost) {
            self.send(MatcherOrigin::Chosen(*matcher, token));
        }
    }

    fn send(&mut self, matcher: MatcherOrigin) {
        // The channel has room for both replies, so that the worker never waits for the engine.
        let (replies, inbox) = sync_channel(2);
        let is_sent = self
            .jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(MatcherJob { matcher, replies }).is_ok());
        self.state = if is_sent {
            State::Moving(inbox)
        } else {
            State::Lost
        };
    }
}
