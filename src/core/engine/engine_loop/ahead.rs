//! What the next step will probably read, as far as it is known while devices compute a step.

use crate::model::{Batch, NextPass};

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
    let mut batch = Batch::default();
    let mut are_best = true;
    for EngineRequest { sequence, strategy } in active {
        match strategy.continues(sequence) {
            Some(true) => {
                batch.push(0, sequence.id, sequence.n_read() as u32, true);
                batch.ban(strategy.takes_best(sequence, 1).unwrap_or_default());
            }
            None if !waits => {}
            _ => return NextPass::default(),
        }
        // No row is read whole when the next pass has begun.
        are_best &= strategy.takes_best(sequence, 0).is_some();
    }
    NextPass { batch, are_best }
}
