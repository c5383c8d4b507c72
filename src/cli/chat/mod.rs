//! `bench chat`: a conversation in the terminal, or with the lines of stdin.
//!
//! Requests, their checks and the reading of answers are those of the server (`api::reply`); here lines are
//! read, commands run and answers shown. Invariant: nothing that a model wrote reaches the terminal unescaped.

mod commands;
mod input;
mod screen;
mod session;
mod talk;

pub(super) use talk::{Args, run};
