//! A drawing as one HTML file with three levels: stack, layer, block.
//!
//! Everything is laid out by `svg`; the script shows, hides and marks, and lays nothing out.
//! The file asks nobody for anything: its policy forbids every source but the style and the script that
//! it holds, which it names by their SHA-256 sums. Pictures, data and the address in the browser meet by
//! the names of `ids`. What comes from models and definitions is text in it, never markup.

mod data;
mod page;
mod views;

pub use page::page;

use page::badge;
