//! Scenes as cards with a title, a sentence, a picture and numbers, in rows of equal height.

mod bars;
mod cards;
mod layers;
mod marks;
mod passes;

pub use cards::execution;

use marks::{ROOM, SIDE, arrow, cells, kept, legend, lettered};
