//! Decoding through the engine: the overhead of admission, sampling and detokenisation over the passes alone, and what draft tokens
//! bring for texts that repeat all, nothing, or what the model repeats.

use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedReceiver;

use lab_core::engine::{DraftCounts, Event, Request, Usage};
use lab_server::served::ServedModel;

use super::passes::DecodeCase;
use crate::cli::Failure;

/// Minimum duration in a division.
const SHORTEST: Duration = Duration::from_micros(1);

pub(super) struct RequestMeasurement {
    pub(super) case: DecodeCase,
    /// Tokens per second of all requests together, in the time between the last first token and the first last token.
    pub(super) speed: f64,
    /// Seconds from a request to its first token, without the time of its prefill.
    pub(super) first: f64,
}

/// The text of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text {
    /// The most probable tokens.
    Greedy,
    /// Tokens that are equally likely: nothing that is looked up is right.
    Random,
    /// One token over and over: all that is looked up is right.
    Repeated,
}

impl Text {
    const ALL: [Self; 3] = [Self::Random, Self::Greedy, Self::Repeated];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Greedy => "greedy",
            Self::Random => "random",
            Self::Repeated => "repeated",
        }
    }
}

/// Completions of a text with draft tokens and without, in alternating runs.
pub(super) struct DraftMeasurement {
    pub(super) case: DecodeCase,
    pub(super) text: Text,
    /// Tokens per second of all requests together.
    pub(super) plain: f64,
    pub(super) drafted: f64,
    /// Draft tokens that were read and accepted in all measured runs.
    pub(super) drafts: DraftCounts,
}

impl DraftMeasurement {
    /// Measures each text, with at most `n_drafted` draft tokens of a step.
    pub(super) fn measure_all(
        served: &ServedModel,
        case: DecodeCase,
        repeat: usize,
        n_drafted: usize,
    ) -> Result<Vec<Self>, Failure> {
        let tokenizer = served.handle.tokenizer();
        let is_text = |token: &u32| {
            let piece = tokenizer.piece(*token);
            let is_whole = !piece.is_empty() && std::str::from_utf8(piece).is_ok();
            is_whole && !tokenizer.is_end_of_generation(*token)
        };
        let repeated = (0..tokenizer.vocab_len() as u32).find(is_text).unwrap_or(0);
        let of_text = |text: Text| {
            let mut speeds = [Vec::new(), Vec::new()];
            let mut drafts = DraftCounts::default();
            // The first runs are a warm-up.
            for run in 0..=repeat {
                for (speeds, most) in speeds.iter_mut().zip([0, n_drafted]) {
                    let requests = (0..case.sequences).map(|i| {
                        let mut request = request(served, case, run * case.sequences + i);
                        request.drafts.n_max = Some(most);
                        request.choice = i as u32;
                        match text {
                            Text::Greedy => {}
                            Text::Random => request.sampling.temperature = 1e4,
                            Text::Repeated => request.sampling.logit_bias = vec![(repeated, 1e6)],
                        }
                        request
                    });
                    let (_, ended) = answers(served, requests.collect())?;
                    if run == 0 {
                        continue;
                    }
                    for (_, usage) in &ended {
                        drafts += usage.drafts;
                    }
                    let stamps: Vec<_> = ended.into_iter().map(|(stamps, _)| stamps).collect();
                    speeds.push(speed(&stamps)?);
                }
            }
            let [plain, drafted] = speeds.map(median);
            Ok(Self {
                case,
                text,
                plain,
                drafted,
                drafts,
            })
        };
        Text::ALL.into_iter().map(of_text).collect()
    }
}

impl RequestMeasurement {
    /// Measures greedy completions of `case.n` tokens. Prompts differ from each other and between runs.
    pub(super) fn measure(
        served: &ServedModel,
        case: DecodeCase,
        repeat: usize,
    ) -> Result<Self, Failure> {
        let (mut speeds, mut firsts) = (Vec::new(), Vec::new());
        // The first run is a warm-up.
        for run in 0..=repeat {
            let requests =
                (0..case.sequences).map(|i| request(served, case, run * case.sequences + i));
            let (begin, ended) = answers(served, requests.collect())?;
            if run == 0 {
                continue;
            }
            firsts.extend(ended.iter().filter_map(|(stamps, usage)| {
                let first = stamps.first()?.saturating_duration_since(begin);
                Some(first.saturating_sub(usage.prefill).as_secs_f64())
            }));
            let stamps: Vec<_> = ended.into_iter().map(|(stamps, _)| stamps).collect();
            speeds.push(speed(&stamps)?);
        }
        Ok(Self {
            case,
            speed: median(speeds),
            first: median(firsts),
        })
    }
}

/// The times of the tokens of an answer, and its usage.
type TimedAnswer = (Vec<Instant>, Usage);

/// Runs requests together. Returns when they were sent, and the answer to each.
fn answers(
    served: &ServedModel,
    requests: Vec<Request>,
) -> Result<(Instant, Vec<TimedAnswer>), Failure> {
    let begin = Instant::now();
    let answers = served.handle.submit_all(requests)?;
    let threads: Vec<_> = answers
        .into_iter()
        .map(|events| std::thread::spawn(|| stamps(events)))
        .collect();
    let ended = threads.into_iter().map(|thread| thread.join());
    let ended = ended.map(|stamps| stamps.map_err(|_| anyhow::anyhow!("a reader panicked"))?);
    Ok((begin, ended.collect::<Result<_, Failure>>()?))
}

/// A request whose prompt starts with a token that no other prompt starts with.
fn request(served: &ServedModel, case: DecodeCase, of: usize) -> Request {
    let n_vocab = served.info.n_vocab.max(1) as usize;
    let prompt = (0..case.depth.max(1)).map(|i| ((31 * of + 7 * i) % n_vocab) as u32);
    let mut request = Request {
        max_tokens: Some(case.n + 1),
        cache_prompt: false,
        ..Request::reading(prompt.collect())
    };
    request.sampling.temperature = 0.0;
    request.stop.min_tokens = case.n + 1;
    request
}

/// The median of the values; 0 if there are none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// The arrival time of each token of a completion, and the usage of the completion.
fn stamps(mut events: UnboundedReceiver<Event>) -> Result<(Vec<Instant>, Usage), Failure> {
    let mut stamps = Vec::new();
    while let Some(event) = events.blocking_recv() {
        match event {
            Event::Text { tokens, .. } => stamps.extend(tokens.iter().map(|_| Instant::now())),
            Event::Done { usage, .. } => return Ok((stamps, usage)),
            Event::Failed(failure) => anyhow::bail!("{failure}"),
            _ => {}
        }
    }
    anyhow::bail!("the engine stopped before the end of a completion")
}

/// Tokens per second in the time when all completions have begun and none has ended; if there is none, over the whole
/// time.
fn speed(stamps: &[Vec<Instant>]) -> Result<f64, Failure> {
    let firsts = || stamps.iter().filter_map(|of_one| of_one.first());
    let lasts = || stamps.iter().filter_map(|of_one| of_one.last());
    let together = firsts().max().zip(lasts().min());
    let whole = firsts().min().zip(lasts().max());
    let together = together.filter(|(start, end)| start < end);
    let Some((start, end)) = together.or(whole) else {
        anyhow::bail!("a completion has no tokens");
    };
    let within = stamps.iter().flatten();
    let n = within
        .filter(|stamp| start < *stamp && *stamp <= end)
        .count();
    // A reader that wakes up late receives all tokens at once.
    let time = end.saturating_duration_since(*start).max(SHORTEST);
    Ok(n.max(1) as f64 / time.as_secs_f64())
}
