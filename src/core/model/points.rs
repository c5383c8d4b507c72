//! The points of a plan: all values that a pass names, with shape, meaning and other names.
//!
//! A block makes a point by passing a value through [`UnitBuilder::point`](crate::blocks::UnitBuilder::point).

use std::collections::HashMap;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::arch::{PointParts, PointSpec, nearest};
use crate::plan::Media;
use lab_base::weights::TensorType;

/// A value that can be captured, and usually edited.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The path of the value, such as `layers.3.attn.q`.
    pub path: String,
    /// Other names: `layers.3.out`, `blocks.3.hook_resid_post`.
    pub aliases: Vec<String>,
    /// Dimensions for one token in ggml order; 0 stands for the number of keys.
    pub shape: Vec<u64>,
    /// Type of the elements.
    pub ty: TensorType,
    /// For attention weights, the KV group of their keys; none if keys are selected, if scores have a bias by
    /// distance, or if the model reads a source.
    pub(super) group: Option<usize>,
    /// The specification of the point.
    pub spec: &'static PointSpec,
    /// The tower that has it, whose rows it has; none: the model.
    pub tower: Option<TowerPoint>,
}

/// A point of a tower, whose path begins with the name of what that reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TowerPoint {
    /// What the tower reads.
    pub media: Media,
    /// Number of values that the tower reads in a sample run, and of rows that the point has then.
    sample: [u64; 2],
}

impl TowerPoint {
    pub(super) fn new(media: Media, sample: [u64; 2]) -> Self {
        Self { media, sample }
    }

    /// An upper bound of the number of rows for a view of so many values. Each row is that of some values, or a learned one.
    pub fn n_rows(&self, n_values: usize) -> u64 {
        let [n_read, n_rows] = self.sample;
        (n_values as u64)
            .div_ceil(n_read.max(1))
            .saturating_mul(n_rows)
    }
}

impl Point {
    /// Number of elements for one token; for attention weights, for each key.
    pub fn width(&self) -> u64 {
        self.shape.iter().filter(|n| **n > 0).product()
    }

    /// The name that matches a pattern.
    pub fn name_by(&self, pattern: &str) -> &str {
        let mut names = self.aliases.iter().chain([&self.path]);
        let found = names.find(|name| *name == pattern || is_like(pattern, name));
        found.unwrap_or(&self.path)
    }

    /// Whether edits can change the value.
    pub fn is_editable(&self) -> bool {
        self.tower.is_none()
            && !matches!(self.spec.parts, PointParts::Pairs | PointParts::Indices)
            && self.path != LOGITS
    }

    /// Whether it has rows only for outputs, instead of for all tokens.
    pub(super) fn is_of_head(&self) -> bool {
        self.path.starts_with("head.")
    }

    /// Whether requests can capture it. Scores before the softmax exist only in passes that store all values.
    pub fn is_capturable(&self) -> bool {
        self.spec.parts != PointParts::Pairs || self.group.is_some()
    }

    /// How the value is computed, if not as part of the pass.
    pub fn forces(&self) -> Option<&'static str> {
        match (self.spec.parts, self.group) {
            (PointParts::Pairs, None) => Some("only without flash attention, in `bench compare`"),
            (PointParts::Pairs, Some(_)) => Some("computed in addition, for captured tokens"),
            _ => None,
        }
    }
}

/// The path of the logits.
pub const LOGITS: &str = "head.logits";

/// The error for a name that matches no point.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no point is named `{name}`{}", nearest.as_deref().map(|n| format!("; nearest: `{n}`")).unwrap_or_default())]
pub struct UnknownPoint {
    pub name: String,
    /// The most similar name.
    pub nearest: Option<String>,
}

/// Heads whose results one matrix sums. The rest of their slot is linear, up to the divisors of norms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadSum {
    /// Index of the point that the matrix reads, `[d, heads]`.
    pub heads: usize,
    /// Indices of the points that the norms after it read, in order.
    pub normed: Vec<usize>,
    /// Index of the hidden state after the slot.
    pub after: usize,
    /// Indices of layer, slot and branch in the plan.
    pub(super) at: [usize; 3],
}

/// The points of a model.
#[derive(Clone, Debug, Default)]
pub struct Points {
    /// The points in the order of computation.
    pub all: Vec<Point>,
    /// The matrices by which attention adds the results of heads to the hidden state.
    pub head_sums: Vec<HeadSum>,
    pub(super) by_name: HashMap<String, usize>,
}

/// The name of the weight that sums the heads of a block.
pub(super) const HEADS_MATRIX: &str = "o";

/// Maximum length of the name of a point in a request, in bytes.
const MAX_NAME: usize = 200;

impl Points {
    /// These points, and those of towers.
    #[must_use]
    pub fn with(mut self, towers: Vec<Point>) -> Self {
        for point in towers {
            let names = point.aliases.iter().chain([&point.path]);
            let at = self.all.len();
            self.by_name.extend(names.map(|name| (name.clone(), at)));
            self.all.push(point);
        }
        self
    }

    /// Number of elements of the hidden states of a token that the output head reads.
    pub fn read_width(&self) -> Option<usize> {
        let outs = self.find("layers.*.out").ok()?;
        outs.last().map(|at| self.all[*at].width() as usize)
    }

    /// The points that match a pattern, in the order of computation. A part of the pattern may be `*`, a list
    /// `{3,7}` or a range `{3-7}`.
    pub fn find(&self, pattern: &str) -> Result<Vec<usize>, UnknownPoint> {
        if let Some(at) = self.by_name.get(pattern) {
            return Ok(vec![*at]);
        }
        let unknown = || {
            let shown: String = pattern.chars().take(MAX_NAME).collect();
            let known = self.by_name.keys().map(String::as_str);
            UnknownPoint {
                nearest: nearest(&shown, known).map(str::to_owned),
                name: shown,
            }
        };
        if pattern.len() > MAX_NAME || !pattern.contains(['*', '{']) {
            return Err(unknown());
        }
        let names = self
            .by_name
            .iter()
            .filter(|(name, _)| is_like(pattern, name));
        let mut found: Vec<usize> = names.map(|(_, at)| *at).collect();
        found.sort_unstable();
        found.dedup();
        match found.is_empty() {
            true => Err(unknown()),
            false => Ok(found),
        }
    }
}

/// Whether a name matches a pattern.
fn is_like(pattern: &str, name: &str) -> bool {
    let (parts, own) = (pattern.split('.'), name.split('.'));
    parts.clone().count() == own.clone().count()
        && own.zip(parts).all(|(own, part)| fits(part, own))
}

/// Whether a part of a name matches a part of a pattern.
fn fits(pattern: &str, part: &str) -> bool {
    if pattern == "*" || pattern == part {
        return true;
    }
    let list = pattern.strip_prefix('{').and_then(|p| p.strip_suffix('}'));
    list.is_some_and(|list| {
        list.split(',').any(|one| {
            let range = one.split_once('-');
            let number = |text: &str| text.trim().parse::<u64>().ok();
            let range = range.and_then(|(from, to)| Some(number(from)?..=number(to)?));
            one.trim() == part
                || range.is_some_and(|range| number(part).is_some_and(|n| range.contains(&n)))
        })
    })
}

impl Serialize for Point {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Point", 10)?;
        out.serialize_field("path", &self.path)?;
        out.serialize_field("aliases", &self.aliases)?;
        let dims = self.shape.iter().map(|n| (*n > 0).then_some(*n));
        out.serialize_field("shape", &dims.collect::<Vec<_>>())?;
        out.serialize_field("dtype", self.ty.name())?;
        out.serialize_field("meaning", self.spec.doc)?;
        out.serialize_field("parts", self.spec.parts.name())?;
        out.serialize_field("editable", &self.is_editable())?;
        out.serialize_field("forces", &self.forces())?;
        out.serialize_field("capturable", &self.is_capturable())?;
        let tower = self.tower.map(|tower| tower.media.name());
        out.serialize_field("tower", &tower)?;
        out.end()
    }
}
