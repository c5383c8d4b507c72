//! Scenes as cards: a name, a sentence, a picture, numbers, in rows of cards of one height.

mod bars;
mod cards;
mod layers;
mod marks;
mod passes;

pub use cards::execution;

use marks::{ROOM, SIDE, arrow, cells, kept, legend, lettered};
