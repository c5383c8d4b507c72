//! The engine loop over a model whose next token is a hash of the sequence: what every request gets is known.

use std::sync::LazyLock;

use proptest::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::client::{Client, QueuePermit};
use super::engine_loop::EngineLoop;
use super::event_sender::EventSender;
use super::lab::CompiledLab;
use super::submission::{CheckedRequest, Decoding, Order, Submitted};
use super::{
    DiffusionOptions, DraftOptions, Event, Events, Failure, Limits, Request, StopConditions, Usage,
};
use crate::models;
use crate::models::media::{PreparedMedium, PromptMedia};
use crate::models::{Definitions, ModelSource};
use crate::plan::Media;
use lab_base::tokenizer::Tokenizer;
use lab_sampling::Sampler;

mod ahead;
mod fake;
mod lens;

use fake::*;

/// The shipped vocabulary, read once.
pub(super) fn tokenizer() -> Arc<Tokenizer> {
    static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
        let definitions = Definitions::open(&[]).expect("the built-in definitions");
        let opened = models::open(&ModelSource::of(None), &definitions).expect("the shipped model");
        let tokenizer = Tokenizer::from_metadata(opened.weights.metadata());
        Arc::new(tokenizer.expect("its vocabulary"))
    });
    Arc::clone(&TOKENIZER)
}

pub(super) const LIMITS: Limits = Limits {
    lab_bytes: 1 << 20,
    n_ctx: 256,
    n_parallel: 3,
    n_queue: 100,
    n_prefill: 20,
    drafts: DraftOptions::OFF,
    diffusion: DiffusionOptions::UNSET,
    queue_time: None,
    answer_time: None,
    step_time: None,
};

pub(super) fn request(prompt: &[u32], n: usize) -> Request {
    let mut request = Request::new(prompt.to_vec(), n);
    request.sampling.temperature = 0.0;
    request.top_logprobs = Some(0);
    request
}

fn submit(engine: &mut EngineLoop<Fake>, request: Request) -> Events {
    submit_with(engine, request, None)
}

fn submit_with(
    engine: &mut EngineLoop<Fake>,
    request: Request,
    lab: Option<CompiledLab>,
) -> Events {
    let permit = QueuePermit::take(&Arc::default(), &Client::default(), 1).expect("free");
    submit_as(engine, request, lab, &permit)
}

/// Submits a completion of the request with this permit.
fn submit_as(
    engine: &mut EngineLoop<Fake>,
    request: Request,
    lab: Option<CompiledLab>,
    permit: &Arc<QueuePermit>,
) -> Events {
    let sampler = Sampler::new(&request.sampling, request.choice).expect("sound");
    let decoding = Decoding::Autoregressive(sampler);
    let (mut submitted, receiver) = submitted(request, decoding, permit);
    submitted.checked.lab = lab;
    engine.enqueue(submitted);
    receiver
}

pub(super) fn submitted(
    request: Request,
    decoding: Decoding,
    permit: &Arc<QueuePermit>,
) -> (Submitted, Events) {
    let (events, receiver) = mpsc::unbounded_channel();
    let checked = CheckedRequest {
        source: Vec::new(),
        decoding,
        request,
        lab: None,
        scales: Vec::new(),
    };
    let caller = EventSender {
        events,
        arrived: Instant::now(),
        stats: Arc::default(),
        permit: Arc::clone(permit),
    };
    let submitted = Submitted { checked, caller };
    (submitted, receiver)
}

/// Runs steps until these requests have ended.
fn finish<'a>(
    engine: &mut EngineLoop<Fake>,
    all: impl IntoIterator<Item = &'a mut (Events, Answer)>,
) {
    let mut all: Vec<_> = all.into_iter().collect();
    while all.iter().any(|(_, answer)| answer.end.is_none()) {
        engine.step();
        all.iter_mut()
            .for_each(|(events, answer)| take(events, answer));
    }
}

/// A prompt of `n` tokens without a period.
fn prompt(n: u32) -> Vec<u32> {
    (0..n).map(|i| FIRST + i * i % N_TOKENS).collect()
}

#[derive(Clone, Debug, Default)]
struct Answer {
    /// Ids of the tokens, where log-probabilities are asked for.
    tokens: Vec<u32>,
    text: String,
    /// Ids of the scored tokens of the prompt; 0 for the first, which has no log-probability.
    prompt: Vec<u32>,
    end: Option<Result<Usage, Failure>>,
}

fn take(events: &mut Events, answer: &mut Answer) {
    while let Ok(event) = events.try_recv() {
        assert!(answer.end.is_none(), "nothing comes after the end");
        match event {
            Event::Pooled(_) | Event::Lab(_) => panic!("nothing is pooled"),
            Event::Ended(_) => {}
            Event::Progress(_) => panic!("progress is not asked for"),
            Event::Text { text, tokens } => {
                answer.text.push_str(&text);
                let ids = tokens
                    .iter()
                    .filter_map(|t| t.chosen.as_ref().map(|c| c.id));
                answer.tokens.extend(ids);
            }
            Event::Done { usage, .. } => answer.end = Some(Ok(usage)),
            Event::Prompt(tokens) => {
                let ids = tokens.iter().map(|t| t.chosen.as_ref().map_or(0, |c| c.id));
                answer.prompt.extend(ids);
            }
            Event::DenoisingStep { .. } => panic!("no text diffusion"),
            Event::Failed(failure) => answer.end = Some(Err(failure)),
        }
    }
}

fn expected(prompt: &[u32], n: usize) -> Vec<u32> {
    let mut text = prompt.to_vec();
    while text.len() < prompt.len() + n {
        text.push(next_token(&text));
    }
    text.split_off(prompt.len())
}

fn fake(n_batch: usize, n_blocks: usize) -> Fake {
    Fake {
        n_batch,
        n_blocks,
        ..Fake::default()
    }
}

#[test]
fn an_unloaded_adapter_is_freed_when_no_request_uses_it() {
    let mut engine = EngineLoop::new(fake(64, 100), tokenizer(), LIMITS);
    let prompt = prompt(20);
    let order = |scales: &[f32]| {
        let permit = QueuePermit::take(&Arc::default(), &Client::default(), 1).expect("free");
        let request = request(&prompt, 5);
        let sampler = Sampler::new(&request.sampling, request.choice).expect("sound");
        let decoding = Decoding::Autoregressive(sampler);
        let (mut submitted, receiver) = submitted(request, decoding, &permit);
        submitted.checked.scales = scales.to_vec();
        (Order::Run(Box::new(submitted)), receiver)
    };
    let (run, events) = order(&[0.0, 1.0]);
    engine.follow(run);
    for id in [1, 0] {
        engine.follow(Order::RemoveAdapter(id));
    }
    engine.free_adapters();
    assert_eq!(
        engine.model().removed,
        [0],
        "a waiting request uses the other"
    );
    engine.step();
    engine.free_adapters();
    assert_eq!(engine.model().removed, [0], "a running one does");
    let mut asked = (events, Answer::default());
    finish(&mut engine, [&mut asked]);
    assert_eq!(asked.1.tokens, expected(&prompt, 5));
    engine.free_adapters();
    assert_eq!(engine.model().removed, [0, 1]);
    // A request that comes too late is not answered by the model alone.
    let (run, mut events) = order(&[0.0, 1.0]);
    engine.follow(run);
    let mut answer = Answer::default();
    take(&mut events, &mut answer);
    assert!(matches!(answer.end, Some(Err(_))), "{answer:?}");
    let (run, events) = order(&[0.0, 0.0]);
    engine.follow(run);
    let mut asked = (events, Answer::default());
    finish(&mut engine, [&mut asked]);
    assert_eq!(asked.1.tokens, expected(&prompt, 5));
}

#[test]
fn ends_of_a_request_and_an_unread_cache_change_nothing_else() {
    let prompt = prompt(100);
    let whole = expected(&prompt, 20);
    let mut engine = EngineLoop::new(fake(64, 100), tokenizer(), LIMITS);
    let mut ask = |ends: StopConditions, cache_prompt| {
        let request = Request {
            stop: ends,
            cache_prompt,
            ..request(&prompt, 20)
        };
        let mut all = [(submit(&mut engine, request), Answer::default())];
        finish(&mut engine, &mut all);
        let [(_, answer)] = all;
        let usage = answer.end.expect("it ended").expect("well");
        (answer.tokens, usage.cached_tokens, usage.completion_tokens)
    };
    assert_eq!(ask(StopConditions::default(), true), (whole.clone(), 0, 20));
    assert_eq!(
        ask(StopConditions::default(), false),
        (whole.clone(), 0, 20)
    );
    assert_eq!(ask(StopConditions::default(), true).1, 96);
    // The first token that was not there before ends it, and is not part of it.
    let is_new = |at: &usize| !whole[..*at].contains(&whole[*at]);
    let at = (1..whole.len()).find(is_new).expect("a new token");
    let ends = |min_tokens| StopConditions {
        min_tokens,
        stop_tokens: vec![whole[at]],
        ..StopConditions::default()
    };
    let (tokens, _, n) = ask(ends(0), true);
    assert_eq!((tokens, n), (whole[..at].to_vec(), at + 1));
    // Where it may not come yet, another one is chosen.
    let (tokens, _, n) = ask(ends(at + 1), true);
    assert_eq!(tokens[..at], whole[..at]);
    assert!(tokens[at] != whole[at] && n > at);
}

#[test]
fn answers_to_one_prompt_read_it_once() {
    for has_states in [false, true] {
        let model = Fake {
            has_states,
            ..fake(64, 100)
        };
        let mut engine = EngineLoop::new(model, tokenizer(), LIMITS);
        let prompt = prompt(100);
        let mut all: Vec<_> = (0..3)
            .map(|_| (submit(&mut engine, request(&prompt, 5)), Answer::default()))
            .collect();
        finish(&mut engine, &mut all);
        let cached: Vec<usize> = all
            .iter()
            .map(|(_, answer)| match &answer.end {
                Some(Ok(usage)) => usage.cached_tokens,
                end => panic!("{end:?}"),
            })
            .collect();
        assert_eq!(cached, [0, 96, 96]);
        assert!(all.iter().all(|(_, a)| a.tokens == expected(&prompt, 5)));
        assert_eq!(engine.model().n_read, 100 + 2 * 4 + 3 * 4);
    }
}

/// A request whose prompt has two media.
fn with_media(prompt: &[u32], n: usize) -> Request {
    let medium = PreparedMedium {
        media: Media::Image,
        prepared: lab_media::Prepared {
            views: Vec::new(),
            layout: Vec::new(),
        },
        hash: [0; 32],
    };
    let medium = Arc::new(medium);
    Request {
        media: Some(Arc::new(PromptMedia {
            media: vec![Arc::clone(&medium), medium],
            places: Vec::new(),
        })),
        ..request(prompt, n)
    }
}

#[test]
fn others_decode_while_the_media_of_a_prompt_are_computed() {
    let mut engine = EngineLoop::new(fake(64, 100), tokenizer(), LIMITS);
    let prompt = prompt(20);
    let mut first = (submit(&mut engine, request(&prompt, 30)), Answer::default());
    engine.step();
    let mut second = (
        submit(&mut engine, with_media(&prompt, 5)),
        Answer::default(),
    );
    for n in 1..2 * PIECES {
        engine.step();
        [&mut first, &mut second]
            .into_iter()
            .for_each(|(events, answer)| take(events, answer));
        assert_eq!(first.1.tokens.len(), n + 1);
        assert_eq!(engine.model().n_pieces, n);
        assert!(second.1.tokens.is_empty() && second.1.end.is_none());
    }
    finish(&mut engine, [&mut first, &mut second]);
    assert_eq!(engine.model().n_pieces, 2 * PIECES);
    assert_eq!(first.1.tokens, expected(&prompt, 30));
    assert_eq!(second.1.tokens, expected(&prompt, 5));
}

#[test]
fn media_that_cannot_be_computed_end_their_own_request_and_one_that_is_cancelled_stops() {
    let model = Fake {
        sick_piece: PIECES + 2,
        ..fake(64, 100)
    };
    let mut engine = EngineLoop::new(model, tokenizer(), LIMITS);
    let prompt = prompt(20);
    let ask = |engine: &mut EngineLoop<Fake>, request| (submit(engine, request), Answer::default());
    let mut sick = ask(&mut engine, with_media(&prompt, 5));
    let mut cancelled = ask(&mut engine, with_media(&prompt, 5));
    let mut last = ask(&mut engine, with_media(&prompt, 5));
    finish(&mut engine, [&mut sick]);
    assert!(matches!(sick.1.end, Some(Err(Failure::Computation(_)))));
    engine.step();
    cancelled.0.close();
    finish(&mut engine, [&mut last]);
    assert_eq!(last.1.tokens, expected(&prompt, 5));
    // The second medium of the first, a piece of the next, and both of the last: its first one ends with the second fifth piece.
    assert_eq!(engine.model().n_pieces, 3 * PIECES);
}

/// Every position is scored once and in order, whatever is in the prefix cache, in however many passes,
/// and where the sequence is preempted; with no token generated, one or some.
#[test]
fn prompts_are_scored_whatever_is_cached() {
    for (n_batch, n_blocks) in [(64, 100), (8, 100), (64, 9)] {
        let mut engine = EngineLoop::new(fake(n_batch, n_blocks), tokenizer(), LIMITS);
        let prompt = prompt(100);
        let long = &prompt[..1];
        for n in [0, 1, 5] {
            let scoring = |prompt: &[u32]| Request {
                prompt_logprobs: Some(2),
                ..request(prompt, n)
            };
            let mut all = [
                (submit(&mut engine, request(&prompt, n)), Answer::default()),
                (submit(&mut engine, scoring(&prompt)), Answer::default()),
                (submit(&mut engine, scoring(long)), Answer::default()),
                (submit(&mut engine, request(&prompt, 20)), Answer::default()),
            ];
            finish(&mut engine, &mut all);
            for (i, (_, answer)) in all.iter().enumerate() {
                assert!(matches!(answer.end, Some(Ok(_))), "{:?}", answer.end);
                let prompt = if i == 2 { long } else { &prompt };
                let n = if i == 3 { 20 } else { n };
                assert_eq!(answer.tokens, expected(prompt, n));
                let scored = [&[0], &prompt[1..]].concat();
                let is_scored = i == 1 || i == 2;
                assert_eq!(answer.prompt, if is_scored { scored } else { Vec::new() });
            }
        }
    }
}

#[test]
fn logits_that_are_no_numbers_end_their_own_answer_only() {
    let mut engine = EngineLoop::new(fake(64, 100), tokenizer(), LIMITS);
    let good: Vec<u32> = (0..40).map(|i| FIRST + i % N_TOKENS).collect();
    let bad = [&good[..20], &[SICK], &good[..5]].concat();
    for _ in 0..2 {
        let prompts = [&good, &bad, &good];
        let mut all = prompts.map(|p| (submit(&mut engine, request(p, 5)), Answer::default()));
        finish(&mut engine, &mut all);
        let [(_, first), (_, failed), (_, last)] = all;
        assert_eq!(first.tokens, expected(&good, 5));
        assert_eq!(last.tokens, expected(&good, 5));
        let Some(Err(failure)) = failed.end else {
            panic!("{failed:?}");
        };
        assert_eq!(
            failure.to_string(),
            "the logit of token 0 is not a number; token 20"
        );
        assert!(failed.tokens.is_empty());
    }
}

#[test]
fn time_limits_end_waiting_and_active_requests() {
    let limits = Limits {
        n_parallel: 1,
        queue_time: Some(Duration::from_millis(20)),
        answer_time: Some(Duration::from_millis(50)),
        ..LIMITS
    };
    let mut engine = EngineLoop::new(fake(64, 100), tokenizer(), limits);
    let mut running = submit(&mut engine, request(&[21, 22], 200));
    engine.step();
    let mut waiting = submit(&mut engine, request(&[21, 22], 5));
    std::thread::sleep(Duration::from_millis(60));
    engine.step();
    let [mut first, mut second] = [Answer::default(), Answer::default()];
    take(&mut running, &mut first);
    take(&mut waiting, &mut second);
    assert_eq!(
        first.end,
        Some(Err(Failure::AnswerTime(limits.answer_time.expect("set"))))
    );
    assert_eq!(
        second.end,
        Some(Err(Failure::QueueTime(limits.queue_time.expect("set"))))
    );
}

/// Drafts of at most this many tokens.
fn of(most: usize) -> DraftOptions {
    DraftOptions {
        most,
        ..DraftOptions::ON
    }
}

#[test]
fn draft_tokens_save_passes() {
    let limits = Limits {
        drafts: of(8),
        ..LIMITS
    };
    let mut engine = EngineLoop::new(fake(64, 100), tokenizer(), limits);
    let prompt = [22, 25, 27, 29];
    let mut events = submit(&mut engine, request(&prompt, 100));
    let mut answer = Answer::default();
    let mut n_passes = 0;
    while answer.end.is_none() {
        engine.step();
        take(&mut events, &mut answer);
        n_passes += 1;
    }
    assert_eq!(answer.tokens, expected(&prompt, 100));
    assert!(n_passes < 40, "{n_passes} passes");
}

/// The answer to a prompt, the number of steps, and the model, with this drafter of the model and no other.
fn drafted(drafter: FakeDrafter, prompt: &[u32], n: usize) -> (Answer, usize, (usize, usize)) {
    let drafts = DraftOptions {
        drafters: [false, false, true],
        ..of(6)
    };
    let limits = Limits { drafts, ..LIMITS };
    let model = Fake {
        drafter: Some(drafter),
        ..fake(64, 100)
    };
    let mut engine = EngineLoop::new(model, tokenizer(), limits);
    let mut events = submit(&mut engine, request(prompt, n));
    let (mut answer, mut n_steps) = (Answer::default(), 0);
    while answer.end.is_none() {
        engine.step();
        take(&mut events, &mut answer);
        n_steps += 1;
    }
    (answer, n_steps, engine.model().n_drafts)
}

#[test]
fn drafts_of_the_model_save_passes() {
    let prompt = prompt(30);
    let drafter = FakeDrafter {
        most: 4,
        wrong: 0,
        fails: (0, false),
    };
    let (answer, n_steps, _) = drafted(drafter, &prompt, 60);
    assert_eq!(answer.tokens, expected(&prompt, 60));
    // Five tokens of each step, but for the one that reads the prompt.
    assert_eq!(n_steps, 13);
    let wrong = FakeDrafter {
        wrong: 3,
        ..drafter
    };
    let (answer, n_wrong, _) = drafted(wrong, &prompt, 60);
    assert_eq!(answer.tokens, expected(&prompt, 60));
    assert!((13..40).contains(&n_wrong), "{n_wrong}");
    let usage = answer.end.expect("it ended").expect("well").drafts;
    let [.., (drafted, accepted)] = [0, 1, 2].map(|at| (usage.drafted[at], usage.accepted[at]));
    assert_eq!(usage.totals(), (drafted, accepted));
    assert!(accepted < drafted && accepted > 20, "{usage:?}");
}

#[test]
fn a_drafter_of_the_model_that_fails_is_off_and_ends_no_request() {
    for panics in [false, true] {
        let drafter = FakeDrafter {
            most: 4,
            wrong: 3,
            fails: (3, panics),
        };
        let prompt = prompt(30);
        let (answer, _, n_drafts) = drafted(drafter, &prompt, 60);
        assert_eq!(answer.tokens, expected(&prompt, 60));
        assert_eq!(n_drafts, (3, 3));
    }
}

#[test]
fn recent_answers_are_drafts_for_their_client_alone() {
    let drafts = DraftOptions {
        drafters: [false, true, false],
        ..of(8)
    };
    let limits = Limits { drafts, ..LIMITS };
    let mut engine = EngineLoop::new(fake(64, 100), tokenizer(), limits);
    let prompt = prompt(30);
    let mut steps = |client: &str, cache_prompt: bool| {
        let client = Client {
            name: client.into(),
            queue_share: None,
        };
        let permit = QueuePermit::take(&Arc::default(), &client, 1).expect("free");
        let request = Request {
            cache_prompt,
            ..request(&prompt, 40)
        };
        let events = submit_as(&mut engine, request, None, &permit);
        let (mut asked, mut n_steps) = ((events, Answer::default()), 0);
        while asked.1.end.is_none() {
            engine.step();
            take(&mut asked.0, &mut asked.1);
            n_steps += 1;
        }
        assert_eq!(asked.1.tokens, expected(&prompt, 40));
        n_steps
    };
    let plain = steps("a", false);
    assert!(
        steps("a", true) >= plain - 4,
        "what is not cached is not kept"
    );
    assert!(steps("b", true) >= plain - 4, "that of others is not read");
    assert!(steps("a", true) < 12);
    assert!(
        steps("a", false) >= plain - 4,
        "nor does one that is not cached read"
    );
}

#[derive(Clone, Debug)]
struct Life {
    arrives: usize,
    /// Requests of one kind share a prefix.
    kind: u32,
    n_prompt: usize,
    n_answer: usize,
    is_poisoned: bool,
    cancelled_at: Option<usize>,
}

impl Life {
    fn prompt(&self) -> Vec<u32> {
        let mut prompt: Vec<u32> = (0..self.n_prompt as u32)
            .map(|i| FIRST + (self.kind + i / 40 * self.n_answer as u32) % N_TOKENS)
            .collect();
        if self.is_poisoned {
            prompt[self.n_prompt / 2] = POISON;
        }
        prompt
    }
}

fn lives() -> impl Strategy<Value = Vec<Life>> {
    let life = (
        0..40usize,
        0..4u32,
        1..120usize,
        1..40usize,
        prop::bool::weighted(0.1),
        prop::option::weighted(0.2, 0..80usize),
    );
    let life = life.prop_map(
        |(arrives, kind, n_prompt, n_answer, is_poisoned, cancelled_at)| Life {
            arrives,
            kind,
            n_prompt,
            n_answer,
            is_poisoned,
            cancelled_at,
        },
    );
    prop::collection::vec(life, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Whatever else runs, is cancelled or fails, a request gets the answer it would get alone.
    #[test]
    fn random_histories_give_every_request_its_answer(
        lives in lives(),
        n_parallel in 1..6usize,
        n_batch in 8..100usize,
        n_prefill in 1..60usize,
        n_drafted in 0..8usize,
        n_blocks in 16..40usize,
        has_states: bool,
        drafter in prop::option::of((1..6usize, 0..6usize, 0..30usize)),
    ) {
        let limits = Limits { n_parallel, n_prefill, drafts: of(n_drafted), ..LIMITS };
        let drafter = drafter.map(|(most, wrong, n)| FakeDrafter { most, wrong, fails: (n, false) });
        let model = Fake { has_states, drafter, ..fake(n_batch, n_blocks) };
        let mut engine = EngineLoop::new(model, tokenizer(), limits);
        let mut open: Vec<(usize, Option<Events>, Answer)> = Vec::new();
        let mut tick = 0;
        while open.len() < lives.len() || open.iter().any(|(_, events, answer)| {
            events.is_some() && answer.end.is_none()
        }) {
            for (i, life) in lives.iter().enumerate().filter(|(_, l)| l.arrives == tick) {
                let events = submit(&mut engine, request(&life.prompt(), life.n_answer));
                open.push((i, Some(events), Answer::default()));
            }
            for (i, events, _) in &mut open {
                if lives[*i].cancelled_at.is_some_and(|at| at <= tick) {
                    *events = None;
                }
            }
            engine.step();
            for (_, events, answer) in &mut open {
                if let Some(events) = events {
                    take(events, answer);
                }
            }
            tick += 1;
            prop_assert!(tick < 10_000, "somebody starves");
        }
        for (i, events, answer) in &open {
            let life = &lives[*i];
            let tokens = expected(&life.prompt(), life.n_answer);
            match &answer.end {
                _ if life.is_poisoned => prop_assert!(!matches!(answer.end, Some(Ok(_)))),
                Some(Ok(usage)) => {
                    prop_assert_eq!(&answer.tokens, &tokens);
                    prop_assert_eq!(usage.completion_tokens, life.n_answer);
                }
                Some(Err(failure)) => prop_assert!(false, "{} fails: {}", i, failure),
                None => {
                    prop_assert!(events.is_none());
                    prop_assert!(tokens.starts_with(&answer.tokens));
                }
            }
        }
        engine.step();
        prop_assert_eq!(engine.model().used(), 0);
    }
}

/// One request has more completions than run at once. Another, which comes later, gets the first place that is free,
/// and the first one has it again afterwards.
#[test]
fn of_waiting_requests_those_of_a_lower_number_start_first() {
    let mut engine = EngineLoop::new(fake(64, 100), tokenizer(), LIMITS);
    // Their places become free one after another.
    let active = |i: usize| request(&[FIRST + i as u32], 20 + 8 * i);
    let _active: Vec<_> = (0..LIMITS.n_parallel)
        .map(|i| submit(&mut engine, active(i)))
        .collect();
    engine.step();
    let waiting = |first: u32, priority: i64| Request {
        priority,
        ..request(&[FIRST + first, FIRST], 2)
    };
    let mut later = submit(&mut engine, waiting(3, 1));
    let mut sooner = submit(&mut engine, waiting(4, 0));
    let mut answers = [Answer::default(), Answer::default()];
    while answers[1].end.is_none() {
        engine.step();
        take(&mut later, &mut answers[0]);
        take(&mut sooner, &mut answers[1]);
    }
    assert!(answers[0].end.is_none());
    while !engine.is_idle() {
        engine.step();
    }
    take(&mut later, &mut answers[0]);
    assert!(matches!(answers[0].end, Some(Ok(_))));
}

#[test]
fn a_request_with_many_completions_leaves_places_for_others() {
    let mut engine = EngineLoop::new(fake(64, 100), tokenizer(), LIMITS);
    let places = Arc::default();
    let client = Client::default();
    let permit = QueuePermit::take(&places, &client, 2).expect("free");
    let length = |i: u32| 4 + i as usize;
    let mut many: Vec<_> = (0..12)
        .map(|i| {
            let request = request(&[FIRST + i % N_TOKENS, FIRST + i / N_TOKENS], length(i));
            submit_as(&mut engine, request, None, &permit)
        })
        .collect();
    assert!(
        QueuePermit::take(&places, &client, 2).is_ok(),
        "they take one place"
    );
    drop(permit);
    engine.step();
    let mut other = submit(&mut engine, request(&[FIRST + 3, FIRST + 1, FIRST], 2));
    let (mut answers, mut answer) = (vec![Answer::default(); 12], Answer::default());
    while answer.end.is_none() {
        engine.step();
        take(&mut other, &mut answer);
        many.iter_mut()
            .zip(&mut answers)
            .for_each(|(e, a)| take(e, a));
    }
    let n_done = answers.iter().filter(|a| a.end.is_some()).count();
    assert!(n_done <= LIMITS.n_parallel, "{n_done} came before");
    while !engine.is_idle() {
        engine.step();
    }
    many.iter_mut()
        .zip(&mut answers)
        .for_each(|(e, a)| take(e, a));
    assert!(answers.iter().all(|a| matches!(a.end, Some(Ok(_)))));
    drop((many, engine));
    assert!(
        QueuePermit::take(&places, &client, 1).is_ok(),
        "the place is given back"
    );
}

/// The steps until the first token of the last of `requests`, which all come at once, and how they all end. The number of
/// each is that of its client.
fn steps_to_first(requests: Vec<(usize, Request)>, n_blocks: usize) -> (usize, Vec<Answer>) {
    let mut engine = EngineLoop::new(fake(n_blocks, 100), tokenizer(), LIMITS);
    let places = Arc::default();
    let mut all: Vec<(Events, Answer)> = Vec::new();
    for (i, (client, request)) in requests.into_iter().enumerate() {
        if i == 2 * LIMITS.n_parallel {
            // The first ones are under way.
            (0..5).for_each(|_| engine.step());
        }
        let client = Client {
            name: client.to_string().into(),
            queue_share: None,
        };
        let permit = QueuePermit::take(&places, &client, 1000).expect("a place");
        let events = submit_as(&mut engine, request, None, &permit);
        all.push((events, Answer::default()));
    }
    let mut n_steps = 0;
    while let Some((events, answer)) = all.last_mut()
        && answer.tokens.is_empty()
    {
        engine.step();
        n_steps += 1;
        take(events, answer);
        assert!(n_steps < 10_000, "it never starts");
    }
    finish(
        &mut engine,
        all.iter_mut().filter(|(_, answer)| answer.end.is_none()),
    );
    (n_steps, all.into_iter().map(|(_, answer)| answer).collect())
}

#[test]
fn two_hundred_requests_of_one_client_delay_that_of_another_by_one_step() {
    let many = |i: u32| {
        let first = [FIRST + i % N_TOKENS, FIRST + i / N_TOKENS];
        (0, request(&[&first[..], &prompt(30)].concat(), 20))
    };
    for n_blocks in [64, 12] {
        for n in [4, 15] {
            let own = request(&prompt(n)[1..], 5);
            let idle = steps_to_first(vec![(1, own.clone())], n_blocks).0;
            let expected = steps_to_first(vec![(0, own.clone())], n_blocks).1;
            let mut requests: Vec<(usize, Request)> = (0..200).map(many).collect();
            let alone = steps_to_first(requests.clone(), n_blocks).1;
            requests.push((1, own));
            let (n_steps, answers) = steps_to_first(requests.clone(), n_blocks);
            assert!(
                n_steps <= idle + 1,
                "{n_steps} steps, {idle} of an idle engine"
            );
            // It would have to wait if it were one more of the same client.
            requests.last_mut().expect("it is there").0 = 0;
            assert!(steps_to_first(requests, n_blocks).0 > 500);
            // Whoever gave its place to it has the same answer in the end.
            let tokens =
                |all: &[Answer]| -> Vec<_> { all.iter().map(|a| a.tokens.clone()).collect() };
            assert_eq!(tokens(&answers[..200]), tokens(&alone));
            assert_eq!(tokens(&answers[200..]), tokens(&expected));
        }
    }
}

#[test]
fn priority_holds_within_a_client() {
    let with = |client, priority| {
        let request = Request {
            priority,
            ..request(&[FIRST + 2, FIRST + client as u32], 12)
        };
        (client, request)
    };
    // Six of the first client, the last of them urgent; the other's has a high number and nothing active.
    let mut requests: Vec<_> = (0..6).map(|_| with(0, 1)).collect();
    requests.push(with(1, 9));
    let (n_steps, _) = steps_to_first(requests.clone(), 64);
    assert!(n_steps <= 2, "{n_steps}");
    requests.pop();
    requests.extend([with(0, 5), with(0, 0)]);
    let urgent = steps_to_first(requests.clone(), 64).0;
    requests.extend([with(0, 4)]);
    let other = steps_to_first(requests, 64).0;
    assert!(urgent < other, "{urgent} {other}");
}
