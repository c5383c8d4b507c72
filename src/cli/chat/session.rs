//! A conversation and its settings: messages in the shape of chat completions, and the other fields of its requests.
//!
//! Invariant: an input that fails leaves the conversation as it was.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use crate::cli::Failure;
use crate::cli::diffusion::DiffusionProgress;
use crate::cli::media_files::{MediaFile, name_of, user_message};
use crate::cli::output::{self, escape_controls};
use crate::cli::run::{longer, speed};
use lab_core::engine::{AnswerToken, FinishReason};
use lab_core::plan::Media;
use lab_server::served::ServedModel;
use lab_server::{CompletionDelta, Refusal, Reply, ReplyEvent};

use super::screen::Screen;

/// A running conversation.
pub(super) struct Session {
    pub(super) served: Arc<ServedModel>,
    pub(super) messages: Vec<Value>,
    /// The parts that go with the next message of the user: pictures and sounds.
    parts: Vec<Value>,
    /// The fields of every request.
    pub(super) fields: Map<String, Value>,
    /// The fields that the command line sets.
    pub(super) initial: Map<String, Value>,
    pub(super) screen: Screen,
    /// The tokens and the speed of the last answer.
    pub(super) speed: Option<String>,
    /// Number of times the last message was answered again.
    n_retries: i64,
    /// Whether Ctrl-C stops an answer instead of the program.
    is_terminal: bool,
    runtime: Rc<Runtime>,
}

/// A received answer, whole or until it was stopped.
struct ReceivedReply {
    message: Value,
    is_stopped: bool,
}

impl ReceivedReply {
    fn is_empty(&self) -> bool {
        let is_some = |name: &str| {
            let value = self.message.get(name);
            value.is_some_and(|value| !value.is_null() && value != "")
        };
        !["content", "reasoning_content", "tool_calls"]
            .into_iter()
            .any(is_some)
    }
}

/// An answer while it is received.
struct ReplyStream {
    progress: DiffusionProgress,
    /// Whether the answer is shown while its denoising steps run. Its pieces are then written at the end.
    is_live: bool,
    held: Vec<CompletionDelta>,
    /// Tokens whose log-probabilities are listed.
    listed: Vec<AnswerToken>,
    /// When its first text arrived.
    begun: Option<Instant>,
}

pub(super) fn role(message: &Value) -> &str {
    let role = message.get("role").and_then(Value::as_str);
    role.unwrap_or_default()
}

fn calls(message: &Value) -> &[Value] {
    let calls = message.get("tool_calls").and_then(Value::as_array);
    calls.map_or(&[], Vec::as_slice)
}

impl Session {
    /// A conversation without messages.
    pub(super) fn new(
        served: Arc<ServedModel>,
        fields: Map<String, Value>,
        is_terminal: bool,
    ) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let this = Self {
            served,
            messages: Vec::new(),
            parts: Vec::new(),
            initial: fields.clone(),
            fields,
            screen: Screen::new(),
            speed: None,
            n_retries: 0,
            is_terminal,
            runtime: Rc::new(runtime),
        };
        this.check(this.fields.clone(), Vec::new())?;
        Ok(this)
    }

    /// Checks fields, and the messages before the next one.
    pub(super) fn check(
        &self,
        mut fields: Map<String, Value>,
        mut messages: Vec<Value>,
    ) -> Result<(), Failure> {
        if messages.is_empty() {
            messages.push(json!({ "role": "user", "content": "x" }));
        }
        fields.insert("messages".into(), messages.into());
        self.runtime
            .block_on(lab_server::check(&self.served, fields))
            .map_err(Failure::msg)
    }

    /// Sets a field of all requests, or removes it if there is no value.
    pub(super) fn set(&mut self, name: &str, value: Option<Value>) -> Result<(), Failure> {
        let mut fields = self.fields.clone();
        match value {
            Some(value) => fields.insert(name.into(), value),
            None => fields.shift_remove(name),
        };
        self.check(fields.clone(), Vec::new())?;
        self.fields = fields;
        Ok(())
    }

    /// Sets the system message, or removes it.
    pub(super) fn set_system(&mut self, text: Option<&str>) -> Result<(), Failure> {
        let n_system = self.n_system();
        let system = text.map(|text| json!({ "role": "system", "content": text }));
        let user = json!({ "role": "user", "content": "x" });
        let first = system.iter().cloned().chain([user]);
        self.check(self.fields.clone(), first.collect())?;
        self.messages.splice(..n_system, system);
        Ok(())
    }

    /// Lets a file go with the next message of the user; without one, none goes with it.
    pub(super) fn attach(&mut self, file: Option<&MediaFile>) -> Result<(), Failure> {
        let Some(file) = file else {
            self.parts.clear();
            return Ok(());
        };
        let takes = |media: Media| {
            let taken = self.served.media.as_ref();
            taken.is_some_and(|taken| taken.processors.takes(media))
        };
        if !takes(file.media) {
            anyhow::bail!("the model takes no {}", name_of(file.media));
        }
        let part = file.part()?;
        let message = user_message(vec![part.clone()], "x");
        let checked = self.check(self.fields.clone(), vec![message]);
        checked.map_err(|failure| anyhow::anyhow!("{}: {failure}", file.path.display()))?;
        self.parts.push(part);
        Ok(())
    }

    /// What goes with the next message, in words.
    pub(super) fn attached(&self) -> String {
        match self.parts.len() {
            0 => "no pictures and sounds go with the next message".to_owned(),
            1 => "it goes with the next message".to_owned(),
            n => format!("{n} pictures and sounds go with the next message"),
        }
    }

    /// Number of system messages at the start, which are kept.
    pub(super) fn n_system(&self) -> usize {
        let is_first = self.messages.first().map(role) == Some("system");
        usize::from(is_first)
    }

    /// The first call without a result: its id and the name of the tool.
    fn pending(&self) -> Option<(String, String)> {
        let at = self.messages.iter().rposition(|m| role(m) != "tool")?;
        let call = calls(&self.messages[at]).get(self.messages.len() - at - 1)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Some((text(&call["id"]), text(&call["function"]["name"])))
    }

    /// The prompt for the next input.
    pub(super) fn prompt(&self) -> String {
        match self.pending() {
            Some((_, name)) => format!("result of {}> ", escape_controls(&name)),
            None => "> ".into(),
        }
    }

    /// Adds a text: a message of the user, or the result of a call.
    pub(super) fn say(&mut self, text: &str) -> Result<(), Failure> {
        let Some((id, name)) = self.pending() else {
            if text.trim().is_empty() {
                return Ok(());
            }
            self.n_retries = 0;
            let message = user_message(self.parts.clone(), text);
            self.answer_to(|messages| messages.push(message), false)?;
            self.parts.clear();
            return Ok(());
        };
        let result = json!({ "role": "tool", "tool_call_id": id, "name": name, "content": text });
        self.messages.push(result.clone());
        if self.pending().is_some() {
            return Ok(());
        }
        self.messages.pop();
        self.n_retries = 0;
        self.answer_to(|messages| messages.push(result), false)
    }

    /// Answers the last message of the user or of a tool again, with another seed.
    pub(super) fn retry(&mut self) -> Result<(), Failure> {
        let last = self.messages.iter().rposition(|m| role(m) != "assistant");
        let is_asked = |at: &usize| role(&self.messages[*at]) != "system";
        let Some(at) = last.filter(is_asked) else {
            anyhow::bail!("there is no message to answer");
        };
        self.n_retries += 1;
        self.answer_to(|messages| messages.truncate(at + 1), false)
    }

    /// Continues the last answer, or answers a message without one.
    pub(super) fn go_on(&mut self) -> Result<(), Failure> {
        let last = self.messages.last();
        match last.map(role) {
            None | Some("system") => anyhow::bail!("there is nothing to continue"),
            Some("assistant") if last.is_some_and(|m| !calls(m).is_empty()) => {
                anyhow::bail!("the last answer calls tools, whose results come next")
            }
            Some(role) => self.answer_to(|_| {}, role == "assistant"),
        }
    }

    fn answer_to(
        &mut self,
        change: impl FnOnce(&mut Vec<Value>),
        is_continued: bool,
    ) -> Result<(), Failure> {
        let before = self.messages.clone();
        change(&mut self.messages);
        let runtime = Rc::clone(&self.runtime);
        let received = runtime.block_on(self.receive(is_continued));
        match received {
            Ok(received) if received.is_stopped && received.is_empty() => {
                self.messages = before;
                self.screen.note("stopped before anything was said")
            }
            Ok(received) => {
                match self.messages.last_mut().filter(|_| is_continued) {
                    Some(last) => append(last, &received.message),
                    None => self.messages.push(received.message),
                }
                Ok(())
            }
            Err(failure) => {
                self.messages = before;
                Err(failure)
            }
        }
    }

    /// Why a request is refused, and what helps.
    fn refused(&self, refusal: &Refusal) -> Failure {
        match refusal {
            Refusal::TooLong { .. } => anyhow::anyhow!(
                "{refusal}; /undo removes the last message, /reset all; {}",
                longer(&self.served)
            ),
            Refusal::Other(_) => Failure::msg(refusal.to_string()),
        }
    }

    fn request(&self, is_continued: bool, is_live: bool) -> Map<String, Value> {
        let mut fields = self.fields.clone();
        fields.insert("messages".into(), self.messages.clone().into());
        if is_continued {
            fields.insert("continue_final_message".into(), true.into());
        }
        if is_live {
            fields.insert("stream".into(), true.into());
            fields.insert("diffusion_trace".into(), true.into());
        }
        if let Some(seed) = fields.get("seed").and_then(Value::as_i64) {
            fields.insert("seed".into(), seed.wrapping_add(self.n_retries).into());
        }
        fields
    }

    /// Receives an answer and shows it.
    async fn receive(&mut self, is_continued: bool) -> Result<ReceivedReply, Failure> {
        let progress = DiffusionProgress::new(false);
        let is_live = self.served.handle.is_diffusion() && progress.is_shown();
        let stop = stopped(self.is_terminal);
        tokio::pin!(stop);
        let request = self.request(is_continued, is_live);
        let mut reply: Reply = tokio::select! {
            biased;
            () = &mut stop => return Ok(ReceivedReply { message: Value::Null, is_stopped: true }),
            reply = lab_server::reply(&self.served, request) => reply.map_err(|refusal| self.refused(&refusal))?,
        };
        let mut stream = ReplyStream {
            progress,
            is_live,
            held: Vec::new(),
            listed: Vec::new(),
            begun: None,
        };
        let ending = self.follow(&mut reply, &mut stream, stop).await;
        stream.progress.clear();
        match ending {
            Ok(ending) => self.finish(reply, stream, ending),
            Err(failure) => self.screen.end().and(Err(failure)),
        }
    }

    /// Shows the events of an answer. Returns its finish reason, or `None` if it is stopped before its end.
    async fn follow(
        &mut self,
        reply: &mut Reply,
        stream: &mut ReplyStream,
        mut stop: impl Future<Output = ()> + Unpin,
    ) -> Result<Option<FinishReason>, Failure> {
        loop {
            let event = tokio::select! {
                biased;
                () = &mut stop => return Ok(None),
                event = reply.next() => event.map_err(Failure::msg)?,
            };
            stream.begun.get_or_insert_with(Instant::now);
            match event {
                None => anyhow::bail!("the engine stopped before the end of the answer"),
                Some(ReplyEvent::DenoisingStep { fixed, n_masked }) => {
                    let tokenizer = self.served.handle.tokenizer();
                    stream.progress.step(&fixed, n_masked, tokenizer);
                }
                Some(ReplyEvent::Piece(piece)) if stream.is_live => stream.held.push(piece),
                Some(ReplyEvent::Piece(piece)) => self.show(&piece, &mut stream.listed)?,
                Some(ReplyEvent::Done { reason, usage }) => {
                    self.speed = Some(speed(&usage));
                    return Ok(Some(reason));
                }
            }
        }
    }

    /// Shows the rest of an answer, and how it ended.
    fn finish(
        &mut self,
        mut reply: Reply,
        mut stream: ReplyStream,
        ending: Option<FinishReason>,
    ) -> Result<ReceivedReply, Failure> {
        if ending.is_none() {
            stream.held.extend(reply.stop());
            let (n, seconds) = (reply.n_tokens(), stream.begun.map(|begun| begun.elapsed()));
            // As in `speed`, the first token is part of the prefill.
            let rate =
                n.saturating_sub(1) as f64 / seconds.unwrap_or_default().as_secs_f64().max(1e-6);
            self.speed = Some(format!(
                "stopped after {n} completion tokens at {rate:.1}/s"
            ));
        }
        for piece in &stream.held {
            self.show(piece, &mut stream.listed)?;
        }
        self.screen.end()?;
        self.list(&stream.listed)?;
        match ending {
            None => self.screen.note("stopped")?,
            Some(FinishReason::Length) => self.screen.note("cut at the limit")?,
            Some(FinishReason::Stop) => {}
        }
        if reply.n_broken_calls() > 0 {
            let note = "a call without complete arguments is left out of the conversation";
            self.screen.note(note)?;
        }
        Ok(ReceivedReply {
            message: reply.message(),
            is_stopped: ending.is_none(),
        })
    }

    fn show(
        &mut self,
        piece: &CompletionDelta,
        listed: &mut Vec<AnswerToken>,
    ) -> Result<(), Failure> {
        match piece {
            CompletionDelta::Content(text, tokens) => {
                listed.extend(tokens.iter().cloned());
                self.screen.content(text, tokens)
            }
            CompletionDelta::Reasoning(text) => self.screen.reasoning(text),
            CompletionDelta::Call(_, _, name) => self.screen.call(name),
            CompletionDelta::Arguments(_, text) => self.screen.arguments(text),
        }
    }

    /// Lists the log-probabilities of an answer, if colours do not show them.
    fn list(&self, tokens: &[AnswerToken]) -> Result<(), Failure> {
        for token in tokens.iter().filter(|_| !self.screen.has_colours) {
            if let Some(chosen) = &token.chosen {
                let text = String::from_utf8_lossy(&token.bytes);
                output::line(format!("{:10.4} {text:?}", chosen.logprob))?;
            }
        }
        Ok(())
    }
}

fn append(message: &mut Value, more: &Value) {
    for name in ["reasoning_content", "content"] {
        if let Some(text) = more.get(name).and_then(Value::as_str) {
            let before = message.get(name).and_then(Value::as_str);
            message[name] = format!("{}{text}", before.unwrap_or_default()).into();
        }
    }
    if let Some(calls) = more.get("tool_calls") {
        message["tool_calls"] = calls.clone();
    }
}

/// Completes when the user presses Ctrl-C. Without a terminal it never does: the signal then ends the program.
async fn stopped(is_terminal: bool) {
    if !is_terminal || tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}
