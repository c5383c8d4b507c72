//! Extracts the operations of a part from the graph: which are folded, which share a box, and which values flow between
//! them.

use std::collections::{BTreeSet, HashMap};

use lab_base::ggml::{GraphOp, OpSource};

/// A box under construction.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OpGroup {
    /// The operations, in the order of execution; the first one determines the kind of the box.
    pub(super) steps: Vec<usize>,
    /// The weights that the operations read, as indices in the plan, in the same order.
    pub(super) weights: Vec<usize>,
    /// The operation whose dimensions are those of the result.
    pub(super) result: usize,
    /// Whether the box sums the parts of one value.
    pub(super) is_sum: bool,
}

pub(super) type GroupOfStep = HashMap<usize, usize>;

/// Whether an operation is drawn as an edge.
pub(super) fn is_folded(step: &GraphOp) -> bool {
    let layout = matches!(step.op.as_str(), "CONT" | "CPY" | "DUP" | "REPEAT" | "CAST");
    // A clamp that only bounds what is no number precedes a selection.
    let bounds_nothing =
        step.op == "CLAMP" && step.params[0] == f32::MIN && step.params[1] == f32::MAX;
    step.is_view || layout || bounds_nothing
}

/// The origin of a value, followed through all folded operations.
pub(super) fn root(steps: &[GraphOp], origin: &OpSource) -> OpSource {
    match origin {
        OpSource::Op(at) if is_folded(&steps[*at]) => match steps[*at].sources.first() {
            Some(source) => root(steps, source),
            None => origin.clone(),
        },
        other => other.clone(),
    }
}

pub(super) fn elements(step: &GraphOp) -> u64 {
    step.shape.iter().product()
}

/// The graph, with the number of readers of each value.
pub(super) struct GraphReader<'a> {
    pub(super) steps: &'a [GraphOp],
    /// For each step, the number of drawn operations that read it.
    uses: Vec<usize>,
}

impl<'a> GraphReader<'a> {
    pub(super) fn new(steps: &'a [GraphOp]) -> Self {
        let mut uses = vec![0; steps.len()];
        for step in steps.iter().filter(|step| !is_folded(step)) {
            let op = |source: &OpSource| match root(steps, source) {
                OpSource::Op(at) => Some(at),
                _ => None,
            };
            let read: BTreeSet<usize> = step.sources.iter().filter_map(op).collect();
            read.into_iter().for_each(|at| uses[at] += 1);
        }
        Self { steps, uses }
    }

    /// The boxes of the operations `of`, which are in the order of execution, and the box of each operation.
    pub(super) fn boxes(&self, of: &[usize]) -> (Vec<OpGroup>, GroupOfStep) {
        let mut boxes: Vec<OpGroup> = Vec::new();
        let mut owner = GroupOfStep::new();
        for &at in of.iter().filter(|at| !is_folded(&self.steps[**at])) {
            let weights = self.weights(at);
            let joined = self
                .follows(at, &boxes, &owner)
                .or_else(|| self.sums_parts(at, &boxes, &owner));
            let place = joined.unwrap_or(boxes.len());
            match boxes.get_mut(place) {
                Some(known) => {
                    known.steps.push(at);
                    known.weights.extend(weights);
                    known.result = at;
                }
                None => boxes.push(OpGroup {
                    steps: vec![at],
                    weights,
                    result: self.window(at),
                    is_sum: self.is_sum(at),
                }),
            }
            owner.insert(at, place);
        }
        (boxes, owner)
    }

    /// For a sort, the view of its best elements; otherwise the operation itself.
    pub(super) fn window(&self, at: usize) -> usize {
        let is_window = |step: &GraphOp| step.is_view && step.sources == [OpSource::Op(at)];
        match self.steps[at].op.as_str() {
            "ARGSORT" => self.steps.iter().position(is_window).unwrap_or(at),
            _ => at,
        }
    }

    /// Whether an addition sums two parts of the same value.
    fn is_sum(&self, at: usize) -> bool {
        let step = &self.steps[at];
        let [a, b] = step.sources.as_slice() else {
            return false;
        };
        step.op == "ADD" && a != b && root(self.steps, a) == root(self.steps, b)
    }

    /// The weights that an operation reads, each once.
    fn weights(&self, at: usize) -> Vec<usize> {
        let mut out = Vec::new();
        for source in &self.steps[at].sources {
            if let OpSource::Weight(weight) = root(self.steps, source)
                && !out.contains(&weight)
            {
                out.push(weight);
            }
        }
        out
    }

    /// The box of the product, convolution or norm that this factor or offset directly follows.
    fn follows(&self, at: usize, boxes: &[OpGroup], owner: &GroupOfStep) -> Option<usize> {
        const LEADERS: &str =
            "MUL_MAT MUL_MAT_ID RMS_NORM NORM L2_NORM SSM_CONV GET_ROWS GROUP_NORM";
        let step = &self.steps[at];
        if !matches!(step.op.as_str(), "ADD" | "MUL" | "DIV" | "ADD_ID") {
            return None;
        }
        let OpSource::Op(before) = root(self.steps, step.sources.first()?) else {
            return None;
        };
        let operand = step.sources.get(1).map(|source| root(self.steps, source));
        let place = *owner.get(&before)?;
        let known = &boxes[place];
        let first = &self.steps[known.steps[0]].op;
        let leads = LEADERS.split(' ').any(|op| op == first);
        let is_last = known.steps.last() == Some(&before) && self.uses[before] == 1;
        (leads && is_last && matches!(operand, Some(OpSource::Weight(_)))).then_some(place)
    }

    /// The box of the preceding additions, if they and this one sum parts of the same value.
    fn sums_parts(&self, at: usize, boxes: &[OpGroup], owner: &GroupOfStep) -> Option<usize> {
        let step = &self.steps[at];
        let [OpSource::Op(sum), next] = step.sources.as_slice() else {
            return None;
        };
        let place = *owner.get(sum)?;
        let known = &boxes[place];
        let first = &self.steps[known.steps[0]];
        let whole = first.sources.first().map(|part| root(self.steps, part));
        let same = Some(root(self.steps, next)) == whole;
        let goes_on = step.op == "ADD" && known.steps.last() == Some(sum);
        (known.is_sum && same && goes_on).then_some(place)
    }
}
