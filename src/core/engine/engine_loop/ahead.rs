//! What the next step will probably read, as far as it is known while devices compute a step.

use crate::model::SequenceId;

use super::{EngineRequest, RequestGroup};

/// The places that the next step reads if all active requests take part in this one with one token each and go on: one more token of
/// each that does not end now. Empty if that is not likely: a completion that waits may start where there `has_room` or one ends.
pub(super) fn next_places(
    groups: &[RequestGroup],
    active: &[EngineRequest],
    waits: bool,
    has_room: bool,
) -> Vec<(SequenceId, u32)> {
    let decodes = |group: &RequestGroup| (group.n_tokens, group.n_rows) == (1, 1);
    if groups.len() != active.len() || !groups.iter().all(decodes) || waits && has_room {
        return Vec::new();
    }
    let mut places = Vec::with_capacity(active.len());
    for EngineRequest { sequence, strategy } in active {
        match strategy.continues(sequence) {
            Some(true) => places.push((sequence.id, sequence.n_read() as u32)),
            None if !waits => {}
            _ => return Vec::new(),
        }
    }
    places
}
