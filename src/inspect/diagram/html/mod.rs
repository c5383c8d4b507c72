//! A drawing as one HTML file with three levels: stack, layer, block.
//!
//! All layout is done by `svg`; the script only shows, hides and marks. The file loads nothing: its policy forbids
//! every source except its own style and script, which are named by their SHA-256 sums. Pictures, data and the address
//! in the browser refer to each other by the names of `ids`. Texts from models and definitions are escaped, never
//! markup.

mod page;
mod views;

pub use page::page;

use page::badge;
