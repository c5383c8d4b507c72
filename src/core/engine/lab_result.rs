//! The results of a lab request: captured values, lens rows and attributions. Plain data.

use lab_sampling::TokenLogprob;

use super::lab::Reduction;

/// A captured value.
#[derive(Clone, Debug, PartialEq)]
pub struct CapturedPoint {
    /// Index of its capture in the plan.
    pub of: usize,
    /// The name of the point in the plan.
    pub point: String,
    /// The positions of the rows.
    pub positions: Vec<u32>,
    /// Dimensions of one row in ggml order, after the reduction.
    pub shape: Vec<u64>,
    /// How the rows were reduced.
    pub reduce: Reduction,
    /// Elements, row by row.
    pub elements: Vec<f32>,
    /// With [`Reduction::TopK`], the indices of the elements in their rows.
    pub places: Vec<u32>,
}

/// The lens result of one token at one point.
#[derive(Clone, Debug, PartialEq)]
pub struct LensRow {
    pub position: u32,
    /// The most probable next tokens.
    pub top: Vec<TokenLogprob>,
    /// Log-probability of each target, and its rank among all tokens, from 1.
    pub targets: Vec<(TokenLogprob, usize)>,
}

/// The lens results at one point.
#[derive(Clone, Debug, PartialEq)]
pub struct LensPoint {
    /// The name of the point in the plan.
    pub point: String,
    /// The result of each token.
    pub rows: Vec<LensRow>,
}

/// The parts of a token's logit at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct AttributedRow {
    pub position: u32,
    /// The logit, after scale and softcap.
    pub logit: f32,
    /// The contribution of the biases of norm and output head.
    pub constant: f64,
    /// The contribution of each part.
    pub values: Vec<f64>,
}

/// A logit, attributed to parts of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct AttributionResult {
    /// The token of the logit.
    pub of: u32,
    /// The parts that add to the hidden state, in order.
    pub parts: Vec<String>,
    /// The result of each position.
    pub rows: Vec<AttributedRow>,
}

/// The results of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabResult {
    /// Captured values in the order of the plan, then of the points.
    pub captures: Vec<CapturedPoint>,
    /// Lens results in the order of the points.
    pub lens: Vec<LensPoint>,
    /// The attributed logit, if the plan has one.
    pub attribution: Option<AttributionResult>,
    /// The tokens of the sequence. All but the last one of the completion are read.
    pub tokens: Vec<u32>,
}

impl LabResult {
    /// How many of its numbers are not finite.
    pub fn n_not_finite(&self) -> usize {
        let captured = self.captures.iter().flat_map(|one| &one.elements);
        let of_rows = self.attribution.iter().flat_map(|of| &of.rows);
        let attributed = of_rows.flat_map(|row| {
            let own = [f64::from(row.logit), row.constant];
            own.into_iter().chain(row.values.iter().copied())
        });
        captured.filter(|n| !n.is_finite()).count() + attributed.filter(|n| !n.is_finite()).count()
    }
}
