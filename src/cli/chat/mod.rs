//! `bench chat`: a conversation in the terminal, or with the lines of stdin as input.
//!
//! Requests, their checks and the parsing of answers are those of the server (`api::reply`). This module reads lines,
//! runs commands and shows answers. Invariant: nothing that a model wrote reaches the terminal unescaped.

mod command;
mod commands;
mod complete;
mod input;
mod screen;
mod session;
mod terminal;

pub(super) use command::{Args, run};
