//! The points of the wiring, which belong to no contract of a block.

use crate::arch::PointSpec;
use crate::point;

/// The input of the branches of a slot, where the slot has a norm.
pub static SLOT_IN: PointSpec = point!(in: Neurons ["n_embd"], "what a slot reads, after its norm");

/// The result of one of several branches.
pub static BRANCH_OUT: PointSpec =
    point!(out: Neurons ["n_embd"], "result of one of several branches of a slot");

/// The result of a block before the norm of its branch.
pub static BRANCH_RAW: PointSpec =
    point!(raw: Neurons ["n_embd"], "result of a block, where a norm of its branch follows");

/// The sum of a slot's branches before the norm of the slot.
pub static SLOT_SUM: PointSpec =
    point!(sum: Neurons ["n_embd"], "sum of the branches of a slot, where a norm follows");

/// The value that a slot adds to the hidden state.
pub static SLOT_OUT: PointSpec =
    point!(out: Neurons ["n_embd"], "what a slot adds to the hidden state, or what replaces it");

pub static SLOT_X: PointSpec = point!(x: Neurons ["n_embd"], "the hidden state after a slot");

pub(super) const NORM: PointSpec = point!(norm: Neurons ["n_embd"] known_as("ln_final.hook_out"), "the hidden state after the final norm");

/// The hidden state after the final norm, of models that end in vectors.
pub static FINAL_NORM: PointSpec = NORM;

/// All points of the wiring, for the documentation.
pub static WIRING: &[&PointSpec] = &[
    &SLOT_IN,
    &BRANCH_RAW,
    &BRANCH_OUT,
    &SLOT_SUM,
    &SLOT_OUT,
    &SLOT_X,
];
