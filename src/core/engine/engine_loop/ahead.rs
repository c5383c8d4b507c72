//! What the next step will probably read, as far as it is known while devices compute a step.

use crate::model::NextPass;

use super::{EngineRequest, RequestGroup};

/// What the next step reads if all active requests take part in this one with one token each and go on: one more token of each that
/// does not end now. Nothing if that is not likely: a completion that waits may start where there `has_room` or one ends.
pub(super) fn next_pass(
    groups: &[RequestGroup],
    active: &[EngineRequest],
    waits: bool,
    has_room: bool,
) -> NextPass {
    let decodes = |group: &RequestGroup| (group.n_tokens, group.n_rows) == (1, 1);
    if groups.len() != active.len() || !groups.iter().all(decodes) || waits && has_room {
        return NextPass::default();
    }
    let mut places = Vec::with_capacity(active.len());
    let mut are_best = true;
    for EngineRequest { sequence, strategy } in active {
        match strategy.continues(sequence) {
            Some(true) => {
                places.push((sequence.id, sequence.n_read() as u32));
                are_best &= strategy.takes_best(sequence);
            }
            None if !waits => are_best &= strategy.takes_best(sequence),
            _ => return NextPass::default(),
        }
    }
    NextPass { places, are_best }
}
