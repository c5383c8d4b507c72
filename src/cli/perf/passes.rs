//! The passes that are measured.

use std::time::Instant;

use lab_base::util::measure::Summary;
use lab_core::model::{Batch, Model, NextPass, PassCounts, PassRow, PassSink, SequenceId};

use crate::cli::Failure;

#[derive(Clone, Copy)]
pub(super) struct PrefillCase {
    /// Number of prompts that are read together.
    pub(super) prompts: usize,
    /// Number of tokens of each.
    pub(super) n: usize,
}

pub(super) struct PrefillMeasurement {
    pub(super) case: PrefillCase,
    /// Statistics of the seconds per repetition.
    pub(super) seconds: Summary,
}

#[derive(Clone, Copy)]
pub(super) struct DecodeCase {
    /// Number of tokens in the cache of each sequence at the start.
    pub(super) depth: usize,
    /// Number of sequences that are decoded together.
    pub(super) sequences: usize,
    pub(super) n: usize,
}

/// The measured decoding of sequences together, one token of each per step.
pub(super) struct DecodeMeasurement {
    pub(super) case: DecodeCase,
    /// Seconds of all steps together, per repetition.
    pub(super) seconds: Summary,
    /// Seconds per step, over all repetitions.
    pub(super) steps: Summary,
    /// Bytes of weights that a step reads.
    pub(super) weight_bytes: u64,
    /// Bytes of keys, values and states that a step in the middle of the run reads.
    pub(super) cache_bytes: u64,
    /// What the steps of the last repetition did.
    pub(super) work: PassCounts,
}

impl PrefillMeasurement {
    pub(super) fn measure(
        model: &mut Model,
        case: PrefillCase,
        repeat: usize,
    ) -> Result<Self, Failure> {
        let mut seconds = Vec::with_capacity(repeat);
        for run in 0..=repeat {
            forget(model, case.prompts);
            let start = Instant::now();
            read_together(model, case)?;
            // The first run is a warm-up.
            if run > 0 {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
        forget(model, case.prompts);
        Ok(Self {
            case,
            seconds: summary(&seconds)?,
        })
    }

    /// Tokens per second of all prompts together, from the median time.
    pub(super) fn speed(&self) -> f64 {
        (self.case.n * self.case.prompts) as f64 / self.seconds.p50
    }
}

impl DecodeMeasurement {
    pub(super) fn measure(
        model: &mut Model,
        case: DecodeCase,
        repeat: usize,
    ) -> Result<Self, Failure> {
        let (mut seconds, mut steps) = (Vec::with_capacity(repeat), Vec::new());
        let mut work = PassCounts::default();
        for run in 0..=repeat {
            match run {
                0 => begin(model, case)?,
                _ => go_back(model, case)?,
            }
            let mut times = Vec::with_capacity(case.n);
            let before = model.work();
            for i in 0..case.n {
                let start = Instant::now();
                step(model, case, i)?;
                times.push(start.elapsed().as_secs_f64());
            }
            if run > 0 {
                work = model.work().since(&before);
                seconds.push(times.iter().sum());
                steps.append(&mut times);
            }
        }
        let weight_bytes = model.weight_bytes_read();
        let cache_bytes = cache_bytes(model, case);
        forget(model, case.sequences);
        Ok(Self {
            case,
            seconds: summary(&seconds)?,
            steps: summary(&steps)?,
            weight_bytes,
            cache_bytes,
            work,
        })
    }

    /// Tokens per second of all sequences together, from the median time.
    pub(super) fn speed(&self) -> f64 {
        (self.case.n * self.case.sequences) as f64 / self.seconds.p50
    }

    /// Bytes of weights and cache read per second, from the median time.
    pub(super) fn bytes_per_second(&self) -> f64 {
        (self.weight_bytes + self.cache_bytes) as f64 * self.case.n as f64 / self.seconds.p50
    }
}

fn summary(values: &[f64]) -> Result<Summary, Failure> {
    Summary::of(values).ok_or_else(|| anyhow::anyhow!("nothing was measured"))
}

fn token(model: &Model, i: usize) -> u32 {
    (i * 7 % model.plan().n_vocab.max(1) as usize) as u32
}

/// Reads tokens `first` to `end` of a sequence, in passes of the maximum size. With `logits`, the last token yields
/// logits.
pub(super) fn read(
    model: &mut Model,
    sequence: SequenceId,
    first: usize,
    end: usize,
    logits: bool,
) -> Result<(), Failure> {
    let at_once = model.options().n_batch.max(1);
    let mut batch = Batch::default();
    for start in (first..end).step_by(at_once) {
        let stop = (start + at_once).min(end);
        batch.clear();
        for i in start..stop {
            let wanted = logits && i + 1 == end;
            batch.push(token(model, i), sequence, i as u32, wanted);
        }
        model.forward(&batch)?;
    }
    Ok(())
}

/// Reads prompts one after another in passes of the maximum size, in which the end of one and the start of the next may lie. The
/// last token of each yields logits.
fn read_together(model: &mut Model, case: PrefillCase) -> Result<(), Failure> {
    let at_once = model.options().n_batch.max(1);
    let mut batch = Batch::default();
    for sequence in 0..case.prompts {
        for i in 0..case.n {
            let id = token(model, i + 31 * sequence);
            batch.push(id, sequence as SequenceId, i as u32, i + 1 == case.n);
            let is_last = sequence + 1 == case.prompts && i + 1 == case.n;
            if batch.len() == at_once || is_last {
                model.forward(&batch)?;
                batch.clear();
            }
        }
    }
    Ok(())
}

/// Clears every sequence of a case and reads it to its depth.
pub(super) fn begin(model: &mut Model, case: DecodeCase) -> Result<(), Failure> {
    for sequence in 0..case.sequences as SequenceId {
        model.forget(sequence, 0);
        read(model, sequence, 0, case.depth, false)?;
    }
    Ok(())
}

/// Removes the tokens after the depth of the case from every sequence.
pub(super) fn go_back(model: &mut Model, case: DecodeCase) -> Result<(), Failure> {
    for sequence in 0..case.sequences as SequenceId {
        // A state that cannot go back to this position is read again from the start.
        let first = model.forget(sequence, case.depth as u32) as usize;
        read(model, sequence, first, case.depth, false)?;
    }
    Ok(())
}

pub(super) fn forget(model: &mut Model, sequences: usize) {
    for sequence in 0..sequences as SequenceId {
        model.forget(sequence, 0);
    }
}

/// Takes rows as they come. The step after reads a token at each place of this batch.
struct Unread {
    next: Batch,
}

impl PassSink for Unread {
    fn launched(&mut self) -> NextPass {
        NextPass {
            batch: std::mem::take(&mut self.next),
            are_best: false,
        }
    }

    fn rows(&mut self, _rows: &[(usize, PassRow<'_>)]) -> Vec<usize> {
        Vec::new()
    }
}

/// Decodes one token of every sequence.
pub(super) fn step(model: &mut Model, case: DecodeCase, i: usize) -> Result<(), Failure> {
    let position = case.depth + i;
    let mut batch = Batch {
        wants_top: true,
        ..Batch::default()
    };
    for sequence in 0..case.sequences {
        let token = token(model, position + 31 * sequence);
        batch.push(token, sequence as SequenceId, position as u32, true);
    }
    let mut next = Batch::default();
    if i + 1 < case.n {
        let places = batch.positions.iter();
        places.for_each(|(id, at)| next.push(0, *id, at + 1, true));
    }
    Ok(model.forward_rows(&batch, &mut Unread { next })?)
}

/// Bytes of keys, values and states that a step in the middle of the run reads.
fn cache_bytes(model: &Model, case: DecodeCase) -> u64 {
    let (plan, options) = (model.plan(), model.options());
    let position = (case.depth + case.n / 2) as u64;
    let rows = plan.cache_bytes_read(position, options.k_type, options.v_type);
    let states = plan.recurrent_bytes(1).unwrap_or(0);
    (rows.unwrap_or(0) + states) * case.sequences as u64
}
