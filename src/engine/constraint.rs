//! Constraints of active requests: a thread that advances matchers while passes run.
//!
//! A chosen token goes to the [`Worker`] with its matcher. What the grammar forces next comes back
//! first, because it belongs into the next pass; the mask for the token after that is computed
//! while that pass runs. The engine waits only for what it needs now. One thread for each engine,
//! started with the first constraint; it ends with the engine. Nothing here knows the model.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use crate::constraint::{self, Compiled, Matcher};

use super::event::Failure;

/// Why a constrained completion cannot go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The grammar has no way on.
    #[error(transparent)]
    Constraint(#[from] constraint::Error),
    /// The thread that advances matchers is not there.
    #[error("the thread for constraints has ended")]
    NoWorker,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Computation(fault.to_string())
    }
}

/// The tokens that must come next.
#[derive(Debug)]
pub(super) struct Forced {
    pub(super) tokens: Vec<u32>,
    /// Whether the completion is complete with them.
    pub(super) is_complete: bool,
}

/// A matcher and what it shall do.
struct Job {
    matcher: Origin,
    replies: SyncSender<Reply>,
}

/// Where a matcher comes from.
enum Origin {
    /// A new completion.
    New(Compiled),
    /// A completion whose next token was chosen.
    Chosen(Matcher, u32),
}

enum Reply {
    Forced(Forced),
    Mask(Vec<u32>, Box<Matcher>),
    Fault(constraint::Error),
}

/// The way to the thread.
#[derive(Default)]
pub(super) struct Worker {
    jobs: OnceLock<Option<Sender<Job>>>,
}

impl Worker {
    /// The constraint of a new completion, under way at once.
    pub(super) fn start(&self, compiled: &Compiled) -> Constrained {
        let jobs = self.jobs.get_or_init(spawn);
        let mut this = Constrained {
            jobs: jobs.clone(),
            state: State::Lost,
        };
        this.send(Origin::New(compiled.clone()));
        this
    }
}

/// Starts the thread; without one, constrained requests fail, and only they.
fn spawn() -> Option<Sender<Job>> {
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

/// Serves jobs until the engine is gone. What is forced comes before any mask: passes wait for it.
fn work(queue: &Receiver<Job>) {
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
            Some(Job { matcher, replies }) => {
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

/// Advances a matcher over the chosen token and the forced ones after it. Returns it if there is
/// more to choose.
fn advance(origin: Origin, replies: &SyncSender<Reply>) -> Option<Matcher> {
    let advanced = match origin {
        Origin::New(compiled) => Ok(compiled.matcher()),
        Origin::Chosen(mut matcher, token) => matcher.accept(token).map(|()| matcher),
    };
    let forced = advanced.and_then(|mut matcher| matcher.forced().map(|tokens| (matcher, tokens)));
    match forced {
        Ok((matcher, tokens)) => {
            let is_complete = matcher.is_stopped();
            let forced = Forced {
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

/// The constraint of one active request.
pub(super) struct Constrained {
    jobs: Option<Sender<Job>>,
    state: State,
}

enum State {
    /// What is forced has not been fetched.
    Moving(Receiver<Reply>),
    /// The mask has not been fetched.
    Masking(Receiver<Reply>),
    /// A token can be chosen.
    Ready(Vec<u32>, Box<Matcher>),
    /// The completion is complete.
    Complete,
    /// Something failed, and was reported.
    Lost,
}

impl Constrained {
    /// The tokens that must come next, to be fetched once after each choice; `None` if they were.
    /// Waits for the worker.
    pub(super) fn forced(&mut self) -> Result<Option<Forced>, Fault> {
        let State::Moving(replies) = &self.state else {
            return match self.state {
                State::Lost => Err(Fault::NoWorker),
                _ => Ok(None),
            };
        };
        let reply = replies.recv();
        match (reply, std::mem::replace(&mut self.state, State::Lost)) {
            (Ok(Reply::Forced(forced)), State::Moving(replies)) => {
                self.state = if forced.is_complete {
                    State::Complete
                } else {
                    State::Masking(replies)
                };
                Ok(Some(forced))
            }
            (Ok(Reply::Fault(error)), _) => Err(error.into()),
            _ => Err(Fault::NoWorker),
        }
    }

    /// The mask over `n_vocab` logits for the next choice. Waits for the worker.
    pub(super) fn mask(&mut self, n_vocab: usize) -> Result<&[u32], Fault> {
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
            _ => Err(Fault::NoWorker),
        }
    }

    /// Takes the token that was chosen under the mask.
    pub(super) fn choose(&mut self, token: u32) {
        if let State::Ready(_, matcher) = std::mem::replace(&mut self.state, State::Lost) {
            self.send(Origin::Chosen(*matcher, token));
        }
    }

    fn send(&mut self, matcher: Origin) {
        // Capacity for both replies, so that the worker never waits for the engine.
        let (replies, inbox) = sync_channel(2);
        let is_sent = self
            .jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(Job { matcher, replies }).is_ok());
        self.state = if is_sent {
            State::Moving(inbox)
        } else {
            State::Lost
        };
    }
}
