//! The update of a tensor of the architecture as two matrices, whose elements are read from the matrices of the
//! adapter.

use std::sync::Arc;

use lab_base::weights::{LazyTensor, TensorData, TensorEntry, TensorType};

use super::super::rearrange::{Axis, View};
use super::super::recipe::read;
use super::{AdapterMatrix, ModuleUpdate};

/// Sizes of a view: number of experts or heads, of rows and of columns.
pub(super) fn sizes(view: &View) -> [u64; 3] {
    let shape = view.shape();
    let at = |back: usize| shape.len().checked_sub(back).map_or(1, |at| shape[at]);
    let outer: u64 = shape.iter().rev().skip(2).product();
    [outer, at(2), at(1)]
}

/// A side of a stored matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Rows,
    Columns,
}

/// The steps along both sides of a stored matrix that one step along an axis of the architecture's tensor takes.
type Steps = Vec<[u64; 2]>;

/// The update of one stored matrix within a tensor of the architecture.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ProductPart {
    /// The matrices `[n, rank]` of the rows and of the columns of the stored matrix; none if it has no
    /// update.
    sides: Option<[FactorView; 2]>,
    /// The side of the stored matrix of which the columns are made; the rows are made of the other side.
    columns_of: Side,
    /// The steps along experts or heads, rows and columns.
    steps: [Steps; 3],
    /// The first row and column in the stored matrix.
    offset: [u64; 2],
    pub(super) shape: [u64; 3],
    /// The place in the architecture's tensor.
    pub(super) begin: [u64; 3],
    pub(super) rank: u64,
    pub(super) first_rank: u64,
    factor: f64,
}

/// A factor whose elements are read by position and rank.
#[derive(Clone, Debug, PartialEq)]
struct FactorView {
    factor: AdapterMatrix,
    /// Whether the rank is the slower axis.
    is_ranked_first: bool,
}

impl FactorView {
    fn at(&self, place: u64, rank: u64) -> Result<f64, String> {
        let (row, column) = match self.is_ranked_first {
            true => (rank, place),
            false => (place, rank),
        };
        let [n_rows, n_columns] = self.factor.shape;
        if row >= n_rows || column >= n_columns {
            return Err("an element outside a matrix of the adapter".into());
        }
        let size = self.factor.dtype.bitsize() / 8;
        let begin = self.factor.offset + (row * n_columns + column) as usize * size;
        let bytes = self.factor.file.get(begin..begin + size);
        let bytes = bytes.ok_or("the file is shorter than it was")?;
        Ok(read(self.factor.dtype, bytes))
    }
}

impl ProductPart {
    pub(super) fn without_update(shape: [u64; 3]) -> Self {
        Self {
            sides: None,
            columns_of: Side::Columns,
            steps: Default::default(),
            offset: [0; 2],
            shape,
            begin: [0; 3],
            rank: 0,
            first_rank: 0,
            factor: 0.0,
        }
    }

    /// The update of a stored matrix with rows of `width` elements, in the order of `view`.
    pub(super) fn new(
        module: &ModuleUpdate,
        is_transposed: bool,
        view: &View,
        width: u64,
    ) -> Result<Self, String> {
        let mut axes: Vec<&[Axis]> = view.axes.iter().map(Vec::as_slice).collect();
        if axes.len() > 3 {
            return Err(format!("{} axes, expected at most 3", axes.len()));
        }
        while axes.len() < 3 {
            axes.insert(0, &[]);
        }
        let shape = sizes(view);
        let sides = [side_of(axes[1], width)?, side_of(axes[2], width)?];
        let columns_of = match sides {
            [_, Some(side)] => side,
            [Some(Side::Columns), None] => Side::Rows,
            _ => Side::Columns,
        };
        if sides[0] == Some(columns_of) {
            return Err(format!(
                "rows and columns both follow from the {} of the stored matrix, whose update is then not a product",
                match columns_of {
                    Side::Rows => "rows",
                    Side::Columns => "columns",
                }
            ));
        }
        let down = FactorView {
            factor: module.down.clone(),
            is_ranked_first: true,
        };
        let up = FactorView {
            factor: module.up.clone(),
            is_ranked_first: false,
        };
        Ok(Self {
            sides: Some(if is_transposed {
                [down, up]
            } else {
                [up, down]
            }),
            columns_of,
            steps: [0, 1, 2].map(|dim| steps(axes[dim], width)),
            offset: [view.offset / width, view.offset % width],
            shape,
            begin: [0; 3],
            rank: module.down.shape[0],
            first_rank: 0,
            factor: module.factor,
        })
    }

    /// Whether rank `k` of the whole product belongs to this block.
    fn covers(&self, k: u64) -> bool {
        self.sides.is_some() && (self.first_rank..self.first_rank + self.rank).contains(&k)
    }

    /// The element for expert or head `n`, position `i` along axis `dim` and rank `k`.
    fn at(&self, n: u64, dim: usize, i: u64, k: u64) -> Result<f64, String> {
        let is_outside = i < self.begin[dim] || i - self.begin[dim] >= self.shape[dim];
        let Some(sides) = self.sides.as_ref().filter(|_| !is_outside) else {
            return Ok(0.0);
        };
        let side = match (dim == 2) == (self.columns_of == Side::Rows) {
            true => 0,
            false => 1,
        };
        let step = |dim: usize, i: u64| self.steps[dim][i as usize][side];
        let place = self.offset[side] + step(0, n - self.begin[0]) + step(dim, i - self.begin[dim]);
        sides[side].at(place, k - self.first_rank)
    }
}

/// The side of a stored matrix with rows of `width` elements of which an axis is made; none if the axis has one
/// element.
fn side_of(axes: &[Axis], width: u64) -> Result<Option<Side>, String> {
    let mut found = None;
    for axis in axes.iter().filter(|axis| axis.size > 1) {
        let side = match axis.stride >= width {
            true => Side::Rows,
            false => Side::Columns,
        };
        if found.is_some_and(|other| other != side) {
            return Err("one axis follows from rows and columns of the stored matrix".into());
        }
        found = Some(side);
    }
    Ok(found)
}

fn steps(axes: &[Axis], width: u64) -> Steps {
    let mut out = vec![[0, 0]];
    for axis in axes {
        let step = match axis.stride >= width {
            true => [axis.stride / width, 0],
            false => [0, axis.stride],
        };
        let longer = out.iter().flat_map(|[row, column]| {
            (0..axis.size).map(move |i| [row + i * step[0], column + i * step[1]])
        });
        out = longer.collect();
    }
    out
}

/// The update of a tensor of the architecture. Equal products have equal elements.
#[derive(Debug, PartialEq)]
pub(super) struct LowRankProduct {
    blocks: Vec<ProductPart>,
    /// The blocks of each expert or head.
    of: Vec<Vec<usize>>,
    rank: u64,
    /// Number of experts or heads, of rows and of columns.
    shape: [u64; 3],
    /// Factors of the elements: one for all, or one for each index of the slowest axis.
    slopes: Vec<f64>,
}

impl LowRankProduct {
    pub(super) fn new(
        blocks: Vec<ProductPart>,
        rank: u64,
        shape: [u64; 3],
        slopes: Vec<f64>,
    ) -> Self {
        let mut of = vec![Vec::new(); shape[0] as usize];
        for (i, block) in blocks.iter().enumerate() {
            let begin = block.begin[0] as usize;
            for n in &mut of[begin..begin + block.shape[0] as usize] {
                n.push(i);
            }
        }
        Self {
            blocks,
            of,
            rank,
            shape,
            slopes,
        }
    }

    pub(super) fn entries(self: Arc<Self>, name: &str, is_table: bool) -> [TensorEntry; 2] {
        let [n, rows, columns] = self.shape;
        let halves = match is_table {
            true => [
                (Half::Up, [self.rank, rows, 1]),
                (Half::Transposed, [self.rank, columns, 1]),
            ],
            false => [
                (Half::Down, [columns, self.rank, n]),
                (Half::Up, [self.rank, rows, n]),
            ],
        };
        let mut endings = ["lora_a", "lora_b"].into_iter();
        halves.map(|(half, shape)| TensorEntry {
            name: format!("{name}.{}", endings.next().unwrap_or_default()),
            ty: TensorType::F32,
            shape: shape[..if shape[2] == 1 { 2 } else { 3 }].to_vec(),
            data: TensorData::Lazy(Arc::new(ProductMatrix {
                product: Arc::clone(&self),
                half,
            })),
        })
    }

    /// The element of expert or head `n`, position `i` along axis `dim` and rank `k`.
    fn at(&self, n: u64, dim: usize, i: u64, k: u64) -> Result<f64, String> {
        let blocks = self.of[n as usize].iter().map(|at| &self.blocks[*at]);
        let mut blocks = blocks.filter(|block| block.covers(k));
        match blocks.next() {
            Some(block) if dim == 1 => {
                let index = if self.shape[0] > 1 { n } else { i };
                let slope = self.slopes.get(index as usize).unwrap_or(&self.slopes[0]);
                Ok(block.at(n, dim, i, k)? * block.factor * slope)
            }
            Some(block) => block.at(n, dim, i, k),
            None => Ok(0.0),
        }
    }
}

/// One of the two matrices of an update.
#[derive(Clone, Copy, Debug)]
enum Half {
    /// `[columns, rank, n]`.
    Down,
    /// `[rank, rows, n]`.
    Up,
    /// `[rank, columns]`.
    Transposed,
}

#[derive(Debug)]
struct ProductMatrix {
    product: Arc<LowRankProduct>,
    half: Half,
}

impl LazyTensor for ProductMatrix {
    fn rows(&self, first: u64, out: &mut [u8]) -> Result<(), String> {
        let LowRankProduct { rank, shape, .. } = *self.product;
        let (width, per_n) = match self.half {
            Half::Down => (shape[2], rank),
            Half::Up => (rank, shape[1]),
            Half::Transposed => (rank, shape[2]),
        };
        let places = (first..).flat_map(|row| (0..width).map(move |column| (row, column)));
        for ((row, column), to) in places.zip(out.chunks_exact_mut(4)) {
            let (n, row) = (row / per_n, row % per_n);
            let value = match self.half {
                Half::Down => self.product.at(n, 2, column, row),
                Half::Up => self.product.at(n, 1, row, column),
                Half::Transposed => self.product.at(n, 2, row, column),
            };
            to.copy_from_slice(&(value? as f32).to_le_bytes());
        }
        Ok(())
    }
}
