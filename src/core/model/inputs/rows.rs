//! Inputs with an element for each token or sequence: token ids, rows of tables, slots, scales.

use crate::blocks::{EndedSpans, MediaTensors, SequenceGroup, SpanRows};
use crate::plan::RowLayout;
use lab_base::ggml::{Executor, Graph, Result, Tensor};
use lab_base::weights::TensorType;

use super::super::adapters::ModelAdapters;
use super::super::batch::{Batch, MAX_BANNED};
use super::super::cache::states::{RowIds, STATE_PIECES};
use super::super::cache::{PassStateRows, SequenceId};
use super::super::media::{FIRST_MEDIA_ID, MediaOfPass};
use super::super::options::Options;

/// Token ids, i32 `[n_tokens]`.
pub(crate) struct TokenIds(pub(crate) Tensor);

impl TokenIds {
    pub(super) fn new(g: &Graph, prefix: &str, n: u64, n_vocab: u64) -> Result<Self> {
        g.index_input(&format!("{prefix}tokens"), TensorType::I32, &[n], n_vocab)
            .map(Self)
    }

    pub(super) fn write(&self, executor: &mut Executor, batch: &Batch) -> Result<()> {
        // A graph that reads stand-ins for the tokens does not read their ids.
        if !self.0.is_allocated() {
            return Ok(());
        }
        // The row of a medium takes the place of what its id looks up.
        let id_of = |id: &u32| if *id >= FIRST_MEDIA_ID { 0 } else { *id as i32 };
        let ids: Vec<i32> = batch.tokens.iter().map(id_of).collect();
        executor.write_indices(&self.0, &ids)
    }
}

/// The rows of media and their tokens.
pub(crate) struct MediaInput {
    pub(crate) tensors: MediaTensors,
}

impl MediaInput {
    /// `n` rows of `width` elements among `n_tokens` tokens.
    pub(super) fn new(g: &Graph, (width, n): (u64, u64), n_tokens: u64) -> Result<Self> {
        let tensors = MediaTensors {
            rows: g.input("media.rows", TensorType::F32, &[width, n])?,
            places: g.index_input("media.places", TensorType::I32, &[n], n_tokens)?,
        };
        Ok(Self { tensors })
    }

    pub(super) fn write(&self, executor: &mut Executor, media: &MediaOfPass) -> Result<()> {
        executor.write(&self.tensors.rows, &media.rows)?;
        executor.write_indices(&self.tensors.places, &media.places)
    }
}

/// The tokens that branches for media are for, i32 `[n]`.
pub(crate) struct MediaTokens(pub(crate) Tensor);

impl MediaTokens {
    /// `n` of `n_tokens` tokens.
    pub(super) fn new(g: &Graph, n: u64, n_tokens: u64) -> Result<Self> {
        let tokens = g.index_input("media.tokens", TensorType::I32, &[n], n_tokens)?;
        Ok(Self(tokens))
    }

    pub(super) fn write(&self, executor: &mut Executor, media: &MediaOfPass) -> Result<()> {
        executor.write_indices(&self.0, &media.tokens)
    }
}

/// Rows that want a result, i32 `[n_outputs]`.
pub(crate) struct OutputRows(pub(crate) Tensor);

impl OutputRows {
    pub(super) fn new(g: &Graph, n_outputs: u64, n: u64) -> Result<Self> {
        g.index_input("rows", TensorType::I32, &[n_outputs], n)
            .map(Self)
    }

    /// Writes the rows that want a result, or these rows. Those that are missing repeat the first row.
    pub(super) fn write(
        &self,
        executor: &mut Executor,
        batch: &Batch,
        rows: Option<&[usize]>,
    ) -> Result<()> {
        let mut wanted: Vec<i32> = match rows {
            Some(rows) => rows.iter().map(|row| *row as i32).collect(),
            None => {
                let wanted = (0..).zip(&batch.outputs).filter(|(_, wanted)| **wanted);
                wanted.map(|(i, _)| i).collect()
            }
        };
        wanted.resize(self.0.elements() as usize, 0);
        executor.write_indices(&self.0, &wanted)
    }
}

/// What makes the tokens of the next pass of the highest logits of this one.
pub(crate) struct NextTokens {
    /// The number of the result of each row, i32 `[n_tokens]`; 0 for rows without one.
    pub(crate) results: Tensor,
    /// For each result the banned ids, f32 `[MAX_BANNED, 1, n_outputs]`; -1 for none.
    pub(crate) banned: Tensor,
}

impl NextTokens {
    pub(super) fn new(g: &Graph, n_outputs: u64, n: u64) -> Result<Self> {
        let lists = [MAX_BANNED as u64, 1, n_outputs];
        Ok(Self {
            results: g.index_input("results", TensorType::I32, &[n], n_outputs)?,
            banned: g.input("banned", TensorType::F32, &lists)?,
        })
    }

    /// Writes what follows from a batch with the row of each result.
    pub(super) fn write(
        &self,
        executor: &mut Executor,
        batch: &Batch,
        rows: &[usize],
    ) -> Result<()> {
        if !self.results.is_allocated() {
            return Ok(());
        }
        let mut results = vec![0; self.results.elements() as usize];
        let mut banned = vec![-1.0; self.banned.elements() as usize];
        for ((result, row), list) in (0..).zip(rows).zip(banned.chunks_exact_mut(MAX_BANNED)) {
            results[*row] = result;
            let ids = batch.banned[*row].iter();
            list.iter_mut()
                .zip(ids)
                .for_each(|(to, id)| *to = *id as f32);
        }
        executor.write_indices::<i32>(&self.results, &results)?;
        executor.write(&self.banned, &banned)
    }
}

/// KV slot of each token in one group, i64 `[n_tokens]`.
pub(super) struct KvSlots(pub(super) Tensor);

impl KvSlots {
    pub(super) fn new(g: &Graph, group: &str, n: u64, n_slots: u64) -> Result<Self> {
        g.index_input(&format!("slots.{group}"), TensorType::I64, &[n], n_slots)
            .map(Self)
    }

    pub(super) fn write(
        &self,
        executor: &mut Executor,
        slots: &[usize],
        layout: RowLayout,
    ) -> Result<()> {
        if !self.0.is_allocated() {
            return Ok(());
        }
        let rows = slots.iter().map(|slot| layout.own(*slot as u64));
        let slots: Vec<i64> = rows.map(|row| row as i64).collect();
        executor.write_indices(&self.0, &slots)
    }
}

/// The rows of the blocks that contain the tokens, in one KV group whose keys are pooled.
pub(super) struct PooledRows {
    pub(super) rows: SpanRows,
    span: u32,
}

/// Smaller than any gate.
const MISSING: f32 = -1e30;

impl PooledRows {
    /// The inputs of a pass of `n` tokens over `n_rows` rows.
    pub(super) fn new(g: &Graph, group: &str, (n, n_rows): (u64, u64), span: u64) -> Result<Self> {
        let rows = |what: &str, ty: TensorType| {
            g.index_input(&format!("{what}.{group}"), ty, &[span * n], n_rows)
        };
        Ok(Self {
            rows: SpanRows {
                read: rows("block_rows", TensorType::I32)?,
                write: rows("block_slots", TensorType::I64)?,
                missing: g.input(&format!("missing.{group}"), TensorType::F32, &[span, n])?,
            },
            span: span as u32,
        })
    }

    /// Writes the inputs. `row` gives the row of a position of a sequence, if it is there.
    pub(super) fn write(
        &self,
        executor: &mut Executor,
        places: &[(SequenceId, u32)],
        row: impl Fn(SequenceId, u32) -> Option<usize>,
    ) -> Result<()> {
        let (mut rows, mut missing) = (Vec::new(), Vec::new());
        for (id, position) in places {
            let own = row(*id, *position).unwrap_or(0);
            let first = position / self.span * self.span;
            for other in first..first + self.span {
                let found = row(*id, other);
                rows.push(found.unwrap_or(own) as i64);
                missing.push(found.map_or(MISSING, |_| 0.0));
            }
        }
        let read: Vec<i32> = rows.iter().map(|row| *row as i32).collect();
        if self.rows.read.is_allocated() {
            executor.write_indices(&self.rows.read, &read)?;
        }
        if self.rows.missing.is_allocated() {
            executor.write(&self.rows.missing, &missing)?;
        }
        match self.rows.write.is_allocated() {
            true => executor.write_indices(&self.rows.write, &rows),
            false => Ok(()),
        }
    }
}

/// The blocks of positions that end in a pass, in one KV group in which whole blocks have keys.
pub(super) struct EndedRows {
    pub(super) blocks: EndedSpans,
    span: u32,
    reach: u32,
}

/// Lookups of rows. `read` and `each` give rows of a position of a sequence, none if it is not there: the row from
/// which keys are made, and the row of which each position has one. `whole` gives the row of a block's key from the
/// row of its last position.
pub(super) struct RowLookup<'a> {
    pub(super) read: &'a dyn Fn(SequenceId, u32) -> Option<usize>,
    pub(super) each: &'a dyn Fn(SequenceId, u32) -> Option<usize>,
    pub(super) whole: &'a dyn Fn(usize) -> usize,
}

impl EndedRows {
    /// The inputs of `m` blocks, at least 1: `n_read` rows from which keys are made, `n_keys` rows of keys, and
    /// `n_each` rows, one for each position.
    pub(super) fn new(
        g: &Graph,
        group: &str,
        m: u64,
        [n_read, n_keys, n_each]: [u64; 3],
        (span, reach): (u64, u64),
    ) -> Result<Self> {
        let input = |what: &str, ty, shape: &[u64]| g.input(&format!("{what}.{group}"), ty, shape);
        let index = |what: &str, ty, n: u64, n_rows: u64| {
            g.index_input(&format!("{what}.{group}"), ty, &[n], n_rows)
        };
        Ok(Self {
            blocks: EndedSpans {
                read: index("ended", TensorType::I32, reach * m, n_read)?,
                missing: input("ended_missing", TensorType::F32, &[reach, m])?,
                positions: input("ended_positions", TensorType::I32, &[m])?,
                write: index("ended_slots", TensorType::I64, m, n_keys)?,
                write_each: index("ended_each", TensorType::I64, span * m, n_each)?,
            },
            span: span as u32,
            reach: reach as u32,
        })
    }

    /// Writes the inputs for the tokens of a pass.
    pub(super) fn write(
        &self,
        executor: &mut Executor,
        places: &[(SequenceId, u32)],
        rows: &RowLookup<'_>,
    ) -> Result<()> {
        let blocks = &self.blocks;
        let ends = places
            .iter()
            .filter(|(_, at)| (at + 1).is_multiple_of(self.span));
        // Missing blocks repeat the first one, which writes the same values to the same rows.
        let ends: Vec<_> = ends.copied().collect();
        let first = ends.first().copied().into_iter().cycle();
        let m = blocks.positions.elements() as usize;
        let (mut read, mut missing, mut positions) = (Vec::new(), Vec::new(), Vec::new());
        let (mut write, mut write_each) = (Vec::new(), Vec::new());
        for (id, last) in ends.iter().copied().chain(first).take(m) {
            for back in (0..self.reach).rev() {
                let row = last.checked_sub(back).and_then(|at| (rows.read)(id, at));
                missing.push(row.map_or(MISSING, |_| 0.0));
                read.push(row.unwrap_or(0) as i32);
            }
            let start = last + 1 - self.span;
            positions.push(start as i32);
            let row = |at| (rows.each)(id, at).unwrap_or(0);
            write.push((rows.whole)(row(last)) as i64);
            write_each.extend((start..=last).map(|at| row(at) as i64));
        }
        if blocks.read.is_allocated() {
            executor.write_indices(&blocks.read, &read)?;
        }
        if blocks.missing.is_allocated() {
            executor.write(&blocks.missing, &missing)?;
        }
        if blocks.positions.is_allocated() {
            executor.write(&blocks.positions, &positions)?;
        }
        if blocks.write.is_allocated() {
            executor.write_indices(&blocks.write, &write)?;
        }
        match blocks.write_each.is_allocated() {
            true => executor.write_indices(&blocks.write_each, &write_each),
            false => Ok(()),
        }
    }
}

/// Rows of recurrent states.
pub(super) struct StateRows {
    /// The rows that the sequences of each group read, i32. The last row is zeros.
    pub(super) read: Vec<RowIds>,
    /// The rows that the sequences write, i64; none if no state is stored.
    pub(super) write: Option<RowIds>,
}

impl StateRows {
    pub(super) fn new(g: &Graph, options: &Options, groups: &[SequenceGroup]) -> Result<Self> {
        let n_rows = options.n_rows() as u64;
        let ids = |name: &str, ty: TensorType, n_seqs: u64, n_rows: u64| {
            let of = |name: &str, n: u64| g.index_input(name, ty, &[n * n_seqs], n * n_rows);
            Ok(RowIds {
                rows: of(name, 1)?,
                pieces: of(&format!("{name}.pieces"), STATE_PIECES)?,
            })
        };
        let read = groups.iter().enumerate().map(|(i, group)| {
            let (name, n_seqs) = (format!("states.read.{i}"), group.n_seqs as u64);
            ids(&name, TensorType::I32, n_seqs, n_rows + 1)
        });
        let n_seqs = groups.iter().map(|group| group.n_seqs as u64).sum();
        let write = match options.n_ctx {
            0 => None,
            _ => Some(ids("states.write", TensorType::I64, n_seqs, n_rows)?),
        };
        let read = read.collect::<Result<_>>()?;
        Ok(Self { read, write })
    }

    pub(super) fn write(&self, executor: &mut Executor, rows: &PassStateRows) -> Result<()> {
        let mut left = rows.read.as_slice();
        for read in &self.read {
            let (own, after) = left.split_at(read.rows.elements() as usize);
            left = after;
            for (ids, n) in read.each() {
                let own = pieces_of(own, n).map(|id| id as i32);
                executor.write_indices(ids, &own.collect::<Vec<i32>>())?;
            }
        }
        for (ids, n) in self.write.iter().flat_map(RowIds::each) {
            let own = pieces_of(&rows.write, n).map(|id| id as i64);
            executor.write_indices(ids, &own.collect::<Vec<i64>>())?;
        }
        Ok(())
    }
}

/// The indices of the rows after each is cut into `n` rows.
fn pieces_of(rows: &[usize], n: u64) -> impl Iterator<Item = u64> {
    let rows = rows.iter();
    rows.flat_map(move |row| (0..n).map(move |piece| *row as u64 * n + piece))
}

/// Scale of each token for every adapter that is on, f32 `[1, n_tokens]`.
#[derive(Clone)]
pub(crate) struct AdapterScales(pub(crate) Vec<(usize, Tensor)>);

impl AdapterScales {
    pub(crate) fn new(g: &Graph, prefix: &str, ids: &[usize], n: u64) -> Result<Self> {
        let scales = ids.iter().map(|id| {
            let scales = g.input(&format!("{prefix}adapters.{id}"), TensorType::F32, &[1, n])?;
            Ok((*id, scales))
        });
        scales.collect::<Result<_>>().map(Self)
    }

    pub(crate) fn write(
        &self,
        executor: &mut Executor,
        adapters: &ModelAdapters,
        sequences: &(impl Iterator<Item = SequenceId> + Clone),
    ) -> Result<()> {
        for (id, tensor) in self.0.iter().filter(|(_, t)| t.is_allocated()) {
            let scales = sequences.clone().map(|row| adapters.scale(*id, row));
            executor.write(tensor, &scales.collect::<Vec<f32>>())?;
        }
        Ok(())
    }
}
