//! What a request captures and edits in its passes, with the checks. Plain data.
//!
//! A [`LabPlan`] names points or patterns of points. [`LabPlan::compiled`] finds them among the points of the
//! model, checks lengths and numbers, and computes the size of the results in bytes before anything runs.

use std::sync::Arc;

use serde::Deserialize;

use crate::arch::PointParts;
use crate::artifacts::vectors::Translators;
use crate::model::{LOGITS, Lab, LabCapture, LabEdit, Point, Points, Positions, TowerPoint};
use crate::models::media::PromptMedia;

use super::rejected::Rejected;

mod attribution;
mod edit;
mod vector;

pub(super) use attribution::AttributionPlan;
pub use attribution::{Attribution, AttributionUnit};
use edit::skip;
pub use edit::{Edit, EditOp};
pub use vector::EditVector;

/// A set of tokens of a sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(
    rename_all = "snake_case",
    expecting = "expected last, all, prompt, answer or a list of positions"
)]
pub enum PositionSelector {
    /// The last token of the prompt.
    #[default]
    Last,
    /// All tokens.
    All,
    /// The tokens of the prompt.
    Prompt,
    /// The tokens of the completion that are read. The last one is not.
    Answer,
    /// These positions. Negative ones count from the end of the prompt.
    #[serde(untagged)]
    List(Vec<i64>),
}

/// How the rows of a capture are reduced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// No reduction.
    #[default]
    None,
    /// The mean of the rows.
    Mean,
    /// The Euclidean norm of each row.
    Norm,
    /// The maximum of each element over the rows.
    Max,
    /// The largest elements of each row, with their indices.
    TopK(usize),
}

/// Points to capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// A point, or a pattern of points.
    pub point: String,
    /// The tokens whose rows are captured; none: the last of the prompt, or all rows of a value of a tower.
    pub positions: Option<PositionSelector>,
    /// How the rows are reduced.
    pub reduce: Reduction,
    /// Number of features that are computed of each row afterwards; 0 = none.
    pub n_features: usize,
}

/// The logit lens: logits of the hidden states after layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Lens {
    /// Points with a hidden state, or patterns of them.
    pub points: Vec<String>,
    /// The tokens whose hidden states are read.
    pub positions: PositionSelector,
    /// Length of the list of most probable tokens.
    pub top_k: usize,
    /// Tokens whose rank and probability are wanted.
    pub targets: Vec<u32>,
    /// Maps from the hidden state of each layer to one that the output head reads.
    pub translators: Option<Arc<Translators>>,
}

/// What a request captures and edits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabPlan {
    /// Points to capture.
    pub captures: Vec<Capture>,
    /// Edits, in the order in which they apply.
    pub edits: Vec<Edit>,
    /// The logit lens.
    pub lens: Option<Lens>,
    /// The logit to attribute to parts of the model.
    pub attribution: Option<Attribution>,
}

/// A captured point: the index of its capture in [`LabPlan::captures`], its name there, the capture of the model, and the
/// reduction.
pub(super) type CompiledCapture = (usize, String, LabCapture, Reduction);
/// A point with hidden states: name, capture, and the layer that reads it.
pub(super) type LensCapture = (String, LabCapture, Option<u64>);

/// A plan, compiled for one prompt of a model.
#[derive(Clone, Debug)]
pub(super) struct CompiledLab {
    /// The captures and edits that the model executes.
    pub(super) lab: Arc<Lab>,
    pub(super) captures: Vec<CompiledCapture>,
    pub(super) lens: Vec<LensCapture>,
    pub(super) translators: Option<Arc<Translators>>,
    pub(super) attribution: Option<AttributionPlan>,
    pub(super) top_k: usize,
    pub(super) targets: Vec<u32>,
    /// Maximum size of the results and edits in bytes.
    pub(super) n_bytes: u64,
}

/// Bytes of a token in a list of the lens: about those of its JSON.
const LISTED: u64 = 96;
/// Maximum number of products of a request that features of autoencoders take: rows times features times the width of a
/// row.
const MAX_PRODUCTS: u64 = 1 << 38;

fn refuse<T>(message: String) -> Result<T, Rejected> {
    Err(Rejected::field("lab", message))
}

/// The length of the prompt, and the maximum length of the sequence.
#[derive(Clone, Copy)]
struct Lengths {
    prompt: u32,
    all: u32,
}

impl PositionSelector {
    fn resolved(&self, n: Lengths) -> Result<Positions, Rejected> {
        Ok(match self {
            Self::Last => Positions::List(Arc::new([n.prompt - 1])),
            Self::All => Positions::Range(0, n.all),
            Self::Prompt => Positions::Range(0, n.prompt),
            Self::Answer => Positions::Range(n.prompt, n.all),
            Self::List(list) => {
                let resolved = list.iter().map(|at| {
                    let at = match at {
                        0.. => *at,
                        _ => i64::from(n.prompt).saturating_add(*at),
                    };
                    match u32::try_from(at) {
                        Ok(at) if at < n.all => Ok(at),
                        _ => refuse(format!("position {at} of a sequence of {} tokens", n.all)),
                    }
                });
                let all: Vec<u32> = resolved.collect::<Result<_, _>>()?;
                if all.is_empty() || !all.is_sorted_by(|a, b| a < b) {
                    return refuse(
                        "expected one or more positions in ascending order, without duplicates"
                            .into(),
                    );
                }
                Positions::List(all.into())
            }
        })
    }
}

impl LabPlan {
    /// The plan for a prompt with these media and a completion of at most `n_more` tokens. Results and edits of more than
    /// `limit` bytes are refused.
    pub(super) fn compiled(
        &self,
        points: &Points,
        media: Option<&PromptMedia>,
        (n_prompt, n_more): (usize, usize),
        n_vocab: usize,
        limit: u64,
    ) -> Result<CompiledLab, Rejected> {
        let length = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let mut compiler = Compiler {
            points,
            media,
            lengths: Lengths {
                prompt: length(n_prompt),
                all: length(n_prompt.saturating_add(n_more)),
            },
            n_vocab,
            limit,
            n_bytes: 0,
        };
        let captures = compiler.captures(&self.captures)?;
        let lens = self.lens.as_ref().map(|lens| compiler.lens(lens));
        let lens = lens.transpose()?.unwrap_or_default();
        let attribution = self.attribution.as_ref();
        let attribution = attribution.map(|one| compiler.attribution(one));
        let attribution = attribution.transpose()?;
        compiler.check_bytes()?;
        let edits = compiler.edits(&self.edits)?;
        let of_model = captures.iter().map(|(_, _, capture, _)| capture);
        let of_model = of_model.filter(|capture| points.all[capture.point].tower.is_none());
        let of_model = of_model.chain(lens.iter().map(|(_, capture, _)| capture));
        let of_model = of_model.chain(attribution.iter().flat_map(AttributionPlan::captures));
        let lab = Arc::new(Lab::new(of_model.cloned().collect(), edits));
        let asked = self.lens.as_ref();
        Ok(CompiledLab {
            lab,
            captures,
            lens,
            translators: asked.and_then(|lens| lens.translators.clone()),
            attribution,
            top_k: asked.map_or(0, |lens| lens.top_k),
            targets: asked.map_or_else(Vec::new, |lens| lens.targets.clone()),
            n_bytes: compiler.n_bytes,
        })
    }
}

/// Finds the points of a plan, and counts the bytes of its results and edits.
struct Compiler<'p> {
    points: &'p Points,
    media: Option<&'p PromptMedia>,
    lengths: Lengths,
    n_vocab: usize,
    /// Maximum of `n_bytes`.
    limit: u64,
    n_bytes: u64,
}

impl<'p> Compiler<'p> {
    fn find(&self, pattern: &str) -> Result<Vec<usize>, Rejected> {
        let found = self.points.find(pattern);
        found.or_else(|error| refuse(error.to_string()))
    }

    fn count(&mut self, numbers: u64) {
        self.n_bytes = self.n_bytes.saturating_add(numbers.saturating_mul(4));
    }

    fn check_bytes(&self) -> Result<(), Rejected> {
        let (n_bytes, limit) = (self.n_bytes, self.limit);
        if n_bytes <= limit {
            return Ok(());
        }
        refuse(format!(
            "the results and edits take up to {n_bytes} bytes, the limit is {limit} (`--lab-bytes`); \
             fewer points or positions, or a `reduce`, take fewer"
        ))
    }

    fn captures(&mut self, asked: &[Capture]) -> Result<Vec<CompiledCapture>, Rejected> {
        let (mut captures, mut n_products) = (Vec::new(), 0u64);
        for (of, capture) in asked.iter().enumerate() {
            let positions = capture.positions.clone().unwrap_or_default();
            let positions = positions.resolved(self.lengths)?;
            for point in self.find(&capture.point)? {
                let own = &self.points.all[point];
                let of_tower = own
                    .tower
                    .map(|tower| self.rows_of(own, tower, capture))
                    .transpose()?;
                let is_pairs = own.spec.parts == PointParts::Pairs;
                check_capturable(own, is_pairs && capture.reduce != Reduction::None)?;
                let n_rows = positions.n_below(self.lengths.all) as u64;
                // Attention weights have a row for each position that may be attended to.
                let n_keys = if is_pairs { self.lengths.all } else { 1 };
                let n_rows = of_tower.unwrap_or(n_rows.saturating_mul(u64::from(n_keys)));
                self.count(match capture.reduce {
                    // The rows of a value of a tower are held before they are reduced.
                    _ if of_tower.is_some() => n_rows.saturating_mul(2).saturating_mul(own.width()),
                    Reduction::None => n_rows.saturating_mul(own.width()),
                    Reduction::Mean | Reduction::Max => own.width(),
                    Reduction::Norm => n_rows,
                    Reduction::TopK(k) => n_rows.saturating_mul(2).saturating_mul(k as u64),
                });
                let of_row = own.width().saturating_mul(capture.n_features as u64);
                n_products = n_products.saturating_add(n_rows.saturating_mul(of_row));
                let name = own.name_by(&capture.point).to_owned();
                let positions = positions.clone();
                captures.push((of, name, LabCapture { point, positions }, capture.reduce));
            }
        }
        if n_products > MAX_PRODUCTS {
            return refuse(format!(
                "the features of all captured rows take {n_products} products, the limit is {MAX_PRODUCTS}; \
                 fewer points or positions take fewer"
            ));
        }
        Ok(captures)
    }

    /// The largest number of rows of a value of a tower for the media of the prompt.
    fn rows_of(&self, point: &Point, tower: TowerPoint, asked: &Capture) -> Result<u64, Rejected> {
        let path = &point.path;
        if !matches!(asked.positions, None | Some(PositionSelector::All)) {
            return refuse(format!(
                "`{path}` has rows of a tower, which have no positions in the prompt: expected no `positions`, or `all`"
            ));
        }
        let media = self.media.iter().flat_map(|of| &of.media);
        let media = media.filter(|medium| medium.media == tower.media);
        let views = media.flat_map(|medium| &medium.prepared.views);
        let n_rows = views.map(|view| tower.n_rows(view.values.len()));
        match n_rows.fold(0, u64::saturating_add) {
            0 => refuse(format!(
                "`{path}` is a value of the tower of kind `{}`, and the prompt has no medium of it",
                tower.media.name()
            )),
            n => Ok(n),
        }
    }

    fn lens(&mut self, asked: &Lens) -> Result<Vec<LensCapture>, Rejected> {
        let n_vocab = self.n_vocab;
        if let Some(id) = asked.targets.iter().find(|id| **id as usize >= n_vocab) {
            return refuse(format!("lens: {id} is not a token id below {n_vocab}"));
        }
        let points = self.points;
        let embedded = points.find(LOGITS).ok().and(points.find("embed.x").ok());
        let Some(width) = embedded.map(|at| points.all[at[0]].width()) else {
            return refuse("lens: the model has no logits".into());
        };
        let translated = asked.translators.as_ref().map(|all| all.width() as u64);
        let mut lens = Vec::new();
        for pattern in &asked.points {
            for point in self.find(pattern)? {
                let own = &points.all[point];
                let path = &own.path;
                let is_all = points.read_width() == Some(own.width() as usize);
                let is_elsewhere = path.starts_with("head.") || own.tower.is_some();
                if (own.width() != width && !is_all) || is_elsewhere {
                    return refuse(format!(
                        "lens: `{path}` is not a hidden state that the head reads"
                    ));
                }
                if let Some(size) = translated.filter(|size| *size != own.width()) {
                    let found = own.width();
                    return refuse(format!(
                        "lens: `translator` is for hidden states of {size} numbers, `{path}` has {found}"
                    ));
                }
                let positions = asked.positions.resolved(self.lengths)?;
                let per_row = LISTED * (asked.top_k + asked.targets.len()) as u64;
                // The rows are stored until their logits are computed.
                let per_row = per_row.saturating_add(4 * own.width());
                let n_rows = positions.n_below(self.lengths.all) as u64;
                let n_bytes = n_rows.saturating_mul(per_row);
                self.n_bytes = self.n_bytes.saturating_add(n_bytes);
                let name = own.name_by(pattern).to_owned();
                lens.push((name, LabCapture { point, positions }, layer_into(own)));
            }
        }
        Ok(lens)
    }

    fn attribution(&mut self, asked: &Attribution) -> Result<AttributionPlan, Rejected> {
        let plan = asked.compiled(self.points, self.lengths, self.n_vocab)?;
        for capture in plan.captures() {
            let n_rows = capture.positions.n_below(self.lengths.all) as u64;
            self.count(n_rows.saturating_mul(self.points.all[capture.point].width()));
        }
        Ok(plan)
    }

    /// The edits of points. Each is checked against the limit before the next one is made.
    fn edits(&mut self, asked: &[Edit]) -> Result<Vec<LabEdit>, Rejected> {
        let (points, lengths) = (self.points, self.lengths);
        let mut edits = Vec::new();
        for edit in asked {
            let positions = edit.positions.resolved(lengths)?;
            let positions = positions.within(&edit.when.resolved(lengths)?);
            let tokens = edit.sorted_tokens(self.n_vocab)?;
            let before = edits.len();
            for point in self.find(&edit.point)? {
                let own = &points.all[point];
                if own.tower.is_some() {
                    return refuse(format!(
                        "`{}` is a value of a tower, which can be read and not changed",
                        own.path
                    ));
                }
                let Some(rows) = edit.vector.of(own) else {
                    continue;
                };
                self.count(own.width().saturating_mul(1 + rows.len().max(1) as u64));
                self.check_bytes()?;
                edits.push(LabEdit {
                    point,
                    op: match edit.op {
                        EditOp::Skip if edit.parts.is_none() => skip(points, own)?,
                        _ => edit.op_of(own, &rows, positions.n_below(lengths.all))?,
                    },
                    positions: positions.clone(),
                    tokens: tokens.clone(),
                });
                if edits.len() > Lab::MAX_EDITS {
                    let most = Lab::MAX_EDITS;
                    return refuse(format!("more than {most} edits of points"));
                }
            }
            if let (EditVector::Stored(id, all), true) = (&edit.vector, edits.len() == before) {
                let layers: Vec<u64> = all.layers().collect();
                let point = &edit.point;
                return refuse(format!(
                    "`{point}`: `{id}` has no direction for it, only for the layers {layers:?}"
                ));
            }
        }
        Ok(edits)
    }
}

/// Refuses a point that exists for comparisons only, or whose rows cannot be reduced.
fn check_capturable(point: &Point, is_reduced_pairs: bool) -> Result<(), Rejected> {
    let path = &point.path;
    match (point.is_capturable(), point.spec.name) {
        (true, _) if !is_reduced_pairs => Ok(()),
        (true, _) => refuse(format!("`{path}` cannot be reduced")),
        (false, "weights") => refuse(format!(
            "`{path}` cannot be captured: keys are selected, scores have a bias by distance, or the model reads a source; \
             `bench compare` has the weights"
        )),
        (false, _) => refuse(format!(
            "`{path}` cannot be captured: it is a value of `bench compare` only"
        )),
    }
}

/// The layer that reads a hidden state, if an alias of the point names it.
fn layer_into(point: &Point) -> Option<u64> {
    let mut names = point.aliases.iter().filter_map(|name| {
        let (layer, end) = name.strip_prefix("layers.")?.split_once('.')?;
        let layer: u64 = layer.parse().ok()?;
        match end {
            "in" => Some(layer),
            "out" => Some(layer + 1),
            _ => None,
        }
    });
    names.next()
}
